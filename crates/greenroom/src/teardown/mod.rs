//! This module removes slots for ever, from the command line: it implements `greenroom pools remove` and `greenroom
//! down`. The command works on the database like a replica, with the providers of the pools to remove, and never starts
//! anything. It takes the same steps as a server: the slot takes no more bots, its bot ends, the provider deletes the
//! slot and is checked, and then the row is deleted. So the command can be interrupted and run again.
//!
//! - this file: opening the store, ending bots, removing slots
//! - [`pools`]: the pools to remove, and how to reach their providers
//! - [`pool`]: one pool that left the configuration
//! - [`down`]: all pools at once

pub mod down;
pub mod pool;
mod pools;

use std::collections::BTreeMap;
use std::time::Duration;

use domain::lifecycle::Overdue;
use domain::{BotId, SlotName, SlotStatus, Status};
use futures_util::StreamExt;
use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::clock::Clock;
use crate::config::Config;
use crate::config::pool::PoolConfig;
use crate::config::stored_provider::NotRestored;
use crate::context::Context;
use crate::deployment::assignment::occupies;
use crate::deployment::{Deployment, Parts, ProviderTimeouts};
use crate::lifecycle::ends::Ending;
use crate::lifecycle::tokens::Tokens;
use crate::lifecycle::{Lifecycle, LifecycleError};
use crate::placement::{Placement, SlotEvent};
use crate::providers::Providers;
use crate::providers::ec2::Runners;
use crate::random::Random;
use crate::server::first_start::{INSTALLATION, SIGNING_SECRET};
use crate::server::{self, pools as configured, record};
use crate::signals::Signals;
use crate::store::{Holder, ServerFacts, ServerLock, SlotRow, Store, StoreError, StoreInspection};

/// How many slots are removed at once.
const AT_ONCE: usize = 16;
/// How many attempts a slot gets.
const ATTEMPTS: u32 = 3;
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum TeardownError {
    #[error("the database {0} does not exist: no server was started with this configuration in this folder")]
    NoDatabase(String),
    #[error(
        "the database has schema version {found}, but this program needs {known}: run `greenroom migrate`, or use a newer \
         version of Greenroom"
    )]
    OtherVersion { found: i64, known: i64 },
    #[error("there is no pool {0}")]
    NoPool(String),
    #[error("the pool {0} is still in the configuration: remove it there and restart the server first")]
    Configured(String),
    #[error("the server on {host} (pid {pid}) still has the pool {pool}: restart it with the new configuration first")]
    Served { pool: String, host: String, pid: u32 },
    #[error("a server is running ({0}): stop it first, because it would create new slots")]
    ServerRuns(String),
    #[error(
        "slots still have bots ({0}), and no server is running that receives their last calls: start a server, or use \
         --force to end the bots"
    )]
    NobodyListens(usize),
    #[error(transparent)]
    NotRestored(#[from] NotRestored),
    #[error("the slots of the pool {pool} are processes on the machine {host}: run this command on that machine")]
    Elsewhere { pool: String, host: String },
    #[error("{0}")]
    Left(String),
    #[error(transparent)]
    Lifecycle(#[from] LifecycleError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The parts of a server that remove slots.
pub struct Teardown {
    store: Store,
    lifecycle: Lifecycle,
    placement: Placement,
    deployment: Deployment,
    providers: Providers,
    ending: CancellationToken,
    living: tokio::task::JoinHandle<()>,
}

impl std::fmt::Debug for Teardown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Teardown").field("providers", &self.providers).finish_non_exhaustive()
    }
}

/// The result of removing slots.
#[derive(Debug, Default)]
pub struct Removed {
    pub slots: usize,
    /// Slots that still exist, and why.
    pub left: BTreeMap<SlotName, String>,
}

/// Opens an existing database of this version.
async fn open(config: &Config) -> Result<Store, TeardownError> {
    let url = config.database.expose_secret();
    let Some(StoreInspection { store, found, known }) = Store::inspect(url).await? else {
        return Err(TeardownError::NoDatabase(config.database_shown()));
    };
    store.close().await;
    if found != known {
        return Err(TeardownError::OtherVersion { found, known });
    }
    Ok(Store::open(url).await?)
}

/// Returns the servers that run on a database, as far as this machine can know. A server of this machine whose process
/// no longer exists was killed.
async fn running(store: &Store) -> Result<Vec<ServerFacts>, StoreError> {
    let rows = store.servers_seen_within(record::ALIVE_WITHIN).await?;
    let lives = |facts: &ServerFacts| {
        facts.host != server::host() || std::path::Path::new(&format!("/proc/{}", facts.pid)).exists()
    };
    Ok(rows.into_iter().map(|row| row.facts).filter(lives).collect())
}

impl Teardown {
    /// Begins to work on these pools.
    async fn begin(config: &Config, store: Store, pools: &[PoolConfig]) -> Result<Self, TeardownError> {
        let installation = store.setting(INSTALLATION).await?.unwrap_or_default();
        let secret = store.setting(SIGNING_SECRET).await?.unwrap_or_default();
        let (signals, ending) = (Signals::default(), CancellationToken::new());
        let context = Context::new(store.clone(), Clock::System, Random::System);
        let lifecycle = Lifecycle::new(context.clone(), signals.clone(), Tokens::new(&secret));
        let (placement, placing) = Placement::begin(
            context.clone(),
            signals.clone(),
            Admission::new(context.clone()),
            lifecycle.clone(),
            config.deadlines.clone(),
            config.queue_order,
            ending.clone(),
        );
        tokio::spawn(placing);
        let runners = Runners::connect(pools, &installation).await;
        let providers = configured::providers(pools, &installation, Some(&store), &runners);
        let name = format!("{}:{}", server::host(), std::process::id());
        let deployment = Deployment::new(Parts {
            context,
            signals,
            lifecycle: lifecycle.clone(),
            placement: placement.clone(),
            providers: providers.clone(),
            deadlines: config.deadlines.clone(),
            max_concurrent: config.max_concurrent_deployments,
            max_recovery_attempts: config.max_recovery_attempts,
            public_url: String::new(),
            timeouts: ProviderTimeouts::default(),
            replica: Holder { id: uuid::Uuid::new_v4(), name },
            ending: ending.clone(),
        });
        let living = tokio::spawn(deployment.clone().live());
        Ok(Self { store, lifecycle, placement, deployment, providers, ending, living })
    }

    /// Ends the lease and closes the store.
    async fn end(self) {
        self.ending.cancel();
        let _ = self.living.await;
        self.store.close().await;
    }

    /// Stops giving bots to the slots of a pool.
    async fn drain(&self, pool: &str) -> Result<(), StoreError> {
        for slot in self.store.slots_of_pool(pool).await? {
            self.placement.report(slot.name, SlotEvent::Drain).await?;
        }
        Ok(())
    }

    /// Ends a bot at once: it becomes `completed`, `stopped`. True when it had not ended before.
    async fn end_bot(&self, id: BotId, message: &str) -> Result<bool, TeardownError> {
        if self.store.bot(id).await?.is_none_or(|bot| bot.status.is_ended()) {
            return Ok(false);
        }
        let stopped = self.lifecycle.stop_by_operator(id, None).await?;
        if stopped.bot.status == Status::Stopping {
            let given_up = Ending::GivenUp { bot: id, overdue: Overdue::StopGrace, error: Some(message.to_owned()) };
            match self.placement.end(given_up).await {
                // The bot ended by itself in the meantime.
                Ok(_) | Err(LifecycleError::BotEnded { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Returns the slots of pools whose bots have not ended.
    async fn busy(&self, pools: &[String]) -> Result<Vec<(SlotRow, BotId)>, StoreError> {
        let mut busy = Vec::new();
        for slot in self.slots(pools).await? {
            let Some(id) = slot.bot_id else { continue };
            if self.store.bot(id).await?.is_some_and(|bot| occupies(&bot, &slot.name)) {
                busy.push((slot, id));
            }
        }
        Ok(busy)
    }

    async fn slots(&self, pools: &[String]) -> Result<Vec<SlotRow>, StoreError> {
        let mut slots = Vec::new();
        for pool in pools {
            slots.extend(self.store.slots_of_pool(pool).await?);
        }
        Ok(slots)
    }

    /// Removes the slots of pools that have no bot, or one that has ended. Slots of running bots stay.
    async fn remove_free(&self, pools: &[String]) -> Result<Removed, TeardownError> {
        let mut removed = Removed::default();
        for attempt in 0..ATTEMPTS {
            let busy: Vec<SlotName> = self.busy(pools).await?.into_iter().map(|(slot, _)| slot.name).collect();
            let mut free = self.slots(pools).await?;
            free.retain(|slot| !busy.contains(&slot.name));
            if attempt > 0 && !free.is_empty() {
                tokio::time::sleep(AGAIN).await;
                // A provider that was unavailable for a moment may answer again.
                for pool in pools {
                    self.deployment.ping(pool).await;
                }
            }
            removed.left.clear();
            let attempts = free.into_iter().map(|slot| async {
                let name = slot.name.clone();
                (name, self.remove_slot(slot).await)
            });
            let mut attempts = futures_util::stream::iter(attempts).buffer_unordered(AT_ONCE);
            while let Some((name, done)) = attempts.next().await {
                match done? {
                    None => removed.slots += 1,
                    Some(message) => drop(removed.left.insert(name, message)),
                }
            }
            if removed.left.is_empty() {
                break;
            }
        }
        Ok(removed)
    }

    /// Removes one slot. Returns why it still exists, if it does.
    async fn remove_slot(&self, slot: SlotRow) -> Result<Option<String>, TeardownError> {
        let name = slot.name.clone();
        if slot.status != SlotStatus::Draining {
            self.placement.report(name.clone(), SlotEvent::Drain).await?;
        }
        // No server starts this slot any more: no running server has its pool.
        let mut tx = self.store.begin().await?;
        tx.forget_deployment(&name).await?;
        tx.commit().await?;
        if slot.bot_id.is_some() {
            self.deployment.clear(slot).await;
        }
        if let Some(slot) = self.store.slot(&name).await? {
            self.deployment.remove(slot).await;
        }
        let Some(left) = self.store.slot(&name).await? else { return Ok(None) };
        let away = self.deployment.health().remove(&left.pool).and_then(Result::err);
        let message = away.map(|message| format!("the provider is unavailable: {message}")).or(left.error_message);
        Ok(Some(message.unwrap_or_else(|| "another operation uses the slot".to_owned())))
    }

    /// Removes resources of this installation that belong to no slot. Returns those that could not be removed.
    async fn remove_unknown(&self) -> Result<Removed, StoreError> {
        let mut removed = Removed::default();
        for (pool, provider) in self.providers.iter() {
            let found = match provider.list().await {
                Ok(found) => found,
                Err(error) => {
                    let message = format!("the slots of {pool} cannot be listed: {}", error.message);
                    removed.left.insert(SlotName::stored(format!("pool {pool}")), message);
                    continue;
                }
            };
            for slot in found.into_iter().map(|found| found.slot) {
                match self.deployment.remove_unknown(&slot, &**provider).await {
                    Ok(true) => removed.slots += 1,
                    Ok(false) => drop(removed.left.insert(slot, "the database has a slot with this name".to_owned())),
                    Err(message) => drop(removed.left.insert(slot, message)),
                }
            }
        }
        Ok(removed)
    }
}

/// Returns an error that lists the slots that still exist.
fn still_there(left: &BTreeMap<SlotName, String>) -> TeardownError {
    let lines: Vec<String> = left.iter().map(|(slot, message)| format!("  {slot}: {message}")).collect();
    TeardownError::Left(format!("{} could not be removed; run the command again:\n{}", left.len(), lines.join("\n")))
}

/// Takes the lock of an SQLite file; `None` when a server has it.
async fn lock(config: &Config) -> Result<Option<Option<ServerLock>>, StoreError> {
    match ServerLock::take(config.database.expose_secret()).await {
        Ok(lock) => Ok(Some(lock)),
        Err(StoreError::InUse { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
