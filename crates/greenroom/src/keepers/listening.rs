//! This module records when the server could receive calls from bots. A bot's silence counts only during these times.
//! After a start, a pause of the process, or a database outage, bots first get time to call again. The times of all
//! processes add up, across restarts and replicas, by the clock of the database. Otherwise a server that restarts often
//! would never enforce a deadline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::ago;
use crate::clock::Clock;
use crate::readiness::Readiness;
use crate::store::{ListeningSpan, Store, StoreError};

/// A server that restarts every few seconds still records that it listened.
const INTERVAL: Duration = Duration::from_secs(2);
/// On a busy machine, a tick may be this late.
const STOOD_STILL: Duration = Duration::from_secs(5);
/// If the database takes longer to answer, it does not answer bots either.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for the last write of a server that stops.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);
/// Spans are kept at least this long, and otherwise only as long as they are useful.
const KEPT_AT_LEAST: Duration = Duration::from_hours(1);
const KEPT_TIMES_NEEDED: u32 = 10;

#[derive(Clone, Debug)]
pub struct ListeningWindow {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// Since when this process has listened without a break.
    unbroken_since: Timestamp,
    last_tick: Timestamp,
    /// The id of that time's row in the database, and whether the row exists yet.
    span: Uuid,
    is_recorded: bool,
    /// The state of the database; `None` where nothing is recorded there.
    recorded: Option<Recorded>,
}

#[derive(Debug)]
struct Recorded {
    /// This process's own span, and then those of all processes.
    spans: Vec<ListeningSpan>,
    /// Whether no other process could change its span since they were read.
    is_only_replica: bool,
    /// How far the database's clock is ahead of this process's clock.
    ahead: SignedDuration,
}

impl ListeningWindow {
    pub fn new(clock: Clock) -> Self {
        let now = clock.now();
        let state =
            State { unbroken_since: now, last_tick: now, span: Uuid::new_v4(), is_recorded: false, recorded: None };
        Self { clock, state: Arc::new(Mutex::new(state)) }
    }

    /// The current time by this process's clock or the database's, whichever is earlier. So a fast clock ends no bot
    /// early.
    pub fn now(&self) -> Timestamp {
        let (state, now) = (self.state(), self.clock.now());
        state.recorded.as_ref().map_or(now, |recorded| now.min(now.saturating_add(recorded.ahead).unwrap_or(now)))
    }

    /// How long this process could receive calls without a break.
    pub fn unbroken(&self) -> Duration {
        elapsed(self.state().unbroken_since, self.clock.now())
    }

    /// Returns the latest moment since which the server has listened for `needed` in total. A bot without a call since
    /// then has been silent for that long. `None` when the total is too short.
    pub fn heard_since(&self, needed: Duration) -> Option<Timestamp> {
        let (state, now) = (self.state(), self.clock.now());
        let Some(Recorded { spans, ahead, .. }) = &state.recorded else {
            return (elapsed(state.unbroken_since, now) >= needed).then(|| ago(now, needed));
        };
        let database_now = now.saturating_add(*ahead).unwrap_or(now);
        let mut spans = spans.clone();
        // The process also listens between two ticks.
        let listens = state.is_recorded && elapsed(state.last_tick, now) < INTERVAL + STOOD_STILL;
        if let Some(own) = spans.first_mut().filter(|_| listens) {
            own.heard_until = database_now.max(own.heard_until);
        }
        let since = latest_start(spans, database_now, needed)?;
        // Replicas write bots' times by their own clocks. If these differ from the database's clock, the earlier time
        // counts, in favour of the bot.
        Some(since.min(since.saturating_sub(*ahead).unwrap_or(since)))
    }

    /// Notes that the process is running. If it stood still, it could not receive calls in the meantime.
    pub fn tick(&self) {
        let now = self.clock.now();
        let mut state = self.state();
        let pause = elapsed(state.last_tick, now);
        state.last_tick = now;
        if pause > INTERVAL + STOOD_STILL {
            state.begin(now);
        }
    }

    /// Starts a new span: calls could not be stored, so silence until now does not count.
    pub fn reset(&self) {
        self.state().begin(self.clock.now());
    }

    /// Records in the database that the server listens, and reads the spans of other processes. It reads and writes in
    /// the same way as heartbeats do. If those have to wait, this waits too, and the time does not count.
    pub async fn record(&self, store: &Store) -> Result<(), StoreError> {
        self.tick();
        let is_only_replica = store.is_only_replica();
        let mut spans = match self.unchanged_spans().filter(|_| is_only_replica) {
            Some(spans) => spans,
            None => store.listening_spans().await?,
        };
        let mut span = self.state().span;
        let extended = match store.extend_listening(span, INTERVAL + STOOD_STILL).await? {
            Some(extended) => extended,
            None => {
                self.reset();
                span = self.state().span;
                let begun = store.extend_listening(span, INTERVAL + STOOD_STILL).await?;
                begun.ok_or_else(|| StoreError::internal("listening.extend", "a new listening span was not stored"))?
            }
        };
        spans.insert(0, extended);
        let ahead = extended.heard_until.duration_since(self.clock.now());
        let mut state = self.state();
        // A reset in the meantime stays in force.
        state.is_recorded = state.span == span;
        state.recorded = Some(Recorded { spans, is_only_replica, ahead });
        Ok(())
    }

    /// The spans that were read before, without this process's own, if none of them can have changed since.
    fn unchanged_spans(&self) -> Option<Vec<ListeningSpan>> {
        let state = self.state();
        let recorded = state.recorded.as_ref().filter(|recorded| state.is_recorded && recorded.is_only_replica)?;
        Some(recorded.spans.get(1..)?.to_vec())
    }

    /// Records every two seconds until the server is `stopping` and takes no more connections. It reports each result
    /// to `readiness`, because this write shows whether the store takes writes. Returns when everything is `ending`.
    pub async fn keep_listening(
        self,
        store: Store,
        needed: Duration,
        readiness: Readiness,
        stopping: CancellationToken,
        ending: CancellationToken,
    ) {
        if let Err(error) = store.prune_listening(KEPT_AT_LEAST.max(needed * KEPT_TIMES_NEEDED)).await {
            tracing::warn!(%error, "listening spans not pruned");
        }
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let (last, timeout) = tokio::select! {
                _ = tick.tick() => (false, TIMEOUT),
                () = stopping.cancelled() => (true, LAST_TIMEOUT),
                () = ending.cancelled() => (true, LAST_TIMEOUT),
            };
            let recorded = tokio::time::timeout(timeout, self.record(&store)).await;
            let recorded = recorded.unwrap_or_else(|_late| Err(StoreError::timed_out("listening.extend")));
            if last {
                self.reset();
                return ending.cancelled().await;
            }
            readiness.report(recorded.as_ref());
            if recorded.is_err() {
                self.reset();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn begin(&mut self, now: Timestamp) {
        self.unbroken_since = now;
        self.span = Uuid::new_v4();
        self.is_recorded = false;
    }
}

fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// Returns the latest moment from which the spans cover `needed` until `now`. Overlapping spans count once.
fn latest_start(mut spans: Vec<ListeningSpan>, now: Timestamp, needed: Duration) -> Option<Timestamp> {
    spans.sort_by_key(|span| std::cmp::Reverse(span.heard_until));
    let mut missing = SignedDuration::try_from(needed).unwrap_or(SignedDuration::MAX);
    // Everything after this moment is counted. Spans after `now` were written before the clock was set back.
    let mut counted_from = now;
    for span in spans {
        let end = span.heard_until.min(counted_from);
        let length = end.duration_since(span.started_at);
        if length <= SignedDuration::ZERO {
            continue;
        }
        if length >= missing {
            return end.checked_sub(missing).ok();
        }
        missing -= length;
        counted_from = span.started_at;
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn start(spans: &[(i64, i64)], now: i64, needed: u64) -> Option<Timestamp> {
        let spans = spans.iter().map(|(from, to)| ListeningSpan { started_at: at(*from), heard_until: at(*to) });
        latest_start(spans.collect(), at(now), Duration::from_secs(needed))
    }

    #[test]
    fn listening_time_adds_up_across_breaks() {
        // Four processes of eight seconds each; one second of each is lost to the restart.
        let spans = [(0, 7), (8, 15), (16, 23), (24, 31)];
        assert_eq!(start(&spans, 31, 7), Some(at(24)));
        assert_eq!(start(&spans, 31, 8), Some(at(22)), "the break does not count");
        assert_eq!(start(&spans, 31, 28), Some(at(0)));
        assert_eq!(start(&spans, 31, 29), None, "nobody has listened for so long");
        assert_eq!(start(&[], 31, 1), None);
    }

    #[test]
    fn a_process_whose_clock_is_wrong_judges_in_favour_of_the_bot() {
        // The database's clock is at 0; the process's clock is about two minutes ahead or behind.
        for (own, since) in [(125, -60), (-125, -185)] {
            let window = ListeningWindow::new(Clock::manual(at(own)));
            let spans = vec![ListeningSpan { started_at: at(-100), heard_until: at(0) }];
            window.state().recorded =
                Some(Recorded { spans, is_only_replica: true, ahead: SignedDuration::from_secs(-own) });
            assert_eq!(window.heard_since(Duration::from_secs(60)), Some(at(since)));
            assert_eq!(window.heard_since(Duration::from_secs(101)), None);
            assert_eq!(window.now(), at(own.min(0)));
        }
    }

    #[test]
    fn two_replicas_that_listen_at_once_count_as_one() {
        let spans = [(0, 100), (50, 60), (90, 110), (95, 105)];
        assert_eq!(start(&spans, 110, 100), Some(at(10)));
        assert_eq!(start(&spans, 110, 111), None);
    }

    #[test]
    fn windows_from_before_the_clock_was_set_back_do_not_count() {
        assert_eq!(start(&[(3_600, 3_660), (0, 20)], 20, 10), Some(at(10)));
        assert_eq!(start(&[(10, 3_660)], 20, 10), Some(at(10)));
        assert_eq!(start(&[(3_600, 3_660)], 20, 10), None);
    }
}
