//! The values that the installation creates at its first start and keeps: the hash of the admin token, and the secret
//! that signs bots' tokens. The first writer of a name wins, so that replicas that start at once agree.

use super::sql::{args, sql};
use super::{Run, Store, StoreError, Tx};

impl Store {
    pub async fn setting(&self, name: &'static str) -> Result<Option<String>, StoreError> {
        setting(&mut self.reader(), name).await
    }
}

async fn setting(run: &mut impl Run, name: &'static str) -> Result<Option<String>, StoreError> {
    run.first(sql!("settings.read", "SELECT value FROM settings WHERE name = $1"), args![name])
        .await?
        .map(|row| row.text("value"))
        .transpose()
}

impl Tx {
    /// Stores `value` under `name`, unless the name already has a value. True if this call was the first.
    pub async fn keep_setting(&mut self, name: &'static str, value: &str) -> Result<bool, StoreError> {
        let kept = self
            .first(
                sql!(
                    "settings.keep",
                    "INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING name"
                ),
                args![name, value],
            )
            .await?;
        Ok(kept.is_some())
    }

    pub async fn setting(&mut self, name: &'static str) -> Result<Option<String>, StoreError> {
        setting(self, name).await
    }
}
