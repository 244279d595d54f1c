//! Users and their API keys. A key is stored as a hash under the id that is its public half.

use domain::{KeyId, UserId};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::sql::{Row, args, sql, sql_locking};
use super::{Run, Store, StoreError, Tx};

#[derive(Clone, Debug, PartialEq)]
pub struct UserRow {
    pub id: UserId,
    pub email: String,
    pub name: String,
    pub image_url: Option<String>,
    pub max_concurrent_bots: i64,
    /// No bot of it goes before this priority.
    pub min_priority: i64,
    pub data: Map<String, Value>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// An API key as stored: enough to recognise it, not enough to use it.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRow {
    pub id: KeyId,
    pub user_id: UserId,
    /// SHA-256 of the whole key, in hex.
    pub hash: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

/// What an operator changes of a user; the outer `None` leaves it as it is.
#[derive(Clone, Debug, Default)]
pub struct UserChange {
    pub email: Option<String>,
    pub name: Option<String>,
    pub image_url: Option<Option<String>>,
    pub max_concurrent_bots: Option<i64>,
    pub min_priority: Option<i64>,
    pub data: Option<Map<String, Value>>,
}

macro_rules! user_columns {
    () => {
        "id, email, name, image_url, max_concurrent_bots, min_priority, data, created_at, updated_at"
    };
}

fn user(row: &Row) -> Result<UserRow, StoreError> {
    Ok(UserRow {
        id: UserId(row.id("id")?),
        email: row.text("email")?,
        name: row.text("name")?,
        image_url: row.maybe_text("image_url")?,
        max_concurrent_bots: row.int("max_concurrent_bots")?,
        min_priority: row.int("min_priority")?,
        data: row.json("data")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

fn key(row: &Row) -> Result<KeyRow, StoreError> {
    Ok(KeyRow {
        id: KeyId(row.id("key_id")?),
        user_id: UserId(row.id("id")?),
        hash: row.text("hash")?,
        created_at: row.time("key_created_at")?,
        expires_at: row.maybe_time("expires_at")?,
    })
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

    /// Oldest first, those after `after`.
    pub async fn users(&self, after: Option<UserId>, limit: i64) -> Result<Vec<UserRow>, StoreError> {
        self.reader()
            .all(
                sql!("users.list", "SELECT ", user_columns!(), " FROM users WHERE id > $1 ORDER BY id LIMIT $2"),
                args![after.unwrap_or(UserId(uuid::Uuid::nil())), limit],
            )
            .await?
            .iter()
            .map(user)
            .collect()
    }

    /// A key and whose it is.
    pub async fn key(&self, id: KeyId) -> Result<Option<(KeyRow, UserRow)>, StoreError> {
        self.reader()
            .first(
                sql!(
                    "keys.read",
                    "SELECT users.*, api_keys.id AS key_id, api_keys.hash, api_keys.created_at AS key_created_at, api_keys.expires_at
                       FROM api_keys JOIN users ON users.id = api_keys.user_id WHERE api_keys.id = $1"
                ),
                args![id],
            )
            .await?
            .map(|row| Ok((key(&row)?, user(&row)?)))
            .transpose()
    }
}

impl Tx {
    /// The user, held until the transaction ends: what is decided under its limit is decided one after the other.
    pub async fn hold_user(&mut self, id: UserId) -> Result<Option<UserRow>, StoreError> {
        self.first(sql_locking!("users.hold", "SELECT ", user_columns!(), " FROM users WHERE id = $1"), args![id])
            .await?
            .as_ref()
            .map(user)
            .transpose()
    }

    pub async fn any_user(&mut self) -> Result<bool, StoreError> {
        Ok(self.first(sql!("users.any", "SELECT id FROM users LIMIT 1"), vec![]).await?.is_some())
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

    /// Lets every key of the user end at `at`, unless it ends before.
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
