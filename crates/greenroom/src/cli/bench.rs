//! `greenroom bench`: what is measured, and how it is asked for.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::Done;
use crate::bench::place::Case;
use crate::bench::{
    bloat, burst, dashboard, failover, growth, heartbeats, hostile, idle, matching, next, place, prune, reads, scale,
    server, start, start_browser, start_burst,
};
use crate::config::duration;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure the time from the response of POST /bots until the bot's command runs.
    ///
    /// The benchmark compares hot slots with stopped slots, and on Docker also with `docker run`.
    Start {
        /// A database on a PostgreSQL server where the benchmark may create another database.
        /// Default: an SQLite file.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: Option<String>,
        /// The number of bots per kind of slot; with --burst, the number of bots at once. Default: 200, 300 with
        /// --burst, 30 with --browser.
        #[arg(long)]
        bots: Option<usize>,
        /// Start all bots at once in the same number of hot slots. Compare with `xargs -P`, which starts the same
        /// commands.
        #[arg(long, conflicts_with = "docker")]
        burst: bool,
        /// Start a bot with a browser in a stopped, a hot and a prewarmed slot. Compare with a start by hand.
        #[arg(long, conflicts_with_all = ["docker", "burst"])]
        browser: bool,
        /// The script of the bot with a browser.
        #[arg(long, value_name = "FILE", default_value = "examples/browser-bot/bot.py", requires = "browser")]
        bot: PathBuf,
        /// The number of clients that request bots, and the number of commands that `xargs` runs at once.
        #[arg(long, default_value_t = 64, requires = "burst")]
        clients: usize,
        /// The number of rounds.
        #[arg(long, default_value_t = 3, requires = "burst")]
        rounds: usize,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot of the results to this SVG file.
        #[arg(long, value_name = "FILE", requires = "burst")]
        svg: Option<PathBuf>,
        /// Run the bots in containers instead of processes. Default host: the Docker Engine that the docker command
        /// uses.
        #[arg(long, value_name = "HOST")]
        docker: Option<Option<String>>,
        /// The address at which containers reach this machine. Default: the gateway of the engine's bridge network.
        #[arg(long, value_name = "ADDRESS", requires = "docker")]
        address: Option<String>,
    },
    /// Measure the time from the end of a bot until the next bot in the queue has its slot.
    ///
    /// The benchmark compares this with a loop that polls once per second.
    Next {
        /// A database on a PostgreSQL server where the benchmark may create another database.
        /// Default: an SQLite file.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: Option<String>,
        /// The number of ends to measure for each variant.
        #[arg(long, default_value_t = 30)]
        ends: usize,
    },
    /// Measure how long it takes to find and claim a slot when one slot in a hundred fits.
    ///
    /// The benchmark compares the database with a search over SQS and DynamoDB.
    Match {
        /// A database on a PostgreSQL server where the benchmark may create another database.
        /// Default: an SQLite file.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: Option<String>,
        /// The AWS region of SQS and DynamoDB. The benchmark uses the credentials of this machine.
        /// Without a region, it measures only the database.
        #[arg(long)]
        region: Option<String>,
        /// The URL of SQS and DynamoDB if they are not at AWS, for example LocalStack or moto.
        #[arg(long, value_name = "URL", requires = "region")]
        endpoint: Option<String>,
        /// The numbers of slots in the database.
        #[arg(long, value_delimiter = ',', default_value = "10000,100000")]
        slots: Vec<i64>,
        /// The number of runners that are announced in the SQS queue.
        #[arg(long, default_value_t = 1_000)]
        runners: i64,
        /// The number of slots or runners to find and claim.
        #[arg(long, default_value_t = 50)]
        picks: usize,
    },
    /// Measure the latency of one user and its bot while another user attacks the server.
    ///
    /// The benchmark starts its own server. It compares the latency with the latency before the attacks.
    Hostile {
        /// A database on a PostgreSQL server where the benchmark may create another database.
        /// Default: an SQLite file.
        #[arg(long, value_name = "URL")]
        database: Option<String>,
        /// The server program to attack. Default: this program.
        #[arg(long, value_name = "PATH")]
        server_binary: Option<PathBuf>,
        /// The duration of each attack in seconds.
        #[arg(long, default_value_t = 8)]
        seconds: u64,
        /// The number of earlier bots of the attacker, each with 64 KiB of config and 64 KiB of metadata.
        #[arg(long, default_value_t = 300)]
        bots: usize,
        /// The number of connections that stay idle.
        #[arg(long, default_value_t = 2_000)]
        idle: usize,
        /// The resident memory in MiB above which the benchmark ends the server, to protect the machine.
        #[arg(long, default_value_t = 3_072)]
        memory_mib: u64,
    },
    /// Run the bot that `bench start` starts.
    #[command(hide = true)]
    Bot,
    /// Run the server under measurement. It reads its settings from standard input.
    #[command(hide = true)]
    Serve,
    /// Run the load generator. It reads its settings from standard input.
    #[command(hide = true)]
    Load,
    /// Measure how many bots the server places and ends per second over HTTP.
    ///
    /// The benchmark compares this with pgbench, which runs bare statements on the same PostgreSQL server.
    Place {
        /// A database on a PostgreSQL server where the benchmark may create another database.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: String,
        /// Run Greenroom on SQLite. The comparison is still pgbench on PostgreSQL.
        #[arg(long)]
        sqlite: bool,
        /// The pgbench program.
        #[arg(long, value_name = "PROGRAM", env = "PGBENCH", default_value = "pgbench")]
        pgbench: String,
        /// The number of slots and clients, for example 100x32. May be repeated.
        #[arg(long, value_name = "SLOTSxCLIENTS", value_delimiter = ',', default_value = "100x32,300x256")]
        case: Vec<Case>,
        /// The numbers of slots. The benchmark combines each with each number of clients, instead of --case.
        #[arg(long, value_delimiter = ',', requires = "clients", conflicts_with = "case")]
        slots: Vec<u32>,
        /// The numbers of clients.
        #[arg(long, value_delimiter = ',', requires = "slots")]
        clients: Vec<usize>,
        /// The number of servers on one database. Compare with one server.
        #[arg(long, default_value_t = 1, conflicts_with = "sqlite")]
        replicas: usize,
        /// The number of operators that read `GET /admin/live`. Compare with the same server without them.
        #[arg(long, default_value_t = 0, conflicts_with = "replicas")]
        live_readers: usize,
        /// The number of rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// The duration of each round.
        #[arg(long, default_value = "5s", value_parser = duration::parse)]
        time: Duration,
        /// The duration of each round in seconds.
        #[arg(long, conflicts_with = "time", hide = true)]
        seconds: Option<u64>,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot of the results to this SVG file.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Measure how many bots the server places and ends per second as a pool grows.
    ///
    /// The benchmark compares each pool size with the smallest size.
    Scale {
        /// A database on a PostgreSQL server where the benchmark may create other databases.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL", required_unless_present = "sqlite")]
        database: Option<String>,
        /// Use SQLite instead of PostgreSQL.
        #[arg(long)]
        sqlite: bool,
        /// The pool sizes.
        #[arg(long, value_delimiter = ',', default_value = "100,10000,100000,1000000")]
        slots: Vec<u32>,
        /// The number of clients.
        #[arg(long, default_value_t = 32)]
        clients: usize,
        /// The number of rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// The duration of each round of one size.
        #[arg(long, default_value = "5s", value_parser = duration::parse)]
        time: Duration,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot of the results to this SVG file.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Measure every list and status call on a large installation.
    ///
    /// The benchmark compares it with an installation of a thousandth of its size.
    Reads {
        /// A database on a PostgreSQL server where the benchmark may create other databases.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL", required_unless_present = "sqlite")]
        database: Option<String>,
        /// Use SQLite instead of PostgreSQL.
        #[arg(long)]
        sqlite: bool,
        /// The number of bots that have ended.
        #[arg(long, default_value_t = 1_000_000)]
        ended: i64,
        /// The number of slots.
        #[arg(long, default_value_t = 100_000)]
        slots: u32,
        /// The number of bots in the queue.
        #[arg(long, default_value_t = 10_000)]
        queued: i64,
        /// How often each call is measured.
        #[arg(long, default_value_t = 50)]
        calls: usize,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a chart of the results to this SVG file.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Measure the dashboard in Chromium while slots change.
    ///
    /// The benchmark compares the larger pool with the smaller one. It needs Node.js, Playwright and Chromium, which
    /// scripts/bench installs.
    Dashboard {
        /// A database on a PostgreSQL server where the benchmark may create other databases.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL", required_unless_present = "sqlite")]
        database: Option<String>,
        /// Use SQLite instead of PostgreSQL.
        #[arg(long)]
        sqlite: bool,
        /// The pool sizes.
        #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
        slots: Vec<u32>,
        /// How often slots change in a second.
        #[arg(long, default_value_t = 500)]
        changes: u32,
        /// How long the page is watched.
        #[arg(long, default_value = "20s", value_parser = duration::parse)]
        time: Duration,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// The script that drives the browser.
        #[arg(long, value_name = "FILE", default_value = "web/tests/frames.js")]
        script: PathBuf,
    },
    /// Request many more bots at once than there are slots.
    ///
    /// The benchmark compares the rate with the rate without a queue.
    Burst {
        /// A database on a PostgreSQL server where the benchmark may create another database.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL", required_unless_present = "sqlite")]
        database: Option<String>,
        /// Use SQLite instead of PostgreSQL.
        #[arg(long)]
        sqlite: bool,
        /// The number of requests. All start at once, each on its own connection.
        #[arg(long, default_value_t = 10_000)]
        requests: usize,
        /// The number of slots.
        #[arg(long, default_value_t = 1_000)]
        slots: u32,
        /// The number of users that request bots. Each user has one event stream.
        #[arg(long, default_value_t = 100)]
        users: usize,
        /// How long to measure the rate without a queue.
        #[arg(long, default_value = "5s", value_parser = duration::parse)]
        time: Duration,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot of the results to this SVG file.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Measure placement while another session keeps a transaction open.
    ///
    /// The benchmark compares the rate with the rate before the transaction.
    Bloat {
        /// A database on a PostgreSQL server where the benchmark may create another database.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: String,
        /// The number of slots.
        #[arg(long, default_value_t = 100)]
        slots: u32,
        /// The number of clients.
        #[arg(long, default_value_t = 32)]
        clients: usize,
        /// How long to measure the rate before the transaction.
        #[arg(long, default_value = "1m", value_parser = duration::parse)]
        before: Duration,
        /// How long the transaction stays open.
        #[arg(long, default_value = "10m", value_parser = duration::parse)]
        hold: Duration,
        /// The length of the intervals in which the benchmark counts placed and ended bots.
        #[arg(long, default_value = "30s", value_parser = duration::parse)]
        interval: Duration,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot of the results to this SVG file.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Measure placement while the server deletes old data.
    ///
    /// The benchmark compares the rate with the rate of a server that keeps everything. With --days, it measures the
    /// size of the database instead.
    Prune {
        /// A database on a PostgreSQL server where the benchmark may create another database.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL", required_unless_present = "sqlite")]
        database: Option<String>,
        /// Use SQLite instead of PostgreSQL.
        #[arg(long)]
        sqlite: bool,
        /// The number of old bots, and of old idempotency keys.
        #[arg(long, default_value_t = 1_000_000)]
        bots: i64,
        /// The number of slots.
        #[arg(long, default_value_t = 100)]
        slots: u32,
        /// The number of clients.
        #[arg(long, default_value_t = 32)]
        clients: usize,
        /// The number of rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// The duration of each round.
        #[arg(long, default_value = "5s", value_parser = duration::parse)]
        time: Duration,
        /// Simulate this number of days, and measure the size of the database at the end of each day.
        #[arg(long)]
        days: Option<u32>,
        /// How many bots end on each simulated day.
        #[arg(long, default_value_t = 10_000, requires = "days")]
        bots_per_day: i64,
        /// For how many simulated days bots are kept.
        #[arg(long, default_value_t = 3, requires = "days")]
        kept_days: u32,
        /// How long a simulated day lasts at least, so that PostgreSQL has time to vacuum.
        #[arg(long, default_value = "3s", value_parser = duration::parse, requires = "days")]
        day_length: Duration,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot of the results to this SVG file.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Measure how many heartbeats the server answers per second over HTTP.
    ///
    /// The benchmark compares this with pgbench, which runs one update for each heartbeat.
    Heartbeats {
        /// A database on a PostgreSQL server where the benchmark may create other databases.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: String,
        /// Run Greenroom on SQLite. The comparison is still pgbench on PostgreSQL.
        #[arg(long)]
        sqlite: bool,
        /// The pgbench program.
        #[arg(long, value_name = "PROGRAM", env = "PGBENCH", default_value = "pgbench")]
        pgbench: String,
        /// Another build of this program, whose server is measured.
        #[arg(long, value_name = "PATH")]
        server_binary: Option<PathBuf>,
        /// The number of running bots. Each sends its next heartbeat after the answer to the last one.
        #[arg(long, default_value_t = 1_000)]
        bots: u32,
        /// The number of rounds.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// The duration of each round.
        #[arg(long, default_value = "10s", value_parser = duration::parse)]
        time: Duration,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot of the results to this SVG file.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Measure the statements, memory and processor time of an idle server.
    ///
    /// An agent waits in each hot slot.
    Idle {
        /// A database on a PostgreSQL server where the benchmark may create other databases.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL", required_unless_present = "sqlite")]
        database: Option<String>,
        /// Use SQLite instead of PostgreSQL.
        #[arg(long)]
        sqlite: bool,
        /// Another build of this program, whose server is measured.
        #[arg(long, value_name = "PATH")]
        server_binary: Option<PathBuf>,
        /// The numbers of hot slots.
        #[arg(long, value_delimiter = ',', default_value = "100,10000")]
        slots: Vec<u32>,
        /// The pause before the measurement, after all agents wait. Default: 10s.
        #[arg(long, value_parser = duration::parse)]
        settle: Option<Duration>,
        /// The duration of the measurement.
        #[arg(long, default_value = "2m", value_parser = duration::parse)]
        time: Duration,
        /// Print the results as one JSON object.
        #[arg(long)]
        json: bool,
        /// Write a plot of the results to this SVG file.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Kill the server that places bots, repeatedly and under load, while a second server runs.
    ///
    /// The benchmark fails if a bot is lost or duplicated.
    Failover {
        /// A database on a PostgreSQL server where the benchmark may create another database.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: String,
        /// The number of slots.
        #[arg(long, default_value_t = 100)]
        slots: u32,
        /// The number of clients.
        #[arg(long, default_value_t = 32)]
        clients: usize,
        /// The number of kills.
        #[arg(long, default_value_t = 20)]
        kills: usize,
        /// The pause after the killed server serves again, before the next kill.
        #[arg(long, default_value = "3s", value_parser = duration::parse)]
        pause: Duration,
        /// Print the results as one JSON object.
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
        Command::Start { database, bots, browser: true, bot, json, .. } => {
            start_browser::run(&start_browser::Options { database, bots: bots.unwrap_or(30), json, bot }).await
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
            live_readers,
            rounds,
            time,
            seconds,
            json,
            svg,
        } => {
            let cases = if slots.is_empty() { case } else { every(&slots, &clients) };
            let time = seconds.map_or(time, Duration::from_secs);
            let options =
                place::Options { database, is_sqlite, pgbench, cases, replicas, live_readers, rounds, time, json, svg };
            place::run(&options).await
        }
        Command::Scale { database, sqlite, slots, clients, rounds, time, json, svg } => {
            let database = database.filter(|_| !sqlite);
            scale::run(&scale::Options { database, slots, clients, rounds, time, json, svg }).await
        }
        Command::Reads { database, sqlite, ended, slots, queued, calls, json, svg } => {
            let database = database.filter(|_| !sqlite);
            reads::run(&reads::Options { database, ended, slots, queued, calls, json, svg }).await
        }
        Command::Dashboard { database, sqlite, slots, changes, time, json, script } => {
            let database = database.filter(|_| !sqlite);
            dashboard::run(&dashboard::Options { database, slots, changes, time, json, script }).await
        }
        Command::Burst { database, sqlite, requests, slots, users, time, json, svg } => {
            let database = database.filter(|_| !sqlite);
            burst::run(&burst::Options { database, requests, slots, users, time, json, svg }).await
        }
        Command::Bloat { database, slots, clients, before, hold, interval, json, svg } => {
            bloat::run(&bloat::Options { database, slots, clients, before, hold, interval, json, svg }).await
        }
        Command::Prune {
            database, sqlite, days: Some(days), bots_per_day, kept_days, day_length, json, svg, ..
        } => {
            let database = database.filter(|_| !sqlite);
            let options = growth::Options { database, days, bots_per_day, kept_days, day_length, json, svg };
            growth::run(&options).await
        }
        Command::Prune { database, sqlite, bots, slots, clients, rounds, time, json, svg, .. } => {
            let database = database.filter(|_| !sqlite);
            prune::run(&prune::Options { database, bots, slots, clients, rounds, time, json, svg }).await
        }
        Command::Heartbeats { database, sqlite: is_sqlite, pgbench, server_binary, bots, rounds, time, json, svg } => {
            let options =
                heartbeats::Options { database, is_sqlite, pgbench, server_binary, bots, rounds, time, json, svg };
            heartbeats::run(&options).await
        }
        Command::Idle { database, sqlite, server_binary, slots, settle, time, json, svg } => {
            let database = database.filter(|_| !sqlite);
            idle::run(&idle::Options { database, server_binary, slots, settle, time, json, svg }).await
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
