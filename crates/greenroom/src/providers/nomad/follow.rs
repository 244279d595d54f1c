//! What becomes of a registration: the evaluation that places it, the allocation that runs it, and the end of both.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::job::{Job, TASK};
use crate::providers::ProviderError;

/// What is said in which a node could not begin for reasons that stay: the image, the command, or how they are written.
const FINAL: [&str; 12] = [
    "not found",
    "manifest unknown",
    "denied",
    "unauthorized",
    "invalid reference",
    "no matching manifest",
    "repository does not exist",
    "no such file or directory",
    "failed to parse config",
    "image name required",
    "exec format error",
    "permission denied",
];
/// Events that only say that others happened.
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

/// How long to wait between two looks: longer and longer, up to a limit.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub first: Duration,
    pub longest: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), longest: Duration::from_secs(1) }
    }
}

impl Pace {
    /// Waits, and longer the next time.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.first).await;
        self.first = (self.first * 3 / 2).min(self.longest);
    }
}

/// An allocation as it is listed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Allocation {
    #[serde(rename = "ID")]
    pub id: String,
    job_version: u64,
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
    /// Whether something runs, or may. On a node that nobody hears of, what is to run may run; of what is to stop nobody
    /// will know more before the node comes back, and then it is stopped.
    pub fn is_live(&self) -> bool {
        match self.client_status.as_str() {
            "complete" | "failed" | "lost" => false,
            "unknown" => self.is_wanted(),
            _ => true,
        }
    }

    /// Whether it was placed for a job as that is now. One of the same name that was purged before had versions too.
    pub fn is_of(&self, job: &Job) -> bool {
        self.job_version == job.version && self.create_index >= job.index
    }

    pub fn is_running(&self) -> bool {
        self.client_status == "running"
    }

    /// Whether Nomad leaves it at that when it is over. Of one that went with its node, or was moved from it, there will be
    /// another.
    fn is_wanted(&self) -> bool {
        self.desired_status == "run"
    }

    /// How it is, in Nomad's words.
    pub fn state(&self) -> String {
        let Self { client_status, .. } = self;
        let node = self.node_name.as_deref().unwrap_or("a node");
        let description = self.client_description.as_deref().filter(|words| !words.is_empty());
        match (self.is_live(), self.ended()) {
            (false, Some(event)) => format!("{client_status} on {node}: {}", event.words()),
            _ => match description {
                Some(description) => format!("{client_status} on {node}: {description}"),
                None => format!("{client_status} on {node}"),
            },
        }
    }

    /// What happened to its task last that explains something.
    fn ended(&self) -> Option<&Event> {
        let events = self.task_states.as_ref()?.get(TASK)?.events.as_deref()?;
        events.iter().rev().find(|event| !IDLE_EVENTS.contains(&event.r#type.as_str()))
    }

    /// What it means for a start that it is over. A bot that was quick and ended well has been started.
    fn failure(&self) -> Result<(), ProviderError> {
        let node = self.node_name.as_deref().unwrap_or("a node");
        let Some(event) = self.ended() else {
            return Err(ProviderError::again(format!("its allocation on {node} is {}", self.client_status)));
        };
        let words = format!("on {node}: {}", event.words());
        match event.r#type.as_str() {
            "Terminated" if event.exit_code == 0 => Ok(()),
            "Terminated" => Err(ProviderError::never(format!("its task ended at once {words}"))),
            "Failed Validation" => Err(ProviderError::never(format!("its task cannot run {words}"))),
            _ => {
                let lower = words.to_ascii_lowercase();
                let text = format!("its task could not be started {words}");
                let stays = FINAL.iter().any(|word| lower.contains(word));
                Err(if stays { ProviderError::never(text) } else { ProviderError::again(text) })
            }
        }
    }
}

impl Event {
    fn words(&self) -> String {
        let said = [&self.display_message, &self.driver_error].into_iter().find(|words| !words.is_empty());
        said.unwrap_or(&self.r#type).trim().to_owned()
    }
}

/// Those of a list that run, or may.
pub fn live(allocations: &[Allocation]) -> impl Iterator<Item = &Allocation> {
    allocations.iter().filter(|one| one.is_live())
}

pub fn newest(allocations: &[Allocation]) -> Option<&Allocation> {
    allocations.iter().max_by_key(|one| one.create_index)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Evaluation {
    status: String,
    status_description: Option<String>,
    #[serde(rename = "FailedTGAllocs")]
    failed: Option<BTreeMap<String, Metric>>,
    create_index: u64,
}

/// Why a group could not be placed: how many nodes were looked at, and what was wrong with them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Metric {
    #[serde(default)]
    nodes_evaluated: u64,
    nodes_available: Option<BTreeMap<String, u64>>,
    class_filtered: Option<BTreeMap<String, u64>>,
    constraint_filtered: Option<BTreeMap<String, u64>>,
    dimension_exhausted: Option<BTreeMap<String, u64>>,
    quota_exhausted: Option<Vec<String>>,
}

impl Metric {
    fn words(&self, datacenters: &[String]) -> String {
        let mut why = Vec::new();
        let none_available = self.nodes_available.iter().flatten().all(|(_, nodes)| *nodes == 0);
        if self.nodes_evaluated == 0 && none_available {
            why.push(format!("there is no node in the datacenters {}", datacenters.join(", ")));
        }
        let nodes = |count: u64| format!("{count} {}", if count == 1 { "node" } else { "nodes" });
        for (constraint, count) in self.constraint_filtered.iter().flatten() {
            why.push(format!("{} filtered by the constraint \"{constraint}\"", nodes(*count)));
        }
        for (class, count) in self.class_filtered.iter().flatten() {
            why.push(format!("{} of the class \"{class}\" filtered", nodes(*count)));
        }
        for (dimension, count) in self.dimension_exhausted.iter().flatten() {
            why.push(format!("{dimension} exhausted on {}", nodes(*count)));
        }
        for quota in self.quota_exhausted.iter().flatten() {
            why.push(format!("the quota limit \"{quota}\" is hit"));
        }
        if why.is_empty() {
            why.push(format!("{} evaluated, and none fits", nodes(self.nodes_evaluated)));
        }
        why.join("; ")
    }
}

/// How far a job that is to run has come.
#[derive(Debug)]
pub enum Progress {
    Runs,
    /// It is being placed, or started.
    Waits,
    /// Nothing of it will run unless something changes.
    Failed(ProviderError),
}

/// How far a job has come, by the allocations of its current version and by what was decided about it since.
pub fn progress(
    job: &Job,
    allocations: &[Allocation],
    evaluations: &[Evaluation],
    datacenters: &[String],
) -> Option<Progress> {
    let current = allocations.iter().filter(|one| one.is_of(job));
    let newest = current.max_by_key(|one| one.create_index);
    match newest {
        Some(one) if one.is_running() => return Some(Progress::Runs),
        Some(one) if one.is_live() => return Some(Progress::Waits),
        Some(one) if one.is_wanted() => {
            return Some(match one.failure() {
                Ok(()) => Progress::Runs,
                Err(error) => Progress::Failed(error),
            });
        }
        _ => {}
    }
    let mut since: Vec<&Evaluation> = evaluations.iter().filter(|one| one.create_index >= job.index).collect();
    since.sort_by_key(|one| one.create_index);
    if since.iter().any(|one| one.status == "pending") {
        return Some(Progress::Waits);
    }
    let failed = since.iter().rev().find_map(|one| one.failed.as_ref()?.values().next());
    if let Some(metric) = failed {
        let words = format!("Nomad cannot place it: {}", metric.words(datacenters));
        return Some(Progress::Failed(ProviderError::again(words)));
    }
    let broken = since.iter().rev().find(|one| one.status == "failed");
    broken.map(|one| {
        let words = one.status_description.as_deref().unwrap_or_default();
        Progress::Failed(ProviderError::again(format!("Nomad's evaluation of it failed: {words}")))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job() -> Job {
        let groups = json!([{"Count": 1}]);
        let job = json!({"JobModifyIndex": 10, "Version": 3, "Status": "running", "Stop": false, "Meta": null,
                         "TaskGroups": groups});
        serde_json::from_value(job).unwrap()
    }

    fn ended(version: u64, index: u64, desired: &str, events: Value) -> Allocation {
        let tasks = json!({"bot": {"State": "dead", "Failed": true, "Events": events}});
        let one = json!({"ID": "a", "JobVersion": version, "NodeName": "node-1", "DesiredStatus": desired,
                         "ClientStatus": "failed", "ClientDescription": "Failed tasks", "TaskStates": tasks,
                         "CreateIndex": index});
        serde_json::from_value(one).unwrap()
    }

    fn seen(allocations: &[Allocation]) -> Option<Progress> {
        progress(&job(), allocations, &[], &[])
    }

    fn terminated(code: i64) -> Value {
        json!([
            {"Type": "Started", "DisplayMessage": "Task started by client"},
            {"Type": "Terminated", "DisplayMessage": format!("Exit Code: {code}"), "ExitCode": code},
            {"Type": "Not Restarting", "DisplayMessage": "Policy allows no restarts"},
        ])
    }

    #[test]
    fn a_task_that_ended_at_once_tells_its_exit_code_and_one_that_ended_well_was_started() {
        let Some(Progress::Failed(error)) = seen(&[ended(3, 11, "run", terminated(127))]) else { panic!() };
        assert!(!error.may_help);
        assert_eq!(error.words, "its task ended at once on node-1: Exit Code: 127");
        assert!(matches!(seen(&[ended(3, 11, "run", terminated(0))]), Some(Progress::Runs)));
    }

    #[test]
    fn what_was_placed_for_another_version_or_another_job_says_nothing() {
        let others = [ended(2, 11, "run", terminated(1)), ended(3, 9, "run", terminated(1))];
        assert!(seen(&others).is_none());
        assert!(seen(&[ended(3, 11, "stop", terminated(1))]).is_none(), "what was moved is replaced");
    }

    #[test]
    fn why_there_is_no_place_is_said_in_full() {
        let metric = json!({"NodesEvaluated": 3, "NodesAvailable": {"dc1": 3}, "ClassFiltered": null,
                            "ConstraintFiltered": {"missing drivers": 1}, "NodesExhausted": 2,
                            "DimensionExhausted": {"memory": 2}, "QuotaExhausted": ["cpu exhausted (100 needed > 0)"]});
        let metric: Metric = serde_json::from_value(metric).unwrap();
        assert_eq!(
            metric.words(&[]),
            "1 node filtered by the constraint \"missing drivers\"; memory exhausted on 2 nodes; \
             the quota limit \"cpu exhausted (100 needed > 0)\" is hit"
        );
        let nowhere: Metric =
            serde_json::from_value(json!({"NodesEvaluated": 0, "NodesAvailable": {"dc1": 0}})).unwrap();
        assert_eq!(nowhere.words(&["dc1".to_owned()]), "there is no node in the datacenters dc1");
    }
}
