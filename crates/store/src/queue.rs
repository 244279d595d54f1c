//! The queue of bots that wait for a slot. Each platform has one queue, ordered by priority and then by arrival.

use domain::{BotId, Platform};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::record::record;
use super::sql::{args, sql, sql_over};
use super::{Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct QueueRow, columns queue_columns, read waiter {
        pub bot_id: BotId,
        pub pool: String,
        pub position: i64 = position "row_number() OVER (PARTITION BY platform ORDER BY priority, turn, arrival)",
        pub priority: i64,
        pub queued_at: Timestamp,
        pub timeout_at: Timestamp,
    }
}

/// A stable position of a bot in the queue, which does not change when bots before it leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    pub platform: Platform,
    pub priority: i64,
    pub turn: i64,
    pub arrival: i64,
}

impl Store {
    /// Every queued bot, with its exact position in the queue of its platform.
    pub async fn queue(&self) -> Result<Vec<QueueRow>, StoreError> {
        self.reader()
            .all(sql!("queue.list", "SELECT ", queue_columns!(), " FROM queue ORDER BY platform, position"), vec![])
            .await?
            .iter()
            .map(waiter)
            .collect()
    }

    /// A page of queued bots after the given one, by platform and in the order of service.
    pub async fn queue_after(
        &self,
        after: Option<&QueuePosition>,
        limit: i64,
    ) -> Result<Vec<(QueuePosition, QueueRow)>, StoreError> {
        let platform = after.map_or("", |after| after.platform.as_str());
        let first = (i64::MIN, i64::MIN, i64::MIN);
        let (priority, turn, arrival) = after.map_or(first, |after| (after.priority, after.turn, after.arrival));
        self.reader()
            .all(
                sql!(
                    "queue.page",
                    "SELECT * FROM (SELECT platform, turn, arrival, ",
                    queue_columns!(),
                    " FROM queue) AS waiting
                      WHERE (platform, priority, turn, arrival) > ($1, $2, $3, $4)
                      ORDER BY platform, priority, turn, arrival LIMIT $5"
                ),
                args![platform, priority, turn, arrival, limit],
            )
            .await?
            .iter()
            .map(|row| {
                let (priority, turn, arrival) = (row.int("priority")?, row.int("turn")?, row.int("arrival")?);
                Ok((QueuePosition { platform: row.word("platform")?, priority, turn, arrival }, waiter(row)?))
            })
            .collect()
    }

    /// A bot's place in the queue.
    pub async fn queue_entry(&self, bot: BotId) -> Result<Option<QueueRow>, StoreError> {
        self.reader()
            .first(
                sql!(
                    "queue.entry",
                    "SELECT bot_id, pool, priority, queued_at, timeout_at,
                            (SELECT count(*) FROM queue AS earlier
                              WHERE earlier.platform = queue.platform
                                AND (earlier.priority, earlier.turn, earlier.arrival)
                                    <= (queue.priority, queue.turn, queue.arrival)) AS position
                       FROM queue WHERE bot_id = $1"
                ),
                args![bot],
            )
            .await?
            .as_ref()
            .map(waiter)
            .transpose()
    }

    /// The bots that have waited too long.
    pub async fn overdue_waiters(&self, now: Timestamp) -> Result<Vec<BotId>, StoreError> {
        self.reader()
            .all(
                sql!("queue.overdue", "SELECT bot_id FROM queue WHERE timeout_at <= $1 ORDER BY timeout_at LIMIT 500"),
                args![now],
            )
            .await?
            .iter()
            .map(|row| row.id("bot_id").map(BotId))
            .collect()
    }

    /// When the next bot in any queue will have waited too long.
    pub async fn next_timeout(&self) -> Result<Option<Timestamp>, StoreError> {
        let row =
            self.reader().first(sql!("queue.next_timeout", "SELECT min(timeout_at) AS at FROM queue"), vec![]).await?;
        row.map_or(Ok(None), |row| row.maybe_time("at"))
    }
}

impl Tx {
    /// Removes bots from the queue, and returns those that were in it.
    pub async fn leave_queue(&mut self, bots: &[BotId]) -> Result<Vec<BotId>, StoreError> {
        if bots.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Value> = bots.iter().map(|id| json!({ "id": id })).collect();
        self.all(
            sql_over!(
                "queue.leave",
                "DELETE FROM queue WHERE bot_id IN (SELECT id FROM",
                (id "UUID"),
                ") RETURNING bot_id"
            ),
            args![ids],
        )
        .await?
        .iter()
        .map(|row| row.id("bot_id").map(BotId))
        .collect()
    }
}
