//! What can be asked of it: which method and path is which operation, and how an operation is made to go wrong.

use std::time::Duration;

use super::text::unescape;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NomadOperation {
    /// A new job, or a new version of one.
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

/// How the next requests for an operation go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NomadFault {
    /// It is done, and answered only after so long.
    Slow(Duration),
    /// It is done, and the connection ends without an answer.
    Lost,
    /// It is not done: 500 "No cluster leader".
    NoLeader,
    /// It is not done: 429.
    Throttled,
    /// It is not done and never answered.
    Hanging,
}

/// A request that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub operation: NomadOperation,
    /// The name in the path: of a job, an evaluation, an allocation, a node, a namespace. Empty where there is none.
    pub name: String,
}

/// Why there is no operation for a method and a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unroutable {
    Path,
    Method,
}

/// Which operation it is. Names may hold slashes, so what follows a job's name is told by how the path ends.
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
            // A slash of a name comes escaped, so this is an operation that is not served.
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
