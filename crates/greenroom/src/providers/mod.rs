//! What makes, starts, stops and deletes slots. Each call can be made twice without harm, by the slot's name and
//! generation, and its errors say whether trying again may help and keep the provider's own words.
//!
//! - this file: the interface
//! - [`process`]: each slot a child process on this machine

pub mod process;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SlotName;

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
}

/// The environment has tokens in it, so only its names are shown.
impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { slot, generation, connection, environment, fresh } = self;
        let names: Vec<_> = environment.keys().collect();
        let mut spec = f.debug_struct("Spec");
        spec.field("slot", slot).field("generation", generation).field("connection", connection);
        spec.field("environment", &names).field("fresh", fresh).finish()
    }
}

/// What a provider has under the name of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub slot: SlotName,
    /// Whether something runs in it.
    pub running: bool,
}

/// That a slot was stopped, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Somebody says so: it is looked at before it is believed.
    Told,
    /// The provider has looked itself, and there is nothing any more.
    Seen,
}

/// An image on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    pub host: String,
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{words}")]
pub struct ProviderError {
    /// The provider's own words.
    pub words: String,
    /// Whether trying again may help.
    pub may_help: bool,
}

impl ProviderError {
    /// A refused connection, too many requests, an error of the provider's own.
    pub fn again(words: impl Into<String>) -> Self {
        Self { words: told(words.into()), may_help: true }
    }

    /// What stays wrong however often it is tried, such as a bad image name.
    pub fn never(words: impl Into<String>) -> Self {
        Self { words: told(words.into()), may_help: false }
    }
}

/// Words as they can be kept: no database takes a NUL in a text.
fn told(words: String) -> String {
    if words.contains('\0') { words.replace('\0', " ") } else { words }
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

    /// Brings the image to the host. Called by one at a time.
    async fn pull_image(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Makes the slot run. Answers with the provider's own name for it.
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

    /// Answers when the provider can be asked for something.
    async fn ping(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Shows a person what the slot is doing, where the provider can. Best effort.
    async fn describe(&self, _slot: &SlotName, _description: &str) {}
}

/// The provider of each pool, by the pool's name.
pub type Providers = Arc<BTreeMap<String, Arc<dyn Provider>>>;
