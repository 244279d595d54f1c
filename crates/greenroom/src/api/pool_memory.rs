//! The memory of pools, which is added up from the figures of their slots. With many slots that takes long. Then the
//! sums are used again for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::store::{PoolMemory, Store, StoreError};

/// The sums of more slots are used again, until agents report again.
const SLOTS_AT_ONCE: i64 = 1_000;
const REST: Duration = Duration::from_secs(10);

/// The memory of each pool, by name.
pub type Sums = Arc<HashMap<String, PoolMemory>>;

/// The last sums, and until when they are used. The lock is held while they are read, so that one read serves all.
#[derive(Debug, Default)]
pub struct PoolMemoryCache(Mutex<Option<(Sums, Instant)>>);

impl PoolMemoryCache {
    /// The memory of each pool. `slots` is the number of slots of all pools.
    pub async fn read(&self, store: &Store, slots: i64) -> Result<Sums, StoreError> {
        let mut last = self.0.lock().await;
        if let Some((sums, until)) = &*last
            && Instant::now() < *until
        {
            return Ok(sums.clone());
        }
        let sums = Arc::new(store.memory_of_pools().await?);
        let rest = if slots > SLOTS_AT_ONCE { REST } else { Duration::ZERO };
        *last = Some((sums.clone(), Instant::now() + rest));
        Ok(sums)
    }
}
