//! Keepers are background jobs that reconcile the store with the real state of bots, slots and providers. They exist
//! because a process can die and a signal can be lost at any point. Each keeper's file opens with the exact conditions
//! on which it acts. A keeper takes no input, and two runs at once do no harm, because each action checks its condition
//! again. A driver runs them by time and by signal, one run of each at a time, on the replica that leads.
//!
//! - this file: the `Keeper` trait and the list of keepers
//! - [`driver`]: runs the keepers and stores their results
//! - [`leader`]: which replica runs them
//! - [`queue_expiry`]: bots that have waited too long
//! - [`deployment`]: unfinished work on slots
//! - [`warm_buffer`]: slots that are kept ready
//! - [`sweeper`]: bots whose state has lasted too long
//! - [`listening`]: when the server could receive calls from bots
//! - [`recovery`]: slots in error
//! - [`sync`]: differences between a provider and the store
//! - [`interrupted`]: bots whose slots were stopped from outside
//! - [`invariants`]: conditions that must always hold
//! - [`runners`]: machines that wait for bots
//! - [`stats`]: the figures of minutes and hours
//! - [`bot_times`]: the metrics of bots
//! - [`retention`]: old data

mod bot_times;
pub mod deployment;
pub mod driver;
mod interrupted;
pub mod invariants;
pub mod leader;
pub mod listening;
pub mod queue_expiry;
pub mod recovery;
pub mod retention;
pub mod runners;
pub mod stats;
pub mod sweeper;
pub mod sync;
pub mod warm_buffer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use domain::Deadlines;
use jiff::Timestamp;

use crate::context::Context;
use crate::deployment::Deployment;
use crate::lifecycle::Lifecycle;
use crate::placement::Placement;
use crate::placement::copy_check::CopyCheck;
use crate::providers::ec2::Runners;
use crate::signals::Signals;
use crate::store::StoreError;
use deployment::DeploymentKeeper;
use invariants::Invariants;
use listening::ListeningWindow;
use queue_expiry::QueueExpiry;
use recovery::RecoveryKeeper;
use retention::{Retention, RetentionKeeper};
use runners::RunnersKeeper;
use stats::StatsKeeper;
use sweeper::Sweeper;
use sync::SyncKeeper;
use warm_buffer::WarmBuffer;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// How often each action was done, by its name.
    pub counts: BTreeMap<&'static str, u64>,
    /// Actions that failed, as sentences.
    pub complaints: Vec<String>,
}

impl RunReport {
    pub fn of<const N: usize>(counts: [(&'static str, u64); N]) -> Self {
        Self { counts: counts.into(), complaints: Vec::new() }
    }

    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.counts.entry(what).or_default() += count;
    }

    pub fn is_nothing(&self) -> bool {
        self.complaints.is_empty() && self.counts.values().all(|count| *count == 0)
    }
}

/// Why a run of a keeper failed.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A fault in the keeper's own code. The next run may succeed.
    #[error("internal fault: the run panicked: {0}")]
    Panicked(String),
    /// The run was cancelled: the replica that leads now runs the keeper.
    #[error("another replica leads now; try again")]
    LeadershipLost,
}

impl From<tokio::task::JoinError> for KeeperError {
    fn from(error: tokio::task::JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => KeeperError::Panicked(message_of(&*panic)),
            // Only the end of the server cancels a run from outside.
            Err(_) => KeeperError::Store(StoreError::Stopping { call: "keeper" }),
        }
    }
}

/// The message of a panic, if it has one.
fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[async_trait]
pub trait Keeper: Send + Sync + std::fmt::Debug {
    /// The keeper's name in the API, in metrics and in logs.
    fn name(&self) -> &'static str;

    /// The time between two runs, if nothing wakes the keeper.
    fn every(&self) -> Duration;

    /// Runs the keeper once: it reads the state and acts on what it finds.
    async fn run(&self) -> Result<RunReport, KeeperError>;

    /// The report of a run that would find nothing to do, as far as is known without a call to the database. Then a run
    /// that is only due by time is left out.
    async fn skipped_run(&self) -> Option<RunReport> {
        None
    }

    /// Whether nearly every run does something, so that a log line for each would say nothing.
    fn is_routine(&self) -> bool {
        false
    }

    /// Returns when the keeper should run before its time.
    async fn woken(&self) {
        std::future::pending().await
    }

    /// Makes the next run check everything, because a caller asked for it.
    fn request_full_run(&self) {}
}

/// All keepers of a server, in the order in which they are shown.
pub type KeeperList = Vec<Arc<dyn Keeper>>;

/// The parts of the server that keepers need.
#[derive(Debug)]
pub struct Parts<'a> {
    pub context: Context,
    pub signals: Signals,
    pub lifecycle: Lifecycle,
    pub placement: Placement,
    pub deployment: Deployment,
    pub deadlines: &'a Deadlines,
    pub listening: ListeningWindow,
    pub runners: Runners,
    /// How long the figures of hours are kept. `None` for ever.
    pub stats_kept: Option<Duration>,
    pub retention: Retention,
}

/// Returns the keepers, the one that also has its own timer, and the comparison that every replica runs by itself.
pub fn build_keepers(parts: Parts<'_>) -> (KeeperList, QueueExpiry, CopyCheck) {
    let Parts { context, signals, lifecycle, placement, deployment, deadlines, listening, .. } = parts;
    let (runners, stats_kept, retention) = (parts.runners, parts.stats_kept, parts.retention);
    let poll = deadlines.queue_poll;
    let expiry = QueueExpiry::new(&context, signals.clone(), placement.clone(), deployment.clone(), poll);
    let left = DeploymentKeeper::new(&context, placement.clone(), deployment.clone(), listening.clone(), poll);
    let warm = WarmBuffer::new(signals, placement.clone(), poll);
    let sweeper = Sweeper::new(&context, lifecycle, deadlines.clone(), listening);
    let every = deadlines.recovery_interval;
    let recovery = RecoveryKeeper::new(&context, deployment.clone(), every);
    let invariants = Invariants::new(context.clone(), placement.clone());
    let copy_check = invariants.copy_check();
    let stats = Arc::new(StatsKeeper::new(&context, stats_kept));
    let retention = RetentionKeeper::new(&context, retention, stats.clone());
    let sync = SyncKeeper::new(&context, placement, deployment, deadlines);
    let mut keepers: KeeperList = vec![
        Arc::new(expiry.clone()),
        Arc::new(left),
        Arc::new(warm),
        Arc::new(sweeper),
        Arc::new(recovery),
        Arc::new(sync),
        Arc::new(invariants),
        stats,
        Arc::new(retention),
    ];
    if !runners.is_empty() {
        keepers.push(Arc::new(RunnersKeeper::new(runners)));
    }
    (keepers, expiry, copy_check)
}

/// How often a keeper that looks for forgotten work looks although none is known. The copy in memory could be wrong.
const FULL_RUN_EVERY: Duration = Duration::from_mins(1);

/// When a keeper last looked for forgotten work.
#[derive(Clone, Debug, Default)]
struct LastFullRun(Arc<Mutex<Option<Instant>>>);

impl LastFullRun {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_recent(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|at| at.elapsed() < FULL_RUN_EVERY)
    }
}

/// The time this long before `now`.
fn ago(now: Timestamp, time: Duration) -> Timestamp {
    now.saturating_sub(time).unwrap_or(Timestamp::MIN)
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
