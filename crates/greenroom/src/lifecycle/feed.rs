//! The feed: every event once, in one order, to everyone in this process whom it concerns. It follows the table of
//! events rather than the calls that write it, so that what another replica commits arrives as well.
//!
//! Ids of events are handed out before the commit. On PostgreSQL an event may therefore become visible after one with
//! a greater id, and a reader that had gone past it would miss it. So the feed stops in front of a missing id until
//! it appears, or until every transaction that could have brought it has ended: then it never will.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::{BotId, EventId, UserId};
use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;
use crate::signals::channels::Channels;
use crate::store::{EventRow, Store, StoreError};

/// How long another replica's event may take to be seen where neither the bus nor placement's journal tells of it.
const POLL: Duration = Duration::from_millis(500);
/// Events are read no more often than this.
const SHORTEST_PAUSE: Duration = Duration::from_millis(3);
/// The same while nobody listens to a user or a bot.
const PAUSE_UNHEARD: Duration = Duration::from_millis(25);
/// How soon a missing id is looked for again.
const POLL_MISSING: Duration = Duration::from_millis(20);
const BATCH: i64 = 1_000;
/// A listener that is further behind reads from the database instead. Bots that wait are many, and wait for little.
const BACKLOG_OF_USERS: usize = 1_024;
const BACKLOG_OF_BOTS: usize = 16;

#[derive(Clone, Debug)]
pub struct Feed {
    listeners: Arc<Mutex<Listeners>>,
    position: watch::Sender<Option<EventId>>,
    /// Another replica is known to have written something.
    woken: Arc<Notify>,
    poll: Duration,
}

/// Who listens to what, so that an event costs only those whom it concerns.
#[derive(Debug, Default)]
struct Listeners {
    users: Channels<UserId, Arc<EventRow>>,
    bots: Channels<BotId, Arc<EventRow>>,
}

/// Who listens: first everything up to where the feed stood, from the database, then what is heard live.
#[derive(Debug)]
pub struct Listener {
    pub live: broadcast::Receiver<Arc<EventRow>>,
    position: watch::Receiver<Option<EventId>>,
}

impl Listener {
    /// Where the feed stands: all events up to here are in the database, all after it will be heard live. Waits while
    /// the feed has not found its place yet; `None` when there is no feed any more.
    pub async fn position(&mut self) -> Option<EventId> {
        self.position.wait_for(Option::is_some).await.ok().and_then(|position| *position)
    }
}

impl Default for Feed {
    fn default() -> Self {
        Self { listeners: Arc::default(), position: watch::Sender::new(None), woken: Arc::default(), poll: POLL }
    }
}

impl Feed {
    /// The same, with another time after which events are read whatever is heard.
    pub fn polling_every(self, poll: Duration) -> Self {
        Self { poll, ..self }
    }

    /// Has events read now: placement's journal tells that another replica has written some.
    pub fn read_now(&self) {
        self.woken.notify_one();
    }

    /// Everything that happens to a user's bots.
    pub fn listen_to_user(&self, user: UserId) -> Listener {
        self.listener(|listeners| listeners.users.subscribe(user, BACKLOG_OF_USERS))
    }

    /// Everything that happens to a bot.
    pub fn listen_to_bot(&self, bot: BotId) -> Listener {
        self.listener(|listeners| listeners.bots.subscribe(bot, BACKLOG_OF_BOTS))
    }

    fn listener(&self, subscribe: impl FnOnce(&mut Listeners) -> broadcast::Receiver<Arc<EventRow>>) -> Listener {
        Listener { live: subscribe(&mut self.listeners()), position: self.position.subscribe() }
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the events until `stopping`.
    pub async fn follow(self, store: Store, bus: Bus, stopping: CancellationToken) {
        let (mut follower, mut others) = (Follower::default(), bus.listen());
        let mut failing = false;
        loop {
            let begun = Instant::now();
            let step = tokio::select! {
                step = follower.step(&store) => step,
                () = stopping.cancelled() => return,
            };
            let wait = match step {
                Ok(step) => {
                    failing = false;
                    self.publish(step.events, step.position);
                    if step.more {
                        continue;
                    }
                    if step.missing { POLL_MISSING } else { self.poll }
                }
                Err(error) => {
                    // Once, not twice a second for as long as the database is away.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "events not read");
                    }
                    POLL
                }
            };
            tokio::select! {
                () = store.events_written() => bus.announce_events(),
                () = others.heard() => {}
                () = self.woken.notified() => {}
                () = tokio::time::sleep(wait) => {}
                () = stopping.cancelled() => return,
            }
            // Under load events are read in groups, not one commit at a time.
            let pause = if self.is_heard() { SHORTEST_PAUSE } else { PAUSE_UNHEARD };
            let rest = pause.saturating_sub(begun.elapsed());
            if !rest.is_zero() {
                tokio::time::sleep(rest).await;
            }
        }
    }

    /// Whether anybody listens to a user or a bot.
    fn is_heard(&self) -> bool {
        let listeners = self.listeners();
        !(listeners.users.is_empty() && listeners.bots.is_empty())
    }

    fn publish(&self, events: Vec<EventRow>, position: Option<EventId>) {
        // The position first: who begins to listen in between finds the events in the database.
        if position.is_some() {
            self.position.send_replace(position);
        }
        if events.is_empty() {
            return;
        }
        let mut listeners = self.listeners();
        for event in events.into_iter().map(Arc::new) {
            listeners.users.send(&event.user_id, &event);
            listeners.bots.send(&event.bot_id, &event);
        }
    }
}

/// Where the feed stands and what it waits for.
#[derive(Debug, Default)]
pub struct Follower {
    stands: Stands,
    /// Set while an id is missing: the transactions that could bring it.
    awaited: Option<HashSet<String>>,
}

#[derive(Debug, Default, Clone)]
enum Stands {
    /// Before the first look.
    #[default]
    Nowhere,
    /// All that may come up to `last` will have come once the `awaited` transactions have ended.
    Arriving {
        last: EventId,
        awaited: HashSet<String>,
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
        match self.stands.clone() {
            Stands::Nowhere => {
                let last = store.last_event().await?;
                let awaited = store.event_writers().await?;
                self.stands = Stands::Arriving { last, awaited };
                Ok(Step { more: true, ..Step::default() })
            }
            Stands::Arriving { last, awaited } => {
                if !awaited.is_empty() && !store.event_writers().await?.is_disjoint(&awaited) {
                    return Ok(Step { missing: true, ..Step::default() });
                }
                self.stands = Stands::At(last);
                Ok(Step { position: Some(last), more: true, ..Step::default() })
            }
            Stands::At(last) => self.read_next(store, last).await,
        }
    }

    async fn read_next(&mut self, store: &Store, last: EventId) -> Result<Step, StoreError> {
        // Before the events are read: what these had written is visible below once they have ended.
        let settled = match &self.awaited {
            Some(awaited) => store.event_writers().await?.is_disjoint(awaited),
            None => false,
        };
        let read = store.events_after(last, BATCH).await?;
        let batch_is_full = i64::try_from(read.len()).is_ok_and(|n| n == BATCH);
        let mut step = Step::default();
        let (mut at, mut settled) = (last, settled);
        for event in read {
            if store.is_shared() && event.id.0 != at.0 + 1 {
                // What could have brought the first missing id has ended; a second one is looked at by itself.
                if !std::mem::replace(&mut settled, false) {
                    if self.awaited.is_none() || at != last {
                        self.awaited = Some(store.event_writers().await?);
                    }
                    step.missing = true;
                    break;
                }
            }
            // It stood for the gap in front of the first event alone.
            settled = false;
            self.awaited = None;
            at = event.id;
            step.events.push(event);
        }
        self.stands = Stands::At(at);
        step.position = Some(at);
        step.more = batch_is_full && !step.missing;
        Ok(step)
    }
}
