//! This module makes time a parameter. Code that needs the time asks a [`Clock`], so that a test can set the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;

#[derive(Clone, Debug)]
pub enum Clock {
    /// The time of the machine.
    System,
    /// A time that changes only when it is set: microseconds since 1970.
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// A clock that stands at `start`.
    pub fn manual(start: Timestamp) -> Self {
        Clock::Manual(Arc::new(AtomicI64::new(start.as_microsecond())))
    }

    /// The current time, cut to the microseconds that PostgreSQL stores, so that a value read back equals the value
    /// written.
    pub fn now(&self) -> Timestamp {
        let micros = match self {
            Clock::System => Timestamp::now().as_microsecond(),
            Clock::Manual(at) => at.load(Ordering::SeqCst),
        };
        Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Moves a manual clock forward. It has no effect on the system clock.
    pub fn advance(&self, by: std::time::Duration) {
        if let Clock::Manual(at) = self {
            at.fetch_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
        }
    }
}
