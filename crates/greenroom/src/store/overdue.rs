//! Bots whose state has lasted too long, each by the clock of that state. A bot that has not spoken under its current
//! connection is watched by the clock of its assignment alone, whatever it was before.

use domain::lifecycle::Overdue;
use domain::{BotId, UserId};
use jiff::Timestamp;

use super::sql::{Sql, args, sql};
use super::{Run, Store, StoreError, Tx};

/// Two statements of one condition: the bots that meet it after `$2` and `$3`, by user and id, and whether one does.
/// `$1` is the latest moment at which their clock may have started.
macro_rules! watched {
    ($name:literal, $condition:literal) => {
        Some((
            sql!(
                $name,
                "SELECT o.user_id, b.id FROM open_bots o JOIN bots b ON b.id = o.bot_id
                   LEFT JOIN sessions s ON s.connection_id = b.connection_id
                   LEFT JOIN heartbeats h ON h.connection_id = b.connection_id
                  WHERE ",
                $condition,
                " AND (o.user_id, o.bot_id) > ($2, $3) ORDER BY o.user_id, o.bot_id LIMIT 500"
            ),
            sql!(
                $name,
                "SELECT b.id FROM bots b LEFT JOIN sessions s ON s.connection_id = b.connection_id
                   LEFT JOIN heartbeats h ON h.connection_id = b.connection_id
                  WHERE b.id = $2 AND ",
                $condition
            ),
        ))
    };
}

fn watched(overdue: Overdue) -> Option<(&'static Sql, &'static Sql)> {
    match overdue {
        // Started or given to a waiting agent, and not a word under that connection.
        Overdue::NoStart => {
            watched!("overdue.no_start", "b.status <> 'stopping' AND s.connection_id IS NULL AND b.awaited_since <= $1")
        }
        // From `started` on, the lobby included; after a bot had been in the meeting, from when it called for help.
        Overdue::NoJoin => watched!(
            "overdue.no_join",
            "b.status IN ('starting', 'awaiting_admission', 'needs_help')
             AND CASE WHEN s.joined_at IS NULL THEN s.started_at ELSE b.status_since END <= $1"
        ),
        // From the last heartbeat on, or from when it came in.
        Overdue::HeartbeatLost => watched!(
            "overdue.heartbeat_lost",
            "b.status = 'active' AND s.connection_id IS NOT NULL AND b.status_since <= $1
             AND (h.at IS NULL OR h.at <= $1)"
        ),
        // From when it was asked to leave, or said that it does.
        Overdue::StopGrace => {
            watched!("overdue.stop_grace", "b.status = 'stopping' AND b.status_since <= $1")
        }
        // Other parts watch these.
        Overdue::QueueTimeout | Overdue::DeployTimeout | Overdue::DeployFailed | Overdue::Interrupted => None,
    }
}

impl Store {
    /// Bots that are overdue in one way, those after `after`: a page of them, empty at the end.
    pub async fn overdue(
        &self,
        overdue: Overdue,
        since: Timestamp,
        after: Option<(UserId, BotId)>,
    ) -> Result<Vec<(UserId, BotId)>, StoreError> {
        let Some((sql, _)) = watched(overdue) else { return Ok(Vec::new()) };
        let (user, bot) = after.unwrap_or((UserId(uuid::Uuid::nil()), BotId(uuid::Uuid::nil())));
        let rows = self.reader().all(sql, args![since, user, bot]).await?;
        rows.iter().map(|row| Ok((UserId(row.id("user_id")?), BotId(row.id("id")?)))).collect()
    }
}

impl Tx {
    /// Looks once more at one bot, which is held by now.
    pub async fn is_overdue(&mut self, bot: BotId, overdue: Overdue, since: Timestamp) -> Result<bool, StoreError> {
        let Some((_, sql)) = watched(overdue) else { return Ok(false) };
        Ok(self.first(sql, args![since, bot]).await?.is_some())
    }
}
