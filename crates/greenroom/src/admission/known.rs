//! This module caches keys that were recently looked up, so that most requests need no database read to find the user.
//! A key that was rotated is removed here at once, and on other replicas within [`FRESH`]. Placement's transaction,
//! which decides on a bot, checks the key itself.

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
pub enum Recalled {
    /// The key belongs to this user.
    Good(UserId),
    /// The key belongs to no user.
    Bad,
    /// The key was valid before, and must be looked up again.
    Stale,
    /// The key is not in the cache, or was found invalid too long ago.
    Unseen,
}

#[derive(Debug)]
struct Good {
    user: UserId,
    expires_at: Option<Timestamp>,
    looked_up: Instant,
}

/// Keyed by the hash of the whole key.
#[derive(Debug, Default)]
pub struct KnownKeys(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    good: HashMap<String, Good>,
    bad: HashMap<String, Instant>,
}

impl KnownKeys {
    pub fn recall(&self, hash: &str, now: Timestamp) -> Recalled {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(good) = table.good.get(hash) {
            let has_ended = good.expires_at.is_some_and(|end| end <= now);
            let is_fresh = good.looked_up.elapsed() < FRESH && !has_ended;
            return if is_fresh { Recalled::Good(good.user) } else { Recalled::Stale };
        }
        match table.bad.get(hash) {
            Some(looked_up) if looked_up.elapsed() < FRESH => Recalled::Bad,
            _ => Recalled::Unseen,
        }
    }

    pub fn is_good(&self, hash: String, user: UserId, expires_at: Option<Timestamp>) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.bad.remove(&hash);
        if table.good.len() >= MOST {
            table.good.retain(|_, good| good.looked_up.elapsed() < REMEMBERED);
        }
        if table.good.len() >= MOST {
            // Nothing is lost: the keys are only looked up again.
            table.good.clear();
        }
        table.good.insert(hash, Good { user, expires_at, looked_up: Instant::now() });
    }

    pub fn is_bad(&self, hash: String) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.good.remove(&hash);
        if table.bad.len() >= MOST {
            table.bad.retain(|_, looked_up| looked_up.elapsed() < FRESH);
        }
        if table.bad.len() >= MOST {
            table.bad.clear();
        }
        table.bad.insert(hash, Instant::now());
    }

    /// Removes the keys of this user, because they have changed.
    pub fn forget(&self, user: UserId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).good.retain(|_, good| good.user != user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_keys_do_not_push_good_ones_out_and_do_not_pile_up() {
        let (known, user) = (KnownKeys::default(), UserId(uuid::Uuid::nil()));
        known.is_good("good".to_owned(), user, None);
        for number in 0..3 * MOST {
            known.is_bad(number.to_string());
        }
        assert_eq!(known.recall("good", Timestamp::UNIX_EPOCH), Recalled::Good(user));
        assert!(known.0.lock().unwrap_or_else(PoisonError::into_inner).bad.len() <= MOST);
        known.forget(user);
        assert_eq!(known.recall("good", Timestamp::UNIX_EPOCH), Recalled::Unseen);
    }

    #[test]
    fn a_key_that_ends_is_looked_up_again_from_then_on() {
        let (known, user, end) = (KnownKeys::default(), UserId(uuid::Uuid::nil()), Timestamp::UNIX_EPOCH);
        known.is_good("key".to_owned(), user, Some(end));
        let before = end.saturating_sub(Duration::from_secs(1)).unwrap_or(end);
        assert_eq!(known.recall("key", before), Recalled::Good(user));
        assert_eq!(known.recall("key", end), Recalled::Stale);
    }
}
