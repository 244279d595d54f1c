//! Whether the same bot was requested before, under the same idempotency key.

use super::bugs::{Bug, has};
use super::draft::Draft;
use super::job::{Refusal, ReserveRequest};
use super::snapshot::KnownKey;
use crate::BotId;

/// The bot of an earlier request with the same key and the same body. A different body with the same key is refused.
pub(super) fn find_earlier_bot(draft: &Draft<'_>, request: &ReserveRequest) -> Result<Option<BotId>, Refusal> {
    let Some((key, body_hash)) = &request.idempotency else { return Ok(None) };
    let Some(before) = known_key(draft, request, key).filter(|_| !has(Bug::IdempotencyForgotten)) else {
        return Ok(None);
    };
    let same = before.body_hash == *body_hash || has(Bug::BodyHashIgnored);
    if same { Ok(Some(before.bot_id)) } else { Err(Refusal::IdempotencyMismatch) }
}

/// The known use of a key: from an earlier job of this batch, or from the snapshot.
fn known_key(draft: &Draft<'_>, request: &ReserveRequest, key: &str) -> Option<KnownKey> {
    let new = draft.changes.new_keys.iter().find(|new| new.user == request.user && new.key == key);
    let new = new.map(|new| KnownKey { body_hash: new.body_hash.clone(), bot_id: new.bot });
    new.or_else(|| draft.base.key(request.user, key).cloned())
}
