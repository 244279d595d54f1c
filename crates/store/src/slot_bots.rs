//! The bots that ran in a slot. No index leads from a slot to its bots, because every start of a bot would pay for it.
//! So the newest bots of the installation are searched, and the bots of the slot's stored failures are added.

use std::collections::HashSet;

use domain::{BotId, Fault, Platform, ShownStatus, SlotName, Status, UserId};
use jiff::Timestamp;
use uuid::Uuid;

use super::bots::shown;
use super::record::record;
use super::sql::{args, sql, text, words};
use super::{Run, Store, StoreError};

record! {
    /// A bot that ran in a slot, or runs in it.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SlotBotRow, columns slot_bot_columns, read slot_bot {
        pub id: BotId,
        pub user_id: UserId,
        pub platform: Platform,
        pub native_meeting_id: String,
        pub bot_display_name: Option<String>,
        pub status: ShownStatus = shown,
        pub status_since: Timestamp,
        pub reason: Option<String>,
        pub fault: Option<Fault>,
        pub start_time: Option<Timestamp>,
        pub end_time: Option<Timestamp>,
        pub created_at: Timestamp,
    }
}

impl Store {
    /// The last bots of a slot, newest first: those among the newest `searched` bots of the installation, and older
    /// ones that failed in the slot.
    pub async fn bots_in_slot(
        &self,
        slot: &SlotName,
        searched: i64,
        limit: i64,
    ) -> Result<Vec<SlotBotRow>, StoreError> {
        let oldest = self
            .reader()
            .first(sql!("slot_bots.oldest", "SELECT id FROM bots ORDER BY id DESC LIMIT 1 OFFSET $1"), args![searched])
            .await?;
        let oldest = oldest.map_or(Ok(Uuid::nil()), |row| row.id("id"))?;
        let rows = self
            .reader()
            .all(
                sql!(
                    "slot_bots.newest",
                    "SELECT ",
                    slot_bot_columns!(),
                    " FROM (SELECT bots.*, ",
                    shown!(),
                    " AS shown FROM bots WHERE id > $2 AND slot = $1 ORDER BY id DESC LIMIT $3) AS bots_in_slot
                      ORDER BY id DESC"
                ),
                args![slot, oldest, limit],
            )
            .await?;
        let mut bots: Vec<SlotBotRow> = rows.iter().map(slot_bot).collect::<Result<_, _>>()?;
        if i64::try_from(bots.len()).is_ok_and(|found| found < limit) {
            let known: HashSet<BotId> = bots.iter().map(|bot| bot.id).collect();
            let rows = self
                .reader()
                .all(
                    sql!(
                        "slot_bots.failed",
                        "SELECT ",
                        slot_bot_columns!(),
                        " FROM (SELECT bots.*, ",
                        shown!(),
                        " AS shown FROM bots WHERE id IN (SELECT bot_id FROM failures WHERE failures.slot = $1)) AS failed_bots
                          ORDER BY id DESC"
                    ),
                    args![slot],
                )
                .await?;
            for row in &rows {
                let bot = slot_bot(row)?;
                if !known.contains(&bot.id) {
                    bots.push(bot);
                }
            }
            bots.sort_by_key(|bot| std::cmp::Reverse(bot.id));
            bots.truncate(usize::try_from(limit).unwrap_or(0));
        }
        Ok(bots)
    }
}
