//! The calls of a runner's agent, which reach this module through the server: register, heartbeat, wait for a run,
//! acknowledge it, release the runner, report that no command is ready. Each call checks the table at that moment. An agent that calls too late gets a
//! refusal.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::after;
use crate::item::Runner;
use crate::steps::Step;
use crate::table::Changed;
use crate::{AwsError, RunnerPool, RunnerState};

/// How many times a call retries when other processes change the runner in between.
const TRIES: usize = 10;

/// Why a runner cannot register.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    #[error("no group of the pool has this instance")]
    Unknown,
    #[error("the runner is already registered, and its agent sends heartbeats")]
    Known,
    #[error("the runner is terminated")]
    Ended,
    #[error(transparent)]
    Aws(#[from] AwsError),
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// `None`: the pool does not know the runner.
    pub state: Option<RunnerState>,
    pub run_id: Option<String>,
    /// The agent must end its current run and release the runner.
    pub stop: bool,
    /// The machine must end.
    pub end: bool,
}

/// The answer to an agent that has no command that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unready {
    /// The runner gets no slot until its agent registers it again.
    Unregistered,
    /// The runner was claimed before. Its agent gets the run when it waits.
    Claimed,
    /// Another runner of the group renews its command.
    Later,
    Ended,
}

/// The run that an agent is to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The slot name, without the installation.
    pub slot: String,
    pub run_id: String,
    pub connection: Option<String>,
}

impl RunnerPool {
    /// Registers an instance of one of the groups: its runner becomes idle and is announced. If the runner is already
    /// registered and healthy, the caller must prove with `reregister` that it is this runner. A new agent runs
    /// nothing.
    pub async fn register(&self, instance: &str, reregister: bool) -> Result<Runner, RegisterError> {
        self.register_as(instance, reregister, None).await
    }

    /// Like `register`, for an agent that names itself. If the answer was lost, the same agent may repeat the call.
    pub async fn register_as(
        &self,
        instance: &str,
        reregister: bool,
        agent: Option<&str>,
    ) -> Result<Runner, RegisterError> {
        let machine = self.0.groups.find(instance).await?.ok_or(RegisterError::Unknown)?;
        if machine.going {
            return Err(RegisterError::Ended);
        }
        for _ in 0..TRIES {
            let seen = self.0.table.runner(instance).await?;
            match seen.as_ref().map(|seen| seen.state) {
                None | Some(RunnerState::Created) => {}
                Some(RunnerState::Terminated) => return Err(RegisterError::Ended),
                Some(_) if !reregister && self.is_healthy(self.0.table.last_heartbeat(instance).await?) => {
                    if agent.is_none() || self.0.table.registering(instance).await?.as_deref() != agent {
                        return Err(RegisterError::Known);
                    }
                }
                Some(_) => {}
            }
            let now = self.now();
            let made = Runner::created(&self.0.settings, instance, &machine.group, &machine.instance_type, now);
            let mut next = made.ok_or(RegisterError::Unknown)?.idle(now, self.new_expiry(), self.0.settings.pace.idle);
            // A runner whose command was not ready for a moment does not stay longer for that.
            let was_idle_until = seen.as_ref().filter(|seen| seen.state == RunnerState::Created);
            let was_idle_until = was_idle_until.and_then(|seen| seen.idle_until);
            next.idle_until = was_idle_until.or(next.idle_until);
            // The heartbeat comes before the announcement, because a claim checks the last heartbeat.
            self.0.table.beat_of(instance, now, agent).await?;
            let is_done = match &seen {
                None => self.0.table.insert(&next).await?,
                Some(seen) => self.0.table.change(seen, &next).await? == Changed::Done,
            };
            if is_done {
                tracing::info!(runner = instance, group = next.group, "runner registered");
                if was_idle_until.is_some() {
                    self.0.table.end_renewal(&next.group, instance).await?;
                }
                self.0.signals.notify(instance);
                self.announce(&next).await;
                return Ok(next);
            }
        }
        Err(contended("register").into())
    }

    /// Records a heartbeat. `busy_with` is the run that the agent works on.
    pub async fn beat(&self, instance: &str, busy_with: Option<&str>) -> Result<HeartbeatReply, AwsError> {
        let now = self.now();
        let (written, runner) = tokio::join!(self.0.table.beat(instance, now), self.0.table.runner(instance));
        if let Err(error) = written {
            self.reset_listening();
            return Err(error);
        }
        let Some(runner) = runner? else {
            return Ok(HeartbeatReply { state: None, run_id: None, stop: busy_with.is_some(), end: true });
        };
        let stop = busy_with.is_some_and(|run_id| {
            let is_its = matches!(runner.state, RunnerState::Claimed | RunnerState::Running) && runner.is_for(run_id);
            !is_its || runner.stop_asked
        });
        let end = runner.state == RunnerState::Terminated;
        Ok(HeartbeatReply { state: Some(runner.state), run_id: runner.run_id, stop, end })
    }

    /// Waits until this installation claims the runner. Returns `None` at once if the runner is terminated or unknown.
    pub async fn await_claim(&self, instance: &str, wait: Duration) -> Result<Option<Run>, AwsError> {
        let _waiting = self.watch();
        // Polls often enough that the agent can acknowledge in time even if no signal arrives.
        let poll_interval = self.0.settings.pace.registration / 3;
        let bell = self.0.signals.of(instance);
        let deadline = Instant::now() + wait;
        loop {
            let rung = bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            let Some(runner) = self.0.table.runner(instance).await? else { return Ok(None) };
            if runner.state == RunnerState::Terminated {
                return Ok(None);
            }
            // An agent that waits runs nothing. If the answer to its acknowledgement was lost, it gets its run once
            // more.
            if matches!(runner.state, RunnerState::Claimed | RunnerState::Running)
                && !runner.held
                && let Some(slot) = runner.slot_of(&self.0.settings.installation)
                && let Some(run_id) = &runner.run_id
            {
                let (slot, run_id) = (slot.to_owned(), run_id.clone());
                if runner.state == RunnerState::Running && runner.stop_asked {
                    // The agent never started this run, and a stop is requested.
                    self.release(instance, &run_id).await?;
                    continue;
                }
                return Ok(Some(Run { slot, run_id, connection: runner.connection }));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            tokio::select! {
                () = tokio::time::sleep_until(deadline.min(Instant::now() + poll_interval)) => {}
                () = rung => {}
            }
        }
    }

    /// The agent accepts the run. Returns false if the runner no longer has this run; then the agent must not start it.
    pub async fn acknowledge(&self, instance: &str, run_id: &str) -> Result<bool, AwsError> {
        for _ in 0..TRIES {
            let runner = self.0.table.runner(instance).await?;
            let Some(runner) = runner.filter(|runner| runner.is_for(run_id) && !runner.held) else { return Ok(false) };
            match runner.state {
                RunnerState::Running => return Ok(true),
                RunnerState::Claimed => {}
                _ => return Ok(false),
            }
            if self.0.table.change(&runner, &runner.running(self.now())).await? == Changed::Done {
                self.0.signals.notify(instance);
                return Ok(true);
            }
        }
        Err(contended("acknowledge"))
    }

    /// The run has ended: the runner is idle with a new expiry. Returns false if the runner did not have this run.
    pub async fn release(&self, instance: &str, run_id: &str) -> Result<bool, AwsError> {
        self.release_as(instance, run_id, true).await
    }

    /// The run has ended, and the next command is not ready: the runner gets no slot until its agent registers it
    /// again.
    pub async fn release_unready(&self, instance: &str, run_id: &str) -> Result<bool, AwsError> {
        self.release_as(instance, run_id, false).await
    }

    async fn release_as(&self, instance: &str, run_id: &str, is_ready: bool) -> Result<bool, AwsError> {
        for _ in 0..TRIES {
            let runner = self.0.table.runner(instance).await?;
            let is_busy = |state| matches!(state, RunnerState::Claimed | RunnerState::Running);
            let Some(runner) = runner.filter(|runner| runner.is_for(run_id) && is_busy(runner.state)) else {
                return Ok(false);
            };
            let now = self.now();
            // This call itself shows that the agent is alive.
            self.0.table.beat(instance, now).await?;
            let idle = runner.idle(now, self.new_expiry(), self.0.settings.pace.idle);
            let next = if is_ready { idle } else { idle.unregistered(now) };
            if self.0.table.change(&runner, &next).await? == Changed::Done {
                tracing::info!(runner = instance, slot = runner.slot, is_ready, "runner released");
                self.0.steps.done(Step::GivenBack).await;
                self.0.signals.notify(instance);
                if is_ready {
                    self.announce(&next).await;
                }
                return Ok(true);
            }
        }
        Err(contended("release"))
    }

    /// The agent has no command that is ready, so an idle runner leaves the pool until its agent registers it again.
    /// With `renewal` the command is still ready, and only too old: one runner of a group at a time may renew its
    /// command, for at most this time.
    pub async fn unready(&self, instance: &str, renewal: Option<Duration>) -> Result<Unready, AwsError> {
        for _ in 0..TRIES {
            let Some(runner) = self.0.table.runner(instance).await? else { return Ok(Unready::Ended) };
            match runner.state {
                RunnerState::Idle => {}
                RunnerState::Created => return Ok(Unready::Unregistered),
                RunnerState::Claimed | RunnerState::Running => return Ok(Unready::Claimed),
                RunnerState::Terminated => return Ok(Unready::Ended),
            }
            let now = self.now();
            if let Some(within) = renewal
                && !self.0.table.begin_renewal(&runner.group, instance, now, after(now, within)).await?
            {
                return Ok(Unready::Later);
            }
            // The announcement of the runner names its old expiry, so it claims nothing any more.
            if self.0.table.change(&runner, &runner.unregistered(now)).await? == Changed::Done {
                return Ok(Unready::Unregistered);
            }
            if renewal.is_some() {
                self.0.table.end_renewal(&runner.group, instance).await?;
            }
        }
        Err(contended("not_ready"))
    }
}

pub(crate) fn contended(operation: &'static str) -> AwsError {
    AwsError::Busy { operation, message: "other processes keep changing the runner".into() }
}
