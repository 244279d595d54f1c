//! Records which replicas live, and releases everything that a dead replica held. Its deployments go back to the gate,
//! and its leases ([`super::leases`]) are released. A replica's row expires by the database's clock, so the clocks of
//! replicas need not agree. Most things that a replica holds need no renewal of their own.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;

use super::deployments::return_to_gate;
use super::sql::{args, database_time, milliseconds, sql};
use super::{Holder, LeaseClaim, Run, Store, StoreError, Tx};
use domain::SlotName;

/// Something that a replica holds, by the id of the work that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// All deployments that passed the gate together.
    Passed {
        holder: Uuid,
    },
    Deployment {
        slot: SlotName,
        holder: Uuid,
    },
    Lease(LeaseClaim),
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// When the renewal was sent.
    pub sent: Instant,
    /// False if the replica was declared dead and holds nothing any more.
    pub lives: bool,
    /// Whether it runs the keepers.
    pub leads: bool,
    /// Whether there are replicas without a renewal in time.
    pub others_expired: bool,
}

macro_rules! register {
    ($dialect:ident) => {
        concat!(
            "INSERT INTO replicas (id, name, lease_until)
             VALUES ($1, $2, ",
            database_time!($dialect + "$3"),
            ") ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until"
        )
    };
}

macro_rules! delete_expired {
    ($dialect:ident) => {
        concat!(
            "DELETE FROM replicas WHERE lease_until <= ",
            database_time!($dialect),
            " AND id <> $1 RETURNING id, name"
        )
    };
}

impl Store {
    /// Registers a replica, which lives for this time unless it is renewed.
    pub async fn register_replica(&self, replica: &Holder, time: Duration) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql!(
                "replicas.register",
                sqlite: register!(sqlite),
                postgres: register!(postgres),
            ),
            args![replica.id, replica.name.as_str(), milliseconds(time)],
        )
        .await?;
        tx.commit().await
    }

    /// Renews a replica, and its lease of the keepers if it has this lease, and records how far it has read placement's
    /// journal. All of it is one statement, because every replica does it all the time.
    pub async fn renew_replica(
        &self,
        replica: Uuid,
        time: Duration,
        keepers: Option<&LeaseClaim>,
    ) -> Result<Renewed, StoreError> {
        let sent = Instant::now();
        let journal_position = self.placement.journal_position.load(Ordering::SeqCst);
        let (holder, keepers_time) = (keepers.map(|claim| claim.holder), keepers.map(|claim| milliseconds(claim.time)));
        let rows = self
            .write_in_time(
                sql!(
                    "replicas.renew",
                    // The only process leads, without a lease.
                    sqlite: concat!(
                        "UPDATE replicas SET lease_until = ", database_time!(sqlite + "$2"), ", journal_position = $3
                          WHERE id = $1
                         RETURNING 1 AS lives, $4 IS NOT NULL AND $5 > 0 AS leads, 0 AS others, 0 AS expired"
                    ),
                    postgres: concat!(
                        "WITH renewed_replica AS (
                             UPDATE replicas SET lease_until = ", database_time!(postgres + "$2"), ",
                                    journal_position = $3
                              WHERE id = $1 RETURNING id),
                         renewed_keepers AS (
                             UPDATE leases SET lease_until = ", database_time!(postgres + "$5"), "
                              WHERE name = 'keepers' AND holder = $4 AND lease_until > ", database_time!(postgres), "
                             RETURNING name)
                         SELECT (SELECT count(*) FROM renewed_replica) AS lives,
                                (SELECT count(*) FROM renewed_keepers) AS leads,
                                count(*) FILTER (WHERE lease_until > ", database_time!(postgres), ") AS others,
                                count(*) FILTER (WHERE lease_until <= ", database_time!(postgres), ") AS expired
                           FROM replicas WHERE id <> $1"
                    ),
                ),
                args![replica, milliseconds(time), journal_position, holder, keepers_time],
            )
            .await?;
        let number = |column| rows.first().map_or(Ok(0), |row| row.int(column));
        let (lives, others) = (number("lives")? > 0, number("others")?);
        self.placement.alone.set(lives && others == 0, sent);
        Ok(Renewed { sent, lives, leads: number("leads")? > 0, others_expired: number("expired")? > 0 })
    }

    /// Declares expired replicas dead, and releases everything that they held. A replica that renews at the same moment
    /// either stays alive or learns that it is dead. With `sweeps`, it also releases leases that a replica took while
    /// it was declared dead. A replica never declares itself dead.
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
                    "replicas.delete_expired",
                    sqlite: delete_expired!(sqlite),
                    postgres: delete_expired!(postgres),
                ),
                args![own],
            )
            .await?
            .iter()
            .map(|row| Ok(Holder { id: row.id("id")?, name: row.text("name")? }))
            .collect::<Result<Vec<_>, StoreError>>()?;
        for replica in &dead {
            tx.release_all_of(replica.id).await?;
        }
        if sweeps || !dead.is_empty() {
            tx.release_abandoned(now).await?;
        }
        tx.commit().await?;
        Ok(dead)
    }

    /// Ends a replica that stops normally. Everything that it held is free at once.
    pub async fn end_replica(&self, replica: Uuid, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(sql!("replicas.end", "DELETE FROM replicas WHERE id = $1"), args![replica]).await?;
        tx.release_all_of(replica).await?;
        tx.release_abandoned(now).await?;
        tx.commit().await
    }

    /// Releases everything that any replica held. For a database that no other process has open.
    pub async fn release_everything(&self, now: Timestamp) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        tx.run(sql!("replicas.end_all", "DELETE FROM replicas"), vec![]).await?;
        let released = tx
            .all(
                sql!("deployments.release_all", return_to_gate!("$1"), " WHERE state = 'active' RETURNING slot"),
                args![now],
            )
            .await?
            .len();
        tx.release_all_leases().await?;
        tx.commit().await?;
        Ok(u64::try_from(released).unwrap_or(u64::MAX))
    }

    /// Releases a holding that no work needs any more, if that work still holds it.
    pub async fn release(&self, holding: &Holding, now: Timestamp) -> Result<(), StoreError> {
        let (sql, args) = match holding {
            Holding::Lease(claim) => return self.release_lease(claim).await,
            Holding::Passed { holder } => (
                sql!("deployments.release_passed", return_to_gate!("$2"), " WHERE state = 'active' AND holder = $1"),
                args![*holder, now],
            ),
            Holding::Deployment { slot, holder } => (
                sql!(
                    "deployments.release",
                    return_to_gate!("$3"),
                    " WHERE slot = $1 AND state = 'active' AND holder = $2"
                ),
                args![slot, *holder, now],
            ),
        };
        let mut tx = self.begin().await?;
        tx.run(sql, args).await?;
        tx.commit().await
    }
}

impl Tx {
    /// Releases everything that unknown replicas hold, and expired holdings of replicas of the previous version. A
    /// deployment is tried again and not deleted, because it may already run.
    async fn release_abandoned(&mut self, now: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!(
                "deployments.release_abandoned",
                return_to_gate!("$1"),
                " WHERE state = 'active'
                    AND (replica IS NULL AND lease_until <= $1
                         OR replica IS NOT NULL
                            AND NOT EXISTS (SELECT 1 FROM replicas WHERE replicas.id = deployments.replica))"
            ),
            args![now],
        )
        .await?;
        self.release_orphaned_leases().await?;
        self.fill_in_pools().await
    }
}
