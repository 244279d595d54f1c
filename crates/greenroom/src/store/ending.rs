//! What has to be known of bots that may end, and of their slots, for many of them in one statement.

use domain::lifecycle::Standing;
use domain::{BotId, ConnectionId, SlotName, Status, UserId};
use serde_json::{Value, json};

use super::slots::{slot, slot_columns};
use super::sql::{Row, Sql, args, sql};
use super::{Run, SlotRow, StoreError, Tx};

/// As much of a bot as its end needs.
#[derive(Clone, Debug)]
pub struct EndingBot {
    pub id: BotId,
    pub user_id: UserId,
    pub status: Status,
    pub reason: Option<String>,
    pub exit_code: Option<i64>,
    pub stop_asked: bool,
    pub connection_id: Option<ConnectionId>,
    pub slot: Option<SlotName>,
    /// The slot as it stands, if it still is the bot's.
    pub in_slot: Option<SlotRow>,
}

impl EndingBot {
    /// What the lifecycle needs to know of it.
    pub fn standing(&self) -> Standing {
        Standing { status: self.status, stop_asked: self.stop_asked, exit_code: self.exit_code }
    }
}

macro_rules! select_ending {
    ($ids:literal) => {
        concat!(
            "SELECT b.id, b.user_id, b.status, b.reason, b.exit_code, b.stop_asked_at, b.connection_id, b.slot, s.*
               FROM bots b LEFT JOIN (SELECT ",
            slot_columns!(),
            " FROM slots) AS s
                 ON s.slot_name = b.slot AND s.bot_id = b.id
              WHERE b.id ",
            $ids
        )
    };
}

const HOLD: &Sql = sql!(
    "bots.hold_ending",
    sqlite: select_ending!("IN (SELECT value FROM json_each($1))"),
    postgres: concat!(
        select_ending!("= ANY (ARRAY(SELECT json_array_elements_text($1)::uuid))"),
        " ORDER BY b.id FOR NO KEY UPDATE OF b"
    ),
);

fn ending(row: &Row) -> Result<EndingBot, StoreError> {
    Ok(EndingBot {
        id: BotId(row.id("id")?),
        user_id: UserId(row.id("user_id")?),
        status: row.word("status")?,
        reason: row.maybe_text("reason")?,
        exit_code: row.maybe_int("exit_code")?,
        stop_asked: row.maybe_time("stop_asked_at")?.is_some(),
        connection_id: row.maybe_id("connection_id")?.map(ConnectionId),
        slot: row.maybe_text("slot")?.map(SlotName::stored),
        in_slot: row.maybe_text("slot_name")?.map(|_| slot(row)).transpose()?,
    })
}

impl Tx {
    /// Bots that may end, held until the transaction ends; in the order of their ids, so that no two wait for each other.
    pub async fn hold_ending_bots(&mut self, ids: &[BotId]) -> Result<Vec<EndingBot>, StoreError> {
        let ids: Vec<Value> = ids.iter().map(|id| json!(id)).collect();
        self.all(HOLD, args![ids]).await?.iter().map(ending).collect()
    }
}
