//! A pool that provisions per bot had no capacity for a bot. The bot returns to its former place in the queue, with its
//! original time limit. It does not try such a pool again until its pause is over.

use std::time::Duration;

use uuid::Uuid;

use crate::event::{Actor, Kind};
use crate::planner::bot::Queued;
use crate::planner::bugs::{Bug, has};
use crate::planner::changes::Returned;
use crate::planner::draft::Draft;
use crate::{Backoff, BotId, SlotName, SlotStatus, Status, slot};

/// The first and the longest pause of a bot that returned. The pause doubles with each return.
const FIRST_PAUSE: Duration = Duration::from_secs(3);
const LONGEST_PAUSE: Duration = Duration::from_secs(24);

pub fn apply(draft: &mut Draft<'_>, name: &SlotName, id: BotId, holder: Uuid, message: &str) -> bool {
    let Some(slot) = draft.slot(name).filter(|slot| slot.bot_id == Some(id)) else { return false };
    let status = slot.status;
    let held = draft.deployment(name);
    let is_holders = held.is_some_and(|held| held.bot == Some(id) && held.holder == Some(holder));
    let unheard = draft.bot(id).filter(|bot| {
        bot.status == Status::Reserved && !bot.stop_asked && bot.slot.as_ref() == Some(name) && bot.pool.is_some()
    });
    let Some(mut bot) = unheard.filter(|_| is_holders && status != SlotStatus::Error).cloned() else { return false };
    bot.returns += 1;
    let before = u32::try_from(bot.returns - 1).unwrap_or(0);
    let pause = Backoff::after(FIRST_PAUSE, LONGEST_PAUSE, before).next_delay();
    let patience = Duration::from_millis(bot.queue_timeout_ms.unsigned_abs());
    let timeout_at = bot.wait_until.unwrap_or_else(|| draft.after(patience));
    let not_before = Some(draft.after(pause));
    let pool = bot.pool.clone().unwrap_or_default();
    bot.queued = Some(Queued { pool, queued_at: draft.now, timeout_at, not_before });
    (bot.slot, bot.connection) = (None, None);
    let (user, platform, is_first) = (bot.user, bot.platform, bot.returns == 1);
    // Drops this plan's earlier changes for the bot, because each bot is written only once.
    if !has(Bug::BotWrittenTwice) {
        draft.changes.reconnected.retain(|reconnected| reconnected.bot != id);
        draft.changes.awaited.retain(|awaited| *awaited != id);
    }
    draft.changes.returned.push(Returned { bot: id, slot: name.clone(), holder });
    draft.set_bot(id, Some(bot));
    if is_first {
        draft.record(id, user, Kind::Requeued, Some(message.to_owned()), Actor::Greenroom);
    }
    draft.act(crate::planner::changes::Action::PassGate);
    if status == SlotStatus::Draining {
        let now = draft.now;
        draft.change_slot(name, |slot| {
            slot.bot_id = None;
            slot.awaits_clearing = false;
            slot.description = slot::draining(now);
        });
    } else {
        draft.free_slot(name, false);
    }
    draft.touched.insert(platform);
    true
}
