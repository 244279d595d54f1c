//! Writes all changes of a plan at once. On PostgreSQL this is one statement, which is one round trip and one
//! transaction. On SQLite it is one transaction of prepared statements. Both check the token first, and write nothing
//! if it has changed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use domain::SlotName;
use domain::planner::changes::Changes;
use jiff::Timestamp;
use sqlx::Arguments;
use sqlx::postgres::PgArguments;
use uuid::Uuid;

use super::changed::{BotDetails, NEXT_EPOCH, Part, parts, used_slots};
use super::connect::Pools;
use super::fence::Changed;
use super::lanes::{Lane, WriteTurn};
use super::row_locations::{self, RowLocation};
use super::sqlite_writer::{SqlitePart, SqliteWrite};
use super::{Store, StoreError, Tx, TxInner, measured};

/// The result of writing a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Committed,
    /// The token has changed: another process or transaction has changed something.
    Stale,
    /// The token is the same, but a bot, a deployment or a key was not as planned.
    Conflict,
}

/// The error code with which PostgreSQL aborts a batch.
const CONFLICT: &str = "GR001";
const UNIQUE_VIOLATION: &str = "23505";

/// Parts that must run before others. A slot or a bot has at most one deployment, so the old one must be deleted first.
const DELETED_DEPLOYMENTS: [&str; 4] =
    ["given_up_deployments", "returned_deployments", "cancelled_deployments", "released_deployments"];

/// The changes of a plan, ready to be sent.
#[derive(Debug)]
pub struct PreparedWrite {
    statement: Statement,
    has_events: bool,
    /// The slots whose locations PostgreSQL returns.
    located: Vec<SlotName>,
    /// The token that the write leaves.
    after: Uuid,
}

#[derive(Debug)]
enum Statement {
    Sqlite(SqliteWrite),
    Postgres(Arc<str>, PgArguments),
}

/// What PostgreSQL has written, with the new locations of the token and the used slots.
struct WrittenRows {
    applied: Applied,
    token: Option<RowLocation>,
    slots: Vec<RowLocation>,
}

/// The right to write a plan that no other writer can make stale.
#[derive(Debug)]
pub struct HeldToken(HeldInner);

#[derive(Debug)]
enum HeldInner {
    /// The turn of the only writer.
    Sqlite(WriteTurn),
    /// A transaction that has locked the token.
    Postgres(Tx),
}

impl Store {
    /// Prepares a plan that was made under the token `before`. The write sets the token to `after`. `journal` describes
    /// the changes for other replicas, if there are any.
    pub fn prepare(
        &self,
        changes: &Changes,
        details: &HashMap<usize, BotDetails>,
        (before, after): (Uuid, Uuid),
        journal: Option<&Changed>,
        now: Timestamp,
    ) -> Result<PreparedWrite, StoreError> {
        let has_events = !changes.events.is_empty();
        if !self.is_shared() {
            let parts = parts(changes, details, (before, after), journal, None, now);
            let statement = for_sqlite(&parts, before, after);
            return Ok(PreparedWrite { statement, has_events, located: Vec::new(), after });
        }
        let located: Vec<SlotName> = used_slots(changes).map(|slot| slot.name.clone()).collect();
        let known = &self.placement.locations;
        let (slots, token) = (known.of_slots(located.iter()), known.of_token(before));
        // The statement does not return the locations of the other slots.
        known.forget_slots(changes.slots.iter().filter(|(_, change)| !change.only_use_changed).map(|(name, _)| name));
        let parts = parts(changes, details, (before, after), journal, Some(slots), now);
        Ok(PreparedWrite { statement: for_postgres(parts, before, after, token)?, has_events, located, after })
    }

    /// Locks the token. From here on no other writer can change the facts that a plan uses.
    pub async fn hold_token(&self) -> Result<HeldToken, StoreError> {
        Ok(HeldToken(match &self.pools {
            Pools::Sqlite { turns, .. } => {
                HeldInner::Sqlite(turns.take_in_time(Lane::Placement).await.map_err(failed)?)
            }
            Pools::Postgres(_) => HeldInner::Postgres(self.lock_token().await?),
        }))
    }

    /// Writes the plan if the token is still the one that the plan was made under.
    pub async fn write(
        &self,
        PreparedWrite { statement, has_events, located, after }: PreparedWrite,
        held: Option<HeldToken>,
    ) -> Result<Applied, StoreError> {
        let held = held.map(|HeldToken(inner)| inner);
        let applied = match (&self.pools, statement, held) {
            (Pools::Sqlite { turns, file, .. }, Statement::Sqlite(write), held) => {
                let _turn = match held {
                    Some(HeldInner::Sqlite(turn)) => turn,
                    _ => turns.take_in_time(Lane::Placement).await.map_err(failed)?,
                };
                let written = measured("placement.apply", self.placement.sqlite.write(file, &write)).await;
                written.map_err(|source| StoreError::sqlite("placement.apply", &source))?
            }
            (Pools::Postgres(_), statement, Some(HeldInner::Postgres(mut tx))) => {
                let TxInner::Postgres(connection) = &mut tx.inner else { return Err(other_database()) };
                let written = self.run_on_postgres(statement, connection).await?;
                if written.applied == Applied::Committed {
                    tx.commit().await?;
                }
                self.note_locations(located, after, written)
            }
            (Pools::Postgres(pools), statement, _) => {
                let mut connection = match self.placement.writer.take() {
                    Some(connection) => connection,
                    None => pools.of(Lane::Placement).acquire().await.map_err(failed)?,
                };
                let written = self.run_on_postgres(statement, &mut connection).await?;
                if self.is_only_replica() {
                    self.placement.writer.keep(connection);
                }
                self.note_locations(located, after, written)
            }
            (Pools::Sqlite { .. }, ..) => return Err(other_database()),
        };
        self.notify_events_written(has_events, applied);
        Ok(applied)
    }

    async fn run_on_postgres(
        &self,
        statement: Statement,
        connection: &mut sqlx::PgConnection,
    ) -> Result<WrittenRows, StoreError> {
        let written = statement.run_on_postgres(connection).await;
        if !written.as_ref().is_ok_and(|written| written.applied == Applied::Committed) {
            self.placement.locations.forget_all();
        }
        written
    }

    fn note_locations(&self, slots: Vec<SlotName>, token: Uuid, written: WrittenRows) -> Applied {
        if written.applied == Applied::Committed {
            self.placement.locations.note(slots.into_iter().zip(written.slots), (token, written.token));
        }
        written.applied
    }

    fn notify_events_written(&self, has_events: bool, applied: Applied) {
        if applied == Applied::Committed && has_events {
            self.events_written.notify_one();
        }
    }
}

fn failed(source: sqlx::Error) -> StoreError {
    StoreError::call("placement.apply", source)
}

/// The texts of statements that were built before. There are few: one for each combination of parts in a plan.
static TEXTS: LazyLock<Mutex<HashMap<Vec<&'static str>, Arc<str>>>> = LazyLock::new(Mutex::default);

fn known_text(names: Vec<&'static str>, make: impl FnOnce() -> String) -> Arc<str> {
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    texts.entry(names).or_insert_with(|| make().into()).clone()
}

fn for_sqlite(parts: &[Part<'_>], before: Uuid, after: Uuid) -> Statement {
    let parts = parts.iter().map(|part| SqlitePart {
        sql: known_text(vec!["sqlite", part.name], || part.write.sqlite(&part.rows)),
        rows: part.rows.sqlite_values(),
        counted: part.counted,
    });
    Statement::Sqlite(SqliteWrite { before, after, parts: parts.collect() })
}

/// Checks and replaces the token. The newest version of its row has the highest epoch, even if an open transaction
/// keeps many older versions.
fn fence() -> String {
    format!(
        "WITH fence AS (
             UPDATE placement SET token = $1, epoch = {NEXT_EPOCH}
              WHERE ctid = coalesce($3::tid, (SELECT ctid FROM placement ORDER BY epoch DESC LIMIT 1)) AND token = $2
             RETURNING placement.ctid AS location)"
    )
}

/// Joins all parts into one statement. The same parts give the same text, so that PostgreSQL plans it once.
fn postgres_text(parts: &[Part<'_>]) -> String {
    let mut sql = fence();
    let (mut next, mut checks, mut slots) = (4, String::new(), "NULL::tid[]");
    // PostgreSQL runs parts in no particular order, unless one reads the result of another.
    let deleted = parts.iter().map(|part| part.name).filter(|name| DELETED_DEPLOYMENTS.contains(name));
    let deleted: String = deleted.map(|name| format!(" AND (SELECT count(*) FROM {name}) >= 0")).collect();
    for part in parts {
        let after = if part.name == "asked_deployments" { deleted.as_str() } else { "" };
        let fenced = format!("EXISTS (SELECT 1 FROM fence){after}");
        let text = part.write.postgres(&part.rows, next, &fenced);
        next += part.rows.width();
        let mut returning = if part.counted || DELETED_DEPLOYMENTS.contains(&part.name) { " RETURNING 1" } else { "" };
        if part.write.has_location() {
            returning = " RETURNING input.ordinal, slots.ctid AS location";
            slots = "(SELECT array_agg(location ORDER BY ordinal) FROM used_slots)";
        }
        let _ = write!(sql, ", {} AS ({text}{returning})", part.name);
        if part.counted {
            let _ = write!(
                checks,
                ", CASE WHEN (SELECT count(*) FROM {0}) <> ${next} AND EXISTS (SELECT 1 FROM fence)
                        THEN placement_conflict('{0}') END",
                part.name
            );
            next += 1;
        }
    }
    let _ = write!(sql, " SELECT (SELECT array_agg(location) FROM fence) AS token, {slots} AS slots{checks}");
    sql
}

fn for_postgres(
    parts: Vec<Part<'_>>,
    before: Uuid,
    after: Uuid,
    token: Option<RowLocation>,
) -> Result<Statement, StoreError> {
    let sql = known_text(parts.iter().map(|part| part.name).collect(), || postgres_text(&parts));
    let mut arguments = PgArguments::default();
    let encoded = |error| failed(sqlx::Error::Encode(error));
    arguments.add(after).and_then(|()| arguments.add(before)).and_then(|()| arguments.add(token)).map_err(encoded)?;
    for part in parts {
        let (count, counted) = (part.rows.len(), part.counted);
        part.rows.bind(&mut arguments).map_err(failed)?;
        if counted {
            arguments.add(i64::try_from(count).unwrap_or(i64::MAX)).map_err(encoded)?;
        }
    }
    Ok(Statement::Postgres(sql, arguments))
}

impl Statement {
    async fn run_on_postgres(self, connection: &mut sqlx::PgConnection) -> Result<WrittenRows, StoreError> {
        let Statement::Postgres(sql, arguments) = self else { return Err(other_database()) };
        let query = sqlx::query_with(sqlx::AssertSqlSafe(sql), arguments);
        match measured("placement.apply", query.fetch_one(connection)).await {
            Ok(row) => {
                let token = row_locations::read(&row, "token").map_err(failed)?.first().copied();
                let slots = row_locations::read(&row, "slots").map_err(failed)?;
                let applied = if token.is_some() { Applied::Committed } else { Applied::Stale };
                Ok(WrittenRows { applied, token, slots })
            }
            Err(sqlx::Error::Database(error))
                if error.code().is_some_and(|code| code == CONFLICT || code == UNIQUE_VIOLATION) =>
            {
                Ok(WrittenRows { applied: Applied::Conflict, token: None, slots: Vec::new() })
            }
            Err(error) => Err(failed(error)),
        }
    }
}

fn other_database() -> StoreError {
    StoreError::internal("placement.apply", "the statement is for another database")
}
