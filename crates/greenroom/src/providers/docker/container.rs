//! What a container of ours is made of, and what is read from one.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum, HealthStatusEnum,
    HostConfig,
};
use domain::SlotName;

use super::engine::{INSTALLATION, SLOT};
use crate::config::provider::DockerConfig;
use crate::providers::fingerprint::fingerprint;
use crate::providers::{Found, Spec};

/// The label that says of which generation of its slot a container is, and of which recipe.
const MADE: &str = "greenroom.made";
/// The label that says for which connection it was made; empty when for none.
const CONNECTION: &str = "greenroom.connection";
const GENERATION: &str = "greenroom.generation";
/// What every slot has in its environment, whoever its bot is.
const OF_THE_SLOT: [&str; 3] = ["GREENROOM_URL", "GREENROOM_SLOT", "GREENROOM_SLOT_TOKEN"];
/// The host as containers call it.
const HOST: &str = "host.docker.internal:host-gateway";

/// Stands for what a container is made of, beside its slot's own variables.
pub fn made_of(config: &DockerConfig, spec: &Spec) -> String {
    let url = spec.environment.get("GREENROOM_URL");
    fingerprint(&format!("{}{url:?}", recipe_text(config)))
}

/// Stands for what the pool's containers are made of.
pub fn recipe_of(config: &DockerConfig) -> String {
    fingerprint(&recipe_text(config))
}

fn recipe_text(config: &DockerConfig) -> String {
    let DockerConfig { image, command, network, cpus, memory, env, .. } = config;
    format!("{image:?}{command:?}{network:?}{cpus:?}{memory:?}{env:?}")
}

/// How the pool's containers are made.
#[derive(Debug)]
pub struct Recipe {
    pub config: DockerConfig,
    pub installation: String,
}

impl Recipe {
    fn made(&self, spec: &Spec) -> String {
        format!("{}/{}", spec.generation, made_of(&self.config, spec))
    }

    /// Whether a container can be left as it is for what is wanted: it runs just that, or it has not run yet and was made
    /// for just that.
    pub fn fits(&self, container: &Container, spec: &Spec) -> bool {
        container.made == self.made(spec)
            && container.connection == spec.connection.as_deref().unwrap_or_default()
            && (container.running || container.is_new)
    }

    pub fn body(&self, spec: &Spec) -> ContainerCreateBody {
        let DockerConfig { image, command, network, cpus, memory, env, .. } = &self.config;
        let environment: BTreeMap<&String, &String> = env.iter().chain(&spec.environment).collect();
        let labels = HashMap::from([
            (INSTALLATION.to_owned(), self.installation.clone()),
            (SLOT.to_owned(), spec.slot.to_string()),
            (MADE.to_owned(), self.made(spec)),
            (GENERATION.to_owned(), spec.generation.to_string()),
            (CONNECTION.to_owned(), spec.connection.clone().unwrap_or_default()),
        ]);
        ContainerCreateBody {
            image: Some(image.clone()),
            // Whatever the image would run by itself is not run.
            entrypoint: command.clone(),
            cmd: command.as_ref().map(|_| Vec::new()),
            env: Some(environment.into_iter().map(|(name, value)| format!("{name}={value}")).collect()),
            labels: Some(labels),
            host_config: Some(HostConfig {
                nano_cpus: cpus.map(|cpus| (cpus * 1e9) as i64),
                memory: memory.and_then(|memory| i64::try_from(memory).ok()),
                network_mode: network.clone(),
                extra_hosts: Some(vec![HOST.to_owned()]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }
}

/// A container of ours.
#[derive(Debug)]
pub struct Container {
    pub id: String,
    pub running: bool,
    /// Whether nothing has ever run in it.
    pub is_new: bool,
    unwell: bool,
    state: String,
    made: String,
    generation: i64,
    connection: String,
    /// What it has of the slot's own variables.
    environment: BTreeMap<String, String>,
}

impl Container {
    /// One that was made just now.
    pub fn made(id: String) -> Self {
        Self {
            id,
            running: false,
            is_new: true,
            unwell: false,
            state: "created".to_owned(),
            made: String::new(),
            generation: 0,
            connection: String::new(),
            environment: BTreeMap::new(),
        }
    }

    /// Reads what an engine says of one; `None` when it is not this installation's.
    pub fn read(found: ContainerInspectResponse, installation: &str) -> Option<Self> {
        let config = found.config.unwrap_or_default();
        let labels = config.labels.unwrap_or_default();
        if labels.get(INSTALLATION).map(String::as_str) != Some(installation) {
            return None;
        }
        let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
        let state = found.state.unwrap_or_default();
        let status = state.status.map(|status| status.to_string()).unwrap_or_default();
        let health = state.health.as_ref().and_then(|health| health.status);
        let variables = config.env.unwrap_or_default().into_iter();
        let variables = variables.filter_map(|line| line.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned())));
        let shown = match (status.as_str(), state.exit_code, health) {
            ("exited", Some(code), _) => format!("exited with code {code}"),
            (status, _, Some(health @ (HealthStatusEnum::HEALTHY | HealthStatusEnum::UNHEALTHY))) => {
                format!("{status}, {health}")
            }
            (status, ..) => status.to_owned(),
        };
        Some(Self {
            id: found.id?,
            running: state.running == Some(true) || state.restarting == Some(true),
            is_new: status == "created",
            unwell: health == Some(HealthStatusEnum::UNHEALTHY),
            state: if state.oom_killed == Some(true) { format!("{shown}, out of memory") } else { shown },
            made: label(MADE),
            generation: label(GENERATION).parse().unwrap_or_default(),
            connection: label(CONNECTION),
            environment: variables.filter(|(name, _)| OF_THE_SLOT.contains(&name.as_str())).collect(),
        })
    }

    /// Whether it was made to run one bot.
    pub fn is_for_a_bot(&self) -> bool {
        !self.connection.is_empty()
    }

    /// What is needed to make one like it, without a bot.
    pub fn spec(&self, slot: &SlotName) -> Spec {
        let (generation, environment) = (self.generation, self.environment.clone());
        Spec { slot: slot.clone(), generation, connection: None, environment, fresh: true, requirements: None }
    }

    pub fn found(&self, slot: &SlotName) -> Found {
        Found { unwell: self.unwell, ..Found::new(slot.clone(), self.running, self.state.as_str()) }
    }
}

/// Reads one out of a list of those that are this installation's.
pub fn listed(summary: ContainerSummary) -> Option<Found> {
    let slot = SlotName::stored(summary.labels?.remove(SLOT)?);
    let status = summary.status.unwrap_or_default();
    let running = matches!(
        summary.state,
        Some(
            ContainerSummaryStateEnum::RUNNING
                | ContainerSummaryStateEnum::PAUSED
                | ContainerSummaryStateEnum::RESTARTING
        )
    );
    Some(Found { unwell: status.contains("(unhealthy)"), ..Found::new(slot, running, status) })
}
