//! This module changes the size of a pool at an operator's request. The new size holds until the configuration changes.

use domain::pool::MOST_SLOTS;

use super::Placement;
use crate::store::{Changed, NewAuditEntry, StoreError};

/// The values that an operator changes. A missing value stays unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resize {
    pub max_slots: Option<i64>,
    pub min_idle: Option<i64>,
}

/// Why the size of a pool was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    #[error("there is no such pool")]
    NotFound,
    #[error("must be from 1 to {MOST_SLOTS}")]
    MaxSlots,
    #[error("must be from 0 to max_slots, which is {max_slots}")]
    MinIdle { max_slots: i64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Resize {
    /// Returns the new `max_slots` and `min_idle` of a pool with these present values.
    fn applied_to(self, max_slots: i64, min_idle: i64) -> Result<(i64, i64), ResizeError> {
        let (max_slots, min_idle) = (self.max_slots.unwrap_or(max_slots), self.min_idle.unwrap_or(min_idle));
        if !(1..=i64::from(MOST_SLOTS)).contains(&max_slots) {
            return Err(ResizeError::MaxSlots);
        }
        if !(0..=max_slots).contains(&min_idle) {
            return Err(ResizeError::MinIdle { max_slots });
        }
        Ok((max_slots, min_idle))
    }
}

impl Placement {
    /// Changes the size of a pool. Missing slots are then created, and surplus idle slots are deleted.
    pub async fn resize_pool(
        &self,
        name: &str,
        resize: Resize,
        audit: Option<NewAuditEntry>,
    ) -> Result<(), ResizeError> {
        let (store, now) = (self.context.store.for_users(), self.context.clock.now());
        let changed = Changed { pools: true, ..Changed::default() };
        let mut tx = store.begin_changing(&changed, now).await?;
        let pool = tx.hold_pool(name).await?.ok_or(ResizeError::NotFound)?;
        let (max_slots, min_idle) = resize.applied_to(pool.max_slots, pool.min_idle)?;
        tx.resize_pool(name, max_slots, min_idle).await?;
        if let Some(entry) = audit {
            tx.record_audit(&entry.about(name), now).await?;
        }
        tx.commit().await?;
        tracing::info!(pool = name, max_slots, min_idle, "pool resized");
        self.keep_warm().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resized(max_slots: Option<i64>, min_idle: Option<i64>) -> Result<(i64, i64), String> {
        Resize { max_slots, min_idle }.applied_to(10, 2).map_err(|error| error.to_string())
    }

    #[test]
    fn a_setting_that_is_not_given_stays() {
        assert_eq!(resized(None, None), Ok((10, 2)));
        assert_eq!(resized(Some(5), None), Ok((5, 2)));
        assert_eq!(resized(None, Some(10)), Ok((10, 10)));
    }

    #[test]
    fn a_size_that_no_pool_can_have_is_refused() {
        for max_slots in [0, -1, 100_001] {
            assert_eq!(resized(Some(max_slots), None), Err("must be from 1 to 100000".to_owned()));
        }
        let too_small = "must be from 0 to max_slots, which is 1".to_owned();
        assert_eq!(resized(Some(1), None), Err(too_small), "the buffer that stays is larger");
        for min_idle in [-1, 11] {
            let error = "must be from 0 to max_slots, which is 10".to_owned();
            assert_eq!(resized(None, Some(min_idle)), Err(error));
        }
    }
}
