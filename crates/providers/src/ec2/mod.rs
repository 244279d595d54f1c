//! The EC2 provider. A slot is a place for a runner, an EC2 machine on which an agent waits. A start picks up an idle
//! runner that meets the requirements of the bot, and a stop gives the runner back. A slot without a bot has no runner.
//!
//! A table at AWS records which slot has which runner. In it a runner has at most one slot, and a slot at most one
//! runner.
//!
//! - this file: the provider
//! - [`runners`]: the runners of all pools
//! - [`check`]: checks for the operator that AWS has everything that runners need

mod check;
pub mod runners;

use std::time::Duration;

use async_trait::async_trait;
use aws::{AwsError, Fresh, Holder, Runner, RunnerPool, RunnerState};
use domain::SlotName;
use tokio::time::Instant;

use super::check::Check;
use super::{Found, Provider, ProviderError, Spec, Stopped};

pub use runners::Runners;

/// How often the provider checks whether an agent has taken its bot.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct Ec2Provider {
    pool: RunnerPool,
}

impl Ec2Provider {
    pub fn new(pool: RunnerPool) -> Self {
        Self { pool }
    }

    /// Waits for the agent of a runner to take its bot, and returns whether it did. An earlier call picked up the
    /// runner, but its process died or its answer was lost. The agent gets as much time as in a first call.
    async fn has_taken(&self, runner: Runner, spec: &Spec) -> Result<bool, AwsError> {
        let deadline = Instant::now() + self.pool.settings().pace.registration;
        let (mut found, run_id) = (runner.clone(), runner.run_id);
        loop {
            if found.run_id != run_id || found.connection != spec.connection || found.stop_asked {
                return Ok(false);
            }
            match found.state {
                RunnerState::Running => return Ok(true),
                RunnerState::Claimed if Instant::now() < deadline => {}
                _ => return Ok(false),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            match self.pool.runner_of(spec.slot.as_str()).await? {
                Some(runner) => found = runner,
                None => return Ok(false),
            }
        }
    }

    /// Removes the slot's demand for a fresh runner. If the removal fails, the demand counts for at most half a minute
    /// longer.
    async fn forget_demand(&self, slot: &SlotName) {
        if let Err(error) = self.pool.forget_demand(slot.as_str()).await {
            tracing::warn!(%slot, %error, "request for a fresh runner not withdrawn");
        }
    }

    async fn give_back(&self, slot: &SlotName) -> Result<(), ProviderError> {
        self.pool.stop(slot.as_str()).await?;
        self.forget_demand(slot).await;
        Ok(())
    }
}

/// Describes a runner under the name of its slot.
fn found(slot: SlotName, runner: &Runner) -> Found {
    let running = matches!(runner.state, RunnerState::Claimed | RunnerState::Running);
    Found::new(slot, running, format!("{} on {} of {}", runner.state, runner.instance, runner.group))
}

impl From<AwsError> for ProviderError {
    fn from(error: AwsError) -> Self {
        let message = error.to_string();
        match error {
            AwsError::Unreachable { .. } => ProviderError::unavailable(message),
            error if error.retryable() => ProviderError::transient(message),
            _ => ProviderError::permanent(message),
        }
    }
}

#[async_trait]
impl Provider for Ec2Provider {
    fn restarts_slots(&self) -> bool {
        true
    }

    /// The agent on a runner fetches its bot, so the slot's environment never changes.
    fn keeps_environment(&self) -> bool {
        true
    }

    fn keeps_idle_resources(&self) -> bool {
        false
    }

    /// A slot is only a place, so there is nothing to make.
    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        Ok(spec.slot.to_string())
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        let slot = spec.slot.as_str();
        if let Some(runner) = self.pool.runner_of(slot).await? {
            let instance = runner.instance.clone();
            if self.has_taken(runner, spec).await? {
                return Ok(instance);
            }
            self.pool.stop(slot).await?;
        }
        let holder = Holder { slot: slot.to_owned(), connection: spec.connection.clone() };
        if let Some(runner) = self.pool.claim(spec.requirements.as_ref(), &holder).await? {
            self.forget_demand(&spec.slot).await;
            return Ok(runner.instance);
        }
        Err(match self.pool.ask_for_fresh(spec.requirements.as_ref(), slot).await? {
            Fresh::Coming { group, asked: true } => {
                ProviderError::transient(format!("no idle runner fits; a fresh one was requested from {group}"))
            }
            Fresh::Coming { group, asked: false } => {
                ProviderError::transient(format!("no idle runner fits; a fresh one is starting in {group}"))
            }
            Fresh::NoCapacity { message } => ProviderError::no_capacity(message),
            Fresh::Impossible { message } => ProviderError::permanent(message),
        })
    }

    /// Ignores `fresh`: the agent removes the bot's files before it gives its runner back.
    async fn stop(&self, slot: &SlotName, _fresh: bool) -> Result<Stopped, ProviderError> {
        self.give_back(slot).await.map(|()| Stopped::Seen)
    }

    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        self.give_back(slot).await
    }

    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        let prefix = format!("{}/", self.pool.settings().installation);
        let runners = self.pool.runners().await?;
        let own = |runner: &Runner| {
            let slot = runner.slot.as_deref()?.strip_prefix(&prefix)?;
            Some(found(SlotName::stored(slot.to_owned()), runner))
        };
        Ok(runners.iter().filter_map(own).collect())
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        let runner = self.pool.runner_of(slot.as_str()).await?;
        Ok(runner.map(|runner| found(slot.clone(), &runner)))
    }

    async fn ping(&self) -> Result<(), ProviderError> {
        Ok(self.pool.ping().await?)
    }

    async fn check(&self, slots: u32) -> Vec<Check> {
        check::check(&self.pool, slots).await
    }
}
