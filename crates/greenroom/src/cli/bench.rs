//! `greenroom bench`: what is measured, and how it is asked for.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::Done;
use crate::bench::place::Case;
use crate::bench::{bloat, burst, failover, hostile, matching, next, place, scale, server, start, start_burst};
use crate::config::duration;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// From the answer to a running command: in a hot slot, beside a stopped one, and on Docker beside `docker run`.
    Start {
        /// A database of a PostgreSQL on which another may be made. Without it, an SQLite file.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: Option<String>,
        /// How many bots are started in each; with --burst, how many at once. 200, or 300 with --burst.
        #[arg(long)]
        bots: Option<usize>,
        /// All at once in as many hot slots, beside the same commands started by `xargs -P`.
        #[arg(long, conflicts_with = "docker")]
        burst: bool,
        /// How many clients ask for them, and how many commands `xargs` starts at once.
        #[arg(long, default_value_t = 64, requires = "burst")]
        clients: usize,
        #[arg(long, default_value_t = 3, requires = "burst")]
        rounds: usize,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot.
        #[arg(long, value_name = "FILE", requires = "burst")]
        svg: Option<PathBuf>,
        /// In containers, and not in processes: of this Docker Engine, or of the one that the docker command finds.
        #[arg(long, value_name = "HOST")]
        docker: Option<Option<String>>,
        /// Where containers reach this machine. Without it, the gateway of the engine's bridge.
        #[arg(long, value_name = "ADDRESS", requires = "docker")]
        address: Option<String>,
    },
    /// From a bot's end to the next in the queue assigned, beside a poll of one second.
    Next {
        /// A database of a PostgreSQL on which another may be made. Without it, an SQLite file.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: Option<String>,
        /// How many ends are measured of each.
        #[arg(long, default_value_t = 30)]
        ends: usize,
    },
    /// Find and claim one that fits where one in a hundred does: in the store, beside the way over SQS and DynamoDB.
    Match {
        /// A database of a PostgreSQL on which another may be made. Without it, an SQLite file.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: Option<String>,
        /// Where SQS and DynamoDB are, with the credentials that the machine has. Without it, only the store is measured.
        #[arg(long)]
        region: Option<String>,
        /// Where they are, if not at AWS: LocalStack, moto.
        #[arg(long, value_name = "URL", requires = "region")]
        endpoint: Option<String>,
        /// How many slots there are in the store.
        #[arg(long, value_delimiter = ',', default_value = "10000,100000")]
        slots: Vec<i64>,
        /// How many runners are announced in the queue.
        #[arg(long, default_value_t = 1_000)]
        runners: i64,
        /// How many are found and claimed.
        #[arg(long, default_value_t = 50)]
        picks: usize,
    },
    /// What a second user and a bot see while a hostile user attacks a server of its own, beside what they see alone.
    Hostile {
        /// A database of a PostgreSQL on which another may be made. Without it, an SQLite file.
        #[arg(long, value_name = "URL")]
        database: Option<String>,
        /// The server to attack. Without it, this program.
        #[arg(long, value_name = "PATH")]
        server_binary: Option<PathBuf>,
        /// How long each attack lasts.
        #[arg(long, default_value_t = 8)]
        seconds: u64,
        /// How many bots with 64 KiB of config and of metadata the attacker has had.
        #[arg(long, default_value_t = 300)]
        bots: usize,
        /// How many connections stay idle.
        #[arg(long, default_value_t = 2_000)]
        idle: usize,
        /// A server that has more than this resident is ended, before the machine suffers.
        #[arg(long, default_value_t = 3_072)]
        memory_mib: u64,
    },
    /// The bot that `start` starts.
    #[command(hide = true)]
    Bot,
    /// The server under measurement, as its standard input says.
    #[command(hide = true)]
    Serve,
    /// The load generator, as its standard input says.
    #[command(hide = true)]
    Load,
    /// Place and end bots over HTTP, beside pgbench with bare statements on the same PostgreSQL.
    Place {
        /// A database of a PostgreSQL on which another may be made.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: String,
        /// Greenroom runs on SQLite, still beside pgbench on PostgreSQL.
        #[arg(long)]
        sqlite: bool,
        #[arg(long, value_name = "PROGRAM", env = "PGBENCH", default_value = "pgbench")]
        pgbench: String,
        /// Slots and clients, as in 100x32. May be given several times.
        #[arg(long, value_name = "SLOTSxCLIENTS", value_delimiter = ',', default_value = "100x32,300x256")]
        case: Vec<Case>,
        /// Every number of slots with every number of clients, instead of cases.
        #[arg(long, value_delimiter = ',', requires = "clients", conflicts_with = "case")]
        slots: Vec<u32>,
        #[arg(long, value_delimiter = ',', requires = "slots")]
        clients: Vec<usize>,
        /// So many servers on one database, beside one of them.
        #[arg(long, default_value_t = 1, conflicts_with = "sqlite")]
        replicas: usize,
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// How long each round lasts.
        #[arg(long, default_value = "5s", value_parser = duration::parse)]
        time: Duration,
        /// The same in seconds.
        #[arg(long, conflicts_with = "time", hide = true)]
        seconds: Option<u64>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Place and end bots on larger and larger pools, beside the smallest.
    Scale {
        /// A database of a PostgreSQL on which others may be made.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL", required_unless_present = "sqlite")]
        database: Option<String>,
        /// On SQLite instead.
        #[arg(long)]
        sqlite: bool,
        #[arg(long, value_delimiter = ',', default_value = "100,10000,100000,1000000")]
        slots: Vec<u32>,
        #[arg(long, default_value_t = 32)]
        clients: usize,
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// How long each round of a size lasts.
        #[arg(long, default_value = "5s", value_parser = duration::parse)]
        time: Duration,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Ask for many more bots at once than there are slots, beside the rate without a queue.
    Burst {
        /// A database of a PostgreSQL on which another may be made.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL", required_unless_present = "sqlite")]
        database: Option<String>,
        /// On SQLite instead.
        #[arg(long)]
        sqlite: bool,
        /// All at once, each on a connection of its own.
        #[arg(long, default_value_t = 10_000)]
        requests: usize,
        #[arg(long, default_value_t = 1_000)]
        slots: u32,
        /// Who asks; each has one stream of events.
        #[arg(long, default_value_t = 100)]
        users: usize,
        /// How long the rate without a queue is measured.
        #[arg(long, default_value = "5s", value_parser = duration::parse)]
        time: Duration,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Place and end bots while a transaction is held open elsewhere, beside the time before.
    Bloat {
        /// A database of a PostgreSQL on which another may be made.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: String,
        #[arg(long, default_value_t = 100)]
        slots: u32,
        #[arg(long, default_value_t = 32)]
        clients: usize,
        /// How long the rate before is measured.
        #[arg(long, default_value = "1m", value_parser = duration::parse)]
        before: Duration,
        /// How long the transaction is held.
        #[arg(long, default_value = "10m", value_parser = duration::parse)]
        hold: Duration,
        /// Pairs are counted in intervals of this length.
        #[arg(long, default_value = "30s", value_parser = duration::parse)]
        interval: Duration,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Kill the one of two servers that is placing, again and again under load. Fails when a bot is lost or doubled.
    Failover {
        /// A database of a PostgreSQL on which another may be made.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: String,
        #[arg(long, default_value_t = 100)]
        slots: u32,
        #[arg(long, default_value_t = 32)]
        clients: usize,
        #[arg(long, default_value_t = 20)]
        kills: usize,
        /// From the time that a server serves again to the next kill.
        #[arg(long, default_value = "3s", value_parser = duration::parse)]
        pause: Duration,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

pub async fn run(command: Command) -> Done {
    let done = match command {
        Command::Start { database, bots, burst: true, clients, rounds, json, svg, .. } => {
            let bots = bots.unwrap_or(300);
            start_burst::run(&start_burst::Options { database, bots, clients, rounds, json, svg }).await
        }
        Command::Start { database, bots, docker, address, json, .. } => {
            let (bots, docker) = (bots.unwrap_or(200), docker.map(|host| start::DockerOptions { host, address }));
            start::run(&start::Options { database, bots, json, docker }).await
        }
        Command::Next { database, ends } => next::run(&next::Options { database, ends }).await,
        Command::Match { database, region, endpoint, slots, runners, picks } => {
            matching::run(&matching::Options { database, endpoint, region, slots, runners, picks }).await
        }
        Command::Hostile { database, server_binary, seconds, bots, idle, memory_mib } => {
            let time = Duration::from_secs(seconds);
            hostile::run(&hostile::Options { database, server_binary, time, bots, idle, memory_mib }).await
        }
        Command::Serve => server::serve().await,
        // Done before there was a runtime.
        Command::Bot | Command::Load => Ok(()),
        Command::Place {
            database,
            sqlite: is_sqlite,
            pgbench,
            case,
            slots,
            clients,
            replicas,
            rounds,
            time,
            seconds,
            json,
            svg,
        } => {
            let cases = if slots.is_empty() { case } else { every(&slots, &clients) };
            let time = seconds.map_or(time, Duration::from_secs);
            let options = place::Options { database, is_sqlite, pgbench, cases, replicas, rounds, time, json, svg };
            place::run(&options).await
        }
        Command::Scale { database, sqlite, slots, clients, rounds, time, json, svg } => {
            let database = database.filter(|_| !sqlite);
            scale::run(&scale::Options { database, slots, clients, rounds, time, json, svg }).await
        }
        Command::Burst { database, sqlite, requests, slots, users, time, json, svg } => {
            let database = database.filter(|_| !sqlite);
            burst::run(&burst::Options { database, requests, slots, users, time, json, svg }).await
        }
        Command::Bloat { database, slots, clients, before, hold, interval, json, svg } => {
            bloat::run(&bloat::Options { database, slots, clients, before, hold, interval, json, svg }).await
        }
        Command::Failover { database, slots, clients, kills, pause, json } => {
            failover::run(&failover::Options { database, slots, clients, kills, pause, json }).await
        }
    };
    done.map_err(|error| -> Box<dyn std::error::Error> { error })
}

fn every(slots: &[u32], clients: &[usize]) -> Vec<Case> {
    slots.iter().flat_map(|slots| clients.iter().map(|clients| Case { slots: *slots, clients: *clients })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_slots_meets_every_number_of_clients() {
        let cases: Vec<(u32, usize)> =
            every(&[4, 20], &[8, 9]).into_iter().map(|case| (case.slots, case.clients)).collect();
        assert_eq!(cases, [(4, 8), (4, 9), (20, 8), (20, 9)]);
    }
}
