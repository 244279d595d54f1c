//! Background jobs that bring the records and the world back together. Each opens with the exact condition on which it
//! acts, takes no input, and can be run twice without harm: looking and acting are apart, and the act tests again what
//! the look saw. A driver runs them by time and by signal, one run of each at a time, on the one replica that leads.
//!
//! - this file: what a keeper is
//! - [`driver`]: running them, and what they did
//! - [`leader`]: which replica runs them
//! - [`queue_expiry`]: bots that have waited too long
//! - [`deployment`]: what was begun in a slot and left
//! - [`warm_buffer`]: slots that are kept ready
//! - [`sweeper`]: bots whose state has lasted too long
//! - [`listening`]: when bots could be heard
//! - [`recovery`]: slots in error
//! - [`sync`]: what a provider has against what the store has
//! - [`interrupted`]: bots whose slots were ended from outside
//! - [`invariants`]: what must hold
//! - [`runners`]: machines that wait for bots

pub mod deployment;
pub mod driver;
mod interrupted;
pub mod invariants;
pub mod leader;
pub mod listening;
pub mod queue_expiry;
pub mod recovery;
pub mod runners;
pub mod sweeper;
pub mod sync;
pub mod warm_buffer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
use runners::RunnersKeeper;
use sweeper::Sweeper;
use sync::SyncKeeper;
use warm_buffer::WarmBuffer;

/// What a run has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// How much of what.
    pub counts: BTreeMap<&'static str, u64>,
    /// What could not be done, in sentences.
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
    #[error("a fault in Greenroom itself: the run panicked: {0}")]
    Panicked(String),
    /// The run was ended: the replica that leads now runs the keeper.
    #[error("another replica leads by now")]
    LeadershipLost,
}

impl From<tokio::task::JoinError> for KeeperError {
    fn from(error: tokio::task::JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => KeeperError::Panicked(message_of(&*panic)),
            // Only the end of the server ends a run from outside.
            Err(_) => KeeperError::Store(StoreError::Stopping { call: "keeper" }),
        }
    }
}

/// What a panic says, if it says anything.
fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

#[async_trait]
pub trait Keeper: Send + Sync + std::fmt::Debug {
    /// The word by which it is known, in the API, in metrics and in logs.
    fn name(&self) -> &'static str;

    /// How long after a run the next one comes by itself.
    fn every(&self) -> Duration;

    /// Looks once, and acts on what it finds.
    async fn run(&self) -> Result<RunReport, KeeperError>;

    /// Wakes when it should run before its time.
    async fn woken(&self) {
        std::future::pending().await
    }

    /// Somebody wants the next run to look at everything.
    fn hurry(&self) {}
}

/// All keepers of a server, in the order in which they are shown.
pub type Crew = Vec<Arc<dyn Keeper>>;

/// What keepers need from their surroundings.
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
}

/// The keepers, the one of them that has a timer of its own, and what every replica compares by itself.
pub fn crew(parts: Parts<'_>) -> (Crew, QueueExpiry, CopyCheck) {
    let Parts { context, signals, lifecycle, placement, deployment, deadlines, listening, runners } = parts;
    let poll = deadlines.queue_poll;
    let expiry = QueueExpiry::new(&context, signals.clone(), deployment.clone(), poll);
    let left = DeploymentKeeper::new(&context, placement.clone(), deployment.clone(), listening.clone(), poll);
    let warm = WarmBuffer::new(signals, placement.clone(), poll);
    let sweeper = Sweeper::new(&context, lifecycle, deadlines.clone(), listening);
    let every = deadlines.recovery_interval;
    let recovery = RecoveryKeeper::new(&context, deployment.clone(), every);
    let invariants = Invariants::new(context.clone(), placement.clone());
    let copy_check = invariants.copy_check();
    let sync = SyncKeeper::new(&context, placement, deployment, deadlines);
    let mut crew: Crew = vec![
        Arc::new(expiry.clone()),
        Arc::new(left),
        Arc::new(warm),
        Arc::new(sweeper),
        Arc::new(recovery),
        Arc::new(sync),
        Arc::new(invariants),
    ];
    if !runners.is_empty() {
        crew.push(Arc::new(RunnersKeeper::new(runners)));
    }
    (crew, expiry, copy_check)
}

/// So long before now.
fn ago(now: Timestamp, time: Duration) -> Timestamp {
    now.saturating_sub(time).unwrap_or(Timestamp::MIN)
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
