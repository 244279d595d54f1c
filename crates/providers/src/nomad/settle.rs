//! Ends the allocations of a job, and waits for allocations to run. Nomad only accepts a request, so the provider must
//! poll until the request is done.

use std::time::Duration;

use domain::SlotName;
use tokio::time::Instant;

use super::allocation::{Allocation, live};
use super::follow::{self, Evaluation, Outcome};
use super::job::Job;
use super::{CHANGES_AT_MOST, ENDED_WITHIN, Name, NomadProvider, foreign, others};
use crate::{ProviderError, Spec};

/// How long Nomad may take to decide about a job that has to run.
const DECIDED_WITHIN: Duration = Duration::from_secs(30);
/// After this number of the longest pauses, the provider checks whether an allocation that does not end is on a silent
/// node. With pauses of one second this is longer than the grace period.
const PAUSES: u32 = 5;

impl NomadProvider {
    /// Ends all allocations of a slot's job, and waits until they have ended. Afterwards the slot has a job with a
    /// count of 0, or none. Returns the index that the next change must name. A purged job may still have running
    /// allocations.
    pub(super) async fn stop_allocations(&self, slot: &SlotName) -> Result<u64, ProviderError> {
        let index = self.stop_allocations_if(slot, |_| true).await?;
        index.ok_or_else(|| others(slot))
    }

    /// Like `stop_allocations`, for jobs that `may_end` accepts. `None` if there is another job now, which is left alone.
    async fn stop_allocations_if(
        &self,
        slot: &SlotName,
        may_end: impl Fn(&Job) -> bool,
    ) -> Result<Option<u64>, ProviderError> {
        let (begun, mut delays, mut changes) = (Instant::now(), self.pace.delays(), 0);
        loop {
            let index = match self.find(slot).await? {
                Name::Free => Some(0),
                Name::Foreign => return Err(foreign(slot)),
                Name::Ours(job) if job.is_stopped() => self.is_settled(slot, &job).await?.then_some(job.index),
                Name::Ours(job) if !may_end(&job) => return Ok(None),
                Name::Ours(_) if changes == CHANGES_AT_MOST => return Err(others(slot)),
                Name::Ours(job) => {
                    changes += 1;
                    self.api.register(self.recipe.stopped_job(slot), job.index).await?;
                    continue;
                }
            };
            // The list is read after the job has settled, so it contains every allocation.
            let allocations = self.api.allocations(slot.as_str()).await?;
            let is_late = begun.elapsed() > self.pace.longest * PAUSES;
            let left = if is_late { self.not_ended(&allocations).await } else { live(&allocations).next() };
            match (index, left) {
                (Some(index), None) => return Ok(Some(index)),
                (_, Some(one)) if begun.elapsed() > ENDED_WITHIN => {
                    let mut text = format!("the allocation {} does not end: it is {}", one.id, one.state());
                    if let Err(error) = self.api.node_status(&one.node).await {
                        text = format!("{text}; the status of its node cannot be read: {}", error.message);
                    }
                    return Err(ProviderError::transient(text));
                }
                (None, None) if begun.elapsed() > ENDED_WITHIN => {
                    let text = format!("Nomad has not evaluated the stop of the job {slot}");
                    return Err(ProviderError::transient(text));
                }
                _ => tokio::time::sleep(delays.next_delay()).await,
            }
        }
    }

    /// Whether Nomad has decided about a job with a count of 0. The job's status does not show it: Nomad calls a job
    /// pending until its last evaluation ends, even one that is postponed until tomorrow. A blocked evaluation has
    /// nothing left to place.
    async fn is_settled(&self, slot: &SlotName, job: &Job) -> Result<bool, ProviderError> {
        if job.is_dead() {
            return Ok(true);
        }
        Ok(!self.api.evaluations(slot.as_str()).await?.iter().any(Evaluation::is_open))
    }

    /// The first allocation that has not ended. An allocation that has to stop on a silent node counts as ended: its
    /// state is unknown until the node comes back, and then Nomad stops it.
    pub(super) async fn not_ended<'a>(&self, allocations: &'a [Allocation]) -> Option<&'a Allocation> {
        for one in live(allocations) {
            if one.is_wanted() || !self.is_silent(&one.node).await {
                return Some(one);
            }
        }
        None
    }

    /// Whether Nomad receives nothing from a node. False if this cannot be read.
    async fn is_silent(&self, node: &str) -> bool {
        match self.api.node_status(node).await {
            Ok(status) => matches!(status.as_deref(), None | Some("disconnected" | "down")),
            Err(error) => {
                tracing::debug!(node, error = error.message, "node status not read");
                false
            }
        }
    }

    /// Waits until the job runs as it was registered for this spec, and returns its index. `None` if the job has been
    /// replaced.
    pub(super) async fn follow(&self, spec: &Spec) -> Result<Option<(Outcome, u64)>, ProviderError> {
        let (mut delays, mut open_since) = (self.pace.delays(), None);
        let slot = spec.slot.as_str();
        loop {
            let job = match self.find(&spec.slot).await? {
                Name::Ours(job) if self.recipe.fits(&job, spec) => job,
                _ => return Ok(None),
            };
            let allocations = self.api.allocations(slot).await?;
            // Evaluations are read only while nothing is placed.
            let is_placed = allocations.iter().any(|one| one.is_of(&job) && one.is_live());
            let evaluations = if is_placed { Vec::new() } else { self.api.evaluations(slot).await? };
            match follow::outcome(&job, &allocations, &evaluations, &self.recipe.config.datacenters) {
                Some(Outcome::Waits) => open_since = None,
                Some(outcome) => return Ok(Some((outcome, job.index))),
                None => {
                    let since = *open_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > DECIDED_WITHIN {
                        let text = format!("Nomad does not place the job {slot}, and gives no reason");
                        return Ok(Some((Outcome::Failed(ProviderError::transient(text)), job.index)));
                    }
                }
            }
            tokio::time::sleep(delays.next_delay()).await;
        }
    }

    /// Withdraws a job that did not start, but nothing that another process has begun since. Returns the first error,
    /// which explains more.
    pub(super) async fn withdraw(&self, slot: &SlotName, index: u64, error: ProviderError) -> ProviderError {
        if let Err(more) = self.stop_allocations_if(slot, |job| job.index == index).await {
            tracing::warn!(%slot, error = more.message, "failed job not stopped; the next start or recovery retries");
        }
        error
    }

    /// Whether the slot already runs exactly this spec, or is about to.
    pub(super) async fn runs_already(&self, spec: &Spec) -> Result<bool, ProviderError> {
        if !matches!(self.follow(spec).await?, Some((Outcome::Runs, _))) {
            return Ok(false);
        }
        Ok(live(&self.api.allocations(spec.slot.as_str()).await?).next().is_some())
    }
}
