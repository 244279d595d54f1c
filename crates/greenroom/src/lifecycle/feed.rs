//! The feed: every event once, in one order, to everyone in this process who listens. It follows the table of events
//! rather than the calls that write it, so that what another replica commits arrives as well.
//!
//! Ids of events are handed out before the commit. On PostgreSQL an event may therefore become visible after one with
//! a greater id, and a reader that had gone past it would miss it. So the feed stops in front of a missing id until
//! it appears, or until every transaction that was under way when it was first missed has ended: then it never will.

use std::sync::Arc;
use std::time::Duration;

use domain::EventId;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::store::{EventRow, Store, StoreError};

/// How long another replica's event may take to be seen.
const POLL: Duration = Duration::from_millis(500);
/// How soon a missing id is looked for again.
const POLL_MISSING: Duration = Duration::from_millis(20);
const BATCH: i64 = 1_000;
/// A listener that is further behind reads from the database instead.
const BACKLOG: usize = 4_096;

#[derive(Clone, Debug)]
pub struct Feed {
    live: broadcast::Sender<Arc<EventRow>>,
    position: watch::Sender<Option<EventId>>,
}

/// Who listens: first everything up to where the feed stood, from the database, then what is heard live.
#[derive(Debug)]
pub struct Listener {
    pub live: broadcast::Receiver<Arc<EventRow>>,
    position: watch::Receiver<Option<EventId>>,
}

impl Listener {
    /// Where the feed stands: all events up to here are in the database, all after it will be heard live. Waits while
    /// the feed has not found its place yet; `None` when the server stops.
    pub async fn position(&mut self) -> Option<EventId> {
        self.position.wait_for(Option::is_some).await.ok().and_then(|position| *position)
    }
}

impl Default for Feed {
    fn default() -> Self {
        Self { live: broadcast::Sender::new(BACKLOG), position: watch::Sender::new(None) }
    }
}

impl Feed {
    pub fn listen(&self) -> Listener {
        Listener { live: self.live.subscribe(), position: self.position.subscribe() }
    }

    /// Follows the events until `stopping`.
    pub async fn follow(self, store: Store, stopping: CancellationToken) {
        let mut follower = Follower::default();
        let mut failing = false;
        loop {
            let wait = match follower.step(&store).await {
                Ok(step) => {
                    failing = false;
                    self.publish(step.events, step.position);
                    if step.more {
                        continue;
                    }
                    if step.missing { POLL_MISSING } else { POLL }
                }
                Err(error) => {
                    // Once, not twice a second for as long as the database is away.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "events cannot be read");
                    }
                    POLL
                }
            };
            tokio::select! {
                () = store.told() => {}
                () = tokio::time::sleep(wait) => {}
                () = stopping.cancelled() => return,
            }
        }
    }

    fn publish(&self, events: Vec<EventRow>, position: Option<EventId>) {
        // The position first: who begins to listen in between finds the events in the database.
        if position.is_some() {
            self.position.send_replace(position);
        }
        for event in events {
            // It is no error that nobody listens.
            let _ = self.live.send(Arc::new(event));
        }
    }
}

/// Where the feed stands and what it waits for.
#[derive(Debug, Default)]
pub struct Follower {
    stands: Stands,
    /// Set while an id is missing: the transaction that all who could bring it are older than.
    settled_at: Option<i64>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Stands {
    /// Before the first look.
    #[default]
    Nowhere,
    /// All that may come up to `last` will have come once the transactions before `settled_at` have ended.
    Arriving {
        last: EventId,
        settled_at: i64,
    },
    At(EventId),
}

/// What one look brought.
#[derive(Debug, Default)]
pub struct Step {
    pub events: Vec<EventRow>,
    pub position: Option<EventId>,
    pub more: bool,
    pub missing: bool,
}

impl Follower {
    /// Looks once, and says what has become certain.
    pub async fn step(&mut self, store: &Store) -> Result<Step, StoreError> {
        // Before the events are read: what had ended by then is visible below.
        let (oldest, _) = self.horizon(store).await?;
        match self.stands {
            Stands::Nowhere => {
                let last = store.last_event().await?;
                let (_, next) = self.horizon(store).await?;
                self.stands = Stands::Arriving { last, settled_at: next };
                if store.is_shared() {
                    return Ok(Step { missing: true, ..Step::default() });
                }
                self.stands = Stands::At(last);
                Ok(Step { position: Some(last), ..Step::default() })
            }
            Stands::Arriving { settled_at, .. } if oldest < settled_at => Ok(Step { missing: true, ..Step::default() }),
            Stands::Arriving { last, .. } => {
                self.stands = Stands::At(last);
                Ok(Step { position: Some(last), more: true, ..Step::default() })
            }
            Stands::At(last) => self.look(store, last, oldest).await,
        }
    }

    async fn look(&mut self, store: &Store, last: EventId, oldest: i64) -> Result<Step, StoreError> {
        let read = store.events_after(last, BATCH).await?;
        let full = i64::try_from(read.len()).is_ok_and(|n| n == BATCH);
        let mut step = Step::default();
        let mut at = last;
        for event in read {
            if store.is_shared() && event.id.0 != at.0 + 1 {
                match self.settled_at {
                    Some(settled_at) if oldest >= settled_at => self.settled_at = None,
                    Some(_) => step.missing = true,
                    None => {
                        self.settled_at = Some(self.horizon(store).await?.1);
                        step.missing = true;
                    }
                }
                if step.missing {
                    break;
                }
            } else {
                self.settled_at = None;
            }
            at = event.id;
            step.events.push(event);
        }
        self.stands = Stands::At(at);
        step.position = Some(at);
        step.more = full && !step.missing;
        Ok(step)
    }

    async fn horizon(&self, store: &Store) -> Result<(i64, i64), StoreError> {
        if store.is_shared() { store.horizon().await } else { Ok((0, 0)) }
    }
}
