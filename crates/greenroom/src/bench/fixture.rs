//! The fixture of placement benchmarks: a database with a filled pool and users, and servers on it.

use std::time::Duration;

use serde::Serialize;

use super::Done;
use super::database::Database;
use super::load::{LoadProcess, LoadReport, LoadSpec, Work};
use super::server::{PoolSpec, ServerProcess, ServerSpec, filled_database};
use super::usage::{self, Postgres};

/// The number of meetings for one run of the load generator, so that no two runs share a meeting.
const MEETINGS_PER_RUN: u64 = 100_000_000;
/// The limit of bots for each user. Each client has its own user, so that limits are counted and keys are looked up.
const BOTS_PER_USER: i64 = 5;

#[derive(Debug)]
pub struct PlacementFixture {
    pub database: Database,
    pub slots: u32,
    pub spec: ServerSpec,
    pub keys: Vec<String>,
    postgres: Option<Postgres>,
    signing_secret: String,
    runs: u64,
}

/// Processor time for one pair, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CpuPerPair {
    pub servers_us: f64,
    /// `None` on SQLite, or if PostgreSQL runs on another machine.
    pub postgres_us: Option<f64>,
    pub load_us: f64,
}

impl PlacementFixture {
    /// A pool of hot slots, and a user for each client.
    pub async fn prepare(postgres: Option<&str>, slots: u32, clients: usize) -> Done<Self> {
        Self::prepare_for(postgres, slots, clients, BOTS_PER_USER).await
    }

    pub async fn prepare_for(postgres: Option<&str>, slots: u32, users: usize, bots_per_user: i64) -> Done<Self> {
        let pool = PoolSpec::hot(slots);
        let database = filled_database(postgres, &pool, &[]).await?;
        let prepared = async {
            let spec = ServerSpec::new(&database, vec![pool]);
            let server = ServerProcess::start(&spec).await?;
            let keys = server.create_users(users, bots_per_user).await?;
            server.stop().await?;
            let postgres = if database.is_postgres() { Postgres::find(&database).await? } else { None };
            Done::Ok((spec, keys, postgres, database.signing_secret().await?))
        };
        match prepared.await {
            Ok((spec, keys, postgres, signing_secret)) => {
                Ok(Self { database, slots, spec, keys, postgres, signing_secret, runs: 0 })
            }
            Err(error) => {
                database.remove().await?;
                Err(error)
            }
        }
    }

    pub async fn start_server(&self) -> Done<ServerProcess> {
        ServerProcess::start(&self.spec).await
    }

    pub fn load(&mut self, servers: &[ServerProcess], clients: usize, work: Work) -> LoadSpec {
        self.runs += 1;
        LoadSpec {
            addresses: servers.iter().map(|server| server.address).collect(),
            keys: self.keys.clone(),
            signing_secret: self.signing_secret.clone(),
            first_meeting: self.runs * MEETINGS_PER_RUN,
            clients,
            work,
        }
    }

    /// Places bots for a while, and checks that none was lost or doubled.
    pub async fn place(
        &mut self,
        servers: &[ServerProcess],
        clients: usize,
        time: Duration,
    ) -> Done<(LoadReport, CpuPerPair)> {
        let work = Work::Place { time, interval: None, retry: false, pairs_per_second: None };
        let spec = self.load(servers, clients, work);
        let measured = self.run(servers, &spec).await?;
        measured.0.check()?;
        Ok(measured)
    }

    /// Runs a load generator, and counts the processor time of all processes meanwhile.
    pub async fn run(&self, servers: &[ServerProcess], spec: &LoadSpec) -> Done<(LoadReport, CpuPerPair)> {
        let of_servers = || servers.iter().filter_map(|server| usage::cpu_of(server.pid)).sum::<Duration>();
        let of_postgres = || self.postgres.map(Postgres::cpu);
        let before = (of_servers(), of_postgres());
        let report = LoadProcess::run(spec).await?;
        let after = (of_servers(), of_postgres());
        let per_pair = |time: Duration| time.as_secs_f64() * 1e6 / (report.pairs as f64).max(1.0);
        let cpu = CpuPerPair {
            servers_us: per_pair(after.0.saturating_sub(before.0)),
            postgres_us: after.1.zip(before.1).map(|(after, before)| per_pair(after.saturating_sub(before))),
            load_us: per_pair(report.cpu),
        };
        Ok((report, cpu))
    }

    /// Checks that all slots are idle and no bot is open.
    pub async fn check(&self) -> Done {
        self.database.check_at_rest(i64::from(self.slots)).await
    }

    pub async fn remove(self) -> Done {
        self.database.remove().await
    }
}

impl CpuPerPair {
    pub fn median(all: &[Self]) -> Self {
        use super::figures::median;
        let of = |figure: fn(&Self) -> f64| median(&all.iter().map(figure).collect::<Vec<_>>());
        let postgres: Option<Vec<f64>> = all.iter().map(|cpu| cpu.postgres_us).collect();
        Self {
            servers_us: of(|cpu| cpu.servers_us),
            postgres_us: postgres.map(|all| median(&all)),
            load_us: of(|cpu| cpu.load_us),
        }
    }

    pub fn shown(&self) -> String {
        let postgres = self.postgres_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.0}"));
        format!("{:>8.0} {postgres:>8} {:>8.0}", self.servers_us, self.load_us)
    }
}
