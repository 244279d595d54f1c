//! What only one process at a time may do. A lease ends by the clock of the database, so that the clocks of its holders
//! need not agree.

use std::time::Duration;

use uuid::Uuid;

use super::sql::{args, sql};
use super::{Run, Store, StoreError};

/// A process that may hold leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub id: Uuid,
    /// What an operator knows it by.
    pub name: String,
}

impl Store {
    /// Takes a lease for so long, or longer if it is the holder's already. False when another lives and has it.
    pub async fn take_lease(&self, name: &str, holder: &Holder, time: Duration) -> Result<bool, StoreError> {
        let time = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let mut tx = self.begin_in_time().await?;
        let taken = tx
            .first(
                sql!(
                    "leases.take",
                    sqlite: "INSERT INTO leases (name, holder, holder_name, lease_until)
                             VALUES ($1, $2, $3, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ($4 / 1000.0) || ' seconds'))
                             ON CONFLICT (name) DO UPDATE SET holder = excluded.holder,
                                 holder_name = excluded.holder_name, lease_until = excluded.lease_until
                              WHERE leases.holder = excluded.holder
                                 OR leases.lease_until <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
                             RETURNING name",
                    postgres: "INSERT INTO leases (name, holder, holder_name, lease_until)
                               VALUES ($1, $2, $3, clock_timestamp() + $4 * interval '1 millisecond')
                               ON CONFLICT (name) DO UPDATE SET holder = excluded.holder,
                                   holder_name = excluded.holder_name, lease_until = excluded.lease_until
                                WHERE leases.holder = excluded.holder OR leases.lease_until <= clock_timestamp()
                               RETURNING name",
                ),
                args![name, holder.id, holder.name.as_str(), time],
            )
            .await?;
        tx.commit().await?;
        Ok(taken.is_some())
    }

    /// Keeps a lease that is the holder's for so long. False when it is not any more.
    pub async fn renew_lease(&self, name: &str, holder: &Holder, time: Duration) -> Result<bool, StoreError> {
        let time = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let mut tx = self.begin_in_time().await?;
        let renewed = tx
            .first(
                sql!(
                    "leases.renew",
                    sqlite: "UPDATE leases
                                SET lease_until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ($3 / 1000.0) || ' seconds')
                              WHERE name = $1 AND holder = $2
                                AND lease_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') RETURNING name",
                    postgres: "UPDATE leases SET lease_until = clock_timestamp() + $3 * interval '1 millisecond'
                                WHERE name = $1 AND holder = $2 AND lease_until > clock_timestamp() RETURNING name",
                ),
                args![name, holder.id, time],
            )
            .await?;
        tx.commit().await?;
        Ok(renewed.is_some())
    }

    pub async fn give_lease_back(&self, name: &str, holder: &Holder) -> Result<(), StoreError> {
        let mut tx = self.begin_in_time().await?;
        tx.run(sql!("leases.give_back", "DELETE FROM leases WHERE name = $1 AND holder = $2"), args![name, holder.id])
            .await?;
        tx.commit().await
    }

    /// Who has a lease, if somebody does.
    pub async fn lease_holder(&self, name: &str) -> Result<Option<Holder>, StoreError> {
        self.reader()
            .first(
                sql!(
                    "leases.holder",
                    sqlite: "SELECT holder, holder_name FROM leases
                              WHERE name = $1 AND lease_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
                    postgres: "SELECT holder, holder_name FROM leases
                                WHERE name = $1 AND lease_until > clock_timestamp()",
                ),
                args![name],
            )
            .await?
            .map(|row| Ok(Holder { id: row.id("holder")?, name: row.text("holder_name")? }))
            .transpose()
    }
}
