//! One at a time at a slot, in whatever process: whoever came second to end what runs in it would end what was started
//! there since. Each looks at the slot once more when nobody else can be at it.

use std::sync::PoisonError;

use domain::SlotName;

use super::{Deployment, lease};
use crate::store::{Holding, Lease, LeaseClaim, SlotRow, StoreError};

/// This process is at the slot, until it is dropped: also when whoever asked for the work has gone away.
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
    /// Does the work on a slot as it is by now. `None` when someone is at it already, or has come to be meanwhile, or when
    /// there is no such slot.
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
        // Another holder each time: what this process had begun before, and was dropped, may still be going on.
        let claim = LeaseClaim::new(Lease::Slot(slot.clone()), &self.0.lease.current().await?);
        let kept = self.0.lease.keep(Holding::Lease(claim.clone()));
        if !self.0.store.take_lease(&claim).await? {
            kept.given_back();
            return Ok(None);
        }
        let done = match self.0.store.slot(slot).await {
            Ok(Some(row)) => {
                let ours = || std::future::ready(Ok(true));
                let liveness = self.0.lease.liveness();
                lease::kept(liveness, claim.replica.id, slot.as_str(), ours, work(row)).await.transpose()
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match self.0.store.release_lease(&claim).await {
            Ok(()) => kept.given_back(),
            Err(error) => tracing::warn!(%slot, %error, "slot lock not given back; it is released later"),
        }
        done
    }
}
