//! What makes, starts, stops and deletes slots. Each call can be made twice without harm, by the slot's name and
//! generation, and its errors say whether trying again may help and keep the provider's own words.
//!
//! - this file: the interface
//! - [`check`]: what a provider says of itself when it is examined
//! - [`process`]: each slot a child process on this machine
//! - [`docker`]: each slot a container of one Docker Engine
//! - [`swarm`]: each slot a service of a swarm, with one replica or none
//! - [`nomad`]: each slot a job of Nomad, with one allocation or none
//! - [`coolify`]: each slot an application of Coolify
//! - [`ec2`]: each slot a place for a runner on EC2
//! - [`last`]: as much of a log as is worth keeping
//! - [`fingerprint`]: what stands for the recipe by which something was made
//! - [`message`]: how errors are told
//! - [`budget`]: the requests that a provider takes in a minute, shared by all replicas

pub mod budget;
pub mod check;
pub mod coolify;
pub mod docker;
pub mod ec2;
mod error_text;
mod fingerprint;
mod last;
pub mod nomad;
pub mod process;
pub mod swarm;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Requirements, SlotName};
use tokio::time::Instant;

use check::Check;

pub use crate::store::{Image, LogLine, Pulled};
pub(crate) use error_text::with_causes;

/// What is to run in a slot.
#[derive(Clone)]
pub struct Spec {
    pub slot: SlotName,
    pub generation: i64,
    /// The connection that it is started for; a slot that runs under the same one is left running.
    pub connection: Option<String>,
    /// Set in the environment of what runs.
    pub environment: BTreeMap<String, String>,
    /// Whether what an earlier bot left is removed before the start.
    pub fresh: bool,
    /// What its bot asks of it.
    pub requirements: Option<Requirements>,
}

/// The environment has tokens in it, so only its names are shown.
impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { slot, generation, connection, environment, fresh, requirements } = self;
        let names: Vec<_> = environment.keys().collect();
        let mut spec = f.debug_struct("Spec");
        spec.field("slot", slot).field("generation", generation).field("connection", connection);
        spec.field("environment", &names).field("fresh", fresh).field("requirements", requirements).finish()
    }
}

/// What a provider has under the name of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub slot: SlotName,
    /// Whether something runs in it.
    pub running: bool,
    /// Whether the provider says that what runs is not well.
    pub unwell: bool,
    /// How it is, in the provider's own words.
    pub state: String,
    /// What a person is shown of it, where the provider can say.
    pub description: Option<String>,
}

impl Found {
    pub fn new(slot: SlotName, running: bool, state: impl Into<String>) -> Self {
        Self { slot, running, unwell: false, state: state.into(), description: None }
    }

    /// Whether something runs in it, and is not known to be unwell.
    pub fn is_well(&self) -> bool {
        self.running && !self.unwell
    }
}

/// That a slot was stopped, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Somebody says so: it is looked at before it is believed.
    Reported,
    /// The provider has looked itself, and there is nothing any more.
    Seen,
}

/// How far a pull has come, for whoever looks.
#[derive(Debug)]
pub struct Progress(Mutex<Step>);

/// The last step of a pull.
#[derive(Debug)]
struct Step {
    pulled: Pulled,
    /// What the provider said last.
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

    /// Keeps what the provider says. The same words again are no progress.
    pub fn say(&self, message: String) {
        let mut step = self.step();
        if step.message.as_ref() != Some(&message) {
            (step.message, step.changed_at) = (Some(message), Instant::now());
        }
    }

    pub fn get(&self) -> Pulled {
        self.step().pulled
    }

    /// Waits until nothing has changed for so long, and says what was said last.
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
    /// The provider's own words.
    pub message: String,
    /// Whether trying again may help.
    pub retryable: bool,
    /// Whether there is no room for a bot of these requirements now: it waits in the queue, not at the gate.
    pub lacks_capacity: bool,
    /// Whether the provider could not be reached at all: this says nothing about the slot.
    pub is_unavailable: bool,
}

impl ProviderError {
    /// Too many requests, a timeout, an error of the provider's own.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { message: without_nul(message.into()), retryable: true, lacks_capacity: false, is_unavailable: false }
    }

    /// The provider cannot be reached: nobody listens, the connection broke, or a proxy says that it is down.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { is_unavailable: true, ..Self::transient(message) }
    }

    /// All that would do is taken, and there can be no more of it.
    pub fn no_capacity(message: impl Into<String>) -> Self {
        Self { lacks_capacity: true, ..Self::transient(message) }
    }

    /// What stays wrong however often it is tried, such as a bad image name.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { retryable: false, ..Self::transient(message) }
    }
}

/// Words as they can be kept: no database takes a NUL in a text.
fn without_nul(message: String) -> String {
    if message.contains('\0') { message.replace('\0', " ") } else { message }
}

#[async_trait]
pub trait Provider: Send + Sync + std::fmt::Debug {
    /// The image that its slots run and the host that it must be on, where there is such a thing.
    fn image(&self) -> Option<Image> {
        None
    }

    /// Whether the image is on the host.
    async fn has_image(&self) -> Result<bool, ProviderError> {
        Ok(true)
    }

    /// Brings the image to the host, and tells how far it has come. Called by one at a time.
    async fn pull_image(&self, _progress: &Progress) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Whether a slot's environment stays as it was when the slot was made. Then it has neither a bot's data nor a token
    /// that ends with the slot's generation in it, and its agent fetches its bot.
    fn keeps_environment(&self) -> bool {
        false
    }

    /// Whether a slot is something at the provider while it has no bot. Otherwise that there is nothing of it is as it
    /// should be.
    fn makes_ahead(&self) -> bool {
        true
    }

    /// Whether the provider itself starts again what has ended. Then a bot whose slot does not run may go on elsewhere.
    fn restarts_slots(&self) -> bool {
        false
    }

    /// What stands for the image, the command and all else of the configuration that its slots are started with. One that was
    /// started with another is replaced while it is idle.
    fn recipe(&self) -> Option<String> {
        None
    }

    /// Makes the slot, so that a start finds it; what is there already is left as it is. Nothing runs in it yet. Answers
    /// with the provider's own name for it.
    async fn create(&self, spec: &Spec) -> Result<String, ProviderError>;

    /// Makes the slot run, and makes it first if it is not there. Answers with the provider's own name for it.
    async fn start(&self, spec: &Spec) -> Result<String, ProviderError>;

    /// Ends everything that runs in the slot. With `fresh`, what it left is removed.
    async fn stop(&self, slot: &SlotName, fresh: bool) -> Result<Stopped, ProviderError>;

    /// Ends everything that runs in the slot and removes the slot itself.
    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError>;

    /// Everything that the provider has of this installation, in whatever pool, and nothing of anyone else's. An error is
    /// never an empty list.
    async fn list(&self) -> Result<Vec<Found>, ProviderError>;

    /// What the provider has under this name now; `None` when there is nothing for certain.
    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError>;

    /// The last lines that what runs or ran in the slot has written, where the provider has them.
    async fn last_lines(&self, _slot: &SlotName) -> Result<Option<String>, ProviderError> {
        Ok(None)
    }

    /// What was printed in the slot since it was started last, as much of it as the provider has, with times where it
    /// knows them. It may hold lines of earlier bots where a slot serves several.
    async fn log(&self, slot: &SlotName) -> Result<Vec<LogLine>, ProviderError> {
        Ok(self.last_lines(slot).await?.map(|text| last::untimed(&text)).unwrap_or_default())
    }

    /// Answers when the provider can be asked for something.
    async fn ping(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Examines the provider for a person: whether it is there and takes us, whether the image is there, whether there is
    /// room for so many slots.
    async fn check(&self, _slots: u32) -> Vec<Check> {
        vec![Check::of("reachable", self.ping().await.map(|()| "it answers".to_owned()))]
    }

    /// Shows a person what the slot is doing, where the provider can. Best effort.
    async fn describe(&self, _slot: &SlotName, _description: &str) {}
}

/// The provider of each pool, by the pool's name.
pub type Providers = Arc<BTreeMap<String, Arc<dyn Provider>>>;
