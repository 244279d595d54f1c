//! The Swarm provider. A slot is a service of a swarm with one replica or none. Swarm chooses the node, and chooses
//! another one when that node dies. A service has the name of its slot and stays when its bot ends. Each run is a new
//! task in a new container, so no files of an earlier bot remain.
//!
//! - this file: the provider
//! - [`service`]: builds and reads services
//! - [`tasks`]: the tasks of a service and their nodes

mod service;
mod tasks;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::{Node, NodeSpecAvailabilityEnum, NodeState, ResourceObject};
use bollard::query_parameters::{
    InspectServiceOptions, ListNodesOptions, ListServicesOptionsBuilder, UpdateServiceOptionsBuilder,
};
use domain::{Backoff, SlotName};
use tokio::time::Instant;

use self::service::{Recipe, Service};
use self::tasks::{Run, Tasks};
use super::check::Check;
use super::docker::engine::{self, Engine, INSTALLATION, is_absent, provider_error, status};
use super::docker::{credentials, recipe_of};
use super::{Found, HostMemory, LogLine, Provider, ProviderError, Spec, Stopped};
use config::provider::DockerConfig;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After this time the provider reports a task that no node takes. The task is then requested again.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
const SECOND_CHECK: Duration = Duration::from_millis(300);
/// How long tasks may take to end: longer than their grace period, on a slow node.
const ENDED_WITHIN: Duration = Duration::from_secs(60);
/// How often a change is made again when another process changed the service at the same time.
const CHANGED_AGAIN: usize = 10;
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

#[derive(Debug)]
pub struct SwarmProvider {
    engine: Engine,
    recipe: Recipe,
    /// The last lines of failed starts, until they are read.
    last_lines: Mutex<HashMap<SlotName, String>>,
}

impl SwarmProvider {
    pub fn new(config: DockerConfig, installation: String) -> Self {
        let engine = Engine::new(config.host.as_deref());
        Self { engine, recipe: Recipe { config, installation }, last_lines: Mutex::default() }
    }

    /// The slot's service, if there is one and it belongs to this installation.
    async fn find(&self, slot: &SlotName) -> Result<Option<Service>, ProviderError> {
        match self.engine.docker().await?.inspect_service(slot.as_str(), None::<InspectServiceOptions>).await {
            Ok(found) => Ok(Service::read(found, &self.recipe.installation)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(provider_error(&error)),
        }
    }

    /// Makes a service if its name is free. False if the name is taken.
    async fn make(&self, spec: &Spec, replicas: i64) -> Result<bool, ProviderError> {
        let credentials = credentials::of(&self.recipe.config.image).await.credentials;
        let made = self.engine.docker().await?.create_service(self.recipe.body(spec, replicas), credentials).await;
        match made {
            Ok(_) => Ok(true),
            Err(error) if status(&error) == Some(409) => Ok(false),
            Err(error) => Err(provider_error(&error)),
        }
    }

    /// Changes a service if it has not changed since it was read. False if it has.
    async fn change(&self, service: &Service, body: bollard::models::ServiceSpec) -> Result<bool, ProviderError> {
        let options = UpdateServiceOptionsBuilder::default().version(service.version).build();
        let credentials = credentials::of(&self.recipe.config.image).await.credentials;
        match self.engine.docker().await?.update_service(&service.id, body, options, credentials).await {
            Ok(_) => Ok(true),
            Err(error) if provider_error(&error).message.contains("out of sequence") => Ok(false),
            Err(error) => Err(provider_error(&error)),
        }
    }

    /// Brings the slot's service to the wanted state. Makes the service if there is none.
    async fn put(&self, spec: &Spec, replicas: i64) -> Result<Service, ProviderError> {
        for _ in 0..CHANGED_AGAIN {
            match self.find(&spec.slot).await? {
                Some(service) if self.recipe.is_for(&service, spec) && service.replicas == replicas => {
                    return Ok(service);
                }
                Some(service) => {
                    let body = self.recipe.body(spec, replicas);
                    self.change(&service, service.described(body)).await?;
                }
                None if self.make(spec, replicas).await? => {}
                None if self.find(&spec.slot).await?.is_none() => {
                    let text =
                        format!("the name {} belongs to a service that this installation did not make", spec.slot);
                    return Err(ProviderError::permanent(text));
                }
                None => {}
            }
        }
        Err(others_at(&spec.slot))
    }

    /// Sets the service to no replicas. `None` if there is no such service.
    async fn scale_to_zero(&self, slot: &SlotName) -> Result<Option<Service>, ProviderError> {
        for _ in 0..CHANGED_AGAIN {
            let Some(service) = self.find(slot).await? else { return Ok(None) };
            // A service without replicas is changed too: a concurrent change that another process has prepared then
            // fails.
            if !self.change(&service, service.without_replicas()).await? {
                continue;
            }
            // Swarm keeps the previous version of a service. Only a second change removes the bot's data from it.
            if !service.has_secrets() {
                return Ok(Some(service));
            }
        }
        Err(others_at(slot))
    }

    /// The tasks of a service. A task on a node that is down counts as ended, because Swarm replaces it.
    async fn tasks(&self, service_id: &str) -> Result<Tasks, ProviderError> {
        let docker = self.engine.docker().await?;
        let tasks = match tasks::list(docker, service_id).await {
            Ok(tasks) => tasks,
            // Another process has removed the service.
            Err(error) if is_absent(&error) => return Ok(Tasks::default()),
            Err(error) => return Err(provider_error(&error)),
        };
        if tasks.have_ended() {
            return Ok(tasks);
        }
        let nodes = docker.list_nodes(None::<ListNodesOptions>).await.map_err(|error| provider_error(&error))?;
        let down = nodes.into_iter().filter(|node| state_of(node) == Some(NodeState::DOWN)).filter_map(|node| node.id);
        Ok(tasks.without(&down.collect()))
    }

    /// Waits until no task of a service runs.
    async fn ended(&self, service_id: &str) -> Result<(), ProviderError> {
        let (begun, mut backoff) = (Instant::now(), Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        loop {
            let tasks = self.tasks(service_id).await?;
            if tasks.have_ended() {
                return Ok(());
            }
            if begun.elapsed() > ENDED_WITHIN {
                return Err(ProviderError::transient(format!("its task does not end: {}", tasks.shown())));
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Waits until the requested task runs, or has run.
    async fn runs(&self, service: &Service) -> Result<(), ProviderError> {
        let (begun, mut seen_running) = (Instant::now(), false);
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let tasks = self.tasks(&service.id).await?;
            match tasks.of(&service.attempt) {
                Run::Over => return Ok(()),
                Run::Running if seen_running => return Ok(()),
                Run::Running => {
                    // A command that cannot work has usually ended by then.
                    seen_running = true;
                    tokio::time::sleep(SECOND_CHECK).await;
                }
                Run::Failed(said) => return Err(failure(&said)),
                Run::Waiting(Some(said)) if begun.elapsed() > TAKEN_WITHIN => {
                    return Err(ProviderError::transient(format!("no node has accepted its task: {said}")));
                }
                Run::Waiting(_) => tokio::time::sleep(backoff.next_delay()).await,
            }
        }
    }

    /// Ends a task that could not be started, so that Swarm does not start it later, when it is no longer wanted. Swarm
    /// deletes the task's last lines with it, so this provider keeps them until they are read.
    async fn take_back(&self, slot: &SlotName, service: &Service, error: ProviderError) -> ProviderError {
        match self.log_text(&service.id).await {
            Ok(Some(lines)) => drop(self.last_lines().insert(slot.clone(), lines)),
            Ok(None) => {}
            Err(error) => tracing::debug!(%slot, error = error.message, "slot log not read"),
        }
        let is_own = |found: &Service| found.attempt == service.attempt;
        let scaled = match self.find(slot).await {
            Ok(Some(found)) if is_own(&found) => self.scale_to_zero(slot).await.map(drop),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = scaled {
            tracing::warn!(%slot, error = error.message, "failed start not rolled back; recovery retries");
        }
        error
    }

    /// The last lines of the newest task of a service.
    async fn log_text(&self, service_id: &str) -> Result<Option<String>, ProviderError> {
        let docker = self.engine.docker().await?;
        let tasks = tasks::list(docker, service_id).await.map_err(|error| provider_error(&error))?;
        let Some(task) = tasks.newest_that_ran() else { return Ok(None) };
        engine::last_lines(docker.task_logs(task, Some(engine::last_of_log()))).await
    }

    fn last_lines(&self) -> MutexGuard<'_, HashMap<SlotName, String>> {
        self.last_lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn nodes(&self) -> Result<Vec<Node>, ProviderError> {
        self.engine.docker().await?.list_nodes(None::<ListNodesOptions>).await.map_err(|error| provider_error(&error))
    }

    /// Whether the nodes have room for as many slots as the pool may have.
    async fn check_nodes(&self, slots: u32) -> Vec<Check> {
        let nodes = match self.nodes().await {
            Ok(nodes) => nodes,
            Err(error) => return vec![Check::bad("manager", error.message)],
        };
        let all = nodes.len();
        let ready: Vec<&Node> = nodes.iter().filter(|node| takes_tasks(node)).collect();
        let found = format!("{} of {all} nodes are ready", ready.len());
        let nodes = match ready.len() {
            0 => Check::bad("nodes", found),
            count if count < all => Check::doubtful("nodes", found),
            _ => Check::good("nodes", found),
        };
        let has: Vec<(f64, f64)> = ready
            .iter()
            .filter_map(|node| resources_of(node))
            .map(|has| (has.nano_cpus.unwrap_or_default() as f64 / 1e9, has.memory_bytes.unwrap_or_default() as f64))
            .collect();
        vec![nodes, self.check_room(&has, slots)]
    }

    /// Whether nodes with these CPUs and this memory have room for this number of slots.
    fn check_room(&self, nodes: &[(f64, f64)], slots: u32) -> Check {
        let DockerConfig { cpus, memory, .. } = &self.recipe.config;
        let gib = nodes.iter().map(|(_, memory)| memory).sum::<f64>() / GIB;
        let has = format!(
            "{} cpus and {gib:.1} GiB on {} nodes",
            nodes.iter().map(|(cpus, _)| cpus).sum::<f64>(),
            nodes.len()
        );
        if cpus.is_none() && memory.is_none() {
            return Check::good("room", format!("{has}; slots have no limit"));
        }
        let fit = |wanted: Option<f64>, has: f64| wanted.map_or(f64::INFINITY, |wanted| (has / wanted).floor());
        let fits: f64 =
            nodes.iter().map(|(c, m)| fit(*cpus, *c).min(fit(memory.map(|memory| memory as f64), *m))).sum();
        if fits < 1.0 {
            Check::bad("room", format!("{has}; one slot needs more than any node has"))
        } else if fits < f64::from(slots) {
            Check::doubtful("room", format!("{has}: room for {fits} slots; the pool may have {slots}"))
        } else {
            Check::good("room", format!("{has}, enough for {slots} slots"))
        }
    }
}

fn state_of(node: &Node) -> Option<NodeState> {
    node.status.as_ref()?.state
}

fn resources_of(node: &Node) -> Option<&ResourceObject> {
    node.description.as_ref()?.resources.as_ref()
}

fn takes_tasks(node: &Node) -> bool {
    let availability = node.spec.as_ref().and_then(|spec| spec.availability);
    state_of(node) == Some(NodeState::READY) && availability == Some(NodeSpecAvailabilityEnum::ACTIVE)
}

fn others_at(slot: &SlotName) -> ProviderError {
    ProviderError::transient(format!("other processes change the service {slot} at the same time"))
}

/// Why a task failed. An image or command that one node cannot run fails on every node.
fn failure(said: &str) -> ProviderError {
    const PERMANENT: [&str; 4] = ["No such image", "executable file not found", "no such file or directory", "exit ("];
    if PERMANENT.iter().any(|word| said.contains(word)) {
        ProviderError::permanent(said)
    } else {
        ProviderError::transient(said)
    }
}

#[async_trait]
impl Provider for SwarmProvider {
    fn restarts_slots(&self) -> bool {
        true
    }

    fn recipe(&self) -> Option<String> {
        Some(recipe_of(&self.recipe.config))
    }

    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        if let Some(service) = self.find(&spec.slot).await? {
            return Ok(service.id);
        }
        Ok(self.put(spec, 0).await?.id)
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        if let Some(service) = self.find(&spec.slot).await?
            && !(self.recipe.is_for(&service, spec) && service.replicas == 1)
        {
            // A task for another bot ends first.
            self.scale_to_zero(&spec.slot).await?;
            self.ended(&service.id).await?;
        }
        let service = self.put(spec, 1).await?;
        match self.runs(&service).await {
            Ok(()) => Ok(service.id),
            Err(error) => Err(self.take_back(&spec.slot, &service, error).await),
        }
    }

    async fn stop(&self, slot: &SlotName, _fresh: bool) -> Result<Stopped, ProviderError> {
        if let Some(service) = self.scale_to_zero(slot).await? {
            self.ended(&service.id).await?;
        }
        Ok(Stopped::Seen)
    }

    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        // The tasks end first: Swarm does not report the tasks of a removed service.
        let Some(service) = self.scale_to_zero(slot).await? else { return Ok(()) };
        self.ended(&service.id).await?;
        match self.engine.docker().await?.delete_service(&service.id).await {
            Err(error) if !is_absent(&error) => Err(provider_error(&error)),
            _ => Ok(()),
        }
    }

    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        let label = format!("{INSTALLATION}={}", self.recipe.installation);
        let filters = HashMap::from([("label".to_owned(), vec![label])]);
        let options = ListServicesOptionsBuilder::default().filters(&filters).status(true).build();
        let listed =
            self.engine.docker().await?.list_services(Some(options)).await.map_err(|error| provider_error(&error))?;
        let mut found: Vec<Found> = listed.into_iter().filter_map(service::listed).collect();
        found.sort_by(|left, right| left.slot.cmp(&right.slot));
        Ok(found)
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        let Some(service) = self.find(slot).await? else { return Ok(None) };
        let tasks = self.tasks(&service.id).await?;
        let (wanted, running) = (service.replicas > 0, !tasks.have_ended());
        let found = Found::new(slot.clone(), wanted || running, tasks.shown());
        Ok(Some(Found { unhealthy: wanted && !tasks.has_running(), ..found }))
    }

    async fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        if let Some(lines) = Self::last_lines(self).remove(slot) {
            return Ok(Some(lines));
        }
        match self.find(slot).await? {
            Some(service) => self.log_text(&service.id).await,
            None => Ok(None),
        }
    }

    async fn log(&self, slot: &SlotName) -> Result<Vec<LogLine>, ProviderError> {
        let Some(service) = self.find(slot).await? else { return Ok(Vec::new()) };
        let docker = self.engine.docker().await?;
        let tasks = tasks::list(docker, &service.id).await.map_err(|error| provider_error(&error))?;
        let Some(task) = tasks.newest_that_ran() else { return Ok(Vec::new()) };
        engine::timed_lines(docker.task_logs(task, Some(engine::whole_log()))).await
    }

    async fn ping(&self) -> Result<(), ProviderError> {
        self.engine.docker().await?.inspect_swarm().await.map(drop).map_err(|error| provider_error(&error))
    }

    async fn check(&self, slots: u32) -> Vec<Check> {
        let mut checks = self.engine.check(&self.recipe.config.image).await;
        if checks.iter().any(|check| check.what == "image") {
            checks.extend(self.check_nodes(slots).await);
        }
        checks
    }

    async fn host_memory(&self) -> Result<Option<HostMemory>, ProviderError> {
        let nodes = self.nodes().await?;
        let resources = nodes.iter().filter(|node| takes_tasks(node)).filter_map(resources_of);
        let bytes = resources.filter_map(|has| u64::try_from(has.memory_bytes?).ok()).sum();
        Ok(Some(HostMemory::Total(bytes)))
    }

    /// Changes a label of the service, which leaves its tasks alone.
    async fn describe(&self, slot: &SlotName, description: &str) {
        for _ in 0..CHANGED_AGAIN {
            let Ok(Some(service)) = self.find(slot).await else { return };
            let Some(body) = service.with_description(description) else { return };
            match self.change(&service, body).await {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => {
                    tracing::debug!(%slot, error = error.message, "slot description not written");
                    return;
                }
            }
        }
    }
}
