//! Recovers a slot that is in error or stuck without a bot, and remakes a slot that is missing at the provider.

use jiff::Timestamp;

use super::broken::break_down;
use crate::planner::bugs::{Bug, has};
use crate::planner::draft::Draft;
use crate::{SlotName, SlotStatus};

/// A recovery begins and counts as one attempt. The slot is in error from now on. So the same attempt cannot count
/// twice, and no second attempt runs beside it.
pub fn begins(draft: &mut Draft<'_>, name: &SlotName, since: Timestamp, message: &str) -> bool {
    let Some(slot) = draft.slot(name).filter(|slot| slot.status_since == since) else { return false };
    let is_stuck = slot.bot_id.is_none() && matches!(slot.status, SlotStatus::Creating | SlotStatus::Busy);
    if slot.status != SlotStatus::Error && !is_stuck {
        return false;
    }
    if is_stuck {
        break_down(draft, name, message);
    } else if !has(Bug::AttemptCountedTwice) {
        draft.put_slot(name, SlotStatus::Error);
    }
    draft.change_slot(name, |slot| {
        slot.recovery_attempts += 1;
        // The slot's processes are about to be ended, so no agent there may take a bot.
        slot.end_tokens();
    });
    true
}

/// The recovery succeeded, and nothing remains in the slot.
pub fn succeeds(draft: &mut Draft<'_>, name: &SlotName, since: Timestamp) -> bool {
    if !draft.slot(name).is_some_and(|slot| slot.status == SlotStatus::Error && slot.status_since == since) {
        return false;
    }
    draft.free_slot(name, false);
    true
}

/// The slot was idle, or waited for its agent, since `since`, and the provider does not have it: it is made again.
pub fn lost(draft: &mut Draft<'_>, name: &SlotName, since: Timestamp, counts: bool) -> bool {
    let Some(slot) = draft.slot(name).filter(|slot| slot.status_since == since) else { return false };
    if slot.status != SlotStatus::Idle && !(slot.status == SlotStatus::Creating && slot.bot_id.is_none()) {
        return false;
    }
    // An unfinished earlier deployment would block the new one.
    draft.cancel_deployment(name);
    draft.change_slot(name, |slot| {
        slot.recovery_attempts += i64::from(counts);
        slot.provider_ref = None;
    });
    draft.free_slot(name, false);
    true
}
