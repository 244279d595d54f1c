//! The agent of a prewarmed slot waits for a bot only while it has a command that is ready. This module takes the slot
//! out of the pool's idle slots when the agent reports that it has none, or stops waiting.

use std::time::Duration;

use domain::{Pool, SlotClaim, SlotStatus};

use super::Deployment;
use crate::placement::SlotEvent;
use crate::store::{SlotRow, StoreError};

/// What an agent reports when it has no command that is ready.
#[derive(Debug)]
pub struct NotReady<'a> {
    pub claim: &'a SlotClaim,
    pub agent: &'a str,
    pub message: &'a str,
    /// The last output of the command.
    pub last_lines: Option<&'a str>,
    /// Whether the agent has given up.
    pub failed: bool,
}

impl Deployment {
    /// Takes the slot out of the idle slots until its agent waits again; with `failed`, sets the slot to error. Returns
    /// whether the slot has a bot already; `None` if the token is not valid for the slot.
    pub async fn not_ready(&self, report: NotReady<'_>) -> Result<Option<bool>, StoreError> {
        let NotReady { claim, agent, message, last_lines, failed } = report;
        let Some(slot) = self.0.store.slot(&claim.slot).await? else { return Ok(None) };
        let is_of_another = slot.agent.as_deref().is_some_and(|waiting| waiting != agent);
        if !claim.is_current(&slot) || is_of_another {
            return Ok(None);
        }
        if slot.bot_id.is_some() {
            return Ok(Some(true));
        }
        // A token of an environment that cannot change is also that of the agent before this start.
        if claim.generation.is_none() && self.0.store.is_at_gate(&claim.slot).await? {
            return Ok(Some(false));
        }
        let event = SlotEvent::NotReady { claim: claim.clone(), agent: agent.to_owned(), left: false };
        if self.0.placement.report(claim.slot.clone(), event).await? {
            tracing::warn!(slot = %claim.slot, error = message, "slot not ready");
        }
        let Some(slot) = self.0.store.slot(&claim.slot).await?.filter(|slot| claim.is_current(slot)) else {
            return Ok(None);
        };
        if failed && slot.bot_id.is_none() && slot.status == SlotStatus::Creating {
            self.never_ready(&slot, message, last_lines).await?;
        }
        Ok(Some(slot.bot_id.is_some()))
    }

    /// The agent has stopped waiting without a word: its machine, its network or the agent itself failed. If it comes
    /// back, its next request makes the slot idle again.
    pub async fn stopped_waiting(&self, claim: &SlotClaim, agent: &str) -> Result<(), StoreError> {
        let Some(slot) = self.0.store.slot(&claim.slot).await? else { return Ok(()) };
        if !self.pool(&slot.pool).await?.is_some_and(|pool| pool.is_prewarmed()) {
            return Ok(());
        }
        let event = SlotEvent::NotReady { claim: claim.clone(), agent: agent.to_owned(), left: true };
        if self.0.placement.report(claim.slot.clone(), event).await? {
            tracing::info!(slot = %claim.slot, "agent stopped waiting");
        }
        Ok(())
    }

    async fn never_ready(&self, slot: &SlotRow, message: &str, last_lines: Option<&str>) -> Result<(), StoreError> {
        let event = SlotEvent::Failed { since: slot.status_since, message: message.to_owned() };
        if self.0.placement.report(slot.name.clone(), event).await? {
            tracing::warn!(slot = %slot.name, error = message, "slot failed");
            self.write_failure(slot, None, message, last_lines.map(str::to_owned)).await;
        }
        Ok(())
    }

    /// Keeps of these slots those whose agents had enough time to begin to wait. An agent that needs `alone` without
    /// prewarm needs more with it.
    pub(crate) async fn had_time_to_wait(
        &self,
        slots: Vec<SlotRow>,
        alone: Duration,
    ) -> Result<Vec<SlotRow>, StoreError> {
        if slots.is_empty() {
            return Ok(slots);
        }
        let (pools, now) = (self.0.store.pools().await?, self.0.clock.now());
        let has_had = |slot: &SlotRow| {
            let pool = pools.iter().find(|pool| pool.name == slot.pool);
            let within = pool.map_or(alone, |pool: &Pool| pool.agent_waits_within(alone));
            slot.status != SlotStatus::Creating || slot.status_since <= now.saturating_sub(within).unwrap_or(now)
        };
        Ok(slots.into_iter().filter(has_had).collect())
    }
}
