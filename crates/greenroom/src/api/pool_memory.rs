//! The memory of pools, which is added up from the figures of their slots. With many slots that takes long, so the sums
//! are used again for a while: the longer, the longer they took.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::store::{PoolMemory, Store, StoreError};

/// The sums are used for this many times as long as they took, up to the interval at which agents report.
const REST_FACTOR: u32 = 50;
const LONGEST_REST: Duration = Duration::from_secs(10);

/// The memory of each pool, by name.
pub type Sums = Arc<HashMap<String, PoolMemory>>;

/// The last sums, and until when they are used. The lock is held while they are read, so that one read serves all.
#[derive(Debug, Default)]
pub struct PoolMemoryCache(Mutex<Option<(Sums, Instant)>>);

impl PoolMemoryCache {
    /// The memory of each pool.
    pub async fn read(&self, store: &Store) -> Result<Sums, StoreError> {
        let mut last = self.0.lock().await;
        if let Some((sums, until)) = &*last
            && Instant::now() < *until
        {
            return Ok(sums.clone());
        }
        let begun = Instant::now();
        let sums = Arc::new(store.memory_of_pools().await?);
        *last = Some((sums.clone(), Instant::now() + (begun.elapsed() * REST_FACTOR).min(LONGEST_REST)));
        Ok(sums)
    }
}
