//! The middleware of every request: its id, who asks and whether there is capacity for it, its body within limits, its
//! entry in the logs and metrics, and a 500 instead of a dropped connection when a handler panics.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use tracing::Instrument;

use super::App;
use super::browser;
use super::caller::{self, Identified};
use super::compression::Compressor;
use super::problem::Problem;
use super::query;
use super::traffic_quota::{self, Quota, QuotaOwner, Reservation};
use crate::admission::browser_sessions::{BrowserSession, UserCredential};

/// The header by which a request is known, here and to its sender.
pub const REQUEST_ID: &str = "x-request-id";
const LONGEST_REQUEST_ID: usize = 128;

tokio::task_local! {
    static CURRENT: String;
}

/// How large and how slow a body may be, and how long a stream may go on before its key is looked at again.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub body_bytes: usize,
    pub body_time: Duration,
    pub key_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes: 1024 * 1024, body_time: Duration::from_secs(30), key_time: Duration::from_secs(15) }
    }
}

/// How often a stream looks at its session. It is shorter than for a key: a session ends everywhere within a second.
pub const SESSION_TIME: Duration = Duration::from_millis(500);

impl Limits {
    /// How often a stream looks at the credential with which it was opened.
    pub fn check_every(&self, credential: &UserCredential) -> Duration {
        match credential {
            UserCredential::Key(_) => self.key_time,
            UserCredential::Session(_) => self.key_time.min(SESSION_TIME),
        }
    }
}

/// The id of the request that is being answered.
pub fn request_id() -> String {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

/// Counts a request for as long as it is under way, also when its sender goes away in the middle.
struct UnderWay;

impl UnderWay {
    fn begin() -> Self {
        metrics::gauge!("greenroom_http_requests_under_way").increment(1.0);
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        metrics::gauge!("greenroom_http_requests_under_way").decrement(1.0);
    }
}

/// Gives the request its id, answers for a handler that panics, and counts.
pub async fn handle(State(app): State<App>, request: Request, next: Next) -> Response {
    let id = match sent_id(&request) {
        Some(id) => id,
        None => match app.random.id(app.clock.now()) {
            Ok(id) => id.simple().to_string(),
            Err(error) => return Problem::from(error).into_response(),
        },
    };
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("unmatched", MatchedPath::as_str);
    let span = tracing::info_span!("request", id = %id, method = %method, route = %route);
    let (begun, under_way) = (Instant::now(), UnderWay::begin());
    let header = HeaderValue::from_str(&id);
    let answer = CURRENT.scope(id, async move {
        AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|panic| {
            let message = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            tracing::error!(panic = message, "request handler panicked");
            Problem::internal().into_response()
        })
    });
    let mut response = answer.instrument(span.clone()).await;
    if let Ok(header) = header {
        response.headers_mut().insert(REQUEST_ID, header);
    }
    drop(under_way);
    let status = response.status().as_u16();
    let took = begun.elapsed();
    span.in_scope(|| tracing::debug!(status, took_ms = took.as_secs_f64() * 1000.0, "request answered"));
    RequestMetrics::record(known_method(&method), route, status, took);
    response
}

/// Where requests of one kind are counted. To look it up anew for each request costs as much as to route it.
#[derive(Clone)]
struct RequestMetrics {
    count: metrics::Counter,
    seconds: metrics::Histogram,
}

/// By method and route, then by status: as many as there are routes and answers.
type KnownMetrics = HashMap<(&'static str, String), HashMap<u16, RequestMetrics>>;

thread_local! {
    static REQUEST_METRICS: RefCell<KnownMetrics> = RefCell::default();
}

impl RequestMetrics {
    fn new(method: &'static str, route: &str, status: u16) -> Self {
        let labels = [("method", method.to_owned()), ("route", route.to_owned()), ("status", status.to_string())];
        Self {
            count: metrics::counter!("greenroom_http_requests_total", &labels),
            seconds: metrics::histogram!("greenroom_http_request_duration_seconds", &labels[..2]),
        }
    }

    fn record(method: &'static str, route: &str, status: u16, took: Duration) {
        let found = REQUEST_METRICS.with_borrow_mut(|known| {
            let of_route = known.entry((method, route.to_owned())).or_default();
            of_route.entry(status).or_insert_with(|| Self::new(method, route, status)).clone()
        });
        found.count.increment(1);
        found.seconds.record(took);
    }
}

/// A method as a label: what strangers make up must not make new series.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "OTHER",
    }
}

/// What an answer takes up until it is written; the connection holds it until then.
#[derive(Clone, Debug)]
pub struct HeldReservation(#[allow(dead_code)] Arc<Reservation>);

/// A request that may be read and answered.
struct Admitted {
    quota: Arc<Quota>,
    reservation: Reservation,
    /// The session of a browser, for handlers. They do not look at the cookie themselves.
    session: Option<BrowserSession>,
    /// How large the body may be.
    body_bytes: usize,
}

/// Finds out who asks and whether there is room, and only then reads the body, as a whole: no handler waits on a slow
/// sender, and a refusal never cuts off a sender that is still sending. What is refused by its head is thrown away, within
/// bounds.
pub async fn read_body(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let Admitted { quota, mut reservation, session, body_bytes } = match Box::pin(admit(&app, &parts)).await {
        Ok(admitted) => admitted,
        Err(problem) => return refuse(&parts, body, problem).await,
    };
    let compressor = Compressor::new(&parts);
    parts.extensions.insert(quota.clone());
    if let Some(session) = session {
        parts.extensions.insert(session);
    }
    let in_time = async {
        tokio::select! {
            () = tokio::time::sleep(app.limits.body_time) => app.limits.body_time,
            // A server that stops waits for those who send, not for those who have fallen asleep over it.
            () = async { app.stopping.cancelled().await; tokio::time::sleep(STOPPING_TIME).await } => STOPPING_TIME,
        }
    };
    let response = tokio::select! {
        // A body that is there already needs no timer.
        biased;
        read = collect(body, body_bytes) => match read {
            Ok(bytes) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
            Err(problem) => problem.into_response(),
        },
        time = in_time => Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            format!("the body did not arrive within {} s", time.as_secs_f32()),
        )
        .into_response(),
    };
    if response.status().is_client_error() {
        quota.refused();
    }
    let mut response = compressor.compress(response).await;
    // A stream has no size, and is bounded by what a connection buffers.
    let size = response.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    reservation.shrink_to(size.unwrap_or(0));
    response.extensions_mut().insert(HeldReservation(Arc::new(reservation)));
    response
}

/// Everything that can be decided by the head, the cheapest first.
async fn admit(app: &App, request: &Parts) -> Result<Admitted, Problem> {
    let (headers, method) = (&request.headers, &request.method);
    let body = body_length(request);
    let Some(route) = request.extensions.get::<MatchedPath>().map(MatchedPath::as_str) else {
        let quota = app.quotas.of(&stranger(request));
        return match body {
            Some(_) => Err(no_such_path_problem()),
            None => Ok(Admitted { reservation: quota.reserve(0).await?, quota, session: None, body_bytes: 0 }),
        };
    };
    if body.flatten().is_some_and(|length| length > HOPELESS) {
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the body is too large"));
    }
    let needs_caller = caller::needs_caller(route);
    let quota = app.quotas.of(&stranger(request));
    browser::refuse_foreign_change(request, &app.public_url).inspect_err(|_| quota.refused())?;
    let Identified { owner: caller, session } = caller::identify(app, headers, route, &quota).await?;
    let quota = caller.as_ref().map_or(quota, |caller| app.quotas.of(caller));
    if needs_caller || route == SIGN_IN {
        quota.slow_down(&app.stopping).await?;
    }
    if needs_caller && caller.is_none() && body.is_some() {
        quota.refused();
        return Err(Problem::unauthorized(
            "a request with a body needs a key or a token; GET /docs names it for each path",
        ));
    }
    if !needs_caller || caller.is_some() {
        query::refuse_unknown(method, route, &request.uri).inspect_err(|_| quota.refused())?;
    }
    let most = if route == SIGN_IN { SIGN_IN_BYTES } else { app.limits.body_bytes };
    let body = body.map(|length| length.and_then(|length| usize::try_from(length).ok()).unwrap_or(most).min(most));
    let reservation = quota.reserve(traffic_quota::needed(method, route, request.uri.query(), body)).await?;
    Ok(Admitted { quota, reservation, session, body_bytes: most })
}

fn stranger(request: &Parts) -> QuotaOwner {
    QuotaOwner::stranger(caller::address(&request.extensions))
}

/// Whether there is a body, and how long it says to be.
fn body_length(request: &Parts) -> Option<Option<u64>> {
    let headers = &request.headers;
    match headers.get(CONTENT_LENGTH).map(|value| value.to_str().ok()?.parse::<u64>().ok()) {
        Some(Some(0)) => None,
        Some(length) => Some(length),
        None => headers.contains_key(TRANSFER_ENCODING).then_some(None),
    }
}

async fn refuse(request: &Parts, body: Body, problem: Problem) -> Response {
    if body_length(request).is_none() {
        return problem.into_response();
    }
    // Who asks before it sends need not send.
    if !request.headers.contains_key(EXPECT) {
        let _ = tokio::time::timeout(DRAIN_TIME, drain(body)).await;
    }
    let mut response = problem.into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// How much of a body is read and thrown away that nobody wants, and for how long, so that its sender gets to read the
/// answer.
const DRAINED: usize = 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_millis(500);
/// How much longer a body may take once the server stops.
const STOPPING_TIME: Duration = Duration::from_secs(3);
/// The only call for which the server reads the body of a stranger, and how much of it.
const SIGN_IN: &str = "/session";
const SIGN_IN_BYTES: usize = 4 * 1024;
/// A body that says to be larger than this is not waited for.
const HOPELESS: u64 = 16 * 1024 * 1024;

async fn drain(mut body: Body) {
    let mut seen = 0;
    while let Some(Ok(frame)) = body.frame().await {
        seen += frame.data_ref().map_or(0, Bytes::len);
        if seen > DRAINED {
            return;
        }
    }
}

async fn collect(mut body: Body, most: usize) -> Result<Bytes, Problem> {
    let mut bytes = Vec::new();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::malformed(format!("the body ended too early: {error}")))?;
        let Some(data) = frame.data_ref() else { continue };
        seen += data.len();
        if seen <= most {
            bytes.extend_from_slice(data);
        } else if seen > most * 16 {
            break;
        }
    }
    if seen > most {
        let detail = format!("the body is larger than {most} bytes");
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail));
    }
    Ok(bytes.into())
}

/// The id that the sender gave, if it is one that can be logged and sent back as it is.
fn sent_id(request: &Request) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let fits = !id.is_empty() && id.len() <= LONGEST_REQUEST_ID && id.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| id.to_owned())
}

/// No route has this path.
pub async fn no_such_path() -> Problem {
    no_such_path_problem()
}

fn no_such_path_problem() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not_found", "this path does not exist; GET /docs lists all paths")
}

/// The path is there, with other methods.
pub async fn no_such_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "this path does not support this method; the header Allow lists the supported methods",
    )
}
