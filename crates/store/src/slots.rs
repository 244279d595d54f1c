//! The slots as stored. Only placement assigns and releases them; see [`super::batch_write`].

use std::sync::Arc;

use domain::{Attributes, BotId, SlotName, SlotStatus};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::bots::ENDED;
use super::record::record;
use super::sql::{Row, Sql, args, sql, sql_over, words};
use super::{Run, SlotRow, Store, StoreError, Tx};

record! {
    SlotRow, columns slot_columns, read slot {
        name,
        pool,
        number,
        status,
        status_since,
        bot_id,
        incarnation,
        generation,
        token_number,
        agent,
        bots_since_fresh,
        provider_ref,
        description,
        last_used_at,
        error_message,
        recovery_attempts,
        created_at,
        attributes,
        expires_at,
        awaits_clearing = unsettled via awaits_clearing,
        stopped,
        recipe,
    }
}
// Lets other files use the macro; clippy takes it for an import without use.
#[allow(clippy::single_component_path_imports)]
pub(crate) use slot_columns;

fn awaits_clearing(row: &Row, unsettled: &'static str) -> Result<bool, StoreError> {
    Ok(row.word::<SlotStatus>("status")? == SlotStatus::Busy && row.int(unsettled)? == 1)
}

/// Statuses in which a slot may have a bot.
const MAY_HAVE_A_BOT: &str = words!(SlotStatus::Creating, SlotStatus::Busy, SlotStatus::Draining);
/// The same without slots that are being removed. In these statuses a slot has work in progress, or it must be
/// recovered.
const BEING_USED: &str = words!(SlotStatus::Creating, SlotStatus::Busy);

macro_rules! sql_of_slots {
    ($name:literal, $($after:expr),+ $(,)?) => {
        sql!($name, "SELECT ", slot_columns!(), " FROM slots ", $($after),+)
    };
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

impl Store {
    pub async fn slot(&self, name: &SlotName) -> Result<Option<SlotRow>, StoreError> {
        self.reader()
            .first(
                sql!(
                    "slots.read",
                    sqlite: concat!("SELECT ", slot_columns!(), " FROM slots WHERE name = $1"),
                    // The newest version of the row first, however many older versions there are.
                    postgres: concat!("SELECT ", slot_columns!(), " FROM slots WHERE name = $1 ORDER BY epoch DESC LIMIT 1"),
                ),
                args![name],
            )
            .await?
            .as_ref()
            .map(slot)
            .transpose()
    }

    /// Slots by their names.
    pub async fn slots_by_name(&self, names: &[SlotName]) -> Result<Vec<SlotRow>, StoreError> {
        slots(&self.reader().all(BY_NAME, args![name_array(names)]).await?)
    }

    /// The slots in which an agent waits, and that differ from these copies in what the agent needs to know. For a copy of
    /// an idle slot without a bot.
    pub async fn changed_waiting_slots(&self, waiting: &[Arc<SlotRow>]) -> Result<Vec<SlotName>, StoreError> {
        let copies: Vec<Value> = waiting
            .iter()
            .map(|slot| {
                json!({
                    "name": slot.name.as_str(), "incarnation": slot.incarnation, "generation": slot.generation,
                    "token_number": slot.token_number, "agent": slot.agent,
                })
            })
            .collect();
        self.reader()
            .all(
                sql_over!(
                    "slots.changed_waiting",
                    "SELECT input.name FROM",
                    (name "TEXT", incarnation "UUID", generation "BIGINT", token_number "BIGINT", agent "TEXT"),
                    "WHERE NOT EXISTS (SELECT 1 FROM slots
                                        WHERE slots.name = input.name AND slots.incarnation = input.incarnation
                                          AND slots.generation = input.generation
                                          AND slots.token_number = input.token_number
                                          AND slots.agent = input.agent
                                          AND slots.status = 'idle' AND slots.bot_id IS NULL)"
                ),
                args![copies],
            )
            .await?
            .iter()
            .map(|row| row.text("name").map(SlotName::stored))
            .collect()
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

    /// A page of slots after the given one, by pool and number.
    pub async fn slots_after(&self, after: Option<(&str, i64)>, limit: i64) -> Result<Vec<SlotRow>, StoreError> {
        let (pool, number) = after.unwrap_or(("", i64::MIN));
        let page = sql_of_slots!("slots.page", "WHERE (pool, number) > ($1, $2) ORDER BY pool, number LIMIT $3");
        slots(&self.reader().all(page, args![pool, number, limit]).await?)
    }

    /// A page of a pool's slots after a number.
    pub async fn slots_of_pool_after(&self, pool: &str, after: i64, limit: i64) -> Result<Vec<SlotRow>, StoreError> {
        let page = sql_of_slots!("slots.page_of_pool", "WHERE pool = $1 AND number > $2 ORDER BY number LIMIT $3");
        slots(&self.reader().all(page, args![pool, after, limit]).await?)
    }

    /// How many slots of each pool are in each status.
    pub async fn slots_by_status(&self) -> Result<Vec<(String, SlotStatus, i64)>, StoreError> {
        self.reader()
            .all(sql!("slots.count", "SELECT pool, status, count(*) AS count FROM slots GROUP BY pool, status"), vec![])
            .await?
            .iter()
            .map(|row| Ok((row.text("pool")?, row.word("status")?, row.int("count")?)))
            .collect()
    }

    /// The slot that a bot has.
    pub async fn slot_of(&self, bot: BotId) -> Result<Option<SlotRow>, StoreError> {
        self.reader()
            .first(
                sql_of_slots!(
                    "slots.of_bot",
                    "WHERE bot_id = $1
                       AND name IN (SELECT slot FROM bots WHERE bots.id = $1
                                    UNION
                                    SELECT cleared.name FROM slots AS cleared
                                     WHERE cleared.unsettled = 1 AND cleared.bot_id = $1)"
                ),
                args![bot],
            )
            .await?
            .as_ref()
            .map(slot)
            .transpose()
    }

    /// Slots that accept no more bots, have none, and are not being started. A slot whose deletion failed is included
    /// only if that was before `since`.
    pub async fn drained_slots(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.drained",
                    "WHERE unsettled = 1 AND status = 'draining' AND bot_id IS NULL
                       AND (error_message IS NULL OR status_since <= $1)
                       AND NOT EXISTS (SELECT 1 FROM deployments WHERE deployments.slot = slots.name)"
                ),
                args![since],
            )
            .await?;
        slots(&rows)
    }

    /// Slots whose bot ended or left at `since` or earlier. They wait to be cleared.
    pub async fn slots_to_clear(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.to_clear",
                    "WHERE unsettled = 1 AND status IN (",
                    MAY_HAVE_A_BOT,
                    ") AND bot_id IS NOT NULL AND EXISTS
                         (SELECT 1 FROM bots WHERE bots.id = slots.bot_id AND bots.updated_at <= $1
                             AND (bots.status IN (",
                    ENDED,
                    ") OR bots.slot IS DISTINCT FROM slots.name))"
                ),
                args![since],
            )
            .await?;
        slots(&rows)
    }

    /// Slots whose waiting agent has not taken its bot since `since`, so the agent may be gone. An agent that takes a
    /// bot is recorded as a heartbeat. This applies only until the slot was started once: then the bot gets its normal
    /// start time. Also slots whose bot was never started, and for which no start is planned.
    pub async fn silent_slots(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.silent",
                    "WHERE name IN
                         (SELECT bots.slot FROM open_bots JOIN bots ON bots.id = open_bots.bot_id
                           WHERE bots.status = 'reserved' AND bots.slot IS NOT NULL AND bots.updated_at <= $1)
                       AND status IN (",
                    MAY_HAVE_A_BOT,
                    ") AND status_since <= $1
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

    /// Slots that were started without a bot, and in which no agent has begun to wait since `since`.
    pub async fn slots_without_agent(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.deaf",
                    "WHERE unsettled = 1 AND status = 'creating' AND bot_id IS NULL
                       AND status_since <= $1
                       AND NOT EXISTS (SELECT 1 FROM deployments WHERE deployments.slot = slots.name)"
                ),
                args![since],
            )
            .await?;
        slots(&rows)
    }

    /// Slots in error that still need work, the longest in error first. Also returns how many there are without the
    /// limit.
    pub async fn slots_in_error(&self, limit: i64) -> Result<(Vec<SlotRow>, i64), StoreError> {
        let rows = self
            .reader()
            .all(
                sql!(
                    "slots.in_error",
                    "SELECT ",
                    slot_columns!(),
                    ", count(*) OVER () AS total
                       FROM slots WHERE unsettled = 1 AND status = 'error' ORDER BY status_since, name LIMIT $1"
                ),
                args![limit],
            )
            .await?;
        let total = rows.first().map_or(Ok(0), |row| row.int("total"))?;
        Ok((slots(&rows)?, total))
    }

    /// Slots in error that still need work. Also slots that are creating or busy since `since` or longer, although they
    /// have neither a bot nor a deployment.
    pub async fn slots_to_recover(&self, since: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql_of_slots!(
                    "slots.to_recover",
                    "WHERE unsettled = 1 AND status = 'error' OR status IN (",
                    BEING_USED,
                    ") AND bot_id IS NULL AND status_since <= $1
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
    /// The attributes of the idle slots of a pool.
    pub async fn attributes_of_idle(&mut self, pool: &str) -> Result<Vec<Attributes>, StoreError> {
        let found = self
            .all(
                sql!("slots.attributes", "SELECT DISTINCT attributes FROM slots WHERE pool = $1 AND status = 'idle'"),
                args![pool],
            )
            .await?;
        found.iter().map(|row| row.word("attributes")).collect()
    }

    /// Sets until when the idle slots of a pool may be assigned.
    pub async fn change_expiry(&mut self, pool: &str, expires_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.run(
            sql!("slots.change_expiry", "UPDATE slots SET expires_at = $2 WHERE pool = $1 AND status = 'idle'"),
            args![pool, expires_at],
        )
        .await
    }

    /// Slots that are made again for each bot get the attributes of new slots.
    pub async fn change_attributes(&mut self, pool: &str, attributes: &Attributes) -> Result<(), StoreError> {
        self.run(
            sql!("slots.change", "UPDATE slots SET attributes = $2 WHERE pool = $1 AND attributes <> $2"),
            args![pool, attributes.to_string()],
        )
        .await
    }

    /// Replaces the attributes of a pool's slots that were made when less was known about them.
    pub async fn replace_attributes(
        &mut self,
        pool: &str,
        before: &Attributes,
        now: &Attributes,
    ) -> Result<(), StoreError> {
        self.run(
            sql!("slots.replace_attributes", "UPDATE slots SET attributes = $3 WHERE pool = $1 AND attributes = $2"),
            args![pool, before.to_string(), now.to_string()],
        )
        .await
    }

    /// The bot of this slot has ended or left, so the slot waits to be cleared.
    pub async fn await_clearing(&mut self, slot: &SlotName) -> Result<(), StoreError> {
        self.run(sql!("slots.await_clearing", "UPDATE slots SET unsettled = 1 WHERE name = $1"), args![slot]).await
    }
}
