//! One at a time at a slot, in whatever process: whoever came second to end what runs in it would end what was started
//! there since. Each looks at the slot once more when nobody else can be at it.

use std::sync::PoisonError;

use domain::SlotName;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Deployment, lease};
use crate::store::{SlotRow, StoreError};

/// This process is at the slot, until it is dropped: also when whoever asked for the work has gone away.
struct Alone<'a> {
    deployment: &'a Deployment,
    slot: &'a SlotName,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.deployment.0.clearing.lock().unwrap_or_else(PoisonError::into_inner).remove(self.slot);
    }
}

impl Deployment {
    /// Does the work on a slot as it is by now. `None` when someone is at it already, or has come to be meanwhile, or when
    /// there is no such slot.
    pub(super) async fn alone_at<T, W>(
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
        let _alone = Alone { deployment: self, slot };
        // Another holder each time: what this process had begun before, and was dropped, may still be going on.
        let (taken, holder) = (Instant::now(), Uuid::new_v4());
        if !self.take_slot(slot, holder).await? {
            return Ok(None);
        }
        let done = match self.0.store.slot(slot).await {
            Ok(Some(row)) => {
                lease::kept(slot.as_str(), taken, || self.renew_slot(slot, holder), work(row)).await.transpose()
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        if let Err(error) = self.give_slot_back(slot, holder).await {
            tracing::warn!(%slot, %error, "the lock of a slot is left to end by itself");
        }
        done
    }

    async fn take_slot(&self, slot: &SlotName, holder: Uuid) -> Result<bool, StoreError> {
        let mut tx = self.0.store.begin().await?;
        let now = self.0.lifecycle.clock.now();
        let taken = tx.take_slot(slot, holder, now, lease::end(now)).await?;
        tx.commit().await?;
        Ok(taken)
    }

    async fn renew_slot(&self, slot: &SlotName, holder: Uuid) -> Result<bool, StoreError> {
        let mut tx = self.0.store.begin().await?;
        let now = self.0.lifecycle.clock.now();
        let renewed = tx.renew_slot(slot, holder, now, lease::end(now)).await?;
        tx.commit().await?;
        Ok(renewed)
    }

    async fn give_slot_back(&self, slot: &SlotName, holder: Uuid) -> Result<(), StoreError> {
        let mut tx = self.0.store.begin().await?;
        tx.give_slot_back(slot, holder).await?;
        tx.commit().await
    }
}
