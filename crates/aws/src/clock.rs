//! The current time in milliseconds, the unit that this crate stores. Tests can move the clock forward.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

/// The machine's time plus an offset. The offset is zero except in tests. A clone shares the same clock.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    ahead_ms: Arc<AtomicI64>,
}

impl Clock {
    pub fn now(&self) -> Timestamp {
        let ahead = self.ahead_ms.load(Ordering::SeqCst);
        from_millis(Timestamp::now().as_millisecond().saturating_add(ahead))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.ahead_ms.fetch_add(millis(by), Ordering::SeqCst);
    }
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn from_millis(millis: i64) -> Timestamp {
    let most = if millis < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(millis).unwrap_or(most)
}

pub(crate) fn after(time: Timestamp, duration: Duration) -> Timestamp {
    from_millis(time.as_millisecond().saturating_add(millis(duration)))
}

pub(crate) fn before(time: Timestamp, duration: Duration) -> Timestamp {
    from_millis(time.as_millisecond().saturating_sub(millis(duration)))
}
