//! An agent process waits in a slot for its bot.

use crate::planner::changes::Action;
use crate::planner::draft::Draft;
use crate::slot::NO_AGENT;
use crate::{SlotClaim, SlotName, SlotStatus};

/// Accepts the first agent after the slot's start. While the slot has no bot, it also accepts another agent, because
/// the slot's process may have restarted on its own.
pub fn apply(draft: &mut Draft<'_>, name: &SlotName, claim: &SlotClaim, agent: &str) -> bool {
    let Some(slot) = draft.slot(name) else { return false };
    if !claim.is_current(slot) || (slot.agent.is_some() && slot.bot_id.is_some()) {
        return false;
    }
    // On a busy machine an agent may start to wait after the slot's time limit. Then the slot works after all.
    let is_late = slot.status == SlotStatus::Error && slot.error_message.as_deref() == Some(NO_AGENT);
    if is_late || (slot.status == SlotStatus::Creating && slot.bot_id.is_none()) {
        draft.free_slot(name, true);
    }
    draft.change_slot(name, |slot| slot.agent = Some(agent.to_owned()));
    // An agent that waited before this one stops waiting.
    draft.act(Action::WakeAgent(name.clone()));
    true
}
