//! Since when bots could be heard. Silence counts only while somebody listened: after a start, a pause of the process, or
//! a time without the database, bots first get the time to be heard again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

const EVERY: Duration = Duration::from_secs(1);
/// So much later than it should a tick may come on a busy machine.
const STOOD_STILL: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Ears {
    clock: Clock,
    times: Arc<Mutex<Times>>,
}

#[derive(Debug)]
struct Times {
    listening_since: Timestamp,
    last_tick: Timestamp,
}

impl Ears {
    pub fn new(clock: Clock) -> Self {
        let now = clock.now();
        Self { clock, times: Arc::new(Mutex::new(Times { listening_since: now, last_tick: now })) }
    }

    /// For how long bots could be heard without a break.
    pub fn heard_for(&self) -> Duration {
        Duration::try_from(self.clock.now().duration_since(self.times().listening_since)).unwrap_or_default()
    }

    /// The process goes on. If it stood still, whoever spoke meanwhile was not heard.
    pub fn tick(&self) {
        let now = self.clock.now();
        let mut times = self.times();
        let pause = Duration::try_from(now.duration_since(times.last_tick)).unwrap_or_default();
        times.last_tick = now;
        if pause > EVERY + STOOD_STILL {
            times.listening_since = now;
        }
    }

    /// Whoever spoke could not be written down, and so was not heard.
    pub fn were_deaf(&self) {
        self.times().listening_since = self.clock.now();
    }

    pub async fn keep_listening(self, ending: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => self.tick(),
                () = ending.cancelled() => return,
            }
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
