//! The requests that a provider takes in a while, shared by everyone who asks it: all pools and all replicas. Who waits
//! waits in the queue; what frees a slot goes first, and the last of the budget is kept for it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::ProviderError;
use crate::store::{LONGEST_HOLD, Store, StoreError, Turn};

/// A request may arrive later than it was made: the time that is looked back on is longer by a thirtieth.
const MARGIN: u32 = 30;

/// What a request is for, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It frees a slot.
    Free,
    /// Somebody waits for it.
    Wanted,
    /// It only shows something to a person.
    Shown,
}

impl Urgency {
    /// How many of a budget may be used for it, while the rest is kept for what is more urgent.
    fn share(self, most: u32) -> u32 {
        match self {
            Urgency::Free => most,
            Urgency::Wanted => most - most / 10,
            Urgency::Shown => most / 2,
        }
    }
}

/// A budget of so many requests in so long.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    book: Book,
    name: String,
    most: u32,
    time: Duration,
    next: AtomicU64,
    /// Who of this process waits, in the order in which they go.
    queue: Mutex<BTreeSet<(Urgency, u64)>>,
    moved: Notify,
    /// Until when nobody asks, as far as this process knows: whether or not it could tell the others.
    held_until: Mutex<Option<Instant>>,
}

/// Where requests are counted.
#[derive(Debug)]
enum Book {
    /// For all replicas.
    Store(Store),
    /// For this process alone, where there is no database.
    Own(Mutex<Own>),
}

#[derive(Debug, Default)]
struct Own {
    made: VecDeque<Instant>,
}

impl Own {
    fn take_turn(&mut self, most: u32, time: Duration) -> Turn {
        let now = Instant::now();
        self.made.retain(|made| now - *made < time);
        let most = usize::try_from(most.max(1)).unwrap_or(usize::MAX);
        // The one that has to be forgotten before there is room.
        match self.made.len().checked_sub(most).and_then(|index| self.made.get(index)) {
            Some(made) => Turn::In((*made + time - now).max(Duration::from_millis(1))),
            None => {
                self.made.push_back(now);
                Turn::Now
            }
        }
    }
}

impl Book {
    fn own(own: &Mutex<Own>) -> MutexGuard<'_, Own> {
        own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take_turn(&self, name: &str, most: u32, time: Duration) -> Result<Turn, StoreError> {
        match self {
            Book::Store(store) => store.take_turn(name, most, time).await,
            Book::Own(own) => Ok(Self::own(own).take_turn(most, time)),
        }
    }

    async fn hold_back(&self, name: &str, time: Duration) -> Result<(), StoreError> {
        match self {
            Book::Store(store) => store.hold_back(name, time).await,
            Book::Own(_) => Ok(()),
        }
    }

    /// Another of the same kind, for something else.
    fn other(&self) -> Self {
        match self {
            Book::Store(store) => Book::Store(store.clone()),
            Book::Own(_) => Book::Own(Mutex::default()),
        }
    }
}

/// A position in the queue, until it is dropped.
struct BudgetTicket<'a> {
    inner: &'a Inner,
    at: (Urgency, u64),
}

impl Drop for BudgetTicket<'_> {
    fn drop(&mut self) {
        self.inner.queue().remove(&self.at);
        self.inner.moved.notify_waiters();
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, BTreeSet<(Urgency, u64)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold_until(&self, until: Instant) {
        let mut held = self.held_until.lock().unwrap_or_else(PoisonError::into_inner);
        *held = (*held).max(Some(until));
    }

    fn held(&self) -> Option<Duration> {
        let held = *self.held_until.lock().unwrap_or_else(PoisonError::into_inner);
        held?.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero())
    }

    /// A turn, if there is one. While the provider has had enough nobody need ask the others.
    async fn take_turn(&self, most: u32) -> Result<Turn, StoreError> {
        if let Some(wait) = self.held() {
            return Ok(Turn::Delayed(wait));
        }
        let turn = self.book.take_turn(&self.name, most, self.time).await?;
        if let Turn::Delayed(wait) = turn {
            self.hold_until(Instant::now() + wait);
        }
        Ok(turn)
    }
}

impl Budget {
    /// The budget of this name, of so many requests in so long.
    pub fn new(store: Store, name: String, most: u32, time: Duration) -> Self {
        Self::counted_in(Book::Store(store), name, most, time)
    }

    /// The same for a process that has no database to share it by.
    pub fn in_process(name: String, most: u32, time: Duration) -> Self {
        Self::counted_in(Book::Own(Mutex::default()), name, most, time)
    }

    fn counted_in(book: Book, name: String, most: u32, time: Duration) -> Self {
        let (next, queue, moved, held_until) = Default::default();
        Self(Arc::new(Inner { book, name, most, time: time + time / MARGIN, next, queue, moved, held_until }))
    }

    /// A budget within this one, of so many requests in so long for this alone. Whoever takes one of it takes one of the
    /// whole too.
    pub fn part(&self, of: &str, most: u32, time: Duration) -> Self {
        let Inner { book, name, .. } = &*self.0;
        Self::counted_in(book.other(), format!("{name} {of}"), most, time)
    }

    /// Waits for a turn to make one request.
    pub async fn turn(&self, urgency: Urgency) -> Result<(), ProviderError> {
        let inner = &*self.0;
        let ticket = BudgetTicket { inner, at: (urgency, inner.next.fetch_add(1, Ordering::Relaxed)) };
        inner.queue().insert(ticket.at);
        loop {
            let moved = inner.moved.notified();
            tokio::pin!(moved);
            // From here on it is not missed.
            moved.as_mut().enable();
            if inner.queue().first() != Some(&ticket.at) {
                moved.await;
                continue;
            }
            let most = urgency.share(inner.most);
            match inner.take_turn(most).await {
                Ok(Turn::Now) => return Ok(()),
                Ok(Turn::In(wait) | Turn::Delayed(wait)) => {
                    // Somebody more urgent may come meanwhile.
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = moved => {}
                    }
                }
                Err(error) => {
                    return Err(ProviderError::transient(format!("the budget of requests cannot be had: {error}")));
                }
            }
        }
    }

    /// How many of this process wait for a turn.
    pub fn waiting(&self) -> usize {
        self.0.queue().len()
    }

    /// For how long nobody asks because the provider has had enough, as far as this process knows; `None` when it has not.
    pub fn held(&self) -> Option<Duration> {
        self.0.held()
    }

    /// Nobody asks for so long, in whatever process: the provider has had enough. No answer holds for longer than the
    /// longest hold.
    pub async fn hold_back(&self, time: Duration) {
        let time = time.min(LONGEST_HOLD);
        // First here, where it cannot fail.
        self.0.hold_until(Instant::now() + time);
        metrics::counter!("greenroom_provider_throttled_total", "budget" => self.0.name.clone()).increment(1);
        if let Err(error) = self.0.book.hold_back(&self.0.name, time).await {
            tracing::warn!(%error, "provider rate limit not shared with other replicas");
        }
    }
}
