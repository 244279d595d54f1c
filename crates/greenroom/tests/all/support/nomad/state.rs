//! The state of the cluster: jobs, evaluations, allocations, deployments and nodes, and how their status is derived.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::job::{list, number, text};
use super::operation::{NomadFault, NomadOperation};
use super::text::{identifier, nanoseconds};

/// A namespace and the name of a job in it.
pub type Key = (String, String);

#[derive(Debug)]
pub struct Job {
    pub key: Key,
    /// The specification, canonical.
    pub spec: Value,
    pub version: u64,
    pub created: u64,
    /// Status changes increase it too, so check-and-set does not use it.
    pub modified: u64,
    /// The index that check-and-set compares.
    pub job_modified: u64,
    pub submitted: i64,
    pub status: &'static str,
    /// Whether the garbage collector has removed evaluations of the job. After that, a job without evaluations is not a
    /// new one.
    pub collected: bool,
    pub scalings: Vec<Value>,
}

impl Job {
    pub fn is_stopped(&self) -> bool {
        self.spec["Stop"] == json!(true)
    }

    pub fn group(&self, name: &str) -> Option<&Value> {
        list(&self.spec, "TaskGroups").iter().find(|group| text(group, "Name") == name)
    }
}

#[derive(Clone, Debug)]
pub struct Evaluation {
    pub id: String,
    pub key: Key,
    pub status: &'static str,
    pub description: String,
    pub trigger: &'static str,
    pub deployment: String,
    pub previous: String,
    pub blocked: String,
    /// Why groups could not be placed.
    pub failed: BTreeMap<String, Value>,
    pub queued: BTreeMap<String, u64>,
    /// When a delayed evaluation is to be processed. Until then it is pending, and so is a job of which nothing runs.
    pub wait_until: Option<i64>,
    pub created: u64,
    pub modified: u64,
    pub at: i64,
}

impl Evaluation {
    pub fn is_over(&self) -> bool {
        matches!(self.status, "complete" | "failed" | "canceled")
    }
}

#[derive(Debug)]
pub struct Deployment {
    pub id: String,
    pub key: Key,
    pub job_created: u64,
    pub version: u64,
    pub is_active: bool,
}

#[derive(Clone, Debug)]
pub struct Task {
    pub state: &'static str,
    pub failed: bool,
    pub restarts: u64,
    pub started: Option<i64>,
    pub finished: Option<i64>,
    pub events: Vec<Value>,
}

#[derive(Clone, Debug)]
pub struct Allocation {
    pub id: String,
    pub key: Key,
    pub group: String,
    pub name: String,
    /// The job at the time when the allocation was placed, or last updated in place.
    pub spec: Value,
    pub job_created: u64,
    pub version: u64,
    pub node: String,
    pub node_name: String,
    pub evaluation: String,
    pub deployment: String,
    pub healthy: Option<bool>,
    pub desired: &'static str,
    pub desired_description: String,
    pub client: &'static str,
    pub client_description: &'static str,
    pub tasks: BTreeMap<String, Task>,
    pub previous: String,
    pub next: String,
    /// How many allocations were rescheduled before this one.
    pub reschedules: i64,
    /// Whether the allocation failed and is to be replaced now.
    pub is_due: bool,
    /// Whether the allocation is to be moved because it was stopped.
    pub is_leaving: bool,
    pub processor: i64,
    pub memory: i64,
    pub created: u64,
    pub modified: u64,
    pub created_at: i64,
    pub modified_at: i64,
}

impl Allocation {
    pub fn has_ended(&self) -> bool {
        matches!(self.client, "complete" | "failed" | "lost")
    }

    pub fn is_over(&self) -> bool {
        self.desired != "run" || self.has_ended()
    }

    fn disconnect(&self) -> Option<&Value> {
        let group = list(&self.spec, "TaskGroups").iter().find(|group| text(group, "Name") == self.group);
        group.map(|group| &group["Disconnect"])
    }

    /// How long Nomad waits for this allocation when its node does not answer. By default it is lost at once.
    pub fn lost_after(&self) -> i64 {
        self.disconnect().map_or(0, |of| number(of, "LostAfter"))
    }

    /// Whether the allocation stays on its node when the node does not answer.
    pub fn waits_for_its_node(&self) -> bool {
        self.lost_after() > 0 && self.disconnect().is_some_and(|of| of["Replace"] == json!(false))
    }

    pub fn environment(&self) -> BTreeMap<String, String> {
        let group = list(&self.spec, "TaskGroups").iter().find(|group| text(group, "Name") == self.group);
        let task = group.and_then(|group| list(group, "Tasks").first());
        let fields = task.and_then(|task| task["Env"].as_object()).into_iter().flatten();
        fields.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
    }
}

/// A machine of the cluster.
#[derive(Clone, Debug)]
pub struct NomadNode {
    pub id: String,
    pub name: String,
    pub datacenter: String,
    pub processor: i64,
    pub memory: i64,
    pub drivers: Vec<String>,
    /// Whether the node is up. Allocations on a node that is down are lost.
    pub is_up: bool,
    /// Whether Nomad waits for a node that is not up, because an allocation there is configured so. Then the node is
    /// not down, and an allocation that is to stop there keeps its last known state.
    pub is_awaited: bool,
    /// Whether allocations may be placed on the node.
    pub is_eligible: bool,
}

impl NomadNode {
    /// A node with docker and capacity for ten usual tasks.
    pub fn new(name: &str) -> Self {
        Self {
            id: identifier(),
            name: name.to_owned(),
            datacenter: "dc1".to_owned(),
            processor: 16_000,
            memory: 32_768,
            drivers: vec!["docker".to_owned()],
            is_up: true,
            is_awaited: false,
            is_eligible: true,
        }
    }

    pub fn status(&self) -> &'static str {
        match (self.is_up, self.is_awaited) {
            (true, _) => "ready",
            (false, true) => "disconnected",
            (false, false) => "down",
        }
    }
}

/// A request as it arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct NomadCall {
    pub operation: NomadOperation,
    pub method: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    /// Null if there is no body.
    pub body: Value,
    /// `None` if a fault prevented the request.
    pub status: Option<u16>,
}

#[derive(Debug, Default)]
pub struct State {
    pub index: u64,
    pub namespaces: Vec<String>,
    pub jobs: BTreeMap<Key, Job>,
    pub evaluations: Vec<Evaluation>,
    pub allocations: Vec<Allocation>,
    pub deployments: Vec<Deployment>,
    pub nodes: Vec<NomadNode>,
    /// The logs of each job's tasks: standard output and standard error.
    pub logs: BTreeMap<Key, [String; 2]>,
    pub faults: Vec<(NomadOperation, NomadFault)>,
    /// Why the next tasks do not start.
    pub failures: VecDeque<String>,
    pub calls: Vec<NomadCall>,
    pub violations: Vec<String>,
}

impl State {
    pub fn next_index(&mut self) -> u64 {
        self.index += 1;
        self.index
    }

    /// Creates an evaluation. The caller must have it processed.
    pub fn evaluate(&mut self, key: &Key, trigger: &'static str) -> String {
        let index = self.next_index();
        let evaluation = Evaluation {
            id: identifier(),
            key: key.clone(),
            status: "pending",
            description: String::new(),
            trigger,
            deployment: String::new(),
            previous: String::new(),
            blocked: String::new(),
            failed: BTreeMap::new(),
            queued: BTreeMap::new(),
            wait_until: None,
            created: index,
            modified: index,
            at: nanoseconds(),
        };
        let id = evaluation.id.clone();
        self.evaluations.push(evaluation);
        self.settle();
        id
    }

    pub fn evaluation(&mut self, id: &str) -> Option<&mut Evaluation> {
        self.evaluations.iter_mut().find(|evaluation| evaluation.id == id)
    }

    pub fn allocation(&mut self, id: &str) -> Option<&mut Allocation> {
        self.allocations.iter_mut().find(|allocation| allocation.id == id)
    }

    pub fn node(&self, id: &str) -> Option<&NomadNode> {
        self.nodes.iter().find(|node| node.id == id)
    }

    pub fn allocations_of<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Allocation> {
        self.allocations.iter().filter(move |allocation| allocation.key == *key)
    }

    /// The deployment of a job that has not ended. Scaling waits for it, and a new version cancels it.
    pub fn active_deployment(&self, job: &Job) -> Option<&Deployment> {
        self.deployments.iter().find(|deployment| {
            deployment.is_active && deployment.key == job.key && deployment.job_created == job.created
        })
    }

    /// Stores a new version of a job, or a new job.
    pub fn upsert(&mut self, key: &Key, spec: Value) -> u64 {
        let index = self.next_index();
        let before = self.jobs.remove(key);
        let job = Job {
            key: key.clone(),
            spec,
            version: before.as_ref().map_or(0, |job| job.version + 1),
            created: before.as_ref().map_or(index, |job| job.created),
            modified: index,
            job_modified: index,
            submitted: nanoseconds(),
            status: "pending",
            collected: before.as_ref().is_some_and(|job| job.collected),
            scalings: before.map(|job| job.scalings).unwrap_or_default(),
        };
        self.jobs.insert(key.clone(), job);
        index
    }

    /// Derives the status of each job from its evaluations and allocations.
    pub fn settle(&mut self) {
        let statuses: Vec<(Key, &'static str)> =
            self.jobs.values().map(|job| (job.key.clone(), self.status(job))).collect();
        for (key, status) in statuses {
            let is_new = self.jobs.get(&key).is_some_and(|job| job.status != status);
            if is_new {
                let index = self.next_index();
                if let Some(job) = self.jobs.get_mut(&key) {
                    job.status = status;
                    job.modified = index;
                }
            }
        }
    }

    /// A service job is dead when nothing of it runs or waits, whether it was stopped or its count is zero.
    fn status(&self, job: &Job) -> &'static str {
        if self.deployments.iter().any(|deployment| deployment.is_active && deployment.key == job.key) {
            return "running";
        }
        if self.allocations_of(&job.key).any(|allocation| !allocation.is_over()) {
            return "running";
        }
        let mut evaluations = self.evaluations.iter().filter(|evaluation| evaluation.key == job.key).peekable();
        let has_any = evaluations.peek().is_some();
        if evaluations.any(|evaluation| !evaluation.is_over()) {
            return "pending";
        }
        if has_any || job.collected || job.is_stopped() { "dead" } else { "pending" }
    }

    /// Removes everything that the garbage collector removes after long enough: evaluations and allocations that have
    /// ended, and stopped jobs. A service job with a count of zero is dead too, but stays for ever.
    pub fn collect(&mut self) {
        self.settle();
        let kept = |allocation: &Allocation| !allocation.is_over() || !allocation.has_ended();
        let busy: Vec<String> = self
            .allocations
            .iter()
            .filter(|allocation| kept(allocation))
            .map(|allocation| allocation.evaluation.clone())
            .collect();
        let jobs = &self.jobs;
        // Allocations that are still to be rescheduled are kept. Those that failed for good are removed, and then
        // nothing counts in their place: the next evaluation of a job whose count is not zero starts it again.
        let counts = |allocation: &Allocation| {
            let is_waiting = |job: &Job| {
                let group = job.group(&allocation.group).map(|group| &group["ReschedulePolicy"]);
                let is_enabled =
                    group.is_some_and(|policy| policy["Unlimited"] == json!(true) || number(policy, "Attempts") > 0);
                !job.is_stopped() && job.status != "dead" && is_enabled && allocation.next.is_empty()
            };
            allocation.desired == "run"
                && allocation.client == "failed"
                && jobs.get(&allocation.key).is_some_and(is_waiting)
        };
        let counted: Vec<String> =
            self.allocations.iter().filter(|one| counts(one)).map(|one| one.evaluation.clone()).collect();
        self.allocations.retain(|allocation| kept(allocation) || counts(allocation));
        let mut taken = Vec::new();
        self.evaluations.retain(|evaluation| {
            let stays = !evaluation.is_over() || busy.contains(&evaluation.id) || counted.contains(&evaluation.id);
            if !stays {
                taken.push(evaluation.key.clone());
            }
            stays
        });
        for key in taken {
            if let Some(job) = self.jobs.get_mut(&key) {
                job.collected = true;
            }
        }
        let evaluations = &self.evaluations;
        self.jobs.retain(|key, job| {
            let is_gone = job.status == "dead"
                && (job.is_stopped() || text(&job.spec, "Type") == "batch")
                && !evaluations.iter().any(|evaluation| evaluation.key == *key);
            !is_gone
        });
        self.next_index();
        self.settle();
    }

    /// The resources in use on a node. An allocation that is to stop does not count, even before it has ended.
    pub fn taken(&self, node: &str) -> (i64, i64) {
        let there = self.allocations.iter().filter(|allocation| allocation.node == node && !allocation.is_over());
        there.fold((0, 0), |(processor, memory), one| (processor + one.processor, memory + one.memory))
    }

    pub fn count(&self, key: &Key, group: &str) -> i64 {
        let group = self.jobs.get(key).and_then(|job| job.group(group));
        group.map_or(0, |group| number(group, "Count"))
    }
}
