//! This module takes an assigned slot to a running bot, and clears the slot after the bot's end. All starts, stops and
//! deletions at a provider go through it. Before each call to a provider, a row states the intended action. So after a
//! crash at any point, a later pass over the rows can finish the work.
//!
//! - this file: the work loop and what wakes it
//! - [`start`]: the deploy gate and the start of a slot
//! - [`assignment`]: which bot a waiting agent gets
//! - [`slot_memory`]: the memory of slots, as their agents measure it
//! - [`interrupted`]: bots whose slot was stopped from outside
//! - [`clear`]: clearing a slot after its bot's end
//! - [`recover`]: recovering or deleting a slot in error
//! - [`availability`]: whether the provider of each pool answers
//! - [`slot_lock`]: the lock that lets one task at a time work on a slot
//! - [`replica`]: the lease that shows that this replica is alive
//! - [`lease`]: work that is cancelled when another replica may take it over
//! - [`verify`]: checks that a provider has done what it reported
//! - [`failure`]: failures of slots, stored before the slot changes
//! - [`logs`]: logs of bots
//! - [`image`]: one puller per image and host

pub mod agent_readiness;
pub mod assignment;
mod availability;
mod clear;
mod failure;
pub mod image;
mod interrupted;
mod lease;
mod logs;
mod recover;
mod replica;
mod slot_lock;
mod slot_memory;
mod start;
mod verify;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::lifecycle::Overdue;
use domain::{BotId, Deadlines, PROBE_USER, SlotName};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::bus::{self, Bus};
use crate::clock::Clock;
use crate::context::Context;
use crate::lifecycle::ends::Ending;
use crate::lifecycle::tokens::Claim;
use crate::lifecycle::{Assignment, Lifecycle, LifecycleError};
use crate::placement::{Placement, SlotEvent};
use crate::providers::{Provider, Providers};
use crate::signals::Signals;
use crate::store::{BotRow, Holder, PoolRow, Renewed, Store, StoreError};

use availability::Availability;
pub use logs::LAST_LINES;
pub use recover::{ManualRecoveryError, Recovery};
use replica::{LEASE, ReplicaLease};
use slot_memory::SlotMemory;

/// How long a call to a provider may take. A call that takes longer is an error like any other.
#[derive(Clone, Debug)]
pub struct ProviderTimeouts {
    /// Long, because an image may have many gigabytes.
    pub start: Duration,
    pub stop: Duration,
    /// For calls that only read.
    pub inspect: Duration,
    /// How long a pull may make no progress.
    pub pull_stall: Duration,
}

impl Default for ProviderTimeouts {
    fn default() -> Self {
        Self {
            start: Duration::from_mins(15),
            stop: Duration::from_mins(2),
            inspect: Duration::from_secs(30),
            pull_stall: Duration::from_mins(2),
        }
    }
}

const LONGEST_DESCRIBE: Duration = Duration::from_secs(10);
/// How many slots are cleared at once after a start.
const SETTLED_AT_ONCE: usize = 16;

#[derive(Clone, Debug)]
pub struct Deployment(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    clock: Clock,
    signals: Signals,
    lifecycle: Lifecycle,
    placement: Placement,
    providers: Providers,
    deadlines: Deadlines,
    max_concurrent: i64,
    max_recovery_attempts: i64,
    public_url: String,
    timeouts: ProviderTimeouts,
    /// The lease of this process, as the holder of deployments and locks.
    lease: ReplicaLease,
    /// The slots that this process is clearing, so that two wake-ups do not clear the same slot. Other processes see
    /// the slot lock.
    clearing: Mutex<HashSet<SlotName>>,
    availability: Availability,
    slot_memory: SlotMemory,
    /// A deployment stepped back from the gate, or the pause after which it tries again is over.
    stepped_back: Notify,
    ending: CancellationToken,
}

/// The parts of the server that deployment needs.
#[derive(Debug)]
pub struct Parts {
    pub context: Context,
    pub signals: Signals,
    pub lifecycle: Lifecycle,
    pub placement: Placement,
    pub providers: Providers,
    pub deadlines: Deadlines,
    pub max_concurrent: u32,
    /// The slot is deleted at this attempt to recover it.
    pub max_recovery_attempts: u32,
    pub public_url: String,
    pub timeouts: ProviderTimeouts,
    pub replica: Holder,
    pub ending: CancellationToken,
}

impl Deployment {
    pub fn new(parts: Parts) -> Self {
        let Context { store, clock, .. } = parts.context;
        let lease = ReplicaLease::new(store.clone(), clock.clone(), &parts.replica);
        Self(Arc::new(Inner {
            store,
            clock,
            signals: parts.signals,
            lifecycle: parts.lifecycle,
            placement: parts.placement,
            providers: parts.providers,
            deadlines: parts.deadlines,
            max_concurrent: parts.max_concurrent.into(),
            max_recovery_attempts: parts.max_recovery_attempts.into(),
            public_url: parts.public_url,
            timeouts: parts.timeouts,
            lease,
            clearing: Mutex::default(),
            availability: Availability::default(),
            slot_memory: SlotMemory::default(),
            stepped_back: Notify::new(),
            ending: parts.ending,
        }))
    }

    /// Works until the server ends: it serves every deployment at the gate and every end of a bot at once. The keepers
    /// find overdue and abandoned work.
    pub async fn work(self) {
        tokio::join!(self.serve(), self.keep_lease(true));
    }

    /// Only renews this process's lease and starts nothing: for a command that removes slots.
    pub async fn live(self) {
        self.keep_lease(false).await;
    }

    /// The results of the renewals of this process's lease, for the replica that leads.
    pub fn renewals(&self) -> watch::Receiver<Option<Renewed>> {
        self.0.lease.renewals()
    }

    async fn serve(&self) {
        self.settle().await;
        loop {
            tokio::select! {
                () = self.0.ending.cancelled() => return,
                () = self.0.signals.gate_changed() => self.pass_gate().await,
                () = self.0.stepped_back.notified() => self.pass_gate().await,
                ended = self.0.signals.bots_to_clear() => ended.into_iter().for_each(|bot| self.clear_after(bot)),
            }
        }
    }

    /// Renews this replica's lease, and takes over the work of replicas whose lease has ended.
    async fn keep_lease(&self, settles: bool) {
        let Self(inner) = self;
        while !inner.ending.is_cancelled() {
            let ticked = tokio::select! {
                ticked = tokio::time::timeout(LEASE, inner.lease.tick()) => ticked,
                () = inner.ending.cancelled() => break,
            };
            match ticked {
                Ok(Ok(dead)) if dead.is_empty() => {}
                Ok(Ok(dead)) => {
                    for replica in dead {
                        tracing::warn!(replica = replica.name, "leases of a dead replica released");
                    }
                    if settles {
                        self.settle().await;
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "replica lease not renewed"),
                Err(_) => tracing::warn!("replica lease not renewed: no answer from the database in time"),
            }
            tokio::select! {
                () = tokio::time::sleep(inner.lease.pause()) => {}
                () = inner.ending.cancelled() => {}
            }
        }
        if let Err(error) = inner.lease.end().await {
            tracing::warn!(%error, "replica lease not released; it expires by itself");
        }
    }

    /// Finishes unfinished work after a start, and after another replica has died. It clears slots whose bots have
    /// ended, and lets waiting deployments pass the gate. Slots that another task works on are protected by their lock.
    async fn settle(&self) {
        match self.0.store.slots_to_clear(self.0.clock.now()).await {
            Ok(slots) => {
                let this = self.clone();
                tokio::spawn(async move {
                    let ours = slots.into_iter().filter(|slot| this.provider(&slot.pool).is_some());
                    let cleared = |slot| async {
                        let _ = this.clear(slot).await;
                    };
                    futures_util::stream::iter(ours).for_each_concurrent(SETTLED_AT_ONCE, cleared).await;
                });
            }
            Err(error) => tracing::warn!(%error, "slots to clear not read; the keeper retries"),
        }
        self.pass_gate().await;
    }

    /// Shows the state of the slots at the providers.
    pub async fn describe(self) {
        loop {
            let described = tokio::select! {
                () = self.0.ending.cancelled() => return,
                described = self.0.signals.changed_descriptions() => described,
            };
            for described in described {
                if let Some(provider) = self.provider(&described.pool) {
                    let describe = provider.describe(&described.slot, &described.text);
                    // Best effort: the next change is described in any case.
                    tokio::select! {
                        _ = tokio::time::timeout(LONGEST_DESCRIBE, describe) => {}
                        () = self.0.ending.cancelled() => return,
                    }
                }
            }
        }
    }

    /// How many deployments may be under way at once.
    pub fn max_concurrent(&self) -> i64 {
        self.0.max_concurrent
    }

    /// The attempt to recover a slot at which the slot is deleted.
    pub fn max_recovery_attempts(&self) -> i64 {
        self.0.max_recovery_attempts
    }

    /// The provider of each pool.
    pub fn providers(&self) -> &Providers {
        &self.0.providers
    }

    pub fn timeouts(&self) -> &ProviderTimeouts {
        &self.0.timeouts
    }

    /// Ends a bot that waited too long or could not be deployed. False when the bot has moved on in the meantime.
    pub(crate) async fn give_up(
        &self,
        bot: BotId,
        overdue: Overdue,
        message: Option<String>,
    ) -> Result<bool, StoreError> {
        match self.0.placement.end(Ending::GivenUp { bot, overdue, error: message }).await {
            Ok(status) => Ok(status.is_ended()),
            Err(LifecycleError::Store(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn provider(&self, pool: &str) -> Option<Arc<dyn Provider>> {
        self.0.providers.get(pool).cloned()
    }

    pub(crate) async fn pool(&self, name: &str) -> Result<Option<PoolRow>, StoreError> {
        Ok(self.0.store.pools().await?.into_iter().find(|pool| pool.name == name))
    }

    /// The data of a bot, as the process that runs the bot gets it.
    pub fn bot_data(&self, bot: &BotRow) -> Option<Value> {
        let connection = bot.connection_id?;
        let token = self.0.lifecycle.tokens.make(Claim { bot: bot.id, connection });
        Some(self.data_under(bot, &token))
    }

    /// The data of a bot that an operator has assigned by hand.
    pub fn assignment_data(&self, assignment: &Assignment) -> Value {
        self.data_under(&assignment.bot, &assignment.token)
    }

    fn data_under(&self, bot: &BotRow, token: &str) -> Value {
        bot_data(bot, token, &self.0.public_url, &self.0.deadlines, &self.0.lifecycle.bus)
    }

    /// Whether the provider of the pool cannot change a slot's environment after the slot was made.
    pub fn keeps_environment(&self, pool: &str) -> bool {
        self.0.providers.get(pool).is_some_and(|provider| provider.keeps_environment())
    }

    pub(crate) async fn broken(&self, slot: &SlotName, bot: Option<BotId>, message: &str) {
        tracing::warn!(%slot, error = message, "slot failed");
        let event = SlotEvent::Broken { bot, message: message.to_owned() };
        if let Err(error) = self.0.placement.report(slot.clone(), event).await {
            tracing::warn!(%slot, %error, "slot failure not stored");
        }
    }
}

/// Builds a bot's data: everything that the process that runs the bot needs.
fn bot_data(bot: &BotRow, token: &str, public_url: &str, deadlines: &Deadlines, bus: &Bus) -> Value {
    let connection = bot.connection_id.map(|id| id.to_string()).unwrap_or_default();
    let mut data = json!({
        "bot_id": bot.id,
        "connection_id": connection,
        "platform": bot.platform,
        "native_meeting_id": bot.native_meeting_id,
        "meeting_url": bot.meeting_url,
        "bot_display_name": bot.bot_display_name,
        "config": bot.config,
        "callback_url": format!("{public_url}/callback"),
        "token": token,
        "heartbeat_interval_ms": u64::try_from(deadlines.heartbeat_interval.as_millis()).unwrap_or(u64::MAX),
        "commands": {"redis_url": bus.url_for_bots(), "channel": bot.connection_id.map(bus::channel)},
    });
    // The agent runs the demo bot instead of its command.
    if bot.user_id == PROBE_USER {
        data["probe"] = Value::Bool(true);
    }
    data
}
