//! The state that the clients of a load generator share.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::{BotId, ConnectionId};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{LoadReport, LoadSpec};
use crate::bench::Done;
use crate::bench::client::{Bot, Client};
use crate::bench::figures::{milliseconds, percentile};
use crate::lifecycle::tokens::{Claim, Tokens};

/// How long a bot may wait for its slot.
const ASSIGNED_WITHIN: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub struct Shared {
    tokens: Tokens,
    counts: Mutex<Counts>,
}

#[derive(Debug)]
struct Counts {
    report: LoadReport,
    next_meeting: u64,
    begun: Instant,
    interval: Option<Duration>,
    last_answer: Instant,
    holders: HashMap<String, Uuid>,
    latencies: Vec<f64>,
}

impl Shared {
    pub fn new(spec: &LoadSpec, interval: Option<Duration>) -> Arc<Self> {
        let now = Instant::now();
        let counts = Counts {
            report: LoadReport::default(),
            next_meeting: spec.first_meeting,
            begun: now,
            interval,
            last_answer: now,
            holders: HashMap::new(),
            latencies: Vec::new(),
        };
        Arc::new(Self { tokens: Tokens::new(&spec.signing_secret), counts: Mutex::new(counts) })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to count.
    pub fn begin(&self) -> Instant {
        let mut counts = self.counts();
        let now = Instant::now();
        (counts.begun, counts.last_answer) = (now, now);
        now
    }

    pub fn next_meeting(&self) -> String {
        let mut counts = self.counts();
        counts.next_meeting += 1;
        meeting(counts.next_meeting - 1)
    }

    /// Records that an answer arrived.
    pub fn answered(&self) {
        let mut counts = self.counts();
        let now = Instant::now();
        counts.report.longest_pause = counts.report.longest_pause.max(now.duration_since(counts.last_answer));
        counts.last_answer = now;
    }

    pub fn acknowledged(&self, bot: Uuid) {
        self.counts().report.bots.push(bot);
    }

    pub fn retried(&self) {
        self.counts().report.retries += 1;
    }

    pub fn queued(&self) {
        self.counts().report.queued += 1;
    }

    pub fn failed(&self, error: &dyn std::fmt::Display) {
        let mut counts = self.counts();
        counts.report.errors += 1;
        if counts.report.first_error.is_none() {
            counts.report.first_error = Some(error.to_string());
        }
    }

    /// Records that a bot has a slot. No other bot may have it until [`Shared::let_go`].
    pub fn hold(&self, slot: &str, bot: Uuid) {
        let mut counts = self.counts();
        if counts.holders.insert(slot.to_owned(), bot).is_some_and(|other| other != bot) {
            counts.report.doubles += 1;
        }
    }

    /// Must be called before the end is sent: after its commit, another bot may have the slot.
    pub fn let_go(&self, slot: &str) {
        self.counts().holders.remove(slot);
    }

    pub fn latency(&self, took: Duration) {
        self.counts().latencies.push(milliseconds(took));
    }

    pub fn finished_pair(&self) {
        let mut counts = self.counts();
        counts.report.pairs += 1;
        if let Some(interval) = counts.interval {
            let at = (counts.begun.elapsed().as_secs_f64() / interval.as_secs_f64()) as usize;
            if counts.report.intervals.len() <= at {
                counts.report.intervals.resize(at + 1, 0);
            }
            counts.report.intervals[at] += 1;
        }
    }

    pub fn report(&self) -> LoadReport {
        let mut counts = self.counts();
        counts.report.seconds = counts.begun.elapsed().as_secs_f64();
        counts.report.latency_p50_ms = percentile(&counts.latencies, 0.5);
        counts.report.latency_p99_ms = percentile(&counts.latencies, 0.99);
        // NaN is not JSON.
        if counts.latencies.is_empty() {
            (counts.report.latency_p50_ms, counts.report.latency_p99_ms) = (0.0, 0.0);
        }
        std::mem::take(&mut counts.report)
    }

    /// The token and the body with which a bot reports its end.
    pub fn end_of(&self, bot: &Bot) -> Done<(String, String)> {
        let connection = bot.connection_id.ok_or("the slot has no connection")?;
        let token = self.tokens.make(Claim { bot: BotId(bot.id), connection: ConnectionId(connection) });
        Ok((token, format!("{{\"connection_id\": \"{connection}\", \"exit_code\": 0, \"reason\": \"measured\"}}")))
    }
}

/// A different meeting for each number.
pub fn meeting(mut number: u64) -> String {
    let mut letters = [b'a'; 10];
    for letter in letters.iter_mut().rev() {
        *letter = b'a' + u8::try_from(number % 26).unwrap_or(0);
        number /= 26;
    }
    let letters: String = letters.map(char::from).iter().collect();
    format!("{}-{}-{}", &letters[..3], &letters[3..7], &letters[7..])
}

/// The `GET /events` stream of one user, on which its clients wait for slots.
#[derive(Clone, Debug, Default)]
pub struct AssignedEvents {
    state: Arc<Mutex<Assigned>>,
}

#[derive(Debug, Default)]
struct Assigned {
    seen: HashSet<Uuid>,
    waiting: HashMap<Uuid, oneshot::Sender<()>>,
}

impl AssignedEvents {
    /// Opens the stream. It shows events from now on.
    pub async fn open(address: SocketAddr, key: &str) -> Done<Self> {
        let mut stream = Client::connect(address).await?.into_events(key).await?;
        let events = Self::default();
        let weak = Arc::downgrade(&events.state);
        tokio::spawn(async move {
            // If the stream breaks, waiting clients find their channel closed.
            while let Ok(event) = stream.next().await {
                let Some(state) = weak.upgrade() else { return };
                if event.kind == "assigned" {
                    Self::assigned(&state, event.bot_id);
                }
            }
            if let Some(state) = weak.upgrade() {
                state.lock().unwrap_or_else(PoisonError::into_inner).waiting.clear();
            }
        });
        Ok(events)
    }

    fn assigned(state: &Mutex<Assigned>, bot: Uuid) {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.waiting.remove(&bot) {
            Some(waiting) => drop(waiting.send(())),
            None => drop(state.seen.insert(bot)),
        }
    }

    /// Waits until a bot has a slot.
    pub async fn until_assigned(&self, bot: Uuid) -> Done {
        let assigned = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.seen.remove(&bot) {
                return Ok(());
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting.insert(bot, sender);
            receiver
        };
        let heard = tokio::time::timeout(ASSIGNED_WITHIN, assigned).await;
        let heard = heard.map_err(|_| format!("the bot {bot} got no slot within {} s", ASSIGNED_WITHIN.as_secs()))?;
        Ok(heard.map_err(|_| "the event stream failed")?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_a_meeting_of_its_own() {
        assert_eq!(meeting(0), "aaa-aaaa-aaa");
        assert_eq!(meeting(27), "aaa-aaaa-abb");
        let many: HashSet<String> = (0..10_000).map(meeting).collect();
        assert_eq!(many.len(), 10_000);
    }

    #[test]
    fn a_slot_with_two_bots_is_a_duplicate_and_a_released_slot_is_not() {
        let spec = LoadSpec {
            addresses: Vec::new(),
            keys: Vec::new(),
            signing_secret: "secret".into(),
            first_meeting: 0,
            clients: 1,
            work: super::super::Work::Burst,
        };
        let shared = Shared::new(&spec, None);
        let [one, other] = [Uuid::new_v4(), Uuid::new_v4()];
        shared.hold("s", one);
        shared.let_go("s");
        shared.hold("s", other);
        assert_eq!(shared.counts().report.doubles, 0);
        shared.hold("s", one);
        assert_eq!(shared.report().doubles, 1);
    }

    #[tokio::test]
    async fn an_assignment_is_heard_whether_it_comes_before_or_after_the_wait() {
        let (events, [early, late]) = (AssignedEvents::default(), [Uuid::new_v4(), Uuid::new_v4()]);
        AssignedEvents::assigned(&events.state, early);
        events.until_assigned(early).await.unwrap();
        let (waited, ()) = tokio::join!(events.until_assigned(late), async {
            AssignedEvents::assigned(&events.state, late);
        });
        waited.unwrap();
    }
}
