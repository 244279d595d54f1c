//! Slots: places to run one bot each, prepared in advance. The name of a slot follows from its pool and number, so the
//! objects of a provider can be matched with the rows of the store. The description of a slot is the text that a person
//! sees at the provider.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use crate::ids::BotId;
use crate::requirements::Attributes;
use crate::text_enum::text_enum;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotStatus {
    /// Planned, or in its first start; or a hot slot whose agent does not wait yet.
    Creating,
    /// Ready for a bot.
    Idle,
    /// Assigned to a bot, until the bot has ended and the slot is cleared.
    Busy,
    /// A step failed. The slot keeps the error message.
    Error,
    /// The slot goes away after its bot has ended.
    Draining,
}

/// A text that is not a status of a slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a status of a slot; the statuses are creating, idle, busy, error, draining")]
pub struct UnknownSlotStatus(pub String);

text_enum!(SlotStatus, UnknownSlotStatus {
    Creating = "creating",
    Idle = "idle",
    Busy = "busy",
    Error = "error",
    Draining = "draining",
});

/// The name of a slot: `pool-google-meet-001`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotName(Arc<str>);

impl SlotName {
    /// The name of the slot with this number in a pool.
    pub fn new(pool: &str, number: i64) -> Self {
        Self(format!("pool-{pool}-{number:03}").into())
    }

    /// A name from the store.
    pub fn stored(name: String) -> Self {
        Self(name.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The pool of the slot; `None` if no pool would give this name.
    pub fn pool(&self) -> Option<&str> {
        self.parts().map(|(pool, _)| pool)
    }

    /// The pool of the slot and its number there; `None` if no pool would give this name.
    pub fn parts(&self) -> Option<(&str, i64)> {
        let (pool, number) = self.0.strip_prefix("pool-")?.rsplit_once('-')?;
        let is_number = number.len() >= 3 && number.bytes().all(|byte| byte.is_ascii_digit());
        Some((pool, number.parse().ok().filter(|_| is_number)?))
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A slot, as the store has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// The name.
    pub name: SlotName,
    /// The pool that it is part of.
    pub pool: String,
    /// The number in its pool.
    pub number: i64,
    /// The status.
    pub status: SlotStatus,
    /// Since when it has that status.
    pub status_since: Timestamp,
    /// The bot that it is given to.
    pub bot_id: Option<BotId>,
    /// Distinguishes it from an earlier slot with the same name.
    pub incarnation: Uuid,
    /// The number of its starts.
    pub generation: i64,
    /// How many bots its agent has run since the start.
    pub token_number: i64,
    /// The name of the agent process that waits or has the assignment. The process chooses the name.
    pub agent: Option<String>,
    /// How many bots it has run since its last fresh start.
    pub bots_since_fresh: i64,
    /// The provider's own name for it.
    pub provider_ref: Option<String>,
    /// The text that a person sees at the provider.
    pub description: String,
    /// When a bot was last given to it.
    pub last_used_at: Option<Timestamp>,
    /// The last error.
    pub error_message: Option<String>,
    /// How often a recovery was tried.
    pub recovery_attempts: i64,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its attributes, which the requirements of bots are compared with.
    pub attributes: Attributes,
    /// Until when it may be given out while it is idle.
    pub expires_at: Option<Timestamp>,
    /// Only for a busy slot: its bot has ended or has left it, and processes of the bot may remain.
    pub awaits_clearing: bool,
    /// Only in a hot pool: the slot was not needed for long. An idle slot is stopped, and is started for its next bot.
    /// A draining slot is about to be stopped, and stays in the pool.
    pub stopped: bool,
    /// A fingerprint of the image and the other parameters of its last start, if the provider reports it.
    pub recipe: Option<String>,
}

impl Slot {
    /// Ends every token of the slot that was given out, because its processes are ended or were never started.
    pub fn end_tokens(&mut self) {
        self.generation += 1;
        self.token_number = 0;
        self.agent = None;
    }

    /// Whether the slots differ only in fields that change with every bot: the bot, the status, times, counts and the
    /// description.
    pub fn differs_only_in_use(&self, other: &Slot) -> bool {
        self.incarnation == other.incarnation
            && self.agent == other.agent
            && self.provider_ref == other.provider_ref
            && self.error_message == other.error_message
            && self.recovery_attempts == other.recovery_attempts
            && self.created_at == other.created_at
            && self.attributes == other.attributes
            && self.stopped == other.stopped
            && self.recipe == other.recipe
    }

    /// Whether the slot is being made, is in error, is draining, or waits to be cleared. Keepers look only at these
    /// slots.
    pub fn is_unsettled(&self) -> bool {
        self.awaits_clearing || matches!(self.status, SlotStatus::Creating | SlotStatus::Error | SlotStatus::Draining)
    }
}

/// The content of a slot token: the agent of a slot, for one assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotClaim {
    /// The slot.
    pub slot: SlotName,
    /// The incarnation of the slot. A slot that is recreated under the same name has another.
    pub incarnation: Uuid,
    /// `None` in an environment that cannot change between two starts.
    pub generation: Option<i64>,
    /// The number of the assignment.
    pub number: i64,
}

impl SlotClaim {
    /// The claim that is valid now.
    pub fn current(slot: &Slot) -> Self {
        Self {
            slot: slot.name.clone(),
            incarnation: slot.incarnation,
            generation: Some(slot.generation),
            number: slot.token_number,
        }
    }

    /// The claim that the agent gets with an assignment, to wait for the next one.
    pub fn next(slot: &Slot) -> Self {
        Self { number: slot.token_number + 1, ..Self::current(slot) }
    }

    /// The claim for an environment that cannot be changed.
    pub fn to_start_with(slot: &Slot) -> Self {
        Self { generation: None, number: 0, ..Self::current(slot) }
    }

    /// Whether an agent may wait with it, or take the slot's bot.
    pub fn is_current(&self, slot: &Slot) -> bool {
        *self == Self { generation: self.generation.and(Some(slot.generation)), ..Self::current(slot) }
    }

    /// Whether it belongs to the agent that has the current assignment, for the time after that assignment.
    pub fn is_next(&self, slot: &Slot) -> bool {
        slot.bot_id.is_some() && *self == Self::next(slot)
    }
}

/// The error of a hot slot whose agent does not start to wait in time. A late agent is still accepted.
pub const NO_AGENT: &str = "it was started, and its agent did not begin to wait";

/// The error of a prewarmed slot whose agent closed its connection. An agent that waits again clears it.
pub const AGENT_LEFT: &str = "its agent stopped waiting";

/// The description of a busy slot at the provider.
pub fn busy(bot: BotId, at: Timestamp) -> String {
    format!("[BUSY] Bot #{bot} - {at:.0}")
}

/// The description of a slot without a bot that is being made or started.
pub fn creating(since: Timestamp) -> String {
    format!("[CREATING] Not ready yet - {since:.0}")
}

/// The description of a slot without a bot that is about to be stopped or deleted.
pub fn draining(since: Timestamp) -> String {
    format!("[DRAINING] Takes no bots - {since:.0}")
}

/// The description of an idle slot at the provider.
pub fn idle(last_used: Option<Timestamp>) -> String {
    match last_used {
        Some(at) => format!("[IDLE] Available - Last used: {at:.0}"),
        None => "[IDLE] Available - Never used".to_owned(),
    }
}

/// The description of a slot in error at the provider.
pub fn error(message: &str, at: Timestamp) -> String {
    let first = message.lines().next().unwrap_or_default();
    let short: String = first.chars().take(120).collect();
    format!("[ERROR] {short} - {at:.0}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_named_by_its_pool_and_number() {
        assert_eq!(SlotName::new("google-meet", 1).as_str(), "pool-google-meet-001");
        assert_eq!(SlotName::new("zoom", 12345).as_str(), "pool-zoom-12345");
    }

    #[test]
    fn descriptions_are_as_people_see_them_at_the_provider() {
        let at: Timestamp = "2025-12-16T21:30:00.987654Z".parse().unwrap();
        let bot = BotId(uuid::Uuid::nil());
        assert_eq!(busy(bot, at), format!("[BUSY] Bot #{bot} - 2025-12-16T21:30:00Z"));
        assert_eq!(idle(Some(at)), "[IDLE] Available - Last used: 2025-12-16T21:30:00Z");
        assert_eq!(idle(None), "[IDLE] Available - Never used");
        assert_eq!(creating(at), "[CREATING] Not ready yet - 2025-12-16T21:30:00Z");
        assert_eq!(draining(at), "[DRAINING] Takes no bots - 2025-12-16T21:30:00Z");
        assert_eq!(error("Container crashed\nat line 5", at), "[ERROR] Container crashed - 2025-12-16T21:30:00Z");
    }
}
