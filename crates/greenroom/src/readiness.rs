//! This module knows whether the store takes writes, from the last write that the server made for this purpose. The
//! answer is in memory, so a readiness check causes no call to the database.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::store::StoreError;

/// The server writes every two seconds, and a write fails after five.
const TOO_OLD: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Readiness(Arc<Mutex<LastWrite>>);

#[derive(Debug)]
struct LastWrite {
    at: Instant,
    failed: bool,
}

impl Readiness {
    /// The state of a server whose store has just taken a write.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(LastWrite { at: Instant::now(), failed: false })))
    }

    /// Records the result of a write. The error itself goes to the log only, because callers without a key can read the
    /// readiness.
    pub fn report(&self, written: Result<&(), &StoreError>) {
        let mut last = self.last();
        let failed_before = std::mem::replace(&mut last.failed, written.is_err());
        match written {
            Ok(_) => {
                last.at = Instant::now();
                if failed_before {
                    tracing::info!("store write succeeded again; server is ready");
                }
            }
            Err(error) if !failed_before => tracing::warn!(%error, "store write failed; server is not ready"),
            Err(_) => {}
        }
    }

    /// Whether the last write succeeded and is recent enough.
    pub fn store_takes_writes(&self) -> bool {
        let last = self.last();
        !last.failed && last.at.elapsed() < TOO_OLD
    }

    fn last(&self) -> MutexGuard<'_, LastWrite> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_is_reported_until_one_succeeds_and_an_old_one_does_not_count() {
        let readiness = Readiness::new();
        assert!(readiness.store_takes_writes());
        let error = StoreError::timed_out("write");
        readiness.report(Err(&error));
        assert!(!readiness.store_takes_writes());
        readiness.report(Ok(&()));
        assert!(readiness.store_takes_writes());
        readiness.last().at = Instant::now().checked_sub(TOO_OLD).unwrap();
        assert!(!readiness.store_takes_writes());
    }
}
