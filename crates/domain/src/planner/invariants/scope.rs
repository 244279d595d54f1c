//! The invariants of a part of a snapshot. Each slot, bot and pool is checked through the indexes of the snapshot, so
//! the cost does not grow with the rest.

use super::Violation;
use crate::planner::Snapshot;
use crate::{BotId, SlotName};

/// The rows to check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    /// These slots.
    pub slots: Vec<SlotName>,
    /// These bots.
    pub bots: Vec<BotId>,
    /// These pools.
    pub pools: Vec<String>,
}

impl Scope {
    /// Skips `skipped` slots and bots, and takes the next `size` of each, and all pools. Consecutive parts cover an
    /// unchanged snapshot completely. If it changes meanwhile, some rows are checked twice, and some only in the next
    /// round.
    pub fn part(snapshot: &Snapshot, skipped: usize, size: usize) -> Self {
        Self {
            slots: snapshot.slots().skip(skipped).take(size).map(|slot| slot.name.clone()).collect(),
            bots: snapshot.bots().skip(skipped).take(size).map(|bot| bot.id).collect(),
            pools: snapshot.pools().map(|state| state.pool.name.clone()).collect(),
        }
    }

    /// The violations in this part. If two slots name a bot that is in a third slot, only [`super::violations`] finds
    /// it.
    pub fn violations(&self, snapshot: &Snapshot) -> Vec<Violation> {
        let mut found = Vec::new();
        self.slots.iter().for_each(|name| check_slot(snapshot, name, &mut found));
        self.bots.iter().for_each(|id| check_bot(snapshot, *id, &mut found));
        for state in self.pools.iter().filter_map(|name| snapshot.pool(name)) {
            let (counted, size) = (state.pool.slots, state.numbers.taken());
            if counted != size {
                found.push(Violation::PoolMiscounted { pool: state.pool.name.clone(), counted, found: size });
            }
        }
        found
    }
}

fn check_slot(snapshot: &Snapshot, name: &SlotName, found: &mut Vec<Violation>) {
    let Some(slot) = snapshot.slot(name) else { return };
    let Some(bot) = slot.bot_id.and_then(|id| snapshot.bot(id)) else { return };
    let own = bot.slot.as_ref().filter(|own| *own != name).and_then(|own| snapshot.slot(own));
    if let Some(own) = own.filter(|own| own.bot_id == Some(bot.id)) {
        found.push(Violation::BotInTwoSlots { bot: bot.id, slots: [own.name.clone(), name.clone()] });
    }
    if snapshot.pool(&slot.pool).is_some_and(|state| state.pool.platform != bot.platform) {
        found.push(Violation::WrongPlatform { bot: bot.id, slot: name.clone() });
    }
}

fn check_bot(snapshot: &Snapshot, id: BotId, found: &mut Vec<Violation>) {
    let Some(bot) = snapshot.bot(id) else { return };
    if bot.status.is_running()
        && let Some(other) = snapshot.bot_at(&bot.meeting()).filter(|other| *other != id)
    {
        found.push(Violation::TwoAtAMeeting { user: bot.user, bots: [other, id] });
    }
    match (&bot.queued, &bot.slot) {
        (Some(_), Some(slot)) => found.push(Violation::QueuedWithSlot { bot: id, slot: slot.clone() }),
        (None, None) if bot.connection.is_none() => found.push(Violation::BotLost { bot: id }),
        _ => {}
    }
    let in_slot = bot.slot.as_ref().and_then(|slot| snapshot.slot(slot));
    if let Some((slot, other)) = in_slot.and_then(|slot| Some((slot, slot.bot_id?)))
        && other != id
    {
        found.push(Violation::SlotOfTwoBots { slot: slot.name.clone(), bots: [other, id] });
    }
}
