//! The Docker provider. A slot is a container of one Docker Engine, with the name of its slot. Labels record its
//! installation and what it was made for. A bot's files are removed with its container, and the next bot gets a new
//! container of the same image.
//!
//! - this file: the provider
//! - [`container`]: builds and reads containers
//! - [`engine`]: the client for the engine
//! - [`credentials`]: the login at a registry

mod container;
pub(super) mod credentials;
pub mod engine;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    StopContainerOptionsBuilder,
};
use domain::SlotName;
use tokio::time::Instant;

use self::container::{Container, Recipe};
pub(super) use self::container::{made_of, recipe_of};
use self::engine::{Engine, HostSize, INSTALLATION, is_absent, provider_error, status};
use super::check::Check;
use super::{Found, HostMemory, Image, LogLine, Progress, Provider, ProviderError, Spec, Stopped};
use config::provider::DockerConfig;

/// How long processes may take to end by themselves before they are killed, in seconds.
const GRACE: i32 = 3;
/// How long a removed container may take to disappear.
const GONE_WITHIN: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A command that cannot work has usually ended by then.
const FIRST_CHECK: Duration = Duration::from_millis(100);
/// How often a container is made again when another process used the same name.
const MADE_AGAIN: usize = 3;
const GIB: u64 = 1024 * 1024 * 1024;

#[derive(Debug)]
pub struct DockerProvider {
    engine: Engine,
    recipe: Recipe,
}

impl DockerProvider {
    pub fn new(config: DockerConfig, installation: String) -> Self {
        Self { engine: Engine::new(config.host.as_deref()), recipe: Recipe { config, installation } }
    }

    /// The slot's container, if there is one and it belongs to this installation.
    async fn find(&self, slot: &SlotName) -> Result<Option<Container>, ProviderError> {
        Ok(self.inspect(slot).await?.and_then(|found| Container::read(found, &self.recipe.installation)))
    }

    /// The container with the slot's name, also one of another installation.
    async fn inspect(&self, slot: &SlotName) -> Result<Option<ContainerInspectResponse>, ProviderError> {
        match self.engine.docker().await?.inspect_container(slot.as_str(), None).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(provider_error(&error)),
        }
    }

    /// Makes a container if its name is free. `None` if the name is taken.
    async fn make(&self, spec: &Spec) -> Result<Option<String>, ProviderError> {
        let options = CreateContainerOptionsBuilder::default().name(spec.slot.as_str()).build();
        match self.engine.docker().await?.create_container(Some(options), self.recipe.body(spec)).await {
            Ok(made) => Ok(Some(made.id)),
            Err(error) if status(&error) == Some(409) => Ok(None),
            Err(error) => Err(provider_error(&error)),
        }
    }

    /// Removes a container with everything that runs in it, and waits until it has disappeared. The id names it,
    /// because there may already be another container under the slot's name.
    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        let docker = self.engine.docker().await?;
        let begun = Instant::now();
        loop {
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            match docker.remove_container(id, Some(options)).await {
                Err(error) if is_absent(&error) => return Ok(()),
                // Another process is already removing it.
                Err(error) if status(&error) != Some(409) => return Err(provider_error(&error)),
                Err(error) if begun.elapsed() > GONE_WITHIN => return Err(provider_error(&error)),
                _ => {}
            }
            match docker.inspect_container(id, None).await {
                Err(error) if is_absent(&error) => return Ok(()),
                Err(error) => return Err(provider_error(&error)),
                Ok(_) if begun.elapsed() > GONE_WITHIN => {
                    return Err(ProviderError::transient(format!("the container {id} still exists after its removal")));
                }
                Ok(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// A container for exactly this spec. It keeps a container that fits and has not run, or that runs this spec. It
    /// removes any other container under the name.
    async fn ready(&self, spec: &Spec) -> Result<Container, ProviderError> {
        let (begun, mut attempts) = (Instant::now(), 0);
        while attempts < MADE_AGAIN && begun.elapsed() < GONE_WITHIN {
            match self.find(&spec.slot).await? {
                Some(found) if self.recipe.fits(&found, spec) => return Ok(found),
                Some(other) => self.remove(&other.id).await?,
                None => {}
            }
            if let Some(id) = self.make(spec).await? {
                return Ok(Container::made(id));
            }
            match self.inspect(&spec.slot).await? {
                // Docker takes the name before it shows the container: an earlier call, which was given up, still
                // makes it.
                None => tokio::time::sleep(POLL_INTERVAL).await,
                Some(found) => {
                    if Container::read(found, &self.recipe.installation).is_none() {
                        let slot = &spec.slot;
                        let text =
                            format!("the name {slot} belongs to a container that this installation did not make");
                        return Err(ProviderError::permanent(text));
                    }
                    attempts += 1;
                }
            }
        }
        Err(ProviderError::transient(format!("other processes change the container {} at the same time", spec.slot)))
    }

    /// Checks a moment after the start that the container still runs. The error of a failed command contains its last
    /// lines.
    async fn check_started(&self, id: &str) -> Result<(), ProviderError> {
        tokio::time::sleep(FIRST_CHECK).await;
        let found =
            self.engine.docker().await?.inspect_container(id, None).await.map_err(|error| provider_error(&error))?;
        let Some(state) = found.state.filter(|state| state.running != Some(true)) else { return Ok(()) };
        match state.exit_code {
            None | Some(0) => Ok(()),
            // The container was killed, but not for its memory: an engine that stops kills all its containers.
            Some(code @ (137 | 143)) if state.oom_killed != Some(true) => Err(ProviderError::transient(format!(
                "its container was killed right after the start, with exit code {code}"
            ))),
            Some(code) => Err(ProviderError::permanent(format!(
                "its container ended right after the start, with exit code {code}"
            ))),
        }
    }

    async fn log_text(&self, container: &str) -> Result<Option<String>, ProviderError> {
        engine::last_lines(self.engine.docker().await?.logs(container, Some(engine::last_of_log()))).await
    }

    /// Whether the host has room for as many slots as the pool may have.
    async fn check_room(&self, slots: u32) -> Check {
        let HostSize { cpus, memory } = match self.engine.size().await {
            Ok(size) => size,
            Err(error) => return Check::bad("room", error.message),
        };
        let has = format!("{cpus} cpus and {:.1} GiB", memory as f64 / GIB as f64);
        let wants_too_much = self.recipe.config.cpus.is_some_and(|wanted| wanted > f64::from(cpus))
            || self.recipe.config.memory.is_some_and(|wanted| wanted > memory);
        if wants_too_much {
            return Check::bad("room", format!("the host has {has}; one slot needs more"));
        }
        match self.recipe.config.memory {
            Some(each) if each * u64::from(slots) > memory => {
                let fits = memory / each;
                let text =
                    format!("the host has {has}: memory for {fits} slots at their limit; the pool may have {slots}");
                Check::doubtful("room", text)
            }
            Some(_) => Check::good("room", format!("the host has {has}, enough for {slots} slots")),
            None => Check::good("room", format!("the host has {has}; slots have no memory limit")),
        }
    }
}

#[async_trait]
impl Provider for DockerProvider {
    fn image(&self) -> Option<Image> {
        Some(Image { name: self.recipe.config.image.clone(), host: self.engine.host.clone() })
    }

    fn recipe(&self) -> Option<String> {
        Some(recipe_of(&self.recipe.config))
    }

    async fn has_image(&self) -> Result<bool, ProviderError> {
        self.engine.has_image(&self.recipe.config.image).await
    }

    async fn pull_image(&self, progress: &Progress) -> Result<(), ProviderError> {
        self.engine.pull_image(&self.recipe.config.image, progress).await
    }

    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        if let Some(found) = self.find(&spec.slot).await? {
            return Ok(found.id);
        }
        Ok(self.ready(spec).await?.id)
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        let container = self.ready(spec).await?;
        if container.running {
            return Ok(container.id);
        }
        self.engine
            .docker()
            .await?
            .start_container(&container.id, None)
            .await
            .map_err(|error| provider_error(&error))?;
        self.check_started(&container.id).await?;
        Ok(container.id)
    }

    async fn stop(&self, slot: &SlotName, fresh: bool) -> Result<Stopped, ProviderError> {
        let Some(container) = self.find(slot).await? else { return Ok(Stopped::Seen) };
        if container.running {
            let options = StopContainerOptionsBuilder::default().t(GRACE).build();
            match self.engine.docker().await?.stop_container(&container.id, Some(options)).await {
                Ok(()) => {}
                Err(error) if is_absent(&error) || status(&error) == Some(304) => {}
                Err(error) => return Err(provider_error(&error)),
            }
        }
        // A container that was never started is clean. But if it was made for a bot, a start may still be in progress.
        if container.is_for_a_bot() || (fresh && !container.is_new) {
            self.remove(&container.id).await?;
            // The slot keeps a container without a bot's data. If this fails, the next start makes one.
            if let Err(error) = self.make(&container.spec(slot)).await {
                tracing::warn!(%slot, error = error.message, "container not recreated");
            }
        }
        Ok(Stopped::Reported)
    }

    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        match self.find(slot).await? {
            Some(container) => self.remove(&container.id).await,
            None => Ok(()),
        }
    }

    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        let label = format!("{INSTALLATION}={}", self.recipe.installation);
        let filters = HashMap::from([("label".to_owned(), vec![label])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listed =
            self.engine.docker().await?.list_containers(Some(options)).await.map_err(|error| provider_error(&error))?;
        let mut found: Vec<Found> = listed.into_iter().filter_map(container::listed).collect();
        found.sort_by(|left, right| left.slot.cmp(&right.slot));
        Ok(found)
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        Ok(self.find(slot).await?.map(|container| container.found(slot)))
    }

    async fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        match self.find(slot).await? {
            Some(container) => self.log_text(&container.id).await,
            None => Ok(None),
        }
    }

    async fn log(&self, slot: &SlotName) -> Result<Vec<LogLine>, ProviderError> {
        let Some(container) = self.find(slot).await? else { return Ok(Vec::new()) };
        engine::timed_lines(self.engine.docker().await?.logs(&container.id, Some(engine::whole_log()))).await
    }

    async fn ping(&self) -> Result<(), ProviderError> {
        self.engine.ping().await
    }

    async fn check(&self, slots: u32) -> Vec<Check> {
        let mut checks = self.engine.check(&self.recipe.config.image).await;
        if checks.iter().any(|check| check.what == "image") {
            checks.push(self.check_room(slots).await);
        }
        checks
    }

    async fn host_memory(&self) -> Result<Option<HostMemory>, ProviderError> {
        Ok(Some(HostMemory::Total(self.engine.size().await?.memory)))
    }
}
