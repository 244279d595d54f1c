//! Measures many bots at once in hot slots of the provider `process`, each with a real agent, from the first request
//! until the commands of all bots run. It compares this with the same commands started by `xargs -P`, which does
//! nothing else. Both run in turn, and each command sends a datagram when it runs.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::UdpSocket;
use tokio::process::Command;
use uuid::Uuid;

use super::Done;
use super::bars::{BarChart, Group};
use super::database::Database;
use super::figures::median;
use super::load::{LoadProcess, LoadSpec, Work, start::heard};
use super::server::{POOL, PoolSpec, ProviderSpec, ServerProcess, ServerSpec};

const RUN_WITHIN: Duration = Duration::from_secs(120);
/// How many slots are made ready at the same time.
const CONCURRENT_DEPLOYMENTS: u32 = 16;

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created. SQLite if absent.
    pub database: Option<String>,
    pub bots: usize,
    pub clients: usize,
    pub rounds: usize,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

pub async fn run(options: &Options) -> Done {
    let database = Database::create(options.database.as_deref()).await?;
    let folder = std::env::temp_dir().join(format!("greenroom-bench-{}", Uuid::new_v4().simple()));
    std::fs::create_dir_all(&folder)?;
    let measured = on(&database, &folder, options).await;
    database.remove().await?;
    std::fs::remove_dir_all(folder)?;
    measured
}

async fn on(database: &Database, folder: &Path, options: &Options) -> Done {
    let own = std::env::current_exe()?.display().to_string();
    let command = [&own, "agent", "--", &own, "bench", "bot"].map(str::to_owned).to_vec();
    let slots = u32::try_from(options.bots)?;
    let pool = PoolSpec { min_idle: slots, provider: ProviderSpec::Process { command }, ..PoolSpec::hot(slots) };
    let spec = ServerSpec { concurrent_deployments: CONCURRENT_DEPLOYMENTS, ..ServerSpec::new(database, vec![pool]) };
    let server = ServerProcess::start_in(&spec, Some(folder)).await?;
    let measured = measure(&server, database, options).await;
    server.delete_slots_and_stop(database).await?;
    show(options, &measured?)
}

#[derive(Default)]
struct Rounds {
    ours: Vec<f64>,
    theirs: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

async fn measure(server: &ServerProcess, database: &Database, options: &Options) -> Done<Rounds> {
    let keys = server.create_users(options.clients, i64::try_from(options.bots)?).await?;
    let signing_secret = database.signing_secret().await?;
    let mut rounds = Rounds::default();
    // The first round warms up both.
    for round in 0..=options.rounds {
        server.until_idle(database, POOL, i64::try_from(options.bots)?).await?;
        let spec = LoadSpec {
            addresses: vec![server.address],
            keys: keys.clone(),
            signing_secret: signing_secret.clone(),
            first_meeting: (round * options.bots) as u64,
            clients: options.clients,
            work: Work::Start { bots: options.bots },
        };
        let report = LoadProcess::run(&spec).await?;
        report.check()?;
        server.until_idle(database, POOL, i64::try_from(options.bots)?).await?;
        let theirs = by_xargs(options).await?;
        if round > 0 {
            rounds.ours.push(report.seconds * 1_000.0);
            rounds.p50.push(report.latency_p50_ms);
            rounds.p99.push(report.latency_p99_ms);
            rounds.theirs.push(theirs.as_secs_f64() * 1_000.0);
        }
    }
    if database.open_bots().await? > 0 {
        return Err("some bots have not ended".into());
    }
    Ok(rounds)
}

/// Starts the same commands, as many at once as there are clients.
async fn by_xargs(options: &Options) -> Done<Duration> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    let report_to = socket.local_addr()?.to_string();
    let own = std::env::current_exe()?;
    let mut input = Vec::new();
    for _ in 0..options.bots {
        input.extend(json!({"bot_id": Uuid::new_v4(), "config": {"report_to": report_to}}).to_string().into_bytes());
        input.push(0);
    }
    let begun = Instant::now();
    let mut child = Command::new("xargs")
        .args(["-0", "-I", "@", "-P", &options.clients.to_string(), "env", "BOT_DATA=@"])
        .arg(own)
        .args(["bench", "bot"])
        .stdin(Stdio::piped())
        // The output of the commands would mix with the figures.
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("xargs has no input")?;
    let write = async move {
        stdin.write_all(&input).await?;
        drop(stdin);
        Done::Ok(())
    };
    let running = async {
        let (written, running) = tokio::join!(write, heard(&socket, options.bots));
        written?;
        running
    };
    let running = tokio::time::timeout(RUN_WITHIN, running).await.map_err(|_| "not all commands ran in time")??;
    let last = running.values().max().copied().unwrap_or(begun);
    if !child.wait().await?.success() {
        return Err("xargs failed".into());
    }
    Ok(last.duration_since(begun))
}

fn show(options: &Options, rounds: &Rounds) -> Done {
    let (ours, theirs) = (median(&rounds.ours), median(&rounds.theirs));
    let (p50, p99) = (median(&rounds.p50), median(&rounds.p99));
    if let Some(file) = &options.svg {
        let chart = BarChart {
            title: format!("{} commands at once", options.bots),
            y_label: "ms until all run".to_owned(),
            names: vec!["Greenroom, hot slots".to_owned(), format!("xargs -P {}", options.clients)],
            groups: vec![Group { label: format!("{} clients", options.clients), values: vec![ours, theirs] }],
        };
        std::fs::write(file, chart.to_svg())?;
    }
    if options.json {
        println!(
            "{}",
            json!({
                "bench": "start --burst", "bots": options.bots, "clients": options.clients, "rounds": options.rounds,
                "greenroom_ms": ours, "xargs_ms": theirs, "ratio": ours / theirs, "p50_ms": p50, "p99_ms": p99,
            })
        );
        return Ok(());
    }
    println!(
        "from the first of {} requests by {} clients until the last command runs; medians of alternating rounds",
        options.bots, options.clients
    );
    println!("{:<24} {ours:>10.0} ms  (each: p50 {p50:.0}, p99 {p99:.0})", "greenroom, hot slots");
    println!("{:<24} {theirs:>10.0} ms", format!("xargs -P {}", options.clients));
    println!("{:<24} {:>10.2}", "ratio", ours / theirs);
    Ok(())
}
