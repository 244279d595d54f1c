//! The token that protects placement's copy in memory, and the journal that describes each change of the token. Every
//! transaction that changes slots, pools, the queue, users, keys or the open bots replaces the token. It does so first,
//! so that it holds no other lock while it waits for the token.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use domain::planner::changes::Changes;
use domain::{BotId, SlotName, UserId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::sync::watch;
use uuid::Uuid;

use super::connect::TRUSTED_FOR;
use super::lanes::Lane;
use super::row_locations::RowLocations;
use super::sql::{args, sql};
use super::sqlite_writer::SqliteWriter;
use super::{Run, Store, StoreError, Tx};

/// Ends a PostgreSQL transaction that holds the token and is idle for a second. So a replica that is suspended, or a
/// machine that is gone, blocks the others for at most this time.
macro_rules! longest_hold {
    () => {
        "set_config('idle_in_transaction_session_timeout', '1s', true)"
    };
}

/// The rows that a change of the token was about, which must be read again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changed {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bots: Vec<BotId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pools: bool,
    /// Idempotency keys were deleted. A copy must not answer from them any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idempotency_keys: bool,
    /// More rows than can be listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub everything: bool,
}

impl Changed {
    pub fn bot(id: BotId, slot: Option<&SlotName>) -> Self {
        Self { bots: vec![id], slots: slot.map(ToString::to_string).into_iter().collect(), ..Self::default() }
    }

    pub fn user(id: UserId) -> Self {
        Self { users: vec![id], ..Self::default() }
    }

    /// The rows that a plan changes.
    pub fn of(changes: &Changes) -> Self {
        Self {
            slots: changes.slots.keys().map(ToString::to_string).collect(),
            bots: changes.bots.keys().copied().collect(),
            pools: !changes.pools.is_empty(),
            ..Self::default()
        }
    }

    pub fn idempotency_keys() -> Self {
        Self { idempotency_keys: true, ..Self::default() }
    }

    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Adds the rows of another change.
    pub fn merge(&mut self, other: Changed) {
        self.slots.extend(other.slots);
        self.bots.extend(other.bots);
        self.users.extend(other.users);
        self.pools |= other.pools;
        self.idempotency_keys |= other.idempotency_keys;
        self.everything |= other.everything;
    }
}

/// The state that placement shares with the rest of this process.
#[derive(Debug, Default)]
pub(super) struct PlacementState {
    /// Another part of this process than placement has changed the facts on which placement decides.
    pub changed: AtomicBool,
    /// Grows when another replica has changed a user, so that copies of users are read again.
    pub users_generation: AtomicU64,
    /// How far placement has read the journal.
    pub journal_position: AtomicI64,
    pub alone: Alone,
    pub writer: KeptConnection,
    pub sqlite: SqliteWriter,
    pub locations: RowLocations,
}

/// Whether other replicas live.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// Whether no other replica lived at this replica's last renewal.
    is_alone: watch::Sender<bool>,
    /// When that renewal was sent.
    as_of: Mutex<Option<Instant>>,
}

impl Alone {
    /// Records the result of a renewal that was sent at this moment.
    pub fn set(&self, is_alone: bool, as_of: Instant) {
        *self.as_of.lock().unwrap_or_else(PoisonError::into_inner) = is_alone.then_some(as_of);
        self.is_alone.send_if_modified(|before| std::mem::replace(before, is_alone) != is_alone);
    }
}

/// The connection for placement's batches, which run one after the other. The pool would test it with a round trip
/// after each use, and then give out the other connection.
#[derive(Debug, Default)]
pub(super) struct KeptConnection(Mutex<Option<(PoolConnection<Postgres>, Instant)>>);

impl KeptConnection {
    /// The connection, if it was used a moment ago. Otherwise it goes back to the pool, which tests it.
    pub fn take(&self) -> Option<PoolConnection<Postgres>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.filter(|(_, used)| used.elapsed() < TRUSTED_FOR).map(|(connection, _)| connection)
    }

    pub fn keep(&self, connection: PoolConnection<Postgres>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((connection, Instant::now()));
    }

    /// Returns the connection to the pool, for a caller that needs two connections.
    pub fn give_back(&self) {
        drop(self.take());
    }
}

/// The version of a copy in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub token: Uuid,
    pub journal: i64,
}

/// The changes since a copy was current.
#[derive(Clone, Debug)]
pub struct Since {
    pub position: Position,
    /// `None` if the journal does not contain all changes.
    pub changed: Option<Changed>,
}

impl Store {
    /// Begins a transaction that changes facts on which placement decides. It replaces the token before any other
    /// write.
    pub async fn begin_changing(&self, changed: &Changed, now: Timestamp) -> Result<Tx, StoreError> {
        let mut tx = self.begin().await?;
        self.change_in(&mut tx, changed, now).await?;
        Ok(tx)
    }

    /// Replaces the token in a transaction that holds no lock yet for which others wait.
    pub async fn change_in(&self, tx: &mut Tx, changed: &Changed, now: Timestamp) -> Result<(), StoreError> {
        tx.replace_token(changed, now).await?;
        tx.changes_placement = Some(self.placement.clone());
        Ok(())
    }

    /// Begins the PostgreSQL transaction for a plan, with the token locked.
    pub(super) async fn lock_token(&self) -> Result<Tx, StoreError> {
        self.placement.writer.give_back();
        let mut tx = self.begin_in(Lane::Placement).await?;
        let lock = sql!(
            "placement.lock",
            "SELECT token, ",
            longest_hold!(),
            " FROM placement ORDER BY epoch DESC LIMIT 1 FOR UPDATE"
        );
        tx.first(lock, vec![]).await?.ok_or_else(no_row)?;
        Ok(tx)
    }

    /// Whether this process has committed a change of placement's facts since the last call.
    pub fn take_placement_changed(&self) -> bool {
        self.placement.changed.swap(false, Ordering::SeqCst)
    }

    /// A number that grows when this replica learns that users have changed.
    pub fn users_generation(&self) -> u64 {
        self.placement.users_generation.load(Ordering::SeqCst)
    }

    /// Records that users have changed.
    pub(super) fn note_users_changed(&self) {
        self.placement.users_generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that placement has read the journal up to here: this replica needs no earlier row.
    pub fn note_journal_position(&self, position: Position) {
        self.placement.journal_position.store(position.journal, Ordering::SeqCst);
    }

    /// The current token, and the end of the journal.
    pub async fn placement_position(&self) -> Result<Position, StoreError> {
        let row = self
            .placing()
            .first(
                sql!(
                    "placement.position",
                    "SELECT token, coalesce((SELECT max(id) FROM placement_journal), 0) AS journal
                       FROM placement ORDER BY epoch DESC LIMIT 1"
                ),
                vec![],
            )
            .await?
            .ok_or_else(no_row)?;
        Ok(Position { token: row.id("token")?, journal: row.int("journal")? })
    }

    /// The current token, read on the connections of the caller.
    pub async fn placement_token(&self) -> Result<Uuid, StoreError> {
        let token = sql!("placement.token", "SELECT token FROM placement ORDER BY epoch DESC LIMIT 1");
        self.reader().first(token, vec![]).await?.ok_or_else(no_row)?.id("token")
    }

    /// The changes since a copy was current.
    pub async fn placement_since(&self, known: Position) -> Result<Since, StoreError> {
        let rows = self
            .placing()
            .all(
                sql!(
                    "placement.since",
                    "SELECT placement.token AS now, journal.id AS journal, journal.before, journal.token, journal.changed
                       FROM (SELECT token FROM placement ORDER BY epoch DESC LIMIT 1) AS placement
                       LEFT JOIN (SELECT * FROM placement_journal WHERE id > $1 ORDER BY id LIMIT 5000) AS journal ON true
                      ORDER BY journal.id"
                ),
                args![known.journal],
            )
            .await?;
        let (mut position, mut now) = (known, known.token);
        let mut changed = Changed::default();
        for row in &rows {
            now = row.id("now")?;
            let Some(journal) = row.maybe_int("journal")? else { continue };
            position.journal = journal;
            // Earlier rows were already read, or written by this replica.
            if row.id("before")? == position.token {
                let read = serde_json::from_str(&row.text("changed")?);
                changed.merge(read.unwrap_or_else(|_| Changed::everything()));
                position.token = row.id("token")?;
            }
        }
        // A replica that knows no other replica does not write its batches to the journal.
        let is_complete = position.token == now && !changed.everything;
        position.token = now;
        Ok(Since { position, changed: is_complete.then_some(changed) })
    }

    /// Deletes rows that every replica has read. A replica that is not registered yet reads everything anyway.
    pub async fn prune_placement_journal(&self) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let prune = sql!(
            "placement.prune",
            "DELETE FROM placement_journal
              WHERE id <= $1
                AND NOT EXISTS (SELECT 1 FROM replicas WHERE replicas.journal_position < placement_journal.id)"
        );
        tx.run(prune, args![self.placement.journal_position.load(Ordering::SeqCst)]).await?;
        tx.commit().await
    }

    /// Whether this is the only live replica, as far as it knows. It may be wrong for a second, but the token still
    /// protects.
    pub fn is_only_replica(&self) -> bool {
        !self.is_shared() || *self.placement.alone.is_alone.borrow()
    }

    /// The last moment at which this was certainly the only live replica. `None` while others live.
    pub fn only_replica_at(&self) -> Option<Instant> {
        if !self.is_shared() {
            return Some(Instant::now());
        }
        *self.placement.alone.as_of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives a message when the first other replica appears, and when the last one has gone.
    pub fn watch_other_replicas(&self) -> watch::Receiver<bool> {
        self.placement.alone.is_alone.subscribe()
    }
}

fn no_row() -> StoreError {
    let (table, row, found) =
        ("placement".to_owned(), "(its only one)".to_owned(), "nothing, because the row is missing".to_owned());
    StoreError::Inconsistent { call: "placement.position", table, column: "token", row, found }
}

impl Tx {
    async fn replace_token(&mut self, changed: &Changed, now: Timestamp) -> Result<(), StoreError> {
        let token = Uuid::new_v4();
        // Waits while another transaction holds the row, and then reads its new value.
        let hold = sql!(
            "placement.hold_to_change",
            sqlite: "SELECT epoch, token FROM placement",
            postgres: concat!(
                "SELECT epoch, token, ", longest_hold!(), " FROM placement ORDER BY epoch DESC LIMIT 1 FOR UPDATE"
            ),
        );
        let row = self.first(hold, vec![]).await?.ok_or_else(no_row)?;
        let set = sql!(
            "placement.set",
            sqlite: "UPDATE placement SET token = $1 WHERE epoch = $2",
            postgres: "UPDATE placement SET token = $1, epoch = epoch + 1 WHERE epoch = $2",
        );
        self.run(set, args![token, row.int("epoch")?]).await?;
        self.journal(row.id("token")?, token, changed, now).await
    }

    async fn journal(
        &mut self,
        before: Uuid,
        token: Uuid,
        changed: &Changed,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let text = serde_json::to_string(changed).unwrap_or_else(|_| "{\"everything\":true}".to_owned());
        self.run(
            sql!(
                "placement.journal",
                "INSERT INTO placement_journal (before, token, at, changed) VALUES ($1, $2, $3, $4)"
            ),
            args![before, token, now, text],
        )
        .await
    }
}
