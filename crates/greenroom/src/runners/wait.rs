//! This module lets a runner wait until it is claimed for a bot.

use std::time::Duration;

use domain::SlotName;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{RunnerError, RunnerRegistry};
use crate::lifecycle::tokens::RunnerClaim;
use crate::store::StoreError;

/// How often to check whether the bot of a run is available.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl RunnerRegistry {
    /// Waits until the runner is claimed for a bot, and returns the bot's data with the id of the run. `None` when the
    /// time is over or the server stops.
    pub async fn wait(
        &self,
        claim: &RunnerClaim,
        wait: Duration,
        stopping: &CancellationToken,
    ) -> Result<Option<Value>, RunnerError> {
        let pool = self.of(&claim.pool)?;
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let run = tokio::select! {
                run = pool.await_claim(&claim.instance, left) => run?,
                () = stopping.cancelled() => None,
            };
            let Some(run) = run else {
                // A runner that has ended does not wait.
                let is_early = Instant::now() < deadline && !stopping.is_cancelled();
                if is_early && pool.beat(&claim.instance, None).await?.end {
                    return Err(RunnerError::Ended);
                }
                return Ok(None);
            };
            if let Some(data) = self.bot_of(&run).await? {
                return Ok(Some(data));
            }
            // The bot has ended, and the deployment that claimed the runner takes the runner back.
            if left <= POLL_INTERVAL {
                return Ok(None);
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = stopping.cancelled() => return Ok(None),
            }
        }
    }

    /// Returns the data of the bot that the runner was claimed for, if the bot still has to run.
    async fn bot_of(&self, run: &aws::Run) -> Result<Option<Value>, StoreError> {
        let slot = SlotName::stored(run.slot.clone());
        let Some(mut data) = self.deployment.offer_to_runner(&slot, run.connection.as_deref()).await? else {
            return Ok(None);
        };
        data["run_id"] = Value::String(run.run_id.clone());
        Ok(Some(data))
    }
}
