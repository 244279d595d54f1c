//! The invariants of every snapshot. A keeper checks them on the running system, and tests check them after every step.
//!
//! - this file: checks of a whole snapshot
//! - [`limits`]: the usage of users and pools
//! - [`scope`]: checks of a part of a snapshot, at a cost that does not grow with the rest
//! - [`batch`]: checks of the changes of one batch

mod batch;
mod limits;
mod scope;

use std::collections::HashMap;
use std::fmt;

use super::snapshot::Snapshot;
use crate::{BotId, SlotName, UserId};
pub use batch::BatchCheck;
pub use limits::{Limited, Usage, Usages, overgrown, usages, usages_of};
pub use scope::Scope;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum Violation {
    /// Two slots have the same bot.
    BotInTwoSlots { bot: BotId, slots: [SlotName; 2] },
    /// A bot has this slot, but the slot has another bot.
    SlotOfTwoBots { slot: SlotName, bots: [BotId; 2] },
    /// A bot of one platform is in a slot of a pool of another.
    WrongPlatform { bot: BotId, slot: SlotName },
    /// Two running bots of one user are at one meeting.
    TwoAtAMeeting { user: UserId, bots: [BotId; 2] },
    /// The slot count of a pool is wrong.
    PoolMiscounted { pool: String, counted: i64, found: i64 },
    /// A bot is not in the queue, has no slot, and is not run by an operator.
    BotLost { bot: BotId },
    /// A bot is in the queue although it has a slot.
    QueuedWithSlot { bot: BotId, slot: SlotName },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::BotInTwoSlots { bot, slots: [one, other] } => {
                write!(f, "bot {bot} is in slots {one} and {other}")
            }
            Violation::SlotOfTwoBots { slot, bots: [one, other] } => {
                write!(f, "slot {slot} belongs to bots {one} and {other}")
            }
            Violation::WrongPlatform { bot, slot } => write!(f, "bot {bot} is in slot {slot} of another platform"),
            Violation::TwoAtAMeeting { user, bots: [one, other] } => {
                write!(f, "bots {one} and {other} of user {user} are at one meeting")
            }
            Violation::PoolMiscounted { pool, counted, found } => {
                write!(f, "pool {pool} counts {counted} slots and has {found}")
            }
            Violation::BotLost { bot } => write!(f, "bot {bot} is in no queue and in no slot"),
            Violation::QueuedWithSlot { bot, slot } => write!(f, "bot {bot} is in the queue and in slot {slot}"),
        }
    }
}

impl Violation {
    /// The name of the violation in metrics, logs and docs/keepers.md.
    pub fn kind(&self) -> &'static str {
        match self {
            Violation::BotInTwoSlots { .. } => "bot_in_two_slots",
            Violation::SlotOfTwoBots { .. } => "slot_of_two_bots",
            Violation::WrongPlatform { .. } => "wrong_platform",
            Violation::TwoAtAMeeting { .. } => "two_at_a_meeting",
            Violation::PoolMiscounted { .. } => "pool_miscounted",
            Violation::BotLost { .. } => "bot_lost",
            Violation::QueuedWithSlot { .. } => "queued_with_slot",
        }
    }
}

/// All violations in a snapshot. Exceeded limits are not included; see [`overgrown`].
pub fn violations(snapshot: &Snapshot) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut slots_of: HashMap<BotId, SlotName> = HashMap::new();
    let mut sizes: HashMap<&str, i64> = HashMap::new();
    for slot in snapshot.slots() {
        *sizes.entry(slot.pool.as_str()).or_default() += 1;
        let Some(bot) = slot.bot_id else { continue };
        if let Some(other) = slots_of.insert(bot, slot.name.clone()) {
            found.push(Violation::BotInTwoSlots { bot, slots: [other, slot.name.clone()] });
        }
        let Some(known) = snapshot.bot(bot) else { continue };
        let platform = snapshot.pool(&slot.pool).map(|state| state.pool.platform);
        if platform.is_some_and(|platform| platform != known.platform) {
            found.push(Violation::WrongPlatform { bot, slot: slot.name.clone() });
        }
    }
    for state in snapshot.pools() {
        let counted = state.pool.slots;
        let size = sizes.get(state.pool.name.as_str()).copied().unwrap_or(0);
        if counted != size {
            found.push(Violation::PoolMiscounted { pool: state.pool.name.clone(), counted, found: size });
        }
    }
    let mut meetings = HashMap::new();
    for bot in snapshot.bots() {
        if bot.status.is_running()
            && let Some(other) = meetings.insert(bot.meeting(), bot.id)
        {
            found.push(Violation::TwoAtAMeeting { user: bot.user, bots: [other, bot.id] });
        }
        match (&bot.queued, &bot.slot) {
            (Some(_), Some(slot)) => found.push(Violation::QueuedWithSlot { bot: bot.id, slot: slot.clone() }),
            (None, None) if bot.connection.is_none() => found.push(Violation::BotLost { bot: bot.id }),
            _ => {}
        }
        let in_slot = bot.slot.as_ref().and_then(|slot| snapshot.slot(slot));
        if let Some((slot, other)) = in_slot.and_then(|slot| Some((slot, slot.bot_id?)))
            && other != bot.id
        {
            found.push(Violation::SlotOfTwoBots { slot: slot.name.clone(), bots: [other, bot.id] });
        }
    }
    found
}
