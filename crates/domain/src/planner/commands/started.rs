//! The provider has started or made a slot, or its deployment was dropped before it started.

use uuid::Uuid;

use crate::planner::changes::Action;
use crate::planner::draft::Draft;
use crate::{BotId, SlotName, SlotStatus};

/// `made` is the provider's name for the slot, and the fingerprint of its start parameters.
pub fn apply(
    draft: &mut Draft<'_>,
    name: &SlotName,
    bot: Option<BotId>,
    made: (&str, Option<&String>),
    holder: Uuid,
) -> bool {
    let Some(slot) = draft.slot(name) else { return false };
    let (status, bot_id) = (slot.status, slot.bot_id);
    let hot = draft.pool(&slot.pool).is_some_and(|pool| pool.hot);
    draft.release_deployment(name, bot, holder);
    if bot_id != bot || status == SlotStatus::Error {
        return true;
    }
    draft.changes.awaited.extend(bot);
    draft.change_slot(name, |slot| {
        slot.provider_ref = Some(made.0.to_owned());
        slot.recipe = made.1.cloned();
    });
    if status == SlotStatus::Creating && bot.is_some() {
        draft.put_slot(name, SlotStatus::Busy);
        // The bot may have ended, or may have left the slot.
        let is_in_it = bot.and_then(|id| draft.bot(id)).is_some_and(|bot| bot.slot.as_ref() == Some(name));
        draft.change_slot(name, |slot| slot.awaits_clearing = !is_in_it);
    } else if status == SlotStatus::Creating && !hot {
        // The slot is made, and is started when it gets a bot.
        draft.free_slot(name, false);
    } else if status == SlotStatus::Creating {
        // The agent's time limit starts here, however long the slot waited at the gate.
        let now = draft.now;
        draft.change_slot(name, |slot| slot.status_since = now);
    }
    // An agent that was faster than this event can now register as waiting.
    draft.act(Action::WakeAgent(name.clone()));
    true
}

pub fn not_begun(draft: &mut Draft<'_>, name: &SlotName, bot: Option<BotId>, holder: Uuid) -> bool {
    if draft.slot(name).is_none() {
        return false;
    }
    draft.release_deployment(name, bot, holder);
    true
}
