//! Nothing of a bot remains in its slot.

use super::end::note_hold;
use crate::planner::bugs::{Bug, has};
use crate::planner::draft::Draft;
use crate::{BotId, SlotName, SlotStatus, slot};

pub fn apply(draft: &mut Draft<'_>, name: &SlotName, bot: BotId) -> bool {
    let Some(slot) = draft.slot(name) else { return false };
    let status = slot.status;
    let fits = slot.bot_id == Some(bot) || (has(Bug::LateEventApplied) && slot.bot_id.is_some());
    if !fits || status == SlotStatus::Error {
        return false;
    }
    draft.cancel_deployment(name);
    note_hold(draft, name);
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
    true
}
