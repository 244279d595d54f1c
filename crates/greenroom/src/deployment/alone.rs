//! One at a time at a slot, in whatever process: whoever came second to end what runs in it would end what was started
//! there since. Each looks at the slot once more when nobody else can be at it.

use std::sync::PoisonError;
use std::time::Duration;

use domain::SlotName;
use jiff::Timestamp;

use super::Deployment;
use crate::store::{SlotRow, StoreError};

/// How long a holder is believed to live without a sign.
const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(4);

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
    /// Does the work on a slot as it is by now. False when someone is at it already.
    pub(super) async fn alone_at<W>(&self, slot: &SlotName, work: impl FnOnce(SlotRow) -> W) -> Result<bool, StoreError>
    where
        W: Future<Output = Result<(), StoreError>>,
    {
        if !self.0.clearing.lock().unwrap_or_else(PoisonError::into_inner).insert(slot.clone()) {
            return Ok(false);
        }
        let _alone = Alone { deployment: self, slot };
        self.locked(slot, work).await
    }

    async fn locked<W>(&self, slot: &SlotName, work: impl FnOnce(SlotRow) -> W) -> Result<bool, StoreError>
    where
        W: Future<Output = Result<(), StoreError>>,
    {
        if !self.take_slot(slot).await? {
            return Ok(false);
        }
        let done = match self.0.store.slot(slot).await {
            Ok(Some(row)) => self.keeping(slot, work(row)).await.unwrap_or(Ok(())),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = self.give_slot_back(slot).await {
            tracing::warn!(%slot, %error, "the lock of a slot is left to end by itself");
        }
        done.map(|()| true)
    }

    /// Keeps the lock while the work lasts. `None` when another has it by now: the work is left to it.
    async fn keeping<T>(&self, slot: &SlotName, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                () = tokio::time::sleep(RENEW) => match self.take_slot(slot).await {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => tracing::warn!(%slot, %error, "the lock of a slot could not be renewed"),
                },
            }
        }
    }

    async fn take_slot(&self, slot: &SlotName) -> Result<bool, StoreError> {
        let now = self.0.lifecycle.clock.now();
        let until = now.saturating_add(LEASE).unwrap_or(Timestamp::MAX);
        let mut tx = self.0.store.begin().await?;
        let taken = tx.take_slot(slot, self.0.holder, now, until).await?;
        tx.commit().await?;
        Ok(taken)
    }

    async fn give_slot_back(&self, slot: &SlotName) -> Result<(), StoreError> {
        let mut tx = self.0.store.begin().await?;
        tx.give_slot_back(slot, self.0.holder).await?;
        tx.commit().await
    }
}
