//! How many bots of each user have ended. The counts are complete up to a stored position in the events. A reader adds the
//! events after it, and the keeper `stats` moves it. So an end of a bot writes nothing more, and the numbers are exact.

use domain::{EventId, ShownStatus, UserId};

use super::bots::ENDED;
use super::sql::{args, sql};
use super::{Run, Store, StoreError, Tx};

/// How many ids of events one transaction adds.
const EVENTS_AT_ONCE: i64 = 10_000;

impl Store {
    /// How many bots of a user have ended with each status, since the user was created. Bots that were deleted since
    /// are included.
    pub async fn ended_counts(&self, user: UserId) -> Result<Vec<(ShownStatus, i64)>, StoreError> {
        let counts = sql!(
            "ended_counts.of_user",
            "SELECT status, CAST(sum(count) AS BIGINT) AS count
               FROM (SELECT status, count FROM ended_counts WHERE user_id = $1
                     UNION ALL
                     SELECT to_status, 1 FROM events
                      WHERE id > (SELECT last_event FROM ended_counts_position)
                        AND user_id = $1 AND to_status IN (",
            ENDED,
            ")) AS parts
              GROUP BY status"
        );
        let rows = self.reader().all(counts, args![user]).await?;
        rows.iter().map(|row| Ok((row.word("status")?, row.int("count")?))).collect()
    }

    /// Adds the ends among the next events, at most up to one. Returns the new position.
    pub async fn add_ended_counts(&self, up_to: EventId) -> Result<EventId, StoreError> {
        let mut tx = self.begin().await?;
        let position = tx.hold_ended_counts().await?;
        let end = position.saturating_add(EVENTS_AT_ONCE).min(up_to.0);
        if end <= position {
            return Ok(EventId(position));
        }
        let add = sql!(
            "ended_counts.add",
            "INSERT INTO ended_counts (user_id, status, count)
             SELECT user_id, to_status, count(*) FROM events
              WHERE id > $1 AND id <= $2 AND to_status IN (",
            ENDED,
            ") GROUP BY user_id, to_status ORDER BY user_id, to_status
             ON CONFLICT (user_id, status) DO UPDATE SET count = ended_counts.count + excluded.count"
        );
        tx.run(add, args![position, end]).await?;
        let moved = sql!("ended_counts.move", "UPDATE ended_counts_position SET last_event = $1");
        tx.run(moved, args![end]).await?;
        tx.commit().await?;
        Ok(EventId(end))
    }
}

impl Tx {
    /// Only one transaction at a time adds counts.
    async fn hold_ended_counts(&mut self) -> Result<i64, StoreError> {
        let hold = sql!(
            "ended_counts.hold",
            sqlite: "SELECT last_event FROM ended_counts_position",
            postgres: "SELECT last_event FROM ended_counts_position FOR UPDATE",
        );
        let row = self.first(hold, vec![]).await?;
        row.ok_or_else(|| StoreError::internal("ended_counts.hold", "the table has no row"))?.int("last_event")
    }
}
