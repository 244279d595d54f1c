//! What operators see live, in the few columns that they see. These reads run on the connections of users, and never on
//! those of placement.

use domain::{BotId, ShownStatus, SlotName, SlotStatus, Status};
use jiff::Timestamp;
use uuid::Uuid;

use super::bots::shown;
use super::record::record;
use super::sql::{sql, text, words};
use super::{Run, Store, StoreError};

/// A value that changes with every change of slots, pools and queue, and with every event of a bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivePosition {
    pub token: Uuid,
    pub event: i64,
}

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct LiveSlotRow, columns slot_columns, read live_slot {
        pub pool: String = pool "slots.pool",
        pub number: i64 = number "slots.number",
        pub status: SlotStatus = status "slots.status",
        pub status_since: Timestamp = status_since "slots.status_since",
        /// Whether an agent runs in it, as in `Pool::has_agent`.
        pub hot: bool = hot "CAST(CASE WHEN pools.standby = 'running'
                                        AND ((slots.status = 'idle' AND slots.stopped = 0)
                                             OR (slots.bot_id IS NOT NULL AND slots.agent IS NOT NULL))
                                       THEN 1 ELSE 0 END AS BIGINT)",
    }
}

/// A bot that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveBotRow {
    pub id: BotId,
    pub status: ShownStatus,
    pub status_since: Timestamp,
    pub slot: Option<SlotName>,
}

impl Store {
    pub async fn live_position(&self) -> Result<LivePosition, StoreError> {
        let row = self
            .reader()
            .first(
                sql!(
                    "live.position",
                    "SELECT token, coalesce((SELECT max(id) FROM events), 0) AS event
                       FROM placement ORDER BY epoch DESC LIMIT 1"
                ),
                vec![],
            )
            .await?;
        let row = row.ok_or_else(|| StoreError::internal("live.position", "placement has no row"))?;
        Ok(LivePosition { token: row.id("token")?, event: row.int("event")? })
    }

    pub async fn live_slots(&self) -> Result<Vec<LiveSlotRow>, StoreError> {
        let slots = sql!("live.slots", "SELECT ", slot_columns!(), " FROM slots JOIN pools ON pools.name = slots.pool");
        self.reader().all(slots, vec![]).await?.iter().map(live_slot).collect()
    }

    pub async fn live_bots(&self) -> Result<Vec<LiveBotRow>, StoreError> {
        let bots = sql!(
            "live.bots",
            "SELECT bots.id, ",
            shown!(),
            " AS shown, status_since, slot FROM open_bots JOIN bots ON bots.id = open_bots.bot_id"
        );
        let rows = self.reader().all(bots, vec![]).await?;
        let read = rows.iter().map(|row| {
            Ok(LiveBotRow {
                id: BotId(row.id("id")?),
                status: row.word("shown")?,
                status_since: row.time("status_since")?,
                slot: row.maybe_text("slot")?.map(SlotName::stored),
            })
        });
        read.collect()
    }
}
