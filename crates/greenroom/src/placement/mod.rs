//! Who gets which slot. Requests, ends of bots and news of slots gather while a commit is under way and go into the
//! next transaction together: group commit, with no wait when idle. There is one such transaction at a time in the whole
//! database, so that caps, lines and idle slots are decided one after the other, in one process or in twenty.
//!
//! - this file: the gathering
//! - [`jobs`]: what is asked of it, and the answers
//! - [`batch`]: one transaction
//! - [`news`]: what happened to a slot
//! - [`line`]: who gets what is free
//! - [`open`]: what is free, by its size
//! - [`desk`]: one pool, while it is held
//! - [`ledger`]: what a batch leaves behind

mod batch;
mod desk;
mod jobs;
mod ledger;
mod line;
mod news;
mod open;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::{Attributes, Deadlines, Platform, SlotName, Status};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::admission::keys::ApiKey;
use crate::admission::{Admission, AdmissionError, Request, Wish};
use crate::lifecycle::ends::Ending;
use crate::lifecycle::{Lifecycle, LifecycleError};
use crate::random::NoRandomness;
use crate::store::{BotRow, SlotRow, StoreError};
use jobs::{Job, Requester, Sorted};
pub use news::SlotNews;

/// More than this do not go into one transaction, so that the first does not wait for too many others.
const LARGEST_BATCH: usize = 256;
/// How long a batch may wait for others, under load: a fraction of what a transaction takes.
const LONGEST_WAIT: Duration = Duration::from_micros(300);
/// How many requests may wait to be placed unless the configuration says otherwise.
const WAITING_REQUESTS: usize = 10_000;

#[derive(Clone, Debug)]
pub struct Placement {
    jobs: mpsc::UnboundedSender<Job>,
    /// A place for each request that may wait. Ends of bots and news of slots need none: they are never refused.
    waiting: Arc<Semaphore>,
    aftermath: Arc<Aftermath>,
}

/// What is to be done after a commit, by deployment. What is forgotten here, because the process ends, is found in the
/// store.
#[derive(Debug, Default)]
struct Aftermath {
    /// Someone has asked to pass the gate.
    asked: Notify,
    /// Slots whose description has changed, and to what in the end.
    described: Mutex<HashMap<SlotName, Described>>,
    redescribed: Notify,
    /// Somebody has joined a line.
    queued: Notify,
    /// A slot was given out of a pool that keeps some ready.
    cooled: Notify,
}

/// What a look at every pool has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Slots that were made to be kept ready.
    pub made: u64,
    /// Slots that are too many and are let go.
    pub let_go: u64,
}

/// What a person is to see of a slot at the provider.
#[derive(Clone, Debug)]
pub struct Described {
    pub pool: String,
    pub slot: SlotName,
    pub description: String,
}

impl From<&SlotRow> for Described {
    fn from(row: &SlotRow) -> Self {
        Self { pool: row.pool.clone(), slot: row.name.clone(), description: row.description.clone() }
    }
}

/// A bot that was reserved, now or at an earlier asking.
#[derive(Clone, Debug)]
pub struct Reserved {
    pub bot: BotRow,
    pub is_new: bool,
    pub queue_position: Option<i64>,
    pub estimated_wait_ms: Option<i64>,
}

#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    #[error("no pool serves {0}")]
    NoPool(Platform),
    #[error("no slot for {0} could ever meet them")]
    NoneFits(Platform),
    #[error("the server is stopping")]
    Stopping,
    #[error("too many requests wait to be placed")]
    Overloaded,
}

impl From<StoreError> for PlacementError {
    fn from(error: StoreError) -> Self {
        PlacementError::Admission(error.into())
    }
}

impl From<NoRandomness> for PlacementError {
    fn from(error: NoRandomness) -> Self {
        PlacementError::Admission(error.into())
    }
}

impl Placement {
    /// Begins to place, until `ending`.
    pub fn begin(
        admission: Admission,
        lifecycle: Lifecycle,
        deadlines: Deadlines,
        ending: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let waiting = Arc::new(Semaphore::new(WAITING_REQUESTS));
        let placement = Self { jobs, waiting, aftermath: Arc::default() };
        let aftermath = placement.aftermath.clone();
        let placer = batch::Placer { admission, lifecycle, deadlines, aftermath, known: Mutex::default() };
        (placement, gather(placer, inbox, ending))
    }

    /// The same, with another bound on how many requests may wait.
    pub fn with_waiting_requests(self, most: usize) -> Self {
        Self { waiting: Arc::new(Semaphore::new(most)), ..self }
    }

    /// Reserves a bot and gives it a slot or a place in line, or says why not. The answer comes after its commit.
    pub async fn reserve(&self, key: ApiKey, wish: Wish) -> Result<Reserved, PlacementError> {
        let (reply, answer) = oneshot::channel();
        // The place goes with the job: a caller that goes away leaves its job behind, which still counts.
        let place = self.waiting.clone().try_acquire_owned().map_err(|_| {
            metrics::counter!("greenroom_http_overloaded_total", "what" => "placement").increment(1);
            PlacementError::Overloaded
        })?;
        let job = Job::Reserve(Box::new(Request { key, wish }), Requester::new(reply, place));
        self.jobs.send(job).map_err(|_| PlacementError::Stopping)?;
        answer.await.map_err(|_| PlacementError::Stopping)?
    }

    /// Ends a bot. If nothing of it is left in its slot, the next in line gets it in the same transaction. Answers with
    /// the status that holds then.
    pub async fn end(&self, ending: Ending) -> Result<Status, LifecycleError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::End(Box::new(ending), reply)).map_err(|_| LifecycleError::Stopping)?;
        answer.await.map_err(|_| LifecycleError::Stopping)?
    }

    /// Tells what happened to a slot. What is free then goes to the next in line in the same transaction. False when it
    /// came too late: it does not fit the slot as it stands, and nothing was changed.
    pub async fn tell(&self, slot: SlotName, news: SlotNews) -> Result<bool, StoreError> {
        let (reply, answer) = oneshot::channel();
        if self.jobs.send(Job::Slot(slot, news, reply)).is_err() {
            return Ok(false);
        }
        answer.await.unwrap_or(Ok(false))
    }

    /// Looks at every pool: the safety net under everything that wakes by itself.
    pub async fn look(&self) -> Result<Looked, StoreError> {
        let (reply, answer) = oneshot::channel();
        if self.jobs.send(Job::Look(reply)).is_err() {
            return Ok(Looked::default());
        }
        answer.await.unwrap_or(Ok(Looked::default()))
    }

    /// Something with these attributes came free where a place leads to: the first whom it fits, of those who came back from
    /// there, is tried again.
    pub fn stir(&self, attributes: Attributes) {
        let _ = self.jobs.send(Job::Stir(attributes));
    }

    /// Wakes when this process has put somebody in line.
    pub async fn queued(&self) {
        self.aftermath.queued.notified().await;
    }

    /// Wakes when this process has given out a slot of a pool that keeps some ready.
    pub async fn cooled(&self) {
        self.aftermath.cooled.notified().await;
    }

    /// Wakes when someone has asked to pass the gate.
    pub async fn asked(&self) {
        self.aftermath.asked.notified().await;
    }

    /// Waits until descriptions have changed, and says to what.
    pub async fn redescribed(&self) -> Vec<Described> {
        loop {
            let described =
                std::mem::take(&mut *self.aftermath.described.lock().unwrap_or_else(PoisonError::into_inner));
            if !described.is_empty() {
                return described.into_values().collect();
            }
            self.aftermath.redescribed.notified().await;
        }
    }
}

async fn gather(placer: batch::Placer, mut inbox: mpsc::UnboundedReceiver<Job>, ending: CancellationToken) {
    let mut jobs = Vec::with_capacity(LARGEST_BATCH);
    let mut last = 0;
    loop {
        tokio::select! {
            count = inbox.recv_many(&mut jobs, LARGEST_BATCH) => if count == 0 { return },
            () = ending.cancelled() => {
                // What was handed in before the end is still done.
                inbox.close();
                if inbox.recv_many(&mut jobs, LARGEST_BATCH).await == 0 {
                    return;
                }
            }
        }
        wait_for_others(&mut inbox, &mut jobs, last).await;
        last = jobs.len();
        metrics::histogram!("greenroom_placement_batch_size").record(jobs.len() as f64);
        placer.place(Sorted::new(jobs.drain(..))).await;
    }
}

/// Whoever was answered by the last batch often has the next question already on its way. Under load it is better to wait
/// for them a moment, in which other tasks run, than to go ahead with one and let the rest wait for a whole transaction.
/// After a batch of one there is nobody to wait for.
async fn wait_for_others(inbox: &mut mpsc::UnboundedReceiver<Job>, jobs: &mut Vec<Job>, last: usize) {
    let begun = Instant::now();
    while jobs.len() < last && begun.elapsed() < LONGEST_WAIT {
        tokio::task::yield_now().await;
        while let Ok(job) = inbox.try_recv() {
            jobs.push(job);
            if jobs.len() == LARGEST_BATCH {
                return;
            }
        }
    }
}
