//! Slots: pre-provisioned places to run one bot each. Their names follow from their pool and number, so that what a
//! provider has can be matched with what the store has; their descriptions are what a person sees at the provider.

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
    /// Intended, or being started for the first time; or a hot one whose agent does not wait yet.
    Creating,
    /// Ready for a bot.
    Idle,
    /// A bot's, until the bot is at an end and the slot is cleared.
    Busy,
    /// Something went wrong; its words are kept.
    Error,
    /// Goes away when its bot is at an end.
    Draining,
}

/// A word that is not a status of a slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a status of a slot; known are creating, idle, busy, error, draining")]
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

    /// A name that was stored before.
    pub fn stored(name: String) -> Self {
        Self(name.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The pool that it is a slot of; `None` when no pool would give such a name.
    pub fn pool(&self) -> Option<&str> {
        let (pool, number) = self.0.strip_prefix("pool-")?.rsplit_once('-')?;
        (number.len() >= 3 && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(pool)
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A slot as it is recorded.
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
    /// Tells it from an earlier slot of the same name.
    pub incarnation: Uuid,
    /// Counts its starts.
    pub generation: i64,
    /// How many bots its agent has had since the start.
    pub token_number: i64,
    /// The agent process that waits, or has the assignment, by the name that it has chosen.
    pub agent: Option<String>,
    /// How many bots it has had since it was made fresh.
    pub bots_since_fresh: i64,
    /// The provider's own name for it.
    pub provider_ref: Option<String>,
    /// What a person sees of it at the provider.
    pub description: String,
    /// When a bot was last given to it.
    pub last_used_at: Option<Timestamp>,
    /// What went wrong in it.
    pub error_message: Option<String>,
    /// How often its recovery was tried.
    pub recovery_attempts: i64,
    /// When it was made.
    pub created_at: Timestamp,
    /// What it has, for the requirements of bots.
    pub attributes: Attributes,
    /// Until when it may be given out while it is idle.
    pub expires_at: Option<Timestamp>,
    /// Of a busy one: its bot is at an end, or elsewhere, and something of it may be left.
    pub awaits_clearing: bool,
    /// Of a slot of a hot pool: nobody needed it for long. An idle one is stopped, and is started for its next bot; a
    /// draining one is about to be stopped, and stays.
    pub stopped: bool,
    /// What stands for the image and all else that it was last started with, where its provider says so.
    pub recipe: Option<String>,
}

impl Slot {
    /// Ends every token of the slot that was given out: what runs in it is ended, or was never begun.
    pub fn end_tokens(&mut self) {
        self.generation += 1;
        self.token_number = 0;
        self.agent = None;
    }

    /// Whether only what changes each time a bot comes or leaves differs: the bot, the status, times, counts and the
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

    /// Whether it is being made, is in error, goes away or waits to be cleared: keepers look at these, and at no others.
    pub fn is_unsettled(&self) -> bool {
        self.awaits_clearing || matches!(self.status, SlotStatus::Creating | SlotStatus::Error | SlotStatus::Draining)
    }
}

/// Whose token it is: the agent of a slot, for one assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotClaim {
    /// The slot.
    pub slot: SlotName,
    /// The life of the slot: a slot that is made anew under the same name has another.
    pub incarnation: Uuid,
    /// `None` in an environment that cannot be changed between two starts.
    pub generation: Option<i64>,
    /// The number of the assignment.
    pub number: i64,
}

impl SlotClaim {
    /// The one that is good now.
    pub fn current(slot: &Slot) -> Self {
        Self {
            slot: slot.name.clone(),
            incarnation: slot.incarnation,
            generation: Some(slot.generation),
            number: slot.token_number,
        }
    }

    /// What its agent gets with an assignment, to wait again.
    pub fn next(slot: &Slot) -> Self {
        Self { number: slot.token_number + 1, ..Self::current(slot) }
    }

    /// What stands in an environment that cannot be changed.
    pub fn to_start_with(slot: &Slot) -> Self {
        Self { generation: None, number: 0, ..Self::current(slot) }
    }

    /// Whether an agent may wait under it, or take the slot's bot.
    pub fn is_current(&self, slot: &Slot) -> bool {
        *self == Self { generation: self.generation.and(Some(slot.generation)), ..Self::current(slot) }
    }

    /// Whether it is the agent's that has the assignment now, for the time after it.
    pub fn is_next(&self, slot: &Slot) -> bool {
        slot.bot_id.is_some() && *self == Self::next(slot)
    }
}

/// Why a hot slot is given up whose agent does not begin to wait in time. One that comes late is welcome all the same.
pub const NO_AGENT: &str = "it was started, and its agent did not begin to wait";

/// What a person sees at the provider.
pub fn busy(bot: BotId, at: Timestamp) -> String {
    format!("[BUSY] Bot #{bot} - {at:.0}")
}

/// What a person sees at the provider of a slot without a bot that is being made or started.
pub fn creating(since: Timestamp) -> String {
    format!("[CREATING] Not ready yet - {since:.0}")
}

/// What a person sees at the provider of a slot without a bot that is about to be stopped or deleted.
pub fn draining(since: Timestamp) -> String {
    format!("[DRAINING] Takes no bots - {since:.0}")
}

/// What a person sees at the provider.
pub fn idle(last_used: Option<Timestamp>) -> String {
    match last_used {
        Some(at) => format!("[IDLE] Available - Last used: {at:.0}"),
        None => "[IDLE] Available - Never used".to_owned(),
    }
}

/// What a person sees at the provider.
pub fn error(message: &str, at: Timestamp) -> String {
    let first = message.lines().next().unwrap_or_default();
    let short: String = first.chars().take(120).collect();
    format!("[ERROR] {short} - {at:.0}")
}

/// How long a bot will probably wait. Each pool that serves its line has so many slots, and bots have held one of them
/// for so long on average: so many become free in a time, and `position` bots want one. `None` while no bot has held a
/// slot yet.
pub fn estimated_wait_ms(position: i64, pools: impl IntoIterator<Item = (Option<i64>, i64)>) -> Option<i64> {
    let freed_in_a_ms: f64 =
        pools.into_iter().filter_map(|(mean_hold_ms, slots)| Some(slots as f64 / mean_hold_ms?.max(1) as f64)).sum();
    (freed_in_a_ms > 0.0).then(|| (position as f64 / freed_in_a_ms).round() as i64)
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

    #[test]
    fn the_estimate_grows_with_the_line_and_shrinks_with_the_pool() {
        assert_eq!(estimated_wait_ms(1, [(Some(60_000), 1)]), Some(60_000));
        assert_eq!(estimated_wait_ms(3, [(Some(60_000), 10)]), Some(18_000));
        assert_eq!(estimated_wait_ms(3, [(None, 10)]), None);
        // Two pools that serve one line: three slots in a minute and one in half of it are five in a minute.
        assert_eq!(estimated_wait_ms(5, [(Some(60_000), 3), (Some(30_000), 1), (None, 7)]), Some(60_000));
    }
}
