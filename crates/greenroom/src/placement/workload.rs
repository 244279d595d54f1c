//! What placement's copy in memory says about work that is under way. Keepers that look for forgotten work skip their
//! runs while there is none, so that an idle server makes few calls to the database.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::Status;
use domain::planner::Snapshot;
use uuid::Uuid;

/// A workload that is older than this says nothing.
const KNOWN_FOR: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Bots wait in the queue.
    pub has_queue: bool,
    /// A slot is being made, deleted or cleared, or a bot waits for a slot or has not started in it.
    pub has_unfinished: bool,
    /// The placement token of the copy.
    pub token: Uuid,
}

impl Workload {
    pub fn of(snapshot: &Snapshot, token: Uuid) -> Self {
        let is_unsettled = snapshot.pools().any(|state| state.unsettled.all > state.unsettled.error);
        let (mut has_queue, mut has_unstarted) = (false, false);
        for bot in snapshot.bots() {
            has_queue |= bot.queued.is_some();
            has_unstarted |= bot.status == Status::Reserved;
        }
        Self { has_queue, has_unfinished: is_unsettled || has_unstarted, token }
    }
}

/// The last known workload, shared by the placer and the keepers.
#[derive(Clone, Debug, Default)]
pub struct KnownWorkload(Arc<Mutex<Option<(Workload, Instant)>>>);

impl KnownWorkload {
    pub fn set(&self, workload: Option<Workload>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = workload.map(|workload| (workload, Instant::now()));
    }

    pub fn get(&self) -> Option<Workload> {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.filter(|(_, at)| at.elapsed() < KNOWN_FOR).map(|(workload, _)| workload)
    }
}
