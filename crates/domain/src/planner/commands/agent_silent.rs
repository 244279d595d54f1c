//! A bot was assigned to an agent, and neither sent a callback. The slot is started again with a new connection, so
//! that callbacks with the old connection are refused.

use crate::planner::changes::Reconnected;
use crate::planner::draft::Draft;
use crate::{BotId, ConnectionId, Slot, SlotName, SlotStatus, Status};

pub fn apply(draft: &mut Draft<'_>, name: &SlotName, id: BotId, generation: i64) -> bool {
    let fits =
        |slot: &&Slot| slot.bot_id == Some(id) && slot.generation == generation && slot.status != SlotStatus::Error;
    if draft.slot(name).filter(fits).is_none() {
        return false;
    }
    let Some(mut bot) = draft.bot(id).filter(|bot| bot.status == Status::Reserved).cloned() else { return false };
    let to = ConnectionId(draft.uuid());
    draft.changes.reconnected.push(Reconnected { bot: id, from: bot.connection, to });
    bot.connection = Some(to);
    draft.set_bot(id, Some(bot));
    // Fences off the agent that may still be in the slot. The new start ends it.
    draft.change_slot(name, Slot::end_tokens);
    draft.deploy(name, Some(id));
    true
}
