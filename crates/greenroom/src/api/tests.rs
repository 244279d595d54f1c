//! What stands around every request, with handlers that no real server has: one that panics, and limits that a test
//! can wait for.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use super::traffic_quota::QuotaOwner;
use super::*;
use crate::keepers::leader::Leadership;
use crate::lifecycle::tokens::Tokens;

async fn panics() -> &'static str {
    panic!("on purpose")
}

/// What handlers stand on, with limits that a test can wait for.
async fn app() -> (App, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite:{}", folder.path().join("g.db").display())).await.unwrap();
    let (clock, random) = (Clock::System, Random::seeded(1));
    let context = crate::context::Context::new(store.clone(), clock.clone(), random.clone());
    let signals = Signals::default();
    let admission = Admission::new(context.clone());
    let lifecycle = Lifecycle::new(context.clone(), signals.clone(), Tokens::new("secret"));
    let ending = CancellationToken::new();
    let (placement, _placing) = Placement::begin(
        context.clone(),
        signals.clone(),
        admission.clone(),
        lifecycle.clone(),
        Deadlines::default(),
        domain::planner::QueueOrder::Arrival,
        ending.clone(),
    );
    let replica = crate::store::Holder { id: uuid::Uuid::nil(), name: "here".to_owned() };
    let deployment = Deployment::new(crate::deployment::Parts {
        context: context.clone(),
        signals: signals.clone(),
        lifecycle: lifecycle.clone(),
        placement: placement.clone(),
        providers: Arc::default(),
        deadlines: Deadlines::default(),
        max_concurrent: 4,
        max_recovery_attempts: 3,
        public_url: String::new(),
        timeouts: crate::deployment::ProviderTimeouts::default(),
        replica: replica.clone(),
        ending,
    });
    let keepers = Keepers::new(&context, Leadership::new(store.clone(), replica), Vec::new());
    let app = App::new(Inner {
        live: Live::new(store.clone(), keepers.clone(), 4),
        sessions: BrowserSessions::new(admission.clone(), String::new()),
        public_url: String::new(),
        admission,
        lifecycle,
        placement,
        keepers,
        runners: RunnerRegistry::new(
            crate::providers::ec2::Runners::default(),
            Tokens::new("secret"),
            deployment.clone(),
        ),
        readiness: crate::readiness::Readiness::new(),
        deployment,
        store,
        clock,
        random,
        signals,
        deadlines: Deadlines::default(),
        quotas: Quotas::new(2),
        limits: Limits { body_bytes: 1000, body_time: Duration::from_millis(50), key_time: Duration::from_millis(50) },
        metrics: crate::telemetry::metrics(),
        gauges: super::gauges::Gauges::default(),
        pool_memory: super::PoolMemoryCache::default(),
        stopping: CancellationToken::new(),
    });
    (app, folder)
}

async fn served() -> (Router, tempfile::TempDir) {
    let (app, folder) = app().await;
    let routes = Router::new()
        .route("/panics", get(panics))
        .route("/echo", post(|body: String| async { body }))
        .route("/bots/echo", post(|body: String| async { body }));
    (with_middleware(routes, app), folder)
}

async fn problem(response: Response) -> (StatusCode, Value, String) {
    let status = response.status();
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let body: Value = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(body["request_id"], Value::from(id.clone()));
    assert_eq!(body["status"], Value::from(status.as_u16()));
    (status, body["code"].clone(), id)
}

fn request(method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", "Bearer x")
        .header("transfer-encoding", "chunked")
}

fn new_user() -> crate::admission::users::NewUser {
    crate::admission::users::NewUser {
        email: "ada@example.com".to_owned(),
        name: "Ada".to_owned(),
        image_url: None,
        max_concurrent_bots: 1,
        min_priority: 0,
        data: serde_json::Map::new(),
    }
}

#[tokio::test]
async fn a_key_that_is_refused_repeatedly_is_refused_before_its_body_and_another_is_not() {
    let (app, _folder) = app().await;
    let (user, key) = app.admission.create_user(new_user(), None).await.unwrap();
    let (_, other) = app.admission.create_user(new_user(), None).await.unwrap();
    let quota = app.quotas.of(&traffic_quota::QuotaOwner::User(user.id));
    (0..2_000).for_each(|_| quota.refused());
    let endless = || Body::from_stream(futures_util::stream::pending::<Result<&'static str, std::io::Error>>());
    let asked = |key: &crate::admission::api_keys::ApiKey, body| {
        let asked = Request::builder().method("POST").uri("/bots").header("x-api-key", key.reveal());
        router(app.clone()).oneshot(asked.header("content-length", "2").body(body).unwrap())
    };
    // Of its body nothing comes, and nobody waits for it.
    let answer = asked(&key, endless()).await.unwrap();
    assert_eq!(answer.headers()["retry-after"], "1");
    let (status, code, _) = problem(answer).await;
    assert_eq!((status, code), (StatusCode::SERVICE_UNAVAILABLE, "overloaded".into()));
    let (status, code, _) = problem(asked(&other, Body::from("{}")).await.unwrap()).await;
    assert_eq!((status, code), (StatusCode::UNPROCESSABLE_ENTITY, "invalid".into()));
}

#[tokio::test]
async fn a_panic_is_a_500_with_a_request_id() {
    let (router, _folder) = served().await;
    let asked = request("GET", "/panics").header("x-request-id", "abc-123").body(Body::empty()).unwrap();
    let (status, code, id) = problem(router.oneshot(asked).await.unwrap()).await;
    assert_eq!((status, code, id), (StatusCode::INTERNAL_SERVER_ERROR, "internal".into(), "abc-123".to_owned()));
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems_too() {
    let (router, _folder) = served().await;
    let asked = request("GET", "/nowhere").body(Body::empty()).unwrap();
    let (status, code, _) = problem(router.clone().oneshot(asked).await.unwrap()).await;
    assert_eq!((status, code), (StatusCode::NOT_FOUND, "not_found".into()));
    let asked = request("DELETE", "/echo").body(Body::empty()).unwrap();
    let answer = router.oneshot(asked).await.unwrap();
    assert_eq!(answer.headers()["allow"], "POST");
    let (status, code, _) = problem(answer).await;
    assert_eq!((status, code), (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed".into()));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_one_that_just_fits_is_taken() {
    let (router, _folder) = served().await;
    let asked = request("POST", "/echo").body(Body::from("x".repeat(1001))).unwrap();
    let (status, code, _) = problem(router.clone().oneshot(asked).await.unwrap()).await;
    assert_eq!((status, code), (StatusCode::PAYLOAD_TOO_LARGE, "too_large".into()));
    let asked = request("POST", "/echo").body(Body::from("x".repeat(1000))).unwrap();
    assert_eq!(router.oneshot(asked).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_a_408() {
    let (router, _folder) = served().await;
    let endless = futures_util::stream::pending::<Result<&'static str, std::io::Error>>();
    let asked = request("POST", "/echo").body(Body::from_stream(endless)).unwrap();
    let (status, code, _) = problem(router.oneshot(asked).await.unwrap()).await;
    assert_eq!((status, code), (StatusCode::REQUEST_TIMEOUT, "timeout".into()));
}

#[tokio::test]
async fn a_request_refused_by_its_head_is_answered_without_its_body() {
    let (router, _folder) = served().await;
    let endless = || Body::from_stream(futures_util::stream::pending::<Result<&'static str, std::io::Error>>());
    let nobody =
        Request::builder().method("POST").uri("/bots/echo").header("content-length", "9").body(endless()).unwrap();
    let (status, code, _) = problem(router.clone().oneshot(nobody).await.unwrap()).await;
    assert_eq!((status, code), (StatusCode::UNAUTHORIZED, "unauthorized".into()));
    let nowhere = request("POST", "/nowhere").body(endless()).unwrap();
    let (status, code, _) = problem(router.clone().oneshot(nowhere).await.unwrap()).await;
    assert_eq!((status, code), (StatusCode::NOT_FOUND, "not_found".into()));
    let huge = Request::builder().method("POST").uri("/echo").header("authorization", "Bearer x");
    let huge = huge.header("content-length", "99999999999").body(endless()).unwrap();
    let (status, code, _) = problem(router.oneshot(huge).await.unwrap()).await;
    assert_eq!((status, code), (StatusCode::PAYLOAD_TOO_LARGE, "too_large".into()));
}

#[tokio::test]
async fn an_unknown_http_method_makes_no_separate_metric_series() {
    let (router, _folder) = served().await;
    for method in ["MADE", "UP"] {
        router.clone().oneshot(request(method, "/nowhere").body(Body::empty()).unwrap()).await.unwrap();
    }
    let text = crate::telemetry::metrics().render();
    assert!(text.contains("method=\"OTHER\"") && !text.contains("MADE"), "{text}");
}

#[tokio::test]
async fn a_request_id_that_cannot_be_logged_is_replaced() {
    let (router, _folder) = served().await;
    for sent in ["", "with space", &"x".repeat(129)] {
        let asked = request("GET", "/nowhere").header("x-request-id", sent).body(Body::empty()).unwrap();
        let (_, _, id) = problem(router.clone().oneshot(asked).await.unwrap()).await;
        assert_ne!(id, sent);
        assert_eq!(id.len(), 32);
    }
}

#[tokio::test]
async fn a_stream_ends_when_its_key_is_rotated_away() {
    let (app, _folder) = app().await;
    tokio::spawn(app.lifecycle.feed.clone().follow(
        app.store.clone(),
        app.lifecycle.bus.clone(),
        CancellationToken::new(),
    ));
    let (user, key) = app.admission.create_user(new_user(), None).await.unwrap();
    let asked = Request::builder().uri("/events").header("x-api-key", key.reveal()).body(Body::empty()).unwrap();
    let answer = router(app.clone()).oneshot(asked).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let mut body = answer.into_body();
    let begins = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(begins.starts_with(b"id: 0"), "{begins:?}");
    app.admission.rotate_key(user.id, Duration::ZERO, None).await.unwrap();
    // All that is left of it: it has an end.
    tokio::time::timeout(Duration::from_secs(10), body.collect()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_runner_of_a_pool_that_no_longer_has_runners_is_refused() {
    let (app, _folder) = app().await;
    let tokens = &app.lifecycle.tokens;
    let claim = crate::lifecycle::tokens::RunnerClaim { pool: "gone".to_owned(), instance: "i-0".to_owned() };
    let (runner, pool) = (tokens.make_runner(&claim), tokens.make_pool("gone"));
    let calls = [
        ("POST", "/agent/runner", &pool, r#"{"instance_id": "i-0"}"#),
        ("POST", "/agent/runner", &runner, r#"{"instance_id": "i-0"}"#),
        ("POST", "/agent/runner/heartbeat", &runner, r#"{"run_id": null}"#),
        ("POST", "/agent/runner/acknowledge", &runner, r#"{"run_id": "a"}"#),
        ("POST", "/agent/runner/release", &runner, r#"{"run_id": "a"}"#),
        ("POST", "/agent/runner/not_ready", &runner, "{}"),
        ("POST", "/agent/runner/end", &runner, "{}"),
        ("GET", "/agent/assignment", &runner, ""),
    ];
    for (method, path, token, body) in calls {
        let asked = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
        let answer = router(app.clone()).oneshot(asked.body(Body::from(body)).unwrap()).await.unwrap();
        let (status, code, _) = problem(answer).await;
        assert_eq!((status, code), (StatusCode::UNAUTHORIZED, "unauthorized".into()), "{method} {path}");
    }
}

fn sign_in(token: &str) -> Request<Body> {
    let body = serde_json::json!({ "token": token }).to_string();
    let length = body.len();
    Request::builder().method("POST").uri("/session").header("content-length", length).body(Body::from(body)).unwrap()
}

#[tokio::test]
async fn an_address_that_guesses_tokens_at_the_sign_in_is_slowed_down_and_then_refused() {
    let (app, _folder) = app().await;
    let stranger = app.quotas.of(&QuotaOwner::stranger("0.0.0.0".parse().unwrap()));
    let router = router(app);
    let mut guesses = 0;
    while !stranger.has_too_many_refusals() {
        let answer = problem(router.clone().oneshot(sign_in(&format!("guess-{guesses}"))).await.unwrap()).await;
        assert_eq!((answer.0, answer.1), (StatusCode::UNAUTHORIZED, "unauthorized".into()));
        guesses += 1;
        assert!(guesses < 20_000, "guesses are not counted");
    }
    for _ in 0..2_000 {
        stranger.refused();
    }
    let (status, code, _) = problem(router.clone().oneshot(sign_in("guess")).await.unwrap()).await;
    assert_eq!((status, code), (StatusCode::SERVICE_UNAVAILABLE, "overloaded".into()));
}

#[tokio::test]
async fn a_stranger_cannot_make_the_server_read_a_large_body_at_the_sign_in() {
    let (app, _folder) = app().await;
    let (status, code, _) = problem(router(app).oneshot(sign_in(&"x".repeat(10_000))).await.unwrap()).await;
    assert_eq!((status, code), (StatusCode::PAYLOAD_TOO_LARGE, "too_large".into()));
}
