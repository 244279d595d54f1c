//! A slot takes no more bots, and then is deleted.

use crate::planner::draft::Draft;
use crate::{SlotName, SlotStatus};

pub fn drain(draft: &mut Draft<'_>, name: &SlotName) -> bool {
    // A slot that was only to be stopped is now to be deleted.
    if draft.slot(name).is_none_or(|slot| slot.status == SlotStatus::Draining && !slot.stopped) {
        return false;
    }
    draft.put_slot(name, SlotStatus::Draining);
    true
}

/// Nothing of the slot remains at the provider.
pub fn apply(draft: &mut Draft<'_>, name: &SlotName) -> bool {
    if !draft
        .slot(name)
        .is_some_and(|slot| slot.bot_id.is_none() && slot.status == SlotStatus::Draining && !slot.stopped)
    {
        return false;
    }
    draft.cancel_deployment(name);
    draft.delete_slot(name);
    true
}
