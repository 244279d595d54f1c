//! The steps between the queue and a running slot at which a process can die or another process can act first. Tests
//! pause a process at a step, either forever, like a killed process, or until the test continues it. Only tests use
//! this.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// The step that was just completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Messages were received.
    Received,
    /// The messages were deleted.
    Deleted,
    /// A message was handed to a waiting request and is not claimed.
    HandedOver,
    /// The runner is claimed.
    Claimed,
    /// The runner is healthy.
    Healthy,
    /// The agent has acknowledged.
    Registered,
    /// A runner was given back and is not announced.
    GivenBack,
    /// The keeper has read the list of runners.
    Listed,
    /// A new announcement is in the table and not in the queue.
    Renewed,
}

impl Step {
    /// The step with this name. A test passes the name to a server process that it will kill.
    pub fn named(word: &str) -> Option<Self> {
        let all = [Self::Received, Self::Deleted, Self::HandedOver, Self::Claimed, Self::Healthy, Self::Registered];
        all.into_iter().find(|step| format!("{step:?}") == word)
    }
}

/// The step to pause at, and how many calls pause there.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    at: watch::Sender<Option<Step>>,
    paused: AtomicUsize,
}

impl Steps {
    pub fn pause_at(&self, step: Option<Step>) {
        self.at.send_replace(step);
    }

    pub fn paused(&self) -> usize {
        self.paused.load(Ordering::SeqCst)
    }

    pub async fn done(&self, step: Step) {
        if *self.at.borrow() != Some(step) {
            return;
        }
        self.paused.fetch_add(1, Ordering::SeqCst);
        // The sender lives as long as `self`, so the channel is open.
        let _ = self.at.subscribe().wait_for(|at| *at != Some(step)).await.map(drop);
        self.paused.fetch_sub(1, Ordering::SeqCst);
    }
}
