//! The scheduler: the decisions of an evaluation, and the reasons why something cannot be placed.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::job::{is_destructive, list, number, text};
use super::lost_nodes::mark_lost;
use super::state::{Allocation, Deployment, Evaluation, Job, Key, NomadNode, State, Task};
use super::text::{identifier, nanoseconds};

/// An order to the nodes after an evaluation.
#[derive(Debug)]
pub enum Order {
    Start(String),
    Stop(String),
    /// The allocation was updated in place, and its deployment waits until it is healthy.
    Watch(String),
}

const NOT_NEEDED: &str = "alloc not needed due to job update";
const UPDATING: &str = "alloc is being updated due to job update";
const RESCHEDULED: &str = "alloc was rescheduled because it failed";
const MIGRATING: &str = "alloc is being migrated";

/// Processes an evaluation: stops, replaces and places allocations, as far as there is capacity.
pub fn process(state: &mut State, id: &str) -> Vec<Order> {
    let Some(evaluation) = state.evaluation(id).cloned() else { return Vec::new() };
    if evaluation.is_over() {
        return Vec::new();
    }
    let mut orders = Vec::new();
    let mut failed = BTreeMap::new();
    let mut queued = BTreeMap::new();
    let key = &evaluation.key;
    let job = state.jobs.get(key).map(|job| (job.spec.clone(), job.created, job.version, job.is_stopped()));
    mark_lost(state, &evaluation, &mut orders);
    stop_others(state, key, job.as_ref().map(|(_, created, _, _)| *created), &mut orders);
    match job {
        Some((spec, _, version, false)) => {
            cancel_deployments(state, key, Some(version));
            for group in list(&spec, "TaskGroups") {
                let left = reconcile(state, &evaluation, group, &mut orders);
                queued.insert(text(group, "Name").to_owned(), left.as_ref().map_or(0, |(count, _)| *count));
                if let Some((_, why)) = left {
                    failed.insert(text(group, "Name").to_owned(), why);
                }
            }
        }
        _ => {
            cancel_deployments(state, key, None);
            for one in state.allocations.iter_mut().filter(|one| one.key == *key && one.desired == "run") {
                stop(one, NOT_NEEDED, &mut orders);
            }
        }
    }
    finish(state, &evaluation, failed, queued);
    state.settle();
    orders
}

/// Stops the allocations of a purged job, if another job with the same name was registered after it.
fn stop_others(state: &mut State, key: &Key, created: Option<u64>, orders: &mut Vec<Order>) {
    let Some(created) = created else { return };
    for one in state.allocations.iter_mut().filter(|one| one.key == *key && one.job_created != created) {
        if one.desired == "run" {
            stop(one, NOT_NEEDED, orders);
        }
    }
}

fn stop(one: &mut Allocation, why: &str, orders: &mut Vec<Order>) {
    one.desired = "stop";
    one.desired_description = why.to_owned();
    one.modified_at = nanoseconds();
    if !one.has_ended() {
        orders.push(Order::Stop(one.id.clone()));
    }
}

/// Ends the deployments of all versions except the current one, or all deployments if the job has ended.
fn cancel_deployments(state: &mut State, key: &Key, version: Option<u64>) {
    for deployment in state.deployments.iter_mut().filter(|deployment| deployment.key == *key) {
        if Some(deployment.version) != version {
            deployment.is_active = false;
        }
    }
}

/// Reconciles one group with its spec. Returns how many allocations could not be placed, and why.
fn reconcile(
    state: &mut State,
    evaluation: &Evaluation,
    group: &Value,
    orders: &mut Vec<Order>,
) -> Option<(u64, Value)> {
    let key = &evaluation.key;
    let name = text(group, "Name");
    let job = state.jobs.get(key)?;
    let (spec, created, version) = (job.spec.clone(), job.created, job.version);
    // An allocation that failed for good still counts, so it is not replaced until the job changes.
    let fills = |one: &Allocation| {
        one.key == *key
            && one.job_created == created
            && one.group == name
            && one.desired == "run"
            && !matches!(one.client, "complete" | "lost")
    };
    let current: Vec<String> = state.allocations.iter().filter(|one| fills(one)).map(|one| one.id.clone()).collect();
    let count = usize::try_from(number(group, "Count")).unwrap_or_default();
    for excess in current.iter().skip(count) {
        if let Some(one) = state.allocation(excess) {
            stop(one, NOT_NEEDED, orders);
        }
    }
    let kept: Vec<String> = current.into_iter().take(count).collect();
    let changed = |state: &State, id: &String| {
        let one = state.allocations.iter().find(|one| one.id == *id);
        one.is_some_and(|one| one.version != version)
    };
    let is_updating = kept.iter().any(|id| changed(state, id));
    let deployment = deploy(state, key, group, is_updating);
    let mut missing = Vec::new();
    for id in &kept {
        let Some(one) = state.allocation(id) else { continue };
        if is_destructive(&one.spec, &spec, name) {
            missing.push(Some((id.clone(), UPDATING)));
        } else if one.is_leaving {
            missing.push(Some((id.clone(), MIGRATING)));
        } else if one.client == "failed" && one.is_due {
            missing.push(Some((id.clone(), RESCHEDULED)));
        } else if one.version != version {
            one.spec = spec.clone();
            one.version = version;
            one.deployment.clone_from(&deployment);
            one.healthy = None;
            orders.push(Order::Watch(id.clone()));
        }
    }
    missing.extend((kept.len()..count).map(|_| None));
    let total = missing.len();
    for (done, replaced) in missing.into_iter().enumerate() {
        let previous = replaced.as_ref().map(|(id, _)| id.clone());
        match find_node(state, &spec, group, previous.as_deref()) {
            Ok(node) => place(state, evaluation, group, &node, replaced, &deployment, orders),
            // Without capacity for the replacement, the running allocation continues.
            Err(why) => return Some(((total - done) as u64, why)),
        }
    }
    None
}

/// The deployment of a version's placements, if the group's update strategy has one.
fn deploy(state: &mut State, key: &Key, group: &Value, is_updating: bool) -> String {
    let Some(job) = state.jobs.get(key) else { return String::new() };
    if let Some(active) = state.active_deployment(job) {
        return active.id.clone();
    }
    let (created, version) = (job.created, job.version);
    let has_update = number(&group["Update"], "MaxParallel") > 0 && number(group, "Count") > 0;
    let had = state.allocations_of(key).any(|one| one.version == version && one.job_created == created);
    if !has_update || (had && !is_updating) {
        return String::new();
    }
    let deployment = Deployment { id: identifier(), key: key.clone(), job_created: created, version, is_active: true };
    let id = deployment.id.clone();
    state.deployments.push(deployment);
    id
}

fn place(
    state: &mut State,
    evaluation: &Evaluation,
    group: &Value,
    node: &NomadNode,
    replaced: Option<(String, &'static str)>,
    deployment: &str,
    orders: &mut Vec<Order>,
) {
    let Some(job) = state.jobs.get(&evaluation.key) else { return };
    let (spec, job_created, version) = (job.spec.clone(), job.created, job.version);
    let (id, index, now) = (identifier(), state.next_index(), nanoseconds());
    let mut reschedules = 0;
    let mut previous = String::new();
    if let Some((replaced, why)) = replaced
        && let Some(one) = state.allocation(&replaced)
    {
        previous.clone_from(&one.id);
        one.next.clone_from(&id);
        reschedules = one.reschedules + i64::from(why == RESCHEDULED);
        stop(one, why, orders);
    }
    let received = json!({"Type": "Received", "Time": now, "DisplayMessage": "Task received by client", "Details": {},
                          "Message": "", "ExitCode": 0, "Signal": 0, "FailsTask": false});
    let task =
        Task { state: "pending", failed: false, restarts: 0, started: None, finished: None, events: vec![received] };
    let tasks = list(group, "Tasks").iter().map(|one| (text(one, "Name").to_owned(), task.clone())).collect();
    let (processor, memory) = asked(group);
    let name = text(group, "Name").to_owned();
    state.allocations.push(Allocation {
        id: id.clone(),
        key: evaluation.key.clone(),
        name: format!("{}.{name}[0]", evaluation.key.1),
        group: name,
        spec,
        job_created,
        version,
        node: node.id.clone(),
        node_name: node.name.clone(),
        evaluation: evaluation.id.clone(),
        deployment: deployment.to_owned(),
        healthy: None,
        desired: "run",
        desired_description: String::new(),
        client: "pending",
        client_description: "",
        tasks,
        previous,
        next: String::new(),
        reschedules,
        is_due: false,
        is_leaving: false,
        processor,
        memory,
        created: index,
        modified: index,
        created_at: now,
        modified_at: now,
    });
    orders.push(Order::Start(id));
}

fn asked(group: &Value) -> (i64, i64) {
    let tasks = list(group, "Tasks").iter().map(|task| &task["Resources"]);
    tasks.fold((0, 0), |(processor, memory), one| (processor + number(one, "CPU"), memory + number(one, "MemoryMB")))
}

/// The node with the most free memory that meets the constraints, or why there is none.
fn find_node(state: &State, spec: &Value, group: &Value, replaced: Option<&str>) -> Result<NomadNode, Value> {
    let datacenters: Vec<&str> = list(spec, "Datacenters").iter().filter_map(Value::as_str).collect();
    let in_reach = state.nodes.iter().filter(|node| node.is_up && node.is_eligible);
    let in_reach: Vec<&NomadNode> =
        in_reach.filter(|node| datacenters.iter().any(|pattern| matches(pattern, &node.datacenter))).collect();
    let (processor, memory) = asked(group);
    let mut available: BTreeMap<&str, u64> = BTreeMap::new();
    let mut filtered: BTreeMap<String, u64> = BTreeMap::new();
    let mut exhausted: BTreeMap<&str, u64> = BTreeMap::new();
    let mut best: Option<(i64, &NomadNode)> = None;
    for node in &in_reach {
        *available.entry(&node.datacenter).or_default() += 1;
        if let Some(constraint) = unmet(spec, group, node) {
            *filtered.entry(constraint).or_default() += 1;
            continue;
        }
        let (mut taken_processor, mut taken_memory) = state.taken(&node.id);
        // The replaced allocation frees its resources for its replacement.
        let freed = state.allocations.iter().find(|one| Some(one.id.as_str()) == replaced && one.node == node.id);
        if let Some(freed) = freed.filter(|one| !one.is_over()) {
            taken_processor -= freed.processor;
            taken_memory -= freed.memory;
        }
        if taken_processor + processor > node.processor {
            *exhausted.entry("cpu").or_default() += 1;
        } else if taken_memory + memory > node.memory {
            *exhausted.entry("memory").or_default() += 1;
        } else {
            let left = node.memory - taken_memory;
            if best.is_none_or(|(most, _)| left > most) {
                best = Some((left, node));
            }
        }
    }
    let sum = |of: &mut dyn Iterator<Item = &u64>| of.sum::<u64>();
    best.map(|(_, node)| node.clone()).ok_or_else(|| {
        json!({
            "NodesEvaluated": in_reach.len(),
            "NodesFiltered": sum(&mut filtered.values()),
            "NodesInPool": state.nodes.len(),
            "NodesPool": "default",
            "NodesAvailable": available,
            "ClassFiltered": null,
            "ConstraintFiltered": if filtered.is_empty() { Value::Null } else { json!(filtered) },
            "NodesExhausted": sum(&mut exhausted.values()),
            "ClassExhausted": null,
            "DimensionExhausted": if exhausted.is_empty() { Value::Null } else { json!(exhausted) },
            "QuotaExhausted": null,
            "ResourcesExhausted": null,
            "Scores": null,
            "AllocationTime": 41_000,
            "CoalescedFailures": 0,
            "ScoreMetaData": null,
        })
    })
}

fn matches(pattern: &str, datacenter: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => datacenter.starts_with(start) && datacenter.ends_with(end),
        None => pattern == datacenter,
    }
}

/// The first constraint of the job, the group or a task that a node does not meet.
fn unmet(spec: &Value, group: &Value, node: &NomadNode) -> Option<String> {
    let tasks = list(group, "Tasks");
    if tasks.iter().any(|task| !node.drivers.iter().any(|driver| driver == text(task, "Driver"))) {
        return Some("missing drivers".to_owned());
    }
    let constraints = [spec, group].into_iter().chain(tasks).flat_map(|of| list(of, "Constraints"));
    let broken = |constraint: &&Value| {
        let value = match text(constraint, "LTarget") {
            "${node.datacenter}" => node.datacenter.as_str(),
            "${node.unique.name}" => node.name.as_str(),
            "${node.unique.id}" => node.id.as_str(),
            "${attr.kernel.name}" => "linux",
            "${attr.cpu.arch}" => "amd64",
            _ => "",
        };
        let is_equal = value == text(constraint, "RTarget");
        match text(constraint, "Operand") {
            "" | "=" | "==" | "is" => !is_equal,
            "!=" | "not" => is_equal,
            // Other operators need attributes that the nodes of the fake do not have.
            _ => false,
        }
    };
    let message = |of: &Value| {
        let operand = if text(of, "Operand").is_empty() { "=" } else { text(of, "Operand") };
        format!("{} {operand} {}", text(of, "LTarget"), text(of, "RTarget"))
    };
    constraints.into_iter().find(broken).map(message)
}

/// Ends an evaluation. Allocations that could not be placed wait in a blocked evaluation. A job has at most one of
/// those.
fn finish(state: &mut State, evaluation: &Evaluation, failed: BTreeMap<String, Value>, queued: BTreeMap<String, u64>) {
    let index = state.next_index();
    let was_blocked = evaluation.trigger == "queued-allocs";
    let is_stuck = !failed.is_empty();
    for other in state.evaluations.iter_mut().filter(|other| other.key == evaluation.key && other.id != evaluation.id) {
        if other.status == "blocked" {
            other.status = "canceled";
            other.description = format!("evaluation {:?} successful", evaluation.id);
            other.modified = index;
        }
    }
    let job = state.jobs.get(&evaluation.key);
    let deployment = job.and_then(|job: &Job| state.active_deployment(job)).map(|active| active.id.clone());
    let mut blocked = String::new();
    if is_stuck && !was_blocked {
        let waiting = Evaluation {
            id: identifier(),
            status: "blocked",
            description: "created to place remaining allocations".to_owned(),
            trigger: "queued-allocs",
            previous: evaluation.id.clone(),
            failed: failed.clone(),
            queued: queued.clone(),
            created: index,
            modified: index,
            at: nanoseconds(),
            ..evaluation.clone()
        };
        blocked.clone_from(&waiting.id);
        state.evaluations.push(waiting);
    }
    if let Some(done) = state.evaluation(&evaluation.id) {
        done.status = if is_stuck && was_blocked { "blocked" } else { "complete" };
        done.failed = failed;
        done.queued = queued;
        done.blocked = blocked;
        done.deployment = deployment.unwrap_or_default();
        done.modified = index;
    }
}
