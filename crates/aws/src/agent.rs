//! What a runner's agent calls, through the server: it registers, is heard of, waits for a run, takes it and gives itself
//! back. Each call is true only of what the table has at that moment: an agent that comes late is told so.

use std::time::Duration;

use tokio::time::Instant;

use crate::item::Runner;
use crate::steps::Step;
use crate::table::Changed;
use crate::{AwsError, RunnerPool, RunnerState};

/// How often something is tried that others change meanwhile.
const TRIES: usize = 10;

/// Why a runner is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    #[error("no group of the pool has this instance")]
    Unknown,
    #[error("the runner is registered, and was heard of just now")]
    Known,
    #[error("the runner is terminated")]
    Ended,
    #[error(transparent)]
    Aws(#[from] AwsError),
}

/// What a runner is told when it is heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// `None`: it is unknown.
    pub state: Option<RunnerState>,
    pub run_id: Option<String>,
    /// The run that it is busy with is to be ended, and the runner given back.
    pub stop: bool,
    /// The machine is to end.
    pub end: bool,
}

/// What a runner is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The slot, without the installation.
    pub slot: String,
    pub run_id: String,
    pub connection: Option<String>,
}

impl RunnerPool {
    /// An instance of one of the groups is idle from now on, and announced. Whoever registers a runner that is registered and
    /// alive has to prove to be it (`reregister`): its agent is new, and runs nothing.
    pub async fn register(&self, instance: &str, reregister: bool) -> Result<Runner, RegisterError> {
        self.register_as(instance, reregister, None).await
    }

    /// The same for an agent that says which it is: whoever asks again because the answer was lost is answered again.
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
                Some(_) if !reregister && self.is_healthy(self.0.table.heard(instance).await?) => {
                    if agent.is_none() || self.0.table.registering(instance).await?.as_deref() != agent {
                        return Err(RegisterError::Known);
                    }
                }
                Some(_) => {}
            }
            let now = self.now();
            let made = Runner::created(&self.0.settings, instance, &machine.group, &machine.instance_type, now);
            let next = made.ok_or(RegisterError::Unknown)?.idle(now, self.new_expiry(), self.0.settings.pace.idle);
            // Before it is announced: who claims it looks whether it was heard of.
            self.0.table.beat_of(instance, now, agent).await?;
            let is_done = match &seen {
                None => self.0.table.insert(&next).await?,
                Some(seen) => self.0.table.change(seen, &next).await? == Changed::Done,
            };
            if is_done {
                tracing::info!(runner = instance, group = next.group, "runner registered");
                self.0.signals.ring(instance);
                self.announce(&next).await;
                return Ok(next);
            }
        }
        Err(in_the_way("register").into())
    }

    /// A runner is heard of, with the run that it is busy with.
    pub async fn beat(&self, instance: &str, busy_with: Option<&str>) -> Result<Standing, AwsError> {
        let now = self.now();
        let (written, runner) = tokio::join!(self.0.table.beat(instance, now), self.0.table.runner(instance));
        if let Err(error) = written {
            self.is_deaf();
            return Err(error);
        }
        let Some(runner) = runner? else {
            return Ok(Standing { state: None, run_id: None, stop: busy_with.is_some(), end: true });
        };
        let stop = busy_with.is_some_and(|run_id| {
            let is_its = matches!(runner.state, RunnerState::Claimed | RunnerState::Running) && runner.is_for(run_id);
            !is_its || runner.stop_asked
        });
        let end = runner.state == RunnerState::Terminated;
        Ok(Standing { state: Some(runner.state), run_id: runner.run_id, stop, end })
    }

    /// Waits until the runner is claimed by this installation. One that is terminated or unknown waits for nothing.
    pub async fn await_claim(&self, instance: &str, wait: Duration) -> Result<Option<Run>, AwsError> {
        let _waiting = self.watch();
        // Whatever is heard of it: in time for what may be waited for.
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
            // An agent that waits runs nothing: one whose acknowledgement got no answer is told of its run once more.
            if matches!(runner.state, RunnerState::Claimed | RunnerState::Running)
                && !runner.held
                && let Some(slot) = runner.slot_of(&self.0.settings.installation)
                && let Some(run_id) = &runner.run_id
            {
                let (slot, run_id) = (slot.to_owned(), run_id.clone());
                if runner.state == RunnerState::Running && runner.stop_asked {
                    // It was never begun, and is to end.
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

    /// The agent will run what the runner was claimed for; false when that is no longer its run, and must not be begun.
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
                self.0.signals.ring(instance);
                return Ok(true);
            }
        }
        Err(in_the_way("acknowledge"))
    }

    /// The run is over, and the runner idle under a new threshold; false when it was not its run.
    pub async fn release(&self, instance: &str, run_id: &str) -> Result<bool, AwsError> {
        for _ in 0..TRIES {
            let runner = self.0.table.runner(instance).await?;
            let is_busy = |state| matches!(state, RunnerState::Claimed | RunnerState::Running);
            let Some(runner) = runner.filter(|runner| runner.is_for(run_id) && is_busy(runner.state)) else {
                return Ok(false);
            };
            let now = self.now();
            // It was heard of just now, in this call.
            self.0.table.beat(instance, now).await?;
            let next = runner.idle(now, self.new_expiry(), self.0.settings.pace.idle);
            if self.0.table.change(&runner, &next).await? == Changed::Done {
                tracing::info!(runner = instance, slot = runner.slot, "runner released");
                self.0.steps.done(Step::GivenBack).await;
                self.0.signals.ring(instance);
                self.announce(&next).await;
                return Ok(true);
            }
        }
        Err(in_the_way("release"))
    }
}

pub(crate) fn in_the_way(operation: &'static str) -> AwsError {
    AwsError::Busy { operation, message: "the runner is changed by others again and again".into() }
}
