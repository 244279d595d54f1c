//! Measures two servers on one database under load. Again and again, the server that has the turn to place is killed
//! during its turn, and restarted. Clients whose connection breaks send the same request, with the same
//! Idempotency-Key, to the other server. No acknowledged bot may be lost or doubled. The longest time without any
//! answer is measured.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::Done;
use super::figures::milliseconds;
use super::fixture::PlacementFixture;
use super::load::{LoadProcess, LoadReport, Work};
use super::server::{ServerProcess, ServerSpec};
use super::usage;

/// The time before the first kill and after the last start.
const MARGIN: Duration = Duration::from_secs(2);
/// How long the search for a server with the turn may take.
const FOUND_WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created.
    pub database: String,
    pub slots: u32,
    pub clients: usize,
    pub kills: usize,
    /// The time from when a server is ready again to the next kill.
    pub pause: Duration,
    pub json: bool,
}

/// The errors found after the run.
#[derive(Debug)]
struct Losses {
    /// Acknowledged bots that do not exist, or have not ended.
    lost: usize,
    /// Slots that had two bots, and meetings with more than one.
    doubled: u64,
}

pub async fn run(options: &Options) -> Done {
    let mut fixture = PlacementFixture::prepare(Some(&options.database), options.slots, options.clients).await?;
    let measured = measure(options, &mut fixture).await;
    fixture.remove().await?;
    measured
}

async fn measure(options: &Options, fixture: &mut PlacementFixture) -> Done {
    // The same load without kills, for as long as a kill takes, as the reference for the pause.
    let mut servers = vec![fixture.start_server().await?, fixture.start_server().await?];
    let calm_time = MARGIN * 2;
    let work = |time| Work::Place { time, interval: None, retry: true, pairs_per_second: None };
    let spec = fixture.load(&servers, options.clients, work(calm_time));
    let calm = LoadProcess::run(&spec).await?;
    check_calm(&calm)?;

    let time = MARGIN * 2 + (options.pause + Duration::from_secs(1)) * u32::try_from(options.kills)?;
    let spec = fixture.load(&servers, options.clients, work(time));
    let load = LoadProcess::start(&spec).await?;
    tokio::time::sleep(MARGIN).await;
    let mut restarts = Vec::new();
    for kill in 0..options.kills {
        let victim = servers.remove(stop_in_turn(fixture, &servers).await?);
        let restarted = ServerSpec { port: victim.address.port(), ..fixture.spec.clone() };
        victim.kill().await?;
        let started = ServerProcess::start(&restarted).await?;
        restarts.push(milliseconds(started.ready_in));
        servers.push(started);
        if kill + 1 < options.kills {
            tokio::time::sleep(options.pause).await;
        }
    }
    let report = load.report().await?;
    let losses = count_losses(fixture, &report).await?;
    let at_rest = fixture.check().await;
    show(options, &calm, &report, &losses, &restarts);
    at_rest?;
    for server in servers {
        server.stop().await?;
    }
    if losses.lost > 0 || losses.doubled > 0 {
        return Err(format!("{} bots lost, {} bots duplicated", losses.lost, losses.doubled).into());
    }
    Ok(())
}

/// Suspends the server that has the turn, and returns its index. The server is suspended before its turn is checked
/// again, so that the turn cannot end between the check and the kill.
async fn stop_in_turn(fixture: &PlacementFixture, servers: &[ServerProcess]) -> Done<usize> {
    let deadline = Instant::now() + FOUND_WITHIN;
    while Instant::now() < deadline {
        let Some(number) = server_in_turn(fixture, servers).await? else { continue };
        servers[number].signal(Signal::SIGSTOP)?;
        if server_in_turn(fixture, servers).await? == Some(number) {
            return Ok(number);
        }
        servers[number].signal(Signal::SIGCONT)?;
    }
    Err("no server was found while it was placing".into())
}

/// The server whose connection holds the turn.
async fn server_in_turn(fixture: &PlacementFixture, servers: &[ServerProcess]) -> Done<Option<usize>> {
    let holder = "SELECT activity.client_port::text
                    FROM pg_locks AS locks JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
                   WHERE locks.locktype = 'advisory' AND locks.objid = 7702 AND locks.granted
                     AND activity.datname = current_database()";
    let ports = fixture.database.texts(holder).await?;
    let Some(port) = ports.first().and_then(|port| port.parse().ok()) else { return Ok(None) };
    Ok(servers.iter().position(|server| usage::local_ports(server.pid).contains(&port)))
}

fn check_calm(calm: &LoadReport) -> Done {
    calm.check()?;
    if calm.retries > 0 { Err("requests failed before any server was killed".into()) } else { Ok(()) }
}

async fn count_losses(fixture: &PlacementFixture, report: &LoadReport) -> Done<Losses> {
    let ended = fixture.database.texts("SELECT id::text FROM bots WHERE status = 'completed'").await?;
    let ended: HashSet<String> = ended.into_iter().collect();
    let lost = report.bots.iter().filter(|bot| !ended.contains(&bot.to_string())).count();
    let twice = fixture
        .database
        .number("SELECT COUNT(*) FROM (SELECT 1 FROM bots GROUP BY native_meeting_id HAVING COUNT(*) > 1) AS meetings")
        .await?;
    Ok(Losses { lost, doubled: report.doubles + u64::try_from(twice)? })
}

fn show(options: &Options, calm: &LoadReport, report: &LoadReport, losses: &Losses, restarts: &[f64]) {
    let (pause, calm_pause) = (milliseconds(report.longest_pause), milliseconds(calm.longest_pause));
    let ratio = report.pairs_per_second() / calm.pairs_per_second();
    let slowest = restarts.iter().copied().fold(0.0, f64::max);
    if options.json {
        println!(
            "{}",
            json!({
                "bench": "failover", "kills": options.kills, "killed": "in its turn", "clients": options.clients,
                "acknowledged": report.bots.len(), "lost": losses.lost, "doubled": losses.doubled,
                "retries": report.retries, "longest_pause_ms": pause, "longest_pause_without_kills_ms": calm_pause,
                "pairs_per_second": report.pairs_per_second(), "pairs_per_second_without_kills": calm.pairs_per_second(),
                "ratio": ratio, "slowest_restart_ms": slowest,
            })
        );
        return;
    }
    println!("{} kills of the server that was placing, out of two servers; {} clients", options.kills, options.clients);
    println!("{:<36} {:>10}", "bots acknowledged", report.bots.len());
    println!("{:<36} {:>10}", "lost", losses.lost);
    println!("{:<36} {:>10}", "duplicated", losses.doubled);
    println!("{:<36} {:>10}", "requests sent again", report.retries);
    println!("{:<36} {pause:>10.0} ms", "longest pause of all clients");
    println!("{:<36} {calm_pause:>10.0} ms", "the same without kills");
    println!("{:<36} {:>10.0}", "pairs per second", report.pairs_per_second());
    println!("{:<36} {:>10.0}", "the same without kills", calm.pairs_per_second());
    println!("{:<36} {ratio:>10.2}", "ratio");
    println!("{:<36} {slowest:>10.0} ms", "slowest start of a server");
}
