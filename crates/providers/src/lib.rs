//! The interface of providers, which make, start, stop and delete slots. Each call is safe to repeat, because it names
//! the slot and its generation. Each error has the provider's own text, and says whether a retry may help.
//!
//! - this file: the interface
//! - [`check`]: the results of a provider's checks
//! - [`process`]: each slot is a child process on this machine
//! - [`docker`]: each slot is a container of one Docker Engine
//! - [`swarm`]: each slot is a service of a swarm, with one replica or none
//! - [`nomad`]: each slot is a job of Nomad, with one allocation or none
//! - [`coolify`]: each slot is an application of Coolify
//! - [`ec2`]: each slot is a place for a runner on EC2
//! - [`log_tail`]: keeps the last part of a log
//! - [`fingerprint`]: identifies the recipe of a slot
//! - [`error_text`]: writes errors as text for operators
//! - [`measured`]: measures the calls of any provider
//! - [`budget`]: limits the requests to a provider, for all replicas together

pub mod budget;
pub mod check;
pub mod coolify;
pub mod docker;
pub mod ec2;
mod error_text;
mod fingerprint;
mod log_tail;
pub mod measured;
pub mod nomad;
pub mod process;
pub mod swarm;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Requirements, SlotName};
use tokio::time::Instant;

use budget::Budget;
use check::Check;
use config::stored_provider::StoredProvider;

pub use error_text::with_causes;
pub use store::{Image, LogLine, Pulled};

/// The slot that a provider makes or starts, and what runs in it.
#[derive(Clone)]
pub struct Spec {
    pub slot: SlotName,
    pub generation: i64,
    /// The connection that it is started for. A slot that already runs for the same connection is left running.
    pub connection: Option<String>,
    /// The environment of the slot's command.
    pub environment: BTreeMap<String, String>,
    /// Whether the files of an earlier bot are removed before the start.
    pub fresh: bool,
    /// The requirements of the bot.
    pub requirements: Option<Requirements>,
}

/// The environment contains tokens, so only the names of its variables are shown.
impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { slot, generation, connection, environment, fresh, requirements } = self;
        let names: Vec<_> = environment.keys().collect();
        let mut spec = f.debug_struct("Spec");
        spec.field("slot", slot).field("generation", generation).field("connection", connection);
        spec.field("environment", &names).field("fresh", fresh).field("requirements", requirements).finish()
    }
}

/// The provider's object for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub slot: SlotName,
    /// Whether a process runs in it.
    pub running: bool,
    /// Whether the provider reports that it is not well.
    pub unhealthy: bool,
    /// Its state, in the provider's own words.
    pub state: String,
    /// The description for people, if the provider stores one.
    pub description: Option<String>,
}

impl Found {
    pub fn new(slot: SlotName, running: bool, state: impl Into<String>) -> Self {
        Self { slot, running, unhealthy: false, state: state.into(), description: None }
    }

    /// Whether a process runs in it and the provider does not report it as unhealthy.
    pub fn is_healthy(&self) -> bool {
        self.running && !self.unhealthy
    }
}

/// The result of a stop, and how certain it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The provider's system reports the end. The server inspects the slot before it relies on this.
    Reported,
    /// The provider has checked that nothing runs any more.
    Seen,
}

/// The progress of a pull, for any number of readers.
#[derive(Debug)]
pub struct Progress(Mutex<Step>);

/// The last step of a pull.
#[derive(Debug)]
struct Step {
    pulled: Pulled,
    /// The provider's last message.
    message: Option<String>,
    changed_at: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self(Mutex::new(Step { pulled: Pulled::default(), message: None, changed_at: Instant::now() }))
    }
}

impl Progress {
    pub fn set(&self, pulled: Pulled) {
        let mut step = self.step();
        if step.pulled != pulled {
            (step.pulled, step.changed_at) = (pulled, Instant::now());
        }
    }

    /// Stores the provider's message. The same message again does not count as progress.
    pub fn report(&self, message: String) {
        let mut step = self.step();
        if step.message.as_ref() != Some(&message) {
            (step.message, step.changed_at) = (Some(message), Instant::now());
        }
    }

    pub fn get(&self) -> Pulled {
        self.step().pulled
    }

    /// Waits until the progress has not changed for this time, and returns the last message.
    pub async fn stalled(&self, stall: Duration) -> Option<String> {
        loop {
            let changed_at = self.step().changed_at;
            tokio::time::sleep_until(changed_at + stall).await;
            let step = self.step();
            if step.changed_at == changed_at {
                return step.message.clone();
            }
        }
    }

    fn step(&self) -> MutexGuard<'_, Step> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// The provider's own error text.
    pub message: String,
    /// Whether a retry may help.
    pub retryable: bool,
    /// Whether there is no capacity for a bot with these requirements now. The bot then waits in the queue, not at the
    /// gate.
    pub lacks_capacity: bool,
    /// Whether the provider could not be reached at all. Such an error says nothing about the slot.
    pub is_unavailable: bool,
}

impl ProviderError {
    /// Too many requests, a timeout, or an internal error of the provider.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { message: without_nul(message.into()), retryable: true, lacks_capacity: false, is_unavailable: false }
    }

    /// The provider cannot be reached: the connection was refused or broke, or a proxy reports that the provider is
    /// down.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { is_unavailable: true, ..Self::transient(message) }
    }

    /// All suitable capacity is in use, and no more can be added.
    pub fn no_capacity(message: impl Into<String>) -> Self {
        Self { lacks_capacity: true, ..Self::transient(message) }
    }

    /// An error that a retry cannot fix, such as a bad image name.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { retryable: false, ..Self::transient(message) }
    }
}

/// The text without NUL, which no database accepts in a text.
fn without_nul(message: String) -> String {
    if message.contains('\0') { message.replace('\0', " ") } else { message }
}

/// The memory of the hosts of a provider, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMemory {
    /// The free memory. Running slots already have their part.
    Free(u64),
    /// What the hosts have for everything that runs on them.
    Total(u64),
}

#[async_trait]
pub trait Provider: Send + Sync + std::fmt::Debug {
    /// The image of the slots and the host that needs it, if the provider uses images.
    fn image(&self) -> Option<Image> {
        None
    }

    /// Whether the image is on the host.
    async fn has_image(&self) -> Result<bool, ProviderError> {
        Ok(true)
    }

    /// Pulls the image to the host and reports the progress. Only one caller at a time calls it.
    async fn pull_image(&self, _progress: &Progress) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Whether a slot keeps the environment that it was made with. Its environment then contains neither a bot's data
    /// nor a token that ends with the slot's generation, and its agent fetches its bot.
    fn keeps_environment(&self) -> bool {
        false
    }

    /// Whether a slot exists at the provider while it has no bot. If false, a missing slot is normal.
    fn keeps_idle_resources(&self) -> bool {
        true
    }

    /// Whether the provider itself restarts a slot that has ended. Then a bot whose slot does not run may continue
    /// elsewhere.
    fn restarts_slots(&self) -> bool {
        false
    }

    /// Identifies the image, the command and all other settings that slots are started with. A slot with another recipe
    /// is replaced while it is idle.
    fn recipe(&self) -> Option<String> {
        None
    }

    /// Makes the slot, so that a start finds it. It changes nothing if the slot exists, and starts nothing. Returns the
    /// provider's own name for the slot.
    async fn create(&self, spec: &Spec) -> Result<String, ProviderError>;

    /// Starts the slot, and makes it first if it does not exist. Returns the provider's own name for it.
    async fn start(&self, spec: &Spec) -> Result<String, ProviderError>;

    /// Ends everything that runs in the slot. With `fresh`, it also removes the bot's files.
    async fn stop(&self, slot: &SlotName, fresh: bool) -> Result<Stopped, ProviderError>;

    /// Ends everything that runs in the slot and removes the slot itself.
    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError>;

    /// All slots of this installation at the provider, in every pool, and nothing of other owners. If the list cannot
    /// be read completely, this is an error, never an empty list.
    async fn list(&self) -> Result<Vec<Found>, ProviderError>;

    /// The slot's current state at the provider. `None` only if the slot certainly does not exist.
    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError>;

    /// The last lines of output of the slot's current or last run, if the provider has them.
    async fn last_lines(&self, _slot: &SlotName) -> Result<Option<String>, ProviderError> {
        Ok(None)
    }

    /// The output of the slot since its last start, as far as the provider has it, with timestamps if it knows them. It
    /// may contain lines of earlier bots if a slot serves several.
    async fn log(&self, slot: &SlotName) -> Result<Vec<LogLine>, ProviderError> {
        Ok(self.last_lines(slot).await?.map(|text| log_tail::untimed(&text)).unwrap_or_default())
    }

    /// Checks that the provider answers requests.
    async fn ping(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Checks the provider for the operator: the connection and the credentials, the image, and room for this number of
    /// slots.
    async fn check(&self, _slots: u32) -> Vec<Check> {
        vec![Check::of("reachable", self.ping().await.map(|()| "the provider answers".to_owned()))]
    }

    /// The memory of the hosts that run the slots. `None` if the provider cannot tell.
    async fn host_memory(&self) -> Result<Option<HostMemory>, ProviderError> {
        Ok(None)
    }

    /// The budgets of requests that the provider works with.
    fn budgets(&self) -> Vec<Budget> {
        Vec::new()
    }

    /// Shows a person the activity of the slot, if the provider can. Errors are ignored.
    async fn describe(&self, _slot: &SlotName, _description: &str) {}
}

/// The image of a pool's slots, from the stored settings of its provider. `None` if the provider uses no images.
pub fn configured_image(settings: &str) -> Option<String> {
    serde_json::from_str::<StoredProvider>(settings).ok()?.image()
}

/// The provider of each pool, by the pool's name.
pub type Providers = Arc<BTreeMap<String, Arc<dyn Provider>>>;
