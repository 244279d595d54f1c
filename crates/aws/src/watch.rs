//! Claims that other processes make. However many runners wait here, one question a second tells which of them were claimed
//! elsewhere: claimed ones are few at any moment.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::{RunnerPool, RunnerState};

/// How often to look for claims that another process has made.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How many runners wait, and whether somebody looks for them.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    waiting: AtomicUsize,
    is_on: AtomicBool,
}

/// A runner that waits, for as long as this is kept.
pub(crate) struct WatchGuard(RunnerPool);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.0.watch.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RunnerPool {
    /// Says that a runner waits in this process.
    pub(crate) fn watch(&self) -> WatchGuard {
        let watch = &self.0.watch;
        watch.waiting.fetch_add(1, Ordering::SeqCst);
        if !watch.is_on.swap(true, Ordering::SeqCst) {
            let pool = self.clone();
            tokio::spawn(async move { pool.poll_claims().await });
        }
        WatchGuard(self.clone())
    }

    /// Looks for as long as a runner waits.
    async fn poll_claims(&self) {
        let watch = &self.0.watch;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            match self.0.table.runners(RunnerState::Claimed).await {
                Ok(claimed) => claimed.iter().for_each(|runner| self.0.signals.ring(&runner.instance)),
                Err(error) => tracing::warn!(%error, "claims of other processes not read"),
            }
            if watch.waiting.load(Ordering::SeqCst) > 0 {
                continue;
            }
            watch.is_on.store(false, Ordering::SeqCst);
            // Somebody may have come in between, and have seen it on.
            if watch.waiting.load(Ordering::SeqCst) == 0 || watch.is_on.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}
