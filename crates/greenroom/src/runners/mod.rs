//! Runners are machines on which an agent waits for bots of any pool. A runner registers with the token of its pool,
//! and then uses its own token. A table at AWS, which only the server reads, holds each runner's state and slot.
//!
//! - this file: registration, heartbeats, taking a bot, release and end of a runner, runners without a ready command
//! - [`wait`]: waiting for a bot

mod wait;

use std::time::Duration;

use aws::{AwsError, RegisterError, RunnerPool, RunnerState, Unready};
use domain::UsageClass;

use crate::deployment::Deployment;
use crate::lifecycle::tokens::{RunnerClaim, Tokens};
use crate::providers::ec2::Runners;
use crate::store::StoreError;

/// How long a runner without a bot keeps running when it cannot reach the server.
const ORPHANED_AFTER: Duration = Duration::from_mins(30);

/// The time that the new command of a runner may take beyond its `ready_timeout`, until another runner of the group may
/// renew its own.
const RENEWAL_MARGIN: Duration = Duration::from_secs(30);

/// Registers the runners of all pools, and gives them their bots.
#[derive(Clone, Debug)]
pub struct RunnerRegistry {
    runners: Runners,
    tokens: Tokens,
    deployment: Deployment,
}

/// A machine that asks to register, identified by its token.
#[derive(Debug)]
pub enum Newcomer {
    /// The machine has the token of this pool.
    OfPool(String),
    /// The machine was registered before.
    Known(RunnerClaim),
}

/// A registered runner.
#[derive(Debug)]
pub struct Registration {
    pub claim: RunnerClaim,
    /// The runner's own token.
    pub token: String,
    pub resource_class: Option<String>,
    pub usage_class: UsageClass,
    pub heartbeat_interval: Duration,
    pub orphaned_after: Duration,
}

/// The state of a runner, and what it has to do.
#[derive(Debug)]
pub struct HeartbeatReply {
    pub state: &'static str,
    /// The runner has to end its run and release it.
    pub stop: bool,
    /// The machine has to end.
    pub end: bool,
}

/// Whether a runner without a ready command is still registered, and has a bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotReadyReply {
    /// If not, the runner gets no bot until its agent registers it again.
    pub registered: bool,
    /// The runner was claimed for a bot before.
    pub assigned: bool,
}

/// Why the server refuses a runner's call.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error("the token belongs to another machine")]
    OtherMachine,
    #[error("the pool {0} of this token has no runners, or no longer exists")]
    NoRunners(String),
    #[error("this machine is not, or not yet, in an Auto Scaling group of the pool")]
    NotInGroup,
    #[error(
        "another agent has registered this machine and sends heartbeats: use the runner token of that agent, or wait \
         until its heartbeats end"
    )]
    AlreadyRegistered,
    #[error("this runner has ended; terminate its machine")]
    Ended,
    #[error("this is not the current run of the runner")]
    StaleRun,
    #[error("{message}")]
    Aws { message: String, retryable: bool },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<AwsError> for RunnerError {
    fn from(error: AwsError) -> Self {
        Self::Aws { message: error.to_string(), retryable: error.retryable() }
    }
}

impl From<RegisterError> for RunnerError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Unknown => Self::NotInGroup,
            RegisterError::Known => Self::AlreadyRegistered,
            RegisterError::Ended => Self::Ended,
            RegisterError::Aws(error) => error.into(),
        }
    }
}

impl RunnerRegistry {
    pub fn new(runners: Runners, tokens: Tokens, deployment: Deployment) -> Self {
        Self { runners, tokens, deployment }
    }

    /// Returns the owner of a runner's token; `None` when it is not a runner's token.
    pub fn claim(&self, token: &str) -> Option<RunnerClaim> {
        self.tokens.read_runner(token)
    }

    /// Returns who may register with this token; `None` when it belongs neither to a runner nor to a pool.
    pub fn newcomer(&self, token: &str) -> Option<Newcomer> {
        let known = self.claim(token).map(Newcomer::Known);
        known.or_else(|| self.tokens.read_pool(token).map(Newcomer::OfPool))
    }

    /// How the runners of a pool start the bot's command ahead: how long it may take to become ready, and how long it
    /// may then wait. `None` if they do not.
    pub async fn prewarm(&self, newcomer: &Newcomer) -> Result<Option<(Duration, Option<Duration>)>, RunnerError> {
        let pool = match newcomer {
            Newcomer::OfPool(pool) => pool,
            Newcomer::Known(claim) => &claim.pool,
        };
        self.of(pool)?;
        let pool = self.deployment.pool(pool).await?;
        let millis = |ms: i64| Duration::from_millis(ms.unsigned_abs());
        Ok(pool.and_then(|pool| Some((millis(pool.ready_timeout_ms?), pool.max_warm_age_ms.map(millis)))))
    }

    /// Registers a machine as a runner. `agent` is the id of its agent process: the same process may register again.
    pub async fn register(
        &self,
        newcomer: Newcomer,
        instance: String,
        agent: Option<&str>,
    ) -> Result<Registration, RunnerError> {
        let (pool, is_known) = match newcomer {
            Newcomer::OfPool(pool) => (pool, false),
            Newcomer::Known(claim) if claim.instance == instance => (claim.pool, true),
            Newcomer::Known(_) => return Err(RunnerError::OtherMachine),
        };
        let runners = self.of(&pool)?;
        let runner = runners.register_as(&instance, is_known, agent).await?;
        let claim = RunnerClaim { pool, instance };
        self.note_free_runner(&claim);
        Ok(Registration {
            token: self.tokens.make_runner(&claim),
            claim,
            resource_class: runner.attributes.resource_class,
            usage_class: runner.attributes.usage_class,
            heartbeat_interval: runners.settings().pace.heartbeat,
            orphaned_after: ORPHANED_AFTER,
        })
    }

    /// Records a runner's heartbeat. `run_id` is its current run.
    pub async fn heartbeat(&self, claim: &RunnerClaim, run_id: Option<&str>) -> Result<HeartbeatReply, RunnerError> {
        let reply = self.of(&claim.pool)?.beat(&claim.instance, run_id).await?;
        if reply.state == Some(RunnerState::Terminated) {
            return Err(RunnerError::Ended);
        }
        let state = reply.state.map_or("unknown", RunnerState::as_str);
        Ok(HeartbeatReply { state, stop: reply.stop, end: reply.end })
    }

    /// The runner takes the bot of this run.
    pub async fn acknowledge(&self, claim: &RunnerClaim, run_id: &str) -> Result<(), RunnerError> {
        let pool = self.of(&claim.pool)?;
        if !pool.acknowledge(&claim.instance, run_id).await? {
            return Err(refusal(pool, claim).await?);
        }
        Ok(())
    }

    /// Nothing of this run's bot is left on the machine: the runner is free. If its next command is not ready, it gets
    /// no bot until its agent registers it again.
    pub async fn release(&self, claim: &RunnerClaim, run_id: &str, is_ready: bool) -> Result<(), RunnerError> {
        let pool = self.of(&claim.pool)?;
        let is_released = match is_ready {
            true => pool.release(&claim.instance, run_id).await?,
            false => pool.release_unready(&claim.instance, run_id).await?,
        };
        if !is_released {
            return Err(refusal(pool, claim).await?);
        }
        if is_ready {
            self.note_free_runner(claim);
        }
        Ok(())
    }

    /// The runner has no command that is ready, or wants to renew one that is too old. It gets no bot until its agent
    /// registers it again. One runner of a group at a time may renew its command.
    pub async fn not_ready(
        &self,
        claim: &RunnerClaim,
        is_renewal: bool,
        message: &str,
    ) -> Result<NotReadyReply, RunnerError> {
        let runners = self.of(&claim.pool)?;
        let renewal = match is_renewal {
            true => Some(self.ready_timeout(&claim.pool).await? + RENEWAL_MARGIN),
            false => None,
        };
        let reply = |registered, assigned| Ok(NotReadyReply { registered, assigned });
        match runners.unready(&claim.instance, renewal).await? {
            Unready::Unregistered => {
                tracing::info!(pool = claim.pool, runner = claim.instance, reason = message, "runner not ready");
                reply(false, false)
            }
            Unready::Claimed => reply(true, true),
            Unready::Later => reply(true, false),
            Unready::Ended => Err(RunnerError::Ended),
        }
    }

    async fn ready_timeout(&self, pool: &str) -> Result<Duration, RunnerError> {
        let pool = self.deployment.pool(pool).await?;
        let ms = pool.and_then(|pool| pool.ready_timeout_ms).unwrap_or_default();
        Ok(Duration::from_millis(ms.unsigned_abs()))
    }

    /// Terminates the machine of a runner.
    pub async fn end(&self, claim: &RunnerClaim, reason: &str) -> Result<(), RunnerError> {
        self.of(&claim.pool)?.end(&claim.instance).await?;
        tracing::info!(pool = claim.pool, runner = claim.instance, reason, "runner ended");
        Ok(())
    }

    /// A runner became free: waiting bots are tried again, in a separate task, so the runner does not wait for it.
    fn note_free_runner(&self, claim: &RunnerClaim) {
        let (this, RunnerClaim { pool, instance }) = (self.clone(), claim.clone());
        tokio::spawn(async move {
            let Some(runners) = this.runners.of(&pool) else { return };
            let reported = match runners.runner(&instance).await {
                Ok(Some(runner)) => {
                    let pools: Vec<&str> = this.runners.sharing(&pool).collect();
                    this.deployment
                        .note_free_capacity(&pools, runner.attributes)
                        .await
                        .map_err(|error| error.to_string())
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = reported {
                tracing::warn!(pool, error, "waiting bots not placed on a free runner; retried later");
            }
        });
    }

    /// Returns the runners of the pool that a token names.
    fn of(&self, pool: &str) -> Result<&RunnerPool, RunnerError> {
        self.runners.of(pool).ok_or_else(|| RunnerError::NoRunners(pool.to_owned()))
    }
}

/// Returns why the run does not belong to the runner.
async fn refusal(pool: &RunnerPool, claim: &RunnerClaim) -> Result<RunnerError, AwsError> {
    let is_ended = pool.beat(&claim.instance, None).await?.end;
    Ok(if is_ended { RunnerError::Ended } else { RunnerError::StaleRun })
}
