//! The allocations of a job: their state, how they ended, and whether a retry may help.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::job::{Job, TASK};
use crate::ProviderError;

/// Texts for trouble of the node itself, or of its connection to another host. They take precedence over all other
/// texts.
const TROUBLE: [&str; 5] = ["docker.sock", "dial ", "docker daemon", "toomanyrequests", "too many requests"];
/// Texts for an image that a registry lacks or refuses.
const NOT_PULLED: [&str; 7] = [
    "not found",
    "manifest unknown",
    "denied",
    "unauthorized",
    "invalid reference",
    "no matching manifest",
    "repository does not exist",
];
/// Texts for a command that the image does not contain.
const NOT_EXECUTED: [&str; 4] = ["not found", "no such file or directory", "permission denied", "exec format error"];
/// Texts for a task that no driver understands.
const MALFORMED: [&str; 3] = ["failed to parse config", "image name required", "invalid reference format"];
/// Events that only follow from other events.
const IDLE_EVENTS: [&str; 9] = [
    "Received",
    "Task Setup",
    "Driver",
    "Started",
    "Not Restarting",
    "Restarting",
    "Killing",
    "Killed",
    "Alloc Unhealthy",
];

/// An allocation in Nomad's list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Allocation {
    #[serde(rename = "ID")]
    pub id: String,
    job_version: u64,
    #[serde(rename = "NodeID")]
    pub node: String,
    node_name: Option<String>,
    desired_status: String,
    client_status: String,
    client_description: Option<String>,
    task_states: Option<BTreeMap<String, TaskState>>,
    create_index: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TaskState {
    events: Option<Vec<Event>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event {
    r#type: String,
    #[serde(default)]
    display_message: String,
    #[serde(default)]
    driver_error: String,
    #[serde(default)]
    exit_code: i64,
}

impl Allocation {
    /// Whether the allocation runs, or may run. On a silent node, an allocation that has to run may run. One that has
    /// to stop counts as ended: its state is unknown until the node comes back, and then Nomad stops it.
    pub fn is_live(&self) -> bool {
        match self.client_status.as_str() {
            "complete" | "failed" | "lost" => false,
            "unknown" => self.is_wanted(),
            _ => true,
        }
    }

    /// Whether it was placed for the current version of a job. A purged job with the same name had version numbers too.
    pub fn is_of(&self, job: &Job) -> bool {
        self.job_version == job.version && self.create_index >= job.index
    }

    pub fn is_running(&self) -> bool {
        self.client_status == "running"
    }

    /// Whether it has to run, but its state is unknown because its node is silent.
    pub fn is_on_silent_node(&self) -> bool {
        self.client_status == "unknown" && self.is_wanted()
    }

    /// Whether Nomad does not replace it when it ends. Nomad replaces an allocation that was lost with its node or
    /// moved from it.
    pub fn is_wanted(&self) -> bool {
        self.desired_status == "run"
    }

    /// Its state, in Nomad's words.
    pub fn state(&self) -> String {
        let Self { client_status, .. } = self;
        let node = self.node_name.as_deref().unwrap_or("a node");
        let description = self.client_description.as_deref().filter(|message| !message.is_empty());
        match (self.is_live(), self.ended()) {
            (false, Some(event)) => format!("{client_status} on {node}: {}", event.message()),
            _ => match description {
                Some(description) => format!("{client_status} on {node}: {description}"),
                None => format!("{client_status} on {node}"),
            },
        }
    }

    /// The last event of its task that explains something.
    fn ended(&self) -> Option<&Event> {
        let events = self.task_states.as_ref()?.get(TASK)?.events.as_deref()?;
        events.iter().rev().find(|event| !IDLE_EVENTS.contains(&event.r#type.as_str()))
    }

    /// The result of a start whose allocation has ended. A fast bot that ended without an error has been started.
    pub fn failure(&self) -> Result<(), ProviderError> {
        let node = self.node_name.as_deref().unwrap_or("a node");
        let Some(event) = self.ended() else {
            return Err(ProviderError::transient(format!("its allocation on {node} is {}", self.client_status)));
        };
        let message = format!("on {node}: {}", event.message());
        match event.r#type.as_str() {
            "Terminated" if event.exit_code == 0 => Ok(()),
            "Terminated" => Err(ProviderError::permanent(format!("its task ended right after the start {message}"))),
            "Failed Validation" => Err(ProviderError::permanent(format!("its task cannot run {message}"))),
            _ => {
                let text = format!("its task could not be started {message}");
                Err(if is_final(&event.message()) {
                    ProviderError::permanent(text)
                } else {
                    ProviderError::transient(text)
                })
            }
        }
    }
}

impl Event {
    fn message(&self) -> String {
        let message = [&self.display_message, &self.driver_error].into_iter().find(|message| !message.is_empty());
        message.unwrap_or(&self.r#type).trim().to_owned()
    }
}

/// The allocations that run, or may run.
pub fn live(allocations: &[Allocation]) -> impl Iterator<Item = &Allocation> {
    allocations.iter().filter(|one| one.is_live())
}

pub fn newest<'a>(allocations: impl IntoIterator<Item = &'a Allocation>) -> Option<&'a Allocation> {
    allocations.into_iter().max_by_key(|one| one.create_index)
}

/// Whether a driver's error is permanent on every node: a wrong image, command or task. Texts such as "not found" show
/// this only in errors about a pull or an execution. A node without Docker writes them too.
fn is_final(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    let says = |any: &[&str]| any.iter().any(|part| message.contains(part));
    let is_about = |what: &str, any: &[&str]| {
        message.find(what).is_some_and(|at| any.iter().any(|part| message[at..].contains(part)))
    };
    // A registry that does not exist will not exist at the next attempt.
    let unknown_registry = is_about("failed to pull", &["no such host"]) && !says(&["docker.sock", "docker daemon"]);
    unknown_registry
        || !says(&TROUBLE)
            && (says(&MALFORMED)
                || is_about("failed to pull", &NOT_PULLED)
                || is_about("exec: ", &NOT_EXECUTED)
                || is_about("exec /", &NOT_EXECUTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_an_image_or_a_command_are_permanent_and_those_of_a_node_are_transient() {
        let stays = [
            "Failed to pull `team/bot:9`: Error response from daemon: manifest for team/bot:9 not found: manifest unknown",
            "Failed to pull `team/bot`: API error (404): pull access denied for team/bot, repository does not exist",
            "Failed to start container 7f: Error response from daemon: failed to create task for container: OCI runtime \
             create failed: runc create failed: unable to start container process: exec: \"run\": executable file not \
             found in $PATH: unknown",
            "Failed to start container 7f: API error (400): exec: \"/run\": stat /run: no such file or directory: unknown",
            "Failed to pull `team/bot`: Get \"https://registry\": dial tcp: lookup registry: no such host",
            "failed to parse config: Invalid label: No argument or block type is named \"imag\".",
        ];
        for message in stays {
            assert!(is_final(message), "{message}");
        }
        let passes = [
            "Failed to pull `team/bot`: dial unix /var/run/docker.sock: connect: no such file or directory",
            "failed to create container: dial unix /var/run/docker.sock: connect: permission denied",
            "Cannot connect to the Docker daemon at tcp://127.0.0.1:2375: not found. Is the docker daemon running?",
            "Failed to pull `team/bot`: Get \"https://registry\": dial tcp: lookup registry: server misbehaving, not found",
            "Failed to pull `team/bot`: toomanyrequests: access denied: You have reached your pull rate limit",
            "failed to launch logmon: open /opt/nomad/alloc/7f/alloc/logs: no such file or directory",
            "failed to build task directory: mkdir /opt/nomad/alloc/7f/bot: permission denied",
            "driver not found",
        ];
        for message in passes {
            assert!(!is_final(message), "{message}");
        }
    }
}
