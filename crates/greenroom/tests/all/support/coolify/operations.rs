//! The part of Coolify's API that the fake serves: a table of operations with their parameters, as in the published
//! specification. The fake refuses every operation that is not in the table.

use super::fields::{self, Group};

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Version,
    Health,
    Servers,
    Server,
    ServerResources,
    Projects,
    Project,
    Environment,
    List,
    Create,
    Inspect,
    /// A change of an application: its description, or any other field except its variables.
    Describe,
    Delete,
    Logs,
    Envs,
    CreateEnv,
    UpdateEnv,
    BulkEnvs,
    DeleteEnv,
    Start,
    Stop,
    Restart,
    Deployments,
    Deployment,
    DeploymentsOf,
    Cancel,
    Deploy,
}

impl Operation {
    /// Whether the HTTP method of this operation depends on the version.
    pub fn is_action(self) -> bool {
        matches!(self, Operation::Start | Operation::Stop | Operation::Restart | Operation::Deploy)
    }
}

/// The type of a parameter or a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Flag,
    Number,
    Texts,
    Objects,
}

#[derive(Debug)]
pub struct OperationFields {
    pub operation: Operation,
    pub method: &'static str,
    path: &'static str,
    pub query: &'static [(&'static str, Kind)],
    /// `None` if the operation takes no body.
    pub body: Option<&'static [Group]>,
}

const fn plain(operation: Operation, method: &'static str, path: &'static str) -> OperationFields {
    OperationFields { operation, method, path, query: &[], body: None }
}

const fn asked(
    operation: Operation,
    method: &'static str,
    path: &'static str,
    query: &'static [(&'static str, Kind)],
) -> OperationFields {
    OperationFields { operation, method, path, query, body: None }
}

const fn operation_with_fields(
    operation: Operation,
    method: &'static str,
    path: &'static str,
    body: &'static [Group],
) -> OperationFields {
    OperationFields { operation, method, path, query: &[], body: Some(body) }
}

const DELETE: &[(&str, Kind)] = &[
    ("delete_configurations", Kind::Flag),
    ("delete_volumes", Kind::Flag),
    ("docker_cleanup", Kind::Flag),
    ("delete_connected_networks", Kind::Flag),
];
const DEPLOY: &[(&str, Kind)] = &[
    ("tag", Kind::Text),
    ("uuid", Kind::Text),
    ("force", Kind::Flag),
    ("pr", Kind::Number),
    ("pull_request_id", Kind::Number),
    ("docker_tag", Kind::Text),
];
const LOGS: &[(&str, Kind)] = &[("lines", Kind::Number), ("show_timestamps", Kind::Flag)];
const PAGE: &[(&str, Kind)] = &[("skip", Kind::Number), ("take", Kind::Number)];
const START: &[(&str, Kind)] = &[("force", Kind::Flag), ("instant_deploy", Kind::Flag)];
const STOP: &[(&str, Kind)] = &[("docker_cleanup", Kind::Flag)];
const TAG: &[(&str, Kind)] = &[("tag", Kind::Text)];

/// A path with a fixed segment comes before a path with a wildcard at the same position.
const SHAPES: &[OperationFields] = &[
    plain(Operation::Version, "GET", "version"),
    plain(Operation::Health, "GET", "health"),
    plain(Operation::Servers, "GET", "servers"),
    plain(Operation::Server, "GET", "servers/{uuid}"),
    plain(Operation::ServerResources, "GET", "servers/{uuid}/resources"),
    plain(Operation::Projects, "GET", "projects"),
    plain(Operation::Project, "GET", "projects/{uuid}"),
    plain(Operation::Environment, "GET", "projects/{uuid}/{environment}"),
    asked(Operation::List, "GET", "applications", TAG),
    operation_with_fields(Operation::Create, "POST", "applications/dockerimage", fields::CREATE),
    plain(Operation::Inspect, "GET", "applications/{uuid}"),
    operation_with_fields(Operation::Describe, "PATCH", "applications/{uuid}", fields::DESCRIBE),
    asked(Operation::Delete, "DELETE", "applications/{uuid}", DELETE),
    asked(Operation::Logs, "GET", "applications/{uuid}/logs", LOGS),
    plain(Operation::Envs, "GET", "applications/{uuid}/envs"),
    operation_with_fields(Operation::CreateEnv, "POST", "applications/{uuid}/envs", fields::VARIABLE),
    operation_with_fields(Operation::UpdateEnv, "PATCH", "applications/{uuid}/envs", fields::VARIABLE),
    operation_with_fields(Operation::BulkEnvs, "PATCH", "applications/{uuid}/envs/bulk", fields::VARIABLES),
    plain(Operation::DeleteEnv, "DELETE", "applications/{uuid}/envs/{env}"),
    asked(Operation::Start, "POST", "applications/{uuid}/start", START),
    asked(Operation::Stop, "POST", "applications/{uuid}/stop", STOP),
    plain(Operation::Restart, "POST", "applications/{uuid}/restart"),
    plain(Operation::Deployments, "GET", "deployments"),
    asked(Operation::DeploymentsOf, "GET", "deployments/applications/{uuid}", PAGE),
    plain(Operation::Deployment, "GET", "deployments/{uuid}"),
    plain(Operation::Cancel, "POST", "deployments/{uuid}/cancel"),
    asked(Operation::Deploy, "POST", "deploy", DEPLOY),
];

/// Path segments of Coolify that a wildcard of the table would match by mistake.
const OTHERS: [&str; 2] = ["environments", "envs"];

/// The values of a path's wildcards, if the path matches this operation.
fn path_values(shape: &OperationFields, segments: &[String]) -> Option<Vec<String>> {
    let parts: Vec<&str> = shape.path.split('/').collect();
    let fits = parts.len() == segments.len()
        && parts.iter().zip(segments).all(|(part, segment)| part.starts_with('{') || part == segment);
    let is_other = shape.operation == Operation::Environment && OTHERS.contains(&segments.get(2)?.as_str());
    let taken = parts.iter().zip(segments).filter(|(part, _)| part.starts_with('{'));
    (fits && !is_other).then(|| taken.map(|(_, segment)| segment.clone()).collect())
}

/// Finds the operation of a request. It finds an action with any method; the dialect decides later which method is
/// allowed.
pub fn find(method: &str, segments: &[String]) -> Option<(&'static OperationFields, Vec<String>)> {
    SHAPES.iter().find_map(|shape| {
        let is_method = shape.method == method || (shape.operation.is_action() && ["GET", "POST"].contains(&method));
        is_method.then(|| path_values(shape, segments)).flatten().map(|path_values| (shape, path_values))
    })
}
