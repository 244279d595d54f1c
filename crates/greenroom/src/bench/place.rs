//! Measures the full path of a bot over HTTP: key, idempotency, dedupe, limit, bot, slot and event, then its end and
//! the release of its slot. It compares this with pgbench and two plain statements on the same PostgreSQL, or several
//! servers with one, or a server that operators watch with the same server unwatched. The rounds alternate, so that
//! other load on the machine affects both. It checks every answer: no slot may have two bots, and nothing may be lost.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::Done;
use super::bars::{BarChart, Group};
use super::database::Database;
use super::figures::median;
use super::fixture::{CpuPerPair, PlacementFixture};
use super::live_readers::LiveReaders;
use super::pgbench::Pgbench;
use super::server::ServerProcess;

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created.
    pub database: String,
    /// Greenroom runs on SQLite, pgbench on PostgreSQL.
    pub is_sqlite: bool,
    pub pgbench: String,
    pub cases: Vec<Case>,
    /// With more than one, this number of servers is compared with one.
    pub replicas: usize,
    /// With at least one, placing while they read `GET /admin/live` is compared with placing without them.
    pub live_readers: usize,
    pub rounds: usize,
    pub time: Duration,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

/// A number of slots and a number of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    pub slots: u32,
    pub clients: usize,
}

impl FromStr for Case {
    type Err = String;

    /// As in `100x32`: slots, then clients.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a case; write slots and clients, such as 100x32");
        let (slots, clients) = text.split_once('x').ok_or_else(wrong)?;
        let case = Self { slots: slots.parse().map_err(|_| wrong())?, clients: clients.parse().map_err(|_| wrong())? };
        if case.slots == 0 || case.clients == 0 { Err(wrong()) } else { Ok(case) }
    }
}

/// Medians of the rounds of one case.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    #[serde(flatten)]
    case: Case,
    /// Pairs per second.
    greenroom: f64,
    /// The rate of pgbench, of one server if several are measured, or of the same server without readers.
    beside: f64,
    ratio: f64,
    post_p50_ms: f64,
    post_p99_ms: f64,
    cpu_per_pair: CpuPerPair,
}

pub async fn run(options: &Options) -> Done {
    let (ours, beside) = match options {
        Options { live_readers: readers @ 1.., .. } => (format!("{readers} readers"), "no readers"),
        Options { replicas: servers @ 2.., .. } => (format!("{servers} servers"), "one server"),
        _ => ("greenroom".to_owned(), "pgbench"),
    };
    let store = if options.is_sqlite { "SQLite" } else { "PostgreSQL" };
    if !options.json {
        println!("pairs (a bot placed and ended) per second on {store}, and {beside}; medians of alternating rounds");
        println!(
            "{:>8} {:>8} {ours:>12} {beside:>12} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "slots", "clients", "ratio", "p50 ms", "p99 ms", "server", "database", "load µs"
        );
    }
    let mut all = Vec::new();
    for case in &options.cases {
        let measured = measure(options, *case).await?;
        if !options.json {
            let Measured { case, greenroom, beside, ratio, post_p50_ms, post_p99_ms, cpu_per_pair } = &measured;
            println!(
                "{:>8} {:>8} {greenroom:>12.0} {beside:>12.0} {ratio:>8.2} {post_p50_ms:>8.1} {post_p99_ms:>8.1} {}",
                case.slots,
                case.clients,
                cpu_per_pair.shown()
            );
        }
        all.push(measured);
    }
    if let Some(file) = &options.svg {
        let groups = all.iter().map(|measured| Group {
            label: format!("{} slots, {} clients", measured.case.slots, measured.case.clients),
            values: vec![measured.greenroom, measured.beside],
        });
        let chart = BarChart {
            title: format!("Bots placed and ended on {store}"),
            y_label: "pairs per second".to_owned(),
            names: vec![ours, beside.to_owned()],
            groups: groups.collect(),
        };
        std::fs::write(file, chart.to_svg())?;
    }
    if options.json {
        let readers = options.live_readers;
        println!(
            "{}",
            json!({"bench": "place", "store": store, "live_readers": readers, "beside": beside, "cases": all})
        );
    }
    Ok(())
}

async fn measure(options: &Options, case: Case) -> Done<Measured> {
    let postgres = (!options.is_sqlite).then_some(options.database.as_str());
    let mut fixture = PlacementFixture::prepare(postgres, case.slots, case.clients).await?;
    let measured = if options.live_readers > 0 {
        beside_no_readers(options, case, &mut fixture).await
    } else if options.replicas > 1 {
        beside_one_server(options, case, &mut fixture).await
    } else {
        beside_pgbench(options, case, &mut fixture).await
    };
    fixture.remove().await?;
    measured
}

/// The results of the rounds, without the first one, which warms up.
#[derive(Default)]
struct Rounds {
    ours: Vec<f64>,
    theirs: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    cpu: Vec<CpuPerPair>,
}

impl Rounds {
    async fn ours(
        &mut self,
        fixture: &mut PlacementFixture,
        servers: &[ServerProcess],
        options: &Options,
        case: Case,
    ) -> Done {
        let (report, cpu) = fixture.place(servers, case.clients, options.time).await?;
        self.ours.push(report.pairs_per_second());
        self.p50.push(report.latency_p50_ms);
        self.p99.push(report.latency_p99_ms);
        self.cpu.push(cpu);
        Ok(())
    }

    fn measured(self, case: Case) -> Measured {
        let of = |figures: &[f64]| median(figures.get(1..).unwrap_or_default());
        let (greenroom, beside) = (of(&self.ours), of(&self.theirs));
        Measured {
            case,
            greenroom,
            beside,
            ratio: greenroom / beside,
            post_p50_ms: of(&self.p50),
            post_p99_ms: of(&self.p99),
            cpu_per_pair: CpuPerPair::median(self.cpu.get(1..).unwrap_or_default()),
        }
    }
}

async fn beside_pgbench(options: &Options, case: Case, fixture: &mut PlacementFixture) -> Done<Measured> {
    let other = if options.is_sqlite { Some(Database::create(Some(&options.database)).await?) } else { None };
    let measured = async {
        let database = other.as_ref().unwrap_or(&fixture.database);
        let pgbench = Pgbench::prepare(&options.pgbench, database, case.slots).await?;
        let servers = [fixture.start_server().await?];
        let mut rounds = Rounds::default();
        for _ in 0..=options.rounds {
            rounds.ours(fixture, &servers, options, case).await?;
            rounds.theirs.push(pgbench.run(case.clients, options.time).await?);
        }
        fixture.check().await?;
        for server in servers {
            server.stop().await?;
        }
        Done::Ok(rounds.measured(case))
    };
    let measured = measured.await;
    if let Some(other) = other {
        other.remove().await?;
    }
    measured
}

/// All servers run all the time. In the rounds of one server the others are idle.
async fn beside_one_server(options: &Options, case: Case, fixture: &mut PlacementFixture) -> Done<Measured> {
    let mut servers = Vec::new();
    for _ in 0..options.replicas {
        servers.push(fixture.start_server().await?);
    }
    let mut rounds = Rounds::default();
    for _ in 0..=options.rounds {
        rounds.ours(fixture, &servers, options, case).await?;
        let (single, _) = fixture.place(&servers[..1], case.clients, options.time).await?;
        rounds.theirs.push(single.pairs_per_second());
    }
    fixture.check().await?;
    for server in servers {
        server.stop().await?;
    }
    Ok(rounds.measured(case))
}

/// In every other round, operators watch.
async fn beside_no_readers(options: &Options, case: Case, fixture: &mut PlacementFixture) -> Done<Measured> {
    let servers = [fixture.start_server().await?];
    let (address, token) = (servers[0].address, fixture.spec.admin_token.clone());
    let mut rounds = Rounds::default();
    for _ in 0..=options.rounds {
        let readers = LiveReaders::open(address, &token, options.live_readers).await?;
        rounds.ours(fixture, &servers, options, case).await?;
        readers.close().await?;
        let (unwatched, _) = fixture.place(&servers, case.clients, options.time).await?;
        rounds.theirs.push(unwatched.pairs_per_second());
    }
    fixture.check().await?;
    for server in servers {
        server.stop().await?;
    }
    Ok(rounds.measured(case))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_slots_and_clients() {
        assert_eq!("100x32".parse(), Ok(Case { slots: 100, clients: 32 }));
        for text in ["", "100", "100x", "x32", "0x1", "1x0", "1x2x3", "-1x2"] {
            assert!(text.parse::<Case>().is_err_and(|error| error.contains("100x32")), "{text}");
        }
    }
}
