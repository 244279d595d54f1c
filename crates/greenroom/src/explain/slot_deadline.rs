//! When the server acts on a slot by itself, because its status has lasted too long.

use std::collections::HashMap;

use domain::{SlotName, SlotStatus};
use jiff::Timestamp;

use super::moment::after;
use crate::keepers::deployment::WAITS_WITHIN;
use crate::keepers::driver::Keepers;
use crate::store::{KeeperRow, PoolRow, SlotRow, Store, StoreError};

/// The times from which the deadlines of some slots follow.
#[derive(Clone, Debug, Default)]
pub struct SlotClocks {
    /// Until when slots may wait at the deploy gate or be started.
    deployments: HashMap<SlotName, Timestamp>,
    /// The next run of the keeper that recovers slots.
    recovery_at: Option<Timestamp>,
}

impl SlotClocks {
    /// Reads the times for these slots, with two queries at most.
    pub async fn read(store: &Store, keepers: &Keepers, slots: &[SlotRow]) -> Result<Self, StoreError> {
        let creating = slots.iter().filter(|slot| slot.status == SlotStatus::Creating).map(|slot| slot.name.clone());
        let creating: Vec<SlotName> = creating.collect();
        let recovery_at = match slots.iter().any(|slot| slot.status == SlotStatus::Error) {
            true => recovery_at(&keepers.rows().await?),
            false => None,
        };
        Ok(Self { deployments: store.deployment_timeouts(&creating).await?, recovery_at })
    }

    /// For a slot that is being created: when that must be done. For a slot in error: the next attempt to recover it.
    pub fn deadline(&self, slot: &SlotRow, pool: Option<&PoolRow>) -> Option<Timestamp> {
        match slot.status {
            SlotStatus::Creating => self.deployments.get(&slot.name).copied().or_else(|| {
                let pool = pool.filter(|pool| pool.hot && slot.bot_id.is_none())?;
                Some(after(slot.status_since, pool.agent_waits_within(WAITS_WITHIN)))
            }),
            SlotStatus::Error => self.recovery_at,
            SlotStatus::Idle | SlotStatus::Busy | SlotStatus::Draining => None,
        }
    }
}

/// The next run of the keeper that recovers slots.
pub fn recovery_at(keepers: &[KeeperRow]) -> Option<Timestamp> {
    keepers.iter().find(|row| row.name == "recovery").and_then(|row| row.next_run)
}
