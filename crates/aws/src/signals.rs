//! Wakes the tasks in this process that wait for a runner to change. This only saves time: tasks find changes by other
//! processes by polling.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

/// Below this number of entries, it is not worth removing unused ones.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Signals(Mutex<Bells>);

#[derive(Debug, Default)]
struct Bells {
    by_runner: HashMap<String, Weak<Notify>>,
    /// At this number of entries, the unused ones are removed.
    many: usize,
}

impl Signals {
    /// The signal for changes of a runner. Call [`Notify::notified`] before reading the table, so no change is missed.
    pub fn of(&self, instance: &str) -> Arc<Notify> {
        let mut bells = self.bells();
        if let Some(bell) = bells.by_runner.get(instance).and_then(Weak::upgrade) {
            return bell;
        }
        if bells.by_runner.len() >= bells.many {
            bells.by_runner.retain(|_, bell| bell.strong_count() > 0);
            bells.many = FEW.max(2 * bells.by_runner.len());
        }
        let bell = Arc::new(Notify::new());
        bells.by_runner.insert(instance.to_owned(), Arc::downgrade(&bell));
        bell
    }

    pub fn ring(&self, instance: &str) {
        if let Some(bell) = self.bells().by_runner.get(instance).and_then(Weak::upgrade) {
            bell.notify_waiters();
        }
    }

    fn bells(&self) -> MutexGuard<'_, Bells> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
