//! What a plan changes, written at once: on PostgreSQL one statement, which is one round trip and its own transaction; on
//! SQLite one transaction of prepared statements. Either tests the token first and writes nothing if it is another.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use domain::planner::changes::Changes;
use jiff::Timestamp;
use sqlx::Arguments;
use sqlx::postgres::PgArguments;
use uuid::Uuid;

use super::changed::{BotDetails, NEXT_EPOCH, Part, parts};
use super::connect::Pools;
use super::fence::Changed;
use super::lanes::{Lane, WriteTurn};
use super::sqlite_writer::{SqlitePart, SqliteWrite};
use super::{Store, StoreError, Tx, TxInner, measured};

/// What came of writing a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Committed,
    /// The token was another: somebody else has changed something.
    Stale,
    /// The token was the same, and a bot, a deployment or a key was not as planned.
    Conflict,
}

/// The error by which PostgreSQL gives up a batch.
const CONFLICT: &str = "GR001";
const UNIQUE_VIOLATION: &str = "23505";

/// Parts that others must wait for: a slot or a bot has at most one deployment, so the old one goes first.
const DELETED_DEPLOYMENTS: [&str; 4] =
    ["given_up_deployments", "returned_deployments", "cancelled_deployments", "released_deployments"];

/// What a plan changes, ready to be sent.
#[derive(Debug)]
pub struct PreparedWrite {
    statement: Statement,
    has_events: bool,
}

#[derive(Debug)]
enum Statement {
    Sqlite(SqliteWrite),
    Postgres(Arc<str>, PgArguments),
}

/// The right to write a plan that nobody else can make stale.
#[derive(Debug)]
pub struct HeldToken(HeldInner);

#[derive(Debug)]
enum HeldInner {
    /// The turn of the one writer.
    Sqlite(WriteTurn),
    /// A transaction that has locked the token.
    Postgres(Tx),
}

impl Store {
    /// Puts a plan that was made under the token `before` into one statement. The token is `after` once it is written.
    /// `journal` says what was changed, if there is anybody to tell.
    pub fn prepare(
        &self,
        changes: &Changes,
        details: &HashMap<usize, BotDetails>,
        (before, after): (Uuid, Uuid),
        journal: Option<&Changed>,
        now: Timestamp,
    ) -> Result<PreparedWrite, StoreError> {
        let parts = parts(changes, details, (before, after), journal, now);
        let statement = match &self.pools {
            Pools::Postgres(_) => for_postgres(parts, before, after)?,
            Pools::Sqlite { .. } => for_sqlite(&parts, before, after),
        };
        Ok(PreparedWrite { statement, has_events: !changes.events.is_empty() })
    }

    /// Holds the token: from here on nobody else can change what a plan is made on.
    pub async fn hold_token(&self) -> Result<HeldToken, StoreError> {
        Ok(HeldToken(match &self.pools {
            Pools::Sqlite { turns, .. } => {
                HeldInner::Sqlite(turns.take_in_time(Lane::Placement).await.map_err(failed)?)
            }
            Pools::Postgres(_) => HeldInner::Postgres(self.lock_token().await?),
        }))
    }

    /// Writes it if the token is still the one that it was planned on.
    pub async fn write(
        &self,
        PreparedWrite { statement, has_events }: PreparedWrite,
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
                let applied = statement.run_on_postgres(connection).await?;
                if applied == Applied::Committed {
                    tx.commit().await?;
                }
                applied
            }
            (Pools::Postgres(pools), statement, _) => {
                let mut connection = match self.placement.writer.take() {
                    Some(connection) => connection,
                    None => pools.of(Lane::Placement).acquire().await.map_err(failed)?,
                };
                let applied = statement.run_on_postgres(&mut connection).await?;
                if self.is_only_replica() {
                    self.placement.writer.keep(connection);
                }
                applied
            }
            (Pools::Sqlite { .. }, ..) => return Err(other_database()),
        };
        self.tell_applied(has_events, applied);
        Ok(applied)
    }

    fn tell_applied(&self, has_events: bool, applied: Applied) {
        if applied == Applied::Committed && has_events {
            self.events_written.notify_one();
        }
    }
}

fn failed(source: sqlx::Error) -> StoreError {
    StoreError::call("placement.apply", source)
}

/// Texts of statements that were made before. There are few: one for each set of parts that plans consist of.
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

/// Tests and replaces the token. The newest version of the row is the one with the highest epoch, however many older ones a
/// transaction that is held open keeps.
fn fence() -> String {
    format!(
        "WITH fence AS (
             UPDATE placement SET token = $1, epoch = {NEXT_EPOCH}
              WHERE ctid = (SELECT ctid FROM placement ORDER BY epoch DESC LIMIT 1) AND token = $2
             RETURNING 1 AS fitted)"
    )
}

/// All parts in one statement. The same parts make the same text, so that it is planned once.
fn postgres_text(parts: &[Part<'_>]) -> String {
    let mut sql = fence();
    let (mut next, mut checks) = (3, String::new());
    // PostgreSQL runs parts in no particular order, unless one reads what another returned.
    let deleted = parts.iter().map(|part| part.name).filter(|name| DELETED_DEPLOYMENTS.contains(name));
    let deleted: String = deleted.map(|name| format!(" AND (SELECT count(*) FROM {name}) >= 0")).collect();
    for part in parts {
        let after = if part.name == "asked_deployments" { deleted.as_str() } else { "" };
        let fenced = format!("EXISTS (SELECT 1 FROM fence){after}");
        let text = part.write.postgres(&part.rows, next, &fenced);
        next += part.rows.width();
        let returning = part.counted || DELETED_DEPLOYMENTS.contains(&part.name);
        let _ = write!(sql, ", {} AS ({text}{})", part.name, if returning { " RETURNING 1" } else { "" });
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
    let _ = write!(sql, " SELECT (SELECT count(*) FROM fence) AS fitted{checks}");
    sql
}

fn for_postgres(parts: Vec<Part<'_>>, before: Uuid, after: Uuid) -> Result<Statement, StoreError> {
    let sql = known_text(parts.iter().map(|part| part.name).collect(), || postgres_text(&parts));
    let mut arguments = PgArguments::default();
    let encoded = |error| failed(sqlx::Error::Encode(error));
    arguments.add(after).and_then(|()| arguments.add(before)).map_err(encoded)?;
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
    async fn run_on_postgres(self, connection: &mut sqlx::PgConnection) -> Result<Applied, StoreError> {
        let Statement::Postgres(sql, arguments) = self else { return Err(other_database()) };
        let query = sqlx::query_with(sqlx::AssertSqlSafe(sql), arguments);
        match measured("placement.apply", query.fetch_one(connection)).await {
            Ok(row) => {
                let fitted: i64 = sqlx::Row::try_get(&row, "fitted").map_err(failed)?;
                Ok(if fitted == 1 { Applied::Committed } else { Applied::Stale })
            }
            Err(sqlx::Error::Database(error))
                if error.code().is_some_and(|code| code == CONFLICT || code == UNIQUE_VIOLATION) =>
            {
                Ok(Applied::Conflict)
            }
            Err(error) => Err(failed(error)),
        }
    }
}

fn other_database() -> StoreError {
    StoreError::internal("placement.apply", "the statement is for another database")
}
