//! Who may ask for a bot, and whether there is room for it under their limit: the key, the idempotency key, one running
//! bot per user and meeting, the limit. Batches of requests are decided one at a time, so that no number of requests at
//! once, in one process or in twenty, passes a limit.
//!
//! - this file: who asks
//! - [`desk`]: the decision on a batch of requests
//! - [`keys`]: API keys and the admin token
//! - [`known`]: keys that were looked up a moment ago
//! - [`users`]: making users and rotating keys

mod desk;
pub mod keys;
pub mod known;
pub mod users;

use std::sync::Arc;

use domain::{BotId, Meeting, Requirements, UserId};
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::clock::Clock;
use crate::random::{NoRandomness, Random};
use crate::store::{KeyRow, NewBot, Store, StoreError, Tx};
use desk::Desk;
use keys::ApiKey;
use known::{KnownKeys, Recalled};

/// As long as a hash, and the hash of nothing.
const NO_HASH: &str = "----------------------------------------------------------------";

#[derive(Clone, Debug)]
pub struct Admission {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    known: Arc<KnownKeys>,
}

/// What a user asks for.
#[derive(Clone, Debug)]
pub struct Wish {
    pub meeting: Meeting,
    pub bot_display_name: Option<String>,
    pub priority: i64,
    pub queue_timeout_ms: i64,
    /// What the bot asks of its slot, as it was asked, and read.
    pub requirements: Option<Map<String, Value>>,
    pub wants: Option<Requirements>,
    pub config: Map<String, Value>,
    pub metadata: Map<String, Value>,
    /// The caller's key, with a hash of all that was asked under it.
    pub idempotency: Option<(String, String)>,
}

/// A user's wish, under the key that it came with.
#[derive(Clone, Debug)]
pub struct Request {
    pub key: ApiKey,
    pub wish: Wish,
}

/// What admission says to a request.
#[derive(Clone, Debug)]
pub enum Admitted {
    /// There is room for it.
    New(Box<NewBot>),
    /// It was asked for before, under the same idempotency key.
    Known(BotId),
}

#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    #[error("the API key is not known, or no longer valid")]
    Unauthorized,
    /// Whoever asked for this knows why.
    #[error("there is no slot that could ever do")]
    NothingFits,
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
        Self { store, clock, random, known: Arc::default() }
    }

    /// The user whose key this is, or was a few seconds ago.
    pub async fn authenticate(&self, key: &ApiKey) -> Result<UserId, AdmissionError> {
        match self.recall(key) {
            Recalled::Good(user) => Ok(user),
            Recalled::Bad => Err(AdmissionError::Unauthorized),
            Recalled::Stale | Recalled::Unseen => self.look_up(key).await,
        }
    }

    /// What is known of a key without the database.
    pub fn recall(&self, key: &ApiKey) -> Recalled {
        self.known.recall(&key.hash(), self.clock.now())
    }

    /// Looks a key up in the database, and remembers what came of it.
    pub async fn look_up(&self, key: &ApiKey) -> Result<UserId, AdmissionError> {
        let found = self.store.key(key.id).await?.map(|(row, _)| row);
        let user = self.check(key, found.as_ref());
        match &user {
            Ok(user) => self.known.is_good(key.hash(), *user, found.and_then(|row| row.expires_at)),
            Err(_) => self.known.is_bad(key.hash()),
        }
        user
    }

    /// Decides on a batch of requests, one after the other, as of `tx`. Of each it is said whether a slot could ever do for it.
    /// What is admitted is not written yet: that is placement's to do.
    pub async fn admit(
        &self,
        tx: &mut Tx,
        requests: &[Request],
        possible: &[bool],
        now: Timestamp,
    ) -> Result<Vec<Result<Admitted, AdmissionError>>, AdmissionError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let mut desk = Desk::open(tx, requests).await?;
        let mut said = Vec::with_capacity(requests.len());
        for (at, request) in requests.iter().enumerate() {
            let id = BotId(self.random.id(now)?);
            said.push(desk.decide(self, at, request, possible.get(at).copied().unwrap_or(false), id));
        }
        Ok(said)
    }

    /// The owner of a key that is what its row says and has not ended.
    fn check(&self, key: &ApiKey, row: Option<&KeyRow>) -> Result<domain::UserId, AdmissionError> {
        // An unknown id is compared as well, so that the answer takes as long.
        let hash = row.map_or(NO_HASH, |row| row.hash.as_str());
        let matches = key.matches(hash);
        match row {
            Some(row) if matches && row.expires_at.is_none_or(|end| end > self.clock.now()) => Ok(row.user_id),
            _ => Err(AdmissionError::Unauthorized),
        }
    }
}
