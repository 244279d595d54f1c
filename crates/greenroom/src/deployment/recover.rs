//! This module recovers a slot in error: it stops the slot at the provider and makes it available again. A slot that
//! fails too often is deleted, so that the pool can create a new one. The module also removes resources at a provider
//! that belong to no slot.

use domain::slot::NO_AGENT;
use domain::{SlotName, SlotStatus};
use jiff::Timestamp;

use super::Deployment;
use super::clear::not_configured;
use super::lease;
use crate::placement::SlotEvent;
use crate::providers::Provider;
use crate::store::{Holding, Lease, LeaseClaim, SlotRow, StoreError};

/// The result of an attempt to recover a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The slot is available again.
    Recovered,
    /// The provider did not do what the server asked for.
    Failed,
    /// The slot failed too often and was deleted.
    Deleted,
    /// There was nothing to recover, or another task works on the slot.
    NotNeeded,
}

impl Recovery {
    fn count(self, slot: &SlotName) {
        let result = match self {
            Recovery::Recovered => "recovered",
            Recovery::Failed => "failed",
            Recovery::Deleted => "deleted",
            Recovery::NotNeeded => return,
        };
        let pool = slot.pool().unwrap_or_default().to_owned();
        metrics::counter!("greenroom_slot_recoveries_total", "pool" => pool, "result" => result).increment(1);
    }
}

/// Why an operator cannot recover a slot now.
#[derive(Debug, thiserror::Error)]
pub enum ManualRecoveryError {
    #[error("there is no such slot")]
    NotFound,
    #[error("the slot is {0}, not in error")]
    NotInError(SlotStatus),
    #[error("the slot is being stopped or recovered already")]
    InProgress,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Deployment {
    /// Recovers a slot in error at an operator's request. The attempt is not counted.
    pub async fn recover_by_hand(&self, slot: &SlotName) -> Result<(), ManualRecoveryError> {
        let row = self.0.store.for_users().slot(slot).await?.ok_or(ManualRecoveryError::NotFound)?;
        if row.status != SlotStatus::Error {
            return Err(ManualRecoveryError::NotInError(row.status));
        }
        self.recover(slot).await?.map(drop).ok_or(ManualRecoveryError::InProgress)
    }

    /// Recovers a slot in error at once, without counting the attempt; `None` when another task already works on the
    /// slot. The work is finished even if the caller stops waiting.
    pub async fn recover(&self, slot: &SlotName) -> Result<Option<Recovery>, StoreError> {
        let (this, slot) = (self.clone(), slot.clone());
        let done = tokio::spawn(async move {
            let reset_slot = |slot: SlotRow| async {
                match slot.status {
                    SlotStatus::Error => this.reset_slot_unless_agent_waits(slot).await,
                    _ => Ok(Recovery::NotNeeded),
                }
            };
            let done = this.with_slot_locked(&slot, reset_slot).await;
            if let Ok(Some(done)) = done {
                done.count(&slot);
            }
            done
        });
        done.await.unwrap_or_else(|error| Err(StoreError::ended("recover", &error)))
    }

    /// Makes one more attempt to recover a slot that is in error, or has been stuck since `stuck_since` or longer. At
    /// the last attempt the slot is deleted.
    pub async fn attempt(&self, slot: &SlotName, stuck_since: Timestamp) -> Result<Recovery, StoreError> {
        let done = self.with_slot_locked(slot, |slot| self.try_attempt(slot, stuck_since)).await?;
        let done = done.unwrap_or(Recovery::NotNeeded);
        done.count(slot);
        Ok(done)
    }

    async fn try_attempt(&self, slot: SlotRow, stuck_since: Timestamp) -> Result<Recovery, StoreError> {
        let is_stuck = slot.bot_id.is_none() && slot.status_since <= stuck_since;
        let message = match slot.status {
            SlotStatus::Error => "",
            SlotStatus::Creating if is_stuck => "the slot did not become ready in time",
            SlotStatus::Busy if is_stuck => "the slot was busy without a bot",
            _ => return Ok(Recovery::NotNeeded),
        };
        if slot.status != SlotStatus::Error && self.0.store.is_at_gate(&slot.name).await? {
            return Ok(Recovery::NotNeeded);
        }
        // While the provider is unavailable, no recovery is possible, and no attempt counts.
        if let Some(provider) = self.provider(&slot.pool)
            && !self.answers(&slot.pool, &*provider).await
        {
            return Ok(Recovery::NotNeeded);
        }
        // This comes before the call to the provider: an attempt in which this process dies counts too.
        let event = SlotEvent::Recovering { since: slot.status_since, message: message.to_owned() };
        if !self.0.placement.report(slot.name.clone(), event).await? {
            return Ok(Recovery::NotNeeded);
        }
        let Some(slot) = self.0.store.slot(&slot.name).await?.filter(|slot| slot.status == SlotStatus::Error) else {
            return Ok(Recovery::NotNeeded);
        };
        // The event has already counted this attempt.
        if !is_last_attempt(slot.recovery_attempts, self.0.max_recovery_attempts) {
            return self.reset_slot(slot).await;
        }
        tracing::warn!(slot = %slot.name, attempts = slot.recovery_attempts, "slot recovery stopped: too many attempts");
        self.0.placement.report(slot.name.clone(), SlotEvent::Drain).await?;
        let goes = |slot: &SlotRow| slot.status == SlotStatus::Draining && slot.bot_id.is_none();
        let Some(slot) = self.0.store.slot(&slot.name).await?.filter(goes) else { return Ok(Recovery::NotNeeded) };
        Ok(if self.try_remove(&slot).await? { Recovery::Deleted } else { Recovery::Failed })
    }

    /// Restarts a slot that does not work, with the reason in `message`. This counts as an attempt to recover the slot; at the
    /// last attempt the slot goes to error instead. True when the slot is started again.
    pub(crate) async fn restart_unhealthy(&self, slot: &SlotRow, message: String) -> Result<bool, StoreError> {
        if is_last_attempt(slot.recovery_attempts + 1, self.0.max_recovery_attempts) {
            self.failed_since(slot, message).await?;
            return Ok(false);
        }
        self.keep_failure(slot, None, &message).await;
        let lost = SlotEvent::Lost { since: slot.status_since, counts: true };
        let is_restarted = self.0.placement.report(slot.name.clone(), lost).await?;
        if is_restarted {
            tracing::warn!(slot = %slot.name, error = message, "unhealthy slot restarted");
        }
        Ok(is_restarted)
    }

    /// Recovers the slot unless its agent came back. A late agent could make its slot available while the server stops
    /// that same agent. So the slot's error message is first replaced by one that a late agent does not clear.
    async fn reset_slot_unless_agent_waits(&self, slot: SlotRow) -> Result<Recovery, StoreError> {
        if slot.error_message.as_deref() != Some(NO_AGENT) {
            return self.reset_slot(slot).await;
        }
        let message = format!("{NO_AGENT}; its recovery has begun");
        let failed = SlotEvent::Failed { since: slot.status_since, message };
        if !self.0.placement.report(slot.name.clone(), failed).await? {
            return Ok(Recovery::NotNeeded);
        }
        match self.0.store.slot(&slot.name).await?.filter(|slot| slot.status == SlotStatus::Error) {
            Some(slot) => self.reset_slot(slot).await,
            None => Ok(Recovery::NotNeeded),
        }
    }

    /// Stops the process in a slot in error, and makes the slot available again.
    async fn reset_slot(&self, slot: SlotRow) -> Result<Recovery, StoreError> {
        let Some(provider) = self.provider(&slot.pool) else {
            self.failed_since(&slot, not_configured(&slot.pool)).await?;
            return Ok(Recovery::Failed);
        };
        if let Err(error) = self.stopped(&slot.name, &*provider, true).await {
            if self.failed_by_outage(&slot.pool, &*provider, &error).await {
                tracing::info!(slot = %slot.name, error = error.message, "slot recovery postponed");
                return Ok(Recovery::Failed);
            }
            self.failed_since(&slot, error.message).await?;
            return Ok(Recovery::Failed);
        }
        let recovered = SlotEvent::Recovered { since: slot.status_since };
        if !self.0.placement.report(slot.name.clone(), recovered).await? {
            return Ok(Recovery::NotNeeded);
        }
        tracing::info!(slot = %slot.name, attempts = slot.recovery_attempts, "slot recovered");
        Ok(Recovery::Recovered)
    }

    /// Removes a resource at the provider whose name belongs to no slot. False when a slot has this name by now, or
    /// another task works on it.
    pub async fn remove_unknown(&self, slot: &SlotName, provider: &dyn Provider) -> Result<bool, String> {
        let (store, text) = (&self.0.store, |error: StoreError| error.to_string());
        let replica = self.0.lease.current().await.map_err(text)?;
        let claim = LeaseClaim::new(Lease::Removal(slot.clone()), &replica);
        let guard = self.0.lease.guard(Holding::Lease(claim.clone()));
        if !store.take_lease(&claim).await.map_err(text)? {
            guard.disarm();
            return Ok(false);
        }
        // The check comes after the lease was taken: from now on, a new slot of this name waits for the lease before it
        // is started.
        let removed = match store.slot(slot).await {
            Ok(None) => {
                let ours = || store.renew_lease(&claim);
                let (liveness, deleting) = (self.0.lease.liveness(), self.deleted(slot, provider));
                let deleted = lease::run_while_held(liveness, replica.id, slot.as_str(), ours, deleting).await;
                deleted.map_or(Ok(false), |deleted| deleted.map(|()| true).map_err(|error| error.message))
            }
            Ok(Some(_)) => Ok(false),
            Err(error) => Err(text(error)),
        };
        match store.release_lease(&claim).await {
            Ok(()) => guard.disarm(),
            Err(error) => tracing::warn!(%slot, %error, "lease not released; retried later"),
        }
        removed
    }

    /// Whether an unknown resource is being removed under this name.
    pub(super) async fn is_being_removed(&self, slot: &SlotName) -> Result<bool, StoreError> {
        Ok(self.0.store.lease_holder(&Lease::Removal(slot.clone())).await?.is_some())
    }
}

/// Whether an attempt to recover a slot is the last one. `number` counts the attempts, this one included.
fn is_last_attempt(number: i64, max_attempts: i64) -> bool {
    number >= max_attempts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_is_the_one_with_the_number_that_is_configured() {
        let last = |max| (1..=4).map(|number| is_last_attempt(number, max)).collect::<Vec<_>>();
        assert_eq!(last(3), [false, false, true, true]);
        assert_eq!(last(1), [true; 4]);
        assert_eq!(last(0), [true; 4]);
    }
}
