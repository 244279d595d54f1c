//! Deletes rows that nothing needs any more although the bot or user that they belong to may still exist: used
//! idempotency keys, heartbeats and commands of ended bots, expired API keys and browser sessions, locks of processes
//! that died, old failures and old entries of the audit log.

use domain::{ConnectionId, KeyId, UserId};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::bots::ENDED;
use super::fence::Changed;
use super::retention::{PrunedRows, Scan, delete_by_ids, id_list};
use super::sql::{Row, Sql, args, sql, sql_over};
use super::{Run, Store, StoreError};

/// The key of an idempotency key.
pub type KeyOfRequest = (UserId, String);

fn scan<K: Clone>(rows: &[Row], key: impl Fn(&Row) -> Result<K, StoreError>) -> Result<Scan<K>, StoreError> {
    let mut scan = Scan { last: None, prunable: Vec::new() };
    for row in rows {
        let key = key(row)?;
        if row.int("is_prunable")? == 1 {
            scan.prunable.push(key.clone());
        }
        scan.last = Some(key);
    }
    Ok(scan)
}

impl Store {
    /// Idempotency keys after the given one. Those from before a time can be deleted.
    pub async fn scan_idempotency_keys(
        &self,
        after: &KeyOfRequest,
        before: Timestamp,
        limit: i64,
    ) -> Result<Scan<KeyOfRequest>, StoreError> {
        let page = sql!(
            "retention.scan_idempotency_keys",
            "SELECT user_id, key, CAST(CASE WHEN created_at < $3 THEN 1 ELSE 0 END AS BIGINT) AS is_prunable
               FROM idempotency_keys WHERE (user_id, key) > ($1, $2) ORDER BY user_id, key LIMIT $4"
        );
        let rows = self.reader().all(page, args![after.0, after.1.as_str(), before, limit]).await?;
        scan(&rows, |row| Ok((UserId(row.id("user_id")?), row.text("key")?)))
    }

    /// Deletes idempotency keys. Placement forgets the keys that it has in memory, and looks them up again.
    pub async fn prune_idempotency_keys(&self, keys: &[KeyOfRequest], now: Timestamp) -> Result<u64, StoreError> {
        let rows: Vec<Value> = keys.iter().map(|(user, key)| json!({"user_id": user, "key": key})).collect();
        let mut tx = self.begin_changing(&Changed::idempotency_keys(), now).await?;
        let delete = sql_over!(
            "retention.idempotency_keys",
            "DELETE FROM idempotency_keys WHERE (user_id, key) IN (SELECT user_id, key FROM",
            (user_id "UUID", key "TEXT"),
            ")"
        );
        let deleted = tx.count(delete, args![rows]).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    /// Deletes some idempotency keys of a deleted user. Nobody can use them.
    pub async fn erase_idempotency_keys(&self, user: UserId, limit: i64, now: Timestamp) -> Result<u64, StoreError> {
        let found = self.scan_idempotency_keys_of(user, limit).await?;
        if found.is_empty() {
            return Ok(0);
        }
        self.prune_idempotency_keys(&found, now).await
    }

    async fn scan_idempotency_keys_of(&self, user: UserId, limit: i64) -> Result<Vec<KeyOfRequest>, StoreError> {
        let page =
            sql!("retention.idempotency_keys_of_user", "SELECT key FROM idempotency_keys WHERE user_id = $1 LIMIT $2");
        let rows = self.reader().all(page, args![user, limit]).await?;
        rows.iter().map(|row| Ok((user, row.text("key")?))).collect()
    }

    /// Heartbeats after the given one. Those from before a time whose bot has ended can be deleted.
    pub async fn scan_heartbeats(
        &self,
        after: ConnectionId,
        before: Timestamp,
        limit: i64,
    ) -> Result<Scan<ConnectionId>, StoreError> {
        let page = sql!(
            "retention.scan_heartbeats",
            "SELECT connection_id,
                    CAST(CASE WHEN at < $2
                               AND NOT EXISTS (SELECT 1 FROM sessions JOIN bots ON bots.id = sessions.bot_id
                                                WHERE sessions.connection_id = heartbeats.connection_id
                                                  AND bots.status NOT IN (",
            ENDED,
            ")) THEN 1 ELSE 0 END AS BIGINT) AS is_prunable
               FROM heartbeats WHERE connection_id > $1 ORDER BY connection_id LIMIT $3"
        );
        let rows = self.reader().all(page, args![after, before, limit]).await?;
        scan(&rows, |row| row.id("connection_id").map(ConnectionId))
    }

    pub async fn prune_heartbeats(&self, connections: &[ConnectionId]) -> Result<u64, StoreError> {
        const DELETE: &Sql = delete_by_ids!("retention.heartbeats", "heartbeats", "connection_id");
        self.prune(DELETE, id_list(connections)).await
    }

    /// Commands after the given one. Those from before a time that are acknowledged, or whose bot has ended, can be
    /// deleted.
    pub async fn scan_commands(&self, after: Uuid, before: Timestamp, limit: i64) -> Result<Scan<Uuid>, StoreError> {
        let page = sql!(
            "retention.scan_commands",
            "SELECT commands.id,
                    CAST(CASE WHEN commands.created_at < $2
                               AND (commands.acked_at < $2 OR bots.status IN (",
            ENDED,
            ")) THEN 1 ELSE 0 END AS BIGINT) AS is_prunable
               FROM commands JOIN bots ON bots.id = commands.bot_id
              WHERE commands.id > $1 ORDER BY commands.id LIMIT $3"
        );
        let rows = self.reader().all(page, args![after, before, limit]).await?;
        scan(&rows, |row| row.id("id"))
    }

    pub async fn prune_commands(&self, commands: &[Uuid]) -> Result<u64, StoreError> {
        const DELETE: &Sql = delete_by_ids!("retention.commands", "commands", "id");
        self.prune(DELETE, id_list(commands)).await
    }

    async fn prune(&self, delete: &'static Sql, ids: Vec<Value>) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let deleted = tx.count(delete, args![ids]).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    /// Deletes some API keys that expired before a time, with their browser sessions.
    pub async fn prune_api_keys(&self, before: Timestamp, limit: i64, now: Timestamp) -> Result<u64, StoreError> {
        let expired =
            sql!("retention.expired_api_keys", "SELECT id, user_id FROM api_keys WHERE expires_at < $1 LIMIT $2");
        let rows = self.reader().all(expired, args![before, limit]).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let keys: Vec<KeyId> = rows.iter().map(|row| row.id("id").map(KeyId)).collect::<Result<_, _>>()?;
        let users = rows.iter().map(|row| row.id("user_id").map(UserId)).collect::<Result<_, _>>()?;
        let mut tx = self.begin_changing(&Changed { users, ..Changed::default() }, now).await?;
        let delete = sql!(
            "retention.api_keys",
            sqlite: "DELETE FROM api_keys WHERE id IN (SELECT value FROM json_each($1))",
            postgres: "DELETE FROM api_keys WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1)::uuid))",
        );
        let deleted = tx.count(delete, args![id_list(&keys)]).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    /// Deletes some failures from before a time, the oldest first.
    pub async fn prune_failures(&self, before: Timestamp, limit: i64) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let delete = sql!(
            "retention.failures",
            "DELETE FROM failures
              WHERE (slot, at) IN (SELECT slot, at FROM failures WHERE at < $1 ORDER BY at LIMIT $2)"
        );
        let deleted = tx.count(delete, args![before, limit]).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    /// Deletes some entries of the audit log from before a time, the oldest first.
    pub async fn prune_audit(&self, before: Timestamp, limit: i64) -> Result<u64, StoreError> {
        let oldest = sql!("retention.oldest_audit", "SELECT id, at FROM audit ORDER BY id LIMIT $1");
        let mut last = None;
        for row in &self.reader().all(oldest, args![limit]).await? {
            if row.time("at")? >= before {
                break;
            }
            last = Some(row.int("id")?);
        }
        let Some(last) = last else { return Ok(0) };
        let mut tx = self.begin().await?;
        let deleted = tx.count(sql!("retention.audit", "DELETE FROM audit WHERE id <= $1"), args![last]).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    /// Deletes browser sessions, leases and locks that expired before a time. There are few of them.
    pub async fn prune_expired(&self, before: Timestamp) -> Result<PrunedRows, StoreError> {
        const EXPIRED: [(&str, &Sql); 4] = [
            (
                "browser_sessions",
                sql!("retention.browser_sessions", "DELETE FROM browser_sessions WHERE expires_at < $1"),
            ),
            ("leases", sql!("retention.leases", "DELETE FROM leases WHERE lease_until < $1")),
            ("slot_locks", sql!("retention.slot_locks", "DELETE FROM slot_locks WHERE lease_until < $1")),
            ("image_locks", sql!("retention.image_locks", "DELETE FROM image_locks WHERE lease_until < $1")),
        ];
        let mut tx = self.begin().await?;
        let mut pruned = Vec::with_capacity(EXPIRED.len());
        for (table, sql) in EXPIRED {
            pruned.push((table, tx.count(sql, args![before]).await?));
        }
        tx.commit().await?;
        Ok(pruned)
    }
}
