//! Measures how long a bot with a browser takes from the request until it has joined its meeting. It compares a stopped
//! slot, a hot slot and a prewarmed slot with a start of the same bot by hand, without Greenroom. The bot is the one in
//! `examples/browser-bot`, which serves its own meeting.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use domain::Platform;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use uuid::Uuid;

use super::Done;
use super::client::{Client, HttpResponse};
use super::database::Database;
use super::figures::{milliseconds, percentile};
use super::server::{PoolSpec, ProviderSpec, ServerProcess, ServerSpec};

/// How long one start, or one end, may take before the measurement fails. The first start of a browser on a machine
/// reads it from the disk.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created. SQLite if absent.
    pub database: Option<String>,
    pub bots: usize,
    pub json: bool,
    /// The script of the bot.
    pub bot: PathBuf,
}

/// A way to start the bot, and the durations of its starts.
struct Way {
    name: &'static str,
    how: How,
    times: Vec<f64>,
}

enum How {
    /// In a slot of this pool, by a bot at this meeting.
    Slot {
        pool: String,
        meeting: &'static str,
    },
    ByHand,
}

pub async fn run(options: &Options) -> Done {
    let bot = options.bot.canonicalize().map_err(|error| {
        format!("--bot: {} cannot be used ({error}); name the bot.py of examples/browser-bot", options.bot.display())
    })?;
    let database = Database::create(options.database.as_deref()).await?;
    let folder = std::env::temp_dir().join(format!("greenroom-bench-{}", Uuid::new_v4().simple()));
    std::fs::create_dir_all(&folder)?;
    let measured = on(&database, &folder, options, &bot).await;
    database.remove().await?;
    std::fs::remove_dir_all(folder)?;
    measured
}

fn pool(name: &str, platform: Platform, provider: &ProviderSpec) -> PoolSpec {
    PoolSpec {
        name: name.to_owned(),
        platform: platform.as_str().to_owned(),
        min_idle: 1,
        is_hot: name != "stopped",
        is_prewarmed: name == "prewarmed",
        recycle_after: 1,
        provider: provider.clone(),
        ..PoolSpec::hot(1)
    }
}

async fn on(database: &Database, folder: &Path, options: &Options, bot: &Path) -> Done {
    let own = std::env::current_exe()?.display().to_string();
    let command = [own.as_str(), "agent", "--", "python3", &bot.display().to_string()].map(str::to_owned).to_vec();
    let provider = ProviderSpec::Process { command };
    let all = [
        ("stopped", Platform::Zoom, "https://zoom.us/j/81234567890"),
        ("hot", Platform::GoogleMeet, "https://meet.google.com/abc-defg-hij"),
        ("prewarmed", Platform::Teams, "https://teams.live.com/meet/9313212345678?p=abcdefghijklmnop"),
    ];
    let pools = all.iter().map(|(name, platform, _)| pool(name, *platform, &provider)).collect();
    let slots = all.iter().map(|(name, _, meeting)| (*name, How::Slot { pool: (*name).to_owned(), meeting }));
    let ways = slots.chain([("by hand", How::ByHand)]);
    let mut ways: Vec<Way> = ways.map(|(name, how)| Way { name, how, times: Vec::new() }).collect();
    let server = ServerProcess::start_in(&ServerSpec::new(database, pools), Some(folder)).await?;
    let measured = measure(&server, database, &mut ways, options.bots, bot).await;
    // Slots that are still being made become ready first, so that the deletion removes all of them.
    for way in &ways {
        if let How::Slot { pool, .. } = &way.how {
            server.until_idle(database, pool, 1).await?;
        }
    }
    server.delete_slots_and_stop(database).await?;
    measured?;
    show(options, &ways);
    Ok(())
}

async fn measure(server: &ServerProcess, database: &Database, ways: &mut [Way], bots: usize, bot: &Path) -> Done {
    let key = server.create_users(1, 5).await?.remove(0);
    let mut client = Client::connect(server.address).await?;
    // The first start of each way also does one-time work, and is not counted.
    for round in 0..=bots {
        for at in 0..ways.len() {
            // All slots are ready before each start, so that no browser opens beside the one that is measured.
            for way in ways.iter() {
                if let How::Slot { pool, .. } = &way.how {
                    server.until_idle(database, pool, 1).await?;
                }
            }
            let took = match &ways[at].how {
                How::Slot { meeting, .. } => in_slot(&mut client, &key, meeting).await?,
                How::ByHand => by_hand(bot).await?,
            };
            if round > 0 {
                ways[at].times.push(milliseconds(took));
            }
        }
    }
    Ok(())
}

/// The time from the request until the server knows that the bot has joined.
async fn in_slot(client: &mut Client, key: &str, meeting: &str) -> Done<Duration> {
    let begun = Instant::now();
    let body = json!({"meeting_url": meeting}).to_string();
    let HttpResponse { bot } = client.send("POST /bots", key, None, &body, 201).await?;
    let (id, wait_ms) = (bot.id, TIMEOUT.as_millis());
    let call = format!("GET /bots/{id}?wait_for=active&wait_ms={}", wait_ms.min(30_000));
    let HttpResponse { bot } = client.send(&call, key, None, "", 200).await?;
    let took = begun.elapsed();
    if bot.status != "active" {
        return Err(format!("a bot is {} and not active", bot.status).into());
    }
    let HttpResponse { .. } = client.send(&format!("DELETE /bots/{id}"), key, None, "", 202).await?;
    let call = format!("GET /bots/{id}?wait_for=ended&wait_ms=30000");
    let HttpResponse { bot } = client.send(&call, key, None, "", 200).await?;
    if bot.status != "completed" {
        return Err(format!("a bot is {} and not completed", bot.status).into());
    }
    Ok(took)
}

/// The time from the start of the bot's process until it reports that it has joined.
async fn by_hand(bot: &Path) -> Done<Duration> {
    let folder = std::env::temp_dir().join(format!("greenroom-bench-{}", Uuid::new_v4().simple()));
    std::fs::create_dir_all(&folder)?;
    let begun = Instant::now();
    let mut command = Command::new("python3");
    command.arg(bot).env("BOT_DATA", json!({"bot_id": "by hand", "config": {}}).to_string());
    command.env("HOME", &folder).env("TMPDIR", &folder);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
    let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or("the bot has no standard input")?;
    let mut stdin = stdin;
    let mut lines = BufReader::new(stdout).lines();
    let joined = async {
        while let Some(line) = lines.next_line().await? {
            if serde_json::from_str::<Value>(&line).is_ok_and(|event| event["event"] == "joined") {
                return Ok(begun.elapsed());
            }
        }
        Err("the bot ended before it joined".into())
    };
    let took: Done<Duration> = tokio::time::timeout(TIMEOUT, joined).await?;
    stdin.write_all(b"{\"id\":\"1\",\"action\":\"leave\",\"payload\":{}}\n").await?;
    let rest = async { while let Ok(Some(_)) = lines.next_line().await {} };
    tokio::time::timeout(TIMEOUT, rest).await?;
    tokio::time::timeout(TIMEOUT, child.wait()).await??;
    std::fs::remove_dir_all(folder)?;
    took
}

fn show(options: &Options, ways: &[Way]) {
    let bots = options.bots;
    let hot = ways.iter().find(|way| way.name == "hot").map_or(f64::NAN, |way| percentile(&way.times, 0.5));
    if options.json {
        let rows: Vec<Value> = ways
            .iter()
            .map(|way| {
                let (middle, most) = (percentile(&way.times, 0.5), percentile(&way.times, 0.99));
                json!({"name": way.name, "p50_ms": middle, "p99_ms": most, "ratio": middle / hot})
            })
            .collect();
        println!("{}", json!({"bench": "start --browser", "bots": bots, "ways": rows}));
        return;
    }
    println!("ms from the request until the bot with its browser has joined; {bots} bots each, alternating");
    println!("{:>12} {:>10} {:>10} {:>10}", "", "p50", "p99", "ratio");
    for Way { name, times, .. } in ways {
        let (middle, most) = (percentile(times, 0.5), percentile(times, 0.99));
        println!("{name:>12} {middle:>10.1} {most:>10.1} {:>10.3}", middle / hot);
    }
}
