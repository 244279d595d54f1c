//! This keeper fails bots that have waited too long. It acts on a bot when:
//! - the bot is in the queue for a slot, and its queue timeout has passed: `failed`, `queue_timeout`;
//! - the bot waits at the deploy gate for longer than `deploy.timeout`: `failed`, `deploy_timeout`, and its slot goes
//!   back.
//!
//! A bot that gets its slot, or passes the gate, in the meantime continues. Every replica has a timer for the next
//! queue timeout, so that this wait ends exactly in time. The run on the leader handles the deploy gate, and every
//! queue timeout that the timers miss.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::lifecycle::Overdue;
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::leader::Leadership;
use super::{Keeper, KeeperError, LastFullRun, RunReport};
use crate::clock::Clock;
use crate::context::Context;
use crate::deployment::Deployment;
use crate::placement::Placement;
use crate::signals::Signals;
use crate::store::{Store, StoreError};

/// How late the timer may notice a timeout that another replica has written, or a clock that was changed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct QueueExpiry {
    store: Store,
    clock: Clock,
    signals: Signals,
    placement: Placement,
    deployment: Deployment,
    every: Duration,
    last_full_run: LastFullRun,
    /// How many waits the timer of this replica has ended since the last run.
    in_time: Arc<AtomicU64>,
}

impl QueueExpiry {
    pub fn new(
        context: &Context,
        signals: Signals,
        placement: Placement,
        deployment: Deployment,
        every: Duration,
    ) -> Self {
        let (store, clock) = (context.store.clone(), context.clock.clone());
        let (last_full_run, in_time) = Default::default();
        Self { store, clock, signals, placement, deployment, every, last_full_run, in_time }
    }

    /// Whether no bot waits in the queue. Only a replica without others can know this by itself.
    fn is_queue_empty(&self) -> bool {
        self.store.is_only_replica() && self.placement.workload().is_some_and(|workload| !workload.has_queue)
    }

    /// Ends each wait at the moment of its timeout, until `ending`.
    pub async fn keep_time(self, leadership: Leadership, ending: CancellationToken) {
        let mut pause = Duration::ZERO;
        let mut read = LastFullRun::default();
        loop {
            let next = match self.is_queue_empty() && read.is_recent() {
                true => None,
                false => {
                    read.note();
                    self.store.next_timeout().await.ok().flatten()
                }
            };
            let now = self.clock.now();
            let wait = next.map_or(LONGEST_SLEEP, |at| {
                Duration::try_from(at.duration_since(now)).unwrap_or_default().min(LONGEST_SLEEP)
            });
            tokio::select! {
                () = ending.cancelled() => return,
                // A bot with an earlier timeout may have joined the queue.
                () = self.signals.queue_joined(), if pause.is_zero() => {
                    read = LastFullRun::default();
                    continue;
                }
                () = tokio::time::sleep(wait.max(pause).max(Duration::from_millis(1))) => {}
            }
            let now = self.clock.now();
            pause = Duration::ZERO;
            if next.is_some_and(|at| at <= now) {
                match self.expire(now).await {
                    // Other replicas have no run that could report it.
                    Ok(ended) if leadership.is_held() => {
                        self.in_time.fetch_add(ended, Ordering::Relaxed);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(%error, "queue timeouts not applied");
                        pause = LONGEST_SLEEP;
                    }
                }
            }
        }
    }

    /// Ends all overdue waits at once, so that they go into one transaction.
    async fn expire(&self, now: Timestamp) -> Result<u64, StoreError> {
        let overdue = self.store.overdue_waiters(now).await?;
        let ends = overdue.into_iter().map(|bot| self.deployment.give_up(bot, Overdue::QueueTimeout, None));
        join_all(ends).await.into_iter().try_fold(0, |ended, one| Ok(ended + u64::from(one?)))
    }
}

#[async_trait]
impl Keeper for QueueExpiry {
    fn name(&self) -> &'static str {
        "queue_expiry"
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn skipped_run(&self) -> Option<RunReport> {
        let workload = self.placement.workload()?;
        let is_idle = !workload.has_queue && !workload.has_unfinished && self.last_full_run.is_recent();
        let ended = is_idle.then(|| self.in_time.swap(0, Ordering::Relaxed))?;
        Some(RunReport::of([("failed", ended)]))
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        self.last_full_run.note();
        let now = self.clock.now();
        let mut ended = self.expire(now).await?;
        for deployment in self.store.overdue_deployments(now).await? {
            if let Some(bot) = deployment.bot_id {
                let message = deployment.last_error;
                ended += u64::from(self.deployment.give_up(bot, Overdue::DeployTimeout, message).await?);
            }
        }
        Ok(RunReport::of([("failed", ended + self.in_time.swap(0, Ordering::Relaxed))]))
    }
}
