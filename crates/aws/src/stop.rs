//! Ends the run of a slot, or a whole runner. The process that moves a runner to terminated also ends its machine. A
//! runner that ran keeps its slot until Auto Scaling has accepted the termination, so a slot that looks free is free.

use std::time::Duration;

use tokio::time::Instant;

use crate::agent::contended;
use crate::table::Changed;
use crate::{AwsError, Runner, RunnerPool, RunnerState};

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How often the items of a slot and its runner may contradict each other while they change.
const TRIES: usize = 10;

impl RunnerPool {
    /// Ends the run of a slot. Asks the agent to release the runner, and terminates a runner that sends no heartbeats
    /// or takes too long. Afterwards nothing of the slot runs.
    pub async fn stop(&self, slot: &str) -> Result<(), AwsError> {
        let key = self.slot_key(slot);
        let deadline = Instant::now() + self.0.settings.pace.stop;
        let mut contradictions = 0;
        loop {
            let Some(held) = self.0.table.slot(&key).await? else { return Ok(()) };
            let bell = self.0.signals.of(&held.runner);
            let rung = bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            let runner = self.0.table.runner(&held.runner).await?.filter(|runner| runner.is_for(&held.run_id));
            match runner {
                // The agent has not acknowledged the run, and now cannot acknowledge it any more.
                Some(runner) if runner.state == RunnerState::Claimed => {
                    if self.give_back(&runner).await? == Changed::Done {
                        return Ok(());
                    }
                    continue;
                }
                Some(runner) if runner.state == RunnerState::Running => {
                    if self.asked_to_stop(&runner, deadline).await? {
                        continue;
                    }
                }
                Some(runner) if runner.state == RunnerState::Terminated => return self.finish(&runner).await,
                _ => {
                    contradictions += 1;
                    if contradictions >= TRIES {
                        tracing::warn!(
                            slot,
                            runner = held.runner,
                            "slot item removed: its runner does not have its run"
                        );
                        return self.0.table.forget_slot(&key, &held.run_id).await;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = rung => {}
            }
        }
    }

    /// Asks the agent to release its runner, or terminates the runner. Returns whether the caller should read the slot
    /// again at once.
    async fn asked_to_stop(&self, runner: &Runner, deadline: Instant) -> Result<bool, AwsError> {
        let last_heartbeat = self.0.table.last_heartbeat(&runner.instance).await?;
        if Instant::now() >= deadline || !self.is_healthy(last_heartbeat) {
            tracing::warn!(
                runner = runner.instance,
                slot = runner.slot,
                "runner not stopped: no release in time, or no heartbeat"
            );
            self.terminate(runner).await?;
            return Ok(true);
        }
        if !runner.stop_asked {
            let asked = Runner { stop_asked: true, ..runner.clone() };
            self.0.table.change(runner, &asked).await?;
            self.0.signals.notify(&runner.instance);
        }
        Ok(false)
    }

    /// Terminates a runner in any state, and its machine.
    pub async fn end(&self, instance: &str) -> Result<(), AwsError> {
        for _ in 0..TRIES {
            let Some(runner) = self.0.table.runner(instance).await? else {
                return self.0.groups.terminate(instance, None).await;
            };
            if runner.state == RunnerState::Terminated {
                return self.finish(&runner).await;
            }
            if self.terminate(&runner).await? == Changed::Done {
                return Ok(());
            }
        }
        Err(contended("end"))
    }

    /// Terminates a runner that is unchanged since it was read, and its machine. If Auto Scaling fails, the keeper
    /// tries again. If the runner still has a slot, the failure is an error.
    pub(crate) async fn terminate(&self, seen: &Runner) -> Result<Changed, AwsError> {
        let next = seen.terminated(self.now());
        let changed = self.0.table.change(seen, &next).await?;
        if changed != Changed::Done {
            return Ok(changed);
        }
        tracing::info!(runner = next.instance, from = %seen.state, "runner terminated");
        self.0.signals.notify(&next.instance);
        if next.slot.is_some() {
            self.finish(&next).await?;
        } else if let Err(error) = self.0.groups.terminate(&next.instance, Some(&next.group)).await {
            tracing::warn!(runner = next.instance, %error, "machine not terminated; the keeper retries");
        }
        Ok(changed)
    }

    /// Ends the machine of a terminated runner, and then frees its slot.
    pub(crate) async fn finish(&self, terminated: &Runner) -> Result<(), AwsError> {
        self.0.groups.terminate(&terminated.instance, Some(&terminated.group)).await?;
        if terminated.slot.is_some() {
            let next = Runner { slot: None, ..terminated.clone() };
            self.0.table.change(terminated, &next).await?;
        }
        Ok(())
    }
}
