//! The claim worker: it turns an announcement into a runner whose agent has acknowledged the slot. It claims each
//! candidate in one conditional transaction, checks its last heartbeat, and waits for its agent. If a candidate fails,
//! the worker expires or terminates it and tries the next one.

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

/// How often to check whether another process received the acknowledgement.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The requirements of one request, and the classes that may still have a fitting runner.
pub(crate) struct Search<'a> {
    wanted: Option<&'a Requirements>,
    /// Smallest class first.
    classes: VecDeque<&'a Class>,
}

impl RunnerPool {
    /// Claims a runner that fits and waits until it runs the slot. Returns `None` if no runner fits.
    pub async fn claim(&self, wanted: Option<&Requirements>, holder: &Holder) -> Result<Option<Runner>, AwsError> {
        let mut search = self.search(wanted);
        while let Some(claimed) = self.claim_next(&mut search, holder, false).await? {
            if let Some(runner) = self.registered(claimed).await? {
                return Ok(Some(runner));
            }
        }
        Ok(None)
    }

    /// Takes the announcement of a fitting idle runner out of its queue. This is only the first step of a claim, for
    /// measurements.
    pub async fn pick(&self, wanted: Option<&Requirements>) -> Result<Option<Announcement>, AwsError> {
        let picked = self.next_picked(&mut self.search(wanted)).await?;
        Ok(picked.and_then(Picked::take))
    }

    /// Claims a fitting runner for the slot without a health check. These are only the first two steps of a claim, for
    /// measurements. The claim falls back like any claim that is not acknowledged.
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

    /// Claims the next healthy runner for the slot.
    pub(crate) async fn claim_next(
        &self,
        search: &mut Search<'_>,
        holder: &Holder,
        held: bool,
    ) -> Result<Option<Claimed>, AwsError> {
        while let Some(claimed) = self.take_next(search, holder, held).await? {
            self.0.steps.done(Step::Claimed).await;
            let last_heartbeat = self.0.table.last_heartbeat(&claimed.runner.instance).await?;
            if self.is_healthy(last_heartbeat) {
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
            // A separate task finishes the claim even if the caller stops waiting. Then the claimed runner is known and
            // goes back.
            let task = tokio::spawn(self.clone().take(picked, holder.clone(), held));
            let taken = task.await.map_err(|error| AwsError::malformed("claim", error.to_string()))?;
            if let Some(claimed) = taken? {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }

    /// Claims the announced runner. Returns `None` if the announcement no longer matches the table.
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
            // The change was made; only the answer was lost.
            changed = Ok(Changed::Done);
        }
        match changed? {
            Changed::Done => {
                drop(picked.take());
                tracing::info!(runner = next.instance, slot = holder.slot, "runner claimed");
                self.0.signals.notify(&next.instance);
                Ok(Some(Claimed { pool: self, runner: next, is_open: true }))
            }
            Changed::Refused => {
                drop(picked.take());
                Ok(None)
            }
            Changed::Taken => Err(AwsError::Taken { slot: holder.slot }),
        }
    }

    /// Whether a terminated runner left the slot's item behind. If so, removes the item.
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

    /// Makes the runner idle with an expiry in the past. It is not offered again until its agent sends a heartbeat.
    async fn expire(&self, claimed: Claimed) -> Result<(), AwsError> {
        let now = self.now();
        let next = claimed.runner.idle(now, before(now, Duration::from_millis(1)), self.0.settings.pace.idle);
        if self.0.table.change(&claimed.runner, &next).await? == Changed::Done {
            tracing::warn!(runner = next.instance, "runner expired: no heartbeat");
        }
        claimed.keep();
        Ok(())
    }

    /// Waits for the agent's acknowledgement. Terminates the runner if the acknowledgement does not come in time.
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
                        tracing::warn!(
                            runner = runner.instance,
                            "runner terminated: assignment not acknowledged in time"
                        );
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

    /// Makes a claimed runner idle again, with a new expiry. An unhealthy runner is not announced.
    pub(crate) async fn give_back(&self, claimed: &Runner) -> Result<Changed, AwsError> {
        let is_healthy = self.is_healthy(self.0.table.last_heartbeat(&claimed.instance).await?);
        let now = self.now();
        let expires_at = if is_healthy { self.new_expiry() } else { before(now, Duration::from_millis(1)) };
        let next = claimed.idle(now, expires_at, self.0.settings.pace.idle);
        let changed = self.0.table.change(claimed, &next).await?;
        if changed == Changed::Done {
            self.0.steps.done(Step::GivenBack).await;
            self.0.signals.notify(&next.instance);
            if is_healthy {
                self.announce(&next).await;
            }
        }
        Ok(changed)
    }
}

/// A runner that is claimed but not acknowledged. It goes back when this value is dropped, unless `keep` was called.
#[derive(Debug)]
pub(crate) struct Claimed {
    pool: RunnerPool,
    pub runner: Runner,
    is_open: bool,
}

impl Claimed {
    /// Leaves the runner as it is: its claim is complete, or it no longer belongs to this claim.
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
        // Without a runtime, this process is ending. The keeper of another process takes the runner back.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = pool.give_back(&runner).await {
                    tracing::warn!(runner = runner.instance, %error, "claimed runner not returned; the keeper retries");
                }
            });
        }
    }
}
