//! Fixtures and helpers for the tests: a database for each test, the server as a process, a client.

mod agents;
mod balancer;
mod client;
mod command_line;
mod coolify;
mod coolify_fixture;
mod core_fixture;
mod deployment_fixture;
mod docker;
mod ec2;
mod fake;
pub mod markdown;
mod nomad;
mod page_shell;
pub mod placement_writes;
mod prewarm;
mod process;
mod prometheus;
mod raw;
mod redis_subscriber;
mod relay;
mod replicas;
mod server_fixture;
mod servers;
mod slots;
mod watch;

pub use balancer::Balancer;
pub use client::{Client, Life, meet_link};
pub use command_line::{CommandLine, Terminal, plain};
pub use coolify::{
    COOLIFY_TOKEN, CoolifyApplication, CoolifyCall, CoolifyEvent, CoolifyFake, CoolifyFault, CoolifySettings, Dialect,
    Operation as CoolifyOperation,
};
pub use coolify_fixture::CoolifyFixture;
pub use core_fixture::{CoreFixture, Plan, bot_request, configure, pool};
pub use deployment_fixture::{DeploymentFixture, Works};
pub use docker::{
    DockerFixture, Engine, Labelled, OBEDIENT, PrivateEngine, Recipe, Registry, StallingRegistry, Swarm,
    gateway as docker_gateway, libraries,
};
pub use ec2::{Cloud, Machine, greenroom};
pub use fake::{Call, Fake, Fault, Kind};
pub use nomad::{NomadEvent, NomadFake, NomadFault, NomadNode, NomadOperation, NomadOptions, NomadTiming, NomadTls};
pub use page_shell::PageShell;
pub use prewarm::{PREWARMED_POOL, PrewarmedBot};
pub use process::{ADMIN_TOKEN, Process};
pub use prometheus::PrivatePrometheus;
pub use raw::Raw;
pub use redis_subscriber::Subscriber;
pub use relay::Relay;
pub use replicas::Replicas;
pub use server_fixture::ServerFixture;
pub use servers::{PrivatePostgres, PrivateRedis, any_port};
pub use slots::{Running, process_pool, process_provider, waits};
pub use watch::{Watch, expect_no_two_at_once};

use std::time::{Duration, Instant};

use greenroom::store::Store;
use sqlx::Connection;

/// Longer than any expected event takes.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `probe` returns a value, and fails after [`PATIENCE`].
pub async fn found<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "timeout while waiting until {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until a condition is true, and fails after [`PATIENCE`].
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    found(what, async || is_so().await.then_some(())).await;
}

/// The database that a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
}

/// An empty database that only this test uses.
#[derive(Debug)]
pub struct Database {
    pub url: String,
    pub folder: tempfile::TempDir,
}

impl Database {
    pub async fn new(backend: Backend) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = match backend {
            Backend::Sqlite => format!("sqlite:{}", folder.path().join("greenroom.db").display()),
            Backend::Postgres => Self::on_postgres().await,
        };
        Self { url, folder }
    }

    async fn on_postgres() -> String {
        let server = std::env::var("TEST_POSTGRES_URL")
            .expect("TEST_POSTGRES_URL is not set; ./scripts/test starts a PostgreSQL and sets it");
        let name = format!("t_{}", uuid::Uuid::new_v4().simple());
        let mut connection = sqlx::PgConnection::connect(&server).await.unwrap();
        let create = format!("CREATE DATABASE {name}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let (base, _) = server.rsplit_once('/').unwrap();
        format!("{base}/{name}")
    }

    /// The size of the largest file of an SQLite database.
    pub fn largest_file(&self) -> u64 {
        let size = |name: &str| std::fs::metadata(self.folder.path().join(name)).map_or(0, |file| file.len());
        size("greenroom.db").max(size("greenroom.db-wal"))
    }

    pub async fn open(&self) -> Store {
        Store::open(&self.url).await.unwrap()
    }

    /// A connection for the test's own SQL, without the store.
    pub async fn reader(&self) -> Reader {
        if self.url.starts_with("sqlite:") {
            Reader::Sqlite(sqlx::SqliteConnection::connect(&self.url).await.unwrap())
        } else {
            Reader::Postgres(sqlx::PgConnection::connect(&self.url).await.unwrap())
        }
    }

    /// Runs the test's own SQL, without the store.
    pub async fn execute(&self, sql: &'static str) {
        self.run(sql.to_owned()).await;
        // Placement plans on a copy in memory. A new token makes it read its data again.
        if ["slots", "pools", "queue", "bots"].iter().any(|table| sql.contains(table)) {
            self.run(format!("UPDATE placement SET token = '{}'", uuid::Uuid::new_v4())).await;
        }
    }

    async fn run(&self, sql: String) {
        let sql = sqlx::AssertSqlSafe(sql);
        if self.url.starts_with("sqlite:") {
            let mut connection = sqlx::SqliteConnection::connect(&self.url).await.unwrap();
            sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        } else {
            let mut connection = sqlx::PgConnection::connect(&self.url).await.unwrap();
            sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        }
    }
}

#[derive(Debug)]
pub enum Reader {
    Sqlite(sqlx::SqliteConnection),
    Postgres(sqlx::PgConnection),
}

impl Reader {
    /// Runs the test's own statements, each with a `;` at its end. If they change data that placement uses, one of them
    /// must replace the token.
    pub async fn execute(&mut self, sql: String) {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
        match self {
            Reader::Sqlite(connection) => drop(sql.execute(connection).await.unwrap()),
            Reader::Postgres(connection) => drop(sql.execute(connection).await.unwrap()),
        }
    }

    pub async fn pairs(&mut self, sql: &'static str) -> Vec<(String, String)> {
        match self {
            Reader::Sqlite(connection) => sqlx::query_as(sql).fetch_all(connection).await.unwrap(),
            Reader::Postgres(connection) => sqlx::query_as(sql).fetch_all(connection).await.unwrap(),
        }
    }
}

/// Processes in slots of the process provider survive their server, but must not survive their test.
impl Drop for Database {
    fn drop(&mut self) {
        for _ in 0..100 {
            let left = self.running();
            if left.is_empty() {
                return;
            }
            left.iter().for_each(Running::kill);
        }
    }
}

/// The path of a tracked file.
pub fn in_repository(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
