//! The operations of the fake: their methods and paths, and the faults that a test can set.

use std::time::Duration;

use super::text::unescape;

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NomadOperation {
    /// Registers a new job, or a new version of one.
    Register,
    Deregister,
    Scale,
    /// All jobs of a namespace.
    List,
    /// One job.
    Read,
    ScaleStatus,
    /// The allocations of one job.
    Allocations,
    Evaluations,
    Summary,
    /// One evaluation.
    Evaluation,
    EvaluationAllocations,
    /// One allocation.
    Allocation,
    StopAllocation,
    AllAllocations,
    Validate,
    Nodes,
    Node,
    Namespaces,
    Namespace,
    Leader,
    Agent,
    Token,
    Logs,
}

/// How the next requests of an operation fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NomadFault {
    /// The fake carries out the request, and answers after this delay.
    Slow(Duration),
    /// The fake carries out the request, and closes the connection without an answer.
    Lost,
    /// The fake does not carry out the request: 500 "No cluster leader".
    NoLeader,
    /// The fake does not carry out the request: 429.
    Throttled,
    /// The fake does not carry out the request, and never answers.
    Hanging,
}

/// A request that matches an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub operation: NomadOperation,
    /// The name in the path: of a job, an evaluation, an allocation, a node or a namespace. Empty if the path has none.
    pub name: String,
}

/// Why no operation has this method and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unroutable {
    Path,
    Method,
}

/// Finds the operation of a request. Names may contain slashes, so the end of the path decides what follows a job's
/// name.
pub fn route(method: &str, path: &str) -> Result<Route, Unroutable> {
    let path = path.strip_prefix("/v1/").ok_or(Unroutable::Path)?;
    let writes = matches!(method, "POST" | "PUT");
    let reads = method == "GET";
    let only = |allowed: bool, operation: NomadOperation, name: &str| {
        let route = Route { operation, name: unescape(name) };
        if allowed { Ok(route) } else { Err(Unroutable::Method) }
    };
    match path {
        "jobs" if writes => return only(true, NomadOperation::Register, ""),
        "jobs" => return only(reads, NomadOperation::List, ""),
        "validate/job" => return only(writes, NomadOperation::Validate, ""),
        "allocations" => return only(reads, NomadOperation::AllAllocations, ""),
        "nodes" => return only(reads, NomadOperation::Nodes, ""),
        "namespaces" => return only(reads, NomadOperation::Namespaces, ""),
        "status/leader" => return only(reads, NomadOperation::Leader, ""),
        "agent/self" => return only(reads, NomadOperation::Agent, ""),
        "acl/token/self" => return only(reads, NomadOperation::Token, ""),
        _ => {}
    }
    let (kind, name) = path.split_once('/').ok_or(Unroutable::Path)?;
    match kind {
        "job" => match name.rsplit_once('/') {
            Some((job, "scale")) if reads => only(true, NomadOperation::ScaleStatus, job),
            Some((job, "scale")) => only(writes, NomadOperation::Scale, job),
            Some((job, "allocations")) => only(reads, NomadOperation::Allocations, job),
            Some((job, "evaluations")) => only(reads, NomadOperation::Evaluations, job),
            Some((job, "summary")) => only(reads, NomadOperation::Summary, job),
            // Slashes in these names are escaped, so this is an operation that the fake does not serve.
            Some(_) => Err(Unroutable::Path),
            None if name.is_empty() => Err(Unroutable::Path),
            None if writes => only(true, NomadOperation::Register, name),
            None if method == "DELETE" => only(true, NomadOperation::Deregister, name),
            None => only(reads, NomadOperation::Read, name),
        },
        "evaluation" => match name.strip_suffix("/allocations") {
            Some(evaluation) => only(reads, NomadOperation::EvaluationAllocations, evaluation),
            None => only(reads, NomadOperation::Evaluation, name),
        },
        "allocation" => match name.strip_suffix("/stop") {
            Some(allocation) => only(writes, NomadOperation::StopAllocation, allocation),
            None => only(reads, NomadOperation::Allocation, name),
        },
        "node" if !name.contains('/') => only(reads, NomadOperation::Node, name),
        "namespace" if !name.contains('/') => only(reads, NomadOperation::Namespace, name),
        "client" => only(reads, NomadOperation::Logs, name.strip_prefix("fs/logs/").ok_or(Unroutable::Path)?),
        _ => Err(Unroutable::Path),
    }
}
