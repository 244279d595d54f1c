//! Leases: work that only one holder at a time may do. A [`LeaseClaim`] names the [`Lease`], the work and the replica.
//! This module takes, renews and releases leases, with the same statements for every kind.
//!
//! A lease ends when it is released, when its time is over by the database's clock, or with its replica. So the clocks
//! of replicas need not agree. The kinds differ in what ends them:
//!
//! | lease | table | its time | what else ends it |
//! |---|---|---|---|
//! | [`Lease::Keepers`], [`Lease::Removal`] | `leases` | seconds or minutes: the holder renews it | the end of its replica |
//! | [`Lease::Slot`] | `slot_locks` | none: it needs no renewal | the end of its replica |
//! | [`Lease::Image`] | `image_locks` | none: it needs no renewal | the end of its replica |
//!
//! There are three tables, because the deploy gate joins the images that are being pulled, and `image_locks` also has
//! the progress of the pull. The holder of a lease in `leases` is the replica itself, which renews its lease when it
//! takes it again. The holder of the others is one piece of work, so that two pieces of work of a replica exclude each
//! other.
//!
//! Four similar mechanisms are not leases of this kind:
//! - The row of a replica ([`super::replicas`]): leases end with it, and no other replica competes for it.
//! - A deployment that has passed the gate ([`super::deployments`]): it has a holder and ends with its replica too. But
//!   it is not released: it goes back to the gate, in its order.
//! - The turn at placing ([`super::placement_turn`]): it is an advisory lock of PostgreSQL. A replica waits for it in
//!   the database, and may continue without it.
//! - The lock of an SQLite file ([`super::server_lock`]): the kernel holds it, and it guards the database itself.

use std::time::Duration;

use domain::SlotName;
use uuid::Uuid;

use super::sql::{Arg, Sql, args, database_time, milliseconds, sql};
use super::{Image, Run, Store, StoreError, Tx};

/// How long the leader of the keepers leads without a renewal.
const KEEPERS: Duration = Duration::from_secs(5);
/// Longer than a provider may take to delete something. The lease is released as soon as that is done.
const REMOVAL: Duration = Duration::from_mins(5);
/// The time of a lease that ends with its replica: a thousand years.
const WHILE_REPLICA_LIVES: Duration = Duration::from_secs(1_000 * 365 * 24 * 60 * 60);

/// A process that may hold leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub id: Uuid,
    /// The name that an operator knows it by.
    pub name: String,
}

/// Work that only one holder at a time may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Run the keepers.
    Keepers,
    /// Remove an object at a provider under a name that no slot has.
    Removal(SlotName),
    /// End the processes in a slot.
    Slot(SlotName),
    /// Pull an image to a host.
    Image(Image),
}

/// A lease that a holder has, or is about to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseClaim {
    pub lease: Lease,
    /// The work that holds it. For a lease that is renewed, its replica.
    pub holder: Uuid,
    pub replica: Holder,
    /// How long it lasts unless it is renewed.
    pub time: Duration,
}

impl LeaseClaim {
    /// The claim of a replica. For a lease that is not renewed, each claim is a different holder.
    pub fn new(lease: Lease, replica: &Holder) -> Self {
        let (holder, time) = match lease {
            Lease::Keepers => (replica.id, KEEPERS),
            Lease::Removal(_) => (replica.id, REMOVAL),
            Lease::Slot(_) | Lease::Image(_) => (Uuid::new_v4(), WHILE_REPLICA_LIVES),
        };
        Self { lease, holder, replica: replica.clone(), time }
    }

    /// The replica, as the table stores it beside the holder: by its name or by its id.
    fn owner(&self) -> Arg {
        match self.lease {
            Lease::Keepers | Lease::Removal(_) => self.replica.name.as_str().into(),
            Lease::Slot(_) | Lease::Image(_) => self.replica.id.into(),
        }
    }
}

/// The statements of one table. The values of its key come last.
struct LeaseTable {
    /// `$1` holder, `$2` owner, `$3` time.
    take: &'static Sql,
    /// `$1` holder, `$2` time.
    renew: &'static Sql,
    /// `$1` holder.
    release: &'static Sql,
    holder: &'static Sql,
    /// `$1` replica; it has no key.
    release_of_replica: &'static Sql,
    release_all: &'static Sql,
}

/// The parameters of a key, with the number of the first one.
macro_rules! key_values {
    (one 1) => {
        "$1"
    };
    (one 2) => {
        "$2"
    };
    (one 3) => {
        "$3"
    };
    (one 4) => {
        "$4"
    };
    (two 1) => {
        "$1, $2"
    };
    (two 2) => {
        "$2, $3"
    };
    (two 3) => {
        "$3, $4"
    };
    (two 4) => {
        "$4, $5"
    };
}

macro_rules! take {
    ($dialect:ident, $table:literal, $columns:ident $key:literal, $owner:literal, $resets:literal) => {
        concat!(
            "INSERT INTO ", $table, " (holder, ", $owner, ", lease_until, ", $key, ")
             VALUES ($1, $2, ", database_time!($dialect + "$3"), ", ", key_values!($columns 4), ")
             ON CONFLICT (", $key, ") DO UPDATE
                 SET holder = excluded.holder, ", $owner, " = excluded.", $owner, ",
                     lease_until = excluded.lease_until", $resets, "
              WHERE ", $table, ".holder = excluded.holder
                 OR ", $table, ".lease_until <= ", database_time!($dialect), "
             RETURNING holder"
        )
    };
}

macro_rules! renew {
    ($dialect:ident, $table:literal, $columns:ident $key:literal) => {
        concat!(
            "UPDATE ", $table, " SET lease_until = ", database_time!($dialect + "$2"), "
              WHERE (", $key, ") = (", key_values!($columns 3), ") AND holder = $1
                AND lease_until > ", database_time!($dialect), "
             RETURNING holder"
        )
    };
}

macro_rules! holder {
    ($dialect:ident, $table:literal, $columns:ident $key:literal, $replica:literal, $name:expr) => {
        concat!(
            "SELECT ", $replica, " AS replica, ", $name, " AS replica_name FROM ", $table, "
              WHERE (", $key, ") = (", key_values!($columns 1), ") AND ", $replica, " IS NOT NULL
                AND lease_until > ", database_time!($dialect)
        )
    };
}

/// A table of leases: its name in statements and in the database, its key, the column for the replica beside `holder`,
/// the column with the replica's id, the expression for the replica's name, and other columns that are set when it is
/// taken.
macro_rules! lease_table {
    (
        $calls:literal, $table:literal, key: $columns:ident $key:literal, owner: $owner:literal,
        replica: $replica:literal, name: $name:expr, resets: $resets:literal $(,)?
    ) => {
        LeaseTable {
            take: sql!(
                concat!($calls, ".take"),
                sqlite: take!(sqlite, $table, $columns $key, $owner, $resets),
                postgres: take!(postgres, $table, $columns $key, $owner, $resets),
            ),
            renew: sql!(
                concat!($calls, ".renew"),
                sqlite: renew!(sqlite, $table, $columns $key),
                postgres: renew!(postgres, $table, $columns $key),
            ),
            release: sql!(
                concat!($calls, ".release"),
                "DELETE FROM ", $table, " WHERE (", $key, ") = (", key_values!($columns 2), ") AND holder = $1"
            ),
            holder: sql!(
                concat!($calls, ".holder"),
                sqlite: holder!(sqlite, $table, $columns $key, $replica, $name),
                postgres: holder!(postgres, $table, $columns $key, $replica, $name),
            ),
            release_of_replica: sql!(
                concat!($calls, ".release_of_replica"),
                "DELETE FROM ", $table, " WHERE ", $replica, " = $1"
            ),
            release_all: sql!(concat!($calls, ".release_all"), "DELETE FROM ", $table),
        }
    };
}

static NAMED: LeaseTable = lease_table!(
    "leases", "leases", key: one "name", owner: "holder_name",
    replica: "holder", name: "holder_name", resets: "",
);

static SLOTS: LeaseTable = lease_table!(
    "slot_locks", "slot_locks", key: one "slot", owner: "replica",
    replica: "replica",
    name: "coalesce((SELECT replicas.name FROM replicas WHERE replicas.id = slot_locks.replica), '')",
    resets: "",
);

static IMAGES: LeaseTable = lease_table!(
    "images", "image_locks", key: two "image, host", owner: "replica",
    replica: "replica",
    name: "coalesce((SELECT replicas.name FROM replicas WHERE replicas.id = image_locks.replica), '')",
    resets: ", pulling_since = NULL",
);

static TABLES: [&LeaseTable; 3] = [&NAMED, &SLOTS, &IMAGES];

/// For the tables that have a replica: a replica may have taken a lease while it was declared dead. The holders in
/// `leases` need not be registered replicas, and expire by time.
static ORPHANED: [&Sql; 2] = [
    sql!(
        "slot_locks.release_orphaned",
        "DELETE FROM slot_locks WHERE replica IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM replicas WHERE replicas.id = slot_locks.replica)"
    ),
    sql!(
        "images.release_orphaned",
        "DELETE FROM image_locks WHERE replica IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM replicas WHERE replicas.id = image_locks.replica)"
    ),
];

impl Lease {
    fn table(&self) -> &'static LeaseTable {
        match self {
            Lease::Keepers | Lease::Removal(_) => &NAMED,
            Lease::Slot(_) => &SLOTS,
            Lease::Image(_) => &IMAGES,
        }
    }

    /// The values of the key of its row, after other values.
    fn key_after(&self, mut before: Vec<Arg>) -> Vec<Arg> {
        match self {
            Lease::Keepers => before.push("keepers".into()),
            Lease::Removal(slot) => before.push(format!("unknown/{slot}").into()),
            Lease::Slot(slot) => before.push(slot.into()),
            Lease::Image(image) => before.extend(args![image.name.as_str(), image.host.as_str()]),
        }
        before
    }

    /// Whether it must be renewed in time.
    fn is_renewed(&self) -> bool {
        matches!(self, Lease::Keepers | Lease::Removal(_))
    }
}

impl Store {
    /// Takes a lease for its time, or extends it if the holder has it already. False if another holder has it.
    pub async fn take_lease(&self, claim: &LeaseClaim) -> Result<bool, StoreError> {
        let mut tx = self.begin_lease(&claim.lease).await?;
        let taken = tx.take_lease(claim).await?;
        tx.commit().await?;
        Ok(taken)
    }

    /// Renews a lease for its time from now. False if the holder does not have it any more.
    pub async fn renew_lease(&self, claim: &LeaseClaim) -> Result<bool, StoreError> {
        let mut tx = self.begin_lease(&claim.lease).await?;
        let renew = claim.lease.table().renew;
        let renewed = tx.first(renew, claim.lease.key_after(args![claim.holder, milliseconds(claim.time)])).await?;
        tx.commit().await?;
        Ok(renewed.is_some())
    }

    /// Releases a lease, if the holder has it.
    pub async fn release_lease(&self, claim: &LeaseClaim) -> Result<(), StoreError> {
        let mut tx = self.begin_lease(&claim.lease).await?;
        tx.run(claim.lease.table().release, claim.lease.key_after(args![claim.holder])).await?;
        tx.commit().await
    }

    /// The replica that has a lease, if one has.
    pub async fn lease_holder(&self, lease: &Lease) -> Result<Option<Holder>, StoreError> {
        self.reader()
            .first(lease.table().holder, lease.key_after(vec![]))
            .await?
            .map(|row| Ok(Holder { id: row.id("replica")?, name: row.text("replica_name")? }))
            .transpose()
    }

    /// A lease that must be renewed in time waits only behind similar calls.
    async fn begin_lease(&self, lease: &Lease) -> Result<Tx, StoreError> {
        if lease.is_renewed() { self.begin_in_time().await } else { self.begin().await }
    }
}

impl Tx {
    /// Takes a lease together with the other changes of the transaction. A second caller waits here until the first
    /// transaction ends. A release waits for the second caller, so that no caller waits for a lease that was released
    /// meanwhile.
    pub async fn take_lease(&mut self, claim: &LeaseClaim) -> Result<bool, StoreError> {
        let values = args![claim.holder, claim.owner(), milliseconds(claim.time)];
        let taken = self.first(claim.lease.table().take, claim.lease.key_after(values)).await?;
        Ok(taken.is_some())
    }

    /// Releases every lease of a replica that has ended.
    pub(super) async fn release_all_of(&mut self, replica: Uuid) -> Result<(), StoreError> {
        for table in TABLES {
            self.run(table.release_of_replica, args![replica]).await?;
        }
        Ok(())
    }

    /// Releases the leases of replicas that are not registered.
    pub(super) async fn release_orphaned_leases(&mut self) -> Result<(), StoreError> {
        for sql in ORPHANED {
            self.run(sql, vec![]).await?;
        }
        Ok(())
    }

    /// Releases all leases of all holders.
    pub(super) async fn release_all_leases(&mut self) -> Result<(), StoreError> {
        for table in TABLES {
            self.run(table.release_all, vec![]).await?;
        }
        Ok(())
    }
}
