//! The runner pool on AWS. Idle runners are messages in one queue for each class, claims are conditional updates of a
//! table, and Auto Scaling groups provide fresh capacity. The crate does not know bots or databases; here a slot is
//! only a name.
//!
//! The table decides, and the queues are only a cache of it. If a message or a process is lost, the keeper announces an
//! idle runner again before its announcement expires. An older announcement can no longer claim the runner.
//!
//! In reading order:
//! - [`settings`]: the settings of a pool
//! - `message`, `queue`, `pickup`: announcements, and the search for one that fits
//! - `item`, `table`: runners and slots as they are stored, and the condition of every change
//! - `claim`, `claim_all`: from an announcement to a runner that runs the slot
//! - `agent`, `watch`: the calls of a runner's agent, and its wait for a claim
//! - `stop`: the end of a slot's run, and of a runner
//! - `groups`, `fresh_capacity`: machines, and fresh capacity
//! - `plan`, `init`, `policy`: the required resources and permissions
//! - `survey`: which of the resources exist
//! - `keeper`: one pass of the keeper
//! - `fill`, `remove`: set up and delete a pool for measurements
//! - `clients`, `clock`, `error`, `signals`, `steps`: shared parts

mod agent;
mod claim;
mod claim_all;
mod clients;
mod clock;
mod error;
mod fill;
mod fresh_capacity;
mod groups;
mod init;
mod item;
mod keeper;
mod message;
mod pickup;
mod plan;
mod policy;
mod queue;
mod remove;
pub mod settings;
mod signals;
mod steps;
mod stop;
mod survey;
mod table;
mod watch;

// The shared test code refers to this crate by name.
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

pub use agent::{HeartbeatReply, RegisterError, Run, Unready};
pub use clock::Clock;
pub use error::AwsError;
pub use fresh_capacity::Fresh;
pub use init::{Kind, Made, Outcome, Thing, init};
pub use item::{Runner, RunnerState};
pub use keeper::KeeperStats;
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

/// A slot that needs a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The slot name, without the installation.
    pub slot: String,
    /// The assignment of the run.
    pub connection: Option<String>,
}

/// The runners of a pool, as one process sees them. A clone shares the same state.
#[derive(Clone, Debug)]
pub struct RunnerPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Arc<Settings>,
    table: Table,
    groups: Groups,
    /// By class name.
    queues: HashMap<String, Arc<Queue>>,
    managers: HashMap<String, Arc<Manager>>,
    signals: Signals,
    watch: Watch,
    /// Since when this process can receive heartbeats, in milliseconds. A runner's silence before that time does not
    /// count.
    listening_since: AtomicI64,
    clock: Clock,
    steps: Arc<Steps>,
}

impl RunnerPool {
    /// Uses the credentials of the machine. Does not call AWS yet.
    pub async fn connect(settings: Settings) -> Self {
        Self::with_clock(settings, Clock::default()).await
    }

    /// Like `connect`, with another clock, for tests.
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
            listening_since: AtomicI64::new(clock.now().as_millisecond()),
            clock,
            steps,
        }))
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Checks that the table exists.
    pub async fn ping(&self) -> Result<(), AwsError> {
        self.0.table.describe().await
    }

    /// The runner of a slot.
    pub async fn runner_of(&self, slot: &str) -> Result<Option<Runner>, AwsError> {
        let key = self.slot_key(slot);
        let Some(held) = self.0.table.slot(&key).await? else { return Ok(None) };
        let runner = self.0.table.runner(&held.runner).await?;
        // A terminated runner keeps its slot until its machine is known to end.
        let has_it = |runner: &Runner| runner.is_for(&held.run_id) && runner.state != RunnerState::Terminated;
        Ok(runner.filter(has_it))
    }

    /// A runner as it is now, also if it is terminated.
    pub async fn runner(&self, instance: &str) -> Result<Option<Runner>, AwsError> {
        self.0.table.runner(instance).await
    }

    /// All runners that are not terminated, of every installation. Very recent changes may be missing.
    pub async fn runners(&self) -> Result<Vec<Runner>, AwsError> {
        let mut all = Vec::new();
        for state in RunnerState::ALL.into_iter().filter(|state| *state != RunnerState::Terminated) {
            all.extend(self.0.table.runners(state).await?);
        }
        // The index lags, so a runner that changes state between two queries may be in both. The latest entry wins.
        all.sort_by(|one, other| (&one.instance, other.since).cmp(&(&other.instance, one.since)));
        all.dedup_by(|one, other| one.instance == other.instance);
        Ok(all)
    }

    /// The time of a runner's last heartbeat.
    pub async fn last_heartbeat(&self, instance: &str) -> Result<Option<Timestamp>, AwsError> {
        self.0.table.last_heartbeat(instance).await
    }

    /// How many announcements this process has examined.
    pub fn examined(&self) -> u64 {
        self.0.managers.values().map(|manager| manager.examined()).sum()
    }

    /// Makes this process pause at a step, as if it was killed there. `None` lets it continue.
    #[doc(hidden)]
    pub fn pause_at(&self, step: Option<Step>) {
        self.0.steps.pause_at(step);
    }

    /// How many calls pause at a step.
    #[doc(hidden)]
    pub fn paused(&self) -> usize {
        self.0.steps.paused()
    }

    fn slot_key(&self, slot: &str) -> String {
        format!("{}/{slot}", self.0.settings.installation)
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// The expiry of an announcement that is made now.
    fn new_expiry(&self) -> Timestamp {
        after(self.now(), self.0.settings.pace.announcement)
    }

    /// Whether a runner with this last heartbeat is healthy. Time in which this process could not receive heartbeats
    /// does not count.
    fn is_healthy(&self, last_heartbeat: Option<Timestamp>) -> bool {
        self.has_heartbeat_within(last_heartbeat, self.0.settings.pace.healthy)
    }

    fn has_heartbeat_within(&self, last_heartbeat: Option<Timestamp>, within: Duration) -> bool {
        last_heartbeat.unwrap_or(Timestamp::MIN).max(self.listening_since()) >= before(self.now(), within)
    }

    /// Since when heartbeats can arrive: since the start of this process, or since the table last failed.
    fn listening_since(&self) -> Timestamp {
        from_millis(self.0.listening_since.load(Ordering::SeqCst))
    }

    /// The table fails now, so heartbeats cannot be stored. From here the silence of runners counts anew.
    fn reset_listening(&self) {
        self.0.listening_since.store(self.now().as_millisecond(), Ordering::SeqCst);
    }

    /// Puts the announcement of an idle runner into its queue. If that fails, the keeper announces the runner when it
    /// is due.
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

    /// The classes that may have a fitting runner, smallest first.
    fn classes_for(&self, wanted: Option<&Requirements>) -> Vec<&Class> {
        self.0.settings.classes.iter().filter(|class| !class.could_fit(wanted).is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only has to compile: the server calls these functions from spawned tasks.
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
        sent(pool.run_keeper());
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
