//! A slot in error, or one that nobody has although it is not free, on its way back; and one that is not at the provider.

use jiff::Timestamp;

use super::broken::break_down;
use crate::planner::bugs::{Bug, has};
use crate::planner::draft::Draft;
use crate::{SlotName, SlotStatus};

/// It is about to be recovered: one attempt more. From now on it is in error since now, so that the same attempt is not
/// counted twice and no other is made beside it.
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
        // What runs in it is about to be ended: nobody there may take a bot any more.
        slot.end_tokens();
    });
    true
}

/// What was wrong is mended, and nothing is left in it.
pub fn succeeds(draft: &mut Draft<'_>, name: &SlotName, since: Timestamp) -> bool {
    if !draft.slot(name).is_some_and(|slot| slot.status == SlotStatus::Error && slot.status_since == since) {
        return false;
    }
    draft.free_slot(name, false);
    true
}

/// It has been free, or waited for its agent, since then, and the provider has nothing of it: it is made anew.
pub fn lost(draft: &mut Draft<'_>, name: &SlotName, since: Timestamp, counts: bool) -> bool {
    let Some(slot) = draft.slot(name).filter(|slot| slot.status_since == since) else { return false };
    if slot.status != SlotStatus::Idle && !(slot.status == SlotStatus::Creating && slot.bot_id.is_none()) {
        return false;
    }
    // An earlier deployment that is not done would keep the new one out.
    draft.cancel_deployment(name);
    draft.change_slot(name, |slot| {
        slot.recovery_attempts += i64::from(counts);
        slot.provider_ref = None;
    });
    draft.free_slot(name, false);
    true
}
