//! The JSON objects of Nomad's answers.

use serde_json::{Map, Value, json};

use super::job::{list, text};
use super::state::{Allocation, Evaluation, Job, NomadNode, State};
use super::text::time;

pub fn job(job: &Job) -> Value {
    let mut shown = job.spec.clone();
    let about = json!({
        "Status": job.status, "StatusDescription": "", "Stable": false, "Version": job.version,
        "SubmitTime": job.submitted, "CreateIndex": job.created, "ModifyIndex": job.modified,
        "JobModifyIndex": job.job_modified, "NomadTokenID": "", "Payload": null,
        "Periodic": null, "ParameterizedJob": null, "Multiregion": null,
    });
    extend(&mut shown, about);
    shown
}

fn extend(whole: &mut Value, own: Value) {
    if let (Some(whole), Value::Object(own)) = (whole.as_object_mut(), own) {
        whole.extend(own);
    }
}

/// A job as in a list. Its meta is included only on request.
pub fn job_stub(state: &State, job: &Job, with_meta: bool) -> Value {
    let spec = &job.spec;
    let mut shown = json!({
        "ID": job.key.1, "Namespace": job.key.0, "ParentID": "", "Name": spec["Name"],
        "Datacenters": spec["Datacenters"], "NodePool": spec["NodePool"], "Multiregion": null, "Type": spec["Type"],
        "Priority": spec["Priority"], "Periodic": false, "ParameterizedJob": false, "Stop": spec["Stop"],
        "Status": job.status, "StatusDescription": "", "JobSummary": summary(state, job), "CreateIndex": job.created,
        "ModifyIndex": job.modified, "JobModifyIndex": job.job_modified, "SubmitTime": job.submitted,
    });
    if with_meta && !spec["Meta"].is_null() {
        extend(&mut shown, json!({"Meta": spec["Meta"]}));
    }
    shown
}

pub fn summary(state: &State, job: &Job) -> Value {
    let groups = list(&job.spec, "TaskGroups").iter().map(|group| {
        let name = text(group, "Name");
        let count = |status: &str| {
            let of_group = state.allocations_of(&job.key).filter(|one| one.group == name);
            of_group.filter(|one| one.client == status).count()
        };
        let last = state.evaluations.iter().rev().find(|one| one.key == job.key && one.status == "complete");
        let queued = last.and_then(|one| one.queued.get(name)).copied().unwrap_or_default();
        let counts = json!({
            "Queued": queued, "Complete": count("complete"), "Failed": count("failed"), "Running": count("running"),
            "Starting": count("pending"), "Lost": count("lost"), "Unknown": count("unknown"),
        });
        (name.to_owned(), counts)
    });
    json!({
        "JobID": job.key.1, "Namespace": job.key.0, "Summary": groups.collect::<Map<_, _>>(),
        "Children": {"Pending": 0, "Running": 0, "Dead": 0}, "CreateIndex": job.created, "ModifyIndex": job.modified,
    })
}

pub fn scale_status(state: &State, job: &Job) -> Value {
    let groups = list(&job.spec, "TaskGroups").iter().map(|group| {
        let name = text(group, "Name");
        let placed = || {
            let of_job = state.allocations_of(&job.key).filter(|one| one.job_created == job.created);
            of_job.filter(|one| one.group == name && !one.is_over())
        };
        let events: Vec<&Value> = job.scalings.iter().rev().filter(|event| text(event, "TaskGroup") == name).collect();
        let shown = json!({
            "Desired": group["Count"], "Placed": placed().count(),
            "Running": placed().filter(|one| one.client == "running").count(),
            "Healthy": placed().filter(|one| one.healthy == Some(true)).count(),
            "Unhealthy": placed().filter(|one| one.healthy == Some(false)).count(),
            "Events": if events.is_empty() { Value::Null } else { json!(events) },
        });
        (name.to_owned(), shown)
    });
    json!({
        "JobID": job.key.1, "Namespace": job.key.0, "JobCreateIndex": job.created, "JobModifyIndex": job.modified,
        "JobStopped": job.is_stopped(), "TaskGroups": groups.collect::<Map<_, _>>(),
    })
}

pub fn evaluation(one: &Evaluation) -> Value {
    let mut shown = json!({
        "ID": one.id, "Namespace": one.key.0, "JobID": one.key.1, "Priority": 50, "Type": "service",
        "TriggeredBy": one.trigger, "Status": one.status, "StatusDescription": one.description,
        "QueuedAllocations": one.queued, "PreviousEval": one.previous, "NextEval": "", "BlockedEval": one.blocked,
        "DeploymentID": one.deployment, "JobModifyIndex": 0, "SnapshotIndex": one.modified, "CreateIndex": one.created,
        "ModifyIndex": one.modified, "CreateTime": one.at, "ModifyTime": one.at, "WaitUntil": time(one.wait_until),
    });
    if !one.failed.is_empty() {
        extend(&mut shown, json!({"FailedTGAllocs": one.failed}));
    }
    shown
}

fn task_states(one: &Allocation) -> Value {
    // The field is null until the node has reported its tasks.
    if one.client == "pending" && one.tasks.values().all(|task| task.events.len() <= 1) {
        return Value::Null;
    }
    let tasks = one.tasks.iter().map(|(name, task)| {
        let shown = json!({
            "State": task.state, "Failed": task.failed, "Restarts": task.restarts, "LastRestart": time(None),
            "StartedAt": time(task.started), "FinishedAt": time(task.finished), "Events": task.events,
        });
        (name.clone(), shown)
    });
    Value::Object(tasks.collect())
}

pub fn allocation_stub(one: &Allocation) -> Value {
    let health = one.healthy.map(|healthy| json!({"Healthy": healthy, "Canary": false, "Timestamp": time(None)}));
    json!({
        "ID": one.id, "EvalID": one.evaluation, "Name": one.name, "Namespace": one.key.0, "NodeID": one.node,
        "NodeName": one.node_name, "JobID": one.key.1, "JobType": one.spec["Type"], "JobVersion": one.version,
        "TaskGroup": one.group, "DesiredStatus": one.desired, "DesiredDescription": one.desired_description,
        "ClientStatus": one.client, "ClientDescription": one.client_description, "DesiredTransition": {},
        "TaskStates": task_states(one), "DeploymentStatus": health, "FollowupEvalID": "", "NextAllocation": one.next,
        "RescheduleTracker": null, "PreemptedAllocations": null, "PreemptedByAllocation": "",
        "CreateIndex": one.created, "ModifyIndex": one.modified, "CreateTime": one.created_at,
        "ModifyTime": one.modified_at,
    })
}

pub fn allocation(one: &Allocation) -> Value {
    let mut shown = allocation_stub(one);
    if let Some(fields) = shown.as_object_mut() {
        ["JobType", "JobVersion"].iter().for_each(|only_listed| drop(fields.remove(*only_listed)));
    }
    let tasks = one
        .tasks
        .keys()
        .map(|name| (name.clone(), json!({"Cpu": {"CpuShares": one.processor}, "Memory": {"MemoryMB": one.memory}})));
    let mut job = one.spec.clone();
    extend(&mut job, json!({"Version": one.version, "CreateIndex": one.job_created}));
    extend(
        &mut shown,
        json!({
            "Job": job, "DeploymentID": one.deployment, "PreviousAllocation": one.previous,
            "AllocModifyIndex": one.modified, "AllocatedResources": {"Tasks": tasks.collect::<Map<_, _>>()},
            "Metrics": {"NodesEvaluated": 1, "NodesFiltered": 0, "NodesExhausted": 0},
        }),
    );
    shown
}

fn node_resources(node: &NomadNode) -> Value {
    json!({
        "Cpu": {"CpuShares": node.processor, "TotalCpuCores": node.processor / 2000},
        "Memory": {"MemoryMB": node.memory}, "Disk": {"DiskMB": 100_000}, "Networks": [], "Devices": null,
        "MinDynamicPort": 20_000, "MaxDynamicPort": 32_000,
    })
}

/// A node as in a list. Its resources are included only on request.
pub fn node_stub(node: &NomadNode, with_resources: bool) -> Value {
    let drivers = node.drivers.iter().map(|driver| {
        let shown = json!({"Attributes": {format!("driver.{driver}"): "true"}, "Detected": true, "Healthy": true,
                           "HealthDescription": "Healthy", "UpdateTime": time(None)});
        (driver.clone(), shown)
    });
    let mut shown = json!({
        "ID": node.id, "Name": node.name, "Address": "127.0.0.1", "Datacenter": node.datacenter,
        "NodePool": "default", "NodeClass": "", "Version": "1.10.0", "Drain": false, "StatusDescription": "",
        "Status": node.status(),
        "SchedulingEligibility": if node.is_eligible { "eligible" } else { "ineligible" },
        "Drivers": drivers.collect::<Map<_, _>>(), "HostVolumes": null, "LastDrain": null, "CreateIndex": 1,
        "ModifyIndex": 1,
    });
    if with_resources {
        let reserved = json!({"Cpu": {"CpuShares": 0}, "Memory": {"MemoryMB": 0}, "Disk": {"DiskMB": 0}});
        extend(&mut shown, json!({"NodeResources": node_resources(node), "ReservedResources": reserved}));
    }
    shown
}

pub fn node(node: &NomadNode) -> Value {
    let mut shown = node_stub(node, true);
    let attributes = json!({"kernel.name": "linux", "cpu.arch": "amd64", "unique.hostname": node.name});
    extend(&mut shown, json!({"Attributes": attributes, "Meta": {}, "Links": {}, "HTTPAddr": "127.0.0.1:4646"}));
    shown
}

pub fn namespace(name: &str) -> Value {
    json!({"Name": name, "Description": "", "Quota": "", "Meta": null, "Capabilities": null, "CreateIndex": 1,
           "ModifyIndex": 1})
}
