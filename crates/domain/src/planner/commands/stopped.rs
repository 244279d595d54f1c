//! A hot slot that nobody needed for long is stopped. It stays, and is given out after those in which an agent waits.

use crate::planner::draft::Draft;
use crate::{SlotName, SlotStatus};

/// It is about to be stopped. What runs in it may take no bot any more.
pub fn begins(draft: &mut Draft<'_>, name: &SlotName) {
    draft.put_slot(name, SlotStatus::Draining);
    draft.change_slot(name, |slot| {
        slot.stopped = true;
        slot.end_tokens();
    });
}

/// Nothing runs in it any more.
pub fn apply(draft: &mut Draft<'_>, name: &SlotName) -> bool {
    let fits = draft
        .slot(name)
        .is_some_and(|slot| slot.status == SlotStatus::Draining && slot.stopped && slot.bot_id.is_none());
    if fits {
        draft.keep_stopped(name);
    }
    fits
}
