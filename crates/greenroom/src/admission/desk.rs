//! The decision on a batch of requests. All that they need to know is read at once; then they are decided one after the
//! other, each seeing what those before it were given, as if each had come alone.

use std::collections::HashMap;

use domain::{BotId, Platform, UserId};

use super::{Admission, AdmissionError, Admitted, Request, Wish};
use crate::store::{Asking, Known, KnownKey, NewBot, StoreError, Tx};

/// A meeting as a user's: what no two running bots may share.
type AtMeeting = (UserId, Platform, String);

pub(super) struct Desk {
    /// Of each request, what was known before the batch.
    known: Vec<Option<Known>>,
    /// What those before it were given.
    admitted: HashMap<UserId, i64>,
    keys: HashMap<(UserId, String), KnownKey>,
    there: HashMap<AtMeeting, BotId>,
}

impl Desk {
    pub async fn open(tx: &mut Tx, requests: &[Request]) -> Result<Self, StoreError> {
        let asking: Vec<Asking> = requests
            .iter()
            .map(|Request { key, wish }| Asking {
                key: key.id,
                idempotency_key: wish.idempotency.as_ref().map(|(key, _)| key.clone()),
                platform: wish.meeting.platform,
                native_meeting_id: wish.meeting.native_id.clone(),
            })
            .collect();
        let known = tx.known(&asking).await?;
        Ok(Self { known, admitted: HashMap::new(), keys: HashMap::new(), there: HashMap::new() })
    }

    /// Decides on the request at this place; `id` is the bot's if it is admitted.
    pub fn decide(
        &mut self,
        admission: &Admission,
        at: usize,
        request: &Request,
        is_possible: bool,
        id: BotId,
    ) -> Result<Admitted, AdmissionError> {
        let known = self.known.get(at).and_then(Option::as_ref);
        let user = admission.check(&request.key, known.map(|known| &known.key))?;
        let known = known.ok_or(AdmissionError::Unauthorized)?;
        let wish = &request.wish;
        let meeting: AtMeeting = (user, wish.meeting.platform, wish.meeting.native_id.clone());
        let key = wish.idempotency.as_ref().map(|(key, body_hash)| ((user, key.clone()), body_hash));
        if let Some((key, body_hash)) = &key
            && let Some(before) = known.before.as_ref().or_else(|| self.keys.get(key))
        {
            return if before.body_hash == **body_hash {
                Ok(Admitted::Known(before.bot_id))
            } else {
                Err(AdmissionError::IdempotencyMismatch)
            };
        }
        if !is_possible {
            return Err(AdmissionError::NothingFits);
        }
        if let Some(bot) = known.there.or_else(|| self.there.get(&meeting).copied()) {
            return Err(AdmissionError::DuplicateBot(bot));
        }
        let admitted = self.admitted.entry(user).or_default();
        let (running, limit) = (known.running + *admitted, known.max_concurrent_bots);
        if running >= limit {
            return Err(AdmissionError::LimitReached { running, limit });
        }
        *admitted += 1;
        self.there.insert(meeting, id);
        if let Some((key, body_hash)) = key {
            self.keys.insert(key, KnownKey { body_hash: body_hash.clone(), bot_id: id });
        }
        Ok(Admitted::New(Box::new(new_bot(id, user, wish))))
    }
}

fn new_bot(id: BotId, user_id: UserId, wish: &Wish) -> NewBot {
    NewBot {
        id,
        user_id,
        platform: wish.meeting.platform,
        native_meeting_id: wish.meeting.native_id.clone(),
        meeting_url: wish.meeting.url.clone(),
        bot_display_name: wish.bot_display_name.clone(),
        priority: wish.priority,
        queue_timeout_ms: wish.queue_timeout_ms,
        requirements: wish.requirements.clone(),
        wants: wish.wants.clone(),
        config: wish.config.clone(),
        metadata: wish.metadata.clone(),
        pool: None,
        slot: None,
        connection_id: None,
        is_awaited: false,
    }
}
