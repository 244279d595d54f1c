//! The keeper `stats` writes the figures that `GET /admin/stats` shows, by minute and by hour. It acts when:
//! - there are events that are not in the figures yet: it adds them to the minute and the hour of their time. On
//!   PostgreSQL an event can become visible after a later one. So an event is added only when every transaction that
//!   could write an earlier event has ended;
//! - there are such events that are not in the numbers of ended bots yet, which users see: it adds them;
//! - the slots were not counted in this minute: it counts them by pool and status;
//! - figures are older than they are kept: it deletes them.
//!
//! It also makes the metrics of bots from these events ([`super::bot_times`]).
//!
//! The position in the events is stored with the figures, in one transaction. So a restart, a change of the leader and
//! a late run neither lose an event nor count it twice. Bots pay nothing for this: the keeper reads the events that
//! are stored anyway, by their ids. With many events, it rests longer than it works.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::event::Kind;
use domain::stats::Figures;
use domain::{BotId, EventId, ShownStatus};
use jiff::Timestamp;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;

use super::bot_times::{self, BotTimes};
use super::{Keeper, KeeperError, RunReport, ago, count};
use crate::clock::Clock;
use crate::context::Context;
use crate::store::{CountedEvent, NewFigures, Resolution, Store, StoreError};

/// How long the figures of minutes are kept.
pub const MINUTES_KEPT: Duration = Duration::from_hours(48);
/// More often than once a minute, so that no minute is left out.
const EVERY: Duration = Duration::from_secs(10);
/// How many ids of events are read at once.
const STRETCH: i64 = 2_000;
/// Between two reads, the keeper rests this many times as long as the last one took, up to a quarter of a run.
const REST_FACTOR: u32 = 19;
/// A run ends after this time. If events are left, the next run follows at once.
const LONGEST_RUN: Duration = Duration::from_secs(8);
/// How long a run waits for transactions that may write an earlier event.
const AWAIT_WRITERS: Duration = Duration::from_secs(1);
const AWAIT_PAUSE: Duration = Duration::from_millis(20);
/// How many rows one statement deletes, and how many statements a run makes.
const PRUNED_AT_ONCE: i64 = 2_000;
const PRUNES_PER_RUN: usize = 10;

/// An event, and the transactions that could write an earlier one.
#[derive(Debug)]
struct Horizon {
    last: EventId,
    awaited: HashSet<String>,
}

#[derive(Debug)]
pub struct StatsKeeper {
    store: Store,
    clock: Clock,
    /// How long the figures of hours are kept. `None` for ever.
    hours_kept: Option<Duration>,
    /// The horizon that the last run could not reach.
    horizon: Mutex<Option<Horizon>>,
    /// The minute in which the slots were last counted.
    sampled: Mutex<Option<Timestamp>>,
    /// The last event that is in the figures, if it was the last one of all.
    counted_up_to: Mutex<Option<EventId>>,
    /// The metrics of bots, which are made from the same events.
    bot_times: AsyncMutex<BotTimes>,
    /// Events are left for another run.
    unfinished: Notify,
}

impl StatsKeeper {
    pub fn new(context: &Context, hours_kept: Option<Duration>) -> Self {
        let (store, clock) = (context.store.clone(), context.clock.clone());
        let (horizon, sampled, counted_up_to, bot_times) = Default::default();
        Self { store, clock, hours_kept, horizon, sampled, counted_up_to, bot_times, unfinished: Notify::new() }
    }

    /// Counts the slots, if that was not done in this minute.
    async fn sample_slots(&self) -> Result<bool, StoreError> {
        let minute = Resolution::Minute.begin(self.clock.now());
        if *self.sampled() == Some(minute) || self.store.last_slot_sample().await? == Some(minute) {
            *self.sampled() = Some(minute);
            return Ok(false);
        }
        let mut figures = NewFigures::new();
        let sample = || Figures { samples: 1, ..Figures::default() };
        figures.insert((String::new(), minute), sample());
        for pool in self.store.pools().await? {
            bot_times::begin_counting(&pool.name);
            figures.insert((pool.name, minute), sample());
        }
        for (pool, status, slots) in self.store.slots_by_status().await? {
            for name in [pool, String::new()] {
                figures.entry((name, minute)).or_insert_with(sample).add_slots(status, slots.unsigned_abs());
            }
        }
        self.store.add_slot_sample(minute, &figures).await
    }

    /// Adds the events that are complete. Returns how many there were.
    pub(super) async fn count_events(&self) -> Result<u64, StoreError> {
        let begun = Instant::now();
        let last = self.store.last_event().await?;
        // Earlier events were visible when the last one was counted.
        if *self.counted_up_to() == Some(last) {
            return Ok(0);
        }
        let Some(up_to) = self.complete_up_to(last).await? else { return Ok(0) };
        let all_ended = self.count_ended(up_to).await?;
        let (mut position, mut counted) = (self.store.stats_position().await?, 0);
        while position < up_to {
            if begun.elapsed() > LONGEST_RUN {
                self.unfinished.notify_one();
                break;
            }
            let read = Instant::now();
            let end = EventId(position.0.saturating_add(STRETCH).min(up_to.0));
            let events = self.store.counted_events(position, end).await?;
            if !self.store.add_event_figures((position, end), &figures_of(&events)).await? {
                // Another process runs this keeper too, and continues.
                break;
            }
            self.bot_times.lock().await.count(&self.store, (position, end), &events).await?;
            counted += count(events.iter().filter(|event| is_figure(event)).count());
            position = end;
            if position < up_to {
                tokio::time::sleep((read.elapsed() * REST_FACTOR).min(LONGEST_RUN / 4)).await;
            }
        }
        *self.counted_up_to() = (all_ended && position >= up_to).then_some(up_to);
        Ok(counted)
    }

    /// Adds the ends of bots to the numbers of their users, up to an event. False if some are left for another run.
    async fn count_ended(&self, up_to: EventId) -> Result<bool, StoreError> {
        let begun = Instant::now();
        loop {
            let read = Instant::now();
            if self.store.add_ended_counts(up_to).await? >= up_to {
                return Ok(true);
            }
            if begun.elapsed() > LONGEST_RUN {
                self.unfinished.notify_one();
                return Ok(false);
            }
            tokio::time::sleep(read.elapsed() * 2).await;
        }
    }

    /// The last event up to which all events are visible. `None` if that is not known yet.
    async fn complete_up_to(&self, last: EventId) -> Result<Option<EventId>, StoreError> {
        if !self.store.is_shared() {
            return Ok(Some(last));
        }
        let kept = self.horizon().take();
        let horizon = match kept {
            Some(horizon) => horizon,
            // The order matters: a transaction with an earlier id began before the last event was visible.
            None => Horizon { last, awaited: self.store.event_writers().await? },
        };
        let begun = Instant::now();
        while !horizon.awaited.is_empty() && !self.store.event_writers().await?.is_disjoint(&horizon.awaited) {
            if begun.elapsed() > AWAIT_WRITERS {
                *self.horizon() = Some(horizon);
                return Ok(None);
            }
            tokio::time::sleep(AWAIT_PAUSE).await;
        }
        Ok(Some(horizon.last))
    }

    fn sampled(&self) -> std::sync::MutexGuard<'_, Option<Timestamp>> {
        self.sampled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counted_up_to(&self) -> std::sync::MutexGuard<'_, Option<EventId>> {
        self.counted_up_to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn horizon(&self) -> std::sync::MutexGuard<'_, Option<Horizon>> {
        self.horizon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn prune(&self) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let minutes = Some((Resolution::Minute, oldest_minute(now)));
        let hours = self.hours_kept.map(|kept| (Resolution::Hour, Resolution::Hour.begin(ago(now, kept))));
        let mut pruned = 0;
        for (resolution, before) in minutes.into_iter().chain(hours) {
            for _ in 0..PRUNES_PER_RUN {
                let deleted = self.store.prune_figures(resolution, before, PRUNED_AT_ONCE).await?;
                pruned += count(deleted);
                if i64::try_from(deleted).is_ok_and(|deleted| deleted < PRUNED_AT_ONCE) {
                    break;
                }
            }
        }
        Ok(pruned)
    }
}

/// The first minute whose figures are kept: the first of its hour.
pub fn oldest_minute(now: Timestamp) -> Timestamp {
    Resolution::Hour.begin(ago(now, MINUTES_KEPT))
}

/// Whether an event is in the figures: the others are changes of status on the way.
fn is_figure(event: &CountedEvent) -> bool {
    matches!(event.kind, Kind::Created | Kind::Assigned) || event.to.is_some_and(ShownStatus::is_ended)
}

/// The figures of some events, by pool and minute, and for all pools together.
fn figures_of(events: &[CountedEvent]) -> NewFigures {
    let mut figures = BTreeMap::new();
    for event in events.iter().filter(|event| is_figure(event)) {
        let (slot, pool) = (event.slot(), event.pool());
        let minute = Resolution::Minute.begin(event.at);
        for name in [Some(String::new()), pool].into_iter().flatten() {
            add(figures.entry((name, minute)).or_default(), event, slot.is_some());
        }
    }
    figures
}

fn add(figures: &mut Figures, event: &CountedEvent, gets_slot: bool) {
    if event.kind == Kind::Created {
        figures.requests += 1;
    }
    // A bot that lost its slot and gets another one has started before. An operator's process is not a slot.
    if gets_slot && !event.had_slot {
        figures.add_start(event.start_kind, wait_ms(event.bot, event.at));
    }
    if event.to.is_some_and(ShownStatus::is_ended) {
        figures.add_end(event.reason.as_deref(), event.fault);
    }
}

/// When the request for a bot arrived. The id of a bot has this time.
pub(super) fn requested_at(bot: BotId) -> Option<Timestamp> {
    let (seconds, nanoseconds) = bot.0.get_timestamp()?.to_unix();
    Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanoseconds / 1_000_000 * 1_000_000).ok()?).ok()
}

/// How long a bot has waited since its request arrived.
pub(super) fn wait_ms(bot: BotId, until: Timestamp) -> u64 {
    let waited = requested_at(bot).map_or(0, |requested| until.as_millisecond() - requested.as_millisecond());
    u64::try_from(waited).unwrap_or(0)
}

#[async_trait]
impl Keeper for StatsKeeper {
    fn name(&self) -> &'static str {
        "stats"
    }

    fn every(&self) -> Duration {
        EVERY
    }

    fn is_routine(&self) -> bool {
        true
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        let is_new_minute = self.sample_slots().await?;
        let mut report = RunReport::of([("events", self.count_events().await?), ("pruned", 0)]);
        if is_new_minute {
            report.add("pruned", self.prune().await?);
        }
        Ok(report)
    }

    async fn woken(&self) {
        self.unfinished.notified().await;
    }
}
