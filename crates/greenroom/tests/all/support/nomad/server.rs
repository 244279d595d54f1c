//! The HTTP server: accepts connections, checks requests, applies the faults that a test has set, and answers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::api::{self, NomadFakeResponse, Request};
use super::cluster::Cluster;
use super::operation::{NomadFault, NomadOperation, Unroutable, route};
use super::state::NomadCall;
use super::text::parse_duration;
use super::{NomadOptions, logs, schema};

/// How long a blocking query waits for a change by default.
const WAIT: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub struct Server {
    pub cluster: Arc<Cluster>,
    pub options: NomadOptions,
}

/// Closes the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the answer is lost on purpose")]
struct Lost;

impl Server {
    pub async fn serve(self: Arc<Self>, listener: TcpListener, acceptor: Option<TlsAcceptor>) {
        // The connections close with this set, so that no client keeps talking to a fake that is gone.
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (server, acceptor) = (self.clone(), acceptor.clone());
            connections.spawn(async move {
                match acceptor {
                    None => server.connection(stream).await,
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            server.connection(stream).await;
                        }
                    }
                }
            });
        }
    }

    async fn connection(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = service_fn(|request| self.clone().request(request));
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    async fn request(self: Arc<Self>, request: hyper::Request<Incoming>) -> Result<Response<Body>, Lost> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
        let (method, path) = (parts.method.as_str(), parts.uri.path());
        let route = match route(method, path) {
            Ok(route) => route,
            Err(why) => {
                self.cluster.state().violations.push(format!("there is no {method} {path}"));
                let (status, message) = match why {
                    Unroutable::Path => (404, "404 page not found"),
                    Unroutable::Method => (405, "Invalid method"),
                };
                return Ok(self.respond(NomadFakeResponse::error(status, message)));
            }
        };
        let operation = route.operation;
        let url = reqwest::Url::parse(&format!("http://nomad{}", parts.uri)).map_err(|_| Lost)?;
        let query: Vec<(String, String)> =
            url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
        let json = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body) };
        let call = NomadCall {
            operation,
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.clone(),
            body: json.as_ref().ok().cloned().unwrap_or_default(),
            status: None,
        };
        let number = {
            let mut state = self.cluster.state();
            state.calls.push(call);
            state.calls.len() - 1
        };
        let fault = self.take_fault(operation);
        let response = match fault {
            Some(NomadFault::Hanging) => std::future::pending().await,
            Some(NomadFault::NoLeader) => self.respond(NomadFakeResponse::error(500, "No cluster leader")),
            Some(NomadFault::Throttled) => {
                let message = "Your IP is issuing too many concurrent connections, please rate limit your calls\n";
                self.respond(NomadFakeResponse::error(429, message))
            }
            _ => {
                let checked = check(operation, &query, json.map_err(|error| error.to_string()));
                let result = match checked {
                    Ok(body) => self.act(&parts.headers, Request { operation, name: route.name, query, body }).await,
                    Err(wrong) => {
                        let message = wrong.join("; ");
                        self.cluster.state().violations.extend(wrong);
                        Err(NomadFakeResponse::error(400, message))
                    }
                };
                result.unwrap_or_else(|answer| self.respond(answer))
            }
        };
        if let Some(call) = self.cluster.state().calls.get_mut(number) {
            call.status = Some(response.status().as_u16());
        }
        match fault {
            Some(NomadFault::Lost) => return Err(Lost),
            Some(NomadFault::Slow(time)) => tokio::time::sleep(time).await,
            _ => {}
        }
        Ok(response)
    }

    fn take_fault(&self, operation: NomadOperation) -> Option<NomadFault> {
        let mut state = self.cluster.state();
        let index = state.faults.iter().position(|(of, _)| *of == operation)?;
        Some(state.faults.remove(index).1)
    }

    async fn act(&self, headers: &HeaderMap, request: Request) -> Result<Response<Body>, NomadFakeResponse> {
        self.authorize(headers, &request)?;
        if request.parameter("region").is_some_and(|region| region != "global") {
            return Err(NomadFakeResponse::error(500, "No path to region"));
        }
        self.wait_for_change(&request).await;
        if request.operation == NomadOperation::Logs {
            return logs::answer(&self.cluster, &request);
        }
        Ok(self.respond(api::answer(&self.cluster, &self.options, &request)))
    }

    /// Nomad answers the same for an unknown token and for a missing permission. A token may do nothing in a namespace
    /// that it has no permission for, so a namespace that does not exist looks the same.
    fn authorize(&self, headers: &HeaderMap, request: &Request) -> Result<(), NomadFakeResponse> {
        let denied = || NomadFakeResponse::error(403, "Permission denied");
        if request.operation == NomadOperation::Leader {
            return Ok(());
        }
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let bearer = header("Authorization").and_then(|value| value.split_once(' '));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
        let token = header("X-Nomad-Token").filter(|token| !token.is_empty()).or(bearer);
        if token != Some(self.options.token.as_str()) {
            let is_agent = request.operation == NomadOperation::Agent && token.is_some();
            return Err(if is_agent { NomadFakeResponse::error(403, "ACL token not found") } else { denied() });
        }
        let is_allowed = self.options.is_management
            || match request.operation {
                NomadOperation::Agent => self.options.may_read_agent,
                NomadOperation::Nodes | NomadOperation::Node => self.options.may_read_nodes,
                NomadOperation::Token | NomadOperation::Namespaces => true,
                NomadOperation::Namespace => self.options.namespaces.contains(&request.name),
                NomadOperation::List | NomadOperation::AllAllocations if request.namespace() == "*" => true,
                _ => self.options.namespaces.iter().any(|known| known == request.namespace()),
            };
        if is_allowed { Ok(()) } else { Err(denied()) }
    }

    /// A query with an index waits until there is a newer one, up to its own time limit.
    async fn wait_for_change(&self, request: &Request) {
        let Some(index) = request.parameter("index").and_then(|index| index.parse::<u64>().ok()) else { return };
        let wait = request.parameter("wait").and_then(parse_duration).unwrap_or(WAIT);
        let mut changes = self.cluster.changes.subscribe();
        let _ = tokio::time::timeout(wait, changes.wait_for(|now| index == 0 || *now > index)).await;
    }

    fn respond(&self, answer: NomadFakeResponse) -> Response<Body> {
        let index = self.cluster.state().index.max(1);
        let builder = Response::builder().header("X-Nomad-Index", index);
        let builder = builder.header("X-Nomad-KnownLeader", "true").header("X-Nomad-LastContact", 0);
        match answer {
            NomadFakeResponse::Text { status, message } => {
                let builder = Response::builder().status(status).header("Content-Type", "text/plain; charset=utf-8");
                builder.body(Body::from(message)).unwrap()
            }
            NomadFakeResponse::Json { body, next_token } => {
                let builder = match next_token {
                    Some(token) => builder.header("X-Nomad-NextToken", token),
                    None => builder,
                };
                builder.header("Content-Type", "application/json").body(Body::from(body.to_string())).unwrap()
            }
        }
    }
}

/// Checks the query and the body of a request against Nomad's published API.
fn check(
    operation: NomadOperation,
    query: &[(String, String)],
    body: Result<Value, String>,
) -> Result<Value, Vec<String>> {
    let mut wrong = schema::check_query(operation, query);
    let expected = match operation {
        NomadOperation::Register => Some("JobRegisterRequest"),
        NomadOperation::Validate => Some("JobValidateRequest"),
        NomadOperation::Scale => Some("ScalingRequest"),
        _ => None,
    };
    let body = match (expected, body) {
        (_, Err(error)) => {
            wrong.push(error);
            Value::Null
        }
        (Some(_), Ok(Value::Null)) => {
            wrong.push("Request body is empty".to_owned());
            Value::Null
        }
        (Some(object), Ok(body)) => {
            wrong.extend(schema::check_body(object, &body));
            body
        }
        (None, Ok(Value::Null)) => Value::Null,
        // To stop an allocation, clients send an empty object or no body.
        (None, Ok(body)) => {
            if operation != NomadOperation::StopAllocation || body.as_object().is_none_or(|fields| !fields.is_empty()) {
                wrong.push(format!("{operation:?} has no body"));
            }
            Value::Null
        }
    };
    if wrong.is_empty() { Ok(body) } else { Err(wrong) }
}
