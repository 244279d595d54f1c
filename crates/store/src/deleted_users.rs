//! The deletion of users. A user, its API keys and its browser sessions are deleted at once. Its bots may be many, so a
//! row remembers the user until a keeper has deleted all of them.

use domain::UserId;
use jiff::Timestamp;

use super::sql::{args, sql};
use super::{Run, Store, StoreError, Tx};

impl Store {
    /// The deleted users whose data is not deleted yet, the longest ago first.
    pub async fn deleted_users(&self, limit: i64) -> Result<Vec<UserId>, StoreError> {
        let list =
            sql!("deleted_users.list", "SELECT user_id FROM deleted_users ORDER BY deleted_at, user_id LIMIT $1");
        let rows = self.reader().all(list, args![limit]).await?;
        rows.iter().map(|row| row.id("user_id").map(UserId)).collect()
    }

    /// Forgets a deleted user, because all its bots are deleted. So no event can add to its counts again.
    pub async fn forget_deleted_user(&self, user: UserId) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(sql!("deleted_users.counts", "DELETE FROM ended_counts WHERE user_id = $1"), args![user]).await?;
        tx.run(sql!("deleted_users.forget", "DELETE FROM deleted_users WHERE user_id = $1"), args![user]).await?;
        tx.commit().await
    }
}

impl Tx {
    /// How many bots of a user have not ended.
    pub async fn count_open_bots(&mut self, user: UserId) -> Result<i64, StoreError> {
        let count = sql!("deleted_users.open_bots", "SELECT count(*) AS count FROM open_bots WHERE user_id = $1");
        self.first(count, args![user]).await?.map_or(Ok(0), |row| row.int("count"))
    }

    /// Deletes a user with its API keys and browser sessions. Its bots remain until a keeper deletes them.
    pub async fn delete_user(&mut self, user: UserId, now: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!(
                "deleted_users.insert",
                "INSERT INTO deleted_users (user_id, deleted_at) VALUES ($1, $2) ON CONFLICT (user_id) DO NOTHING"
            ),
            args![user, now],
        )
        .await?;
        // The browser sessions refer to keys and users, and are deleted with them.
        self.run(sql!("deleted_users.api_keys", "DELETE FROM api_keys WHERE user_id = $1"), args![user]).await?;
        self.run(sql!("deleted_users.user", "DELETE FROM users WHERE id = $1"), args![user]).await
    }
}
