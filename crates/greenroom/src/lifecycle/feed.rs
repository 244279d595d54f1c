//! The feed sends every event once, in one order, to all listeners in this process that it concerns. It reads the table
//! of events, and not the calls that write it, so that events of other replicas arrive as well.
//!
//! The database assigns event ids before the commit. On PostgreSQL an event may therefore become visible after one with
//! a greater id, and a reader that is already past it would miss it. So the feed stops in front of a missing id. It
//! continues when the id appears, or when every transaction that could have written it has ended; then the id will
//! never appear.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::{BotId, EventId, UserId};
use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::running_bots::RunningBots;
use crate::bus::Bus;
use crate::signals::channels::Channels;
use crate::store::{EventRow, Store, StoreError};

/// How late the feed may see another replica's event when neither the bus nor placement's journal announces it.
const POLL: Duration = Duration::from_millis(500);
/// The same while there is no other replica. The events of this process are announced.
const POLL_ALONE: Duration = Duration::from_secs(30);
/// The shortest pause between two reads of events.
const SHORTEST_PAUSE: Duration = Duration::from_millis(3);
/// The same, while no listener follows a user or a bot.
const PAUSE_UNHEARD: Duration = Duration::from_millis(25);
/// How soon the feed checks again for a missing id.
const POLL_MISSING: Duration = Duration::from_millis(20);
const BATCH: i64 = 1_000;
/// A listener that is further behind reads from the database instead. Listeners of bots are many, and each expects few
/// events.
const BACKLOG_OF_USERS: usize = 1_024;
const BACKLOG_OF_BOTS: usize = 16;

#[derive(Clone, Debug)]
pub struct Feed {
    listeners: Arc<Mutex<Listeners>>,
    position: watch::Sender<Option<EventId>>,
    /// Another replica is known to have written events.
    woken: Arc<Notify>,
    poll: Duration,
    /// Every event drops the copy of its bot.
    running_bots: RunningBots,
}

/// The listeners by user and by bot, so that an event costs only those that it concerns.
#[derive(Debug, Default)]
struct Listeners {
    users: Channels<UserId, Arc<EventRow>>,
    bots: Channels<BotId, Arc<EventRow>>,
}

/// A listener. It first reads all events up to the feed's position from the database, and then receives the new ones.
#[derive(Debug)]
pub struct Listener {
    pub live: broadcast::Receiver<Arc<EventRow>>,
    position: watch::Receiver<Option<EventId>>,
}

impl Listener {
    /// Returns the position of the feed: all events up to it are in the database, and this listener receives all later
    /// ones. Waits until the feed has a position; `None` when the feed has ended.
    pub async fn position(&mut self) -> Option<EventId> {
        self.position.wait_for(Option::is_some).await.ok().and_then(|position| *position)
    }
}

impl Default for Feed {
    fn default() -> Self {
        let (listeners, woken, running_bots) = Default::default();
        Self { listeners, position: watch::Sender::new(None), woken, poll: POLL, running_bots }
    }
}

impl Feed {
    /// Sets another interval after which events are read without any signal.
    pub fn polling_every(self, poll: Duration) -> Self {
        Self { poll, ..self }
    }

    /// Makes the feed read events now, for example because placement's journal shows that another replica has written
    /// some.
    pub fn read_now(&self) {
        self.woken.notify_one();
    }

    pub fn running_bots(&self) -> &RunningBots {
        &self.running_bots
    }

    /// Listens to all events of a user's bots.
    pub fn listen_to_user(&self, user: UserId) -> Listener {
        self.listener(|listeners| listeners.users.subscribe(user, BACKLOG_OF_USERS))
    }

    /// Listens to all events of a bot.
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
        let mut other_replicas = store.watch_other_replicas();
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
                    for bot in &step.changed {
                        self.running_bots.forget(*bot);
                    }
                    self.publish(step.events, step.position);
                    if step.is_complete {
                        self.running_bots.note_read(begun);
                    }
                    if step.more {
                        continue;
                    }
                    match step.missing {
                        true => POLL_MISSING,
                        false if store.is_only_replica() => POLL_ALONE,
                        false => self.poll,
                    }
                }
                Err(error) => {
                    // This logs the first failure only, and not each retry while the database is unavailable.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "events not read");
                    }
                    POLL
                }
            };
            tokio::select! {
                () = store.events_written() => bus.announce_events(),
                () = others.events_written() => {}
                () = self.woken.notified() => {}
                Ok(()) = other_replicas.changed() => {}
                () = tokio::time::sleep(wait) => {}
                () = stopping.cancelled() => return,
            }
            // Under load, events are read in groups, not commit by commit.
            let pause = if self.is_heard() { SHORTEST_PAUSE } else { PAUSE_UNHEARD };
            let rest = pause.saturating_sub(begun.elapsed());
            if !rest.is_zero() {
                tokio::time::sleep(rest).await;
            }
        }
    }

    /// Whether there is a listener to a user or a bot.
    fn is_heard(&self) -> bool {
        let listeners = self.listeners();
        !(listeners.users.is_empty() && listeners.bots.is_empty())
    }

    fn publish(&self, events: Vec<EventRow>, position: Option<EventId>) {
        // The position is set first: a listener that begins in between finds the events in the database.
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

/// The position of the feed, and the transactions that it waits for.
#[derive(Debug, Default)]
pub struct Follower {
    position: FeedPosition,
    /// Set while an id is missing: the transactions that could have written it.
    awaited: Option<HashSet<String>>,
}

#[derive(Debug, Default, Clone)]
enum FeedPosition {
    /// Nothing has been read yet.
    #[default]
    Unknown,
    /// Once the `awaited` transactions have ended, all events up to `last` are visible.
    Arriving {
        last: EventId,
        awaited: HashSet<String>,
    },
    At(EventId),
}

/// The result of one read.
#[derive(Debug, Default)]
pub struct Step {
    pub events: Vec<EventRow>,
    pub position: Option<EventId>,
    pub more: bool,
    pub missing: bool,
    /// The bots of all events that were read, also of those whose order is not final.
    pub changed: HashSet<BotId>,
    /// Whether all events were read that were committed before this read.
    pub is_complete: bool,
}

impl Follower {
    /// Reads once, and returns the events whose order is final.
    pub async fn step(&mut self, store: &Store) -> Result<Step, StoreError> {
        match self.position.clone() {
            FeedPosition::Unknown => {
                let last = store.last_event().await?;
                let awaited = store.event_writers().await?;
                self.position = FeedPosition::Arriving { last, awaited };
                Ok(Step { more: true, ..Step::default() })
            }
            FeedPosition::Arriving { last, awaited } => {
                if !awaited.is_empty() && !store.event_writers().await?.is_disjoint(&awaited) {
                    return Ok(Step { missing: true, ..Step::default() });
                }
                self.position = FeedPosition::At(last);
                Ok(Step { position: Some(last), more: true, ..Step::default() })
            }
            FeedPosition::At(last) => self.read_next(store, last).await,
        }
    }

    async fn read_next(&mut self, store: &Store, last: EventId) -> Result<Step, StoreError> {
        // This comes before the events are read: once these transactions have ended, the read below sees what they
        // wrote.
        let settled = match &self.awaited {
            Some(awaited) => store.event_writers().await?.is_disjoint(awaited),
            None => false,
        };
        let read = store.events_after(last, BATCH).await?;
        let batch_is_full = i64::try_from(read.len()).is_ok_and(|n| n == BATCH);
        let changed = read.iter().map(|event| event.bot_id).collect();
        let mut step = Step { changed, is_complete: !batch_is_full, ..Step::default() };
        let (mut at, mut settled) = (last, settled);
        for event in read {
            if store.is_shared() && event.id.0 != at.0 + 1 {
                // The transactions that could have written the first missing id have ended. A second missing id needs
                // its own check.
                if !std::mem::replace(&mut settled, false) {
                    if self.awaited.is_none() || at != last {
                        self.awaited = Some(store.event_writers().await?);
                    }
                    step.missing = true;
                    break;
                }
            }
            // `settled` is valid only for the gap in front of the first event.
            settled = false;
            self.awaited = None;
            at = event.id;
            step.events.push(event);
        }
        self.position = FeedPosition::At(at);
        step.position = Some(at);
        step.more = batch_is_full && !step.missing;
        Ok(step)
    }
}
