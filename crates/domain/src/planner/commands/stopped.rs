//! Stops a hot slot that was not needed for long. The slot stays in the pool, and is given out after slots with a
//! waiting agent.

use crate::planner::draft::Draft;
use crate::{SlotName, SlotStatus};

/// The slot is about to be stopped. Its agent may take no more bots.
pub fn begins(draft: &mut Draft<'_>, name: &SlotName) {
    draft.put_slot(name, SlotStatus::Draining);
    draft.change_slot(name, |slot| {
        slot.stopped = true;
        slot.end_tokens();
    });
}

/// Nothing runs in the slot any more.
pub fn apply(draft: &mut Draft<'_>, name: &SlotName) -> bool {
    let fits = draft
        .slot(name)
        .is_some_and(|slot| slot.status == SlotStatus::Draining && slot.stopped && slot.bot_id.is_none());
    if fits {
        draft.keep_stopped(name);
    }
    fits
}
