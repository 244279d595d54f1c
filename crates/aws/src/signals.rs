//! Wakes the tasks in this process that wait for a runner to change. This only saves time: tasks find changes by other
//! processes by polling.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

/// Below this number of entries, it is not worth removing unused ones.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Signals(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    by_runner: HashMap<String, Weak<Notify>>,
    /// At this number of entries, the unused ones are removed.
    prune_at: usize,
}

impl Signals {
    /// The signal for changes of a runner. Call [`Notify::notified`] before reading the table, so no change is missed.
    pub fn of(&self, instance: &str) -> Arc<Notify> {
        let mut entries = self.entries();
        if let Some(signal) = entries.by_runner.get(instance).and_then(Weak::upgrade) {
            return signal;
        }
        if entries.by_runner.len() >= entries.prune_at {
            entries.by_runner.retain(|_, signal| signal.strong_count() > 0);
            entries.prune_at = FEW.max(2 * entries.by_runner.len());
        }
        let signal = Arc::new(Notify::new());
        entries.by_runner.insert(instance.to_owned(), Arc::downgrade(&signal));
        signal
    }

    pub fn notify(&self, instance: &str) {
        if let Some(signal) = self.entries().by_runner.get(instance).and_then(Weak::upgrade) {
            signal.notify_waiters();
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
