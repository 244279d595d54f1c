//! `greenroom bench`: what is measured, and how it is asked for.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::Done;
use crate::bench::{hostile, matching, next, place, start};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// From the answer to a running command: in a hot slot, beside a stopped one, and on Docker beside `docker run`.
    Start {
        /// A database of a PostgreSQL on which another may be made. Without it, an SQLite file.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: Option<String>,
        /// How many bots are started in each.
        #[arg(long, default_value_t = 200)]
        bots: usize,
        /// In containers, and not in processes: of this Docker Engine, or of the one that the docker command finds.
        #[arg(long, value_name = "HOST")]
        docker: Option<Option<String>>,
        /// Where containers reach this machine. Without it, the gateway of the engine's bridge.
        #[arg(long, value_name = "ADDRESS", requires = "docker")]
        address: Option<String>,
    },
    /// From a bot's end to the next in line assigned, beside a poll of one second.
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
    /// Place and release bots over HTTP, beside pgbench with bare statements on the same PostgreSQL.
    Place {
        /// A database of a PostgreSQL on which another may be made.
        #[arg(long, value_name = "URL", env = "BENCH_POSTGRES_URL")]
        database: String,
        #[arg(long, value_name = "PROGRAM", env = "PGBENCH", default_value = "pgbench")]
        pgbench: String,
        #[arg(long, value_delimiter = ',', default_value = "32,256")]
        clients: Vec<usize>,
        #[arg(long, value_delimiter = ',', default_value = "100,100000")]
        slots: Vec<i64>,
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// How long each round lasts.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
}

pub async fn run(command: Command) -> Done {
    let done = match command {
        Command::Start { database, bots, docker, address } => {
            let docker = docker.map(|host| start::DockerOptions { host, address });
            start::run(&start::Options { database, bots, docker }).await
        }
        Command::Next { database, ends } => next::run(&next::Options { database, ends }).await,
        Command::Match { database, region, endpoint, slots, runners, picks } => {
            matching::run(&matching::Options { database, endpoint, region, slots, runners, picks }).await
        }
        Command::Hostile { database, server_binary, seconds, bots, idle, memory_mib } => {
            let time = Duration::from_secs(seconds);
            hostile::run(&hostile::Options { database, server_binary, time, bots, idle, memory_mib }).await
        }
        // Done before there was a runtime.
        Command::Bot => Ok(()),
        Command::Place { database, pgbench, clients, slots, rounds, seconds } => {
            let time = Duration::from_secs(seconds);
            place::run(&place::Options { database, pgbench, clients, slots, rounds, time }).await
        }
    };
    done.map_err(|error| -> Box<dyn std::error::Error> { error })
}
