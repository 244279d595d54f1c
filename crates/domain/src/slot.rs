//! Slots: pre-provisioned places to run one bot each. Their names follow from their pool and number, so that what a
//! provider has can be matched with what the store has; their descriptions are what a person sees at the provider.

use std::fmt;

use jiff::Timestamp;

use crate::ids::BotId;
use crate::words::words;

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

words!(SlotStatus, UnknownSlotStatus {
    Creating = "creating",
    Idle = "idle",
    Busy = "busy",
    Error = "error",
    Draining = "draining",
});

/// The name of a slot: `pool-google-meet-001`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotName(String);

impl SlotName {
    pub fn new(pool: &str, number: i64) -> Self {
        Self(format!("pool-{pool}-{number:03}"))
    }

    /// A name that was stored before.
    pub fn stored(name: String) -> Self {
        Self(name)
    }

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

/// What a person sees at the provider.
pub fn busy(bot: BotId, at: Timestamp) -> String {
    format!("[BUSY] Bot #{bot} - {at:.0}")
}

/// What a person sees at the provider.
pub fn idle(last_used: Option<Timestamp>) -> String {
    match last_used {
        Some(at) => format!("[IDLE] Available - Last used: {at:.0}"),
        None => "[IDLE] Available - Never used".to_owned(),
    }
}

/// What a person sees at the provider.
pub fn error(words: &str, at: Timestamp) -> String {
    let first = words.lines().next().unwrap_or_default();
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
