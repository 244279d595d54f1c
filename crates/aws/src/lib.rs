//! The runner pool on AWS: idle runners are messages in a queue for each class, claims are conditional updates of a table,
//! and fresh capacity is asked of Auto Scaling groups. It knows nothing of bots or databases; a slot is a name here.
//!
//! The table decides, the queues are only a cache of it: whatever is lost with a message or with a process, the keeper
//! announces an idle runner again before its last announcement is over, and no older announcement claims anything.
//!
//! In reading order:
//! - [`settings`]: what a pool has to know
//! - `message`, `queue`, `pickup`: announcements, and how the one is found that fits
//! - `item`, `table`: runners and slots as they are stored, and the one condition of every change
//! - `claim`, `several`: from an announcement to a runner that runs the slot
//! - `agent`, `watch`: what a runner's agent calls, and what it waits for
//! - `stop`: a slot's end, and a runner's
//! - `groups`, `fresh`: the machines, and more of them
//! - `plan`, `init`, `policy`: what has to be there, and to be allowed
//! - `survey`: what of it is there
//! - `keep`: one look of the keeper
//! - `fill`, `remove`: many idle runners at once, to measure with, and the end of what was measured
//! - `clients`, `clock`, `error`, `signals`, `steps`: what all of them use

mod agent;
mod claim;
mod clients;
mod clock;
mod error;
mod fill;
mod fresh;
mod groups;
mod init;
mod item;
mod keep;
mod message;
mod pickup;
mod plan;
mod policy;
mod queue;
mod remove;
pub mod settings;
mod several;
mod signals;
mod steps;
mod stop;
mod survey;
mod table;
mod watch;

// What tests share knows the crate by its name.
#[cfg(test)]
extern crate self as aws;
#[cfg(test)]
#[path = "../tests/all/moto.rs"]
mod moto;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use domain::Requirements;
use jiff::Timestamp;

pub use agent::{RegisterError, Run, Standing};
pub use clock::Clock;
pub use error::AwsError;
pub use fresh::Fresh;
pub use init::{Kind, Made, Outcome, Thing, init};
pub use item::{Runner, RunnerState};
pub use keep::Kept;
pub use message::{Announcement, Dropped};
pub use plan::{Plan, PlannedGroup, Template, describe};
pub use policy::{init_policy, policy};
pub use remove::remove;
pub use settings::{Class, KNOWN_CLASSES, Pace, Settings};
#[doc(hidden)]
pub use steps::Step;
pub use survey::{Survey, SurveyedGroup};

use clients::Clients;
use clock::{after, before, from_millis};
use groups::Groups;
use pickup::Manager;
use queue::{Outgoing, Queue};
use signals::Signals;
use steps::Steps;
use table::Table;
use watch::Watch;

/// A slot that is to have a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its name, without the installation.
    pub slot: String,
    /// The assignment that the run is for.
    pub connection: Option<String>,
}

/// The runners of a pool, as one process sees them. A clone is the same.
#[derive(Clone, Debug)]
pub struct RunnerPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Arc<Settings>,
    table: Table,
    groups: Groups,
    /// By class.
    queues: HashMap<String, Arc<Queue>>,
    managers: HashMap<String, Arc<Manager>>,
    signals: Signals,
    watch: Watch,
    /// Since when runners could be heard, in milliseconds: what was not heard before that was silent for nobody.
    ears: AtomicI64,
    clock: Clock,
    steps: Arc<Steps>,
}

impl RunnerPool {
    /// With the credentials that the machine has. Nothing is asked of AWS yet.
    pub async fn connect(settings: Settings) -> Self {
        Self::with_clock(settings, Clock::default()).await
    }

    /// The same with another time, for tests.
    #[doc(hidden)]
    pub async fn with_clock(mut settings: Settings, clock: Clock) -> Self {
        settings.classes.sort_by_key(|class| (class.cpu, class.mem));
        let settings = Arc::new(settings);
        let clients = Clients::connect(&settings).await;
        let steps = Arc::new(Steps::default());
        let (mut queues, mut managers) = (HashMap::new(), HashMap::new());
        for class in &settings.classes {
            let queue = Arc::new(Queue::new(clients.sqs.clone(), settings.queue(&class.name)));
            queues.insert(class.name.clone(), queue.clone());
            let pace = settings.pace.clone();
            managers.insert(class.name.clone(), Manager::new(class.clone(), queue, pace, clock.clone(), steps.clone()));
        }
        Self(Arc::new(Inner {
            table: Table::new(clients.dynamodb, settings.table.clone()),
            groups: Groups::new(clients.autoscaling, settings.clone()),
            settings,
            queues,
            managers,
            signals: Signals::default(),
            watch: Watch::default(),
            ears: AtomicI64::new(clock.now().as_millisecond()),
            clock,
            steps,
        }))
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Whether the table is there.
    pub async fn ping(&self) -> Result<(), AwsError> {
        self.0.table.describe().await
    }

    /// The runner that a slot has.
    pub async fn runner_of(&self, slot: &str) -> Result<Option<Runner>, AwsError> {
        let key = self.slot_key(slot);
        let Some(held) = self.0.table.slot(&key).await? else { return Ok(None) };
        let runner = self.0.table.runner(&held.runner).await?;
        // One that is terminated keeps its slot until its machine is known to end.
        let has_it = |runner: &Runner| runner.is_for(&held.run_id) && runner.state != RunnerState::Terminated;
        Ok(runner.filter(has_it))
    }

    /// A runner as it is now, also one that is terminated.
    pub async fn runner(&self, instance: &str) -> Result<Option<Runner>, AwsError> {
        self.0.table.runner(instance).await
    }

    /// All runners that are not terminated, of every installation. What has just changed may be missing from it.
    pub async fn runners(&self) -> Result<Vec<Runner>, AwsError> {
        let mut all = Vec::new();
        for state in RunnerState::ALL.into_iter().filter(|state| *state != RunnerState::Terminated) {
            all.extend(self.0.table.runners(state).await?);
        }
        // The index lags: a runner that changes between two looks may be in both, and is as it was last.
        all.sort_by(|one, other| (&one.instance, other.since).cmp(&(&other.instance, one.since)));
        all.dedup_by(|one, other| one.instance == other.instance);
        Ok(all)
    }

    /// When a runner was heard of last.
    pub async fn heard(&self, instance: &str) -> Result<Option<Timestamp>, AwsError> {
        self.0.table.heard(instance).await
    }

    /// How many announcements this process has looked at.
    pub fn examined(&self) -> u64 {
        self.0.managers.values().map(|manager| manager.examined()).sum()
    }

    /// Makes this process stand still at a step, as one that was killed there; `None` lets it go on.
    #[doc(hidden)]
    pub fn stand_still_at(&self, step: Option<Step>) {
        self.0.steps.stand_still_at(step);
    }

    /// How many calls stand still.
    #[doc(hidden)]
    pub fn standing(&self) -> usize {
        self.0.steps.standing()
    }

    fn slot_key(&self, slot: &str) -> String {
        format!("{}/{slot}", self.0.settings.installation)
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// Until when an announcement that is made now is good.
    fn new_expiry(&self) -> Timestamp {
        after(self.now(), self.0.settings.pace.announcement)
    }

    /// Whether a runner that was heard of then is healthy, as far as it could be heard.
    fn is_healthy(&self, heard: Option<Timestamp>) -> bool {
        self.heard_within(heard, self.0.settings.pace.healthy)
    }

    fn heard_within(&self, heard: Option<Timestamp>, within: Duration) -> bool {
        heard.unwrap_or(Timestamp::MIN).max(self.ears()) >= before(self.now(), within)
    }

    /// Since when runners could be heard here: since this process began, or since the table took words last.
    fn ears(&self) -> Timestamp {
        from_millis(self.0.ears.load(Ordering::SeqCst))
    }

    /// The table does not take words now: nobody's silence counts.
    fn is_deaf(&self) {
        self.0.ears.store(self.now().as_millisecond(), Ordering::SeqCst);
    }

    /// Puts the announcement of an idle runner into its queue. If that fails the keeper does it, once it is due again.
    async fn announce(&self, runner: &Runner) {
        let class = runner.attributes.resource_class.as_deref().unwrap_or_default();
        let Some(queue) = self.0.queues.get(class) else {
            tracing::warn!(runner = runner.instance, class, "runner of unknown class not announced");
            return;
        };
        let message = Outgoing { body: runner.announcement().body().to_owned(), delay: 0 };
        if let Err(error) = queue.send(&[message]).await {
            tracing::warn!(runner = runner.instance, %error, "runner not announced; the keeper retries");
        }
    }

    /// The classes that may have a runner that fits, the smallest first.
    fn classes_for(&self, wanted: Option<&Requirements>) -> Vec<&Class> {
        self.0.settings.classes.iter().filter(|class| !class.could_fit(wanted).is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only has to compile: a server calls these from tasks of its own.
    #[allow(dead_code)]
    fn every_call_can_be_made_from_a_task(pool: &RunnerPool, holder: &Holder) {
        fn sent(_: impl Send) {}
        let holders = std::slice::from_ref(holder);
        sent(pool.claim(None, holder));
        sent(pool.claim_all(None, holders));
        sent(pool.claim_unchecked(None, holder));
        sent(pool.pick(None));
        sent(pool.stop(""));
        sent(pool.end(""));
        sent(pool.keep());
        sent(pool.fill(&[]));
        sent(pool.ask_for_fresh(None, ""));
        sent(pool.register("", false));
        sent(pool.beat("", None));
        sent(pool.await_claim("", Duration::ZERO));
        sent(pool.acknowledge("", ""));
        sent(pool.release("", ""));
        sent(pool.runners());
        sent(pool.runner_of(""));
    }
}
