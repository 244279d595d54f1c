//! From the answer to `POST /bots` to the bot's command running: in a hot slot, whose agent waits for it, beside a
//! stopped slot, which is started for it. The command is this program, which says by a datagram that it runs.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use domain::Platform;
use serde_json::Value;
use uuid::Uuid;

use super::Done;
use super::client::{Answer, Client};
use super::figures::{milliseconds, percentile};
use super::house::{Database, House};
use crate::config::pool::{PoolConfig, Provider, Standby};

/// How long one may take before the measurement is given up.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Options {
    /// A database of a PostgreSQL on which another may be made; SQLite without.
    pub database: Option<String>,
    pub bots: usize,
}

/// The bot that is started: tells that it runs, and ends.
pub fn tell() -> ExitCode {
    let told = || -> Option<()> {
        let data: Value = serde_json::from_str(&std::env::var("BOT_DATA").ok()?).ok()?;
        let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
        socket.send_to(data["bot_id"].as_str()?.as_bytes(), data["config"]["tell"].as_str()?).ok().map(drop)
    };
    if told().is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub async fn run(options: &Options) -> Done {
    let database = Database::make(options.database.as_deref()).await?;
    let folder = std::env::temp_dir().join(format!("greenroom-bench-{}", Uuid::new_v4().simple()));
    std::fs::create_dir_all(&folder)?;
    // Slots have their folders below the current one.
    let before = std::env::current_dir()?;
    std::env::set_current_dir(&folder)?;
    let measured = on(&database, options).await;
    std::env::set_current_dir(before)?;
    database.remove().await?;
    std::fs::remove_dir_all(folder)?;
    measured
}

fn pool(name: &str, platform: Platform, standby: Standby, own: &str) -> PoolConfig {
    let command = [own, "agent", "--", own, "bench", "bot"].map(str::to_owned).to_vec();
    PoolConfig {
        name: name.to_owned(),
        platform,
        provider: Provider::Process,
        max_slots: 2,
        min_idle: 2,
        standby,
        recycle_after: 1,
        command: Some(command),
        settings: BTreeMap::new(),
    }
}

async fn on(database: &Database, options: &Options) -> Done {
    let own = std::env::current_exe()?.display().to_string();
    let pools = vec![
        pool("hot", Platform::GoogleMeet, Standby::Running, &own),
        pool("stopped", Platform::Zoom, Standby::Stopped, &own),
    ];
    let house = House::start(database, pools, None).await?;
    let (_, key) = house.user(5).await?;
    let mut client = Client::connect(house.address).await?;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
    let address = socket.local_addr()?.to_string();
    let (mut hot, mut stopped) = (Vec::new(), Vec::new());
    // The first of each makes the folders, and is not counted.
    for round in 0..=options.bots {
        for (pool, times) in [("hot", &mut hot), ("stopped", &mut stopped)] {
            until_idle(&house, pool).await?;
            let meeting = match pool {
                "hot" => "https://meet.google.com/abc-defg-hij",
                _ => "https://zoom.us/j/81234567890",
            };
            let body = format!("{{\"meeting_url\": \"{meeting}\", \"config\": {{\"tell\": \"{address}\"}}}}");
            let Answer { bot } = client.send("POST /bots", &key, None, &body, 201).await?;
            let answered = Instant::now();
            let mut word = [0; 64];
            let length = tokio::time::timeout(PATIENCE, socket.recv(&mut word)).await??;
            let took = answered.elapsed();
            if &word[..length] != bot.id.to_string().as_bytes() {
                return Err("another bot than the one that was asked for runs".into());
            }
            if round > 0 {
                times.push(milliseconds(took));
            }
            until_ended(&mut client, &key, bot.id).await?;
        }
    }
    println!("from the answer to POST /bots to the command running, in ms, {} bots each, in turn", options.bots);
    println!("{:>10} {:>10} {:>10}", "slot", "p50", "p99");
    for (name, times) in [("hot", &hot), ("stopped", &stopped)] {
        println!("{name:>10} {:>10.2} {:>10.2}", percentile(times, 0.5), percentile(times, 0.99));
    }
    let ratio = |share| percentile(&stopped, share) / percentile(&hot, share);
    println!("{:>10} {:>10.2} {:>10.2}", "ratio", ratio(0.5), ratio(0.99));
    for slot in house.app.store.slots(None, None).await? {
        house.app.deployment.delete_now(&slot).await;
    }
    house.stop().await
}

/// Waits until the pool has a slot that is ready.
async fn until_idle(house: &House, pool: &str) -> Done {
    let deadline = Instant::now() + PATIENCE;
    while house.app.store.slots(Some(pool), Some(domain::SlotStatus::Idle)).await?.len() < 2 {
        if Instant::now() > deadline {
            return Err(format!("the pool {pool} has no slot that is ready").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn until_ended(client: &mut Client, key: &str, bot: Uuid) -> Done {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let call = format!("GET /bots/{bot}");
        let Answer { bot } = client.send(&call, key, None, "", 200).await?;
        match bot.status.as_str() {
            "completed" => return Ok(()),
            "failed" => return Err("a bot failed".into()),
            _ if Instant::now() > deadline => return Err("a bot did not end".into()),
            _ => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}
