//! What each job does to the draft, one file each.
//!
//! - [`reserve`]: a user requests a bot
//! - [`end`]: a bot ends
//! - [`agent_waits`], [`agent_not_ready`], [`started`], [`agent_silent`], [`no_capacity`]: the start of a bot in a slot
//! - [`cleared`], [`broken`], [`recovery`], [`stopped`], [`gone`]: clearing, recovery and removal of slots
//! - [`keep_warm`]: slots that are kept ready

mod agent_not_ready;
mod agent_silent;
mod agent_waits;
mod broken;
mod cleared;
pub mod end;
mod gone;
pub mod keep_warm;
mod no_capacity;
mod recovery;
pub mod reserve;
mod started;
mod stopped;

use super::draft::Draft;
use super::job::SlotEvent;
use crate::SlotName;

/// Applies an event to a slot. Returns false if the event does not fit the slot's current state.
pub fn slot_event(draft: &mut Draft<'_>, name: &SlotName, event: &SlotEvent) -> bool {
    match event {
        SlotEvent::Cleared { bot } => cleared::apply(draft, name, *bot),
        SlotEvent::AgentWaits { claim, agent } => agent_waits::apply(draft, name, claim, agent),
        SlotEvent::NotReady { claim, agent, left } => agent_not_ready::apply(draft, name, claim, agent, *left),
        SlotEvent::Started { bot, provider_ref, recipe, holder } => {
            started::apply(draft, name, *bot, (provider_ref, recipe.as_ref()), *holder)
        }
        SlotEvent::NotBegun { bot, holder } => started::not_begun(draft, name, *bot, *holder),
        SlotEvent::NoCapacity { bot, holder, message } => no_capacity::apply(draft, name, *bot, *holder, message),
        SlotEvent::Silent { bot, generation } => agent_silent::apply(draft, name, *bot, *generation),
        SlotEvent::Broken { bot, message } => broken::apply(draft, name, *bot, message),
        SlotEvent::Failed { since, message } => broken::failed(draft, name, *since, message),
        SlotEvent::UnknownProcess { since } => broken::unknown_process(draft, name, *since),
        SlotEvent::Recovering { since, message } => recovery::begins(draft, name, *since, message),
        SlotEvent::Recovered { since } => recovery::succeeds(draft, name, *since),
        SlotEvent::Lost { since, counts } => recovery::lost(draft, name, *since, *counts),
        SlotEvent::Stopped => stopped::apply(draft, name),
        SlotEvent::Drain => gone::drain(draft, name),
        SlotEvent::Gone => gone::apply(draft, name),
    }
}
