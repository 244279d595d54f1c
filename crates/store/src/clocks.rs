//! The times from which the deadlines of bots follow, as [`domain::Deadlines::of_bot`] needs them.

use domain::deadline::{BotClocks, SessionClocks};
use domain::{BotId, Status};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::sql::{Row, args, sql, sql_over, words};
use super::{Run, Store, StoreError};

macro_rules! clock_columns {
    () => {
        "bots.id, bots.status, bots.status_since, bots.awaited_since, queue.timeout_at AS queue_timeout_at,
         deployments.timeout_at AS deploy_timeout_at, sessions.started_at AS session_started_at,
         sessions.joined_at AS session_joined_at, heartbeats.at AS last_heartbeat_at"
    };
}

/// What the columns are from, behind a table that names the bots.
macro_rules! clock_tables {
    () => {
        "LEFT JOIN queue ON queue.bot_id = bots.id
         LEFT JOIN deployments ON deployments.bot_id = bots.id
         LEFT JOIN sessions ON sessions.connection_id = bots.connection_id
         LEFT JOIN heartbeats ON heartbeats.connection_id = bots.connection_id "
    };
}

fn clocks(row: &Row) -> Result<BotClocks, StoreError> {
    let session = match row.maybe_time("session_started_at")? {
        Some(started_at) => Some(SessionClocks {
            started_at,
            joined_at: row.maybe_time("session_joined_at")?,
            last_heartbeat_at: row.maybe_time("last_heartbeat_at")?,
        }),
        None => None,
    };
    Ok(BotClocks {
        status: row.word("status")?,
        status_since: row.time("status_since")?,
        queue_until: row.maybe_time("queue_timeout_at")?,
        deploy_until: row.maybe_time("deploy_timeout_at")?,
        awaited_since: row.maybe_time("awaited_since")?,
        session,
    })
}

/// A bot that waits for a person: in the lobby, or because it needs help.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingForPerson {
    pub bot: BotId,
    pub clocks: BotClocks,
    pub reason: Option<String>,
}

impl Store {
    /// The clocks of these bots.
    pub async fn bot_clocks(&self, bots: &[BotId]) -> Result<Vec<(BotId, BotClocks)>, StoreError> {
        if bots.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Value> = bots.iter().map(|id| json!({ "id": id })).collect();
        self.reader()
            .all(
                sql_over!(
                    "bots.clocks",
                    concat!("SELECT ", clock_columns!(), " FROM"),
                    (id "UUID"),
                    concat!("JOIN bots ON bots.id = input.id ", clock_tables!())
                ),
                args![ids],
            )
            .await?
            .iter()
            .map(|row| Ok((BotId(row.id("id")?), clocks(row)?)))
            .collect()
    }

    /// The bots that need help, and those in the lobby whose time to join began at `since` or earlier: those first whose
    /// time ends first. Also returns how many there are without the limit.
    pub async fn bots_waiting_for_person(
        &self,
        since: Timestamp,
        limit: i64,
    ) -> Result<(Vec<WaitingForPerson>, i64), StoreError> {
        let rows = self
            .reader()
            .all(
                sql!(
                    "bots.waiting_for_person",
                    "SELECT *, count(*) OVER () AS total FROM (SELECT ",
                    clock_columns!(),
                    ", bots.reason,
                       CASE WHEN sessions.joined_at IS NULL THEN coalesce(sessions.started_at, bots.status_since)
                            ELSE bots.status_since END AS joins_since
                       FROM open_bots JOIN bots ON bots.id = open_bots.bot_id ",
                    clock_tables!(),
                    "WHERE bots.status IN (",
                    words!(Status::AwaitingAdmission, Status::NeedsHelp),
                    ")) AS waiting
                      WHERE status = 'needs_help' OR joins_since <= $1
                      ORDER BY joins_since, id LIMIT $2"
                ),
                args![since, limit],
            )
            .await?;
        let total = rows.first().map_or(Ok(0), |row| row.int("total"))?;
        let read = |row: &Row| {
            Ok(WaitingForPerson { bot: BotId(row.id("id")?), clocks: clocks(row)?, reason: row.maybe_text("reason")? })
        };
        Ok((rows.iter().map(read).collect::<Result<_, StoreError>>()?, total))
    }
}
