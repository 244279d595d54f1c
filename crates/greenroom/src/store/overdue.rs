//! Bots whose state has lasted too long, each by the clock of that state.

use domain::BotId;
use domain::lifecycle::Overdue;
use jiff::Timestamp;

use super::sql::{Sql, args, sql};
use super::{Run, Store, StoreError, Tx};

/// At most so many at a look; the next look finds the others.
const AT_A_LOOK: i64 = 500;

/// Which statement finds the bots that are overdue in this way: `$1` is the latest moment at which their clock may have
/// started, `$2` one bot or none, `$3` how many. `None` for deadlines that other parts watch.
fn found_by(overdue: Overdue) -> Option<&'static Sql> {
    match overdue {
        // From `started` on, the lobby included; after a bot had been in the meeting, from when it called for help.
        Overdue::NoJoin => Some(sql!(
            "overdue.no_join",
            "SELECT b.id FROM bots b JOIN sessions s ON s.connection_id = b.connection_id
              WHERE b.status IN ('starting', 'awaiting_admission', 'needs_help')
                AND CASE WHEN s.joined_at IS NULL THEN s.started_at ELSE b.status_since END <= $1
                AND ($2 IS NULL OR b.id = $2) ORDER BY b.id LIMIT $3"
        )),
        // From the last heartbeat on, or from when it came in.
        Overdue::HeartbeatLost => Some(sql!(
            "overdue.heartbeat_lost",
            "SELECT b.id FROM bots b LEFT JOIN heartbeats h ON h.connection_id = b.connection_id
              WHERE b.status = 'active' AND b.status_since <= $1 AND (h.at IS NULL OR h.at <= $1)
                AND ($2 IS NULL OR b.id = $2) ORDER BY b.id LIMIT $3"
        )),
        // From when it was asked to leave, or said that it does.
        Overdue::StopGrace => Some(sql!(
            "overdue.stop_grace",
            "SELECT b.id FROM bots b
              WHERE b.status = 'stopping' AND b.status_since <= $1
                AND ($2 IS NULL OR b.id = $2) ORDER BY b.id LIMIT $3"
        )),
        Overdue::QueueTimeout | Overdue::DeployTimeout | Overdue::DeployFailed | Overdue::NoStart => None,
    }
}

impl Store {
    /// Looks for bots that are overdue in one way.
    pub async fn overdue(&self, overdue: Overdue, since: Timestamp) -> Result<Vec<BotId>, StoreError> {
        let Some(sql) = found_by(overdue) else { return Ok(Vec::new()) };
        let rows = self.reader().all(sql, args![since, None::<BotId>, AT_A_LOOK]).await?;
        rows.iter().map(|row| row.id("id").map(BotId)).collect()
    }
}

impl Tx {
    /// Looks once more at one bot, which is held by now.
    pub async fn is_overdue(&mut self, bot: BotId, overdue: Overdue, since: Timestamp) -> Result<bool, StoreError> {
        let Some(sql) = found_by(overdue) else { return Ok(false) };
        Ok(self.first(sql, args![since, Some(bot), 1_i64]).await?.is_some())
    }
}
