//! This keeper finishes work on slots that a dead process, or a lost signal, has left unfinished. It acts when:
//! - a slot has had a bot that has ended, or that is elsewhere, for 5 seconds: the slot is cleared;
//! - a bot has a slot, but the slot has no deployment and was never started for the bot: a deployment is added again;
//! - a waiting agent was given a bot and did not take it within 5 seconds: the slot is started again. The bot gets a
//!   new connection, so calls under the old one are refused;
//! - a hot slot was started without a bot, and its agent has not begun to wait within a minute: the slot goes to error.
//!   With prewarm, the agent has the time for three starts of the command on top;
//! - the agent of a prewarmed slot closed its connection and did not come back within 30 seconds: the slot is started
//!   again;
//! - a slot takes no more bots and has none: it is deleted; after a failure, again every 30 seconds;
//! - a deployment waits at the gate and there is room: it passes.
//!
//! [`Deployment`] itself finishes the work of a dead process at once: at a start, and when it declares a replica dead.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::SlotName;
use domain::slot::AGENT_LEFT;
use jiff::Timestamp;

use super::listening::ListeningWindow;
use super::{Keeper, KeeperError, LastFullRun, RunReport, ago};
use crate::clock::Clock;
use crate::context::Context;
use crate::deployment::Deployment;
use crate::placement::{Placement, SlotEvent};
use crate::store::{SlotRow, Store, StoreError};

/// How long work is left to the process that began it. It is also the pause between two passes over all slots with a
/// bot.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(5);
/// A waiting agent takes its bot within this time.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// An agent that was started begins to wait within this time.
pub const WAITS_WITHIN: Duration = Duration::from_mins(1);
/// An agent of a prewarmed slot that closed its connection waits again within this time.
const BACK_WITHIN: Duration = Duration::from_secs(30);
/// The pause after a provider failed to delete a slot.
pub const DELETED_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How many slots this keeper clears at once, and how many it deletes at once. The next run finds the rest.
const AT_ONCE: usize = 16;

#[derive(Debug)]
pub struct DeploymentKeeper {
    store: Store,
    clock: Clock,
    placement: Placement,
    deployment: Deployment,
    listening: ListeningWindow,
    every: Duration,
    last_full_run: LastFullRun,
    /// When the slots with a bot were last checked.
    last_full_pass: Mutex<Option<Timestamp>>,
    /// Running tasks, by kind. A run does not wait for them: a provider may take long to stop or delete a slot.
    clearing: Arc<AtWork>,
    removing: Arc<AtWork>,
    breaking: Arc<AtWork>,
    restarting: Arc<AtWork>,
}

/// The slots with a running task, and how many tasks succeeded since the last run.
#[derive(Debug, Default)]
struct AtWork {
    slots: Mutex<HashSet<SlotName>>,
    done: AtomicU64,
}

/// A slot with a running task. Dropping this removes the slot from the set, however the task ends.
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

    /// Starts the work on a slot, unless a task for it is running or too many tasks are running. The work returns
    /// whether it succeeded.
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
        let (last_full_run, last_full_pass, clearing, removing, breaking, restarting) = Default::default();
        Self {
            store,
            clock,
            placement,
            deployment,
            listening,
            every,
            last_full_run,
            last_full_pass,
            clearing,
            removing,
            breaking,
            restarting,
        }
    }

    /// The results of tasks that have ended since the last run.
    fn report_done(&self) -> RunReport {
        RunReport::of([
            ("cleared", self.clearing.take_done()),
            ("started_again", self.restarting.take_done()),
            ("broken", self.breaking.take_done()),
            ("removed", self.removing.take_done()),
        ])
    }

    fn last_full_pass(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.last_full_pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears slots whose bots have ended or moved.
    async fn clear(&self, now: Timestamp) -> Result<(), StoreError> {
        if self.last_full_pass().is_some_and(|at| at > ago(now, LEFT_TO_OTHERS)) {
            return Ok(());
        }
        let slots = self.store.slots_to_clear(ago(now, LEFT_TO_OTHERS)).await?;
        for slot in slots.into_iter().filter(|slot| !self.deployment.is_unavailable(&slot.pool)) {
            let deployment = self.deployment.clone();
            self.clearing.begin(slot.name.clone(), async move { deployment.clear(slot).await });
        }
        *self.last_full_pass() = Some(now);
        Ok(())
    }

    /// Deletes drained slots.
    async fn remove(&self, now: Timestamp) -> Result<(), StoreError> {
        let slots = self.store.drained_slots(ago(now, DELETED_AGAIN_AFTER)).await?;
        // A pool that is not in this server's configuration belongs to another replica, or `greenroom pools remove`
        // deletes it.
        let has = |slot: &SlotRow| self.deployment.providers().contains_key(&slot.pool);
        for slot in slots.into_iter().filter(|slot| has(slot) && !self.deployment.is_unavailable(&slot.pool)) {
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

    async fn skipped_run(&self) -> Option<RunReport> {
        let is_idle = !self.placement.workload()?.has_unfinished && self.last_full_run.is_recent();
        is_idle.then(|| self.report_done())
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        self.last_full_run.note();
        let now = self.clock.now();
        let mut report = RunReport::default();
        self.clear(now).await?;
        self.remove(now).await?;
        // Silence does not count while the server could not receive calls.
        if self.listening.unbroken() >= TAKEN_WITHIN {
            for slot in self.store.silent_slots(ago(now, TAKEN_WITHIN)).await? {
                let Some(bot) = slot.bot_id else { continue };
                let event = SlotEvent::Silent { bot, generation: slot.generation };
                if self.placement.report(slot.name.clone(), event).await? {
                    tracing::warn!(slot = %slot.name, %bot, "bot not taken by its agent; restarting the slot");
                    report.add("started_again", 1);
                }
            }
        }
        if self.listening.unbroken() >= BACK_WITHIN {
            let slots = self.store.slots_without_agent(ago(now, BACK_WITHIN)).await?;
            let has_left = |slot: &SlotRow| slot.error_message.as_deref() == Some(AGENT_LEFT);
            let is_served = |pool: &str| self.deployment.providers().contains_key(pool);
            let slots = slots.into_iter().filter(|slot| has_left(slot) && is_served(&slot.pool));
            // While the provider is unavailable, its agents are too, and no attempt counts.
            for slot in slots.filter(|slot| !self.deployment.is_unavailable(&slot.pool)) {
                let deployment = self.deployment.clone();
                self.restarting.begin(slot.name.clone(), async move {
                    let restarted = deployment.restart_unhealthy(&slot, AGENT_LEFT.to_owned()).await;
                    restarted.unwrap_or_else(|error| {
                        tracing::warn!(slot = %slot.name, %error, "slot not restarted; retried at the next run");
                        false
                    })
                });
            }
        }
        if let Some(heard_since) = self.listening.heard_since(WAITS_WITHIN) {
            let slots = self.store.slots_without_agent(ago(now, WAITS_WITHIN).min(heard_since)).await?;
            let slots = self.deployment.had_time_to_wait(slots, WAITS_WITHIN).await?;
            // The sync keeper finds slots that an outage stopped, and starts them again without counting a failure.
            let had_time = |pool: &str| {
                let available_since = self.deployment.available_since(pool);
                !self.deployment.is_unavailable(pool)
                    && available_since.is_none_or(|back| back <= ago(now, WAITS_WITHIN))
            };
            for slot in slots.into_iter().filter(|slot| had_time(&slot.pool)) {
                let deployment = self.deployment.clone();
                self.breaking.begin(slot.name.clone(), async move { deployment.fail_without_agent(&slot).await });
            }
        }
        self.deployment.pass_gate().await;
        for (what, count) in self.report_done().counts {
            report.add(what, count);
        }
        Ok(report)
    }

    fn request_full_run(&self) {
        *self.last_full_pass() = None;
    }
}
