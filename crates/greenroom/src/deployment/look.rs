//! The safety net under everything that wakes by itself: once in a poll interval it looks for who waited too long and for
//! what a process that died, or a word that was lost, has left behind. It acts when
//! - a bot has waited in line, or at the gate, longer than it may: it fails;
//! - a slot has had a bot that is at an end, or has been taken elsewhere, for 5 seconds: it is cleared;
//! - a bot has a slot, and neither was it asked for at the gate nor has it been started: it is asked for again;
//! - a bot was given to an agent that waits, and was not taken within 5 seconds: the slot is started once more;
//! - a hot slot was started for nobody, and its agent has not begun to wait within a minute: the slot goes to error;
//! - a slot takes no more bots and has none: it is deleted.

use std::time::Duration;

use domain::lifecycle::Overdue;
use futures_util::future::join_all;
use jiff::Timestamp;

use super::Deployment;
use crate::placement::SlotNews;
use crate::store::StoreError;

/// What another process has begun is left to it for so long; and it is a look at every slot that has a bot.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(5);
/// An agent that waits takes its bot within this.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// An agent that was started begins to wait within this.
const WAITS_WITHIN: Duration = Duration::from_mins(1);
/// How late the end of a wait may be seen when the clock was turned.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

impl Deployment {
    pub(super) async fn keep_looking(&self) {
        let mut tick = tokio::time::interval(self.0.deadlines.queue_poll);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut failing, mut cleared) = (false, None);
        loop {
            tokio::select! {
                () = self.0.ending.cancelled() => return,
                () = self.0.woken.notified() => cleared = None,
                _ = tick.tick() => {}
            }
            let now = self.0.lifecycle.clock.now();
            let all = cleared.is_none_or(|at| at <= ago(now, LEFT_TO_OTHERS));
            match self.look(now, all).await {
                Ok(()) => failing = false,
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!(%error, "deployments cannot be looked at");
                }
                Err(_) => {}
            }
            if all {
                cleared = Some(now);
            }
        }
    }

    /// Looks at everything, or at everything but the slots that have a bot.
    async fn look(&self, now: Timestamp, all: bool) -> Result<(), StoreError> {
        let (store, placement) = (&self.0.store, &self.0.placement);
        self.expire(now).await?;
        for deployment in store.overdue_deployments(now).await? {
            if let Some(bot) = deployment.bot_id {
                self.give_up(bot, Overdue::DeployTimeout, deployment.last_error).await?;
            }
        }
        if all {
            for slot in store.slots_to_clear(ago(now, LEFT_TO_OTHERS)).await? {
                let this = self.clone();
                tokio::spawn(async move { this.clear(slot).await });
            }
        }
        for slot in store.silent_slots(ago(now, TAKEN_WITHIN)).await? {
            if let Some(bot) = slot.bot_id {
                tracing::warn!(slot = %slot.name, %bot, "a bot was not taken; its slot is started again");
                placement.tell(slot.name, SlotNews::Silent { bot }).await?;
            }
        }
        for slot in store.deaf_slots(ago(now, WAITS_WITHIN)).await? {
            self.broken(&slot.name, None, "it was started, and its agent did not begin to wait").await;
        }
        for slot in store.drained_slots().await? {
            let this = self.clone();
            tokio::spawn(async move { this.remove(slot).await });
        }
        placement.look().await?;
        self.pass_gate().await;
        Ok(())
    }

    /// Ends who has waited in line too long, in the moment in which the time is over, not a poll later.
    pub async fn expire_in_time(self) {
        let mut pause = Duration::ZERO;
        loop {
            let next = self.0.store.next_timeout().await.ok().flatten();
            let now = self.0.lifecycle.clock.now();
            let wait = next.map_or(LONGEST_SLEEP, |at| {
                Duration::try_from(at.duration_since(now)).unwrap_or_default().min(LONGEST_SLEEP)
            });
            tokio::select! {
                () = self.0.ending.cancelled() => return,
                () = tokio::time::sleep(wait.max(pause).max(Duration::from_millis(1))) => {}
            }
            let now = self.0.lifecycle.clock.now();
            pause = Duration::ZERO;
            if next.is_some_and(|at| at <= now)
                && let Err(error) = self.expire(now).await
            {
                tracing::warn!(%error, "who waited too long cannot be ended");
                pause = LONGEST_SLEEP;
            }
        }
    }

    /// All of them at once, so that they go into one transaction.
    async fn expire(&self, now: Timestamp) -> Result<(), StoreError> {
        let overdue = self.0.store.overdue_waiters(now).await?;
        let ends = overdue.into_iter().map(|bot| self.give_up(bot, Overdue::QueueTimeout, None));
        join_all(ends).await.into_iter().try_for_each(|ended| ended.map(drop))
    }
}

fn ago(now: Timestamp, time: Duration) -> Timestamp {
    now.saturating_sub(time).unwrap_or(Timestamp::MIN)
}
