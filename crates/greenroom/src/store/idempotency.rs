//! Idempotency keys: what a user asked for under which key, so that the same question finds the same bot.

use domain::{BotId, UserId};
use jiff::Timestamp;

use super::sql::{args, sql};
use super::{Run, StoreError, Tx};

/// A key that was used before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    pub body_hash: String,
    pub bot_id: BotId,
}

impl Tx {
    pub async fn idempotency_key(&mut self, user: UserId, key: &str) -> Result<Option<KnownKey>, StoreError> {
        self.first(
            sql!("idempotency.read", "SELECT body_hash, bot_id FROM idempotency_keys WHERE user_id = $1 AND key = $2"),
            args![user, key],
        )
        .await?
        .map(|row| Ok(KnownKey { body_hash: row.text("body_hash")?, bot_id: BotId(row.id("bot_id")?) }))
        .transpose()
    }

    pub async fn insert_idempotency_key(
        &mut self,
        user: UserId,
        key: &str,
        known: &KnownKey,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.run(
            sql!(
                "idempotency.insert",
                "INSERT INTO idempotency_keys (user_id, key, body_hash, bot_id, created_at)
                 VALUES ($1, $2, $3, $4, $5)"
            ),
            args![user, key, known.body_hash.as_str(), known.bot_id, now],
        )
        .await
    }
}
