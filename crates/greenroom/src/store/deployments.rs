//! The deploy gate as rows with a lease: who waits, who is behind it, and until when a holder is believed to live.

use domain::{BotId, SlotName};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::sql::{Row, args, sortable as text, sql, sql_over};
use super::{Run, Store, StoreError, Tx};

#[derive(Clone, Debug, PartialEq)]
pub struct DeploymentRow {
    pub slot: SlotName,
    pub bot_id: Option<BotId>,
    pub active: bool,
    pub asked_at: Timestamp,
    pub timeout_at: Timestamp,
    pub last_error: Option<String>,
    /// How often it was tried, and gave its place to others meanwhile.
    pub tries: i64,
}

/// A slot that is to be deployed, for a bot or to be made ready.
#[derive(Clone, Debug)]
pub struct NewDeployment {
    pub slot: SlotName,
    pub bot_id: Option<BotId>,
    pub timeout_at: Timestamp,
}

macro_rules! deployment_columns {
    () => {
        "slot, bot_id, state, asked_at, timeout_at, last_error, tries"
    };
}

/// Bots before slots that are only made ready; within each, first in first out. Those without a bot leave one place free,
/// so that a bot that comes next need not wait until a slot for nobody is ready.
macro_rules! sql_pass {
    ($begin:literal, $end:literal) => {
        concat!(
            "UPDATE deployments SET state = 'active', holder = $2, lease_until = $4
              WHERE slot ",
            $begin,
            "
                  SELECT slot FROM deployments WHERE slot IN (
                      SELECT slot FROM (
                          SELECT slot, bot_id, row_number() OVER (ORDER BY is_for_nobody, arrival)
                               + (SELECT count(*) FROM deployments WHERE state = 'active' AND lease_until > $3) AS place
                            FROM (SELECT slot, bot_id, arrival, CASE WHEN bot_id IS NULL THEN 1 ELSE 0 END AS is_for_nobody
                                    FROM deployments WHERE state = 'waiting' OR lease_until <= $3
                                   ORDER BY is_for_nobody, arrival LIMIT $1) AS first) AS placed
                       WHERE place <= CASE WHEN bot_id IS NULL AND $1 > 1 THEN $1 - 1 ELSE $1 END)",
            $end,
            " RETURNING ",
            deployment_columns!()
        )
    };
}

fn deployment(row: &Row) -> Result<DeploymentRow, StoreError> {
    Ok(DeploymentRow {
        slot: SlotName::stored(row.text("slot")?),
        bot_id: row.maybe_id("bot_id")?.map(BotId),
        active: row.text("state")? == "active",
        asked_at: row.time("asked_at")?,
        timeout_at: row.time("timeout_at")?,
        last_error: row.maybe_text("last_error")?,
        tries: row.int("tries")?,
    })
}

/// A deployment that its holder is done with.
#[derive(Clone, Debug)]
pub struct Held {
    pub slot: SlotName,
    pub bot_id: Option<BotId>,
    pub holder: Uuid,
}

impl Store {
    /// Everyone at the gate and behind it, in the order of arrival.
    pub async fn deployments(&self) -> Result<Vec<DeploymentRow>, StoreError> {
        self.reader()
            .all(
                sql!("deployments.list", "SELECT ", deployment_columns!(), " FROM deployments ORDER BY arrival"),
                vec![],
            )
            .await?
            .iter()
            .map(deployment)
            .collect()
    }

    /// Bots that have waited before the gate longer than they may.
    pub async fn overdue_deployments(&self, now: Timestamp) -> Result<Vec<DeploymentRow>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "deployments.overdue",
                    "SELECT ",
                    deployment_columns!(),
                    " FROM deployments WHERE state = 'waiting' AND bot_id IS NOT NULL AND timeout_at <= $1"
                ),
                args![now],
            )
            .await?
            .iter()
            .map(deployment)
            .collect()
    }

    /// Whether the slot is at the gate or behind it.
    pub async fn is_at_gate(&self, slot: &SlotName) -> Result<bool, StoreError> {
        let found = self
            .reader()
            .first(sql!("deployments.at_gate", "SELECT slot FROM deployments WHERE slot = $1"), args![slot])
            .await?;
        Ok(found.is_some())
    }

    /// Whether someone who lives is starting this slot.
    pub async fn is_deploying(&self, slot: &SlotName, now: Timestamp) -> Result<bool, StoreError> {
        let found = self
            .reader()
            .first(
                sql!(
                    "deployments.of_slot",
                    "SELECT slot FROM deployments WHERE slot = $1 AND state = 'active' AND lease_until > $2"
                ),
                args![slot, now],
            )
            .await?;
        Ok(found.is_some())
    }
}

impl Tx {
    /// Puts deployments at the end of the line, in this order. One that is there already keeps its place.
    pub async fn ask_for_gate(&mut self, new: &[NewDeployment], now: Timestamp) -> Result<(), StoreError> {
        if new.is_empty() {
            return Ok(());
        }
        let rows: Vec<Value> = new
            .iter()
            .enumerate()
            .map(|(i, new)| {
                json!({"i": i, "slot": new.slot.as_str(), "bot_id": new.bot_id, "asked_at": text(now),
                       "timeout_at": text(new.timeout_at)})
            })
            .collect();
        self.run(
            sql_over!(
                "deployments.ask",
                "INSERT INTO deployments (slot, bot_id, state, asked_at, timeout_at)
                 SELECT slot, bot_id, 'waiting', asked_at, timeout_at FROM",
                (i "BIGINT", slot "TEXT", bot_id "UUID", asked_at "TIMESTAMPTZ", timeout_at "TIMESTAMPTZ"),
                "WHERE true ORDER BY i ON CONFLICT DO NOTHING"
            ),
            args![rows],
        )
        .await
    }

    /// Lets through as many as there is room for, first in first out, and gives them to `holder` until `lease_until`.
    /// A holder whose lease has ended no longer counts, and its deployments are given out again.
    pub async fn pass_gate(
        &mut self,
        max: i64,
        holder: Uuid,
        now: Timestamp,
        lease_until: Timestamp,
    ) -> Result<Vec<DeploymentRow>, StoreError> {
        // One look at the gate at a time, in whatever process.
        self.run(
            sql!(
                "deployments.gate",
                sqlite: "SELECT 1",
                postgres: "SELECT pg_advisory_xact_lock(7701)",
            ),
            vec![],
        )
        .await?;
        self.all(
            sql!(
                "deployments.pass",
                sqlite: sql_pass!("IN (", ")"),
                // As an array, so that it is picked once, however the rest is planned: picked twice it would let more
                // through than there is room for. One that is leaving at this moment is passed over.
                postgres: sql_pass!("= ANY (ARRAY(", " FOR UPDATE SKIP LOCKED))"),
            ),
            args![max, holder, now, lease_until],
        )
        .await?
        .iter()
        .map(deployment)
        .collect()
    }

    /// Tells that the holder lives. False when the deployment is no longer its own.
    pub async fn renew_lease(
        &mut self,
        slot: &SlotName,
        holder: Uuid,
        now: Timestamp,
        lease_until: Timestamp,
        last_error: Option<&str>,
    ) -> Result<bool, StoreError> {
        let renewed = self
            .first(
                sql!(
                    "deployments.renew",
                    "UPDATE deployments SET lease_until = $3, last_error = coalesce($4, last_error)
                      WHERE slot = $1 AND holder = $2 AND lease_until > $5 RETURNING slot"
                ),
                args![slot, holder, lease_until, last_error, now],
            )
            .await?;
        Ok(renewed.is_some())
    }

    /// Gives a place behind the gate to others until then, because the start failed and is tried again. False when the
    /// deployment is no longer the holder's.
    pub async fn step_back(
        &mut self,
        slot: &SlotName,
        holder: Uuid,
        now: Timestamp,
        until: Timestamp,
        last_error: &str,
    ) -> Result<bool, StoreError> {
        let stepped = self
            .first(
                sql!(
                    "deployments.step_back",
                    "UPDATE deployments
                        SET state = 'again', holder = NULL, lease_until = $3, last_error = $4, tries = tries + 1
                      WHERE slot = $1 AND holder = $2 AND lease_until > $5 RETURNING slot"
                ),
                args![slot, holder, until, last_error, now],
            )
            .await?;
        Ok(stepped.is_some())
    }

    /// Has the first of a pool that step back tried again now, no more than `most`: something may have come free for them.
    pub async fn hurry_gate(&mut self, pool: &str, now: Timestamp, most: i64) -> Result<(), StoreError> {
        self.run(
            sql!(
                "deployments.hurry",
                "UPDATE deployments SET lease_until = $2 WHERE state = 'again' AND slot IN
                     (SELECT d.slot FROM deployments d JOIN slots s ON s.name = d.slot
                       WHERE d.state = 'again' AND d.lease_until > $2 AND s.pool = $1 ORDER BY d.arrival LIMIT $3)"
            ),
            args![pool, now, most],
        )
        .await
    }

    /// Leaves the gate, or the line before it. Twice is nothing.
    pub async fn leave_gate(&mut self, slots: &[SlotName]) -> Result<(), StoreError> {
        if slots.is_empty() {
            return Ok(());
        }
        let slots: Vec<Value> = slots.iter().map(|slot| json!({"s": slot.as_str()})).collect();
        self.run(
            sql_over!("deployments.leave", "DELETE FROM deployments WHERE slot IN (SELECT s FROM", (s "TEXT"), ")"),
            args![slots],
        )
        .await
    }

    /// Leaves the gate with what a holder was starting. What another has begun in the slot since stays.
    pub async fn leave_gate_held(&mut self, held: &[Held]) -> Result<(), StoreError> {
        for Held { slot, bot_id, holder } in held {
            self.run(
                sql!(
                    "deployments.leave_held",
                    "DELETE FROM deployments WHERE slot = $1 AND bot_id IS NOT DISTINCT FROM $2 AND holder = $3"
                ),
                args![slot, *bot_id, *holder],
            )
            .await?;
        }
        Ok(())
    }

    /// Takes bots out of the line before the gate, and says which of them were in it: for these nothing was begun.
    pub async fn leave_line(&mut self, bots: &[BotId]) -> Result<Vec<BotId>, StoreError> {
        if bots.is_empty() {
            return Ok(Vec::new());
        }
        let bots: Vec<Value> = bots.iter().map(|bot| json!({ "id": bot })).collect();
        self.all(
            sql_over!(
                "deployments.leave_line",
                "DELETE FROM deployments WHERE state = 'waiting' AND bot_id IN (SELECT id FROM",
                (id "UUID"),
                ") RETURNING bot_id"
            ),
            args![bots],
        )
        .await?
        .iter()
        .map(|row| row.id("bot_id").map(BotId))
        .collect()
    }

    /// Takes a slot for `holder`, who is going to end what runs in it, unless another lives and has it.
    pub async fn take_slot(
        &mut self,
        slot: &SlotName,
        holder: Uuid,
        now: Timestamp,
        lease_until: Timestamp,
    ) -> Result<bool, StoreError> {
        let taken = self
            .first(
                sql!(
                    "slot_locks.take",
                    "INSERT INTO slot_locks (slot, holder, lease_until) VALUES ($1, $2, $4)
                     ON CONFLICT (slot) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until
                      WHERE slot_locks.lease_until <= $3 OR slot_locks.holder = excluded.holder
                     RETURNING slot"
                ),
                args![slot, holder, now, lease_until],
            )
            .await?;
        Ok(taken.is_some())
    }

    /// Keeps a slot for `holder`, who still has it. False when it has not.
    pub async fn renew_slot(
        &mut self,
        slot: &SlotName,
        holder: Uuid,
        now: Timestamp,
        lease_until: Timestamp,
    ) -> Result<bool, StoreError> {
        let renewed = self
            .first(
                sql!(
                    "slot_locks.renew",
                    "UPDATE slot_locks SET lease_until = $4
                      WHERE slot = $1 AND holder = $2 AND lease_until > $3 RETURNING slot"
                ),
                args![slot, holder, now, lease_until],
            )
            .await?;
        Ok(renewed.is_some())
    }

    pub async fn give_slot_back(&mut self, slot: &SlotName, holder: Uuid) -> Result<(), StoreError> {
        self.run(
            sql!("slot_locks.give_back", "DELETE FROM slot_locks WHERE slot = $1 AND holder = $2"),
            args![slot, holder],
        )
        .await
    }
}
