//! The effect and the answer of each operation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::cluster::Cluster;
use super::job::{canonical, driver_refusal, is_same, list, refusals, text};
use super::operation::NomadOperation;
use super::state::{Job, Key, State};
use super::text::{errors, nanoseconds};
use super::{NomadOptions, view};

/// A request that has passed all checks except those of its meaning.
#[derive(Debug)]
pub struct Request {
    pub operation: NomadOperation,
    pub name: String,
    pub query: Vec<(String, String)>,
    pub body: Value,
}

impl Request {
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    pub fn is_set(&self, name: &str) -> bool {
        matches!(self.parameter(name), Some("true" | "1"))
    }

    /// The query has precedence over the body, and the body over the job. They need not agree.
    pub fn namespace(&self) -> &str {
        let of_job = Some(text(&self.body["Job"], "Namespace"));
        let said = [self.parameter("namespace"), Some(text(&self.body, "Namespace")), of_job];
        said.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or("default")
    }

    fn key(&self) -> Key {
        (self.namespace().to_owned(), self.name.clone())
    }
}

#[derive(Debug)]
pub enum NomadFakeResponse {
    Json {
        body: Value,
        next_token: Option<String>,
    },
    /// An error as Nomad reports it.
    Text {
        status: u16,
        message: String,
    },
}

impl NomadFakeResponse {
    fn of(body: Value) -> Self {
        Self::Json { body, next_token: None }
    }

    pub fn error(status: u16, message: impl Into<String>) -> Self {
        Self::Text { status, message: message.into() }
    }
}

/// Carries out a request. Logs are handled elsewhere, because they are not JSON.
pub fn answer(cluster: &Arc<Cluster>, options: &NomadOptions, request: &Request) -> NomadFakeResponse {
    let answer = match request.operation {
        NomadOperation::Register => register(cluster, request),
        NomadOperation::Deregister => deregister(cluster, request),
        NomadOperation::Scale => scale(cluster, request),
        NomadOperation::Validate => validate(&cluster.state(), request),
        NomadOperation::StopAllocation => match cluster.move_away(&request.name) {
            Some(evaluation) => {
                let index = cluster.state().index;
                NomadFakeResponse::of(json!({"EvalID": evaluation, "Index": index}))
            }
            None => NomadFakeResponse::error(404, "allocation not found"),
        },
        _ => read(&cluster.state(), options, request),
    };
    cluster.announce();
    answer
}

fn read(state: &State, options: &NomadOptions, request: &Request) -> NomadFakeResponse {
    let key = request.key();
    let name = request.name.as_str();
    let or_none = |found: Option<Value>, message: &str| {
        found.map_or_else(|| NomadFakeResponse::error(404, message), NomadFakeResponse::of)
    };
    let of_job = |show: &dyn Fn(&Job) -> Value| or_none(state.jobs.get(&key).map(show), "job not found");
    let is_visible = |namespace: &str| request.namespace() == "*" || request.namespace() == namespace;
    match request.operation {
        NomadOperation::List => list_jobs(state, request),
        NomadOperation::Read => of_job(&view::job),
        NomadOperation::Summary => of_job(&|job| view::summary(state, job)),
        NomadOperation::ScaleStatus => of_job(&|job| view::scale_status(state, job)),
        NomadOperation::Allocations => {
            // Allocations of an earlier job with the same name, which was purged, are returned only if `all` is set.
            let created = state.jobs.get(&key).map(|job| job.created).filter(|_| !request.is_set("all"));
            let all = state.allocations_of(&key).filter(|one| created.is_none_or(|index| one.job_created == index));
            NomadFakeResponse::of(all.map(view::allocation_stub).collect())
        }
        NomadOperation::Evaluations => {
            let all = state.evaluations.iter().filter(|evaluation| evaluation.key == key);
            NomadFakeResponse::of(all.map(view::evaluation).collect())
        }
        NomadOperation::Evaluation => {
            let found = state.evaluations.iter().find(|evaluation| evaluation.id == name);
            or_none(found.map(view::evaluation), "eval not found")
        }
        NomadOperation::EvaluationAllocations => {
            let all = state.allocations.iter().filter(|one| one.evaluation == name);
            NomadFakeResponse::of(all.map(view::allocation_stub).collect())
        }
        NomadOperation::Allocation => {
            let found = state.allocations.iter().find(|one| one.id == name);
            or_none(found.map(view::allocation), "alloc not found")
        }
        NomadOperation::AllAllocations => {
            let prefix = request.parameter("prefix").unwrap_or_default();
            let all = state.allocations.iter().filter(|one| is_visible(&one.key.0) && one.id.starts_with(prefix));
            NomadFakeResponse::of(all.map(view::allocation_stub).collect())
        }
        NomadOperation::Nodes => NomadFakeResponse::of(
            state.nodes.iter().map(|node| view::node_stub(node, request.is_set("resources"))).collect(),
        ),
        NomadOperation::Node => or_none(state.node(name).map(view::node), "node not found"),
        NomadOperation::Namespaces => {
            NomadFakeResponse::of(state.namespaces.iter().map(|one| view::namespace(one)).collect())
        }
        NomadOperation::Namespace => {
            let found = state.namespaces.iter().find(|known| *known == name);
            or_none(found.map(|known| view::namespace(known)), "Namespace not found")
        }
        NomadOperation::Leader => NomadFakeResponse::of(json!("127.0.0.1:4647")),
        NomadOperation::Agent => {
            let version = json!({"Version": "1.10.0", "VersionPrerelease": ""});
            let config = json!({"Region": "global", "Datacenter": "dc1", "Version": version});
            NomadFakeResponse::of(
                json!({"config": config, "member": {"Name": "server", "Status": "alive"}, "stats": {}}),
            )
        }
        NomadOperation::Token => NomadFakeResponse::of(json!({
            "AccessorID": "6c2d4e52-2d1f-4f5c-9c9e-4c1f1d3a0b11", "SecretID": options.token, "Name": "greenroom",
            "Type": if options.is_management { "management" } else { "client" }, "Policies": ["greenroom"],
            "Roles": null, "Global": false, "CreateIndex": 1, "ModifyIndex": 1,
        })),
        other => unreachable!("{other:?} is no read"),
    }
}

/// Sorted by namespace and name. The token of the next page is its first entry.
fn list_jobs(state: &State, request: &Request) -> NomadFakeResponse {
    let namespace = request.namespace();
    let prefix = request.parameter("prefix").unwrap_or_default();
    let from = request.parameter("next_token").unwrap_or_default();
    let page: usize = request.parameter("per_page").and_then(|size| size.parse().ok()).unwrap_or_default();
    let token = |job: &Job| format!("{}.{}", job.key.0, job.key.1);
    let visible = state.jobs.values().filter(|job| namespace == "*" || job.key.0 == namespace);
    let mut found: Vec<&Job> =
        visible.filter(|job| job.key.1.starts_with(prefix) && token(job).as_str() >= from).collect();
    if request.is_set("reverse") {
        found.reverse();
    }
    let rest = if page == 0 { Vec::new() } else { found.split_off(page.min(found.len())) };
    let with_meta = request.is_set("meta");
    let body = found.iter().map(|job| view::job_stub(state, job, with_meta)).collect();
    NomadFakeResponse::Json { body, next_token: rest.first().map(|job| token(job)) }
}

/// The fields that every answer to a change has.
fn changed(index: u64, own: Value) -> NomadFakeResponse {
    let mut body = json!({"Index": index, "LastContact": 0, "KnownLeader": false, "NextToken": ""});
    if let (Some(body), Value::Object(own)) = (body.as_object_mut(), own) {
        body.extend(own);
    }
    NomadFakeResponse::of(body)
}

/// Records a violation, and answers with Nomad's error.
fn refuse(state: &mut State, status: u16, message: String) -> NomadFakeResponse {
    state.violations.push(message.clone());
    NomadFakeResponse::error(status, message)
}

fn enforce(existing: Option<&Job>, index: u64) -> Result<(), String> {
    let wrong = match existing {
        Some(_) if index == 0 => "job already exists".to_owned(),
        Some(job) if job.job_modified != index => {
            format!("job exists with conflicting job modify index: {}", job.job_modified)
        }
        None if index != 0 => "job does not exist".to_owned(),
        _ => return Ok(()),
    };
    Err(format!("Enforcing job modify index {index}: {wrong}"))
}

fn register(cluster: &Arc<Cluster>, request: &Request) -> NomadFakeResponse {
    let mut state = cluster.state();
    let body = &request.body;
    if body["Job"].is_null() {
        return refuse(&mut state, 400, "Job must be specified".to_owned());
    }
    let Some(id) = body["Job"]["ID"].as_str() else {
        return refuse(&mut state, 400, "Job ID hasn't been provided".to_owned());
    };
    if !request.name.is_empty() && request.name != id {
        return refuse(&mut state, 400, "Job ID does not match name".to_owned());
    }
    let key = (request.namespace().to_owned(), id.to_owned());
    // In Nomad, the namespace in the query has precedence over the job's. A client that sends two different ones has a
    // bug.
    let said = text(&body["Job"], "Namespace");
    if !said.is_empty() && said != key.0 {
        let message = format!("mismatched request namespace in request: {:?}, {said:?}", key.0);
        return refuse(&mut state, 500, message);
    }
    let spec = canonical(&body["Job"], &key.0);
    let wrong = refusals(&spec);
    if !wrong.is_empty() {
        return refuse(&mut state, 500, errors(&wrong));
    }
    if !state.namespaces.contains(&key.0) {
        let message = format!("job {id:?} is in nonexistent namespace {:?}", key.0);
        return NomadFakeResponse::error(500, errors(&[message]));
    }
    let pool = text(&spec, "NodePool");
    if pool != "default" && pool != "all" {
        return NomadFakeResponse::error(500, format!("job {id:?} is in nonexistent node pool {pool:?}"));
    }
    let tasks = list(&spec, "TaskGroups").iter().flat_map(|group| list(group, "Tasks"));
    let driver: Vec<String> = tasks.filter_map(driver_refusal).collect();
    state.violations.extend(driver);
    let existing = state.jobs.get(&key);
    if body["EnforceIndex"] == json!(true)
        && let Err(message) = enforce(existing, body["JobModifyIndex"].as_u64().unwrap_or_default())
    {
        return NomadFakeResponse::error(500, message);
    }
    // Without a change, there is no new version. The answered index is the one that status changes also increase.
    let same = existing.filter(|job| is_same(&job.spec, &spec)).map(|job| job.modified);
    let index = same.unwrap_or_else(|| state.upsert(&key, spec));
    let evaluation = state.evaluate(&key, "job-register");
    let now = state.index;
    drop(state);
    cluster.process_later(evaluation.clone());
    let at = if same.is_some() { now } else { index };
    changed(at, json!({"EvalID": evaluation, "EvalCreateIndex": at, "JobModifyIndex": index, "Warnings": ""}))
}

fn deregister(cluster: &Arc<Cluster>, request: &Request) -> NomadFakeResponse {
    let mut state = cluster.state();
    let key = request.key();
    let Some(job) = state.jobs.get(&key) else {
        // A job that does not exist counts as deleted.
        return changed(0, json!({"EvalID": "", "EvalCreateIndex": 0, "JobModifyIndex": 0}));
    };
    let mut spec = job.spec.clone();
    let index = if request.is_set("purge") {
        state.jobs.remove(&key);
        state.next_index()
    } else {
        spec["Stop"] = json!(true);
        state.upsert(&key, spec)
    };
    let evaluation = state.evaluate(&key, "job-deregister");
    drop(state);
    cluster.process_later(evaluation.clone());
    changed(index, json!({"EvalID": evaluation, "EvalCreateIndex": index, "JobModifyIndex": index}))
}

fn scale(cluster: &Arc<Cluster>, request: &Request) -> NomadFakeResponse {
    let mut state = cluster.state();
    let (key, body) = (request.key(), &request.body);
    let (target, count) = (&body["Target"], body["Count"].as_i64());
    let other = |field: &str, expected: &str| !text(target, field).is_empty() && text(target, field) != expected;
    if other("Job", &key.1) {
        return refuse(&mut state, 400, "job ID in payload did not match URL".to_owned());
    }
    if other("Namespace", &key.0) {
        return refuse(&mut state, 400, "namespace in payload did not match header".to_owned());
    }
    let group = text(target, "Group").to_owned();
    if group.is_empty() {
        return refuse(&mut state, 400, "missing task group name for scaling action".to_owned());
    }
    if count.is_some_and(|count| count < 0) {
        return refuse(&mut state, 400, "scaling action count can't be negative".to_owned());
    }
    if count.is_some() && body["Error"] == json!(true) {
        let message = "scaling action should not contain count if error is true";
        return refuse(&mut state, 400, message.to_owned());
    }
    let Some(job) = state.jobs.get(&key) else {
        return NomadFakeResponse::error(404, format!("job {:?} not found", key.1));
    };
    let Some(group_index) = list(&job.spec, "TaskGroups").iter().position(|one| text(one, "Name") == group) else {
        let message = format!("task group {group:?} specified for scaling does not exist in job");
        return refuse(&mut state, 400, message);
    };
    let before = state.count(&key, &group);
    let mut event = json!({"TaskGroup": group, "Time": nanoseconds(), "Count": count, "PreviousCount": before,
                           "Message": body["Message"], "Error": body["Error"] == json!(true), "Meta": body["Meta"]});
    let (mut evaluation, mut index) = (String::new(), job.modified);
    if let Some(count) = count {
        if state.active_deployment(job).is_some() {
            return NomadFakeResponse::error(400, "job scaling blocked due to active deployment");
        }
        let expected = body["JobModifyIndex"].as_u64().unwrap_or_default();
        if expected > 0
            && let Err(message) = enforce(Some(job), expected)
        {
            return NomadFakeResponse::error(500, message);
        }
        let mut spec = job.spec.clone();
        spec["TaskGroups"][group_index]["Count"] = json!(count);
        // This makes a new version even if nothing changes.
        index = state.upsert(&key, spec);
        evaluation = state.evaluate(&key, "job-scaling");
        event["EvalID"] = json!(evaluation);
    }
    if let Some(job) = state.jobs.get_mut(&key) {
        job.scalings.push(event);
    }
    let now = state.next_index();
    drop(state);
    if !evaluation.is_empty() {
        cluster.process_later(evaluation.clone());
    }
    let created = if evaluation.is_empty() { 0 } else { now };
    changed(now, json!({"EvalID": evaluation, "EvalCreateIndex": created, "JobModifyIndex": index, "Warnings": ""}))
}

/// Returns the errors in a job. They are no violation of the client.
fn validate(state: &State, request: &Request) -> NomadFakeResponse {
    if request.body["Job"].is_null() {
        return NomadFakeResponse::error(400, "Job must be specified");
    }
    let spec = canonical(&request.body["Job"], request.namespace());
    let mut wrong = refusals(&spec);
    if !state.namespaces.iter().any(|known| known == request.namespace()) {
        wrong.push(format!("job {:?} is in nonexistent namespace {:?}", text(&spec, "ID"), request.namespace()));
    }
    let error = if wrong.is_empty() { String::new() } else { errors(&wrong) };
    let found = if wrong.is_empty() { Value::Null } else { json!(wrong) };
    NomadFakeResponse::of(
        json!({"DriverConfigValidated": true, "ValidationErrors": found, "Error": error, "Warnings": ""}),
    )
}
