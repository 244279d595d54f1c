//! The agent that waits in a slot has lost the command that it had started ahead. The slot gets no bot until the agent
//! waits again.

use crate::planner::draft::Draft;
use crate::slot::AGENT_LEFT;
use crate::{SlotClaim, SlotName, SlotStatus};

/// The slot keeps its agent, so that only this agent can make the slot idle again with the same token.
pub fn apply(draft: &mut Draft<'_>, name: &SlotName, claim: &SlotClaim, agent: &str, left: bool) -> bool {
    let Some(slot) = draft.slot(name) else { return false };
    if slot.agent.as_deref() != Some(agent) || !claim.is_current(slot) {
        return false;
    }
    let is_ready = slot.status == SlotStatus::Idle && !slot.stopped;
    // An agent closes its connection before it reports. Its report says that it has not left.
    let seemed_to_leave = slot.status == SlotStatus::Creating && slot.error_message.as_deref() == Some(AGENT_LEFT);
    if is_ready {
        draft.put_slot(name, SlotStatus::Creating);
        draft.change_slot(name, |slot| slot.error_message = left.then(|| AGENT_LEFT.to_owned()));
    } else if seemed_to_leave && !left {
        draft.change_slot(name, |slot| slot.error_message = None);
    } else {
        return false;
    }
    true
}
