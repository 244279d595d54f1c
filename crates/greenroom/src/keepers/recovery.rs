//! This keeper recovers slots that failed or are stuck. It acts on a slot when:
//! - the slot is in `error`;
//! - the slot is `creating` or `busy`, has had no bot for a minute, and no deployment is starting it.
//!
//! While the provider of a pool is unavailable, the pool's slots stay unchanged, and no attempt counts.
//!
//! The keeper stops each such slot at the provider. The slot is then available again, or stays in `error` until the
//! next run. Either way this is one attempt, and attempts are reset only after a bot has run well in the slot. At the
//! last attempt the slot is deleted instead: first at the provider, which is then checked, and then its row. So the
//! pool can create a new slot.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt;

use super::{Keeper, KeeperError, RunReport, ago};
use crate::clock::Clock;
use crate::context::Context;
use crate::deployment::{Deployment, Recovery};
use crate::store::{SlotRow, Store, StoreError};

/// A slot that another task works on is left alone for this long.
const STUCK_AFTER: Duration = Duration::from_mins(1);
/// How many attempts run at once, so that one provider that does not answer does not delay the others.
const AT_ONCE: usize = 8;

#[derive(Debug)]
pub struct RecoveryKeeper {
    store: Store,
    clock: Clock,
    deployment: Deployment,
    every: Duration,
}

impl RecoveryKeeper {
    pub fn new(context: &Context, deployment: Deployment, every: Duration) -> Self {
        let (store, clock) = (context.store.clone(), context.clock.clone());
        Self { store, clock, deployment, every }
    }

    /// Makes one attempt. Attempts that would begin after the time of the next run are left to that run.
    async fn attempt(&self, slot: SlotRow, begun: Instant) -> (SlotRow, Result<Recovery, StoreError>) {
        if begun.elapsed() > self.every {
            return (slot, Ok(Recovery::NotNeeded));
        }
        let stuck_since = ago(self.clock.now(), STUCK_AFTER);
        let done = self.deployment.attempt(&slot.name, stuck_since).await;
        (slot, done)
    }
}

#[async_trait]
impl Keeper for RecoveryKeeper {
    fn name(&self) -> &'static str {
        "recovery"
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        let mut report = RunReport::of([("recovered", 0), ("failed", 0), ("deleted", 0)]);
        let slots = self.store.slots_to_recover(ago(self.clock.now(), STUCK_AFTER)).await?;
        let slots = self.deployment.had_time_to_wait(slots, STUCK_AFTER).await?;
        // Slots of a pool that is no longer configured, or whose provider is unavailable, cannot be recovered.
        let is_served =
            |pool: &str| self.deployment.providers().contains_key(pool) && !self.deployment.is_unavailable(pool);
        let slots = slots.into_iter().filter(|slot| is_served(&slot.pool));
        let begun = Instant::now();
        let attempts = slots.map(|slot| self.attempt(slot, begun));
        let mut attempts = futures_util::stream::iter(attempts).buffer_unordered(AT_ONCE);
        while let Some((slot, attempted)) = attempts.next().await {
            match attempted {
                Ok(Recovery::Recovered) => report.add("recovered", 1),
                Ok(Recovery::Deleted) => report.add("deleted", 1),
                Ok(Recovery::Failed) => report.add("failed", 1),
                Ok(Recovery::NotNeeded) => {}
                Err(error) => {
                    report.add("failed", 1);
                    report.complaints.push(format!("the slot {} could not be recovered: {error}", slot.name));
                }
            }
        }
        Ok(report)
    }
}
