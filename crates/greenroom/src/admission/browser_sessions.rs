//! This module lets people sign in with a browser. The browser keeps a random token in a cookie, and the database its
//! hash. A session may do what the API key or the admin token may with which it began, and ends with it.

use std::fmt;
use std::time::Duration;

use domain::{KeyId, UserId};
use jiff::Timestamp;

use super::api_keys::{self, ApiKey};
use super::session_cache::CachedSession;
use super::{Admission, AdmissionError};
use crate::random::{NoRandomness, Random};
use crate::store::BrowserSessionRow;

/// How long a session lasts.
pub const LIFETIME: Duration = Duration::from_hours(12);
/// How many sessions a user, or the operators together, may have. A new one ends the oldest.
const MOST_SESSIONS: i64 = 100;
/// The length of a token: 256 bits in base64.
const TOKEN_LENGTH: usize = 43;

/// The value of a session's cookie. It is never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionToken(String);

impl SessionToken {
    pub fn make(random: &Random) -> Result<Self, NoRandomness> {
        random.secret().map(Self)
    }

    /// `None` when the text cannot be the token of a session.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (text.len() == TOKEN_LENGTH && text.bytes().all(fits)).then(|| Self(text.to_owned()))
    }

    /// Returns the token's text, for the cookie of its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn hash(&self) -> String {
        api_keys::hash(&self.0)
    }

    /// Binds a session to the admin token. Without the session's token, which is not stored, nobody can guess an admin
    /// token from it.
    fn admin_proof(&self, admin_token_hash: &str) -> String {
        api_keys::hash(&format!("{}:{admin_token_hash}", self.0))
    }
}

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionToken(…)")
    }
}

/// Who signed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionOwner {
    Operator,
    User { user: UserId, key: KeyId },
}

/// A session that is valid now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowserSession {
    pub token: SessionToken,
    pub owner: SessionOwner,
    pub expires_at: Timestamp,
}

/// The credential of a user's request.
#[derive(Clone, Debug)]
pub enum UserCredential {
    Key(ApiKey),
    Session(SessionToken),
}

#[derive(Clone, Debug)]
pub struct BrowserSessions {
    admission: Admission,
    admin_token_hash: String,
}

impl BrowserSessions {
    pub fn new(admission: Admission, admin_token_hash: String) -> Self {
        Self { admission, admin_token_hash }
    }

    /// Whether this is the admin token.
    pub fn is_admin_token(&self, token: &str) -> bool {
        api_keys::same(&api_keys::hash(token), &self.admin_token_hash)
    }

    /// Begins a session for somebody whose token was checked.
    pub async fn sign_in(&self, owner: SessionOwner) -> Result<BrowserSession, AdmissionError> {
        let Admission { store, clock, random, .. } = &self.admission;
        let (now, token) = (clock.now(), SessionToken::make(random)?);
        let (user_id, key_id, admin_proof) = match owner {
            SessionOwner::Operator => (None, None, Some(token.admin_proof(&self.admin_token_hash))),
            SessionOwner::User { user, key } => (Some(user), Some(key), None),
        };
        let expires_at = now.saturating_add(LIFETIME).unwrap_or(Timestamp::MAX);
        let row = BrowserSessionRow {
            token_hash: token.hash(),
            user_id,
            key_id,
            admin_proof,
            created_at: now,
            expires_at,
            key_expires_at: None,
        };
        let mut tx = store.for_users().begin().await?;
        tx.prune_browser_sessions(user_id, MOST_SESSIONS - 1, now).await?;
        tx.insert_browser_session(&row).await?;
        tx.commit().await?;
        tracing::info!(user = user_id.map(tracing::field::display), "browser session created");
        Ok(BrowserSession { token, owner, expires_at })
    }

    /// Ends a session. It does nothing when the session has already ended.
    pub async fn sign_out(&self, token: &SessionToken) -> Result<(), AdmissionError> {
        let hash = token.hash();
        let mut tx = self.admission.store.for_users().begin().await?;
        tx.delete_browser_session(&hash).await?;
        tx.commit().await?;
        self.admission.session_cache.forget(&hash);
        tracing::info!("browser session ended");
        Ok(())
    }

    /// Returns the cached state of a session, without the database.
    pub fn cached(&self, token: &SessionToken) -> CachedSession {
        self.admission.session_cache.get(&token.hash(), self.admission.clock.now())
    }

    /// Returns a session that is valid, or was a moment ago.
    pub async fn find(&self, token: &SessionToken) -> Result<BrowserSession, AdmissionError> {
        match self.cached(token) {
            CachedSession::Valid(session) => Ok(session),
            CachedSession::Invalid => Err(AdmissionError::SessionEnded),
            CachedSession::Stale | CachedSession::Missing => self.look_up(token).await,
        }
    }

    async fn look_up(&self, token: &SessionToken) -> Result<BrowserSession, AdmissionError> {
        let (cache, hash) = (&self.admission.session_cache, token.hash());
        let generation = cache.generation();
        let found = self.admission.store.browser_session(&hash).await?;
        match found.and_then(|row| self.check(token, &row)) {
            Some(session) => {
                cache.insert_valid(hash, session.clone(), generation);
                Ok(session)
            }
            None => {
                cache.insert_invalid(hash);
                Err(AdmissionError::SessionEnded)
            }
        }
    }

    /// Returns the session of a row, if neither it nor its key or admin token has ended.
    fn check(&self, token: &SessionToken, row: &BrowserSessionRow) -> Option<BrowserSession> {
        let now = self.admission.clock.now();
        let has_ended = row.expires_at <= now || row.key_expires_at.is_some_and(|end| end <= now);
        let owner = match (row.user_id, row.key_id, &row.admin_proof) {
            (Some(user), Some(key), None) => SessionOwner::User { user, key },
            (None, None, Some(proof)) if api_keys::same(proof, &token.admin_proof(&self.admin_token_hash)) => {
                SessionOwner::Operator
            }
            _ => return None,
        };
        (!has_ended).then(|| BrowserSession { token: token.clone(), owner, expires_at: row.expires_at })
    }

    /// Returns the user who makes a request, and the API key that it counts under.
    pub async fn user_of(&self, credential: &UserCredential) -> Result<(UserId, KeyId), AdmissionError> {
        match credential {
            UserCredential::Key(key) => Ok((self.admission.authenticate(key).await?, key.id)),
            UserCredential::Session(token) => match self.find(token).await?.owner {
                SessionOwner::User { user, key } => Ok((user, key)),
                SessionOwner::Operator => Err(AdmissionError::Unauthorized),
            },
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_parsed_only_if_it_could_have_been_made() {
        let token = SessionToken::make(&Random::seeded(1)).unwrap();
        assert_eq!(SessionToken::parse(token.reveal()), Some(token.clone()));
        assert!(!format!("{token:?}").contains(token.reveal()));
        for text in ["", "x", &format!("{}x", token.reveal()), &format!("{}\"", &token.reveal()[1..])] {
            assert_eq!(SessionToken::parse(text), None, "{text}");
        }
    }
}
