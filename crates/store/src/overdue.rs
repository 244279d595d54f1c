//! Finds the bots whose status has lasted too long. Each status has its own clock. Until a bot makes its first callback
//! under its current connection, only the clock of its assignment counts.

use domain::lifecycle::Overdue;
use domain::{BotId, Status, UserId};
use jiff::Timestamp;

use super::sql::{Sql, args, sql, words};
use super::{Run, Store, StoreError, Tx};

/// The statuses of a running bot that is not in the meeting.
const COMING_IN: &str = words!(Status::Starting, Status::AwaitingAdmission, Status::NeedsHelp);

/// Two statements for one condition: the bots after `$2` and `$3` that meet it, by user and id, and whether one bot
/// meets it. `$1` is the latest time at which their clock may have started.
macro_rules! watched {
    ($name:literal, $($condition:expr),+ $(,)?) => {
        Some((
            sql!(
                $name,
                "SELECT open_bots.user_id, bots.id FROM open_bots JOIN bots ON bots.id = open_bots.bot_id
                   LEFT JOIN sessions ON sessions.connection_id = bots.connection_id
                   LEFT JOIN heartbeats ON heartbeats.connection_id = bots.connection_id
                  WHERE ",
                $($condition,)+
                " AND (open_bots.user_id, open_bots.bot_id) > ($2, $3) ORDER BY open_bots.user_id, open_bots.bot_id LIMIT 500"
            ),
            sql!(
                $name,
                "SELECT bots.id FROM bots LEFT JOIN sessions ON sessions.connection_id = bots.connection_id
                   LEFT JOIN heartbeats ON heartbeats.connection_id = bots.connection_id
                  WHERE bots.id = $2 AND ",
                $($condition),+
            ),
        ))
    };
}

fn watched(overdue: Overdue) -> Option<(&'static Sql, &'static Sql)> {
    match overdue {
        // The bot was started, or given to a waiting agent, and has made no callback under that connection.
        Overdue::NoStart => {
            watched!(
                "overdue.no_start",
                "bots.status <> 'stopping' AND sessions.connection_id IS NULL AND bots.awaited_since <= $1"
            )
        }
        // From `started` on, including the lobby. If the bot was in the meeting before, from its call for help on.
        Overdue::NoJoin => watched!(
            "overdue.no_join",
            "bots.status IN (",
            COMING_IN,
            ") AND CASE WHEN sessions.joined_at IS NULL THEN sessions.started_at ELSE bots.status_since END <= $1"
        ),
        // From the last heartbeat on, or from when the bot entered.
        Overdue::HeartbeatLost => watched!(
            "overdue.heartbeat_lost",
            "bots.status = 'active' AND sessions.connection_id IS NOT NULL AND bots.status_since <= $1
             AND (heartbeats.at IS NULL OR heartbeats.at <= $1)"
        ),
        // From when the bot was asked to leave, or reported that it leaves.
        Overdue::StopGrace => {
            watched!("overdue.stop_grace", "bots.status = 'stopping' AND bots.status_since <= $1")
        }
        // Other modules watch these.
        Overdue::QueueTimeout | Overdue::DeployTimeout | Overdue::DeployFailed | Overdue::Interrupted => None,
    }
}

impl Store {
    /// A page of the bots after `after` that are overdue in one way. Empty when there are no more.
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
    /// Checks one bot again, whose row is now locked.
    pub async fn is_overdue(&mut self, bot: BotId, overdue: Overdue, since: Timestamp) -> Result<bool, StoreError> {
        let Some((_, sql)) = watched(overdue) else { return Ok(false) };
        Ok(self.first(sql, args![since, bot]).await?.is_some())
    }
}
