//! The claim worker: from an announcement to a runner whose agent has said that it runs the slot. Each candidate is claimed
//! in one conditional transaction, then its health and its agent's word are waited for; one that fails is done away with,
//! and the next is tried.

use std::collections::VecDeque;
use std::time::Duration;

use domain::Requirements;
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock::before;
use crate::message::Announcement;
use crate::pickup::Picked;
use crate::steps::Step;
use crate::table::Changed;
use crate::{AwsError, Class, Holder, Runner, RunnerPool, RunnerState};

/// How often to look whether another process was told that the runner is acknowledged.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// What one request looks for, and where it has not looked in vain.
pub(crate) struct Search<'a> {
    wanted: Option<&'a Requirements>,
    /// The smallest first.
    classes: VecDeque<&'a Class>,
}

impl RunnerPool {
    /// A runner that fits and that runs the slot; `None` when there is none.
    pub async fn claim(&self, wanted: Option<&Requirements>, holder: &Holder) -> Result<Option<Runner>, AwsError> {
        let mut search = self.search(wanted);
        while let Some(claimed) = self.claim_next(&mut search, holder, false).await? {
            if let Some(runner) = self.registered(claimed).await? {
                return Ok(Some(runner));
            }
        }
        Ok(None)
    }

    /// The announcement of an idle runner that fits, taken out of its queue: only the first step of a claim, to measure it.
    pub async fn pick(&self, wanted: Option<&Requirements>) -> Result<Option<Announcement>, AwsError> {
        let picked = self.next_picked(&mut self.search(wanted)).await?;
        Ok(picked.and_then(Picked::take))
    }

    /// A runner that fits, claimed for the slot, whether or not it is healthy: the first two steps of a claim, to measure
    /// them. It falls back like any claim that is not acknowledged.
    pub async fn claim_unchecked(
        &self,
        wanted: Option<&Requirements>,
        holder: &Holder,
    ) -> Result<Option<Runner>, AwsError> {
        let claimed = self.take_next(&mut self.search(wanted), holder, false).await?;
        Ok(claimed.map(Claimed::keep))
    }

    pub(crate) fn search<'a>(&'a self, wanted: Option<&'a Requirements>) -> Search<'a> {
        Search { wanted, classes: self.classes_for(wanted).into() }
    }

    async fn next_picked(&self, search: &mut Search<'_>) -> Result<Option<Picked>, AwsError> {
        while let Some(class) = search.classes.front() {
            if let Some(manager) = self.0.managers.get(&class.name)
                && let Some(picked) = manager.pick(search.wanted).await?
            {
                return Ok(Some(picked));
            }
            search.classes.pop_front();
        }
        Ok(None)
    }

    /// The next runner that is claimed for the slot and healthy.
    pub(crate) async fn claim_next(
        &self,
        search: &mut Search<'_>,
        holder: &Holder,
        held: bool,
    ) -> Result<Option<Claimed>, AwsError> {
        while let Some(claimed) = self.take_next(search, holder, held).await? {
            self.0.steps.done(Step::Claimed).await;
            let heard = self.0.table.heard(&claimed.runner.instance).await?;
            if self.is_healthy(heard) {
                self.0.steps.done(Step::Healthy).await;
                return Ok(Some(claimed));
            }
            self.expire(claimed).await?;
        }
        Ok(None)
    }

    async fn take_next(
        &self,
        search: &mut Search<'_>,
        holder: &Holder,
        held: bool,
    ) -> Result<Option<Claimed>, AwsError> {
        while let Some(picked) = self.next_picked(search).await? {
            self.0.steps.done(Step::HandedOver).await;
            // In a task of its own: when nobody waits for it any more, what it claimed is known and goes back.
            let task = tokio::spawn(self.clone().take(picked, holder.clone(), held));
            let taken = task.await.map_err(|error| AwsError::malformed("claim", error.to_string()))?;
            if let Some(claimed) = taken? {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }

    /// Claims what was announced; `None` when it is no longer so.
    async fn take(self, picked: Picked, holder: Holder, held: bool) -> Result<Option<Claimed>, AwsError> {
        let now = self.now();
        let Some(announcement) = picked.announcement() else { return Ok(None) };
        if announcement.expires_at <= now {
            drop(picked.take());
            return Ok(None);
        }
        let (slot, run_id) = (self.slot_key(&holder.slot), Uuid::new_v4().to_string());
        let seen = Runner::announced(&self.0.settings, announcement, now);
        let next = Runner { held, ..seen.claimed(now, &run_id, &slot, holder.connection.as_deref()) };
        let mut changed = self.0.table.change(&seen, &next).await;
        if changed == Ok(Changed::Taken) && self.is_left_over(&slot).await? {
            changed = self.0.table.change(&seen, &next).await;
        }
        if let Err(error) = &changed
            && error.retryable()
            && let Some(has) = self.0.table.slot(&slot).await?
            && has.run_id == run_id
        {
            // It was done, and only the answer was lost.
            changed = Ok(Changed::Done);
        }
        match changed? {
            Changed::Done => {
                drop(picked.take());
                tracing::info!(runner = next.instance, slot = holder.slot, "runner claimed");
                self.0.signals.ring(&next.instance);
                Ok(Some(Claimed { pool: self, runner: next, is_open: true }))
            }
            Changed::Refused => {
                drop(picked.take());
                Ok(None)
            }
            Changed::Taken => Err(AwsError::Taken { slot: holder.slot }),
        }
    }

    /// Whether what a slot has was only left by a runner that is terminated, and is gone now.
    async fn is_left_over(&self, slot: &str) -> Result<bool, AwsError> {
        let Some(held) = self.0.table.slot(slot).await? else { return Ok(true) };
        let Some(runner) = self.0.table.runner(&held.runner).await? else {
            self.0.table.forget_slot(slot, &held.run_id).await?;
            return Ok(true);
        };
        if runner.state != RunnerState::Terminated || !runner.is_for(&held.run_id) {
            return Ok(false);
        }
        self.finish(&runner).await?;
        Ok(true)
    }

    /// Nobody is offered it until it was heard of again.
    async fn expire(&self, claimed: Claimed) -> Result<(), AwsError> {
        let now = self.now();
        let next = claimed.runner.idle(now, before(now, Duration::from_millis(1)), self.0.settings.pace.idle);
        if self.0.table.change(&claimed.runner, &next).await? == Changed::Done {
            tracing::warn!(runner = next.instance, "runner expired: no heartbeat");
        }
        claimed.keep();
        Ok(())
    }

    /// Waits until the agent has acknowledged. One that does not is terminated.
    pub(crate) async fn registered(&self, claimed: Claimed) -> Result<Option<Runner>, AwsError> {
        let run_id = claimed.runner.run_id.clone().unwrap_or_default();
        let bell = self.0.signals.of(&claimed.runner.instance);
        let deadline = Instant::now() + self.0.settings.pace.registration;
        loop {
            let rung = bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            let runner = self.0.table.runner(&claimed.runner.instance).await?;
            match runner.filter(|runner| runner.is_for(&run_id)) {
                Some(runner) if runner.state == RunnerState::Running => {
                    self.0.steps.done(Step::Registered).await;
                    claimed.keep();
                    return Ok(Some(runner));
                }
                Some(runner) if runner.state == RunnerState::Claimed => {
                    if Instant::now() >= deadline && self.terminate(&runner).await? == Changed::Done {
                        tracing::warn!(runner = runner.instance, "runner terminated: it did not take its assignment");
                        claimed.keep();
                        return Ok(None);
                    }
                }
                _ => {
                    claimed.keep();
                    return Ok(None);
                }
            }
            let until = deadline.min(Instant::now() + POLL_INTERVAL).max(Instant::now() + Duration::from_millis(10));
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = rung => {}
            }
        }
    }

    /// A claimed runner that nobody waits for is idle again, under a new threshold; one that is not healthy is not offered.
    pub(crate) async fn give_back(&self, claimed: &Runner) -> Result<Changed, AwsError> {
        let is_healthy = self.is_healthy(self.0.table.heard(&claimed.instance).await?);
        let now = self.now();
        let expires_at = if is_healthy { self.new_expiry() } else { before(now, Duration::from_millis(1)) };
        let next = claimed.idle(now, expires_at, self.0.settings.pace.idle);
        let changed = self.0.table.change(claimed, &next).await?;
        if changed == Changed::Done {
            self.0.steps.done(Step::GivenBack).await;
            self.0.signals.ring(&next.instance);
            if is_healthy {
                self.announce(&next).await;
            }
        }
        Ok(changed)
    }
}

/// A runner that is claimed and not acknowledged. Unless it is kept, it goes back.
#[derive(Debug)]
pub(crate) struct Claimed {
    pool: RunnerPool,
    pub runner: Runner,
    is_open: bool,
}

impl Claimed {
    /// It is as it should be, or is no longer this one's.
    pub fn keep(mut self) -> Runner {
        self.is_open = false;
        self.runner.clone()
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let (pool, runner) = (self.pool.clone(), self.runner.clone());
        // Without a runtime the process ends, and the keeper of another finds it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = pool.give_back(&runner).await {
                    tracing::warn!(runner = runner.instance, %error, "runner claim not finished; the keeper retries");
                }
            });
        }
    }
}
