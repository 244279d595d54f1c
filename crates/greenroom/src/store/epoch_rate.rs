//! How often the `epoch` of a row goes up when PostgreSQL updates it. Mostly seldom, so that most updates change no index and
//! PostgreSQL cleans up on the page. While somebody holds a transaction open it cannot clean up: every version stays, every
//! update writes the indexes anyway, and a look-up steps over all versions of the same epoch. Then it goes up each time.

use std::sync::atomic::{AtomicBool, Ordering};

use super::sql::sql;
use super::{Run, Store, StoreError};

const SELDOM: f64 = 0.03;
const ALWAYS: f64 = 1.0;
/// Versions of rows count as kept when a transaction is older than this many others.
const OLD_AFTER: i64 = 1_000;

#[derive(Debug, Default)]
pub(super) struct EpochRate {
    versions_are_kept: AtomicBool,
}

impl EpochRate {
    pub fn get(&self) -> f64 {
        if self.versions_are_kept.load(Ordering::Relaxed) { ALWAYS } else { SELDOM }
    }
}

impl Store {
    /// Finds out whether PostgreSQL has to keep old versions of rows for a session, a replication slot or a prepared
    /// transaction.
    pub async fn look_for_old_transactions(&self) -> Result<bool, StoreError> {
        if !self.is_shared() {
            return Ok(false);
        }
        let oldest = sql!(
            "placement.oldest_transaction",
            "SELECT CAST(coalesce(max(transactions), 0) AS BIGINT) AS transactions
               FROM (SELECT age(backend_xmin) AS transactions FROM pg_stat_activity
                      WHERE (datname = current_database() AND backend_type <> 'autovacuum worker')
                         OR backend_type = 'walsender'
                      UNION ALL
                     SELECT age(xmin) FROM pg_replication_slots
                      UNION ALL
                     SELECT age(transaction) FROM pg_prepared_xacts WHERE database = current_database()) AS oldest"
        );
        let row = self.placing().first(oldest, vec![]).await?;
        let are_kept = row.map_or(Ok(0), |row| row.int("transactions"))? > OLD_AFTER;
        let were_kept = self.placement.epoch_rate.versions_are_kept.swap(are_kept, Ordering::Relaxed);
        if are_kept && !were_kept {
            tracing::warn!("transaction held open in the database: PostgreSQL cannot remove old rows meanwhile");
        }
        Ok(are_kept)
    }
}
