//! The queue as it is looked at when something is free: what those in line want, who is next of those who want the same, and
//! those who had a slot and come back.

use std::time::Duration;

use domain::{BotId, Platform, Requirements, SlotName, UserId};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::queue::key;
use super::sql::{Row, Sql, args, rows, sql};
use super::{NewWaiter, Run, StoreError, Tx, TxInner};

/// So many different wants are looked at in one line, and those of so many who are first in it.
const MOST_WANTS: i64 = 200;

/// A bot in line.
#[derive(Clone, Debug)]
pub struct Waiter {
    pub bot_id: BotId,
    pub user_id: UserId,
    pub priority: i64,
    pub arrival: i64,
    pub timeout_at: Timestamp,
    /// Of one that came back because there was no room for it: until when it is passed over there.
    pub not_before: Option<Timestamp>,
    pub wants: Option<Requirements>,
}

/// A bot that had a slot, at which there was no room for its requirements.
#[derive(Clone, Debug)]
pub struct Unplaced {
    pub bot_id: BotId,
    pub user_id: UserId,
    pub platform: Platform,
    /// How often this has happened to it.
    pub returns: i64,
    pool: String,
    priority: i64,
    wants: Option<Requirements>,
    /// Its place in line, if it ever had one.
    arrival: Option<i64>,
    until: Timestamp,
}

fn wants(row: &Row) -> Result<Option<Requirements>, StoreError> {
    let text = row.text("wants")?;
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&text).map(Some).map_err(|_| row.inconsistent("wants", &text))
}

fn waiter(row: &Row) -> Result<Waiter, StoreError> {
    Ok(Waiter {
        bot_id: BotId(row.id("bot_id")?),
        user_id: UserId(row.id("user_id")?),
        priority: row.int("priority")?,
        arrival: row.int("arrival")?,
        timeout_at: row.time("timeout_at")?,
        not_before: row.maybe_time("not_before")?,
        wants: wants(row)?,
    })
}

macro_rules! next_waiters {
    ($wants:literal) => {
        concat!(
            "SELECT q.bot_id, b.user_id, q.priority, q.arrival, q.timeout_at, q.not_before, q.wants
               FROM queue q JOIN bots b ON b.id = q.bot_id
              WHERE q.platform = $1 AND q.wants = ",
            $wants,
            " AND b.status = 'reserved' AND b.connection_id IS NULL
              ORDER BY q.priority, q.arrival"
        )
    };
}

/// On PostgreSQL for all wants at once, and locked: whoever is being stopped at this moment is waited for.
const NEXT: &Sql = sql!(
    "queue.next",
    sqlite: concat!(next_waiters!("$2"), " LIMIT $3"),
    postgres: concat!(
        "SELECT next.* FROM", rows!(postgres "$2" (w "TEXT", n "BIGINT")), "CROSS JOIN LATERAL (",
        next_waiters!("r.w COLLATE \"C\""), " LIMIT r.n FOR NO KEY UPDATE OF b) AS next"
    ),
);

impl Tx {
    /// What those in the line of a platform want, and how many want the same, counted no further than `most`.
    pub async fn wants_in_line(
        &mut self,
        platform: Platform,
        most: i64,
    ) -> Result<Vec<(Option<Requirements>, i64)>, StoreError> {
        // From one want to the next along the index, however many want the same.
        let found = self
            .all(
                sql!(
                    "queue.wants",
                    "WITH RECURSIVE w AS (
                         SELECT (SELECT min(wants) FROM queue WHERE platform = $1) AS wants
                         UNION ALL
                         SELECT (SELECT min(q.wants) FROM queue q WHERE q.platform = $1 AND q.wants > w.wants)
                           FROM w WHERE w.wants IS NOT NULL
                     )
                     SELECT d.wants, (SELECT count(*) FROM (SELECT 1 FROM queue q WHERE q.platform = $1
                                                               AND q.wants = d.wants LIMIT $2) AS those) AS n
                       FROM (SELECT wants FROM (SELECT wants FROM w WHERE wants IS NOT NULL LIMIT $3) AS known
                             UNION
                             SELECT wants FROM (SELECT wants FROM queue WHERE platform = $1
                                                 ORDER BY priority, arrival LIMIT $3) AS first) AS d"
                ),
                args![platform.as_str(), most, MOST_WANTS],
            )
            .await?;
        found.iter().map(|row| Ok((wants(row)?, row.int("n")?))).collect()
    }

    /// The next in the line of a platform, of those who want each of these, no more than so many. Whoever is being stopped
    /// at this moment is waited for, and is no longer among them then.
    pub async fn next_waiters(
        &mut self,
        platform: Platform,
        of: &[(Option<Requirements>, i64)],
    ) -> Result<Vec<Waiter>, StoreError> {
        if of.is_empty() {
            return Ok(Vec::new());
        }
        let mut waiters = Vec::new();
        if matches!(self.inner, TxInner::Postgres(_)) {
            let of: Vec<Value> = of.iter().map(|(wants, n)| json!({"w": key(wants.as_ref()), "n": n})).collect();
            for row in &self.all(NEXT, args![platform.as_str(), of]).await? {
                waiters.push(waiter(row)?);
            }
        } else {
            for (wants, n) in of {
                for row in &self.all(NEXT, args![platform.as_str(), key(wants.as_ref()), *n]).await? {
                    waiters.push(waiter(row)?);
                }
            }
        }
        waiters.sort_by_key(|waiter| (waiter.priority, waiter.arrival));
        Ok(waiters)
    }

    /// Takes its slot and connection from a bot that is reserved and of which nothing was heard, if this holder still has its
    /// deployment. `None` when it is otherwise by now.
    pub async fn unplace_unheard(
        &mut self,
        bot: BotId,
        slot: &SlotName,
        holder: Uuid,
        now: Timestamp,
    ) -> Result<Option<Unplaced>, StoreError> {
        let held = sql!(
            "deployments.unplace",
            "DELETE FROM deployments WHERE slot = $1 AND bot_id = $2 AND holder = $3 RETURNING slot"
        );
        if self.first(held, args![slot, bot, holder]).await?.is_none() {
            return Ok(None);
        }
        let row = self
            .first(
                sql!(
                    "bots.unplace",
                    "UPDATE bots SET slot = NULL, connection_id = NULL, awaited_since = NULL,
                            line_returns = line_returns + 1, updated_at = $3
                      WHERE id = $1 AND slot = $2 AND status = 'reserved' AND stop_asked_at IS NULL AND pool IS NOT NULL
                        AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.connection_id = bots.connection_id)
                     RETURNING user_id, platform, pool, priority, requirements, queue_timeout_ms, line_arrival, line_until,
                               line_returns"
                ),
                args![bot, slot, now],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        let patience = Duration::from_millis(row.int("queue_timeout_ms")?.unsigned_abs());
        let until = row.maybe_time("line_until")?.or_else(|| now.checked_add(patience).ok());
        Ok(Some(Unplaced {
            bot_id: bot,
            user_id: UserId(row.id("user_id")?),
            platform: row.word("platform")?,
            returns: row.int("line_returns")?,
            pool: row.text("pool")?,
            priority: row.int("priority")?,
            wants: row.maybe_json("requirements")?,
            arrival: row.maybe_int("line_arrival")?,
            until: until.unwrap_or(Timestamp::MAX),
        }))
    }

    /// Puts a bot back in line, at the place that it had and under the patience that it had. It is passed over until
    /// `not_before`.
    pub async fn return_to_line(
        &mut self,
        bot: &Unplaced,
        now: Timestamp,
        not_before: Timestamp,
    ) -> Result<(), StoreError> {
        let waiter = NewWaiter {
            bot_id: bot.bot_id,
            platform: bot.platform,
            pool: bot.pool.clone(),
            priority: bot.priority,
            wants: bot.wants.clone(),
            timeout_at: bot.until,
        };
        self.enqueue(&[waiter], now).await?;
        self.run(
            sql!("queue.return", "UPDATE queue SET not_before = $2, arrival = coalesce($3, arrival) WHERE bot_id = $1"),
            args![bot.bot_id, not_before, bot.arrival],
        )
        .await
    }
}
