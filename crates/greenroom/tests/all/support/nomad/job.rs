//! Jobs as Nomad accepts them: its defaults, and the jobs that it refuses.

use serde_json::{Map, Value, json};

use super::text::{duration, errors};

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;

/// Fields that describe the state of a job. A client may send them, and Nomad ignores them.
const ABOUT: [&str; 9] = [
    "Status",
    "StatusDescription",
    "Stable",
    "Version",
    "CreateIndex",
    "ModifyIndex",
    "JobModifyIndex",
    "SubmitTime",
    "NomadTokenID",
];

/// The job with all defaults filled in. Two jobs with the same meaning are equal afterwards.
pub fn canonical(job: &Value, namespace: &str) -> Value {
    let mut job = job.clone();
    let Some(fields) = job.as_object_mut() else { return job };
    ABOUT.iter().for_each(|about| drop(fields.remove(*about)));
    fields.insert("Namespace".to_owned(), json!(namespace));
    fields.insert("Region".to_owned(), json!("global"));
    let name = fields.get("ID").cloned().unwrap_or_default();
    fill(fields, json!({"Name": name, "ParentID": "", "Priority": 50, "Stop": false, "Type": "service"}));
    fill(
        fields,
        json!({"AllAtOnce": false, "Dispatched": false, "NodePool": "default", "Meta": null, "Constraints": null}),
    );
    fill(fields, json!({"Affinities": null, "Spreads": null, "TaskGroups": null, "Datacenters": null}));
    empty_is_none(fields, &["Meta", "Constraints", "Affinities", "Spreads"]);
    if fields["Datacenters"].as_array().is_none_or(Vec::is_empty) {
        fields.insert("Datacenters".to_owned(), json!(["*"]));
    }
    let kind = fields["Type"].as_str().unwrap_or_default().to_owned();
    // A job without update settings gets deployments, which block scaling until they have ended.
    if kind == "service" {
        fill(fields, json!({"Update": {}}));
    }
    if let Some(update) = object(fields, "Update") {
        fill(update, update_defaults());
    }
    let inherited = ["Update", "Reschedule", "Migrate"].map(|of| fields.get(of).cloned().unwrap_or_default());
    fields.remove("Reschedule");
    fields.remove("Migrate");
    for group in fields.get_mut("TaskGroups").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(group) = group.as_object_mut() {
            canonical_group(group, &kind, &inherited);
        }
    }
    job
}

fn update_defaults() -> Value {
    json!({
        "Stagger": 30 * SECOND, "MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 10 * SECOND,
        "HealthyDeadline": 5 * MINUTE, "ProgressDeadline": 10 * MINUTE, "AutoRevert": false, "AutoPromote": false,
        "Canary": 0,
    })
}

fn canonical_group(group: &mut Map<String, Value>, kind: &str, inherited: &[Value; 3]) {
    let is_service = kind == "service";
    fill(group, json!({"Name": "", "Count": 1, "Meta": null, "Constraints": null, "Networks": null, "Tasks": null}));
    empty_is_none(group, &["Meta", "Constraints", "Affinities", "Spreads", "Networks", "Services"]);
    fill(group, json!({"EphemeralDisk": {}, "RestartPolicy": {}, "ReschedulePolicy": {}, "Update": {}, "Migrate": {}}));
    let restart = if is_service {
        json!({"Attempts": 2, "Interval": 30 * MINUTE, "Delay": 15 * SECOND, "Mode": "fail", "RenderTemplates": false})
    } else {
        json!({"Attempts": 3, "Interval": 24 * 60 * MINUTE, "Delay": 15 * SECOND, "Mode": "fail",
               "RenderTemplates": false})
    };
    let reschedule = if is_service {
        json!({"Attempts": 0, "Interval": 0, "Delay": 30 * SECOND, "DelayFunction": "exponential",
               "MaxDelay": 60 * MINUTE, "Unlimited": true})
    } else {
        json!({"Attempts": 1, "Interval": 24 * 60 * MINUTE, "Delay": 5 * SECOND, "DelayFunction": "constant",
               "MaxDelay": 0, "Unlimited": false})
    };
    let migrate = json!({"MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 10 * SECOND,
                         "HealthyDeadline": 5 * MINUTE});
    let disk = json!({"SizeMB": 300, "Sticky": false, "Migrate": false});
    let [update_of_job, reschedule_of_job, migrate_of_job] = inherited;
    let filled = [
        ("EphemeralDisk", Value::Null, disk),
        ("RestartPolicy", Value::Null, restart.clone()),
        ("ReschedulePolicy", reschedule_of_job.clone(), reschedule),
        ("Update", update_of_job.clone(), update_defaults()),
        ("Migrate", migrate_of_job.clone(), migrate),
    ];
    for (name, of_job, defaults) in filled {
        if let Some(policy) = object(group, name) {
            fill(policy, of_job);
            fill(policy, defaults);
        }
    }
    let restart = group["RestartPolicy"].clone();
    for task in group.get_mut("Tasks").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(task) = task.as_object_mut() else { continue };
        fill(task, json!({"Name": "", "Driver": "", "User": "", "Config": null, "Env": null, "Meta": null}));
        fill(task, json!({"KillTimeout": 5 * SECOND, "KillSignal": "", "Leader": false, "ShutdownDelay": 0}));
        fill(task, json!({"Resources": {}, "LogConfig": {}, "RestartPolicy": {}}));
        empty_is_none(task, &["Config", "Env", "Meta", "Constraints", "Affinities", "Services", "Templates"]);
        if let Some(resources) = object(task, "Resources") {
            let has_cores = resources.get("Cores").is_some_and(|cores| !cores.is_null());
            fill(resources, json!({"Cores": 0, "CPU": if has_cores { 0 } else { 100 }, "MemoryMB": 300}));
            fill(resources, json!({"MemoryMaxMB": 0, "DiskMB": 0}));
        }
        if let Some(logs) = object(task, "LogConfig") {
            fill(logs, json!({"MaxFiles": 10, "MaxFileSizeMB": 10, "Disabled": false}));
        }
        if let Some(policy) = object(task, "RestartPolicy") {
            fill(policy, restart.clone());
        }
    }
}

/// Sets the fields that are missing or null.
fn fill(fields: &mut Map<String, Value>, defaults: Value) {
    let Value::Object(defaults) = defaults else { return };
    for (name, value) in defaults {
        let field = fields.entry(name).or_insert(Value::Null);
        if field.is_null() {
            *field = value;
        }
    }
}

fn object<'a>(fields: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    fields.get_mut(name)?.as_object_mut()
}

/// Nomad treats an empty map or list like a missing one.
fn empty_is_none(fields: &mut Map<String, Value>, names: &[&str]) {
    for name in names {
        let field = fields.entry(*name).or_insert(Value::Null);
        let is_empty = field.as_object().is_some_and(Map::is_empty) || field.as_array().is_some_and(Vec::is_empty);
        if is_empty {
            *field = Value::Null;
        }
    }
}

/// Whether two canonical jobs have the same meaning. A null field counts as missing.
pub fn is_same(before: &Value, now: &Value) -> bool {
    without_nulls(before) == without_nulls(now)
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let said = fields.iter().filter(|(_, field)| !field.is_null());
            Value::Object(said.map(|(name, field)| (name.clone(), without_nulls(field))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        plain => plain.clone(),
    }
}

pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

pub fn number(value: &Value, field: &str) -> i64 {
    value[field].as_i64().unwrap_or_default()
}

pub fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// All reasons for which Nomad would refuse a canonical job, with Nomad's texts.
pub fn refusals(job: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut refuse = |is_wrong: bool, message: String| is_wrong.then(|| wrong.push(message));
    let (id, kind) = (text(job, "ID"), text(job, "Type"));
    refuse(id.is_empty(), "Missing job ID".to_owned());
    refuse(id.contains(' '), "Job ID contains a space".to_owned());
    refuse(id.contains('\0'), "Job ID contains a null character".to_owned());
    refuse(text(job, "Name").is_empty(), "Missing job name".to_owned());
    refuse(text(job, "Name").contains('\0'), "Job Name contains a null character".to_owned());
    let known = ["service", "batch", "system", "sysbatch"].contains(&kind);
    refuse(!known, format!("Invalid job type: {kind:?}"));
    let nowhere = list(job, "Datacenters").iter().any(|datacenter| datacenter.as_str() == Some(""));
    refuse(nowhere, "Job datacenter must be non-empty string".to_owned());
    let groups = list(job, "TaskGroups");
    refuse(groups.is_empty(), "Missing job task groups".to_owned());
    for (index, group) in groups.iter().enumerate() {
        let name = text(group, "Name");
        refuse(name.is_empty(), format!("Job task group {} missing name", index + 1));
        let first = groups.iter().position(|other| text(other, "Name") == name).unwrap_or(index);
        let redefined = format!("Job task group {} redefines '{name}' from group {}", index + 1, first + 1);
        refuse(first < index && !name.is_empty(), redefined);
    }
    for group in groups {
        let of_group = refusals_of_group(group, kind);
        let message = format!("Task group {} validation failed: {}", text(group, "Name"), errors(&of_group));
        refuse(!of_group.is_empty(), message);
    }
    let priority = number(job, "Priority");
    refuse(!(1..=100).contains(&priority), "job priority must be between [1, 100]".to_owned());
    wrong
}

fn refusals_of_group(group: &Value, kind: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let tasks = list(group, "Tasks");
    let mut refuse = |is_wrong: bool, message: String| is_wrong.then(|| wrong.push(message));
    refuse(text(group, "Name").is_empty(), "Missing task group name".to_owned());
    refuse(number(group, "Count") < 0, "Task group count can't be negative".to_owned());
    refuse(tasks.is_empty(), "Missing tasks for task group".to_owned());
    let disk = number(&group["EphemeralDisk"], "SizeMB");
    refuse(disk < 10, format!("minimum DiskMB value is 10; got {disk}"));
    for (index, task) in tasks.iter().enumerate() {
        let name = text(task, "Name");
        refuse(name.is_empty(), format!("Task {} missing name", index + 1));
        let first = tasks.iter().position(|other| text(other, "Name") == name).unwrap_or(index);
        refuse(first < index, format!("Task {} redefines '{name}' from task {}", index + 1, first + 1));
    }
    wrong.extend(refusals_of_restart(&group["RestartPolicy"]));
    wrong.extend(refusals_of_reschedule(&group["ReschedulePolicy"]));
    if kind == "service" {
        wrong.extend(refusals_of_update(&group["Update"]));
    }
    for task in tasks {
        let of_task = refusals_of_task(task, group, disk);
        if !of_task.is_empty() {
            wrong.push(format!("Task {} validation failed: {}", text(task, "Name"), errors(&of_task)));
        }
    }
    wrong
}

fn refusals_of_restart(policy: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mode, attempts) = (text(policy, "Mode"), number(policy, "Attempts"));
    let (interval, delay) = (number(policy, "Interval"), number(policy, "Delay"));
    let mut refuse = |is_wrong: bool, message: String| is_wrong.then(|| wrong.push(message));
    refuse(!["delay", "fail"].contains(&mode), format!("Unsupported restart mode: {mode:?}"));
    let ambiguous = format!("Restart policy {mode:?} with {attempts} attempts is ambiguous");
    refuse(attempts == 0 && mode != "fail", ambiguous);
    let short = format!("Interval can not be less than 5s (got {})", duration(interval));
    refuse(interval < 5 * SECOND, short);
    let (shown, wait) = (duration(interval), duration(delay));
    let many =
        format!("Nomad can't restart the TaskGroup {attempts} times in an interval of {shown} with a delay of {wait}");
    refuse(attempts.saturating_mul(delay) > interval, many);
    wrong
}

fn refusals_of_reschedule(policy: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let attempts = number(policy, "Attempts");
    let unlimited = policy["Unlimited"] == json!(true);
    if attempts <= 0 && !unlimited {
        return wrong;
    }
    let (interval, delay, most) = (number(policy, "Interval"), number(policy, "Delay"), number(policy, "MaxDelay"));
    let function = text(policy, "DelayFunction");
    let mut refuse = |is_wrong: bool, message: String| is_wrong.then(|| wrong.push(message));
    refuse(attempts > 0 && interval <= 0, "Interval must be a non zero value if Attempts > 0".to_owned());
    refuse(attempts > 0 && unlimited, "If Attempts >0, Unlimited cannot also be set to true".to_owned());
    refuse(delay < 5 * SECOND, format!("Delay cannot be less than 5s (got {})", duration(delay)));
    let known = ["constant", "exponential", "fibonacci"];
    let unknown = format!("Invalid delay function {function:?}, must be one of {known:?}");
    refuse(!known.contains(&function), unknown);
    let less = format!("Max Delay cannot be less than Delay {} (got {})", duration(delay), duration(most));
    refuse(function != "constant" && most < delay, less);
    wrong
}

fn refusals_of_update(update: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let (least, healthy) = (number(update, "MinHealthyTime"), number(update, "HealthyDeadline"));
    let (progress, check) = (number(update, "ProgressDeadline"), text(update, "HealthCheck"));
    let mut refuse = |is_wrong: bool, message: String| is_wrong.then(|| wrong.push(message));
    let unknown = !["checks", "task_states", "manual"].contains(&check);
    refuse(unknown, format!("Invalid health check given: {check:?}"));
    let parallel = number(update, "MaxParallel");
    refuse(parallel < 0, format!("Max parallel can not be less than zero: {parallel} < 0"));
    refuse(healthy <= 0, format!("Healthy deadline must be greater than zero: {}", duration(healthy)));
    let (shown, deadline) = (duration(healthy), duration(progress));
    let late = format!("Minimum healthy time must be less than healthy deadline: {} > {shown}", duration(least));
    refuse(least >= healthy, late);
    let longer = format!("Healthy deadline must be less than progress deadline: {shown} > {deadline}");
    refuse(progress != 0 && healthy >= progress, longer);
    let stagger = number(update, "Stagger");
    refuse(stagger <= 0, format!("Stagger must be greater than zero: {}", duration(stagger)));
    wrong
}

fn refusals_of_task(task: &Value, group: &Value, disk: i64) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut refuse = |is_wrong: bool, message: String| is_wrong.then(|| wrong.push(message));
    let name = text(task, "Name");
    refuse(name.is_empty(), "Missing task name".to_owned());
    refuse(name == "alloc", "Task cannot be named \"alloc\"".to_owned());
    refuse(name.contains(['/', '\\']), "Task name cannot include slashes".to_owned());
    refuse(text(task, "Driver").is_empty(), "Missing task driver".to_owned());
    let (timeout, progress) = (number(task, "KillTimeout"), number(&group["Update"], "ProgressDeadline"));
    refuse(timeout < 0, "KillTimeout must be a positive value".to_owned());
    let (shown, deadline) = (duration(timeout), duration(progress));
    let longer = format!("KillTimout ({shown}) longer than the group's ProgressDeadline ({deadline})");
    refuse(progress > 0 && timeout > progress, longer);
    refuse(number(task, "ShutdownDelay") < 0, "ShutdownDelay must be a positive value".to_owned());
    let resources = &task["Resources"];
    let (processor, cores) = (number(resources, "CPU"), number(resources, "Cores"));
    let (memory, most) = (number(resources, "MemoryMB"), number(resources, "MemoryMaxMB"));
    let both = "Task can only ask for 'cpu' or 'cores' resource, not both.".to_owned();
    refuse(cores > 0 && processor > 0, both);
    refuse(processor < 1 && cores == 0, format!("minimum CPU value is 1; got {processor}"));
    refuse(memory < 10, format!("minimum MemoryMB value is 10; got {memory}"));
    let small = format!("MemoryMaxMB value ({most}) should be larger than MemoryMB value ({memory})");
    refuse(most != 0 && most != -1 && most < memory, small);
    let no_disk = "Task can't ask for disk resources, they have to be specified at the task group level.".to_owned();
    refuse(number(resources, "DiskMB") > 0, no_disk);
    let (files, size) = (number(&task["LogConfig"], "MaxFiles"), number(&task["LogConfig"], "MaxFileSizeMB"));
    refuse(files < 1, format!("minimum number of files is 1; got {files}"));
    refuse(size < 1, format!("minimum file size is 1MB; got {size}"));
    let storage = files.saturating_mul(size);
    let message = format!("log storage ({storage} MB) must be less than requested disk capacity ({disk} MB)");
    refuse(disk <= storage, message);
    wrong
}

/// The error in the configuration of the docker driver. The servers accept it, and the task fails on its node with this
/// text.
pub fn driver_refusal(task: &Value) -> Option<String> {
    if text(task, "Driver") != "docker" {
        return None;
    }
    let config = task["Config"].as_object();
    let known: Vec<&str> = super::schema::DOCKER.split_whitespace().collect();
    let unknown = config.into_iter().flatten().map(|(name, _)| name).find(|name| !known.contains(&name.as_str()));
    if let Some(name) = unknown {
        return Some(format!("failed to parse config: Invalid label: No argument or block type is named \"{name}\"."));
    }
    text(&task["Config"], "image").is_empty().then(|| "image name required for docker driver".to_owned())
}

/// Whether the tasks of a group have changed, so that running ones must be replaced. A new count does not replace them.
pub fn is_destructive(before: &Value, now: &Value, group: &str) -> bool {
    let parts = |job: &Value| -> Value {
        let found = list(job, "TaskGroups").iter().find(|candidate| text(candidate, "Name") == group);
        let Some(found) = found else { return Value::Null };
        let fields = ["Name", "Driver", "User", "Config", "Env", "Meta", "Templates", "Artifacts", "VolumeMounts"];
        let tasks = list(found, "Tasks").iter().map(|task| {
            let mut compared: Map<String, Value> =
                fields.iter().map(|field| ((*field).to_owned(), task[*field].clone())).collect();
            compared.insert("Resources".to_owned(), task["Resources"].clone());
            Value::Object(compared)
        });
        let tasks: Vec<Value> = tasks.collect();
        // Tasks also get the meta of their job and group.
        json!([tasks, found["Meta"], job["Meta"], found["Networks"], found["EphemeralDisk"], found["Volumes"]])
    };
    !is_same(&parts(before), &parts(now))
}
