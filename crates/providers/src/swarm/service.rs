//! Builds the services of slots, and reads the services that a swarm lists. Labels on a service record its
//! installation, its slot and the start that it serves.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    Limit, NetworkAttachmentConfig, ResourceObject, ServiceSpec, ServiceSpecMode, ServiceSpecModeReplicated, TaskSpec,
    TaskSpecContainerSpec, TaskSpecResources, TaskSpecRestartPolicy, TaskSpecRestartPolicyConditionEnum,
};
use domain::SlotName;

use crate::docker::engine::{INSTALLATION, SLOT};
use crate::docker::made_of;
use crate::{Found, Spec};
use config::provider::DockerConfig;

/// The label that names what a service was started for.
const START: &str = "greenroom.start";
/// The label of a service and its tasks that distinguishes one start from another, even if both are for the same bot.
pub const ATTEMPT: &str = "greenroom.attempt";
/// The label that shows a person the activity of the slot.
const DESCRIPTION: &str = "greenroom.description";
const SECOND: i64 = 1_000_000_000;
/// How long processes may take to end by themselves before they are killed.
const GRACE: i64 = 3 * SECOND;
/// How often Swarm starts a bot whose task failed, on the same node or another one.
const MOST_STARTS: i64 = 3;

/// How the pool makes its services.
#[derive(Debug)]
pub struct Recipe {
    pub config: DockerConfig,
    pub installation: String,
}

impl Recipe {
    /// Identifies a start by its connection, its generation and its recipe.
    fn start(&self, spec: &Spec) -> String {
        let connection = spec.connection.as_deref().unwrap_or("waits");
        format!("{}/{connection}/{}", spec.generation, made_of(&self.config, spec))
    }

    pub fn is_for(&self, service: &Service, spec: &Spec) -> bool {
        service.start == self.start(spec)
    }

    /// The specification of a slot's service, with a new attempt.
    pub fn body(&self, spec: &Spec, replicas: i64) -> ServiceSpec {
        let DockerConfig { image, command, network, cpus, memory, env, .. } = &self.config;
        let start = self.start(spec);
        let environment: BTreeMap<&String, &String> = env.iter().chain(&spec.environment).collect();
        let (nano_cpus, memory_bytes) =
            (cpus.map(|cpus| (cpus * 1e9) as i64), memory.and_then(|memory| i64::try_from(memory).ok()));
        let labels = HashMap::from([
            (INSTALLATION.to_owned(), self.installation.clone()),
            (SLOT.to_owned(), spec.slot.to_string()),
            (START.to_owned(), start),
            (ATTEMPT.to_owned(), uuid::Uuid::new_v4().simple().to_string()),
        ]);
        let is_bot = spec.connection.is_some();
        ServiceSpec {
            name: Some(spec.slot.to_string()),
            mode: Some(ServiceSpecMode {
                replicated: Some(ServiceSpecModeReplicated { replicas: Some(replicas) }),
                ..ServiceSpecMode::default()
            }),
            task_template: Some(TaskSpec {
                container_spec: Some(TaskSpecContainerSpec {
                    image: Some(image.clone()),
                    command: command.clone(),
                    env: Some(
                        environment.into_iter().map(|(name, value)| format!("{name}={}", literal(value))).collect(),
                    ),
                    labels: Some(labels.clone()),
                    stop_grace_period: Some(GRACE),
                    ..TaskSpecContainerSpec::default()
                }),
                // Swarm reserves the slot's limits, so that it places the slot on a node with enough room.
                resources: Some(TaskSpecResources {
                    limits: Some(Limit { nano_cpus, memory_bytes, pids: None }),
                    reservations: Some(ResourceObject { nano_cpus, memory_bytes, generic_resources: None }),
                    ..TaskSpecResources::default()
                }),
                // Without a restart policy, Swarm does not move a task when its node dies.
                restart_policy: Some(TaskSpecRestartPolicy {
                    condition: Some(TaskSpecRestartPolicyConditionEnum::ON_FAILURE),
                    delay: Some(SECOND),
                    max_attempts: is_bot.then_some(MOST_STARTS),
                    window: None,
                }),
                networks: network.as_ref().map(|network| {
                    vec![NetworkAttachmentConfig {
                        target: Some(network.clone()),
                        ..NetworkAttachmentConfig::default()
                    }]
                }),
                ..TaskSpec::default()
            }),
            labels: Some(labels),
            ..ServiceSpec::default()
        }
    }
}

/// Escapes a value so that Swarm passes it on unchanged. Swarm treats text in double braces as a template, so a bot's
/// data could otherwise read names and labels of the node.
fn literal(value: &str) -> String {
    value.replace("{{", r#"{{"{{"}}"#)
}

/// Whether a variable belongs to one bot, or gives access to the slot.
fn is_of_one_start(variable: &str) -> bool {
    ["BOT_DATA=", "GREENROOM_SLOT_TOKEN="].iter().any(|name| variable.starts_with(name))
}

/// A service of this installation.
#[derive(Debug)]
pub struct Service {
    pub id: String,
    /// The version that a change must name.
    pub version: i32,
    pub replicas: i64,
    pub start: String,
    pub attempt: String,
    spec: ServiceSpec,
}

impl Service {
    /// Reads a service from the swarm's answer. `None` if it does not belong to this installation.
    pub fn read(found: bollard::models::Service, installation: &str) -> Option<Self> {
        let spec = found.spec?;
        let labels = spec.labels.as_ref()?;
        if labels.get(INSTALLATION).map(String::as_str) != Some(installation) {
            return None;
        }
        Some(Self {
            id: found.id?,
            // An unknown version becomes one that never matches, so no change succeeds.
            version: i32::try_from(found.version?.index?).unwrap_or(i32::MAX),
            replicas: replicas(&spec),
            start: labels.get(START).cloned().unwrap_or_default(),
            attempt: labels.get(ATTEMPT).cloned().unwrap_or_default(),
            spec,
        })
    }

    /// The same service without replicas, for no bot, and without a bot's data in its environment.
    pub fn without_replicas(&self) -> ServiceSpec {
        let mut labels = self.spec.labels.clone().unwrap_or_default();
        labels.remove(START);
        let mode = ServiceSpecMode {
            replicated: Some(ServiceSpecModeReplicated { replicas: Some(0) }),
            ..ServiceSpecMode::default()
        };
        let mut task_template = self.spec.task_template.clone();
        let container = task_template.as_mut().and_then(|task| task.container_spec.as_mut());
        if let Some(environment) = container.and_then(|container| container.env.as_mut()) {
            environment.retain(|variable| !is_of_one_start(variable));
        }
        ServiceSpec { mode: Some(mode), labels: Some(labels), task_template, ..self.spec.clone() }
    }

    /// Whether the environment contains data of one bot.
    pub fn has_secrets(&self) -> bool {
        let container = self.spec.task_template.as_ref().and_then(|task| task.container_spec.as_ref());
        container.and_then(|container| container.env.as_ref()).is_some_and(|env| env.iter().any(|v| is_of_one_start(v)))
    }

    /// The replacement for this service, with its description kept.
    pub fn described(&self, mut body: ServiceSpec) -> ServiceSpec {
        let description = self.spec.labels.as_ref().and_then(|labels| labels.get(DESCRIPTION));
        if let (Some(labels), Some(description)) = (body.labels.as_mut(), description) {
            labels.insert(DESCRIPTION.to_owned(), description.clone());
        }
        body
    }

    /// The same service with another description. `None` if it already has this description.
    pub fn with_description(&self, description: &str) -> Option<ServiceSpec> {
        let mut spec = self.spec.clone();
        let before = spec.labels.get_or_insert_default().insert(DESCRIPTION.to_owned(), description.to_owned());
        (before.as_deref() != Some(description)).then_some(spec)
    }
}

fn replicas(spec: &ServiceSpec) -> i64 {
    spec.mode.as_ref().and_then(|mode| mode.replicated.as_ref()?.replicas).unwrap_or_default()
}

/// Reads a service from a list of this installation's services.
pub fn listed(service: bollard::models::Service) -> Option<Found> {
    let spec = service.spec?;
    let slot = SlotName::stored(spec.labels.as_ref()?.get(SLOT)?.clone());
    let wanted = replicas(&spec);
    // An older engine does not report it. An unknown state does not count as unhealthy.
    let Some(running) = service.service_status.and_then(|status| status.running_tasks) else {
        return Some(Found::new(slot, wanted > 0, format!("{wanted} tasks are wanted")));
    };
    let found = Found::new(slot, wanted > 0 || running > 0, format!("{running} of {wanted} tasks run"));
    Some(Found { unhealthy: wanted > 0 && running == 0, ..found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_syntax_of_swarm_is_escaped() {
        assert_eq!(literal(r#"{"a": {"b": 1}}"#), r#"{"a": {"b": 1}}"#);
        assert_eq!(literal("{{.Node.Hostname}}"), r#"{{"{{"}}.Node.Hostname}}"#);
        assert_eq!(literal("{{{"), r#"{{"{{"}}{"#);
    }
}
