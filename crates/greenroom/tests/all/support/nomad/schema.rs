//! The requests of Nomad's published API: the names and types of all their fields.
//! Nomad ignores unknown fields. The fake refuses them, because a client that sends them has a bug.

use serde_json::{Map, Value};

use super::operation::NomadOperation;

/// The objects of a request's body: `name:type` for each field. A type is `string`, `bool`, `int`, `any`, a list
/// `[type]`, a map `{type}`, or one of these objects. Durations are nanoseconds, so they are `int` too.
const OBJECTS: &[(&str, &str)] = &[
    (
        "JobRegisterRequest",
        "Job:Job EnforceIndex:bool JobModifyIndex:int EvalPriority:int PolicyOverride:bool PreserveCounts:bool \
         Namespace:string Region:string SecretID:string",
    ),
    ("JobValidateRequest", "Job:Job Namespace:string Region:string SecretID:string"),
    (
        "ScalingRequest",
        "Count:int Target:{string} Message:string Error:bool Meta:{any} PolicyOverride:bool JobModifyIndex:int \
         Namespace:string Region:string SecretID:string",
    ),
    (
        "Job",
        "ID:string Name:string Namespace:string Region:string ParentID:string Type:string Priority:int AllAtOnce:bool \
         Datacenters:[string] NodePool:string Constraints:[Constraint] Affinities:[Affinity] Spreads:[Spread] \
         TaskGroups:[TaskGroup] Update:UpdateStrategy Migrate:MigrateStrategy Reschedule:ReschedulePolicy \
         Meta:{string} Payload:string Dispatched:bool DispatchIdempotencyToken:string ConsulNamespace:string \
         ConsulToken:string VaultNamespace:string VaultToken:string NomadTokenID:string Stop:bool Status:string \
         StatusDescription:string Stable:bool Version:int SubmitTime:int CreateIndex:int ModifyIndex:int \
         JobModifyIndex:int Multiregion:any ParameterizedJob:any Periodic:any",
    ),
    (
        "TaskGroup",
        "Name:string Count:int Tasks:[Task] Constraints:[Constraint] Affinities:[Affinity] Spreads:[Spread] \
         RestartPolicy:RestartPolicy ReschedulePolicy:ReschedulePolicy Update:UpdateStrategy Migrate:MigrateStrategy \
         EphemeralDisk:EphemeralDisk Networks:[NetworkResource] Meta:{string} Services:[Service] \
         Volumes:{VolumeRequest} ShutdownDelay:int StopAfterClientDisconnect:int MaxClientDisconnect:int \
         Disconnect:DisconnectStrategy Scaling:ScalingPolicy Consul:any",
    ),
    (
        "Task",
        "Name:string Driver:string User:string Config:{any} Env:{string} Meta:{string} Resources:Resources \
         RestartPolicy:RestartPolicy LogConfig:LogConfig KillTimeout:int KillSignal:string ShutdownDelay:int \
         Leader:bool Kind:string Constraints:[Constraint] Affinities:[Affinity] Services:[Service] \
         Templates:[Template] Artifacts:[TaskArtifact] VolumeMounts:[VolumeMount] Lifecycle:TaskLifecycle \
         DispatchPayload:any CSIPluginConfig:any Vault:any ScalingPolicies:[ScalingPolicy]",
    ),
    (
        "Resources",
        "CPU:int Cores:int MemoryMB:int MemoryMaxMB:int DiskMB:int IOPS:int Networks:[NetworkResource] Devices:[Device]",
    ),
    ("Device", "Name:string Count:int Constraints:[Constraint] Affinities:[Affinity]"),
    ("RestartPolicy", "Attempts:int Interval:int Delay:int Mode:string RenderTemplates:bool"),
    ("ReschedulePolicy", "Attempts:int Interval:int Delay:int DelayFunction:string MaxDelay:int Unlimited:bool"),
    (
        "UpdateStrategy",
        "Stagger:int MaxParallel:int HealthCheck:string MinHealthyTime:int HealthyDeadline:int ProgressDeadline:int \
         AutoRevert:bool AutoPromote:bool Canary:int",
    ),
    ("MigrateStrategy", "MaxParallel:int HealthCheck:string MinHealthyTime:int HealthyDeadline:int"),
    ("DisconnectStrategy", "LostAfter:int StopOnClientAfter:int Replace:bool Reconcile:string"),
    ("EphemeralDisk", "SizeMB:int Sticky:bool Migrate:bool"),
    ("LogConfig", "MaxFiles:int MaxFileSizeMB:int Disabled:bool"),
    (
        "NetworkResource",
        "Mode:string Device:string CIDR:string IP:string Hostname:string MBits:int DNS:DNSConfig \
         ReservedPorts:[Port] DynamicPorts:[Port]",
    ),
    ("DNSConfig", "Servers:[string] Searches:[string] Options:[string]"),
    ("Port", "Label:string Value:int To:int HostNetwork:string"),
    ("Constraint", "LTarget:string RTarget:string Operand:string"),
    ("Affinity", "LTarget:string RTarget:string Operand:string Weight:int"),
    ("Spread", "Attribute:string Weight:int SpreadTarget:[SpreadTarget]"),
    ("SpreadTarget", "Value:string Percent:int"),
    ("TaskLifecycle", "Hook:string Sidecar:bool"),
    (
        "Template",
        "SourcePath:string DestPath:string EmbeddedTmpl:string ChangeMode:string ChangeSignal:string \
         ChangeScript:any Splay:int Perms:string Uid:int Gid:int LeftDelim:string RightDelim:string Envvars:bool \
         VaultGrace:int Wait:any",
    ),
    (
        "TaskArtifact",
        "GetterSource:string GetterOptions:{string} GetterHeaders:{string} GetterMode:string RelativeDest:string",
    ),
    ("VolumeMount", "Volume:string Destination:string ReadOnly:bool PropagationMode:string"),
    (
        "VolumeRequest",
        "Name:string Type:string Source:string ReadOnly:bool AccessMode:string AttachmentMode:string \
         MountOptions:any PerAlloc:bool",
    ),
    (
        "Service",
        "Name:string Provider:string PortLabel:string AddressMode:string Address:string Tags:[string] \
         CanaryTags:[string] Meta:{string} CanaryMeta:{string} TaggedAddresses:{string} EnableTagOverride:bool \
         TaskName:string OnUpdate:string Checks:[any] CheckRestart:any Connect:any",
    ),
    (
        "ScalingPolicy",
        "ID:string Namespace:string Type:string Target:{string} Policy:{any} Min:int Max:int Enabled:bool \
         CreateIndex:int ModifyIndex:int",
    ),
];

/// The fields of the docker driver. Nomad's servers do not check them: a task with any other field fails on its node.
pub const DOCKER: &str = "advertise_ipv6_address args auth auth_soft_fail cap_add cap_drop cgroupns command \
     container_exists_attempts cpu_cfs_period cpu_hard_limit cpuset_cpus devices dns_options dns_search_domains \
     dns_servers entrypoint extra_hosts force_pull group_add healthchecks hostname image image_pull_timeout init \
     interactive ipc_mode ipv4_address ipv6_address isolation labels load logging mac_address memory_hard_limit mount \
     mounts network_aliases network_mode oom_score_adj pid_mode pids_limit ports privileged readonly_rootfs runtime \
     security_opt shm_size storage_opt sysctl tty ulimit userns_mode uts_mode volume_driver volumes work_dir";

const EVERYWHERE: &str = "region:string namespace:string";
const READING: &str = "index:int wait:duration stale:bool";
const LISTING: &str = "prefix:string per_page:int next_token:string reverse:bool";
const WRITING: &str = "idempotency_token:string";

/// The query parameters of an operation, as `name:type`.
fn query(operation: NomadOperation) -> impl Iterator<Item = (&'static str, &'static str)> {
    let (groups, own): (&[&str], &str) = match operation {
        NomadOperation::List => (&[READING, LISTING], "meta:bool"),
        NomadOperation::AllAllocations => (&[READING, LISTING], "resources:bool task_states:bool"),
        NomadOperation::Nodes => (&[READING, LISTING], "resources:bool os:bool"),
        NomadOperation::Namespaces => (&[READING, LISTING], ""),
        NomadOperation::Allocations => (&[READING], "all:bool"),
        NomadOperation::Evaluation => (&[READING], "related:bool"),
        NomadOperation::Deregister => (&[WRITING], "purge:bool global:bool eval_priority:int no_shutdown_delay:bool"),
        NomadOperation::StopAllocation => (&[WRITING], "no_shutdown_delay:bool reschedule:bool"),
        NomadOperation::Logs => (&[READING], "task:string type:string origin:string offset:int plain:bool follow:bool"),
        NomadOperation::Register | NomadOperation::Scale | NomadOperation::Validate => (&[WRITING], ""),
        _ => (&[READING], ""),
    };
    let all = groups.iter().chain([&EVERYWHERE, &own]).flat_map(|group| group.split_whitespace());
    all.filter_map(|parameter| parameter.split_once(':')).collect::<Vec<_>>().into_iter()
}

/// All errors in a query.
pub fn check_query(operation: NomadOperation, given: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, value) in given {
        let Some((_, expected)) = query(operation).find(|(known, _)| known == name) else {
            wrong.push(format!("{operation:?} has no query parameter {name:?}"));
            continue;
        };
        let fits = match expected {
            "bool" => matches!(value.as_str(), "true" | "false" | "1" | "0"),
            "int" => value.parse::<i64>().is_ok(),
            "duration" => super::text::parse_duration(value).is_some(),
            _ => true,
        };
        if !fits {
            wrong.push(format!("query parameter {name:?} is not a {expected}: {value:?}"));
        }
    }
    wrong
}

/// All errors in a body, with Nomad's texts if Nomad would refuse it.
pub fn check_body(object: &str, body: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    check(object, object, body, &mut wrong);
    wrong
}

fn check(path: &str, expected: &str, value: &Value, wrong: &mut Vec<String>) {
    // Go takes null for a missing value of any type.
    if value.is_null() || expected == "any" {
        return;
    }
    if let Some(of) = inner(expected, '[', ']') {
        match value.as_array() {
            Some(items) => items.iter().for_each(|item| check(path, of, item, wrong)),
            None => wrong.push(mismatch(path, value, expected)),
        }
    } else if let Some(of) = inner(expected, '{', '}') {
        match value.as_object() {
            Some(fields) => fields.iter().for_each(|(key, item)| check(&format!("{path}.{key}"), of, item, wrong)),
            None => wrong.push(mismatch(path, value, expected)),
        }
    } else if let Some((_, fields)) = OBJECTS.iter().find(|(name, _)| *name == expected) {
        match value.as_object() {
            Some(given) => check_fields(path, fields, given, wrong),
            None => wrong.push(mismatch(path, value, expected)),
        }
    } else {
        let fits = match expected {
            "string" => value.is_string(),
            "bool" => value.is_boolean(),
            "int" => value.is_i64() || value.is_u64(),
            unknown => panic!("the schema has no type {unknown:?}"),
        };
        if !fits {
            wrong.push(mismatch(path, value, expected));
        }
    }
}

fn check_fields(path: &str, fields: &str, given: &Map<String, Value>, wrong: &mut Vec<String>) {
    for (name, value) in given {
        let known =
            fields.split_whitespace().filter_map(|field| field.split_once(':')).find(|(known, _)| known == name);
        match known {
            Some((_, expected)) => check(&format!("{path}.{name}"), expected, value, wrong),
            None => wrong.push(format!("json: unknown field \"{path}.{name}\"")),
        }
    }
}

fn inner(expected: &str, open: char, close: char) -> Option<&str> {
    expected.strip_prefix(open)?.strip_suffix(close)
}

fn mismatch(path: &str, value: &Value, expected: &str) -> String {
    let found = match value {
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        _ => "object",
    };
    format!("json: cannot unmarshal {found} into Go struct field {path} of type {expected}")
}
