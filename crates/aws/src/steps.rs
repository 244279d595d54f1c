//! Where a process can die, or be overtaken, on the way from the queue to a running slot. A test makes it stand still at one of
//! these, for ever as a process that was killed, or until it goes on; nobody else does.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// What has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Messages were received.
    Received,
    /// They were deleted.
    Deleted,
    /// One was handed to who waits, and is not claimed.
    HandedOver,
    /// The runner is claimed.
    Claimed,
    /// It is healthy.
    Healthy,
    /// Its agent has acknowledged.
    Registered,
    /// A runner is given back, and not announced.
    GivenBack,
    /// The keeper has seen which runners there are.
    Listed,
    /// A new announcement is in the table, and not in the queue.
    Renewed,
}

impl Step {
    /// By the word with which a test names it to a server that it is going to kill.
    pub fn named(word: &str) -> Option<Self> {
        let all = [Self::Received, Self::Deleted, Self::HandedOver, Self::Claimed, Self::Healthy, Self::Registered];
        all.into_iter().find(|step| format!("{step:?}") == word)
    }
}

/// At which step to stand still, and how many do.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    at: watch::Sender<Option<Step>>,
    standing: AtomicUsize,
}

impl Steps {
    pub fn stand_still_at(&self, step: Option<Step>) {
        self.at.send_replace(step);
    }

    pub fn standing(&self) -> usize {
        self.standing.load(Ordering::SeqCst)
    }

    pub async fn done(&self, step: Step) {
        if *self.at.borrow() != Some(step) {
            return;
        }
        self.standing.fetch_add(1, Ordering::SeqCst);
        // It is never closed while this is here.
        let _ = self.at.subscribe().wait_for(|at| *at != Some(step)).await.map(drop);
        self.standing.fetch_sub(1, Ordering::SeqCst);
    }
}
