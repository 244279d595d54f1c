//! Follows a registration: the evaluation that places the job, and its progress. Nomad accepts a job at once and places
//! it later, so a start must read the evaluations.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::Backoff;
use serde::Deserialize;

use super::allocation::{Allocation, newest};
use super::job::Job;
use crate::ProviderError;

/// How much longer each delay is than the one before.
const GROWTH: f32 = 1.5;

/// The delays between two checks, which grow up to a limit.
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
    /// The delays between the checks of one operation.
    pub fn delays(self) -> Backoff {
        Backoff::growing(self.first, self.longest, GROWTH)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Evaluation {
    status: String,
    status_description: Option<String>,
    #[serde(rename = "FailedTGAllocs")]
    failed: Option<BTreeMap<String, Metric>>,
    /// When Nomad begins it, if Nomad has postponed it.
    wait_until: Option<String>,
    create_index: u64,
}

impl Evaluation {
    /// Whether Nomad is about to decide something. A postponed evaluation decides nothing before its time. An example
    /// is a check in a day whether a node is back. For a job with a count of 0 it decides nothing at all.
    pub fn is_open(&self) -> bool {
        // Go writes an unset time as the first second of year 1.
        let is_put_off = self.wait_until.as_deref().is_some_and(|time| !time.is_empty() && !time.starts_with("0001-"));
        self.status == "pending" && !is_put_off
    }
}

/// Why a group could not be placed: how many nodes were evaluated, and why they did not fit.
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
    fn message(&self, datacenters: &[String]) -> String {
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
            why.push(format!("the quota limit \"{quota}\" is reached"));
        }
        if why.is_empty() {
            why.push(format!("{} evaluated; none fits", nodes(self.nodes_evaluated)));
        }
        why.join("; ")
    }
}

/// The progress of a job that has to run.
#[derive(Debug)]
pub enum Outcome {
    Runs,
    /// Nomad is placing or starting it.
    Waits,
    /// None of it will run unless something changes.
    Failed(ProviderError),
}

/// The progress of a job, from the allocations of its current version and the evaluations since then.
pub fn outcome(
    job: &Job,
    allocations: &[Allocation],
    evaluations: &[Evaluation],
    datacenters: &[String],
) -> Option<Outcome> {
    match newest(allocations.iter().filter(|one| one.is_of(job))) {
        Some(one) if one.is_running() => return Some(Outcome::Runs),
        // Its state is unknown until its node is back, and the start does not wait for that.
        Some(one) if one.is_on_silent_node() => {
            return Some(Outcome::Failed(ProviderError::transient(format!("its allocation is {}", one.state()))));
        }
        Some(one) if one.is_live() => return Some(Outcome::Waits),
        Some(one) if one.is_wanted() => {
            return Some(match one.failure() {
                Ok(()) => Outcome::Runs,
                Err(error) => Outcome::Failed(error),
            });
        }
        _ => {}
    }
    let mut since: Vec<&Evaluation> = evaluations.iter().filter(|one| one.create_index >= job.index).collect();
    since.sort_by_key(|one| one.create_index);
    if since.iter().any(|one| one.is_open()) {
        return Some(Outcome::Waits);
    }
    let failed = since.iter().rev().find_map(|one| one.failed.as_ref()?.values().next());
    if let Some(metric) = failed {
        let message = format!("Nomad cannot place the job: {}", metric.message(datacenters));
        return Some(Outcome::Failed(ProviderError::transient(message)));
    }
    let broken = since.iter().rev().find(|one| one.status == "failed");
    broken.map(|one| {
        let message = one.status_description.as_deref().unwrap_or_default();
        Outcome::Failed(ProviderError::transient(format!("Nomad's evaluation of the job failed: {message}")))
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
        let one = json!({"ID": "a", "JobVersion": version, "NodeID": "n", "NodeName": "node-1", "DesiredStatus": desired,
                         "ClientStatus": "failed", "ClientDescription": "Failed tasks", "TaskStates": tasks,
                         "CreateIndex": index});
        serde_json::from_value(one).unwrap()
    }

    fn seen(allocations: &[Allocation]) -> Option<Outcome> {
        outcome(&job(), allocations, &[], &[])
    }

    fn terminated(code: i64) -> Value {
        json!([
            {"Type": "Started", "DisplayMessage": "Task started by client"},
            {"Type": "Terminated", "DisplayMessage": format!("Exit Code: {code}"), "ExitCode": code},
            {"Type": "Not Restarting", "DisplayMessage": "Policy allows no restarts"},
        ])
    }

    #[test]
    fn a_task_that_ended_at_once_reports_its_exit_code_and_one_that_succeeded_counts_as_started() {
        let Some(Outcome::Failed(error)) = seen(&[ended(3, 11, "run", terminated(127))]) else { panic!() };
        assert!(!error.retryable);
        assert_eq!(error.message, "its task ended right after the start on node-1: Exit Code: 127");
        assert!(matches!(seen(&[ended(3, 11, "run", terminated(0))]), Some(Outcome::Runs)));
    }

    #[test]
    fn allocations_of_another_version_or_another_job_are_ignored() {
        let others = [ended(2, 11, "run", terminated(1)), ended(3, 9, "run", terminated(1))];
        assert!(seen(&others).is_none());
        assert!(seen(&[ended(3, 11, "stop", terminated(1))]).is_none(), "what was moved is replaced");
    }

    #[test]
    fn a_delayed_evaluation_of_nomad_is_not_waited_for() {
        let evaluation = |status: &str, time: Value| -> Evaluation {
            let evaluation = json!({"Status": status, "WaitUntil": time, "CreateIndex": 11});
            serde_json::from_value(evaluation).unwrap()
        };
        for unset in [json!("0001-01-01T00:00:00Z"), Value::Null] {
            assert!(evaluation("pending", unset.clone()).is_open());
            assert!(!evaluation("complete", unset.clone()).is_open());
            assert!(!evaluation("blocked", unset).is_open());
        }
        assert!(!evaluation("pending", json!("2026-11-17T08:30:00.123456789Z")).is_open());
    }

    #[test]
    fn all_reasons_of_a_failed_placement_are_reported() {
        let metric = json!({"NodesEvaluated": 3, "NodesAvailable": {"dc1": 3}, "ClassFiltered": null,
                            "ConstraintFiltered": {"missing drivers": 1}, "NodesExhausted": 2,
                            "DimensionExhausted": {"memory": 2}, "QuotaExhausted": ["cpu exhausted (100 needed > 0)"]});
        let metric: Metric = serde_json::from_value(metric).unwrap();
        assert_eq!(
            metric.message(&[]),
            "1 node filtered by the constraint \"missing drivers\"; memory exhausted on 2 nodes; \
             the quota limit \"cpu exhausted (100 needed > 0)\" is reached"
        );
        let nowhere: Metric =
            serde_json::from_value(json!({"NodesEvaluated": 0, "NodesAvailable": {"dc1": 0}})).unwrap();
        assert_eq!(nowhere.message(&["dc1".to_owned()]), "there is no node in the datacenters dc1");
    }
}
