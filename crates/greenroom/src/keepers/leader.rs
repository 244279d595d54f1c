//! This module decides which replica runs the keepers: the one that holds the lease. The leader renews the lease every
//! second. The lease lasts five seconds by the clock of the database, so that another replica takes over within seconds
//! when the leader dies. On SQLite there is only one process, and it always leads.
//!
//! A leader that stood still may for a moment not know that another replica leads. Two runs of a keeper at once do no
//! harm, because each action checks its condition again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::listening::ListeningWindow;
use crate::store::{Holder, Lease, LeaseClaim, Renewed, Store, StoreError};

const RENEW: Duration = Duration::from_secs(1);
/// If no renewal comes in this time, the database or this process is slow.
const LATE: Duration = Duration::from_millis(2_500);

#[derive(Clone, Debug)]
pub struct Leadership {
    store: Store,
    replica: Holder,
    leads: watch::Sender<bool>,
    /// Until when no other replica can hold the lease.
    until: Arc<Mutex<Option<Instant>>>,
}

impl Leadership {
    pub fn new(store: Store, replica: Holder) -> Self {
        let leads = watch::Sender::new(!store.is_shared());
        Self { store, replica, leads, until: Arc::default() }
    }

    /// Whether this replica certainly leads.
    pub fn is_held(&self) -> bool {
        if !self.store.is_shared() {
            metrics::gauge!("greenroom_leader").set(1.0);
            return true;
        }
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *self.leads.borrow() && until.is_some_and(|until| Instant::now() < until)
    }

    /// Waits until this replica leads.
    pub async fn until_leading(&self) {
        // This struct owns the sender, so the channel cannot close.
        let _ = self.leads.subscribe().wait_for(|leads| *leads).await;
    }

    /// Waits until this replica no longer leads.
    pub async fn lost(&self) {
        let _ = self.leads.subscribe().wait_for(|leads| !*leads).await;
    }

    /// Returns the name of the leading replica, if one leads.
    pub async fn leader(&self) -> Result<Option<String>, StoreError> {
        if !self.store.is_shared() {
            metrics::gauge!("greenroom_leader").set(1.0);
            return Ok(Some(self.replica.name.clone()));
        }
        Ok(self.store.lease_holder(&Lease::Keepers).await?.map(|holder| holder.name))
    }

    /// Tries to lead until `ending`, and then gives up the lease. While the database does not answer, the server cannot
    /// receive callbacks, so the listening window is reset.
    ///
    /// While this replica leads, the renewals of its replica lease also renew this one (`renewals`). Only if none comes,
    /// or if one says that this replica does not lead, it asks by itself.
    pub async fn keep_leading(
        self,
        mut renewals: watch::Receiver<Option<Renewed>>,
        listening: ListeningWindow,
        ending: CancellationToken,
    ) {
        if !self.store.is_shared() {
            metrics::gauge!("greenroom_leader").set(1.0);
            return ending.cancelled().await;
        }
        let claim = LeaseClaim::new(Lease::Keepers, &self.replica);
        loop {
            let begun = Instant::now();
            let renewed = async {
                // The sender lives as long as the server.
                let _ = renewals.changed().await;
                *renewals.borrow_and_update()
            };
            let renewed = tokio::select! {
                renewed = tokio::time::timeout(LATE, renewed), if self.is_held() => renewed.ok().flatten(),
                () = std::future::ready(()), if !self.is_held() => None,
                () = ending.cancelled() => break,
            };
            let taken = match renewed.filter(|renewed| renewed.leads) {
                Some(renewed) => Ok(Ok(Some(renewed.sent))),
                None => {
                    let sent = Instant::now();
                    tokio::select! {
                        taken = tokio::time::timeout(claim.time, self.store.take_lease(&claim)) => {
                            taken.map(|taken| taken.map(|taken| taken.then_some(sent)))
                        }
                        () = ending.cancelled() => break,
                    }
                }
            };
            // If the database took this long, it did not answer bots either.
            if begun.elapsed() > LATE {
                listening.reset();
            }
            let leads = match taken {
                Ok(Ok(Some(sent))) => {
                    *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(sent + claim.time);
                    true
                }
                Ok(Ok(None)) => false,
                // The database is unavailable: the lease holds until its end.
                Ok(Err(_)) | Err(_) => {
                    listening.reset();
                    self.is_held()
                }
            };
            self.show(leads);
            if renewed.is_none_or(|renewed| !renewed.leads) {
                tokio::select! {
                    () = tokio::time::sleep(RENEW) => {}
                    () = ending.cancelled() => break,
                }
            }
        }
        if *self.leads.borrow() {
            self.show(false);
            let _ = self.store.release_lease(&claim).await;
        }
    }

    fn show(&self, leads: bool) {
        let changed = self.leads.send_if_modified(|led| std::mem::replace(led, leads) != leads);
        if changed {
            let replica = &self.replica.name;
            if leads {
                tracing::info!(replica, "leadership gained; keepers started");
            } else {
                tracing::info!(replica, "leadership lost; keepers stopped");
            }
        }
        metrics::gauge!("greenroom_leader").set(if leads { 1.0 } else { 0.0 });
    }
}
