//! The Nomad provider. A slot is a service job with one group and one task of the docker driver. Its count is 1 while
//! it has to run, and 0 otherwise. A job with a count of 0 costs nothing, and a slot is bound to no node. A job has the
//! name of its slot, but only its meta shows which installation owns it.
//!
//! Every change names the version of the job that it was made for. If two replicas make a change, one succeeds, and the
//! other reads the job again. If Nomad cannot place or start a job, the provider withdraws it before it reports the
//! error. So no job starts later, when there is room but the job is no longer wanted.
//!
//! - this file: the provider
//! - [`job`]: builds and reads jobs
//! - [`settle`]: ends allocations and waits for them to run
//! - [`follow`]: evaluations, from a registration to a running allocation
//! - [`allocation`]: the allocations of a job, and how they ended
//! - [`api`]: the HTTP calls and the meaning of the answers
//! - [`client`]: the HTTP client with its certificates
//! - [`capacity`]: nodes, and how many slots fit on them

mod allocation;
mod api;
mod capacity;
mod client;
mod follow;
mod job;
mod settle;

use std::time::Duration;

use async_trait::async_trait;
use domain::SlotName;
use tokio::time::Instant;

use self::allocation::{Allocation, newest};
use self::api::{Api, Registered};
use self::follow::Outcome;
use self::job::{Job, Recipe, TASK};
use super::check::Check;
use super::{Found, HostMemory, LogLine, Provider, ProviderError, Spec, Stopped, log_tail};
use config::provider::NomadConfig;

pub use self::follow::Pace;

/// How often a change is tried in all when other processes change the job first.
const CHANGES_AT_MOST: usize = 10;
/// How many bytes of each stream are read for a bot's log.
const STREAM_BYTES_MAX: usize = 64 * 1024;
/// How long an allocation may take to stop.
const ENDED_WITHIN: Duration = Duration::from_secs(90);

#[derive(Debug)]
pub struct NomadProvider {
    api: Api,
    recipe: Recipe,
    pace: Pace,
}

/// What the slot's name stands for at Nomad.
enum Name {
    Free,
    Ours(Job),
    /// A job of another owner, which is never touched.
    Foreign,
}

impl NomadProvider {
    pub fn new(config: NomadConfig, installation: String) -> Self {
        Self { api: Api::new(&config), recipe: Recipe { config, installation }, pace: Pace::default() }
    }

    /// The same provider with other delays between its checks.
    #[must_use]
    pub fn paced(mut self, pace: Pace) -> Self {
        self.api.set_pace(pace);
        Self { pace, ..self }
    }

    /// Nomad's own name for a slot.
    fn provider_ref(&self, slot: &SlotName) -> String {
        format!("{}/{slot}", self.api.namespace)
    }

    async fn find(&self, slot: &SlotName) -> Result<Name, ProviderError> {
        Ok(match self.api.job(slot.as_str()).await? {
            None => Name::Free,
            Some(job) if self.recipe.owns(&job) => Name::Ours(job),
            Some(_) => Name::Foreign,
        })
    }

    /// Whether the job is still the one that was seen when its allocations had ended.
    async fn is_still(&self, slot: &SlotName, index: u64) -> Result<bool, ProviderError> {
        Ok(matches!(self.find(slot).await?, Name::Ours(job) if job.is_stopped() && job.index == index))
    }

    /// The state of a slot, from its allocations and its job's status.
    async fn seen(&self, slot: &SlotName, status: &str, allocations: &[Allocation]) -> Found {
        let not_ended = self.not_ended(allocations).await;
        let shown = not_ended.or_else(|| newest(allocations));
        let state = shown.map_or_else(|| status.to_owned(), |one| format!("{status}, {}", one.state()));
        let unhealthy = not_ended.is_some_and(Allocation::is_on_silent_node);
        Found { unhealthy, ..Found::new(slot.clone(), not_ended.is_some(), state) }
    }

    /// The state of a job that was purged while it ran, if it belonged to this installation.
    async fn seen_without_job(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        let allocations = self.api.allocations(slot.as_str()).await?;
        let Some(one) = self.not_ended(&allocations).await else { return Ok(None) };
        let is_ours = self.api.meta_of(&one.id).await?.is_some_and(|meta| self.recipe.owns_meta(&meta));
        Ok(if is_ours { Some(self.seen(slot, "purged", &allocations).await) } else { None })
    }

    async fn log_of(&self, allocation: &Allocation) -> Result<Option<String>, ProviderError> {
        let mut text = String::new();
        for stream in ["stdout", "stderr"] {
            if let Some(more) = self.api.log(&allocation.id, TASK, stream, log_tail::MOST_BYTES / 2).await? {
                text.push_str(&more);
                if !text.is_empty() && !text.ends_with('\n') {
                    text.push('\n');
                }
            }
        }
        Ok(log_tail::lines(&text))
    }

    /// Both streams of an allocation, one after the other: Nomad keeps no timestamps.
    async fn streams_of(&self, allocation: &Allocation) -> Result<Vec<LogLine>, ProviderError> {
        let mut lines = Vec::new();
        for stream in ["stdout", "stderr"] {
            if let Some(text) = self.api.log(&allocation.id, TASK, stream, STREAM_BYTES_MAX).await? {
                lines.extend(log_tail::untimed(&text));
            }
        }
        Ok(lines)
    }
}

fn foreign(slot: &SlotName) -> ProviderError {
    ProviderError::permanent(format!("the name {slot} belongs to a job that this installation did not make"))
}

fn others(slot: &SlotName) -> ProviderError {
    ProviderError::transient(format!("other processes change the job {slot} at the same time"))
}

#[async_trait]
impl Provider for NomadProvider {
    fn restarts_slots(&self) -> bool {
        true
    }

    fn recipe(&self) -> Option<String> {
        Some(self.recipe.own_fingerprint())
    }

    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        for _ in 0..CHANGES_AT_MOST {
            match self.find(&spec.slot).await? {
                Name::Ours(_) => return Ok(self.provider_ref(&spec.slot)),
                Name::Foreign => return Err(foreign(&spec.slot)),
                Name::Free => {}
            }
            if self.api.register(self.recipe.stopped_job(&spec.slot), 0).await? == Registered::Done {
                return Ok(self.provider_ref(&spec.slot));
            }
        }
        Err(others(&spec.slot))
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        for _ in 0..CHANGES_AT_MOST {
            // An earlier call, or another replica, has begun this start. It waits for that start and does not begin
            // another.
            if self.runs_already(spec).await? {
                return Ok(self.provider_ref(&spec.slot));
            }
            let index = self.stop_allocations(&spec.slot).await?;
            if self.api.register(self.recipe.running(spec), index).await? == Registered::Raced {
                continue;
            }
            match self.follow(spec).await? {
                Some((Outcome::Failed(error), index)) => return Err(self.withdraw(&spec.slot, index, error).await),
                Some(_) => return Ok(self.provider_ref(&spec.slot)),
                None => return Err(others(&spec.slot)),
            }
        }
        Err(others(&spec.slot))
    }

    /// Ignores `fresh`: every allocation begins with a new container and an empty disk.
    async fn stop(&self, slot: &SlotName, _fresh: bool) -> Result<Stopped, ProviderError> {
        match self.find(slot).await? {
            Name::Foreign => {}
            Name::Free | Name::Ours(_) => drop(self.stop_allocations(slot).await?),
        }
        Ok(Stopped::Seen)
    }

    /// Ends the allocations first and waits until they have ended. Nomad forgets them at once with a job, while their
    /// containers may run on for a while. A purge is the only change that names no version, so the job is read directly
    /// before it.
    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        let (begun, mut delays) = (Instant::now(), self.pace.delays());
        loop {
            match self.find(slot).await? {
                Name::Foreign => return Ok(()),
                Name::Free => return self.stop_allocations(slot).await.map(drop),
                Name::Ours(_) if begun.elapsed() > ENDED_WITHIN => {
                    return Err(ProviderError::transient(format!("the job {slot} still exists after it was purged")));
                }
                Name::Ours(_) => {
                    let index = self.stop_allocations(slot).await?;
                    if self.is_still(slot, index).await? {
                        self.api.purge(slot.as_str()).await?;
                    }
                }
            }
            tokio::time::sleep(delays.next_delay()).await;
        }
    }

    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        let jobs = self.api.jobs().await?;
        // A namespace that does not exist has no jobs either, so an empty list proves nothing.
        if jobs.is_empty() {
            self.api.has_namespace().await?;
        }
        let mut found = Vec::new();
        for job in jobs.iter().filter(|job| job.is_of(&self.recipe.installation)) {
            found.push(if job.is_ending() {
                let (slot, allocations) = (job.slot(), self.api.allocations(job.slot().as_str()).await?);
                self.seen(&slot, job.status(), &allocations).await
            } else {
                job.found()
            });
        }
        found.sort_by(|left, right| left.slot.cmp(&right.slot));
        Ok(found)
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        let job = match self.find(slot).await? {
            Name::Ours(job) => job,
            Name::Foreign => return Ok(None),
            Name::Free => return self.seen_without_job(slot).await,
        };
        let allocations = self.api.allocations(slot.as_str()).await?;
        Ok(Some(self.seen(slot, job.status(), &allocations).await))
    }

    async fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        let Name::Ours(_) = self.find(slot).await? else { return Ok(None) };
        match newest(&self.api.allocations(slot.as_str()).await?) {
            Some(newest) => self.log_of(newest).await,
            None => Ok(None),
        }
    }

    async fn log(&self, slot: &SlotName) -> Result<Vec<LogLine>, ProviderError> {
        let Name::Ours(_) = self.find(slot).await? else { return Ok(Vec::new()) };
        match newest(&self.api.allocations(slot.as_str()).await?) {
            Some(newest) => self.streams_of(newest).await,
            None => Ok(Vec::new()),
        }
    }

    async fn ping(&self) -> Result<(), ProviderError> {
        self.api.may_list().await
    }

    async fn check(&self, slots: u32) -> Vec<Check> {
        let leader = self.api.leader().await;
        let is_reachable = leader.is_ok();
        let leader = leader.map(|leader| format!("Nomad at {}, led by {leader}", self.api.shown()));
        let mut checks = vec![Check::of("reachable", leader)];
        if !is_reachable {
            return checks;
        }
        let namespace = &self.api.namespace;
        let listed =
            self.api.may_list().await.map(|()| format!("the token may list the jobs of the namespace {namespace}"));
        let is_known = listed.is_ok();
        checks.push(Check::of("token", listed));
        if !is_known {
            return checks;
        }
        let there = self.api.has_namespace().await.map(|()| format!("the namespace {namespace} exists"));
        checks.push(Check::of("namespace", there));
        match self.api.nodes().await {
            Ok(nodes) => checks.extend(capacity::check(&nodes, &self.recipe.config, slots)),
            // Slots run without this right. Only the number of slots that fit is unknown.
            Err(error) if !error.retryable => {
                let needed = "`node { policy = \"read\" }`";
                let text = format!("the nodes cannot be read; the token needs {needed}: {}", error.message);
                checks.push(Check::doubtful("nodes", text));
            }
            Err(error) => checks.push(Check::bad("nodes", error.message)),
        }
        checks
    }

    async fn host_memory(&self) -> Result<Option<HostMemory>, ProviderError> {
        let bytes = capacity::memory(&self.api.nodes().await?, &self.recipe.config.datacenters);
        Ok(Some(HostMemory::Total(bytes)))
    }

    // There is no `describe`: everything of a job that a person sees, including its meta, is part of its tasks. A
    // change of it replaces the allocation that runs.
}
