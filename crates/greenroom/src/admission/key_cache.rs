//! This module caches keys that were recently looked up, so that most requests need no database read to find the user.
//! A key that was rotated or deleted is removed here at once. Other replicas look every key up again when they learn from
//! placement's journal that a user has changed, and at the latest after [`FRESH`]. Placement's transaction, which
//! decides on a bot, checks the key itself.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::UserId;
use jiff::Timestamp;

/// How long the result of a look-up is used.
const FRESH: Duration = Duration::from_secs(5);
/// How long a full cache still remembers a valid key after its last look-up.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// The limit for valid keys, and separately for invalid ones.
const MOST: usize = 10_000;

/// The cached state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedKey {
    /// The key belongs to this user.
    Valid(UserId),
    /// The key belongs to no user.
    Invalid,
    /// The key was valid before, and must be looked up again.
    Stale,
    /// The key is not in the cache, or was found invalid too long ago.
    Missing,
}

#[derive(Debug)]
struct ValidKey {
    user: UserId,
    expires_at: Option<Timestamp>,
    looked_up: Instant,
    /// The generation of all users before the look-up.
    generation: u64,
}

/// Keyed by the hash of the whole key.
#[derive(Debug, Default)]
pub struct KeyCache(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    valid: HashMap<String, ValidKey>,
    invalid: HashMap<String, Instant>,
}

impl KeyCache {
    /// The state of a key, while the users have this generation.
    pub fn get(&self, hash: &str, now: Timestamp, generation: u64) -> CachedKey {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = table.valid.get(hash) {
            let has_ended = key.expires_at.is_some_and(|end| end <= now);
            let is_fresh = key.looked_up.elapsed() < FRESH && key.generation == generation && !has_ended;
            return if is_fresh { CachedKey::Valid(key.user) } else { CachedKey::Stale };
        }
        match table.invalid.get(hash) {
            Some(looked_up) if looked_up.elapsed() < FRESH => CachedKey::Invalid,
            _ => CachedKey::Missing,
        }
    }

    pub fn insert_valid(&self, hash: String, user: UserId, expires_at: Option<Timestamp>, generation: u64) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.invalid.remove(&hash);
        if table.valid.len() >= MOST {
            table.valid.retain(|_, key| key.looked_up.elapsed() < REMEMBERED);
        }
        if table.valid.len() >= MOST {
            // Nothing is lost: the keys are only looked up again.
            table.valid.clear();
        }
        table.valid.insert(hash, ValidKey { user, expires_at, looked_up: Instant::now(), generation });
    }

    pub fn insert_invalid(&self, hash: String) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.valid.remove(&hash);
        if table.invalid.len() >= MOST {
            table.invalid.retain(|_, looked_up| looked_up.elapsed() < FRESH);
        }
        if table.invalid.len() >= MOST {
            table.invalid.clear();
        }
        table.invalid.insert(hash, Instant::now());
    }

    /// Removes the keys of this user, because they have changed.
    pub fn forget(&self, user: UserId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).valid.retain(|_, key| key.user != user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_keys_do_not_evict_valid_ones_and_do_not_accumulate() {
        let (cache, user) = (KeyCache::default(), UserId(uuid::Uuid::nil()));
        cache.insert_valid("good".to_owned(), user, None, 0);
        for number in 0..3 * MOST {
            cache.insert_invalid(number.to_string());
        }
        assert_eq!(cache.get("good", Timestamp::UNIX_EPOCH, 0), CachedKey::Valid(user));
        assert!(cache.0.lock().unwrap_or_else(PoisonError::into_inner).invalid.len() <= MOST);
        cache.forget(user);
        assert_eq!(cache.get("good", Timestamp::UNIX_EPOCH, 0), CachedKey::Missing);
    }

    #[test]
    fn a_key_that_ends_is_looked_up_again_from_then_on() {
        let (cache, user, end) = (KeyCache::default(), UserId(uuid::Uuid::nil()), Timestamp::UNIX_EPOCH);
        cache.insert_valid("key".to_owned(), user, Some(end), 0);
        let before = end.saturating_sub(Duration::from_secs(1)).unwrap_or(end);
        assert_eq!(cache.get("key", before, 0), CachedKey::Valid(user));
        assert_eq!(cache.get("key", end, 0), CachedKey::Stale);
    }

    #[test]
    fn a_key_is_looked_up_again_when_a_user_has_changed() {
        let (cache, user) = (KeyCache::default(), UserId(uuid::Uuid::nil()));
        cache.insert_valid("key".to_owned(), user, None, 7);
        assert_eq!(cache.get("key", Timestamp::UNIX_EPOCH, 7), CachedKey::Valid(user));
        assert_eq!(cache.get("key", Timestamp::UNIX_EPOCH, 8), CachedKey::Stale);
    }
}
