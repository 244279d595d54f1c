//! The bots. Each bot has one row, which is the only source of truth of its state.

use domain::lifecycle::LifecycleState;
use domain::{BotId, ConnectionId, Fault, Platform, Reason, Requirements, ShownStatus, SlotName, Status, UserId};
use jiff::Timestamp;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::record::record;
use super::sql::{Row, Sql, args, sql, sql_locking, text, words};
use super::{Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct BotRow, columns bot_columns, read bot {
        pub id: BotId,
        pub user_id: UserId,
        pub platform: Platform,
        pub native_meeting_id: String,
        pub meeting_url: String,
        pub bot_display_name: Option<String>,
        pub status: Status,
        /// Since when it has its status, as shown.
        pub status_since: Timestamp,
        pub reason: Option<String>,
        pub fault: Option<Fault>,
        pub error: Option<String>,
        pub exit_code: Option<i64>,
        pub container_id: Option<String>,
        pub connection_id: Option<ConnectionId>,
        /// Whether the bot has made a callback under its current connection.
        pub has_session: bool = sessions "(SELECT count(*) FROM sessions WHERE sessions.connection_id = bots.connection_id)",
        pub priority: i64,
        pub queue_timeout_ms: i64,
        pub pool: Option<String>,
        pub slot: Option<SlotName>,
        /// The bot's requirements for its slot, as the user sent them.
        pub requirements: Option<Map<String, Value>>,
        pub config: Map<String, Value>,
        pub metadata: Map<String, Value>,
        pub stop_asked_at: Option<Timestamp>,
        pub start_time: Option<Timestamp>,
        /// When the bot was first in the meeting.
        pub joined_at: Option<Timestamp>,
        pub end_time: Option<Timestamp>,
        pub created_at: Timestamp,
        pub updated_at: Timestamp,
    }
}

impl BotRow {
    /// The bot's status as shown. A reserved bot is shown as waiting for a slot or as being deployed.
    pub fn shown(&self) -> ShownStatus {
        ShownStatus::of(self.status, self.connection_id.is_some(), self.pool.is_some())
    }

    /// The bot's requirements for its slot.
    pub fn parsed_requirements(&self) -> Option<Requirements> {
        let asked = self.requirements.clone()?;
        // Requirements that cannot be read were never admitted.
        serde_json::from_value(Value::Object(asked)).ok()
    }

    /// The facts that the lifecycle needs.
    pub fn lifecycle_state(&self) -> LifecycleState {
        LifecycleState {
            status: self.status,
            stop_asked: self.stop_asked_at.is_some(),
            has_joined: self.joined_at.is_some(),
            exit_code: self.exit_code,
        }
    }
}

/// A change of status, with its reason. If the error or the exit code is `None`, the stored one stays.
#[derive(Clone, Debug)]
pub struct Change {
    pub to: Status,
    pub reason: Option<Reason>,
    /// Set when the bot ends.
    pub fault: Option<Fault>,
    pub error: Option<String>,
    pub exit_code: Option<i64>,
}

impl Change {
    /// A change of the status and nothing else.
    pub fn to(to: Status, reason: Option<Reason>) -> Self {
        Self { to, reason, fault: None, error: None, exit_code: None }
    }
}

/// Above all ids: "from the newest on", so that one index range serves a list with and without a cursor.
const NEWEST: BotId = BotId(Uuid::max());

/// Statuses of a bot that has ended.
pub(super) const ENDED: &str = words!(Status::Completed, Status::Failed);

// The status as shown, as in [`BotRow::shown`].
macro_rules! shown {
    () => {
        text!(
            "CASE WHEN status <> ",
            words!(Status::Reserved),
            " THEN status WHEN connection_id IS NOT NULL THEN ",
            words!(ShownStatus::Deploying),
            " WHEN pool IS NOT NULL THEN ",
            words!(ShownStatus::Queued),
            " ELSE status END"
        )
    };
}

pub(super) use shown;

const BOTS_BY_ID: &Sql = sql!(
    "bots.by_id",
    sqlite: concat!("SELECT ", bot_columns!(), " FROM bots WHERE id IN (SELECT value ->> 'id' FROM json_each($1))"),
    postgres: concat!(
        "SELECT ", bot_columns!(), " FROM bots WHERE id IN (SELECT id FROM json_to_recordset($1) AS input (id UUID))"
    ),
);

/// A page of a list of bots, as raw rows. Each bot is decoded only when it is read, because its documents may need many
/// times their text in memory.
#[derive(Debug)]
pub struct BotChunk(Vec<Row>);

impl BotChunk {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = Result<BotRow, StoreError>> + Send + '_ {
        self.0.iter().map(bot)
    }

    /// The bots that have not ended, with their statuses.
    pub fn open(&self) -> Result<Vec<(BotId, Status)>, StoreError> {
        let mut open = Vec::new();
        for row in &self.0 {
            let status = row.word::<Status>("status")?;
            if !status.is_ended() {
                open.push((BotId(row.id("id")?), status));
            }
        }
        Ok(open)
    }
}

fn counts(rows: &[Row]) -> Result<Vec<(ShownStatus, i64)>, StoreError> {
    rows.iter().map(|row| Ok((row.word("shown")?, row.int("count")?))).collect()
}

impl Store {
    pub async fn bot(&self, id: BotId) -> Result<Option<BotRow>, StoreError> {
        self.reader()
            .first(sql!("bots.read", "SELECT ", bot_columns!(), " FROM bots WHERE id = $1"), args![id])
            .await?
            .as_ref()
            .map(bot)
            .transpose()
    }

    pub async fn bots_by_id(&self, ids: &[BotId]) -> Result<Vec<BotRow>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Value> = ids.iter().map(|id| serde_json::json!({ "id": id })).collect();
        self.reader().all(BOTS_BY_ID, args![ids]).await?.iter().map(bot).collect()
    }

    /// These bots, newest first.
    pub async fn bot_chunk(&self, ids: &[BotId]) -> Result<BotChunk, StoreError> {
        if ids.is_empty() {
            return Ok(BotChunk(Vec::new()));
        }
        let ids: Vec<Value> = ids.iter().map(|id| serde_json::json!({ "id": id })).collect();
        let mut rows = self.reader().all(BOTS_BY_ID, args![ids]).await?;
        let mut unread = None;
        rows.sort_by_cached_key(|row| std::cmp::Reverse(row.id("id").map_err(|error| unread = Some(error)).ok()));
        unread.map_or(Ok(BotChunk(rows)), Err)
    }

    /// A user's bots, newest first. Only those older than `before`.
    pub async fn bots_of(&self, user: UserId, before: Option<BotId>, limit: i64) -> Result<BotChunk, StoreError> {
        let list = sql!(
            "bots.list_of_user",
            "SELECT ",
            bot_columns!(),
            " FROM bots WHERE user_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3"
        );
        self.reader().all(list, args![user, before.unwrap_or(NEWEST), limit]).await.map(BotChunk)
    }

    /// The bots of all users, newest first. Only those older than `before`.
    pub async fn bots(&self, before: Option<BotId>, limit: i64) -> Result<BotChunk, StoreError> {
        let list = sql!("bots.list", "SELECT ", bot_columns!(), " FROM bots WHERE id < $1 ORDER BY id DESC LIMIT $2");
        self.reader().all(list, args![before.unwrap_or(NEWEST), limit]).await.map(BotChunk)
    }

    /// The bots of a user that have not ended, newest first. Only those older than `before`.
    pub async fn open_bots_of(&self, user: UserId, before: Option<BotId>, limit: i64) -> Result<BotChunk, StoreError> {
        self.reader()
            .all(
                sql!(
                    "bots.open_of_user",
                    "SELECT ",
                    bot_columns!(),
                    " FROM bots
                      WHERE id IN (SELECT bot_id FROM open_bots WHERE open_bots.user_id = $1 AND bot_id < $2
                                    ORDER BY bot_id DESC LIMIT $3)
                      ORDER BY id DESC"
                ),
                args![user, before.unwrap_or(NEWEST), limit],
            )
            .await
            .map(BotChunk)
    }

    /// How many of these bots have each status.
    pub async fn count_by_status(
        &self,
        bots: impl IntoIterator<Item = BotId>,
    ) -> Result<Vec<(ShownStatus, i64)>, StoreError> {
        let ids: Vec<Value> = bots.into_iter().map(|id| serde_json::json!({ "id": id })).collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let count = sql!(
            "bots.count",
            sqlite: text!("SELECT ", shown!(), " AS shown, count(*) AS count FROM bots
                            WHERE id IN (SELECT value ->> 'id' FROM json_each($1)) GROUP BY 1"),
            postgres: text!("SELECT ", shown!(), " AS shown, count(*) AS count FROM bots
                              WHERE id IN (SELECT id FROM json_to_recordset($1) AS input (id UUID)) GROUP BY 1"),
        );
        counts(&self.reader().all(count, args![ids]).await?)
    }

    /// The bots that have not ended.
    pub async fn open_bot_ids(&self) -> Result<Vec<BotId>, StoreError> {
        let rows = self.reader().all(sql!("open_bots.ids", "SELECT bot_id FROM open_bots"), vec![]).await?;
        rows.iter().map(|row| row.id("bot_id").map(BotId)).collect()
    }

    /// How many bots have each open status. Bots that have ended are not counted, because their number only grows.
    pub async fn open_bots_by_status(&self) -> Result<Vec<(ShownStatus, i64)>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql!(
                    "bots.count_open",
                    "SELECT ",
                    shown!(),
                    " AS shown, count(*) AS count FROM open_bots JOIN bots ON bots.id = open_bots.bot_id GROUP BY 1"
                ),
                vec![],
            )
            .await?;
        counts(&rows)
    }
}

impl Tx {
    pub async fn bot(&mut self, id: BotId) -> Result<Option<BotRow>, StoreError> {
        self.first(sql!("bots.read", "SELECT ", bot_columns!(), " FROM bots WHERE id = $1"), args![id])
            .await?
            .as_ref()
            .map(bot)
            .transpose()
    }

    /// Reads the bot and locks its row until the transaction ends, so that changes of one bot are decided one after the
    /// other.
    pub async fn hold_bot(&mut self, id: BotId) -> Result<Option<BotRow>, StoreError> {
        self.first(sql_locking!("bots.hold", "SELECT ", bot_columns!(), " FROM bots WHERE id = $1"), args![id])
            .await?
            .as_ref()
            .map(bot)
            .transpose()
    }

    /// Removes the bot from the open bots, because it has ended.
    pub async fn close_bot(&mut self, id: BotId, user: UserId) -> Result<(), StoreError> {
        let close = sql!("open_bots.delete", "DELETE FROM open_bots WHERE user_id = $1 AND bot_id = $2");
        self.run(close, args![user, id]).await
    }

    /// Changes the status of a locked bot. `start_time` is its first start, `end_time` its end.
    pub async fn move_bot(&mut self, id: BotId, change: &Change, now: Timestamp) -> Result<(), StoreError> {
        let started = (change.to == Status::Starting).then_some(now);
        let ended = change.to.is_ended().then_some(now);
        let joined = (change.to == Status::Active).then_some(now);
        self.run(
            sql!(
                "bots.move",
                "UPDATE bots SET status = $2, status_since = $3, reason = $4, error = coalesce($5, error),
                        exit_code = coalesce($6, exit_code), start_time = coalesce(start_time, $7),
                        end_time = $8, updated_at = $3, fault = $9, joined_at = coalesce(joined_at, $10)
                  WHERE id = $1"
            ),
            args![
                id,
                change.to.as_str(),
                now,
                change.reason.as_ref().map(Reason::as_str),
                change.error.as_deref(),
                change.exit_code,
                started,
                ended,
                change.fault.map(Fault::as_str),
                joined
            ],
        )
        .await
    }

    /// Records that the user wants the bot to leave, whatever its status is.
    pub async fn note_stop_asked(&mut self, id: BotId, now: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!("bots.stop_asked", "UPDATE bots SET stop_asked_at = $2, updated_at = $2 WHERE id = $1"),
            args![id, now],
        )
        .await
    }

    /// Gives a locked bot a new connection without a slot. From now on every older connection is fenced.
    pub async fn connect_bot(&mut self, id: BotId, to: ConnectionId, now: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!(
                "bots.connect",
                "UPDATE bots SET connection_id = $2, awaited_since = $3, slot = NULL, updated_at = $3,
                        status_since = CASE WHEN status = 'reserved' AND connection_id IS NULL
                                            THEN $3 ELSE status_since END
                  WHERE id = $1"
            ),
            args![id, to, now],
        )
        .await
    }

    pub async fn set_container(&mut self, id: BotId, container: &str, now: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!("bots.container", "UPDATE bots SET container_id = $2, updated_at = $3 WHERE id = $1"),
            args![id, container, now],
        )
        .await
    }

    pub async fn configure_bot(
        &mut self,
        id: BotId,
        config: &Map<String, Value>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.run(
            sql!("bots.configure", "UPDATE bots SET config = $2, updated_at = $3 WHERE id = $1"),
            args![id, config, now],
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_know_every_status_that_is_an_end() {
        for status in Status::ALL {
            assert_eq!(ENDED.contains(&format!("'{status}'")), status.is_ended(), "{status}");
        }
    }
}
