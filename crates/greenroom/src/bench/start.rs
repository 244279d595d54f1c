//! From the answer to `POST /bots` to the bot's command running: in a hot slot, whose agent waits for it, beside a
//! stopped slot, which is started for it, and on Docker beside `docker run` of the same image. The command is this
//! program, which says by a datagram that it runs.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use domain::Platform;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Done;
use super::client::{Answer, Client};
use super::container::{Containers, PROGRAM};
use super::figures::{milliseconds, percentile};
use super::house::{Database, House};
use crate::config::pool::{PoolConfig, Standby};
use crate::config::provider::{DockerConfig, ProcessConfig, ProviderConfig};

/// How long one may take before the measurement is given up.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Options {
    /// A database of a PostgreSQL on which another may be made; SQLite without.
    pub database: Option<String>,
    pub bots: usize,
    /// Slots are containers there, and not processes.
    pub docker: Option<DockerOptions>,
}

#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// As the docker command finds it without.
    pub host: Option<String>,
    /// Where containers reach this machine; the gateway of the engine's bridge without.
    pub address: Option<String>,
}

/// The bot that is started: tells that it runs, and ends.
pub fn tell() -> ExitCode {
    let told = || -> Option<()> {
        let data: Value = serde_json::from_str(&std::env::var("BOT_DATA").ok()?).ok()?;
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.send_to(data["bot_id"].as_str()?.as_bytes(), data["config"]["tell"].as_str()?).ok().map(drop)
    };
    if told().is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub async fn run(options: &Options) -> Done {
    let containers = match &options.docker {
        Some(docker) => Some(Containers::make(docker.host.as_deref()).await?),
        None => None,
    };
    let database = Database::make(options.database.as_deref()).await?;
    let folder = std::env::temp_dir().join(format!("greenroom-bench-{}", Uuid::new_v4().simple()));
    std::fs::create_dir_all(&folder)?;
    // Slots have their folders below the current one.
    let before = std::env::current_dir()?;
    std::env::set_current_dir(&folder)?;
    let measured = on(&database, options, containers.as_ref()).await;
    std::env::set_current_dir(before)?;
    database.remove().await?;
    std::fs::remove_dir_all(folder)?;
    if let Some(containers) = containers {
        containers.remove().await?;
    }
    measured
}

fn pool(name: &str, platform: Platform, standby: Standby, provider: &ProviderConfig) -> PoolConfig {
    PoolConfig {
        // Containers have the names of their slots, and others may be on the same engine.
        name: format!("{name}-{}", &Uuid::new_v4().simple().to_string()[..8]),
        platform,
        provider: provider.clone(),
        max_slots: 2,
        min_idle: 2,
        standby,
        recycle_after: 1,
        attributes: Default::default(),
        expire_after: None,
    }
}

/// What a slot runs: this program, as agent and as bot.
fn provider(containers: Option<&Containers>) -> Done<ProviderConfig> {
    let command = |own: &str| [own, "agent", "--", own, "bench", "bot"].map(str::to_owned).to_vec();
    Ok(match containers {
        None => ProviderConfig::Process(ProcessConfig {
            command: Some(command(&std::env::current_exe()?.display().to_string())),
            user: None,
        }),
        Some(containers) => ProviderConfig::Docker(DockerConfig {
            host: Some(containers.engine.host.clone()),
            image: containers.image.clone(),
            command: Some(command(PROGRAM)),
            ..DockerConfig::default()
        }),
    })
}

/// A way to start a bot, and how long each start took.
struct Way {
    name: &'static str,
    how: How,
    times: Vec<f64>,
}

enum How {
    /// In a slot of this pool, by a bot at this meeting.
    Slot { pool: String, meeting: &'static str },
    /// In a container of its own.
    Container,
}

async fn on(database: &Database, options: &Options, containers: Option<&Containers>) -> Done {
    let provider = provider(containers)?;
    let (hot, stopped) = (
        pool("hot", Platform::GoogleMeet, Standby::Running, &provider),
        pool("stopped", Platform::Zoom, Standby::Stopped, &provider),
    );
    let address = match (containers, options.docker.as_ref().and_then(|docker| docker.address.clone())) {
        (_, Some(address)) => address,
        (Some(containers), None) => containers.gateway().await?,
        (None, None) => "127.0.0.1".to_owned(),
    };
    let slot = |pool: &PoolConfig, meeting| How::Slot { pool: pool.name.clone(), meeting };
    let way = |name, how| Way { name, how, times: Vec::new() };
    let mut ways = vec![
        way("hot", slot(&hot, "https://meet.google.com/abc-defg-hij")),
        way("stopped", slot(&stopped, "https://zoom.us/j/81234567890")),
    ];
    if containers.is_some() {
        ways.push(way("docker run", How::Container));
    }
    let house = House::start_at(&address, database, vec![hot, stopped], None).await?;
    let measured = measure(&house, &address, &mut ways, options.bots, containers).await;
    // The last ones are made ready first, and then nobody makes any more.
    for way in &ways {
        if let How::Slot { pool, .. } = &way.how {
            until_idle(&house, pool).await?;
        }
    }
    let (slots, app) = (house.app.store.slots(None, None).await?, house.app.clone());
    house.stop().await?;
    for slot in slots {
        app.deployment.delete_now(&slot).await;
    }
    measured?;
    show(&ways, options.bots);
    Ok(())
}

async fn measure(house: &House, address: &str, ways: &mut [Way], bots: usize, containers: Option<&Containers>) -> Done {
    let (_, key) = house.user(5).await?;
    let mut client = Client::connect(house.address).await?;
    let socket = tokio::net::UdpSocket::bind(format!("{address}:0")).await?;
    let tell = socket.local_addr()?.to_string();
    // The first of each makes what is made once, and is not counted.
    for round in 0..=bots {
        for way in ways.iter_mut() {
            let took = match (&way.how, containers) {
                (How::Slot { pool, meeting }, _) => {
                    until_idle(house, pool).await?;
                    let body = json!({"meeting_url": meeting, "config": {"tell": tell}}).to_string();
                    let Answer { bot } = client.send("POST /bots", &key, None, &body, 201).await?;
                    let took = heard(&socket, bot.id, Instant::now()).await?;
                    until_ended(&mut client, &key, bot.id).await?;
                    took
                }
                (How::Container, Some(containers)) => {
                    let id = Uuid::new_v4();
                    let data = json!({"bot_id": id, "config": {"tell": tell}}).to_string();
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

/// Waits for a bot's word, and says how long it took.
async fn heard(socket: &tokio::net::UdpSocket, bot: Uuid, begun: Instant) -> Done<Duration> {
    let mut word = [0; 64];
    let length = tokio::time::timeout(PATIENCE, socket.recv(&mut word)).await??;
    let took = begun.elapsed();
    if &word[..length] != bot.to_string().as_bytes() {
        return Err("another bot than the one that was asked for runs".into());
    }
    Ok(took)
}

fn show(ways: &[Way], bots: usize) {
    println!("from the answer to POST /bots to the command running, in ms, {bots} bots each, in turn");
    println!("{:>12} {:>10} {:>10} {:>10}", "", "p50", "p99", "to hot");
    let hot = ways.first().map_or(f64::NAN, |way| percentile(&way.times, 0.5));
    for Way { name, times, .. } in ways {
        let (middle, most) = (percentile(times, 0.5), percentile(times, 0.99));
        println!("{name:>12} {middle:>10.2} {most:>10.2} {:>10.2}", middle / hot);
    }
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
