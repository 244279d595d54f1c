//! Counts the requests to a provider, from all processes together. Times use the database's clock, in milliseconds.

use std::time::Duration;

use super::sql::{args, sql};
use super::{Run, Store, StoreError};

/// When a request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Now, and it is counted.
    Now,
    /// Perhaps after this time: the limit is reached.
    In(Duration),
    /// Perhaps after this time: the provider has asked for a pause.
    Delayed(Duration),
}

/// No hold lasts longer, whatever the provider answered and even if the database's clock changes meanwhile.
pub const LONGEST_HOLD: Duration = Duration::from_mins(10);

impl Store {
    /// Takes one request of a budget, unless `most` requests were made within `time`.
    pub async fn take_turn(&self, budget: &str, most: u32, time: Duration) -> Result<Turn, StoreError> {
        let time = whole(time);
        let mut tx = self.begin().await?;
        // Concurrent callers wait here.
        let row = tx
            .first(
                sql!(
                    "budgets.hold",
                    sqlite: "INSERT INTO budgets (name, blocked_until) VALUES ($1, 0)
                             ON CONFLICT (name) DO UPDATE SET name = excluded.name
                             RETURNING blocked_until, CAST(unixepoch('subsec') * 1000 AS INTEGER) AS now",
                    postgres: "INSERT INTO budgets (name, blocked_until) VALUES ($1, 0)
                               ON CONFLICT (name) DO UPDATE SET name = excluded.name
                               RETURNING blocked_until,
                                   CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT) AS now",
                ),
                args![budget],
            )
            .await?
            .ok_or_else(|| StoreError::internal("budgets.hold", "the statement returned no row"))?;
        let (now, blocked_until) = (row.int("now")?, row.int("blocked_until")?);
        if blocked_until > now {
            let until = blocked_until.min(now.saturating_add(whole(LONGEST_HOLD)));
            if until < blocked_until {
                // The clock was set back. Callers must not wait until it reaches the old time.
                tx.run(
                    sql!("budgets.hold_less", "UPDATE budgets SET blocked_until = $2 WHERE name = $1"),
                    args![budget, until],
                )
                .await?;
            }
            tx.commit().await?;
            return Ok(Turn::Delayed(milliseconds(until - now)));
        }
        tx.run(
            sql!("budgets.forget", "DELETE FROM budget_requests WHERE budget = $1 AND at <= $2"),
            args![budget, now - time],
        )
        .await?;
        // Requests from before the clock was set back have unknown times. They count as made now. So there are never
        // too many requests, and no caller waits longer than the budget's period.
        tx.run(
            sql!("budgets.set_back", "UPDATE budget_requests SET at = $2 WHERE budget = $1 AND at > $2"),
            args![budget, now],
        )
        .await?;
        // The request that must expire before there is room.
        let last = tx
            .first(
                sql!(
                    "budgets.full",
                    "SELECT at FROM budget_requests WHERE budget = $1 ORDER BY at DESC LIMIT 1 OFFSET $2"
                ),
                args![budget, i64::from(most.max(1)) - 1],
            )
            .await?;
        let turn = match last {
            Some(row) => Turn::In(milliseconds(row.int("at")? + time - now)),
            None => {
                tx.run(
                    sql!("budgets.take", "INSERT INTO budget_requests (budget, at) VALUES ($1, $2)"),
                    args![budget, now],
                )
                .await?;
                Turn::Now
            }
        };
        tx.commit().await?;
        Ok(turn)
    }

    /// How many requests of a budget were made within `time`.
    pub async fn requests_made(&self, budget: &str, time: Duration) -> Result<i64, StoreError> {
        let row = self
            .reader()
            .first(
                sql!(
                    "budgets.made",
                    sqlite: "SELECT count(*) AS made FROM budget_requests
                              WHERE budget = $1 AND at > CAST(unixepoch('subsec') * 1000 AS INTEGER) - $2",
                    postgres: "SELECT count(*) AS made FROM budget_requests
                                WHERE budget = $1
                                  AND at > CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT) - $2",
                ),
                args![budget, whole(time)],
            )
            .await?;
        row.map_or(Ok(0), |row| row.int("made"))
    }

    /// The budgets whose requests are stopped now, and for how long still.
    pub async fn stopped_budgets(&self) -> Result<Vec<(String, Duration)>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "budgets.stopped",
                    sqlite: "SELECT name, blocked_until - CAST(unixepoch('subsec') * 1000 AS INTEGER) AS left_ms
                               FROM budgets WHERE blocked_until > CAST(unixepoch('subsec') * 1000 AS INTEGER)
                              ORDER BY name LIMIT 100",
                    postgres: "SELECT name,
                                      blocked_until - CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT) AS left_ms
                                 FROM budgets
                                WHERE blocked_until > CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)
                                ORDER BY name LIMIT 100",
                ),
                vec![],
            )
            .await?
            .iter()
            .map(|row| Ok((row.text("name")?, milliseconds(row.int("left_ms")?).min(LONGEST_HOLD))))
            .collect()
    }

    /// Stops all requests of a budget for this time.
    pub async fn hold_back(&self, budget: &str, time: Duration) -> Result<(), StoreError> {
        let time = whole(time);
        let mut tx = self.begin().await?;
        tx.run(
            sql!(
                "budgets.hold_back",
                sqlite: "INSERT INTO budgets (name, blocked_until)
                         VALUES ($1, CAST(unixepoch('subsec') * 1000 AS INTEGER) + $2)
                         ON CONFLICT (name) DO UPDATE SET blocked_until = max(budgets.blocked_until, excluded.blocked_until)",
                postgres: "INSERT INTO budgets (name, blocked_until)
                           VALUES ($1, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT) + $2)
                           ON CONFLICT (name) DO UPDATE
                               SET blocked_until = greatest(budgets.blocked_until, excluded.blocked_until)",
            ),
            args![budget, time],
        )
        .await?;
        tx.commit().await
    }
}

fn whole(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// At least one millisecond, so that the caller does not ask again at once.
fn milliseconds(count: i64) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0).max(1))
}
