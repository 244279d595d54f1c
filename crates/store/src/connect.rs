//! Opens the database that the URL names. SQLite has one writer and several readers on a file in WAL mode. Each commit
//! is on disk before it is acknowledged. Users' reads have their own connections. On PostgreSQL, placement and leases
//! have too.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};

use sqlx::{Connection, Executor};

use super::StoreError;
use super::lanes::{Lane, WriteTurns};

/// How long a call may wait for a connection. During a burst, calls wait here and are not refused.
pub(super) const WAIT_FOR_CONNECTION: Duration = Duration::from_secs(30);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How many pages SQLite's log has before they are copied to the file: 16 MiB.
pub(super) const WAL_PAGES: &str = "4000";
/// A long read can make the log grow. When it is empty again, it is cut to this size: 64 MiB.
pub(super) const WAL_BYTES: &str = "67108864";
/// For users, and the same number for everything else.
const SQLITE_READERS: u32 = 4;
/// For one process, which has 8 in all. docs/operations.md states this number.
const FOR_USERS: u32 = 2;
const FOR_BOTS: u32 = 3;
/// One for its turn or its write transaction, and one for its reads meanwhile.
const FOR_PLACEMENT: u32 = 2;
const FOR_LEASES: u32 = 1;
/// A process that hangs inside a transaction must not hold its locks forever, and a statement that waits for such a
/// lock must end. The other settings fix the plans. Every statement looks up few rows by an index, whatever its
/// parameters are. Without these settings PostgreSQL would scan or hash a whole table that has grown since it was
/// analysed. And a new plan for each call costs more than the call.
const SETTINGS: &str = "SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '5s';
                        SET plan_cache_mode = force_generic_plan; SET jit = off;
                        SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";
/// Placement reads a row's newest version first, which a bitmap scan cannot do.
const PLACEMENT_SETTINGS: &str = "SET enable_bitmapscan = off; SET enable_memoize = off";
/// A connection that was idle for longer is tested before it is used.
pub(super) const TRUSTED_FOR: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) enum Pools {
    Sqlite { file: Arc<PathBuf>, writer: SqlitePool, turns: Arc<WriteTurns>, readers: SqlitePool, users: SqlitePool },
    Postgres(PgPools),
}

/// One pool for each lane.
#[derive(Clone, Debug)]
pub(super) struct PgPools {
    placement: PgPool,
    leases: PgPool,
    bots: PgPool,
    users: PgPool,
}

impl Pools {
    /// Closes the connections. Calls in progress end first.
    pub(super) async fn close(&self) {
        match self {
            Pools::Sqlite { writer, readers, users, .. } => {
                users.close().await;
                readers.close().await;
                writer.close().await;
            }
            Pools::Postgres(pools) => {
                for pool in [&pools.users, &pools.bots, &pools.leases, &pools.placement] {
                    pool.close().await;
                }
            }
        }
    }
}

impl PgPools {
    pub(super) fn of(&self, lane: Lane) -> &PgPool {
        match lane {
            Lane::Placement => &self.placement,
            Lane::Leases => &self.leases,
            Lane::Bots => &self.bots,
            Lane::Users => &self.users,
        }
    }
}

/// Connects without changing anything. `None` if the file does not exist.
pub(super) async fn connect_to_inspect(url: &str) -> Result<Option<Pools>, StoreError> {
    if !url.starts_with("sqlite:") {
        return connect(url).await.map(Some);
    }
    let options = sqlite_options(url)?.read_only(true).busy_timeout(WAIT_FOR_CONNECTION);
    if !options.get_filename().exists() {
        return Ok(None);
    }
    let file = Arc::new(options.get_filename().to_path_buf());
    let opened = SqlitePoolOptions::new().max_connections(1).connect_with(options).await;
    let readers = opened.map_err(|source| StoreError::call("connect", source))?;
    Ok(Some(Pools::Sqlite { file, writer: readers.clone(), turns: Arc::default(), users: readers.clone(), readers }))
}

fn sqlite_options(url: &str) -> Result<SqliteConnectOptions, StoreError> {
    if url.contains(":memory:") || url.contains("mode=memory") {
        return Err(StoreError::Url(
            "an SQLite database in memory loses every bot when the server stops; name a file, such as \
             sqlite:greenroom.db"
                .to_owned(),
        ));
    }
    SqliteConnectOptions::from_str(url)
        .map_err(|source| StoreError::Url(format!("the SQLite URL is not valid: {source}")))
}

/// The file of an SQLite database, which is created if it does not exist. `None` for PostgreSQL.
pub(super) fn sqlite_file(url: &str) -> Result<Option<PathBuf>, StoreError> {
    if !url.starts_with("sqlite:") {
        return Ok(None);
    }
    let options = sqlite_options(url)?;
    keep_private(&options)?;
    Ok(Some(options.get_filename().to_path_buf()))
}

pub(super) async fn connect(url: &str) -> Result<Pools, StoreError> {
    if url.starts_with("sqlite:") {
        sqlite(url).await
    } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        postgres(url).await
    } else {
        Err(StoreError::Url("the database URL must begin with sqlite: or postgres://".to_owned()))
    }
}

/// The switch to WAL does not wait for another process that switches, so it is tried again.
async fn sqlite(url: &str) -> Result<Pools, StoreError> {
    let begun = tokio::time::Instant::now();
    loop {
        match sqlite_once(url).await {
            Err(StoreError::Unavailable { .. }) if begun.elapsed() < WAIT_FOR_CONNECTION => {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            done => return done,
        }
    }
}

async fn sqlite_once(url: &str) -> Result<Pools, StoreError> {
    let options = sqlite_options(url)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        // A page that many batches write is copied from the log to the file once for all of them.
        .pragma("wal_autocheckpoint", WAL_PAGES)
        .pragma("journal_size_limit", WAL_BYTES)
        // Without it, a statement that may fail half-way would create a file for each batch.
        .pragma("temp_store", "MEMORY")
        .busy_timeout(WAIT_FOR_CONNECTION);
    keep_private(&options)?;
    let file = Arc::new(options.get_filename().to_path_buf());
    let failed = |source| StoreError::call("connect", source);
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(WAIT_FOR_CONNECTION)
        .idle_timeout(None)
        .max_lifetime(None)
        // After a failed commit, as on a full disk, the connection may treat its transaction as open. It is the only
        // writer, and would then refuse every call, so it is replaced.
        .before_acquire(|writer, _| Box::pin(async move { Ok(!writer.is_in_transaction()) }))
        .connect_with(options.clone())
        .await
        .map_err(failed)?;
    let options = options.pragma("query_only", "ON");
    let reading = SqlitePoolOptions::new().max_connections(SQLITE_READERS).acquire_timeout(WAIT_FOR_CONNECTION);
    let readers = reading.clone().connect_with(options.clone()).await.map_err(failed)?;
    let users = reading.connect_with(options).await.map_err(failed)?;
    Ok(Pools::Sqlite { file, writer, turns: Arc::default(), readers, users })
}

/// The file contains the secret that signs bots' tokens, so only its owner may read it.
fn keep_private(options: &SqliteConnectOptions) -> Result<(), StoreError> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = options.get_filename();
    match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => {
            Err(StoreError::Url(format!("the SQLite file {} cannot be created: {error}", file.to_string_lossy())))
        }
    }
}

async fn postgres(url: &str) -> Result<Pools, StoreError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| StoreError::Url("the PostgreSQL URL is not valid; write postgres://user:password@host/db".into()))?
        .application_name("greenroom");
    let failed = |source| StoreError::call("connect", source);
    // A pool would retry until its timeout, and then lose the reason.
    PgConnection::connect_with(&options).await.map_err(failed)?.close().await.map_err(failed)?;
    let pool = PgPoolOptions::new()
        .acquire_timeout(WAIT_FOR_CONNECTION)
        .test_before_acquire(false)
        .before_acquire(|connection, about| {
            Box::pin(async move { Ok(about.idle_for < TRUSTED_FOR || connection.ping().await.is_ok()) })
        })
        .after_connect(|connection, _| Box::pin(async move { connection.execute(SETTINGS).await.map(drop) }));
    let placement = pool.clone().after_connect(|connection, _| {
        Box::pin(async move {
            connection.execute(SETTINGS).await?;
            connection.execute(PLACEMENT_SETTINGS).await.map(drop)
        })
    });
    // Each connects at its first use.
    let of = |connections| pool.clone().max_connections(connections).connect_lazy_with(options.clone());
    Ok(Pools::Postgres(PgPools {
        placement: placement.max_connections(FOR_PLACEMENT).connect_lazy_with(options.clone()),
        leases: of(FOR_LEASES),
        bots: of(FOR_BOTS),
        users: of(FOR_USERS),
    }))
}
