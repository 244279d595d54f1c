//! Limits how many requests a provider gets in a period. All pools and all replicas share the limit. Callers wait in a
//! queue. Requests that free a slot go first, and the last part of the budget is reserved for them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::ProviderError;
use store::{LONGEST_HOLD, Store, StoreError, Turn};

/// A request may arrive later than it was counted, so the period is longer by one thirtieth.
const MARGIN: u32 = 30;

/// The purpose of a request, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It frees a slot.
    Free,
    /// A caller waits for the result.
    Wanted,
    /// It only updates a text for a person.
    Shown,
}

impl Urgency {
    /// How many requests of a budget this purpose may use. The rest is reserved for more urgent ones.
    fn share(self, most: u32) -> u32 {
        match self {
            Urgency::Free => most,
            Urgency::Wanted => most - most / 10,
            Urgency::Shown => most / 2,
        }
    }
}

/// A budget of a number of requests per period.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    book: Book,
    name: String,
    most: u32,
    time: Duration,
    next: AtomicU64,
    /// The callers of this process that wait, in the order of their turns.
    queue: Mutex<BTreeSet<(Urgency, u64)>>,
    moved: Notify,
    /// Until when this process sends no request. It is set even if the other replicas could not be informed.
    held_until: Mutex<Option<Instant>>,
}

/// Where the requests are counted.
#[derive(Debug)]
enum Book {
    /// For all replicas.
    Store(Store),
    /// For this process alone, if there is no database.
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
        // The request that must expire before there is room.
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

    async fn made(&self, name: &str, time: Duration) -> Result<i64, StoreError> {
        match self {
            Book::Store(store) => store.for_users().requests_made(name, time).await,
            Book::Own(own) => {
                let made = Self::own(own).made.iter().filter(|made| made.elapsed() < time).count();
                Ok(i64::try_from(made).unwrap_or(i64::MAX))
            }
        }
    }

    /// The book for another budget: the same database, or a new book of this process.
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

    /// Takes a turn if one is available. While the provider's hold lasts, it does not ask the database.
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
    /// The budget with this name, which all processes on the database share.
    pub fn new(store: Store, name: String, most: u32, time: Duration) -> Self {
        Self::counted_in(Book::Store(store), name, most, time)
    }

    /// A budget for a process without a database.
    pub fn in_process(name: String, most: u32, time: Duration) -> Self {
        Self::counted_in(Book::Own(Mutex::default()), name, most, time)
    }

    fn counted_in(book: Book, name: String, most: u32, time: Duration) -> Self {
        let (next, queue, moved, held_until) = Default::default();
        Self(Arc::new(Inner { book, name, most, time: time + time / MARGIN, next, queue, moved, held_until }))
    }

    /// A budget within this one, with a lower limit of its own. Each of its requests also counts in the whole budget.
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
            // From here on the waiter receives every notification.
            moved.as_mut().enable();
            if inner.queue().first() != Some(&ticket.at) {
                moved.await;
                continue;
            }
            let most = urgency.share(inner.most);
            match inner.take_turn(most).await {
                Ok(Turn::Now) => return Ok(()),
                Ok(Turn::In(wait) | Turn::Delayed(wait)) => {
                    // A more urgent caller may arrive meanwhile.
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = moved => {}
                    }
                }
                Err(error) => {
                    return Err(ProviderError::transient(format!("the request budget is unavailable: {error}")));
                }
            }
        }
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How many requests the budget allows in its period.
    pub fn most(&self) -> u32 {
        self.0.most
    }

    /// How many requests are left now.
    pub async fn remaining(&self) -> Result<i64, StoreError> {
        let Inner { book, name, most, time, .. } = &*self.0;
        Ok((i64::from(*most) - book.made(name, *time).await?).max(0))
    }

    /// How many callers of this process wait for a turn.
    pub fn waiting(&self) -> usize {
        self.0.queue().len()
    }

    /// How long the provider's hold still lasts, as far as this process knows. `None` if there is no hold.
    pub fn held(&self) -> Option<Duration> {
        self.0.held()
    }

    /// Stops requests of all processes for this time, because the provider asked for it. The longest hold limits the
    /// time.
    pub async fn hold_back(&self, time: Duration) {
        let time = time.min(LONGEST_HOLD);
        // First in this process, where it cannot fail.
        self.0.hold_until(Instant::now() + time);
        metrics::counter!("greenroom_provider_throttled_total", "budget" => self.0.name.clone()).increment(1);
        if let Err(error) = self.0.book.hold_back(&self.0.name, time).await {
            tracing::warn!(%error, "provider rate limit not shared with other replicas");
        }
    }
}
