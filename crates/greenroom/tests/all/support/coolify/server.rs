//! Handles a request step by step: the token, the rate limit, the specification, the faults that a test has set, and
//! the answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::answers::{self, Asked, CoolifyFakeResponse};
use super::fields::{self, Errors};
use super::operations::{self, Kind, Operation, OperationFields};
use super::variables;
use super::world::World;
use super::{COOLIFY_TOKEN, CoolifyCall, CoolifyFault, Dialect};

/// How often the fake checks whether a timed action is due.
const BEAT: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub struct State {
    pub world: World,
    pub calls: Vec<CoolifyCall>,
    pub violations: Vec<String>,
    pub throttled: usize,
    /// The faults that are set, and how often each occurs.
    pub faults: Vec<(Operation, CoolifyFault, usize)>,
    pub window: Option<(Instant, u32)>,
}

pub type Shared = Arc<Mutex<State>>;

/// A connection that closes without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the answer is lost")]
struct Lost;

pub async fn accept(listener: TcpListener, state: Shared) {
    // When this set is dropped, all connections close, not only the listener.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let state = state.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| serve(state.clone(), request));
            // A lost answer is an error here, and closes the connection.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

pub async fn beat(state: Shared) {
    loop {
        state.lock().unwrap().world.pass();
        tokio::time::sleep(BEAT).await;
    }
}

async fn serve(state: Shared, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Lost> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
    let (answer, fault) = {
        let mut state = state.lock().unwrap();
        let number = state.calls.len();
        let (answer, fault) = state.hear(&parts, &body);
        if answer.status == 429 {
            state.throttled += 1;
        }
        if let Some(call) = state.calls.get_mut(number) {
            call.status = answer.status;
        }
        (answer, fault)
    };
    match fault {
        Some(CoolifyFault::Slow(delay)) => tokio::time::sleep(delay).await,
        Some(CoolifyFault::Lost) => return Err(Lost),
        Some(CoolifyFault::Hang) => std::future::pending().await,
        _ => {}
    }
    let kind = if answer.is_json { "application/json" } else { "text/html; charset=utf-8" };
    let mut response = Response::builder().status(answer.status).header("Content-Type", kind);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(Full::new(answer.body.into())).map_err(|_| Lost)
}

/// Decodes a path segment or a parameter.
fn decoded(text: &str) -> String {
    let url = reqwest::Url::parse(&format!("http://fake/?a={}", text.replace('+', "%2B")));
    url.ok().and_then(|url| url.query_pairs().next().map(|(_, text)| text.into_owned())).unwrap_or_default()
}

impl State {
    /// Handles a request without waiting, and returns its fault, if one is set.
    fn hear(&mut self, parts: &Parts, body: &[u8]) -> (CoolifyFakeResponse, Option<CoolifyFault>) {
        let (method, path) = (parts.method.as_str(), parts.uri.path());
        let inside = path.strip_prefix("/api/v1/").or_else(|| path.strip_prefix("/api/").filter(|at| *at == "health"));
        let segments: Vec<String> = inside.unwrap_or_default().split('/').map(decoded).collect();
        let found = inside.and_then(|_| operations::find(method, &segments));
        let operation = found.as_ref().map(|(shape, _)| shape.operation);
        let (method_name, path_name) = (method.to_owned(), path.to_owned());
        let call = CoolifyCall { operation, method: method_name, path: path_name, at: Instant::now(), status: 0 };
        self.calls.push(call);
        if operation != Some(Operation::Health) && !has_token(parts) {
            return (CoolifyFakeResponse::message(401, "Unauthenticated."), None);
        }
        let headers = match self.count(parts) {
            Ok(headers) => headers,
            Err(too_many) => return (*too_many, None),
        };
        let Some((shape, path_values)) = found else {
            self.violations.push(format!("{method} {path}: the specification has no such operation"));
            return (CoolifyFakeResponse::message(404, "Not found."), None);
        };
        let fault = self.fault(shape.operation);
        let answer = match fault {
            Some(CoolifyFault::Fail) => CoolifyFakeResponse::message(500, "Server Error"),
            Some(CoolifyFault::Throttle(seconds)) => too_many(parts).header("Retry-After", seconds),
            Some(CoolifyFault::ThrottleUntil(seconds)) => too_many(parts).header("Retry-After", moment(seconds)),
            Some(CoolifyFault::ThrottleSilently) => too_many(parts),
            Some(CoolifyFault::Page(status)) => CoolifyFakeResponse::text(status, "<html><h1>nginx</h1></html>"),
            Some(CoolifyFault::Refuse(status, message)) => CoolifyFakeResponse::message(status, message),
            Some(CoolifyFault::Hang) => CoolifyFakeResponse::text(0, ""),
            _ => self.act(parts, body, shape, path_values),
        };
        let answer = headers.into_iter().fold(answer, |answer, (name, value)| answer.header(name, value));
        (answer, fault)
    }

    fn fault(&mut self, operation: Operation) -> Option<CoolifyFault> {
        let index = self.faults.iter().position(|(of, _, _)| *of == operation)?;
        let (_, fault, times) = &mut self.faults[index];
        let fault = *fault;
        *times -= 1;
        if *times == 0 {
            self.faults.remove(index);
        }
        Some(fault)
    }

    /// Counts a request, or refuses it. A window begins with its first request, and refused requests do not count.
    fn count(&mut self, parts: &Parts) -> Result<[(&'static str, String); 2], Box<CoolifyFakeResponse>> {
        let (limit, length) = (self.world.settings.limit, self.world.settings.window);
        let (began, count) =
            self.window.filter(|(began, _)| began.elapsed() < length).unwrap_or_else(|| (Instant::now(), 0));
        let header =
            |left: u32| [("X-RateLimit-Limit", limit.to_string()), ("X-RateLimit-Remaining", left.to_string())];
        if count < limit {
            self.window = Some((began, count + 1));
            return Ok(header(limit - count - 1));
        }
        let left = length.saturating_sub(began.elapsed());
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        let reset = jiff::Timestamp::now().as_second() + i64::try_from(seconds).unwrap_or(i64::MAX);
        let answer = too_many(parts).header("Retry-After", seconds).header("X-RateLimit-Reset", reset);
        Err(Box::new(header(0).into_iter().fold(answer, |answer, (name, value)| answer.header(name, value))))
    }

    fn act(
        &mut self,
        parts: &Parts,
        body: &[u8],
        shape: &'static OperationFields,
        path_values: Vec<String>,
    ) -> CoolifyFakeResponse {
        if shape.operation.is_action()
            && let Some(refused) = other_method(self.world.settings.dialect, parts.method.as_str())
        {
            return refused;
        }
        let mut wrong = Vec::new();
        let checked = check(parts, body, shape, &mut wrong);
        let said = wrong.iter().map(|what| format!("{} {}: {what}", parts.method, parts.uri));
        self.violations.extend(said);
        // Coolify checks whether the application exists before it checks the fields of a change.
        let is_there = |uuid: &String| self.world.applications.iter().any(|application| application.uuid == *uuid);
        match checked {
            Ok((query, body)) => {
                let asked = Asked { operation: shape.operation, path_values, query, body };
                answers::answer(&mut self.world, &asked)
            }
            Err(refused) if refused.status == 400 || path_values.first().is_none_or(is_there) => refused,
            Err(_) => CoolifyFakeResponse::message(404, "Application not found."),
        }
    }
}

fn has_token(parts: &Parts) -> bool {
    let given = parts.headers.get("Authorization").and_then(|header| header.to_str().ok());
    given == Some(&format!("Bearer {COOLIFY_TOKEN}"))
}

/// The time after this many seconds, in HTTP format.
fn moment(seconds: u64) -> String {
    let then = jiff::Timestamp::now() + Duration::from_secs(seconds);
    then.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// A client that does not ask for JSON gets an HTML page.
fn too_many(parts: &Parts) -> CoolifyFakeResponse {
    let accepts = parts.headers.get("Accept").and_then(|header| header.to_str().ok()).unwrap_or_default();
    if accepts.contains("json") {
        CoolifyFakeResponse::message(429, "Too Many Attempts.")
    } else {
        CoolifyFakeResponse::text(429, "<!DOCTYPE html><title>Too Many Requests</title>")
    }
}

/// Refuses an action whose method this version does not serve. This is no violation: Coolify itself answers so, and a
/// client of more than one version has to try both methods.
fn other_method(dialect: Dialect, method: &str) -> Option<CoolifyFakeResponse> {
    match (dialect, method) {
        (Dialect::Posts, "GET") => Some(
            CoolifyFakeResponse::message(405, "This endpoint has changed to a POST request.").header("Allow", "POST"),
        ),
        (Dialect::Gets, "POST") => {
            let message = "The POST method is not supported for this route. Supported methods: GET, HEAD.";
            Some(CoolifyFakeResponse::message(405, message).header("Allow", "GET, HEAD"))
        }
        _ => None,
    }
}

type Checked = (Map<String, Value>, Map<String, Value>);

/// Compares a request with the specification. It records each mistake, and returns an error if Coolify would refuse the
/// request.
fn check(
    parts: &Parts,
    body: &[u8],
    shape: &OperationFields,
    wrong: &mut Vec<String>,
) -> Result<Checked, CoolifyFakeResponse> {
    let mut query = Map::new();
    let mut errors = Errors::new();
    let url = reqwest::Url::parse(&format!("http://fake/?{}", parts.uri.query().unwrap_or_default()));
    for (name, value) in url.iter().flat_map(reqwest::Url::query_pairs) {
        let kind = shape.query.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        let fits = match kind {
            Some(Kind::Flag) => ["true", "false", "1", "0"].contains(&value.as_ref()),
            Some(Kind::Number) => value.parse::<u32>().is_ok_and(|number| number > 0 || name != "take"),
            Some(_) => true,
            None => false,
        };
        if !fits {
            wrong.push(format!("the query {name}={value} is not in the specification"));
            // If Coolify reads fields, it also reads some of them from the query.
            if kind.is_none() && shape.body.is_some() && shape.operation != Operation::BulkEnvs {
                fields::add(&mut errors, &name, "This field is not allowed.");
            } else if shape.operation == Operation::DeploymentsOf && kind.is_some() {
                fields::add(&mut errors, &name, &format!("The {name} field must be an integer."));
            }
        }
        query.insert(name.into_owned(), Value::String(value.into_owned()));
    }
    let body = match shape.body {
        None if body.is_empty() => Map::new(),
        None => {
            wrong.push("the specification has no body here".to_owned());
            Map::new()
        }
        Some(groups) => {
            let body = read(parts, body, shape, wrong)?;
            errors.extend(fields::check(groups, &body));
            missing(shape.operation, &body, &mut errors);
            wrong.extend(errors.iter().map(|(name, what)| format!("the field {name}: {what}")));
            let items = body.get("data").and_then(Value::as_array).into_iter().flatten();
            let items = items.filter_map(Value::as_object).flat_map(variables::wrong);
            wrong.extend(items.map(|(name, what)| format!("the field {name} of an item: {what}")));
            body
        }
    };
    // For a change of many variables, Coolify reads the one field that it knows, and ignores others.
    match errors.is_empty() || shape.operation == Operation::BulkEnvs {
        true => Ok((query, body)),
        false => Err(CoolifyFakeResponse::invalid(errors)),
    }
}

fn missing(operation: Operation, body: &Map<String, Value>, errors: &mut Errors) {
    let needed: &[&str] = match operation {
        Operation::Create => &["project_uuid", "server_uuid"],
        Operation::CreateEnv | Operation::UpdateEnv => &["key"],
        _ => &[],
    };
    fields::require(errors, body, needed);
}

/// The fields of a body, as Coolify reads them.
fn read(
    parts: &Parts,
    body: &[u8],
    shape: &OperationFields,
    wrong: &mut Vec<String>,
) -> Result<Map<String, Value>, CoolifyFakeResponse> {
    let kind = parts.headers.get("Content-Type").and_then(|header| header.to_str().ok()).unwrap_or_default();
    let parsed = serde_json::from_slice::<Value>(body).map(fields::trimmed);
    let what = match parsed {
        _ if !kind.contains("/json") => "Content-Type must be application/json.",
        Ok(Value::Object(fields)) if !fields.is_empty() => return Ok(fields),
        Ok(_) => "Empty JSON.",
        Err(_) => "Invalid JSON.",
    };
    wrong.push(what.to_owned());
    // This operation checks its fields immediately, and finds none.
    if shape.operation == Operation::CreateEnv {
        return Ok(Map::new());
    }
    Err(CoolifyFakeResponse::json(400, serde_json::json!({ "message": "Invalid request.", "error": what })))
}
