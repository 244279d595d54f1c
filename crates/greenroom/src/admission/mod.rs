//! Admission finds out which user sends a request. The planner (`domain::planner`) checks the user's limit together
//! with the placement.
//!
//! - this file: authentication
//! - [`api_keys`]: API keys and the admin token
//! - [`key_cache`]: keys that were recently looked up
//! - [`users`]: creating users and rotating keys
//! - [`browser_sessions`], [`session_cache`]: people who signed in with a browser

pub mod api_keys;
pub mod browser_sessions;
pub mod key_cache;
pub mod session_cache;
pub mod users;

use std::sync::Arc;

use domain::{Meeting, Requirements, UserId};
use serde_json::{Map, Value};

use crate::clock::Clock;
use crate::context::Context;
use crate::random::{NoRandomness, Random};
use crate::store::{KeyRow, Store, StoreError};
use api_keys::ApiKey;
use key_cache::{CachedKey, KeyCache};
use session_cache::SessionCache;

/// A placeholder as long as a hash that no key can have.
const NO_HASH: &str = "----------------------------------------------------------------";

#[derive(Clone, Debug)]
pub struct Admission {
    store: Store,
    clock: Clock,
    random: Random,
    key_cache: Arc<KeyCache>,
    session_cache: Arc<SessionCache>,
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
    #[error("the browser session has ended; sign in again with POST /session")]
    SessionEnded,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Random(#[from] NoRandomness),
}

impl Admission {
    pub fn new(context: Context) -> Self {
        let Context { store, clock, random } = context;
        Self { store, clock, random, key_cache: Arc::default(), session_cache: Arc::default() }
    }

    /// Returns the user whose key this is, or was a few seconds ago.
    pub async fn authenticate(&self, key: &ApiKey) -> Result<UserId, AdmissionError> {
        match self.cached_key(key) {
            CachedKey::Valid(user) => Ok(user),
            CachedKey::Invalid => Err(AdmissionError::Unauthorized),
            CachedKey::Stale | CachedKey::Missing => self.look_up(key).await,
        }
    }

    /// Returns the cached state of a key, without the database.
    pub fn cached_key(&self, key: &ApiKey) -> CachedKey {
        self.key_cache.get(&key.hash(), self.clock.now(), self.store.users_generation())
    }

    /// Looks a key up in the database, and caches the result.
    pub async fn look_up(&self, key: &ApiKey) -> Result<UserId, AdmissionError> {
        // Read first, so that a change during the look-up makes its result stale.
        let generation = self.store.users_generation();
        let found = self.store.key(key.id).await?.map(|(row, _)| row);
        let user = self.check(key, found.as_ref());
        match &user {
            Ok(user) => {
                self.key_cache.insert_valid(key.hash(), *user, found.and_then(|row| row.expires_at), generation);
            }
            Err(_) => self.key_cache.insert_invalid(key.hash()),
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
