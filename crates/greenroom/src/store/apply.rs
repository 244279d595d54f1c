//! What a plan changes, written at once: on PostgreSQL one statement, which is one round trip and its own transaction; on
//! SQLite one call in a transaction. Either tests the token first and writes nothing if it is another.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use domain::planner::changes::Changes;
use jiff::Timestamp;
use sqlx::Arguments;
use sqlx::postgres::PgArguments;
use uuid::Uuid;

use super::changed::{BotDetails, Part, parts};
use super::connect::Pools;
use super::fence::Changed;
use super::lanes::Lane;
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
/// The constraints by which SQLite does.
const TOKEN_FITTED: &str = "token_fitted";
const ROWS_FOUND: &str = "rows_found";

/// Parts that others must wait for: a slot or a bot has at most one deployment, so the old one goes first.
const DELETED_DEPLOYMENTS: [&str; 4] =
    ["given_up_deployments", "returned_deployments", "cancelled_deployments", "released_deployments"];

impl Store {
    /// Writes a plan that was made under the token `before`. The token is `after` then. `journal` says what was changed, if
    /// there is anybody to tell.
    pub async fn apply(
        &self,
        changes: &Changes,
        details: &HashMap<usize, BotDetails>,
        (before, after): (Uuid, Uuid),
        journal: Option<&Changed>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let parts = parts(changes, details, (before, after), journal, now);
        let applied = match &self.pools {
            Pools::Postgres(pools) => {
                let mut connection = pools.of(Lane::Placement).acquire().await.map_err(failed)?;
                apply_to_postgres(&mut connection, parts, before, after).await?
            }
            Pools::Sqlite { .. } => {
                let mut tx = self.begin_in(Lane::Placement).await?;
                let applied = tx.apply(parts, before, after).await?;
                if applied == Applied::Committed {
                    tx.commit().await?;
                }
                applied
            }
        };
        self.tell_applied(changes, applied);
        Ok(applied)
    }

    /// The same in a transaction that holds the token ([`Store::hold_token`]).
    pub async fn apply_in(
        &self,
        mut tx: Tx,
        changes: &Changes,
        details: &HashMap<usize, BotDetails>,
        (before, after): (Uuid, Uuid),
        journal: Option<&Changed>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let parts = parts(changes, details, (before, after), journal, now);
        let applied = tx.apply(parts, before, after).await?;
        if applied == Applied::Committed {
            tx.commit().await?;
        }
        self.tell_applied(changes, applied);
        Ok(applied)
    }

    fn tell_applied(&self, changes: &Changes, applied: Applied) {
        if applied == Applied::Committed && !changes.events.is_empty() {
            self.told.notify_one();
        }
    }
}

fn failed(source: sqlx::Error) -> StoreError {
    StoreError::call("placement.apply", source)
}

impl Tx {
    async fn apply(&mut self, parts: Vec<Part<'_>>, before: Uuid, after: Uuid) -> Result<Applied, StoreError> {
        match &mut self.inner {
            TxInner::Sqlite(inner, _) => apply_to_sqlite(inner, &parts, before, after).await,
            TxInner::Postgres(inner) => apply_to_postgres(inner, parts, before, after).await,
        }
    }
}

/// Texts of statements that were made before. There are few: one for each set of parts that plans consist of.
static TEXTS: LazyLock<Mutex<HashMap<Vec<&'static str>, Arc<str>>>> = LazyLock::new(Mutex::default);

fn known_text(names: Vec<&'static str>, make: impl FnOnce() -> String) -> Arc<str> {
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    texts.entry(names).or_insert_with(|| make().into()).clone()
}

/// All parts one after the other, in one call: the driver has a thread of its own, to which each call is a way there and
/// back. What does not hold fails by a constraint, and what follows is not run.
fn sqlite_text(parts: &[Part<'_>]) -> String {
    let mut sql = String::with_capacity(8_192);
    sql.push_str("UPDATE placement SET token = $1 WHERE id = 1 AND token = $2;\n");
    sql.push_str("UPDATE placement SET fitted = (changes() = 1) WHERE id = 1;\n");
    let mut next = 3;
    for part in parts {
        let text = part.sql.replace("{rows}", &part.rows.sqlite(next)).replace("{fenced}", "true");
        let _ = writeln!(sql, "{};", text.replace("::json", ""));
        next += 1;
        if part.counted {
            let _ = writeln!(sql, "UPDATE placement SET found = (changes() = ${next}) WHERE id = 1;");
            next += 1;
        }
    }
    sql
}

async fn apply_to_sqlite(
    connection: &mut sqlx::SqliteConnection,
    parts: &[Part<'_>],
    before: Uuid,
    after: Uuid,
) -> Result<Applied, StoreError> {
    let names = ["sqlite"].into_iter().chain(parts.iter().map(|part| part.name));
    let sql = known_text(names.collect(), || sqlite_text(parts));
    let mut query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(after.to_string()).bind(before.to_string());
    for part in parts {
        query = query.bind(part.rows.json());
        if part.counted {
            query = query.bind(i64::try_from(part.rows.len()).unwrap_or(i64::MAX));
        }
    }
    match measured("placement.apply", query.execute(connection)).await {
        Ok(_) => Ok(Applied::Committed),
        Err(sqlx::Error::Database(error)) if error.message().contains(TOKEN_FITTED) => Ok(Applied::Stale),
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() || error.message().contains(ROWS_FOUND) => {
            Ok(Applied::Conflict)
        }
        Err(error) => Err(failed(error)),
    }
}

/// All parts in one statement. The same parts make the same text, so that it is planned once.
fn postgres_text(parts: &[Part<'_>]) -> String {
    let mut sql = String::with_capacity(8_192);
    sql.push_str("WITH fence AS (UPDATE placement SET token = $1 WHERE id = 1 AND token = $2 RETURNING 1 AS fitted)");
    let (mut next, mut checks) = (3, String::new());
    // PostgreSQL runs parts in no particular order, unless one reads what another returned.
    let deleted = parts.iter().map(|part| part.name).filter(|name| DELETED_DEPLOYMENTS.contains(name));
    let deleted: String = deleted.map(|name| format!(" AND (SELECT count(*) FROM {name}) >= 0")).collect();
    for part in parts {
        let rows = part.rows.postgres(next);
        next += part.rows.width();
        let after = if part.name == "asked_deployments" { deleted.as_str() } else { "" };
        let fenced = format!("EXISTS (SELECT 1 FROM fence){after}");
        let text = part.sql.replace("{rows}", &rows).replace("{fenced}", &fenced);
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

async fn apply_to_postgres(
    connection: &mut sqlx::PgConnection,
    parts: Vec<Part<'_>>,
    before: Uuid,
    after: Uuid,
) -> Result<Applied, StoreError> {
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
