//! Who ends what runs in a slot: one at a time, in whatever process, as long as its replica lives.

use domain::SlotName;
use jiff::Timestamp;
use uuid::Uuid;

use super::sql::{args, sql};
use super::{Run, Store, StoreError, Tx};

impl Store {
    /// Whether another replica is ending what runs in a slot.
    pub async fn is_locked_elsewhere(&self, slot: &SlotName, replica: Uuid) -> Result<bool, StoreError> {
        let found = self
            .reader()
            .first(
                sql!(
                    "slot_locks.elsewhere",
                    "SELECT slot FROM slot_locks WHERE slot = $1 AND replica IS NOT NULL AND replica <> $2"
                ),
                args![slot, replica],
            )
            .await?;
        Ok(found.is_some())
    }
}

impl Tx {
    /// Takes a slot for `holder`, who is going to end what runs in it, unless somebody else has it. A lock of a replica
    /// of the version before ends by time.
    pub async fn lock_slot(
        &mut self,
        slot: &SlotName,
        holder: Uuid,
        replica: Uuid,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let taken = self
            .first(
                sql!(
                    "slot_locks.take",
                    "INSERT INTO slot_locks (slot, holder, replica, lease_until)
                     VALUES ($1, $2, $3, '9999-01-01T00:00:00.000000Z')
                     ON CONFLICT (slot) DO UPDATE
                         SET holder = excluded.holder, replica = excluded.replica, lease_until = excluded.lease_until
                      WHERE slot_locks.replica IS NULL AND slot_locks.lease_until <= $4
                         OR slot_locks.holder = excluded.holder
                     RETURNING slot"
                ),
                args![slot, holder, replica, now],
            )
            .await?;
        Ok(taken.is_some())
    }

    pub async fn unlock_slot(&mut self, slot: &SlotName, holder: Uuid) -> Result<(), StoreError> {
        self.run(
            sql!("slot_locks.give_back", "DELETE FROM slot_locks WHERE slot = $1 AND holder = $2"),
            args![slot, holder],
        )
        .await
    }
}
