//! One at a time at a slot, in whatever process: whoever came second to end what runs in it would end what was started
//! there since. Each looks at the slot once more when nobody else can be at it.

use std::sync::PoisonError;

use domain::SlotName;
use uuid::Uuid;

use super::{Deployment, lease};
use crate::store::{Holding, SlotRow, StoreError};

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
        let (replica, holder) = (self.0.lease.current().await?.id, Uuid::new_v4());
        let kept = self.0.lease.keep(Holding::Slot { slot: slot.clone(), holder });
        if !self.lock_slot(slot, holder, replica).await? {
            kept.given_back();
            return Ok(None);
        }
        let done = match self.0.store.slot(slot).await {
            Ok(Some(row)) => {
                let ours = || std::future::ready(Ok(true));
                lease::kept(self.0.lease.liveness(), replica, slot.as_str(), ours, work(row)).await.transpose()
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match self.unlock_slot(slot, holder).await {
            Ok(()) => kept.given_back(),
            Err(error) => tracing::warn!(%slot, %error, "slot lock not given back; it is released later"),
        }
        done
    }

    async fn lock_slot(&self, slot: &SlotName, holder: Uuid, replica: Uuid) -> Result<bool, StoreError> {
        let mut tx = self.0.store.begin().await?;
        let taken = tx.lock_slot(slot, holder, replica, self.0.clock.now()).await?;
        tx.commit().await?;
        Ok(taken)
    }

    async fn unlock_slot(&self, slot: &SlotName, holder: Uuid) -> Result<(), StoreError> {
        let mut tx = self.0.store.begin().await?;
        tx.unlock_slot(slot, holder).await?;
        tx.commit().await
    }
}
