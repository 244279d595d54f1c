//! Measures the time from the answer to `POST /bots` until the bot's command runs. It compares a hot slot, in which an
//! agent waits, with a stopped slot, which is started for the bot. On Docker it also compares `docker run` of the same
//! image. The command is this program, which sends a datagram when it runs.

use std::net::UdpSocket;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use domain::Platform;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Done;
use super::client::{Client, HttpResponse};
use super::container::{Containers, PROGRAM};
use super::database::Database;
use super::figures::{milliseconds, percentile};
use super::server::{PoolSpec, ProviderSpec, ServerProcess, ServerSpec};

/// How long one start may take before the measurement fails.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The number of slots of each pool.
const SLOTS: u32 = 2;

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created. SQLite if absent.
    pub database: Option<String>,
    pub bots: usize,
    pub json: bool,
    /// If set, slots are containers of this engine and not processes.
    pub docker: Option<DockerOptions>,
}

#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// The address of the engine. If absent, the one that the docker command would use.
    pub host: Option<String>,
    /// The address at which containers reach this machine. If absent, the gateway of the engine's bridge.
    pub address: Option<String>,
}

/// The bot that is started. It reports that it runs, and ends with a reason, because it joins no meeting.
pub fn report_start() -> ExitCode {
    let send = || -> Option<()> {
        let data: Value = serde_json::from_str(&std::env::var("BOT_DATA").ok()?).ok()?;
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.send_to(data["bot_id"].as_str()?.as_bytes(), data["config"]["report_to"].as_str()?).ok().map(drop)
    };
    println!("{{\"event\": \"exited\", \"reason\": \"measured\"}}");
    if send().is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub async fn run(options: &Options) -> Done {
    let containers = match &options.docker {
        Some(docker) => Some(Containers::make(docker.host.as_deref()).await?),
        None => None,
    };
    let database = Database::create(options.database.as_deref()).await?;
    let folder = std::env::temp_dir().join(format!("greenroom-bench-{}", Uuid::new_v4().simple()));
    std::fs::create_dir_all(&folder)?;
    let measured = on(&database, &folder, options, containers.as_ref()).await;
    database.remove().await?;
    std::fs::remove_dir_all(folder)?;
    if let Some(containers) = containers {
        containers.remove().await?;
    }
    measured
}

fn pool(name: &str, platform: Platform, is_hot: bool, provider: &ProviderSpec) -> PoolSpec {
    PoolSpec {
        // Containers have the names of their slots, and the engine may have other containers.
        name: format!("{name}-{}", &Uuid::new_v4().simple().to_string()[..8]),
        platform: platform.as_str().to_owned(),
        min_idle: SLOTS,
        is_hot,
        recycle_after: 1,
        provider: provider.clone(),
        ..PoolSpec::hot(SLOTS)
    }
}

/// The command of a slot: this program, as agent and as bot.
fn provider(containers: Option<&Containers>) -> Done<ProviderSpec> {
    let command = |own: &str| [own, "agent", "--", own, "bench", "bot"].map(str::to_owned).to_vec();
    Ok(match containers {
        None => ProviderSpec::Process { command: command(&std::env::current_exe()?.display().to_string()) },
        Some(containers) => ProviderSpec::Docker {
            host: containers.engine.host.clone(),
            image: containers.image.clone(),
            command: command(PROGRAM),
        },
    })
}

/// A way to start a bot, and the durations of its starts.
struct Way {
    name: &'static str,
    how: How,
    times: Vec<f64>,
}

enum How {
    /// In a slot of this pool, by a bot at this meeting.
    Slot { pool: String, meeting: &'static str },
    /// In a new container.
    Container,
}

async fn on(database: &Database, folder: &Path, options: &Options, containers: Option<&Containers>) -> Done {
    let provider = provider(containers)?;
    let (hot, stopped) =
        (pool("hot", Platform::GoogleMeet, true, &provider), pool("stopped", Platform::Zoom, false, &provider));
    let address = match (containers, options.docker.as_ref().and_then(|docker| docker.address.clone())) {
        (_, Some(address)) => address,
        (Some(containers), None) => containers.gateway().await?,
        (None, None) => "127.0.0.1".to_owned(),
    };
    let slot = |pool: &PoolSpec, meeting| How::Slot { pool: pool.name.clone(), meeting };
    let way = |name, how| Way { name, how, times: Vec::new() };
    let mut ways = vec![
        way("hot", slot(&hot, "https://meet.google.com/abc-defg-hij")),
        way("stopped", slot(&stopped, "https://zoom.us/j/81234567890")),
    ];
    if containers.is_some() {
        ways.push(way("docker run", How::Container));
    }
    let spec = ServerSpec { host: address.clone(), ..ServerSpec::new(database, vec![hot, stopped]) };
    // The folders of slots are below the server's current folder.
    let server = ServerProcess::start_in(&spec, Some(folder)).await?;
    let measured = measure(&server, database, &address, &mut ways, options.bots, containers).await;
    // Slots that are still being made become ready first, so that the deletion removes all of them.
    for way in &ways {
        if let How::Slot { pool, .. } = &way.how {
            server.until_idle(database, pool, i64::from(SLOTS)).await?;
        }
    }
    server.delete_slots_and_stop(database).await?;
    measured?;
    show(options, &ways);
    Ok(())
}

async fn measure(
    server: &ServerProcess,
    database: &Database,
    address: &str,
    ways: &mut [Way],
    bots: usize,
    containers: Option<&Containers>,
) -> Done {
    let key = server.create_users(1, 5).await?.remove(0);
    let mut client = Client::connect(server.address).await?;
    let socket = tokio::net::UdpSocket::bind(format!("{address}:0")).await?;
    let report_to = socket.local_addr()?.to_string();
    // The first start of each way also does one-time work, and is not counted.
    for round in 0..=bots {
        for way in ways.iter_mut() {
            let took = match (&way.how, containers) {
                (How::Slot { pool, meeting }, _) => {
                    server.until_idle(database, pool, i64::from(SLOTS)).await?;
                    let body = json!({"meeting_url": meeting, "config": {"report_to": report_to}}).to_string();
                    let HttpResponse { bot } = client.send("POST /bots", &key, None, &body, 201).await?;
                    let took = heard(&socket, bot.id, Instant::now()).await?;
                    until_ended(&mut client, &key, bot.id).await?;
                    took
                }
                (How::Container, Some(containers)) => {
                    let id = Uuid::new_v4();
                    let data = json!({"bot_id": id, "config": {"report_to": report_to}}).to_string();
                    let begun = Instant::now();
                    let (ran, took) = tokio::join!(containers.run(&data), heard(&socket, id, begun));
                    containers.remove_container(&ran?).await?;
                    took?
                }
                (How::Container, None) => continue,
            };
            if round > 0 {
                way.times.push(milliseconds(took));
            }
        }
    }
    Ok(())
}

/// Waits for a bot's datagram, and returns how long it took.
async fn heard(socket: &tokio::net::UdpSocket, bot: Uuid, begun: Instant) -> Done<Duration> {
    let mut word = [0; 64];
    let length = tokio::time::timeout(TIMEOUT, socket.recv(&mut word)).await??;
    let took = begun.elapsed();
    if &word[..length] != bot.to_string().as_bytes() {
        return Err("another bot runs than the requested one".into());
    }
    Ok(took)
}

fn show(options: &Options, ways: &[Way]) {
    let bots = options.bots;
    let hot = ways.first().map_or(f64::NAN, |way| percentile(&way.times, 0.5));
    if options.json {
        let rows: Vec<Value> = ways
            .iter()
            .map(|way| {
                let (middle, most) = (percentile(&way.times, 0.5), percentile(&way.times, 0.99));
                json!({"name": way.name, "p50_ms": middle, "p99_ms": most, "ratio": middle / hot})
            })
            .collect();
        println!("{}", json!({"bench": "start", "bots": bots, "ways": rows}));
        return;
    }
    println!("ms from the response of POST /bots until the command runs; {bots} bots each, alternating");
    println!("{:>12} {:>10} {:>10} {:>10}", "", "p50", "p99", "ratio");
    for Way { name, times, .. } in ways {
        let (middle, most) = (percentile(times, 0.5), percentile(times, 0.99));
        println!("{name:>12} {middle:>10.2} {most:>10.2} {:>10.2}", middle / hot);
    }
}

async fn until_ended(client: &mut Client, key: &str, bot: Uuid) -> Done {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let call = format!("GET /bots/{bot}");
        let HttpResponse { bot } = client.send(&call, key, None, "", 200).await?;
        match bot.status.as_str() {
            "completed" => return Ok(()),
            "failed" => return Err("a bot failed".into()),
            _ if Instant::now() > deadline => return Err("a bot did not end".into()),
            _ => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}
