//! The store is the only crate that contains SQL, apart from the benchmarks. SQLite and PostgreSQL have one interface, and the URL of the
//! database chooses between them. A read of one statement goes through [`Store`]. Changes that belong together go
//! through a [`Tx`], which commits all of them or none.
//!
//! In reading order:
//! - [`error`], [`sql`], [`record`], [`source_table`], [`lanes`], [`connect`], [`measure`], [`migrate`],
//!   [`server_lock`]: the database itself
//! - [`settings`], [`users`], [`browser_sessions`]: the installation's secrets, the users, their keys and their browsers
//! - [`bots`], [`bot_search`], [`ended_counts`]: the bots, lists of them with filters, and how many have ended
//! - [`pools`], [`slots`], [`queue`], [`deployments`], [`images`]: where bots run, or wait to run
//! - [`failures`], [`budgets`]: the errors of providers, and the limits of requests to them
//! - [`guarded`], [`fence`], [`placement_turn`], [`load`], [`batch_write`], [`changed`], [`columns`],
//!   [`row_locations`], [`sqlite_writer`]: placement's copy in memory, and its writes
//! - [`slot_memory`], [`slot_bots`], [`live`]: the memory of slots, the bots that ran in them, and what operators see
//!   live
//! - [`sessions`], [`commands`], [`transcript`], [`bot_logs`], [`screenshots`]: the data of running bots
//! - [`clocks`], [`overdue`], [`listening`]: the deadlines of bots, bots that are overdue, and when the server could receive their callbacks
//! - [`servers`]: the running servers, for commands that call them
//! - [`leases`], [`replicas`], [`keepers`]: exclusive work, the replicas that live, and the runs of keepers
//! - [`events`]: the audit trail of each bot
//! - [`stats`]: the figures of minutes and hours
//! - [`audit`]: the audit log of operators
//! - [`retention`], [`leftovers`], [`deleted_users`]: the deletion of old data

mod audit;
mod batch_write;
mod bot_logs;
mod bot_search;
mod bots;
mod browser_sessions;
mod budgets;
mod changed;
mod clocks;
mod columns;
mod commands;
mod connect;
mod deleted_users;
mod deployments;
mod ended_counts;
mod error;
mod events;
mod failures;
mod fence;
mod guarded;
mod images;
mod keepers;
mod lanes;
mod leases;
mod leftovers;
mod listening;
mod live;
mod load;
mod measure;
mod migrate;
mod overdue;
mod placement_turn;
mod pools;
mod queue;
mod record;
mod replicas;
mod retention;
mod row_locations;
mod screenshots;
mod server_lock;
mod servers;
mod sessions;
mod settings;
mod slot_bots;
mod slot_memory;
mod slots;
mod source_table;
pub(crate) mod sql;
mod sqlite_writer;
mod stats;
mod transcript;
mod users;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sqlx::{Postgres, Sqlite, Transaction};
use tokio::sync::Notify;

pub use audit::{AuditRow, NewAuditEntry};
pub use batch_write::{Applied, HeldToken, PreparedWrite};
pub use bot_logs::{BotLog, LogLine};
pub use bot_search::{BotCandidate, BotFilter, BotSource};
pub use bots::{BotChunk, BotRow, Change};
pub use browser_sessions::BrowserSessionRow;
pub use budgets::{LONGEST_HOLD, Turn};
pub use changed::BotDetails;
pub use clocks::WaitingForPerson;
pub use commands::CommandRow;
use connect::Pools;
pub use deployments::{DeploymentRow, GatePlace, Served};
pub use domain::Pool as PoolRow;
pub use domain::Slot as SlotRow;
pub use domain::event::{Actor, Kind};
pub use domain::planner::changes::NewEvent;
pub use error::StoreError;
pub use events::{BotOfEvent, EventRow, StatusTime};
pub use failures::FailureRow;
use fence::PlacementState;
pub use fence::{Changed, Position, Since};
use guarded::TOKEN_NOT_REPLACED;
pub use images::{Image, PullRow, Pulled};
pub use keepers::KeeperRow;
use lanes::{Lane, WriteTurn};
pub use leases::{Holder, Lease, LeaseClaim};
pub use leftovers::KeyOfRequest;
pub use listening::ListeningSpan;
pub use live::{LiveBotRow, LivePosition, LiveSlotRow};
use measure::measured;
pub use measure::{Connections, DiskSpace};
pub use placement_turn::PlacementTurn;
pub use pools::StoredPool;
pub use queue::{QueuePosition, QueueRow};
pub use replicas::{Holding, Renewed};
pub use retention::{BotScan, PrunedRows, Scan, first_id_at};
pub use screenshots::Screenshot;
pub use server_lock::ServerLock;
pub use servers::{SERVER_ALIVE_WITHIN, ServerFacts, ServerRow};
pub use sessions::{Beat, SessionRow};
pub use slot_bots::SlotBotRow;
pub use slot_memory::{PoolMemory, SlotMemoryRow};
use sql::{Arg, Inner, Row, Sql};
pub use stats::{CountedEvent, NewFigures, Resolution};
pub use transcript::{SegmentPosition, SegmentRow};
pub use users::{KeyRow, UserChange, UserRow};

/// The open database, at the schema of this version.
#[derive(Clone, Debug)]
pub struct Store {
    pools: Pools,
    /// The lane of these calls. Each lane has its own connections.
    lane: Lane,
    events_written: Arc<Notify>,
    placement: Arc<PlacementState>,
}

/// A transaction. Dropped without [`Tx::commit`], it changes nothing.
#[derive(Debug)]
pub struct Tx {
    inner: TxInner,
    /// Notified after the commit, if the transaction has written an event.
    events_written: Option<Arc<Notify>>,
    has_events: bool,
    /// Set after the commit, if the transaction has changed a table on which placement decides.
    changes_placement: Option<Arc<PlacementState>>,
}

#[derive(Debug)]
enum TxInner {
    /// The transaction is first, so it ends before the next one gets its turn.
    Sqlite(Transaction<'static, Sqlite>, Option<WriteTurn>),
    Postgres(Transaction<'static, Postgres>),
}

impl TxInner {
    async fn commit(self) -> Result<(), StoreError> {
        let call = "commit";
        let committed = match self {
            TxInner::Sqlite(tx, _turn) => measured(call, tx.commit()).await,
            TxInner::Postgres(tx) => measured(call, tx.commit()).await,
        };
        committed.map_err(|source| StoreError::call(call, source))
    }
}

/// Runs statements: a transaction, or the store for reads outside one.
pub trait Run: Send {
    fn all(&mut self, sql: &'static Sql, args: Vec<Arg>) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;

    fn first(
        &mut self,
        sql: &'static Sql,
        args: Vec<Arg>,
    ) -> impl Future<Output = Result<Option<Row>, StoreError>> + Send {
        async move { Ok(self.all(sql, args).await?.into_iter().next()) }
    }
}

/// A database that was opened only to inspect it.
#[derive(Debug)]
pub struct StoreInspection {
    pub store: Store,
    /// The version of its schema.
    pub found: i64,
    /// The schema version that this program uses.
    pub known: i64,
}

impl Store {
    /// Opens the database and migrates it to the schema of this version. Only one process at a time migrates.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let pools = connect::connect(url).await?;
        migrate::migrate(&pools).await?;
        Ok(Self { pools, lane: Lane::Bots, events_written: Arc::default(), placement: Arc::default() })
    }

    /// The same store for requests of users and operators, which have their own connections.
    pub fn for_users(&self) -> Self {
        Self { lane: Lane::Users, ..self.clone() }
    }

    /// Inspects a database without changing it. `None` if an SQLite file does not exist. On PostgreSQL this is not
    /// known.
    pub async fn inspect(url: &str) -> Result<Option<StoreInspection>, StoreError> {
        let Some(pools) = connect::connect_to_inspect(url).await? else { return Ok(None) };
        let store = Self { pools, lane: Lane::Bots, events_written: Arc::default(), placement: Arc::default() };
        let found = migrate::find_version(&mut store.reader()).await?.unwrap_or(0);
        Ok(Some(StoreInspection { store, found, known: migrate::known() }))
    }

    /// Begins a transaction that may write. On SQLite no other one runs until it ends.
    pub async fn begin(&self) -> Result<Tx, StoreError> {
        self.begin_in(self.lane).await
    }

    /// Begins a transaction that must be written in time, such as for a lease or a heartbeat. It waits only behind
    /// similar ones.
    async fn begin_in_time(&self) -> Result<Tx, StoreError> {
        self.begin_in(Lane::Leases).await
    }

    async fn begin_in(&self, lane: Lane) -> Result<Tx, StoreError> {
        let failed = |source| StoreError::call("begin", source);
        let inner = match &self.pools {
            Pools::Sqlite { writer, turns, .. } => {
                let begun = measured("begin", async {
                    let turn = turns.take_in_time(lane).await?;
                    Ok((writer.begin_with("BEGIN IMMEDIATE").await?, turn))
                });
                let (tx, turn) = begun.await.map_err(failed)?;
                TxInner::Sqlite(tx, Some(turn))
            }
            Pools::Postgres(pools) => {
                // In a separate task: a caller that is cancelled during BEGIN would otherwise leave an open transaction
                // in the pool.
                let pool = pools.of(lane).clone();
                let beginning = tokio::spawn(async move { pool.begin().await });
                let begun = async { beginning.await.unwrap_or(Err(sqlx::Error::WorkerCrashed)) };
                TxInner::Postgres(measured("begin", begun).await.map_err(failed)?)
            }
        };
        Ok(self.tx(inner))
    }

    fn tx(&self, inner: TxInner) -> Tx {
        Tx { inner, events_written: Some(self.events_written.clone()), has_events: false, changes_placement: None }
    }

    /// Closes the connections. Calls in progress end first.
    pub async fn close(&self) {
        self.placement.writer.give_back();
        self.placement.sqlite.close();
        self.pools.close().await;
    }

    /// Whether other processes may commit to this database at the same time, so that ids do not show the order of
    /// commits.
    pub fn is_shared(&self) -> bool {
        matches!(self.pools, Pools::Postgres(_))
    }

    /// Waits until this process has committed an event.
    pub async fn events_written(&self) {
        self.events_written.notified().await;
    }

    /// Runs one statement that must be written in time, as a transaction of its own. On PostgreSQL this needs no
    /// `BEGIN` and no `COMMIT`.
    async fn write_in_time(&self, sql: &'static Sql, args: Vec<Arg>) -> Result<Vec<Row>, StoreError> {
        if self.is_shared() && !sql.writes_guarded_table {
            return Reader { pools: &self.pools, lane: Lane::Leases }.all(sql, args).await;
        }
        let mut tx = self.begin_in_time().await?;
        let rows = tx.all(sql, args).await?;
        tx.commit().await?;
        Ok(rows)
    }

    fn reader(&self) -> Reader<'_> {
        Reader { pools: &self.pools, lane: self.lane }
    }

    /// Reads for placement, on its own connections.
    fn placing(&self) -> Reader<'_> {
        Reader { pools: &self.pools, lane: Lane::Placement }
    }
}

/// Reads outside any transaction.
struct Reader<'a> {
    pools: &'a Pools,
    lane: Lane,
}

impl Run for Reader<'_> {
    async fn all(&mut self, sql: &'static Sql, args: Vec<Arg>) -> Result<Vec<Row>, StoreError> {
        let call = sql.name;
        let failed = |source| StoreError::call(call, source);
        match self.pools {
            Pools::Sqlite { readers, users, .. } => {
                let readers = if self.lane == Lane::Users { users } else { readers };
                let query = sqlx::query_with(sql.sqlite, sql::for_sqlite(args).map_err(failed)?);
                let rows = measured(call, query.fetch_all(readers)).await.map_err(failed)?;
                Ok(rows.into_iter().map(|row| Row { sql, inner: Inner::Sqlite(row) }).collect())
            }
            Pools::Postgres(pools) => {
                let query = sqlx::query_with(sql.postgres, sql::for_postgres(args).map_err(failed)?);
                let rows = measured(call, query.fetch_all(pools.of(self.lane))).await.map_err(failed)?;
                Ok(rows.into_iter().map(|row| Row { sql, inner: Inner::Postgres(row) }).collect())
            }
        }
    }
}

impl Run for Tx {
    async fn all(&mut self, sql: &'static Sql, args: Vec<Arg>) -> Result<Vec<Row>, StoreError> {
        let call = sql.name;
        self.refuse_unguarded(sql)?;
        let failed = |source| StoreError::call(call, source);
        match &mut self.inner {
            TxInner::Sqlite(tx, _) => {
                let query = sqlx::query_with(sql.sqlite, sql::for_sqlite(args).map_err(failed)?);
                let rows = measured(call, query.fetch_all(&mut **tx)).await.map_err(failed)?;
                Ok(rows.into_iter().map(|row| Row { sql, inner: Inner::Sqlite(row) }).collect())
            }
            TxInner::Postgres(tx) => {
                let query = sqlx::query_with(sql.postgres, sql::for_postgres(args).map_err(failed)?);
                let rows = measured(call, query.fetch_all(&mut **tx)).await.map_err(failed)?;
                Ok(rows.into_iter().map(|row| Row { sql, inner: Inner::Postgres(row) }).collect())
            }
        }
    }
}

impl Tx {
    /// Commits the transaction. A caller may report success only after this.
    pub async fn commit(self) -> Result<(), StoreError> {
        if !self.has_events && self.changes_placement.is_none() {
            return self.inner.commit().await;
        }
        // In a separate task: if the caller is cancelled, the change is announced in spite of that. It is announced after
        // an error too, because it may be committed.
        let committing = tokio::spawn(async move {
            let committed = self.inner.commit().await;
            if let Some(events_written) = self.events_written.filter(|_| self.has_events) {
                events_written.notify_one();
            }
            if let Some(placement) = self.changes_placement {
                placement.changed.store(true, Ordering::SeqCst);
            }
            committed
        });
        committing.await.unwrap_or_else(|error| Err(StoreError::internal("commit", error)))
    }

    /// Runs a statement for its effect, and returns how many rows it changed.
    async fn count(&mut self, sql: &'static Sql, args: Vec<Arg>) -> Result<u64, StoreError> {
        let call = sql.name;
        self.refuse_unguarded(sql)?;
        let failed = |source| StoreError::call(call, source);
        match &mut self.inner {
            TxInner::Sqlite(tx, _) => {
                let query = sqlx::query_with(sql.sqlite, sql::for_sqlite(args).map_err(failed)?);
                Ok(measured(call, query.execute(&mut **tx)).await.map_err(failed)?.rows_affected())
            }
            TxInner::Postgres(tx) => {
                let query = sqlx::query_with(sql.postgres, sql::for_postgres(args).map_err(failed)?);
                Ok(measured(call, query.execute(&mut **tx)).await.map_err(failed)?.rows_affected())
            }
        }
    }

    /// A statement that writes a guarded table needs a transaction that replaces the token.
    fn refuse_unguarded(&self, sql: &'static Sql) -> Result<(), StoreError> {
        if sql.writes_guarded_table && self.changes_placement.is_none() {
            return Err(StoreError::internal(sql.name, TOKEN_NOT_REPLACED));
        }
        Ok(())
    }

    /// Runs a statement for its effect.
    async fn run(&mut self, sql: &'static Sql, args: Vec<Arg>) -> Result<(), StoreError> {
        self.all(sql, args).await.map(drop)
    }
}
