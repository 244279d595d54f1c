//! The sessions of people who signed in with a browser. A session is stored under the hash of its token, so that a
//! reader of the database cannot use it.

use domain::{KeyId, UserId};
use jiff::Timestamp;

use super::record::record;
use super::sql::{args, sql};
use super::{Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct BrowserSessionRow, columns session_columns, read session {
        /// SHA-256 of the token, in hex.
        pub token_hash: String = token_hash "browser_sessions.token_hash",
        /// The user and its API key. `None` for an operator.
        pub user_id: Option<UserId> = user_id "browser_sessions.user_id",
        pub key_id: Option<KeyId> = key_id "browser_sessions.key_id",
        /// For an operator: what binds the session to the admin token.
        pub admin_proof: Option<String> = admin_proof "browser_sessions.admin_proof",
        pub created_at: Timestamp = created_at "browser_sessions.created_at",
        pub expires_at: Timestamp = expires_at "browser_sessions.expires_at",
        /// When the API key expires.
        pub key_expires_at: Option<Timestamp> = key_expires_at "api_keys.expires_at",
    }
}

impl Store {
    /// A session by the hash of its token, expired or not.
    pub async fn browser_session(&self, token_hash: &str) -> Result<Option<BrowserSessionRow>, StoreError> {
        self.reader()
            .first(
                sql!(
                    "browser_sessions.read",
                    "SELECT ",
                    session_columns!(),
                    " FROM browser_sessions
                      LEFT JOIN api_keys ON api_keys.id = browser_sessions.key_id
                     WHERE browser_sessions.token_hash = $1
                       AND (browser_sessions.key_id IS NULL OR api_keys.id IS NOT NULL)"
                ),
                args![token_hash],
            )
            .await?
            .as_ref()
            .map(session)
            .transpose()
    }
}

impl Tx {
    pub async fn insert_browser_session(&mut self, session: &BrowserSessionRow) -> Result<(), StoreError> {
        self.run(
            sql!(
                "browser_sessions.insert",
                "INSERT INTO browser_sessions (token_hash, user_id, key_id, admin_proof, created_at, expires_at)
                 VALUES ($1, $2, $3, $4, $5, $6)"
            ),
            args![
                session.token_hash.as_str(),
                session.user_id,
                session.key_id,
                session.admin_proof.as_deref(),
                session.created_at,
                session.expires_at
            ],
        )
        .await
    }

    /// Deletes every expired session, and all but the newest `most` of this user, or of the operators.
    pub async fn prune_browser_sessions(
        &mut self,
        user: Option<UserId>,
        most: i64,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.run(sql!("browser_sessions.expire", "DELETE FROM browser_sessions WHERE expires_at <= $1"), args![now])
            .await?;
        self.run(
            sql!(
                "browser_sessions.prune",
                "DELETE FROM browser_sessions
                  WHERE token_hash IN (SELECT token_hash
                                         FROM browser_sessions
                                        WHERE user_id = $1 OR ($1 IS NULL AND user_id IS NULL)
                                        ORDER BY created_at DESC, token_hash
                                        LIMIT 1000000 OFFSET $2)"
            ),
            args![user, most],
        )
        .await
    }

    pub async fn delete_browser_session(&mut self, token_hash: &str) -> Result<(), StoreError> {
        self.run(
            sql!("browser_sessions.delete", "DELETE FROM browser_sessions WHERE token_hash = $1"),
            args![token_hash],
        )
        .await
    }

    /// Deletes all sessions of a user, because its API keys were rotated.
    pub async fn delete_browser_sessions_of(&mut self, user: UserId) -> Result<(), StoreError> {
        self.run(
            sql!("browser_sessions.delete_of_user", "DELETE FROM browser_sessions WHERE user_id = $1"),
            args![user],
        )
        .await
    }
}
