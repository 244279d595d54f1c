//! This module caches browser sessions for a moment, so that a page that makes many calls needs few database reads. A
//! session that ends here is removed at once. Other replicas notice it within [`FRESH`].

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::UserId;
use jiff::Timestamp;

use super::browser_sessions::{BrowserSession, SessionOwner};

/// How long the result of a look-up is used. A session that ended must be invalid everywhere within a second, also for
/// a stream that checks it twice a second.
const FRESH: Duration = Duration::from_millis(400);
/// The limit for valid sessions, and separately for invalid ones.
const MOST: usize = 10_000;

/// The cached state of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CachedSession {
    Valid(BrowserSession),
    Invalid,
    /// The session was valid before, and must be looked up again.
    Stale,
    Missing,
}

/// Keyed by the hash of the session's token.
#[derive(Debug, Default)]
pub struct SessionCache(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    valid: HashMap<String, (BrowserSession, Instant)>,
    invalid: HashMap<String, Instant>,
    /// Counts what was forgotten, so that a look-up that began before is not kept.
    forgotten: u64,
}

impl SessionCache {
    pub fn get(&self, hash: &str, now: Timestamp) -> CachedSession {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((session, looked_up)) = table.valid.get(hash) {
            let is_fresh = looked_up.elapsed() < FRESH && session.expires_at > now;
            return if is_fresh { CachedSession::Valid(session.clone()) } else { CachedSession::Stale };
        }
        match table.invalid.get(hash) {
            Some(looked_up) if looked_up.elapsed() < FRESH => CachedSession::Invalid,
            _ => CachedSession::Missing,
        }
    }

    /// A number that changes when a session is forgotten. A look-up reads it first.
    pub fn generation(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).forgotten
    }

    /// Keeps a valid session, unless one was forgotten since `generation`: it may be this one.
    pub fn insert_valid(&self, hash: String, session: BrowserSession, generation: u64) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.forgotten != generation {
            return;
        }
        table.invalid.remove(&hash);
        if table.valid.len() >= MOST {
            table.valid.retain(|_, (_, looked_up)| looked_up.elapsed() < FRESH);
        }
        if table.valid.len() >= MOST {
            // Nothing is lost: the sessions are only looked up again.
            table.valid.clear();
        }
        table.valid.insert(hash, (session, Instant::now()));
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

    /// Removes a session that has ended.
    pub fn forget(&self, hash: &str) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.valid.remove(hash);
        table.forgotten += 1;
    }

    /// Removes the sessions of a user, because its keys have changed.
    pub fn forget_user(&self, user: UserId) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.valid.retain(|_, (session, _)| match session.owner {
            SessionOwner::User { user: owner, .. } => owner != user,
            SessionOwner::Operator => true,
        });
        table.forgotten += 1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::admission::browser_sessions::SessionToken;
    use crate::random::Random;

    fn session(owner: SessionOwner) -> BrowserSession {
        BrowserSession { token: SessionToken::make(&Random::seeded(1)).unwrap(), owner, expires_at: Timestamp::MAX }
    }

    #[test]
    fn a_look_up_that_began_before_the_session_ended_is_not_kept() {
        let cache = SessionCache::default();
        let generation = cache.generation();
        cache.forget("hash");
        cache.insert_valid("hash".to_owned(), session(SessionOwner::Operator), generation);
        assert_eq!(cache.get("hash", Timestamp::UNIX_EPOCH), CachedSession::Missing);
    }

    #[test]
    fn only_the_sessions_of_the_user_are_forgotten_and_an_expired_one_is_stale() {
        let cache = SessionCache::default();
        let user = UserId(uuid::Uuid::from_u128(1));
        let key = domain::KeyId(uuid::Uuid::nil());
        cache.insert_valid("user".to_owned(), session(SessionOwner::User { user, key }), 0);
        cache.insert_valid("operator".to_owned(), session(SessionOwner::Operator), 0);
        assert_eq!(cache.get("operator", Timestamp::MAX), CachedSession::Stale);
        cache.forget_user(user);
        assert_eq!(cache.get("user", Timestamp::UNIX_EPOCH), CachedSession::Missing);
        assert!(matches!(cache.get("operator", Timestamp::UNIX_EPOCH), CachedSession::Valid(_)));
    }

    #[test]
    fn invalid_sessions_do_not_evict_valid_ones_and_do_not_accumulate() {
        let cache = SessionCache::default();
        cache.insert_valid("good".to_owned(), session(SessionOwner::Operator), 0);
        for number in 0..3 * MOST {
            cache.insert_invalid(number.to_string());
        }
        // A slow machine may need longer than a session stays fresh.
        assert_ne!(cache.get("good", Timestamp::UNIX_EPOCH), CachedSession::Missing);
        assert!(cache.0.lock().unwrap_or_else(PoisonError::into_inner).invalid.len() <= MOST);
    }
}
