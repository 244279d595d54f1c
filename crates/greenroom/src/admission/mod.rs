//! Who may ask for a bot, and whether there is room for it. A reservation is one transaction: the key, the
//! idempotency key, one running bot per user and meeting, the limit, the insert. The user is held meanwhile, so that
//! no number of requests at once, in one process or in twenty, passes a limit.
//!
//! - this file: reservation
//! - [`keys`]: API keys and the admin token
//! - [`users`]: making users and rotating keys

pub mod keys;
pub mod users;

use domain::{BotId, Meeting, Status};
use serde_json::{Map, Value};

use crate::clock::Clock;
use crate::random::{NoRandomness, Random};
use crate::store::{Actor, BotRow, Kind, KnownKey, NewBot, NewEvent, Store, StoreError, Tx, UserRow};
use keys::ApiKey;

/// As long as a hash, and the hash of nothing.
const NO_HASH: &str = "----------------------------------------------------------------";

#[derive(Clone, Debug)]
pub struct Admission {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
}

/// What a user asks for.
#[derive(Clone, Debug)]
pub struct Wish {
    pub meeting: Meeting,
    pub bot_display_name: Option<String>,
    pub priority: i64,
    pub queue_timeout_ms: i64,
    pub config: Map<String, Value>,
    pub metadata: Map<String, Value>,
    /// The caller's key, with a hash of all that was asked under it.
    pub idempotency: Option<(String, String)>,
}

/// A bot that was admitted, now or at an earlier asking under the same idempotency key.
#[derive(Clone, Debug)]
pub struct Reserved {
    pub bot: BotRow,
    pub is_new: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    #[error("the API key is not known, or no longer valid")]
    Unauthorized,
    #[error("the idempotency key was used before with another body")]
    IdempotencyMismatch,
    #[error("a bot of yours is already at this meeting")]
    DuplicateBot(BotId),
    #[error("{running} of {limit} bots are running")]
    LimitReached { running: i64, limit: i64 },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Random(#[from] NoRandomness),
}

impl Admission {
    pub fn new(store: Store, clock: Clock, random: Random) -> Self {
        Self { store, clock, random }
    }

    /// The user whose key this is.
    pub async fn authenticate(&self, key: &ApiKey) -> Result<UserRow, AdmissionError> {
        let row = self.store.key(key.id).await?;
        let user = self.check(key, row)?;
        self.store.user(user).await?.ok_or(AdmissionError::Unauthorized)
    }

    /// Reserves a bot, or says why not.
    pub async fn reserve(&self, key: &ApiKey, wish: Wish) -> Result<Reserved, AdmissionError> {
        let mut tx = self.store.begin().await?;
        let row = tx.key(key.id).await?;
        let user_id = self.check(key, row)?;
        let user = tx.hold_user(user_id).await?.ok_or(AdmissionError::Unauthorized)?;

        if let Some((idempotency_key, body_hash)) = &wish.idempotency
            && let Some(known) = tx.idempotency_key(user.id, idempotency_key).await?
        {
            if known.body_hash != *body_hash {
                return Err(AdmissionError::IdempotencyMismatch);
            }
            if let Some(bot) = tx.bot(known.bot_id).await? {
                return Ok(Reserved { bot, is_new: false });
            }
        }

        let meeting = &wish.meeting;
        let (running, there) = tx.running_bots_of(user.id, meeting.platform, &meeting.native_id).await?;
        if let Some(bot) = there {
            return Err(AdmissionError::DuplicateBot(bot));
        }
        if running >= user.max_concurrent_bots {
            return Err(AdmissionError::LimitReached { running, limit: user.max_concurrent_bots });
        }
        self.insert(tx, &user, wish).await
    }

    async fn insert(&self, mut tx: Tx, user: &UserRow, wish: Wish) -> Result<Reserved, AdmissionError> {
        let now = self.clock.now();
        let new = NewBot {
            id: BotId(self.random.id(now)?),
            user_id: user.id,
            platform: wish.meeting.platform,
            native_meeting_id: wish.meeting.native_id,
            meeting_url: wish.meeting.url,
            bot_display_name: wish.bot_display_name,
            priority: wish.priority,
            queue_timeout_ms: wish.queue_timeout_ms,
            config: wish.config,
            metadata: wish.metadata,
        };
        tx.insert_bot(&new, now).await?;
        if let Some((key, body_hash)) = wish.idempotency {
            tx.insert_idempotency_key(user.id, &key, &KnownKey { body_hash, bot_id: new.id }, now).await?;
        }
        let event = NewEvent {
            bot_id: new.id,
            user_id: user.id,
            kind: Kind::Created,
            from: None,
            to: Some(Status::Reserved),
            reason: None,
            actor: Actor::User,
        };
        tx.record(&event, now).await?;
        tx.commit().await?;
        tracing::info!(bot = %new.id, user = %user.id, platform = %new.platform, to = "reserved", "bot reserved");
        Ok(Reserved { bot: new.into_row(now), is_new: true })
    }

    /// The owner of a key that is what its row says and has not ended.
    fn check(&self, key: &ApiKey, row: Option<crate::store::KeyRow>) -> Result<domain::UserId, AdmissionError> {
        // An unknown id is compared as well, so that the answer takes as long.
        let hash = row.as_ref().map_or(NO_HASH, |row| row.hash.as_str());
        let matches = key.matches(hash);
        match row {
            Some(row) if matches && row.expires_at.is_none_or(|end| end > self.clock.now()) => Ok(row.user_id),
            _ => Err(AdmissionError::Unauthorized),
        }
    }
}
