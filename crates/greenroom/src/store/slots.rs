//! Slots as stored. Only placement gives them out and takes them back, in transactions of which there is one at a time:
//! what it reads here needs no further lock.

use domain::{Attributes, BotId, SlotName, SlotStatus};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::sql::{Row, Sql, args, rows, sql, sql_over};
use super::{Run, Store, StoreError, Tx, TxInner};

#[derive(Clone, Debug, PartialEq)]
pub struct SlotRow {
    pub name: SlotName,
    pub pool: String,
    pub number: i64,
    pub status: SlotStatus,
    pub status_since: Timestamp,
    pub bot_id: Option<BotId>,
    /// Tells it from an earlier slot of the same name.
    pub incarnation: Uuid,
    /// Counts its starts.
    pub generation: i64,
    /// How many bots its agent has had since the start.
    pub token_number: i64,
    /// The agent process that waits, or has the assignment, by the name that it has chosen.
    pub agent: Option<String>,
    pub bots_since_fresh: i64,
    pub provider_ref: Option<String>,
    pub description: String,
    pub last_used_at: Option<Timestamp>,
    pub error_message: Option<String>,
    pub recovery_attempts: i64,
    pub created_at: Timestamp,
    pub attributes: Attributes,
    /// Until when it may be given out while it is idle.
    pub threshold: Option<Timestamp>,
}

impl SlotRow {
    /// Ends every token of the slot that was given out: what runs in it is ended, or was never begun.
    pub fn end_tokens(&mut self) {
        self.generation += 1;
        self.token_number = 0;
        self.agent = None;
    }
}

/// Idle slots that are looked for: of a pool, all alike, no more than so many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    pub pool: String,
    pub attributes: Attributes,
    pub count: i64,
}

/// As one array.
pub(super) fn pick_array(picks: &[Pick]) -> Vec<Value> {
    picks.iter().map(|pick| json!({"p": pick.pool, "a": pick.attributes.to_string(), "n": pick.count})).collect()
}

/// The slots that are picked, by `$1` and `$2`, which is now. Left to itself PostgreSQL may begin with the slots; so it
/// goes pick by pick, each a few steps along the index of idle slots.
macro_rules! picked {
    () => {
        concat!(
            rows!(postgres "$1" (p "TEXT", a "TEXT", n "BIGINT")),
            "CROSS JOIN LATERAL (SELECT * FROM slots
                                  WHERE slots.pool = r.p AND slots.attributes = r.a AND slots.status = 'idle'
                                    AND (slots.threshold IS NULL OR slots.threshold > $2)
                                  ORDER BY slots.last_used_at NULLS FIRST, slots.number LIMIT r.n) AS slots"
        )
    };
}
pub(super) use picked;

const PICK: &Sql = sql!(
    "slots.pick",
    sqlite: concat!(
        "SELECT ", slot_columns!(), " FROM slots
          WHERE pool = $1 AND attributes = $2 AND status = 'idle' AND (threshold IS NULL OR threshold > $3)
          ORDER BY last_used_at NULLS FIRST, number LIMIT $4"
    ),
    postgres: concat!("SELECT ", slot_columns!(), " FROM", picked!()),
);

/// Under names of their own where a row of another table has the same, so that slots can be read together with others.
macro_rules! slot_columns {
    () => {
        "name AS slot_name, pool AS slot_pool, number, status AS slot_status, status_since AS slot_since, bot_id, \
         incarnation, generation, token_number, agent, bots_since_fresh, provider_ref, description, last_used_at, error_message, recovery_attempts, \
         created_at AS slot_created_at, attributes, threshold"
    };
}
pub(super) use slot_columns;

macro_rules! sql_of_slots {
    ($name:literal, $after:literal) => {
        sql!($name, "SELECT ", slot_columns!(), " FROM slots ", $after)
    };
}

pub(super) fn slot(row: &Row) -> Result<SlotRow, StoreError> {
    Ok(SlotRow {
        name: SlotName::stored(row.text("slot_name")?),
        pool: row.text("slot_pool")?,
        number: row.int("number")?,
        status: row.word("slot_status")?,
        status_since: row.time("slot_since")?,
        bot_id: row.maybe_id("bot_id")?.map(BotId),
        incarnation: row.id("incarnation")?,
        generation: row.int("generation")?,
        token_number: row.int("token_number")?,
        agent: row.maybe_text("agent")?,
        bots_since_fresh: row.int("bots_since_fresh")?,
        provider_ref: row.maybe_text("provider_ref")?,
        description: row.text("description")?,
        last_used_at: row.maybe_time("last_used_at")?,
        error_message: row.maybe_text("error_message")?,
        recovery_attempts: row.int("recovery_attempts")?,
        created_at: row.time("slot_created_at")?,
        attributes: row.word("attributes")?,
        threshold: row.maybe_time("threshold")?,
    })
}

fn slots(rows: &[Row]) -> Result<Vec<SlotRow>, StoreError> {
    rows.iter().map(slot).collect()
}

const BY_NAME: &Sql = sql!(
    "slots.by_name",
    sqlite: concat!("SELECT ", slot_columns!(), " FROM slots WHERE name IN (SELECT value FROM json_each($1))"),
    postgres: concat!(
        "SELECT ", slot_columns!(), " FROM slots WHERE name = ANY (ARRAY(SELECT json_array_elements_text($1)))"
    ),
);

fn name_array(names: &[SlotName]) -> Vec<Value> {
    names.iter().map(|name| json!(name.as_str())).collect()
}

// Where a condition names all statuses of the partial index and then one of them, it is so that both databases see that
// the index answers.

impl Store {
    pub async fn slot(&self, name: &SlotName) -> Result<Option<SlotRow>, StoreError> {
        self.reader()
            .first(sql_of_slots!("slots.read", "WHERE name = $1"), args![name])
            .await?
            .as_ref()
            .map(slot)
            .transpose()
    }

    /// Slots by their names.
    pub async fn slots_by_name(&self, names: &[SlotName]) -> Result<Vec<SlotRow>, StoreError> {
        slots(&self.reader().all(BY_NAME, args![name_array(names)]).await?)
    }

    /// All slots of a pool.
    pub async fn slots_of_pool(&self, pool: &str) -> Result<Vec<SlotRow>, StoreError> {
        let rows =
            self.reader().all(sql_of_slots!("slots.of_pool", "WHERE pool = $1 ORDER BY number"), args![pool]).await?;
        slots(&rows)
    }

    pub async fn slots(&self, pool: Option<&str>, status: Option<SlotStatus>) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.list",
                    "WHERE ($1 IS NULL OR pool = $1) AND ($2 IS NULL OR status = $2) ORDER BY pool, number"
                ),
                args![pool, status.map(SlotStatus::as_str)],
            )
            .await?;
        slots(&rows)
    }

    /// Some slots, by pool and number: those after one.
    pub async fn slots_after(
        &self,
        pool: Option<&str>,
        status: Option<SlotStatus>,
        after: Option<(&str, i64)>,
        limit: i64,
    ) -> Result<Vec<SlotRow>, StoreError> {
        let (after_pool, after_number) = after.unwrap_or(("", i64::MIN));
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.page",
                    "WHERE ($1 IS NULL OR pool = $1) AND ($2 IS NULL OR status = $2) AND (pool, number) > ($3, $4)
                     ORDER BY pool, number LIMIT $5"
                ),
                args![pool, status.map(SlotStatus::as_str), after_pool, after_number, limit],
            )
            .await?;
        slots(&rows)
    }

    /// How many slots of each pool are in each status.
    pub async fn slots_by_status(&self) -> Result<Vec<(String, SlotStatus, i64)>, StoreError> {
        self.reader()
            .all(sql!("slots.count", "SELECT pool, status, count(*) AS n FROM slots GROUP BY pool, status"), vec![])
            .await?
            .iter()
            .map(|row| Ok((row.text("pool")?, row.word("status")?, row.int("n")?)))
            .collect()
    }

    /// The slot that a bot has.
    pub async fn slot_of(&self, bot: BotId) -> Result<Option<SlotRow>, StoreError> {
        self.reader()
            .first(sql_of_slots!("slots.of_bot", "WHERE bot_id = $1"), args![bot])
            .await?
            .as_ref()
            .map(slot)
            .transpose()
    }

    /// Slots that take no more bots, have none, and are not being started; of those that could not be deleted, the ones
    /// for which that was before `since`.
    pub async fn drained_slots(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.drained",
                    "WHERE status IN ('creating', 'error', 'draining') AND status = 'draining' AND bot_id IS NULL
                       AND (error_message IS NULL OR status_since <= $1)
                       AND NOT EXISTS (SELECT 1 FROM deployments WHERE deployments.slot = slots.name)"
                ),
                args![since],
            )
            .await?;
        slots(&rows)
    }

    /// Slots whose bot has been at an end, or elsewhere, since `since` or longer: they wait to be cleared.
    pub async fn slots_to_clear(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.to_clear",
                    "WHERE status IN ('creating', 'busy', 'draining') AND bot_id IS NOT NULL AND EXISTS
                         (SELECT 1 FROM bots WHERE bots.id = slots.bot_id AND bots.updated_at <= $1
                             AND (bots.status IN ('completed', 'failed') OR bots.slot IS DISTINCT FROM slots.name))"
                ),
                args![since],
            )
            .await?;
        slots(&rows)
    }

    /// Slots whose bot was given to an agent that waits, and has not taken it since `since`: nobody may be there any more
    /// (that it took it is written as a sign of life). Only until it has been started once: from then on the bot has its time to be heard. And slots whose bot
    /// nobody is about to start, although it was never started.
    pub async fn silent_slots(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.silent",
                    "WHERE name IN
                         (SELECT b.slot FROM bots b
                           WHERE b.status IN
                               ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active', 'stopping')
                             AND b.status = 'reserved' AND b.slot IS NOT NULL AND b.updated_at <= $1)
                       AND status IN ('creating', 'busy', 'draining') AND status_since <= $1
                       AND EXISTS (SELECT 1 FROM bots WHERE bots.id = slots.bot_id AND bots.slot = slots.name
                                      AND (bots.awaited_since IS NULL OR bots.awaited_since <= slots.last_used_at
                                           AND EXISTS (SELECT 1 FROM pools
                                                        WHERE name = slots.pool AND standby = 'running')
                                           AND NOT EXISTS (SELECT 1 FROM heartbeats
                                                            WHERE connection_id = bots.connection_id)))
                       AND NOT EXISTS (SELECT 1 FROM deployments WHERE deployments.slot = slots.name)"
                ),
                args![since],
            )
            .await?;
        slots(&rows)
    }

    /// Slots that were started for nobody, and in which no agent has begun to wait since `since`.
    pub async fn deaf_slots(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.deaf",
                    "WHERE status IN ('creating', 'error', 'draining') AND status = 'creating' AND bot_id IS NULL
                       AND status_since <= $1
                       AND NOT EXISTS (SELECT 1 FROM deployments WHERE deployments.slot = slots.name)"
                ),
                args![since],
            )
            .await?;
        slots(&rows)
    }

    /// Slots in error, and those that nobody has and nobody works on although they are not free, since `since` or
    /// longer.
    pub async fn slots_to_recover(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.to_recover",
                    "WHERE status = 'error'
                        OR status IN ('creating', 'busy') AND bot_id IS NULL AND status_since <= $1
                           AND NOT EXISTS (SELECT 1 FROM deployments WHERE deployments.slot = slots.name)
                     ORDER BY pool, number"
                ),
                args![since],
            )
            .await?;
        slots(&rows)
    }
}

impl Tx {
    /// Idle slots of each kind, the least recently used first, those that were never used before all. One statement, however
    /// many kinds there are; only SQLite, to which there is no way, takes one for each.
    pub async fn pick_idle_slots(&mut self, picks: &[Pick], now: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        if picks.is_empty() {
            return Ok(Vec::new());
        }
        if matches!(self.inner, TxInner::Postgres(_)) {
            return slots(&self.all(PICK, args![pick_array(picks), now]).await?);
        }
        let mut picked = Vec::new();
        for Pick { pool, attributes, count } in picks {
            let args = args![pool.as_str(), attributes.to_string(), now, *count];
            picked.extend(slots(&self.all(PICK, args).await?)?);
        }
        Ok(picked)
    }

    /// Idle slots of a pool whose time is over, the first first.
    pub async fn expired_slots(&mut self, pool: &str, now: Timestamp, most: i64) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .all(
                sql_of_slots!(
                    "slots.expired",
                    "WHERE pool = $1 AND status = 'idle' AND threshold IS NOT NULL AND threshold <= $2
                     ORDER BY threshold LIMIT $3"
                ),
                args![pool, now, most],
            )
            .await?;
        slots(&rows)
    }

    /// The attributes that idle slots of a pool have.
    pub async fn kinds_of_idle(&mut self, pool: &str) -> Result<Vec<Attributes>, StoreError> {
        // From one kind to the next along the index, however many slots are alike.
        let found = self
            .all(
                sql!(
                    "slots.kinds",
                    "WITH RECURSIVE k AS (
                         SELECT (SELECT min(attributes) FROM slots WHERE pool = $1 AND status = 'idle') AS attributes
                         UNION ALL
                         SELECT (SELECT min(s.attributes) FROM slots s
                                  WHERE s.pool = $1 AND s.status = 'idle' AND s.attributes > k.attributes)
                           FROM k WHERE k.attributes IS NOT NULL
                     )
                     SELECT attributes FROM k WHERE attributes IS NOT NULL LIMIT 1000"
                ),
                args![pool],
            )
            .await?;
        found.iter().map(|row| row.word("attributes")).collect()
    }

    /// Until when the idle slots of a pool may be given out.
    pub async fn change_thresholds(&mut self, pool: &str, threshold: Option<Timestamp>) -> Result<(), StoreError> {
        self.run(
            sql!("slots.rethreshold", "UPDATE slots SET threshold = $2 WHERE pool = $1 AND status = 'idle'"),
            args![pool, threshold],
        )
        .await
    }

    /// Slots that are made anew for each bot have what new ones have.
    pub async fn change_attributes(&mut self, pool: &str, attributes: &Attributes) -> Result<(), StoreError> {
        self.run(
            sql!("slots.change", "UPDATE slots SET attributes = $2 WHERE pool = $1 AND attributes <> $2"),
            args![pool, attributes.to_string()],
        )
        .await
    }

    /// Slots by their names, as they stand.
    pub async fn slots_by_name(&mut self, names: &[SlotName]) -> Result<Vec<SlotRow>, StoreError> {
        slots(&self.all(BY_NAME, args![name_array(names)]).await?)
    }

    /// How many slots of a pool are ready, or are being made ready, without a bot, counted no further than `most`; and how
    /// many are in error.
    pub async fn ready_slots(&mut self, pool: &str, most: i64, now: Timestamp) -> Result<(i64, i64), StoreError> {
        self.first(
            sql!(
                "slots.ready",
                "SELECT (SELECT count(*) FROM (SELECT 1 FROM slots WHERE pool = $1 AND status = 'idle'
                                                 AND (threshold IS NULL OR threshold > $3) LIMIT $2) AS i)
                      + (SELECT count(*) FROM slots WHERE pool = $1 AND status IN ('creating', 'error', 'draining')
                                                      AND status = 'creating' AND bot_id IS NULL) AS ready,
                        (SELECT count(*) FROM slots WHERE pool = $1 AND status IN ('creating', 'error', 'draining')
                                                      AND status = 'error') AS broken"
            ),
            args![pool, most, now],
        )
        .await?
        .map_or(Ok((0, 0)), |row| Ok((row.int("ready")?, row.int("broken")?)))
    }

    /// The first free numbers of a pool.
    pub async fn free_numbers(&mut self, pool: &str, taken: i64, count: i64) -> Result<Vec<i64>, StoreError> {
        let highest = self
            .first(
                sql!("slots.highest", "SELECT coalesce(max(number), 0) AS n FROM slots WHERE pool = $1"),
                args![pool],
            )
            .await?
            .map_or(Ok(0), |row| row.int("n"))?;
        if highest == taken {
            return Ok((highest + 1..=highest + count).collect());
        }
        let used: std::collections::HashSet<i64> = self
            .all(sql!("slots.numbers", "SELECT number FROM slots WHERE pool = $1"), args![pool])
            .await?
            .iter()
            .map(|row| row.int("number"))
            .collect::<Result<_, _>>()?;
        Ok((1..).filter(|number| !used.contains(number)).take(usize::try_from(count).unwrap_or(0)).collect())
    }

    pub async fn delete_slots(&mut self, names: &[SlotName]) -> Result<(), StoreError> {
        if names.is_empty() {
            return Ok(());
        }
        let names: Vec<Value> = names.iter().map(|name| json!({"n": name.as_str()})).collect();
        self.run(
            sql_over!("slots.delete", "DELETE FROM slots WHERE name IN (SELECT n FROM", (n "TEXT"), ")"),
            args![names],
        )
        .await
    }

    /// Whether no slot of a pool is being made, is in error or is on its way out.
    pub async fn is_quiet(&mut self, pool: &str) -> Result<bool, StoreError> {
        let quiet = sql!(
            "slots.quiet",
            "SELECT 1 AS n FROM slots WHERE pool = $1 AND status IN ('creating', 'error', 'draining') LIMIT 1"
        );
        Ok(self.first(quiet, args![pool]).await?.is_none())
    }

    /// How many slots of a pool are on their way out.
    pub async fn draining_slots(&mut self, pool: &str) -> Result<i64, StoreError> {
        self.first(
            sql!(
                "slots.draining",
                "SELECT count(*) AS n FROM slots WHERE pool = $1 AND status IN ('creating', 'error', 'draining')
                  AND status = 'draining'"
            ),
            args![pool],
        )
        .await?
        .map_or(Ok(0), |row| row.int("n"))
    }
}
