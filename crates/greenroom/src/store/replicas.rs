//! Which replicas live, and what of a dead one is free. Everything that a replica holds (deployments, slot locks, image
//! locks, named leases) is its own as long as its row is here. The row ends by the clock of the database, so that the
//! clocks of replicas need not agree, and a holder needs no renewal of its own.

use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::sql::{args, sql};
use super::{Holder, Image, Run, Store, StoreError, Tx};
use domain::SlotName;

/// Something that a replica holds, by the holder that its work made up for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Every deployment that was let through the gate together.
    Passed {
        holder: Uuid,
    },
    Deployment {
        slot: SlotName,
        holder: Uuid,
    },
    Slot {
        slot: SlotName,
        holder: Uuid,
    },
    Image {
        image: Image,
        holder: Uuid,
    },
    Lease {
        name: String,
        replica: Holder,
    },
}

impl Store {
    /// Makes a replica known, as one that lives for so long.
    pub async fn register_replica(&self, replica: &Holder, time: Duration) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql!(
                "replicas.register",
                sqlite: "INSERT INTO replicas (id, name, lease_until)
                         VALUES ($1, $2, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ($3 / 1000.0) || ' seconds'))
                         ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until",
                postgres: "INSERT INTO replicas (id, name, lease_until)
                           VALUES ($1, $2, clock_timestamp() + $3 * interval '1 millisecond')
                           ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until",
            ),
            args![replica.id, replica.name.as_str(), milliseconds(time)],
        )
        .await?;
        tx.commit().await
    }

    /// Tells that a replica lives, and how far it has followed placement's journal. False when it was taken for dead, and holds nothing any more.
    pub async fn renew_replica(&self, replica: Uuid, time: Duration) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let renewed = tx
            .first(
                sql!(
                    "replicas.renew",
                    sqlite: "UPDATE replicas
                                SET lease_until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ($2 / 1000.0) || ' seconds'),
                                    followed = $3
                              WHERE id = $1 RETURNING 0 AS others",
                    postgres: "UPDATE replicas SET lease_until = clock_timestamp() + $2 * interval '1 millisecond',
                                      followed = $3
                                WHERE id = $1
                               RETURNING (SELECT count(*) FROM replicas AS other
                                           WHERE other.id <> $1 AND other.lease_until > clock_timestamp()) AS others",
                ),
                args![replica, milliseconds(time), self.placement.followed.load(Ordering::SeqCst)],
            )
            .await?;
        tx.commit().await?;
        let others = renewed.as_ref().map(|row| row.int("others")).transpose()?;
        self.placement.is_alone.store(others == Some(0), Ordering::SeqCst);
        Ok(renewed.is_some())
    }

    /// Takes replicas whose time is over for dead, and releases what they held. Who renews at the same moment either
    /// lives or is told that it is dead. With `sweeps` also what a replica took in the moment of its death. Nobody
    /// takes itself for dead.
    pub async fn release_dead_replicas(
        &self,
        own: Uuid,
        now: Timestamp,
        sweeps: bool,
    ) -> Result<Vec<Holder>, StoreError> {
        let mut tx = self.begin().await?;
        let dead = tx
            .all(
                sql!(
                    "replicas.bury",
                    sqlite: "DELETE FROM replicas
                              WHERE lease_until <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND id <> $1
                             RETURNING id, name",
                    postgres: "DELETE FROM replicas WHERE lease_until <= clock_timestamp() AND id <> $1
                               RETURNING id, name",
                ),
                args![own],
            )
            .await?
            .iter()
            .map(|row| Ok(Holder { id: row.id("id")?, name: row.text("name")? }))
            .collect::<Result<Vec<_>, StoreError>>()?;
        for replica in &dead {
            tx.run(sql!("replicas.release_leases", "DELETE FROM leases WHERE holder = $1"), args![replica.id]).await?;
        }
        if sweeps || !dead.is_empty() {
            tx.release_abandoned(now).await?;
        }
        tx.commit().await?;
        Ok(dead)
    }

    /// Ends a replica by its own will: what it held is free at once.
    pub async fn end_replica(&self, replica: Uuid, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(sql!("replicas.end", "DELETE FROM replicas WHERE id = $1"), args![replica]).await?;
        tx.run(sql!("replicas.release_leases", "DELETE FROM leases WHERE holder = $1"), args![replica]).await?;
        tx.release_abandoned(now).await?;
        tx.commit().await
    }

    /// Releases everything that anybody held: for a database that nobody else has open.
    pub async fn release_everything(&self, now: Timestamp) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        tx.run(sql!("replicas.end_all", "DELETE FROM replicas"), vec![]).await?;
        let released = tx
            .all(
                sql!(
                    "deployments.release_all",
                    "UPDATE deployments SET state = 'again', holder = NULL, replica = NULL, lease_until = $1
                      WHERE state = 'active' RETURNING slot"
                ),
                args![now],
            )
            .await?
            .len();
        tx.run(sql!("slot_locks.release_all", "DELETE FROM slot_locks"), vec![]).await?;
        tx.run(sql!("images.release_all", "DELETE FROM image_locks"), vec![]).await?;
        tx.run(sql!("leases.release_all", "DELETE FROM leases"), vec![]).await?;
        tx.commit().await?;
        Ok(u64::try_from(released).unwrap_or(u64::MAX))
    }

    /// Releases what nobody works on any more, if it is still held by that work.
    pub async fn release(&self, holding: &Holding, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        match holding {
            Holding::Passed { holder } => {
                tx.run(
                    sql!(
                        "deployments.release_passed",
                        "UPDATE deployments SET state = 'again', holder = NULL, replica = NULL, lease_until = $2
                          WHERE state = 'active' AND holder = $1"
                    ),
                    args![*holder, now],
                )
                .await?;
            }
            Holding::Deployment { slot, holder } => {
                tx.run(
                    sql!(
                        "deployments.release",
                        "UPDATE deployments SET state = 'again', holder = NULL, replica = NULL, lease_until = $3
                          WHERE slot = $1 AND state = 'active' AND holder = $2"
                    ),
                    args![slot, *holder, now],
                )
                .await?;
            }
            Holding::Slot { slot, holder } => tx.unlock_slot(slot, *holder).await?,
            Holding::Image { image, holder } => tx.give_image_back(image, *holder).await?,
            Holding::Lease { name, replica } => {
                tx.run(
                    sql!("leases.release", "DELETE FROM leases WHERE name = $1 AND holder = $2"),
                    args![name.as_str(), replica.id],
                )
                .await?;
            }
        }
        tx.commit().await
    }
}

impl Tx {
    /// Releases what is held by replicas that are not known, and by replicas of the version before whose time is over.
    /// What was begun may run: a deployment is tried again, not forgotten.
    async fn release_abandoned(&mut self, now: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!(
                "deployments.release_abandoned",
                "UPDATE deployments SET state = 'again', holder = NULL, replica = NULL, lease_until = $1
                  WHERE state = 'active'
                    AND (replica IS NULL AND lease_until <= $1
                         OR replica IS NOT NULL
                            AND NOT EXISTS (SELECT 1 FROM replicas WHERE replicas.id = deployments.replica))"
            ),
            args![now],
        )
        .await?;
        self.run(
            sql!(
                "slot_locks.release_abandoned",
                "DELETE FROM slot_locks WHERE replica IS NOT NULL
                    AND NOT EXISTS (SELECT 1 FROM replicas WHERE replicas.id = slot_locks.replica)"
            ),
            vec![],
        )
        .await?;
        self.run(
            sql!(
                "images.release_abandoned",
                "DELETE FROM image_locks WHERE replica IS NOT NULL
                    AND NOT EXISTS (SELECT 1 FROM replicas WHERE replicas.id = image_locks.replica)"
            ),
            vec![],
        )
        .await?;
        self.fill_in_pools().await
    }
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
