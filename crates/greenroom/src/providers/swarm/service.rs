//! What a service of ours is made of, and what is read from one.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    Limit, NetworkAttachmentConfig, ResourceObject, ServiceSpec, ServiceSpecMode, ServiceSpecModeReplicated, TaskSpec,
    TaskSpecContainerSpec, TaskSpecResources, TaskSpecRestartPolicy, TaskSpecRestartPolicyConditionEnum,
};
use domain::SlotName;

use crate::config::provider::DockerConfig;
use crate::providers::docker::engine::{INSTALLATION, SLOT};
use crate::providers::docker::made_of;
use crate::providers::{Found, Spec};

/// The label that says what a service was started for.
const START: &str = "greenroom.start";
/// The label of a service and of its tasks that tells one start from another, also where both are for the same.
pub const ATTEMPT: &str = "greenroom.attempt";
/// The label that shows a person what the slot is doing.
const DESCRIPTION: &str = "greenroom.description";
const SECOND: i64 = 1_000_000_000;
/// How long what runs may take to end by itself before it is killed.
const GRACE: i64 = 3 * SECOND;
/// A bot whose task failed is started again so often, here or on another node.
const MOST_STARTS: i64 = 3;

/// How the pool's services are made.
#[derive(Debug)]
pub struct Recipe {
    pub config: DockerConfig,
    pub installation: String,
}

impl Recipe {
    /// Stands for what is to run: whose, in which generation, made of what.
    fn start(&self, spec: &Spec) -> String {
        let connection = spec.connection.as_deref().unwrap_or("waits");
        format!("{}/{connection}/{}", spec.generation, made_of(&self.config, spec))
    }

    pub fn is_for(&self, service: &Service, spec: &Spec) -> bool {
        service.start == self.start(spec)
    }

    /// What the service of a slot is to be, in an attempt of its own.
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
                // What a slot may use is kept free for it, so that Swarm places it where there is room.
                resources: Some(TaskSpecResources {
                    limits: Some(Limit { nano_cpus, memory_bytes, pids: None }),
                    reservations: Some(ResourceObject { nano_cpus, memory_bytes, generic_resources: None }),
                    ..TaskSpecResources::default()
                }),
                // Without it, a task is not moved either when its node dies.
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

/// A value as Swarm passes it on unchanged: it takes what is in double braces as a template, so a bot's own data could ask
/// for the names and labels of the node.
fn literal(value: &str) -> String {
    value.replace("{{", r#"{{"{{"}}"#)
}

/// Of a variable, whether it is one bot's, or gives entry to the slot.
fn is_of_one_start(variable: &str) -> bool {
    ["BOT_DATA=", "GREENROOM_SLOT_TOKEN="].iter().any(|name| variable.starts_with(name))
}

/// A service of ours.
#[derive(Debug)]
pub struct Service {
    pub id: String,
    /// What it has to be still when it is changed.
    pub version: i32,
    pub replicas: i64,
    pub start: String,
    pub attempt: String,
    spec: ServiceSpec,
}

impl Service {
    /// Reads what a swarm says of one; `None` when it is not this installation's.
    pub fn read(found: bollard::models::Service, installation: &str) -> Option<Self> {
        let spec = found.spec?;
        let labels = spec.labels.as_ref()?;
        if labels.get(INSTALLATION).map(String::as_str) != Some(installation) {
            return None;
        }
        Some(Self {
            id: found.id?,
            // One that cannot be named is never the right one, so that no change is made on it.
            version: i32::try_from(found.version?.index?).unwrap_or(i32::MAX),
            replicas: replicas(&spec),
            start: labels.get(START).cloned().unwrap_or_default(),
            attempt: labels.get(ATTEMPT).cloned().unwrap_or_default(),
            spec,
        })
    }

    /// The same with nothing running, for nobody, and with nothing of a bot in its environment.
    pub fn at_rest(&self) -> ServiceSpec {
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

    /// Whether it holds what is one bot's.
    pub fn has_secrets(&self) -> bool {
        let container = self.spec.task_template.as_ref().and_then(|task| task.container_spec.as_ref());
        container.and_then(|container| container.env.as_ref()).is_some_and(|env| env.iter().any(|v| is_of_one_start(v)))
    }

    /// What is to replace it, with its description.
    pub fn described(&self, mut body: ServiceSpec) -> ServiceSpec {
        let description = self.spec.labels.as_ref().and_then(|labels| labels.get(DESCRIPTION));
        if let (Some(labels), Some(description)) = (body.labels.as_mut(), description) {
            labels.insert(DESCRIPTION.to_owned(), description.clone());
        }
        body
    }

    /// The same with another description; `None` when it has it already.
    pub fn with_description(&self, description: &str) -> Option<ServiceSpec> {
        let mut spec = self.spec.clone();
        let before = spec.labels.get_or_insert_default().insert(DESCRIPTION.to_owned(), description.to_owned());
        (before.as_deref() != Some(description)).then_some(spec)
    }
}

fn replicas(spec: &ServiceSpec) -> i64 {
    spec.mode.as_ref().and_then(|mode| mode.replicated.as_ref()?.replicas).unwrap_or_default()
}

/// Reads one out of a list of those that are this installation's.
pub fn listed(service: bollard::models::Service) -> Option<Found> {
    let spec = service.spec?;
    let slot = SlotName::stored(spec.labels.as_ref()?.get(SLOT)?.clone());
    let wanted = replicas(&spec);
    // An older engine does not say it, and what is not known is not unwell.
    let Some(running) = service.service_status.and_then(|status| status.running_tasks) else {
        return Some(Found::new(slot, wanted > 0, format!("{wanted} tasks are wanted")));
    };
    let found = Found::new(slot, wanted > 0 || running > 0, format!("{running} of {wanted} tasks run"));
    Some(Found { unwell: wanted > 0 && running == 0, ..found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_swarm_would_take_as_a_template_is_written_as_text() {
        assert_eq!(literal(r#"{"a": {"b": 1}}"#), r#"{"a": {"b": 1}}"#);
        assert_eq!(literal("{{.Node.Hostname}}"), r#"{{"{{"}}.Node.Hostname}}"#);
        assert_eq!(literal("{{{"), r#"{{"{{"}}{"#);
    }
}
