//! Measures heartbeats over HTTP, compared with one plain update for each heartbeat, by pgbench on PostgreSQL. The bots
//! run, and each sends its next heartbeat as soon as the last one is answered. The rounds alternate.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::Done;
use super::bars::{BarChart, Group};
use super::client::{Client, HttpResponse, Status};
use super::database::Database;
use super::figures::median;
use super::fixture::PlacementFixture;
use super::load::shared::meeting;
use super::load::{RunningBot, Work};
use super::pgbench::Pgbench;
use super::server::ServerProcess;
use super::statements::Calls;
use crate::lifecycle::tokens::{Claim, Tokens};

const USERS: usize = 10;
/// How many bots are started at once.
const STARTED_AT_ONCE: usize = 16;
/// The clients of pgbench: more are slower.
const REFERENCE_CLIENTS: usize = 16;
/// After the start of the bots, until their starts are no longer work for keepers.
const SETTLE: Duration = Duration::from_secs(3);
/// A load that is not counted: the first heartbeat of each bot reads the database.
const WARM_UP: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server others may be created.
    pub database: String,
    /// Greenroom runs on SQLite, pgbench on PostgreSQL.
    pub is_sqlite: bool,
    pub pgbench: String,
    /// The measured server, if it is not this program.
    pub server_binary: Option<PathBuf>,
    pub bots: u32,
    pub rounds: usize,
    pub time: Duration,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

/// The figures of one round.
#[derive(Debug, Default)]
struct Round {
    per_second: f64,
    server_us: f64,
    database_us: Option<f64>,
    load_us: f64,
    reference: f64,
    calls: BTreeMap<String, f64>,
}

pub async fn run(options: &Options) -> Done {
    let postgres = Some(options.database.as_str()).filter(|_| !options.is_sqlite);
    let bots_per_user = i64::from(options.bots).div_euclid(USERS as i64) + 1;
    let mut fixture = PlacementFixture::prepare_for(postgres, options.bots, USERS, bots_per_user).await?;
    let measured = measure(options, &mut fixture).await;
    fixture.remove().await?;
    show(options, &measured?)
}

async fn measure(options: &Options, fixture: &mut PlacementFixture) -> Done<Vec<Round>> {
    let reference = Database::create(Some(&options.database)).await?;
    let server = ServerProcess::start_program(&fixture.spec, options.server_binary.as_deref()).await?;
    let measured = async {
        let pgbench = Pgbench::prepare_heartbeats(&options.pgbench, &reference, options.bots).await?;
        let bots = start_bots(fixture, &server, options.bots).await?;
        tokio::time::sleep(SETTLE).await;
        let servers = [server];
        let warm_up = Work::Heartbeats { bots: bots.clone(), time: WARM_UP };
        let spec = fixture.load(&servers, bots.len(), warm_up);
        fixture.run(&servers, &spec).await?.0.check()?;
        let mut rounds = Vec::new();
        for _ in 0..options.rounds.max(1) {
            let work = Work::Heartbeats { bots: bots.clone(), time: options.time };
            let spec = fixture.load(&servers, bots.len(), work);
            let before = Calls::of(&servers[0]).await?;
            let (report, cpu) = fixture.run(&servers, &spec).await?;
            report.check()?;
            let calls = Calls::of(&servers[0]).await?.per_second(&before, report.seconds);
            rounds.push(Round {
                per_second: report.pairs_per_second(),
                server_us: cpu.servers_us,
                database_us: cpu.postgres_us,
                load_us: cpu.load_us,
                reference: pgbench.run(REFERENCE_CLIENTS, options.time).await?,
                calls,
            });
        }
        for server in servers {
            server.stop().await?;
        }
        Done::Ok(rounds)
    };
    let measured = measured.await;
    reference.remove().await?;
    measured
}

/// Places bots in hot slots, and reports for each that it runs and has joined.
async fn start_bots(fixture: &PlacementFixture, server: &ServerProcess, count: u32) -> Done<Vec<RunningBot>> {
    let tokens = Tokens::new(&fixture.database.signing_secret().await?);
    let mut starts = JoinSet::new();
    for first in 0..STARTED_AT_ONCE as u32 {
        let (keys, tokens, address) = (fixture.keys.clone(), tokens.clone(), server.address);
        starts.spawn(async move {
            let mut client = Client::connect(address).await?;
            let mut bots = Vec::new();
            for number in (first..count).step_by(STARTED_AT_ONCE) {
                let body = json!({"meeting_url": format!("https://meet.google.com/{}", meeting(number.into()))});
                let key = &keys[number as usize % keys.len()];
                let HttpResponse { bot } = client.send("POST /bots", key, None, &body.to_string(), 201).await?;
                let connection_id: Uuid = bot.connection_id.ok_or("the bot has no connection")?;
                let token =
                    tokens.make(Claim { bot: domain::BotId(bot.id), connection: domain::ConnectionId(connection_id) });
                let body = json!({"connection_id": connection_id}).to_string();
                for call in ["POST /callback/started", "POST /callback/joined"] {
                    let _: Status = client.send(call, &token, None, &body, 200).await?;
                }
                bots.push(RunningBot { id: bot.id, connection_id });
            }
            Done::Ok(bots)
        });
    }
    let mut bots = Vec::new();
    while let Some(started) = starts.join_next().await {
        bots.extend(started??);
    }
    Ok(bots)
}

fn show(options: &Options, rounds: &[Round]) -> Done {
    let of = |figure: fn(&Round) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    let (rate, reference, server_us) =
        (of(|round| round.per_second), of(|round| round.reference), of(|round| round.server_us));
    let statements = of(|round| round.calls.values().sum());
    let database_us = rounds.iter().map(|round| round.database_us).collect::<Option<Vec<_>>>().map(|all| median(&all));
    let per_core = 1e6 / server_us;
    let store = if options.is_sqlite { "SQLite" } else { "PostgreSQL" };
    if options.json {
        let calls: Value = rounds.last().map(|round| json!(round.calls)).unwrap_or_default();
        let measured = json!({
            "bench": "heartbeats", "store": store, "bots": options.bots, "per_second": rate, "beside": reference,
            "ratio": rate / reference, "server_us": server_us, "per_core_per_second": per_core,
            "database_us": database_us, "load_us": of(|round| round.load_us), "statements_per_second": statements,
            "calls_per_second": calls,
        });
        println!("{measured}");
    } else {
        println!("heartbeats of {} bots over HTTP, on {store}; one update each by pgbench on PostgreSQL", options.bots);
        println!(
            "{:>10} {:>10} {:>8} {:>10} {:>12} {:>12} {:>8} {:>14}",
            "greenroom", "pgbench", "ratio", "server µs", "per core", "database µs", "load µs", "statements/s"
        );
        let database = database_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        println!(
            "{rate:>10.0} {reference:>10.0} {:>8.2} {server_us:>10.1} {per_core:>12.0} {database:>12} {:>8.1} \
             {statements:>14.2}",
            rate / reference,
            of(|round| round.load_us)
        );
    }
    if let Some(file) = &options.svg {
        let chart = BarChart {
            title: format!("Heartbeats of {} bots", options.bots),
            y_label: "heartbeats per second".to_owned(),
            names: vec!["Greenroom".to_owned(), "one core of it".to_owned(), "one update each".to_owned()],
            groups: vec![Group { label: store.to_owned(), values: vec![rate, per_core, reference] }],
        };
        std::fs::write(file, chart.to_svg())?;
    }
    Ok(())
}
