//! What a process that died, or a word that was lost, has left behind in a slot. It acts when
//! - a slot has had a bot that is at an end, or has been taken elsewhere, for 5 seconds: it is cleared;
//! - a bot has a slot, and neither was it asked for at the gate nor has it been started: it is asked for again;
//! - a bot was given to an agent that waits, and was not taken within 5 seconds: the slot is started once more, and the bot
//!   has another connection, so that whoever speaks under the old one comes too late;
//! - a hot slot was started for nobody, and its agent has not begun to wait within a minute: the slot goes to error;
//! - a slot takes no more bots and has none: it is deleted, and if that fails once more every 30 seconds;
//! - somebody waits before the gate, and there is room: it passes.
//!
//! What a process that died left is settled at once, by [`Deployment`] itself: at a start, and when a replica is seen
//! to be dead.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::SlotName;
use jiff::Timestamp;

use super::listening::ListeningWindow;
use super::{Keeper, KeeperError, RunReport, ago};
use crate::clock::Clock;
use crate::context::Context;
use crate::deployment::Deployment;
use crate::placement::{Placement, SlotEvent};
use crate::store::{SlotRow, Store, StoreError};

/// What another process has begun is left to it for so long; and it is a look at every slot that has a bot.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(5);
/// An agent that waits takes its bot within this.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// An agent that was started begins to wait within this.
pub const WAITS_WITHIN: Duration = Duration::from_mins(1);
/// How long a provider that could not delete a slot is left alone.
pub const DELETED_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// So many slots are cleared at once by this keeper, and as many deleted; the rest are found by the next look.
const AT_ONCE: usize = 16;

#[derive(Debug)]
pub struct DeploymentKeeper {
    store: Store,
    clock: Clock,
    placement: Placement,
    deployment: Deployment,
    listening: ListeningWindow,
    every: Duration,
    /// When the slots that have a bot were looked at last.
    last_full_pass: Mutex<Option<Timestamp>>,
    /// A provider may take its time to stop or delete something: nobody waits for it.
    clearing: Arc<AtWork>,
    removing: Arc<AtWork>,
    breaking: Arc<AtWork>,
}

/// The slots that are being worked on, and how many it was done with since the last run.
#[derive(Debug, Default)]
struct AtWork {
    slots: Mutex<HashSet<SlotName>>,
    done: AtomicU64,
}

/// A slot that is being worked on, however that ends.
struct Working {
    at: Arc<AtWork>,
    slot: SlotName,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.at.slots().remove(&self.slot);
    }
}

impl AtWork {
    fn slots(&self) -> MutexGuard<'_, HashSet<SlotName>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work on a slot, unless it is being done, or there is enough to do. The work says whether it was done.
    fn begin(self: &Arc<Self>, slot: SlotName, work: impl Future<Output = bool> + Send + 'static) {
        let mut slots = self.slots();
        if slots.len() >= AT_ONCE || !slots.insert(slot.clone()) {
            return;
        }
        let working = Working { at: self.clone(), slot };
        tokio::spawn(async move {
            working.at.done.fetch_add(u64::from(work.await), Ordering::Relaxed);
        });
    }

    fn take_done(&self) -> u64 {
        self.done.swap(0, Ordering::Relaxed)
    }
}

impl DeploymentKeeper {
    pub fn new(
        context: &Context,
        placement: Placement,
        deployment: Deployment,
        listening: ListeningWindow,
        every: Duration,
    ) -> Self {
        let (store, clock) = (context.store.clone(), context.clock.clone());
        let (last_full_pass, clearing, removing, breaking) = Default::default();
        Self { store, clock, placement, deployment, listening, every, last_full_pass, clearing, removing, breaking }
    }

    fn last_full_pass(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.last_full_pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slots whose bots are gone.
    async fn clear(&self, now: Timestamp) -> Result<(), StoreError> {
        if self.last_full_pass().is_some_and(|at| at > ago(now, LEFT_TO_OTHERS)) {
            return Ok(());
        }
        let slots = self.store.slots_to_clear(ago(now, LEFT_TO_OTHERS)).await?;
        for slot in slots.into_iter().filter(|slot| !self.deployment.is_away(&slot.pool)) {
            let deployment = self.deployment.clone();
            self.clearing.begin(slot.name.clone(), async move { deployment.clear(slot).await });
        }
        *self.last_full_pass() = Some(now);
        Ok(())
    }

    /// Slots that are to go.
    async fn remove(&self, now: Timestamp) -> Result<(), StoreError> {
        let slots = self.store.drained_slots(ago(now, DELETED_AGAIN_AFTER)).await?;
        // A pool that this server does not have is another replica's, or `greenroom pools remove` ends it.
        let has = |slot: &SlotRow| self.deployment.providers().contains_key(&slot.pool);
        for slot in slots.into_iter().filter(|slot| has(slot) && !self.deployment.is_away(&slot.pool)) {
            let deployment = self.deployment.clone();
            self.removing.begin(slot.name.clone(), async move { deployment.remove(slot).await });
        }
        Ok(())
    }
}

#[async_trait]
impl Keeper for DeploymentKeeper {
    fn name(&self) -> &'static str {
        "deployment"
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        let now = self.clock.now();
        let mut report = RunReport::of([("cleared", 0), ("started_again", 0), ("broken", 0), ("removed", 0)]);
        self.clear(now).await?;
        self.remove(now).await?;
        // Whoever could not be heard meanwhile has not been silent.
        if self.listening.unbroken() >= TAKEN_WITHIN {
            for slot in self.store.silent_slots(ago(now, TAKEN_WITHIN)).await? {
                let Some(bot) = slot.bot_id else { continue };
                let news = SlotEvent::Silent { bot, generation: slot.generation };
                if self.placement.report(slot.name.clone(), news).await? {
                    tracing::warn!(slot = %slot.name, %bot, "agent did not take its bot; restarting the slot");
                    report.add("started_again", 1);
                }
            }
        }
        if let Some(heard_since) = self.listening.heard_since(WAITS_WITHIN) {
            let slots = self.store.deaf_slots(ago(now, WAITS_WITHIN).min(heard_since)).await?;
            // What an outage took is looked for by sync, and started again without a fault of its own.
            let had_time = |pool: &str| {
                let back_since = self.deployment.back_since(pool);
                !self.deployment.is_away(pool) && back_since.is_none_or(|back| back <= ago(now, WAITS_WITHIN))
            };
            for slot in slots.into_iter().filter(|slot| had_time(&slot.pool)) {
                let deployment = self.deployment.clone();
                self.breaking.begin(slot.name.clone(), async move { deployment.is_deaf(&slot).await });
            }
        }
        self.deployment.pass_gate().await;
        report.add("broken", self.breaking.take_done());
        report.add("cleared", self.clearing.take_done());
        report.add("removed", self.removing.take_done());
        Ok(report)
    }

    fn hurry(&self) {
        *self.last_full_pass() = None;
    }
}
