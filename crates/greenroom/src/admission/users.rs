//! This module creates users and their keys.

use std::time::Duration;

use domain::{PROBE_USER, PROBES_MAX, UserId};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::api_keys::ApiKey;
use super::{Admission, AdmissionError};
use crate::store::{Changed, KeyRow, NewAuditEntry, Tx, UserChange, UserRow};

/// A user as an operator asks for it.
#[derive(Clone, Debug)]
pub struct NewUser {
    pub email: String,
    pub name: String,
    pub image_url: Option<String>,
    pub max_concurrent_bots: i64,
    pub min_priority: i64,
    pub data: Map<String, Value>,
}

/// The result of a request to delete a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserDeletion {
    Deleted,
    NotFound,
    /// So many bots of the user have not ended. Nothing was deleted.
    HasOpenBots(i64),
}

impl Admission {
    /// Creates a user and its first key. The audit entry is about this user.
    pub async fn create_user(
        &self,
        new: NewUser,
        audit: Option<NewAuditEntry>,
    ) -> Result<(UserRow, ApiKey), AdmissionError> {
        let mut tx = self.store.for_users().begin().await?;
        let made = self.create_user_in(&mut tx, new).await?;
        if let Some(entry) = audit {
            tx.record_audit(&entry.about(made.0.id), made.0.created_at).await?;
        }
        tx.commit().await?;
        tracing::info!(user = %made.0.id, "user created");
        Ok(made)
    }

    /// Creates a user and its first key in the caller's transaction.
    pub async fn create_user_in(&self, tx: &mut Tx, new: NewUser) -> Result<(UserRow, ApiKey), AdmissionError> {
        let now = self.clock.now();
        let user = UserRow {
            id: UserId(self.random.id(now)?),
            email: new.email,
            name: new.name,
            image_url: new.image_url,
            max_concurrent_bots: new.max_concurrent_bots,
            min_priority: new.min_priority,
            data: new.data,
            created_at: now,
            updated_at: now,
        };
        self.store.change_in(tx, &Changed::user(user.id), now).await?;
        tx.insert_user(&user).await?;
        let key = self.insert_key(tx, user.id, now).await?;
        Ok((user, key))
    }

    /// Creates the user of probes, unless it exists. It gets no key.
    pub async fn ensure_probe_user(&self) -> Result<(), AdmissionError> {
        if self.store.user(PROBE_USER).await?.is_some() {
            return Ok(());
        }
        let now = self.clock.now();
        // Only one transaction at a time can change users, so no other process creates it meanwhile.
        let mut tx = self.store.for_users().begin_changing(&Changed::user(PROBE_USER), now).await?;
        if tx.hold_user(PROBE_USER).await?.is_none() {
            let user = UserRow {
                id: PROBE_USER,
                email: "probes@greenroom.invalid".to_owned(),
                name: "Probes".to_owned(),
                image_url: None,
                max_concurrent_bots: PROBES_MAX,
                min_priority: 0,
                data: Map::new(),
                created_at: now,
                updated_at: now,
            };
            tx.insert_user(&user).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Changes a user. `None` when there is no user with this id.
    pub async fn change_user(
        &self,
        id: UserId,
        change: UserChange,
        audit: Option<NewAuditEntry>,
    ) -> Result<Option<UserRow>, AdmissionError> {
        if id == PROBE_USER {
            return Ok(None);
        }
        let now = self.clock.now();
        let mut tx = self.store.for_users().begin_changing(&Changed::user(id), now).await?;
        let Some(mut user) = tx.hold_user(id).await? else { return Ok(None) };
        user.email = change.email.unwrap_or(user.email);
        user.name = change.name.unwrap_or(user.name);
        user.image_url = change.image_url.unwrap_or(user.image_url);
        user.max_concurrent_bots = change.max_concurrent_bots.unwrap_or(user.max_concurrent_bots);
        user.min_priority = change.min_priority.unwrap_or(user.min_priority);
        user.data = change.data.unwrap_or(user.data);
        user.updated_at = now;
        tx.update_user(&user).await?;
        if let Some(entry) = audit {
            tx.record_audit(&entry.about(id), now).await?;
        }
        tx.commit().await?;
        tracing::info!(user = %user.id, max_concurrent_bots = user.max_concurrent_bots, "user changed");
        Ok(Some(user))
    }

    /// Creates a new key; earlier keys expire after `grace`. `None` when there is no user with this id.
    pub async fn rotate_key(
        &self,
        id: UserId,
        grace: Duration,
        audit: Option<NewAuditEntry>,
    ) -> Result<Option<ApiKey>, AdmissionError> {
        // Nobody may act as the user of probes.
        if id == PROBE_USER {
            return Ok(None);
        }
        let now = self.clock.now();
        let mut tx = self.store.for_users().begin_changing(&Changed::user(id), now).await?;
        if tx.hold_user(id).await?.is_none() {
            return Ok(None);
        }
        tx.expire_keys(id, now.saturating_add(grace).unwrap_or(Timestamp::MAX)).await?;
        let key = self.insert_key(&mut tx, id, now).await?;
        // A browser has to sign in again, also while the old keys are still valid.
        tx.delete_browser_sessions_of(id).await?;
        if let Some(entry) = audit {
            tx.record_audit(&entry.about(id), now).await?;
        }
        tx.commit().await?;
        self.key_cache.forget(id);
        self.session_cache.forget_user(id);
        tracing::info!(user = %id, key = %key.id, "API key rotated");
        Ok(Some(key))
    }

    /// Deletes a user, its API keys and its browser sessions. The keeper `retention` deletes its bots.
    pub async fn delete_user(&self, id: UserId, audit: Option<NewAuditEntry>) -> Result<UserDeletion, AdmissionError> {
        if id == PROBE_USER {
            return Ok(UserDeletion::NotFound);
        }
        let now = self.clock.now();
        // Placement needs the token too, so no bot of the user can be admitted meanwhile.
        let mut tx = self.store.for_users().begin_changing(&Changed::user(id), now).await?;
        if tx.hold_user(id).await?.is_none() {
            return Ok(UserDeletion::NotFound);
        }
        let open_bots = tx.count_open_bots(id).await?;
        if open_bots > 0 {
            return Ok(UserDeletion::HasOpenBots(open_bots));
        }
        tx.delete_user(id, now).await?;
        if let Some(entry) = audit {
            tx.record_audit(&entry.about(id), now).await?;
        }
        tx.commit().await?;
        self.key_cache.forget(id);
        self.session_cache.forget_user(id);
        tracing::info!(user = %id, "user deleted");
        Ok(UserDeletion::Deleted)
    }

    async fn insert_key(&self, tx: &mut Tx, user: UserId, now: Timestamp) -> Result<ApiKey, AdmissionError> {
        let key = ApiKey::make(&self.random, now)?;
        let row = KeyRow { id: key.id, user_id: user, hash: key.hash(), created_at: now, expires_at: None };
        tx.insert_key(&row).await?;
        Ok(key)
    }
}
