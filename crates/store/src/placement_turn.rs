//! The turns of replicas at placing. While a replica has the turn, its copy stays current without a check of the
//! database. A turn only saves work: the token prevents two replicas from assigning the same slot. So a replica that
//! does not get the turn in time, because another is suspended in its own turn, continues without it.

use sqlx::pool::PoolConnection;
use sqlx::{Executor, Postgres};

use super::connect::Pools;
use super::lanes::Lane;
use super::{Store, StoreError, measured};

/// How long a replica waits for its turn.
const WAIT: &str = "SET lock_timeout = '1s'; SELECT pg_advisory_lock(7702); SET lock_timeout = 0";
const RELEASE: &str = "SELECT pg_advisory_unlock_all()";

/// The turn of this replica, until it is returned.
#[derive(Debug)]
pub struct PlacementTurn(PoolConnection<Postgres>);

impl Store {
    /// Waits for this replica's turn. `None` if it does not come in time, or if there are no turns.
    pub async fn take_placement_turn(&self) -> Result<Option<PlacementTurn>, StoreError> {
        let Pools::Postgres(pools) = &self.pools else { return Ok(None) };
        self.placement.writer.give_back();
        let failed = |source| StoreError::call("placement.turn", source);
        let taken = async {
            let mut connection = pools.of(Lane::Placement).acquire().await?;
            match connection.execute(WAIT).await {
                Ok(_) => Ok(Some(PlacementTurn(connection))),
                Err(error) => {
                    // If the connection closes, its lock and its wait end.
                    connection.close_on_drop();
                    match &error {
                        sqlx::Error::Database(of) if of.code().is_some_and(|code| code == "55P03") => Ok(None),
                        _ => Err(error),
                    }
                }
            }
        };
        measured("placement.turn", taken).await.map_err(failed)
    }
}

impl PlacementTurn {
    /// Passes the turn on. If that fails, the connection is closed, which also ends the turn.
    pub async fn give_back(mut self) {
        if measured("placement.turn_over", self.0.execute(RELEASE)).await.is_err() {
            self.0.close_on_drop();
        }
    }
}
