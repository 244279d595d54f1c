//! Builds the containers of slots, and reads the containers that an engine lists. Labels on a container record its
//! installation, its slot and what it was made for.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum, HealthStatusEnum,
    HostConfig,
};
use domain::SlotName;

use super::engine::{INSTALLATION, SLOT};
use crate::fingerprint::fingerprint;
use crate::{Found, Spec};
use config::provider::DockerConfig;

/// The label with the slot's generation and the recipe of the container.
const MADE: &str = "greenroom.made";
/// The label with the connection that the container was made for. Empty if it was made for none.
const CONNECTION: &str = "greenroom.connection";
const GENERATION: &str = "greenroom.generation";
/// The variables that every slot has, for any bot.
const OF_THE_SLOT: [&str; 3] = ["GREENROOM_URL", "GREENROOM_SLOT", "GREENROOM_SLOT_TOKEN"];
/// The name of the host inside containers.
const HOST: &str = "host.docker.internal:host-gateway";

/// The fingerprint of everything that a container is made of, except its slot's own variables.
pub fn made_of(config: &DockerConfig, spec: &Spec) -> String {
    let url = spec.environment.get("GREENROOM_URL");
    fingerprint(&format!("{}{url:?}", recipe_text(config)))
}

/// The fingerprint of the settings that all containers of the pool share.
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

    /// Whether a container can stay as it is for this spec. It must run exactly this spec, or must be made for it and
    /// not have run yet.
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
            // The container does not run the image's own entrypoint.
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

/// A container of this installation.
#[derive(Debug)]
pub struct Container {
    pub id: String,
    pub running: bool,
    /// Whether nothing has ever run in the container.
    pub is_new: bool,
    unhealthy: bool,
    state: String,
    made: String,
    generation: i64,
    connection: String,
    /// The container's values of the slot's own variables.
    environment: BTreeMap<String, String>,
}

impl Container {
    /// A container that was made just now.
    pub fn made(id: String) -> Self {
        Self {
            id,
            running: false,
            is_new: true,
            unhealthy: false,
            state: "created".to_owned(),
            made: String::new(),
            generation: 0,
            connection: String::new(),
            environment: BTreeMap::new(),
        }
    }

    /// Reads a container from the engine's answer. `None` if it does not belong to this installation.
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
            unhealthy: health == Some(HealthStatusEnum::UNHEALTHY),
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

    /// The spec for a new container like this one, without a bot.
    pub fn spec(&self, slot: &SlotName) -> Spec {
        let (generation, environment) = (self.generation, self.environment.clone());
        Spec { slot: slot.clone(), generation, connection: None, environment, fresh: true, requirements: None }
    }

    pub fn found(&self, slot: &SlotName) -> Found {
        Found { unhealthy: self.unhealthy, ..Found::new(slot.clone(), self.running, self.state.as_str()) }
    }
}

/// Reads a container from a list of this installation's containers.
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
    Some(Found { unhealthy: status.contains("(unhealthy)"), ..Found::new(slot, running, status) })
}
