//! One pool that left the configuration: its slots are deleted by what the database keeps of its provider, and then its
//! row.

use std::time::Duration;

use super::{Teardown, TeardownError, lock, open, pools, running, still_there};
use crate::config::Config;
use crate::store::{Changed, PoolRow, ServerLock};

/// How often it is looked whether bots have ended.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const ENDED_BY: &str = "ended by `greenroom pools remove`";

/// A pool that can be removed, and what is left of it.
#[derive(Debug)]
pub struct PoolRemoval {
    teardown: Teardown,
    pool: PoolRow,
    pub slots: usize,
    /// Slots whose bots are not at an end.
    pub busy: usize,
    has_server: bool,
    /// Keeps a server from starting meanwhile.
    _lock: Option<ServerLock>,
}

impl PoolRemoval {
    /// Looks at the pool, and refuses what must not be removed.
    pub async fn prepare(config: &Config, name: &str) -> Result<Self, TeardownError> {
        if config.pools.iter().any(|pool| pool.name == name) {
            return Err(TeardownError::Configured(name.to_owned()));
        }
        let (store, lock) = (open(config).await?, lock(config).await?);
        let mut running = running(&store).await?;
        // The row of a server that was killed is not deleted.
        if lock.is_some() && !store.is_shared() {
            running.clear();
        }
        if let Some(facts) = running.iter().find(|facts| facts.pools.iter().any(|pool| pool == name)) {
            let (pool, host) = (name.to_owned(), facts.host.clone());
            return Err(TeardownError::Served { pool, host, pid: facts.pid });
        }
        let no_pool = || TeardownError::NoPool(name.to_owned());
        let pool = store.pools().await?.into_iter().find(|pool| pool.name == name).ok_or_else(no_pool)?;
        let kept = store.kept_pools().await?.into_iter().find(|kept| kept.name == name).ok_or_else(no_pool)?;
        let restored = match pools::restore(&pool, &kept, &config.pools) {
            Ok(restored) => vec![restored],
            // Without slots there is nothing to ask a provider for.
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

    /// The provider's kind.
    pub fn provider(&self) -> &str {
        &self.pool.provider
    }

    /// Removes the slots and then the pool. With `force` bots are ended; otherwise their end is waited for, and `waiting`
    /// is told how many there are whenever that changes.
    pub async fn remove(self, force: bool, mut waiting: impl FnMut(usize)) -> Result<usize, TeardownError> {
        let Self { teardown, pool, has_server, .. } = &self;
        let names = [pool.name.clone()];
        let now = jiff::Timestamp::now();
        // A server that never started with the new configuration has not taken it out.
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
