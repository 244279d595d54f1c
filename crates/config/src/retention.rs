//! How long the server keeps data that it no longer needs. A bot is deleted with everything that belongs to it, so
//! nothing of a bot can be kept longer than the bot.

use std::time::Duration;

use super::section::Section;

const DAY: Duration = Duration::from_hours(24);
/// Figures of hours are kept at least as long as those of minutes.
const SHORTEST_STATS: Duration = Duration::from_hours(48);

/// `None` means for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// A bot with everything that belongs to it, after its end.
    pub bots: Option<Duration>,
    /// The transcript of a bot, after its end.
    pub transcripts: Option<Duration>,
    /// An idempotency key, after its request.
    pub idempotency_keys: Option<Duration>,
    /// The deliveries of webhooks. It has no effect yet, because there are no webhooks.
    pub deliveries: Option<Duration>,
    /// The failures of slots.
    pub failures: Option<Duration>,
    /// The figures of hours.
    pub stats: Option<Duration>,
}

impl RetentionConfig {
    /// Nothing is ever deleted.
    pub const fn forever() -> Self {
        Self { bots: None, transcripts: None, idempotency_keys: None, deliveries: None, failures: None, stats: None }
    }

    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let of = |kept: Option<Duration>| kept.unwrap_or_default();
        let bots = section.duration_or_never("bots", of(default.bots));
        let transcripts = of_bot(section, "transcripts", bots, of(default.transcripts));
        let idempotency_keys = of_bot(section, "idempotency_keys", bots, of(default.idempotency_keys));
        let stats = section.duration_or_never("stats", of(default.stats));
        if stats.is_some_and(|kept| kept < SHORTEST_STATS) {
            let path = section.key_path("stats");
            section.complain(format!("`{path}` must be at least 48h, or 0s to keep everything"));
        }
        Self {
            bots,
            transcripts,
            idempotency_keys,
            deliveries: section.duration_or_never("deliveries", of(default.deliveries)),
            failures: section.duration_or_never("failures", of(default.failures)),
            stats,
        }
    }
}

/// How long something is kept that is deleted with its bot. If the operator does not say it, it follows the bots.
fn of_bot(section: &mut Section<'_>, key: &'static str, bots: Option<Duration>, default: Duration) -> Option<Duration> {
    let (is_given, path, of_bots) = (section.has(key), section.key_path(key), section.key_path("bots"));
    let kept = section.duration_or_never(key, default);
    let Some(bots) = bots else { return kept };
    if kept.is_none_or(|kept| kept > bots) {
        if is_given {
            section.complain(format!("`{path}` is longer than `{of_bots}`, but is deleted with its bot"));
        }
        return Some(bots);
    }
    kept
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            bots: Some(90 * DAY),
            transcripts: Some(90 * DAY),
            idempotency_keys: Some(DAY),
            deliveries: Some(14 * DAY),
            failures: Some(30 * DAY),
            stats: Some(400 * DAY),
        }
    }
}
