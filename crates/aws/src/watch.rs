//! Finds claims that other processes make. One query each second serves all runners that wait in this process. The
//! query is cheap because few runners are in state claimed at any moment.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::{RunnerPool, RunnerState};

/// How often to query claims of other processes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How many runners wait, and whether the polling task runs.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    waiting: AtomicUsize,
    is_on: AtomicBool,
}

/// Counts a waiting runner until it is dropped.
pub(crate) struct WatchGuard(RunnerPool);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.0.watch.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RunnerPool {
    /// Registers a waiting runner, and starts the polling task if needed.
    pub(crate) fn watch(&self) -> WatchGuard {
        let watch = &self.0.watch;
        watch.waiting.fetch_add(1, Ordering::SeqCst);
        if !watch.is_on.swap(true, Ordering::SeqCst) {
            let pool = self.clone();
            tokio::spawn(async move { pool.poll_claims().await });
        }
        WatchGuard(self.clone())
    }

    /// Polls for as long as a runner waits.
    async fn poll_claims(&self) {
        let watch = &self.0.watch;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            match self.0.table.runners(RunnerState::Claimed).await {
                Ok(claimed) => claimed.iter().for_each(|runner| self.0.signals.notify(&runner.instance)),
                Err(error) => tracing::warn!(%error, "claims of other processes not read"),
            }
            if watch.waiting.load(Ordering::SeqCst) > 0 {
                continue;
            }
            watch.is_on.store(false, Ordering::SeqCst);
            // A runner may have registered in between and seen the task as running.
            if watch.waiting.load(Ordering::SeqCst) == 0 || watch.is_on.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}
