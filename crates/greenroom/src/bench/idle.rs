//! Measures what an idle server costs: statements, memory and processor time, while an agent waits in each hot slot. The
//! agents are clients that poll as an agent does. Each number of slots has its own database and server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Done;
use super::bars::{BarChart, Group};
use super::fixture::PlacementFixture;
use super::load::{LoadProcess, WaitingSlot, Work};
use super::server::ServerProcess;
use super::statements::Calls;
use super::usage;

const WAIT_WITHIN: Duration = Duration::from_secs(180);
/// After the last agent waits, until the keepers have seen all slots.
const SETTLE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server others may be created. SQLite if absent.
    pub database: Option<String>,
    /// The measured server, if it is not this program.
    pub server_binary: Option<PathBuf>,
    pub slots: Vec<u32>,
    /// The time until the measurement begins.
    pub settle: Option<Duration>,
    pub time: Duration,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

struct Idle {
    slots: u32,
    calls: BTreeMap<String, f64>,
    resident_mib: f64,
    peak_mib: u64,
    /// Of one core, in percent.
    cpu_percent: f64,
}

impl Idle {
    fn statements(&self) -> f64 {
        self.calls.values().sum()
    }
}

pub async fn run(options: &Options) -> Done {
    let mut measured = Vec::new();
    for slots in &options.slots {
        let mut fixture = PlacementFixture::prepare_for(options.database.as_deref(), *slots, 1, 1).await?;
        let idle = measure(options, &mut fixture).await;
        fixture.remove().await?;
        measured.push(idle?);
    }
    show(options, &measured)
}

async fn measure(options: &Options, fixture: &mut PlacementFixture) -> Done<Idle> {
    let rows = fixture.database.texts("SELECT name || ' ' || CAST(incarnation AS TEXT) FROM slots").await?;
    let mut slots = Vec::with_capacity(rows.len());
    for row in &rows {
        let (name, incarnation) = row.split_once(' ').ok_or("a slot has no incarnation")?;
        slots.push(WaitingSlot { name: name.to_owned(), incarnation: incarnation.parse()? });
    }
    let servers = [ServerProcess::start_program(&fixture.spec, options.server_binary.as_deref()).await?];
    let spec = fixture.load(&servers, slots.len(), Work::Wait { slots });
    let agents = LoadProcess::start(&spec).await?;
    until_all_wait(fixture, &servers[0]).await?;
    tokio::time::sleep(options.settle.unwrap_or(SETTLE)).await;
    let cpu = || usage::cpu_of(servers[0].pid).ok_or("the server has ended");
    let (begun, before, cpu_before) = (Instant::now(), Calls::of(&servers[0]).await?, cpu()?);
    tokio::time::sleep(options.time).await;
    let (seconds, cpu_after) = (begun.elapsed().as_secs_f64(), cpu()?);
    let after = Calls::of(&servers[0]).await?;
    // Some agents may be between two polls, and the scrape is a request too.
    if after.requests_under_way < f64::from(fixture.slots) * 0.9 {
        return Err(format!("only {} of {} agents wait", after.requests_under_way, fixture.slots).into());
    }
    let idle = Idle {
        slots: fixture.slots,
        calls: after.per_second(&before, seconds),
        resident_mib: usage::resident_mib(servers[0].pid).ok_or("the server has ended")?,
        peak_mib: usage::peak_mib(servers[0].pid).ok_or("the server has ended")?,
        cpu_percent: cpu_after.saturating_sub(cpu_before).as_secs_f64() / seconds * 100.0,
    };
    agents.stop().await?;
    for server in servers {
        server.stop().await?;
    }
    Ok(idle)
}

async fn until_all_wait(fixture: &PlacementFixture, server: &ServerProcess) -> Done {
    let deadline = Instant::now() + WAIT_WITHIN;
    let waiting = "SELECT COUNT(*) FROM slots WHERE agent IS NOT NULL";
    while fixture.database.number(waiting).await? < i64::from(fixture.slots)
        || Calls::of(server).await?.requests_under_way < f64::from(fixture.slots) * 0.9
    {
        if Instant::now() > deadline {
            return Err("the agents did not wait in time".into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

fn show(options: &Options, measured: &[Idle]) -> Done {
    let store = if options.database.is_some() { "PostgreSQL" } else { "SQLite" };
    if options.json {
        let rows: Vec<_> = measured
            .iter()
            .map(|idle| {
                json!({
                    "slots": idle.slots, "statements_per_second": idle.statements(), "resident_mib": idle.resident_mib,
                    "peak_mib": idle.peak_mib, "cpu_percent": idle.cpu_percent, "calls_per_second": idle.calls,
                })
            })
            .collect();
        println!("{}", json!({"bench": "idle", "store": store, "seconds": options.time.as_secs_f64(), "sizes": rows}));
    } else {
        println!("an idle server on {store}, with an agent that waits in each hot slot");
        println!("{:>10} {:>14} {:>10} {:>10} {:>14}", "slots", "statements/s", "MiB", "peak MiB", "% of a core");
        for idle in measured {
            println!(
                "{:>10} {:>14.2} {:>10.1} {:>10} {:>14.2}",
                idle.slots,
                idle.statements(),
                idle.resident_mib,
                idle.peak_mib,
                idle.cpu_percent
            );
        }
    }
    if let Some(file) = &options.svg {
        let group = |idle: &Idle| Group {
            label: format!("{} slots", idle.slots),
            values: vec![idle.statements(), idle.cpu_percent, idle.resident_mib / 10.0],
        };
        let chart = BarChart {
            title: format!("An idle server on {store}"),
            y_label: "per second, percent, 10 MiB".to_owned(),
            names: vec!["statements/s".to_owned(), "% of a core".to_owned(), "10 MiB".to_owned()],
            groups: measured.iter().map(group).collect(),
        };
        std::fs::write(file, chart.to_svg())?;
    }
    Ok(())
}
