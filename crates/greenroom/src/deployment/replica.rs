//! This module keeps one lease for the whole replica, which covers everything that the replica holds. The lease ends by
//! the clock of the database. The replica measures the lease by its own clock, from the moment of its request, so it
//! stops before another replica may begin. A replica that was declared dead continues under a new id and holds nothing
//! of what it held before.
//!
//! On SQLite there is only one process: the start releases what an earlier process held, and the lease never ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock::Clock;
use crate::store::{Holder, Holding, Lease, LeaseClaim, Renewed, Store, StoreError};

/// How long a lease lasts without a renewal.
pub const LEASE: Duration = Duration::from_secs(4);
/// How often a replica renews its lease and checks the leases of others. With [`LEASE`], what a dead replica held is
/// free within five seconds. Within a second, each replica also learns of a new one.
pub const RENEW: Duration = Duration::from_millis(900);
/// The same while there is no other replica that would notice.
const RENEW_ALONE: Duration = Duration::from_millis(1_800);
/// If a renewal is this late, the database or this process stood still. Then other replicas could not renew either.
const LATE: Duration = Duration::from_secs(2);

/// After this many renewals, the replica checks for holdings whose holder is not known.
const SWEEP_EVERY: u64 = 6;
/// The same while there is no other replica.
const SWEEP_EVERY_ALONE: u64 = 60;

#[derive(Clone, Debug)]
pub struct ReplicaLease(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    clock: Clock,
    name: String,
    liveness: Liveness,
    /// Holdings of work that ended without giving them back, and since when.
    dropped: Mutex<VecDeque<(Instant, Holding)>>,
    /// Allows one renewal at a time.
    renewing: AsyncMutex<()>,
    renewals: Mutex<Renewals>,
    /// The claim of this process to run the keepers, which is renewed together with its lease.
    keepers: LeaseClaim,
    /// The last renewal that succeeded.
    renewed: watch::Sender<Option<Renewed>>,
}

/// The renewals of this replica.
#[derive(Debug, Default)]
struct Renewals {
    last: Option<Instant>,
    count: u64,
    /// Until then this replica declares no other replica dead.
    wait_until: Option<Instant>,
}

/// The id under which this replica holds things, and until when that is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeaseState {
    id: Uuid,
    until: Until,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// The other replicas do not know this id yet.
    Unknown,
    Then(Instant),
    Ever,
    /// The replica has ended and takes nothing any more.
    Over,
}

/// The id under which this process holds things, shared with all work that depends on it.
#[derive(Clone, Debug)]
pub struct Liveness(watch::Sender<LeaseState>);

impl Liveness {
    fn new(id: Uuid, until: Until) -> Self {
        Self(watch::Sender::new(LeaseState { id, until }))
    }

    fn state(&self) -> LeaseState {
        *self.0.borrow()
    }

    fn set(&self, state: LeaseState) -> LeaseState {
        self.0.send_replace(state)
    }

    /// Whether this process certainly still holds what it took as `replica`.
    pub fn holds(&self, replica: Uuid) -> bool {
        let state = self.state();
        state.id == replica && state.is_certain()
    }

    /// Waits until this process knows that it no longer holds what it took as `replica`.
    pub async fn lost(&self, replica: Uuid) {
        // This struct owns the sender, so the channel cannot close.
        let _ = self.0.subscribe().wait_for(|state| state.id != replica).await;
    }

    /// Waits until a renewal has been attempted, with any result.
    pub fn renewed(&self) -> impl Future<Output = ()> + use<> {
        let mut state = self.0.subscribe();
        async move {
            let _ = state.changed().await;
        }
    }
}

impl LeaseState {
    fn is_certain(&self) -> bool {
        match self.until {
            Until::Unknown | Until::Over => false,
            Until::Then(until) => Instant::now() < until,
            Until::Ever => true,
        }
    }
}

impl ReplicaLease {
    pub fn new(store: Store, clock: Clock, replica: &Holder) -> Self {
        let until = if store.is_shared() { Until::Unknown } else { Until::Ever };
        Self(Arc::new(Inner {
            store,
            clock,
            name: replica.name.clone(),
            liveness: Liveness::new(replica.id, until),
            dropped: Mutex::default(),
            renewing: AsyncMutex::default(),
            renewals: Mutex::default(),
            keepers: LeaseClaim::new(Lease::Keepers, replica),
            renewed: watch::Sender::default(),
        }))
    }

    /// Returns the id under which to take something now. Asks the database when it is not certain that this replica is
    /// alive.
    pub async fn current(&self) -> Result<Holder, StoreError> {
        if !self.0.liveness.state().is_certain() {
            self.renew().await?;
        }
        Ok(Holder { id: self.0.liveness.state().id, name: self.0.name.clone() })
    }

    pub fn liveness(&self) -> &Liveness {
        &self.0.liveness
    }

    /// Renews the lease. A replica that was declared dead gets a new id.
    pub async fn renew(&self) -> Result<(), StoreError> {
        let Self(inner) = self;
        let _turn = inner.renewing.lock().await;
        let (asked, mut state) = (Instant::now(), inner.liveness.state());
        match state.until {
            Until::Ever => return Ok(()),
            Until::Then(_) if self.renew_as(state.id).await? => {}
            Until::Then(_) => {
                tracing::warn!(replica = inner.name, "replica lease lost; other replicas take over its work");
                state = LeaseState { id: Uuid::new_v4(), until: Until::Unknown };
                inner.liveness.set(state);
                self.register(state.id).await?;
            }
            Until::Unknown => self.register(state.id).await?,
            Until::Over => {
                return Err(StoreError::Stopping { call: "replicas.renew" });
            }
        }
        inner.liveness.set(LeaseState { until: Until::Then(asked + LEASE), ..state });
        Ok(())
    }

    /// Renews under this id. False if the replica was declared dead.
    async fn renew_as(&self, id: Uuid) -> Result<bool, StoreError> {
        let Self(inner) = self;
        let renewed = inner.store.renew_replica(id, LEASE, Some(&inner.keepers)).await?;
        inner.renewed.send_replace(Some(renewed));
        Ok(renewed.lives)
    }

    /// The results of all later renewals.
    pub fn renewals(&self) -> watch::Receiver<Option<Renewed>> {
        self.0.renewed.subscribe()
    }

    async fn register(&self, id: Uuid) -> Result<(), StoreError> {
        self.0.store.register_replica(&Holder { id, name: self.0.name.clone() }, LEASE).await
    }

    /// The pause before the next renewal.
    pub fn pause(&self) -> Duration {
        if self.0.store.is_only_replica() { RENEW_ALONE } else { RENEW }
    }

    /// Renews the lease, declares replicas without a renewal dead, and releases what work of this process left behind.
    /// Returns the dead replicas.
    pub async fn tick(&self) -> Result<Vec<Holder>, StoreError> {
        let Self(inner) = self;
        self.renew().await?;
        let mut dead = Vec::new();
        let others_expired = inner.renewed.borrow().is_some_and(|renewed| renewed.others_expired);
        if let Some(sweeps) = self.may_declare_dead().filter(|sweeps| *sweeps || others_expired)
            && inner.store.is_shared()
        {
            let own = inner.liveness.state().id;
            dead = inner.store.release_dead_replicas(own, inner.clock.now(), sweeps).await?;
        }
        while let Some(holding) = self.abandoned() {
            inner.store.release(&holding, inner.clock.now()).await?;
            inner.dropped.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            tracing::debug!(?holding, "abandoned holding released");
        }
        Ok(dead)
    }

    /// Whether this replica may declare others dead, and if so, whether it is time to check all holdings. If the
    /// database was unavailable, or this process stood still, the others first get time to renew.
    fn may_declare_dead(&self) -> Option<bool> {
        let now = Instant::now();
        let mut renewals = self.0.renewals.lock().unwrap_or_else(PoisonError::into_inner);
        if renewals.last.is_some_and(|last| now > last + RENEW_ALONE + LATE) {
            renewals.wait_until = Some(now + LEASE);
        }
        renewals.last = Some(now);
        renewals.count += 1;
        let every = if self.0.store.is_only_replica() { SWEEP_EVERY_ALONE } else { SWEEP_EVERY };
        let sweeps = renewals.count % every == 1;
        renewals.wait_until.is_none_or(|until| now >= until).then_some(sweeps)
    }

    /// Returns a holding that work left behind so long ago that none of that work can still run. The limit is the same
    /// as for a dead replica.
    fn abandoned(&self) -> Option<Holding> {
        let dropped = self.0.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, holding) = dropped.front()?;
        (since.elapsed() >= LEASE).then(|| holding.clone())
    }

    /// Notes that this process is about to hold something. If the result is dropped without [`HoldingGuard::disarm`], the
    /// holding is released a while later. So work that has ended holds nothing for ever.
    pub fn guard(&self, holding: Holding) -> HoldingGuard {
        HoldingGuard { lease: self.clone(), holding: Some(holding) }
    }

    /// Ends the lease: this process holds nothing from now on, and others may take what it held.
    pub async fn end(&self) -> Result<(), StoreError> {
        let Self(inner) = self;
        if !inner.store.is_shared() {
            return Ok(());
        }
        let _turn = inner.renewing.lock().await;
        let state = inner.liveness.set(LeaseState { id: Uuid::new_v4(), until: Until::Over });
        inner.store.end_replica(state.id, inner.clock.now()).await
    }
}

/// Something that this process holds or is about to hold.
#[derive(Debug)]
pub struct HoldingGuard {
    lease: ReplicaLease,
    holding: Option<Holding>,
}

impl HoldingGuard {
    /// The holding was given back, or was never taken.
    pub fn disarm(mut self) {
        self.holding = None;
    }
}

impl Drop for HoldingGuard {
    fn drop(&mut self) {
        if let Some(holding) = self.holding.take() {
            let mut dropped = self.lease.0.dropped.lock().unwrap_or_else(PoisonError::into_inner);
            dropped.push_back((Instant::now(), holding));
        }
    }
}

#[cfg(test)]
impl Liveness {
    /// A replica whose lease starts now, and its id.
    pub fn begin() -> (Self, Uuid) {
        let id = Uuid::new_v4();
        (Self::new(id, Until::Then(Instant::now() + LEASE)), id)
    }

    /// The database has confirmed that the replica is alive.
    pub fn confirm_alive(&self) {
        self.set(LeaseState { until: Until::Then(Instant::now() + LEASE), ..self.state() });
    }

    /// The database has answered that the replica was declared dead.
    pub fn declare_dead(&self) {
        self.set(LeaseState { id: Uuid::new_v4(), until: Until::Unknown });
    }
}
