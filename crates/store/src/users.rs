//! The users and their API keys. A key is stored as a hash, under the id that is its public part.

use domain::{KeyId, PROBE_USER, UserId};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::record::record;
use super::sql::{args, sql, sql_locking};
use super::{Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct UserRow, columns user_columns, read user {
        pub id: UserId,
        pub email: String,
        pub name: String,
        pub image_url: Option<String>,
        pub max_concurrent_bots: i64,
        /// The lowest priority number that the user's bots may have. A lower number goes first.
        pub min_priority: i64,
        pub data: Map<String, Value>,
        pub created_at: Timestamp,
        pub updated_at: Timestamp,
    }
}

record! {
    /// A stored API key: enough to recognise it, not enough to use it.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KeyRow, columns key_columns, read key {
        pub id: KeyId = key_id "api_keys.id",
        pub user_id: UserId = user_id "api_keys.user_id",
        /// SHA-256 of the whole key, in hex.
        pub hash: String = hash "api_keys.hash",
        pub created_at: Timestamp = key_created_at "api_keys.created_at",
        pub expires_at: Option<Timestamp> = expires_at "api_keys.expires_at",
    }
}

/// An operator's change of a user. An outer `None` leaves the value unchanged.
#[derive(Clone, Debug, Default)]
pub struct UserChange {
    pub email: Option<String>,
    pub name: Option<String>,
    pub image_url: Option<Option<String>>,
    pub max_concurrent_bots: Option<i64>,
    pub min_priority: Option<i64>,
    pub data: Option<Map<String, Value>>,
}

impl Store {
    pub async fn user(&self, id: UserId) -> Result<Option<UserRow>, StoreError> {
        self.reader()
            .first(sql!("users.read", "SELECT ", user_columns!(), " FROM users WHERE id = $1"), args![id])
            .await?
            .as_ref()
            .map(user)
            .transpose()
    }

    /// Users after `after`, oldest first. The user of probes is not among them.
    pub async fn users(&self, after: Option<UserId>, limit: i64) -> Result<Vec<UserRow>, StoreError> {
        self.reader()
            .all(
                sql!("users.list", "SELECT ", user_columns!(), " FROM users WHERE id > $1 ORDER BY id LIMIT $2"),
                // No id of another user is lower.
                args![after.map_or(PROBE_USER, |after| after.max(PROBE_USER)), limit],
            )
            .await?
            .iter()
            .map(user)
            .collect()
    }

    /// A key and its user.
    pub async fn key(&self, id: KeyId) -> Result<Option<(KeyRow, UserRow)>, StoreError> {
        self.reader()
            .first(
                sql!(
                    "keys.read",
                    "SELECT users.*, ",
                    key_columns!(),
                    " FROM api_keys JOIN users ON users.id = api_keys.user_id WHERE api_keys.id = $1"
                ),
                args![id],
            )
            .await?
            .map(|row| Ok((key(&row)?, user(&row)?)))
            .transpose()
    }
}

impl Tx {
    /// Reads the user and locks its row until the transaction ends, so that decisions under its limit happen one after
    /// the other.
    pub async fn hold_user(&mut self, id: UserId) -> Result<Option<UserRow>, StoreError> {
        self.first(sql_locking!("users.hold", "SELECT ", user_columns!(), " FROM users WHERE id = $1"), args![id])
            .await?
            .as_ref()
            .map(user)
            .transpose()
    }

    /// Whether there is a user, apart from the user of probes.
    pub async fn any_user(&mut self) -> Result<bool, StoreError> {
        let any = sql!("users.any", "SELECT id FROM users WHERE id > $1 LIMIT 1");
        Ok(self.first(any, args![PROBE_USER]).await?.is_some())
    }

    pub async fn insert_user(&mut self, user: &UserRow) -> Result<(), StoreError> {
        self.run(
            sql!(
                "users.insert",
                "INSERT INTO users (",
                user_columns!(),
                ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
            ),
            args![
                user.id,
                user.email.as_str(),
                user.name.as_str(),
                user.image_url.as_deref(),
                user.max_concurrent_bots,
                user.min_priority,
                &user.data,
                user.created_at,
                user.updated_at
            ],
        )
        .await
    }

    pub async fn update_user(&mut self, user: &UserRow) -> Result<(), StoreError> {
        self.run(
            sql!(
                "users.update",
                "UPDATE users SET email = $2, name = $3, image_url = $4, max_concurrent_bots = $5,
                        min_priority = $6, data = $7, updated_at = $8
                  WHERE id = $1"
            ),
            args![
                user.id,
                user.email.as_str(),
                user.name.as_str(),
                user.image_url.as_deref(),
                user.max_concurrent_bots,
                user.min_priority,
                &user.data,
                user.updated_at
            ],
        )
        .await
    }

    pub async fn insert_key(&mut self, key: &KeyRow) -> Result<(), StoreError> {
        self.run(
            sql!(
                "keys.insert",
                "INSERT INTO api_keys (id, user_id, hash, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)"
            ),
            args![key.id, key.user_id, key.hash.as_str(), key.created_at, key.expires_at],
        )
        .await
    }

    /// Sets every key of the user to expire at `at`, unless it expires earlier.
    pub async fn expire_keys(&mut self, user: UserId, at: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!(
                "keys.expire",
                "UPDATE api_keys SET expires_at = $2
                  WHERE user_id = $1 AND (expires_at IS NULL OR expires_at > $2)"
            ),
            args![user, at],
        )
        .await
    }
}
