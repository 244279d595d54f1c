//! The memory of slots, as their agents measured it while they waited.

use std::collections::HashMap;

use domain::{SlotName, SlotStatus};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::sql::{Sql, args, sortable, sql, sql_over, words};
use super::{Run, Store, StoreError};

/// The memory of one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMemoryRow {
    pub slot: SlotName,
    pub incarnation: Uuid,
    pub bytes: i64,
    pub measured_at: Timestamp,
}

/// The memory of the slots of a pool in which an agent runs now, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolMemory {
    /// The sum.
    pub bytes: i64,
    /// The memory of the largest slot.
    pub largest: i64,
}

const OF_SLOTS: &Sql = sql!(
    "slot_memory.of_slots",
    sqlite: "SELECT slot, incarnation, bytes FROM slot_memory WHERE slot IN (SELECT value FROM json_each($1))",
    postgres: "SELECT slot, incarnation, bytes FROM slot_memory
                WHERE slot = ANY (ARRAY(SELECT json_array_elements_text($1)))",
);

impl Store {
    /// Writes the memory of many slots in one statement. An older figure never replaces a newer one.
    pub async fn write_slot_memory(&self, rows: &[SlotMemoryRow]) -> Result<(), StoreError> {
        // In the order of the names, so that two processes lock the rows in the same order.
        let mut rows: Vec<&SlotMemoryRow> = rows.iter().collect();
        rows.sort_by(|left, right| left.slot.cmp(&right.slot));
        let rows: Vec<Value> = rows
            .into_iter()
            .map(|row| {
                json!({"slot": row.slot.as_str(), "incarnation": row.incarnation, "bytes": row.bytes,
                       "measured_at": sortable(row.measured_at)})
            })
            .collect();
        let mut tx = self.begin().await?;
        tx.run(
            sql_over!(
                "slot_memory.write",
                "INSERT INTO slot_memory (slot, incarnation, bytes, measured_at)
                 SELECT slot, incarnation, bytes, measured_at FROM",
                (slot "TEXT", incarnation "UUID", bytes "BIGINT", measured_at "TIMESTAMPTZ"),
                // Without it, SQLite would parse `ON` as a part of the select.
                "WHERE true
                 ON CONFLICT (slot) DO UPDATE
                    SET incarnation = excluded.incarnation, bytes = excluded.bytes, measured_at = excluded.measured_at
                  WHERE excluded.measured_at >= slot_memory.measured_at"
            ),
            args![rows],
        )
        .await?;
        tx.commit().await
    }

    /// Deletes the figures of slots that do not exist any more.
    pub async fn prune_slot_memory(&self) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql!(
                "slot_memory.prune",
                "DELETE FROM slot_memory
                  WHERE NOT EXISTS (SELECT 1 FROM slots
                                     WHERE slots.name = slot_memory.slot
                                       AND slots.incarnation = slot_memory.incarnation)"
            ),
            vec![],
        )
        .await?;
        tx.commit().await
    }

    /// The memory in bytes of those of the slots for which it is known, by name and incarnation.
    pub async fn memory_of_slots(&self, slots: &[SlotName]) -> Result<HashMap<(SlotName, Uuid), i64>, StoreError> {
        if slots.is_empty() {
            return Ok(HashMap::new());
        }
        let names: Vec<Value> = slots.iter().map(|name| json!(name.as_str())).collect();
        self.reader()
            .all(OF_SLOTS, args![names])
            .await?
            .iter()
            .map(|row| Ok(((SlotName::stored(row.text("slot")?), row.id("incarnation")?), row.int("bytes")?)))
            .collect()
    }

    /// The memory of each hot pool, by its name. The condition is that of [`domain::Pool::has_agent`].
    pub async fn memory_of_pools(&self) -> Result<HashMap<String, PoolMemory>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "slot_memory.of_pools",
                    "SELECT slots.pool, CAST(sum(slot_memory.bytes) AS BIGINT) AS bytes,
                            max(slot_memory.bytes) AS largest
                       FROM slot_memory
                       JOIN slots ON slots.name = slot_memory.slot AND slots.incarnation = slot_memory.incarnation
                       JOIN pools ON pools.name = slots.pool
                      WHERE pools.standby = 'running'
                        AND (slots.status = ",
                    words!(SlotStatus::Idle),
                    " AND slots.stopped = 0 OR slots.bot_id IS NOT NULL AND slots.agent IS NOT NULL)
                      GROUP BY slots.pool"
                ),
                vec![],
            )
            .await?
            .iter()
            .map(|row| Ok((row.text("pool")?, PoolMemory { bytes: row.int("bytes")?, largest: row.int("largest")? })))
            .collect()
    }
}
