//! This module removes one pool that left the configuration. It deletes the pool's slots with the provider settings
//! that the database keeps, and then the pool's row.

use std::time::Duration;

use super::{Teardown, TeardownError, lock, open, pools, running, still_there};
use crate::config::Config;
use crate::store::{Changed, PoolRow, ServerLock};

/// How often to check whether bots have ended.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const ENDED_BY: &str = "ended by `greenroom pools remove`";

/// A pool that can be removed, and how many slots and bots it still has.
#[derive(Debug)]
pub struct PoolRemoval {
    teardown: Teardown,
    pool: PoolRow,
    pub slots: usize,
    /// Slots whose bots have not ended.
    pub busy: usize,
    has_server: bool,
    /// Prevents a server from starting in the meantime.
    _lock: Option<ServerLock>,
}

impl PoolRemoval {
    /// Reads the pool, and refuses if it must not be removed.
    pub async fn prepare(config: &Config, name: &str) -> Result<Self, TeardownError> {
        if config.pools.iter().any(|pool| pool.name == name) {
            return Err(TeardownError::Configured(name.to_owned()));
        }
        let (store, lock) = (open(config).await?, lock(config).await?);
        let mut running = running(&store).await?;
        // The row of a killed server still exists.
        if lock.is_some() && !store.is_shared() {
            running.clear();
        }
        if let Some(facts) = running.iter().find(|facts| facts.pools.iter().any(|pool| pool == name)) {
            let (pool, host) = (name.to_owned(), facts.host.clone());
            return Err(TeardownError::Served { pool, host, pid: facts.pid });
        }
        let no_pool = || TeardownError::NoPool(name.to_owned());
        let pool = store.pools().await?.into_iter().find(|pool| pool.name == name).ok_or_else(no_pool)?;
        let stored = store.stored_pools().await?.into_iter().find(|stored| stored.name == name).ok_or_else(no_pool)?;
        let restored = match pools::restore(&pool, &stored, &config.pools) {
            Ok(restored) => vec![restored],
            // Without slots, no provider is needed.
            Err(_) if pool.slots == 0 => Vec::new(),
            Err(error) => return Err(error),
        };
        let teardown = Teardown::begin(config, store, &restored).await?;
        let names = [pool.name.clone()];
        let slots = teardown.slots(&names).await?.len();
        let busy = teardown.busy(&names).await?.len();
        let has_server = !running.is_empty() || lock.is_none();
        Ok(Self { teardown, pool, slots, busy, has_server, _lock: lock.flatten() })
    }

    /// The kind of the provider.
    pub fn provider(&self) -> &str {
        &self.pool.provider
    }

    /// Removes the slots and then the pool. With `force`, bots are ended; otherwise this waits until they end, and
    /// calls `waiting` with their number whenever it changes.
    pub async fn remove(self, force: bool, mut waiting: impl FnMut(usize)) -> Result<usize, TeardownError> {
        let Self { teardown, pool, has_server, .. } = &self;
        let names = [pool.name.clone()];
        let now = jiff::Timestamp::now();
        // If no server has started with the new configuration, the pool's row still counts as configured.
        let mut tx = teardown.store.begin_changing(&Changed::everything(), now).await?;
        tx.unconfigure_pool(&pool.name).await?;
        tx.commit().await?;
        teardown.drain(&pool.name).await?;
        let mut busy = teardown.busy(&names).await?;
        if force {
            for (_, bot) in std::mem::take(&mut busy) {
                teardown.end_bot(bot, ENDED_BY).await?;
            }
        } else if !busy.is_empty() && !has_server {
            return Err(TeardownError::NobodyListens(busy.len()));
        }
        let (mut removed, mut logged) = (0, None);
        loop {
            let done = teardown.remove_free(&names).await?;
            removed += done.slots;
            if !done.left.is_empty() {
                return Err(still_there(&done.left));
            }
            let busy = teardown.busy(&names).await?.len();
            if busy == 0 && teardown.slots(&names).await?.is_empty() {
                break;
            }
            if busy > 0 && logged.replace(busy) != Some(busy) {
                waiting(busy);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let mut tx = teardown.store.begin_changing(&Changed::everything(), jiff::Timestamp::now()).await?;
        let deleted = tx.delete_pool(&pool.name).await?;
        tx.commit().await?;
        if !deleted {
            return Err(TeardownError::Configured(pool.name.clone()));
        }
        self.teardown.end().await;
        Ok(removed)
    }
}
