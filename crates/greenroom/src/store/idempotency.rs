//! Idempotency keys: what a user asked for under which key, so that the same question finds the same bot.

use domain::BotId;

/// A key that was used before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    pub body_hash: String,
    pub bot_id: BotId,
}
