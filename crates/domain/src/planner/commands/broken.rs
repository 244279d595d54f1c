//! A step failed in a slot. The slot is in error until it is recovered, and keeps its last error message.

use jiff::Timestamp;

use crate::planner::draft::Draft;
use crate::{BotId, SlotName, SlotStatus, slot};

/// The start or end of the slot's bot failed, or a start without a bot failed.
pub fn apply(draft: &mut Draft<'_>, name: &SlotName, bot: Option<BotId>, message: &str) -> bool {
    let Some(slot) = draft.slot(name) else { return false };
    let for_nobody = matches!(slot.status, SlotStatus::Creating | SlotStatus::Draining);
    if slot.bot_id != bot || !(bot.is_some() || for_nobody) {
        return false;
    }
    break_down(draft, name, message);
    true
}

/// A slot without a bot failed. `since` is when it got its status.
pub fn failed(draft: &mut Draft<'_>, name: &SlotName, since: Timestamp, message: &str) -> bool {
    if !draft.slot(name).is_some_and(|slot| slot.bot_id.is_none() && slot.status_since == since) {
        return false;
    }
    break_down(draft, name, message);
    true
}

/// An idle slot has an unknown process. `since` is when it became idle.
pub fn unknown_process(draft: &mut Draft<'_>, name: &SlotName, since: Timestamp) -> bool {
    if !draft.slot(name).is_some_and(|slot| slot.status == SlotStatus::Idle && slot.status_since == since) {
        return false;
    }
    break_down(draft, name, "a process runs in the idle slot that Greenroom did not start");
    true
}

/// Puts the slot into error. A draining slot stays draining: it keeps the message, and its removal is tried again
/// later.
pub fn break_down(draft: &mut Draft<'_>, name: &SlotName, message: &str) {
    draft.cancel_deployment(name);
    let goes = draft.slot(name).is_some_and(|slot| slot.status == SlotStatus::Draining);
    let is_to_stop = draft.slot(name).is_some_and(|slot| goes && slot.stopped);
    draft.put_slot(name, if goes { SlotStatus::Draining } else { SlotStatus::Error });
    let now = draft.now;
    draft.change_slot(name, |slot| {
        slot.bot_id = None;
        slot.awaits_clearing = false;
        slot.stopped = is_to_stop;
        slot.description = slot::error(message, now);
        slot.error_message = Some(message.to_owned());
    });
}
