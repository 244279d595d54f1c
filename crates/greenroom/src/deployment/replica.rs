//! That this replica lives, told once for everything that it holds. The lease ends by the clock of the database; the
//! replica goes by its own, from the moment at which it asked, so that it stops before another may begin. A replica
//! that was taken for dead comes back under another id and holds nothing of what it held before.
//!
//! On SQLite nobody else is there: what an earlier process held was released at the start, and the lease never ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock::Clock;
use crate::store::{Holder, Holding, Store, StoreError};

/// How long a replica is believed to live without a sign.
pub const LEASE: Duration = Duration::from_secs(4);
/// How often it gives one, and looks whether others did: with the lease, what a dead one held is free within five
/// seconds.
pub const RENEW: Duration = Duration::from_millis(800);
/// A sign that comes so late means that the database or this process stood still: then others could not give theirs
/// either.
const LATE: Duration = Duration::from_secs(2);

/// Every so many signs it looks whether anything is held by nobody that is known.
const SWEEP_EVERY: u64 = 6;

#[derive(Clone, Debug)]
pub struct ReplicaLease(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    clock: Clock,
    name: String,
    liveness: Liveness,
    /// What was held by work that ended without giving it back, and since when.
    dropped: Mutex<VecDeque<(Instant, Holding)>>,
    /// One renewal at a time.
    renewing: AsyncMutex<()>,
    signs: Mutex<Signs>,
}

/// The signs that this replica gave.
#[derive(Debug, Default)]
struct Signs {
    last: Option<Instant>,
    count: u64,
    /// Before this nobody is taken for dead.
    patient_until: Option<Instant>,
}

/// As whom this replica holds what it holds, and until when that is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    id: Uuid,
    until: Until,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// It is not known to the others yet.
    Unknown,
    Then(Instant),
    Ever,
    /// It has ended, and takes nothing any more.
    Over,
}

/// As whom this process holds what it holds, for everything that depends on it.
#[derive(Clone, Debug)]
pub struct Liveness(watch::Sender<Standing>);

impl Liveness {
    fn new(id: Uuid, until: Until) -> Self {
        Self(watch::Sender::new(Standing { id, until }))
    }

    fn standing(&self) -> Standing {
        *self.0.borrow()
    }

    fn set(&self, standing: Standing) -> Standing {
        self.0.send_replace(standing)
    }

    /// Whether what was taken as `replica` is still this process's, for certain.
    pub fn holds(&self, replica: Uuid) -> bool {
        let standing = self.standing();
        standing.id == replica && standing.is_certain()
    }

    /// Waits until it is known that what was taken as `replica` is another's.
    pub async fn lost(&self, replica: Uuid) {
        // The sender is in here: it cannot go away.
        let _ = self.0.subscribe().wait_for(|standing| standing.id != replica).await;
    }

    /// Waits until a sign was given, however it was answered.
    pub fn renewed(&self) -> impl Future<Output = ()> + use<> {
        let mut standing = self.0.subscribe();
        async move {
            let _ = standing.changed().await;
        }
    }
}

impl Standing {
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
            signs: Mutex::default(),
        }))
    }

    /// As whom to take something now. Asks the database where it is not certain that this replica lives.
    pub async fn current(&self) -> Result<Holder, StoreError> {
        if !self.0.liveness.standing().is_certain() {
            self.renew().await?;
        }
        Ok(Holder { id: self.0.liveness.standing().id, name: self.0.name.clone() })
    }

    pub fn liveness(&self) -> &Liveness {
        &self.0.liveness
    }

    /// Gives a sign. Who was taken for dead is someone else from here on.
    pub async fn renew(&self) -> Result<(), StoreError> {
        let Self(inner) = self;
        let _turn = inner.renewing.lock().await;
        let (asked, mut standing) = (Instant::now(), inner.liveness.standing());
        match standing.until {
            Until::Ever => return Ok(()),
            Until::Then(_) if inner.store.renew_replica(standing.id, LEASE).await? => {}
            Until::Then(_) => {
                tracing::warn!(replica = inner.name, "replica lease lost; what it held is others'");
                standing = Standing { id: Uuid::new_v4(), until: Until::Unknown };
                inner.liveness.set(standing);
                self.register(standing.id).await?;
            }
            Until::Unknown => self.register(standing.id).await?,
            Until::Over => {
                return Err(StoreError::Stopping { call: "replicas.renew" });
            }
        }
        inner.liveness.set(Standing { until: Until::Then(asked + LEASE), ..standing });
        Ok(())
    }

    async fn register(&self, id: Uuid) -> Result<(), StoreError> {
        self.0.store.register_replica(&Holder { id, name: self.0.name.clone() }, LEASE).await
    }

    /// Gives a sign, takes those for dead who gave none, and releases what work of this process left behind. Says who
    /// was dead.
    pub async fn tick(&self) -> Result<Vec<Holder>, StoreError> {
        let Self(inner) = self;
        self.renew().await?;
        let mut dead = Vec::new();
        if let Some(sweeps) = self.may_judge().filter(|_| inner.store.is_shared()) {
            let own = inner.liveness.standing().id;
            dead = inner.store.release_dead_replicas(own, inner.clock.now(), sweeps).await?;
        }
        while let Some(holding) = self.abandoned() {
            inner.store.release(&holding, inner.clock.now()).await?;
            inner.dropped.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            tracing::debug!(?holding, "abandoned holding released");
        }
        Ok(dead)
    }

    /// Whether this replica may take others for dead, and if so whether it is time to look at everything that is held.
    /// If the database was away, or this process stood still, the others are first given the time for a sign of their
    /// own.
    fn may_judge(&self) -> Option<bool> {
        let now = Instant::now();
        let mut signs = self.0.signs.lock().unwrap_or_else(PoisonError::into_inner);
        if signs.last.is_some_and(|last| now > last + RENEW + LATE) {
            signs.patient_until = Some(now + LEASE);
        }
        signs.last = Some(now);
        signs.count += 1;
        let sweeps = signs.count % SWEEP_EVERY == 1;
        signs.patient_until.is_none_or(|until| now >= until).then_some(sweeps)
    }

    /// What work left behind so long ago that nothing of it can still be under way, as far as a dead replica would be
    /// believed.
    fn abandoned(&self) -> Option<Holding> {
        let dropped = self.0.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, holding) = dropped.front()?;
        (since.elapsed() >= LEASE).then(|| holding.clone())
    }

    /// Keeps in mind that something is about to be held. Dropped without [`Kept::given_back`] it is released a while
    /// later, so that nothing is held for ever by work that has ended.
    pub fn keep(&self, holding: Holding) -> Kept {
        Kept { lease: self.clone(), holding: Some(holding) }
    }

    /// Ends: nothing is this process's from here on, and what it held is free.
    pub async fn end(&self) -> Result<(), StoreError> {
        let Self(inner) = self;
        if !inner.store.is_shared() {
            return Ok(());
        }
        let _turn = inner.renewing.lock().await;
        let standing = inner.liveness.set(Standing { id: Uuid::new_v4(), until: Until::Over });
        inner.store.end_replica(standing.id, inner.clock.now()).await
    }
}

/// Something that this process holds, or is about to.
#[derive(Debug)]
pub struct Kept {
    lease: ReplicaLease,
    holding: Option<Holding>,
}

impl Kept {
    /// It was given back, or never had.
    pub fn given_back(mut self) {
        self.holding = None;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(holding) = self.holding.take() {
            let mut dropped = self.lease.0.dropped.lock().unwrap_or_else(PoisonError::into_inner);
            dropped.push_back((Instant::now(), holding));
        }
    }
}

#[cfg(test)]
impl Liveness {
    /// A replica that lives for a lease from now on, and its id.
    pub fn begin() -> (Self, Uuid) {
        let id = Uuid::new_v4();
        (Self::new(id, Until::Then(Instant::now() + LEASE)), id)
    }

    /// The database has answered that the replica lives.
    pub fn live_on(&self) {
        self.set(Standing { until: Until::Then(Instant::now() + LEASE), ..self.standing() });
    }

    /// The database has answered that the replica was taken for dead.
    pub fn die(&self) {
        self.set(Standing { id: Uuid::new_v4(), until: Until::Unknown });
    }
}
