//! Admission finds out which user sends a request. The planner (`domain::planner`) checks the user's limit together
//! with the placement.
//!
//! - this file: authentication
//! - [`api_keys`]: API keys and the admin token
//! - [`known`]: keys that were recently looked up
//! - [`users`]: creating users and rotating keys

pub mod api_keys;
pub mod known;
pub mod users;

use std::sync::Arc;

use domain::{Meeting, Requirements, UserId};
use serde_json::{Map, Value};

use crate::clock::Clock;
use crate::context::Context;
use crate::random::{NoRandomness, Random};
use crate::store::{KeyRow, Store, StoreError};
use api_keys::ApiKey;
use known::{KnownKeys, Recalled};

/// A placeholder as long as a hash that no key can have.
const NO_HASH: &str = "----------------------------------------------------------------";

#[derive(Clone, Debug)]
pub struct Admission {
    store: Store,
    clock: Clock,
    random: Random,
    known: Arc<KnownKeys>,
}

/// A user's request for a bot.
#[derive(Clone, Debug)]
pub struct BotRequest {
    pub meeting: Meeting,
    pub bot_display_name: Option<String>,
    pub priority: i64,
    pub queue_timeout_ms: i64,
    /// The requirements as the user sent them, and as parsed.
    pub given_requirements: Option<Map<String, Value>>,
    pub requirements: Option<Requirements>,
    pub config: Map<String, Value>,
    pub metadata: Map<String, Value>,
    /// The idempotency key, with a hash of the whole request.
    pub idempotency: Option<(String, String)>,
}

/// Why the user is not known, or why a user or key could not be created.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    #[error("the API key is not known, or no longer valid")]
    Unauthorized,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Random(#[from] NoRandomness),
}

impl Admission {
    pub fn new(context: Context) -> Self {
        let Context { store, clock, random } = context;
        Self { store, clock, random, known: Arc::default() }
    }

    /// Returns the user whose key this is, or was a few seconds ago.
    pub async fn authenticate(&self, key: &ApiKey) -> Result<UserId, AdmissionError> {
        match self.recall(key) {
            Recalled::Good(user) => Ok(user),
            Recalled::Bad => Err(AdmissionError::Unauthorized),
            Recalled::Stale | Recalled::Unseen => self.look_up(key).await,
        }
    }

    /// Returns the cached state of a key, without the database.
    pub fn recall(&self, key: &ApiKey) -> Recalled {
        self.known.recall(&key.hash(), self.clock.now())
    }

    /// Looks a key up in the database, and caches the result.
    pub async fn look_up(&self, key: &ApiKey) -> Result<UserId, AdmissionError> {
        let found = self.store.key(key.id).await?.map(|(row, _)| row);
        let user = self.check(key, found.as_ref());
        match &user {
            Ok(user) => self.known.is_good(key.hash(), *user, found.and_then(|row| row.expires_at)),
            Err(_) => self.known.is_bad(key.hash()),
        }
        user
    }

    /// Returns the owner of a key that matches its row and has not expired.
    fn check(&self, key: &ApiKey, row: Option<&KeyRow>) -> Result<domain::UserId, AdmissionError> {
        // An unknown id is compared too, so that the answer takes the same time.
        let hash = row.map_or(NO_HASH, |row| row.hash.as_str());
        let matches = key.matches(hash);
        match row {
            Some(row) if matches && row.expires_at.is_none_or(|end| end > self.clock.now()) => Ok(row.user_id),
            _ => Err(AdmissionError::Unauthorized),
        }
    }
}
