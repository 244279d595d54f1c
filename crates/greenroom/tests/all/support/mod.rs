//! What the tests stand on: a database of their own each, the server as a process, a client.

mod client;
mod house;
mod process;

pub use client::{Client, Life, meet_link};
pub use house::House;
pub use process::{ADMIN_TOKEN, Process};

use greenroom::store::Store;
use sqlx::Connection;

/// Which database a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
}

/// An empty database that only this test has.
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

    pub async fn open(&self) -> Store {
        Store::open(&self.url).await.unwrap()
    }

    /// Runs SQL of the test's own, past the store.
    pub async fn execute(&self, sql: &'static str) {
        if self.url.starts_with("sqlite:") {
            let mut connection = sqlx::SqliteConnection::connect(&self.url).await.unwrap();
            sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        } else {
            let mut connection = sqlx::PgConnection::connect(&self.url).await.unwrap();
            sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        }
    }
}

/// The path of a tracked file.
pub fn in_repository(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
