//! This module implements `greenroom down`: it ends every bot and deletes every slot of every pool, including resources
//! that only the providers know. The operator has to stop the server first, because a running server would create new
//! slots.

use std::collections::BTreeMap;

use super::{Teardown, TeardownError, lock, open, pools, running, still_there};
use crate::config::Config;
use crate::config::pool::PoolConfig;
use crate::store::ServerLock;

const ENDED_BY: &str = "ended by `greenroom down`";

/// Everything that will be removed.
#[derive(Debug)]
pub struct Down {
    teardown: Teardown,
    /// The pools with slots, and how many slots each has.
    pub slots: BTreeMap<String, usize>,
    /// How many bots have not ended.
    pub bots: usize,
    /// How many resources the providers have that belong to no slot.
    pub unknown: usize,
    /// Pools whose slots run on machines of Auto Scaling groups. The groups and their machines stay.
    pub on_machines: Vec<String>,
    /// Pools whose provider cannot be reached from here, and why.
    pub unreachable: BTreeMap<String, String>,
    /// Prevents a server from starting in the meantime.
    _lock: Option<ServerLock>,
}

/// The result.
#[derive(Debug, Default)]
pub struct Done {
    pub bots: usize,
    pub slots: usize,
}

impl Down {
    /// Reads what there is to remove. Refuses while a server runs.
    pub async fn prepare(config: &Config) -> Result<Self, TeardownError> {
        let store = open(config).await?;
        let running = running(&store).await?;
        let lock = match lock(config).await? {
            Some(lock) => lock,
            None => {
                let server = running.first().map(|facts| format!("pid {} on {}", facts.pid, facts.host));
                return Err(TeardownError::ServerRuns(server.unwrap_or_else(|| config.database_shown())));
            }
        };
        if store.is_shared() && !running.is_empty() {
            let servers: Vec<String> =
                running.iter().map(|facts| format!("pid {} on {}", facts.pid, facts.host)).collect();
            return Err(TeardownError::ServerRuns(servers.join(", ")));
        }
        // No other process uses the file, so everything that an earlier, killed process held is free.
        if !store.is_shared() {
            store.release_everything(jiff::Timestamp::now()).await?;
        }
        let (mut reached, mut unreachable) = (Vec::<PoolConfig>::new(), BTreeMap::new());
        let stored = store.stored_pools().await?;
        for row in store.pools().await? {
            let Some(stored) = stored.iter().find(|stored| stored.name == row.name) else { continue };
            let pool = match config.pools.iter().find(|pool| pool.name == row.name) {
                Some(pool) if pool.provider.as_str() == row.provider => {
                    let mut pool = pool.clone();
                    pool.stored_provider.folder = pools::folder(stored);
                    pools::on_this_machine(&row, &pool.provider).map(|()| pool)
                }
                _ => pools::restore(&row, stored, &config.pools),
            };
            match pool {
                Ok(pool) => reached.push(pool),
                Err(_) if row.slots == 0 => {}
                Err(error) => drop(unreachable.insert(row.name, error.to_string())),
            }
        }
        let teardown = Teardown::begin(config, store, &reached).await?;
        let mut slots = BTreeMap::new();
        for pool in &reached {
            slots.insert(pool.name.clone(), teardown.store.slots_of_pool(&pool.name).await?.len());
        }
        slots.retain(|_, count| *count > 0);
        let is_on_machines = |pool: &&PoolConfig| pool.provider.provisioned_per_bot();
        let on_machines = reached.iter().filter(is_on_machines).map(|pool| pool.name.clone()).collect();
        let bots = teardown.store.open_bot_ids().await?.len();
        let unknown = teardown.count_unknown().await?;
        Ok(Self { teardown, slots, bots, unknown, on_machines, unreachable, _lock: lock })
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.bots == 0 && self.unknown == 0 && self.unreachable.is_empty()
    }

    /// Ends all bots and removes all slots.
    pub async fn remove(self) -> Result<Done, TeardownError> {
        let teardown = &self.teardown;
        let names: Vec<String> = self.slots.keys().cloned().collect();
        for pool in &names {
            teardown.drain(pool).await?;
        }
        let mut done = Done::default();
        for bot in teardown.store.open_bot_ids().await? {
            done.bots += usize::from(teardown.end_bot(bot, ENDED_BY).await?);
        }
        let mut removed = teardown.remove_free(&names).await?;
        done.slots += removed.slots;
        let unknown = teardown.remove_unknown().await?;
        done.slots += unknown.slots;
        for (slot, message) in unknown.left {
            removed.left.entry(slot).or_insert(message);
        }
        for (pool, message) in &self.unreachable {
            removed.left.insert(domain::SlotName::stored(format!("pool {pool}")), message.clone());
        }
        if !removed.left.is_empty() {
            return Err(still_there(&removed.left));
        }
        self.teardown.end().await;
        Ok(done)
    }

    /// Leaves everything unchanged.
    pub async fn leave(self) {
        self.teardown.end().await;
    }
}

impl Teardown {
    /// Returns how many resources of this installation the providers have that belong to no slot. A listing that fails
    /// now is reported by the removal.
    async fn count_unknown(&self) -> Result<usize, TeardownError> {
        let mut names = std::collections::BTreeSet::new();
        for provider in self.providers.values() {
            names.extend(provider.list().await.unwrap_or_default().into_iter().map(|found| found.slot));
        }
        let names: Vec<_> = names.into_iter().collect();
        let known = self.store.slots_by_name(&names).await?;
        Ok(names.len().saturating_sub(known.len()))
    }
}
