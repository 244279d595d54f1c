//! This module lets only one task at a time work on a slot, across all processes. Without the lock, a second task that
//! stops the slot would stop what was started there since. Each task reads the slot again after it has the lock.

use std::sync::PoisonError;

use domain::SlotName;

use super::{Deployment, lease};
use crate::store::{Holding, Lease, LeaseClaim, SlotRow, StoreError};

/// The lock of this process on a slot. It is released when it is dropped, also when the caller was cancelled.
struct SlotLock<'a> {
    deployment: &'a Deployment,
    slot: &'a SlotName,
}

impl Drop for SlotLock<'_> {
    fn drop(&mut self) {
        self.deployment.0.clearing.lock().unwrap_or_else(PoisonError::into_inner).remove(self.slot);
    }
}

impl Deployment {
    /// Does the work on the slot, with the slot's current row. `None` when another task already works on the slot or
    /// takes it over, or when there is no such slot.
    pub(super) async fn with_slot_locked<T, W>(
        &self,
        slot: &SlotName,
        work: impl FnOnce(SlotRow) -> W,
    ) -> Result<Option<T>, StoreError>
    where
        W: Future<Output = Result<T, StoreError>>,
    {
        if !self.0.clearing.lock().unwrap_or_else(PoisonError::into_inner).insert(slot.clone()) {
            return Ok(None);
        }
        let _lock = SlotLock { deployment: self, slot };
        // Each lock has a new holder: earlier work of this process that was dropped may still be running.
        let claim = LeaseClaim::new(Lease::Slot(slot.clone()), &self.0.lease.current().await?);
        let guard = self.0.lease.guard(Holding::Lease(claim.clone()));
        if !self.0.store.take_lease(&claim).await? {
            guard.disarm();
            return Ok(None);
        }
        let done = match self.0.store.slot(slot).await {
            Ok(Some(row)) => {
                let ours = || std::future::ready(Ok(true));
                let liveness = self.0.lease.liveness();
                lease::run_while_held(liveness, claim.replica.id, slot.as_str(), ours, work(row)).await.transpose()
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match self.0.store.release_lease(&claim).await {
            Ok(()) => guard.disarm(),
            Err(error) => tracing::warn!(%slot, %error, "slot lock not released; retried later"),
        }
        done
    }
}
