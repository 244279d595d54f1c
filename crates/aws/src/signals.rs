//! Who waits in this process for a runner to change is woken by the call that changes it. It is only for speed: changes that
//! another process makes are found by looking.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

/// With fewer than this it is not worth looking for those that nobody waits for any more.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Signals(Mutex<Bells>);

#[derive(Debug, Default)]
struct Bells {
    by_runner: HashMap<String, Weak<Notify>>,
    /// With so many, those that nobody waits for are removed.
    many: usize,
}

impl Signals {
    /// What is rung when the runner changes. Ask for [`Notify::notified`] before looking.
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
