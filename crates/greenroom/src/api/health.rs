//! For everyone: whether the server is alive and ready, and its metrics.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::problem::{Problem, ProblemDto};

const AWAY: &str = "away";

#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    #[schema(example = "ok")]
    pub status: &'static str,
    /// The version of the server.
    pub version: &'static str,
}

/// Check that the process is alive
///
/// Does not check the database or the providers: use `GET /readyz` for that.
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "For everyone",
    responses((status = 200, description = "The process is alive", body = Health)),
    security(()),
)]
pub async fn healthz() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// The services that the server depends on, each `ok` or `away`. The log says why a service is away.
#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    /// Always `ready`.
    #[schema(example = "ready")]
    pub status: &'static str,
    /// `ok`: the database accepted the last test write of the server, at most 10 seconds ago.
    #[schema(example = "ok")]
    pub store: &'static str,
    /// Redis: `ok` or `away`; `in_process` if no Redis is configured.
    #[schema(example = "ok")]
    pub bus: &'static str,
    /// The state of the provider of each pool: `ok` or `away`.
    #[schema(example = json!({"google-meet": "ok"}))]
    pub providers: BTreeMap<String, &'static str>,
    /// The services that do not answer. The server works without them: it sends commands with heartbeats, and uses
    /// slots that are already warm.
    #[schema(example = json!([]))]
    pub missing: Vec<String>,
}

/// Check that the server can handle requests
///
/// Returns 200 if the database accepts writes and the server is not stopping. The server makes a test write every two
/// seconds, so that this call needs no database. The response names other services that do not answer; they are no
/// reason to stop sending requests to this server.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "For everyone",
    responses((status = 200, description = "The server is ready; `missing` names the services that do not answer",
               body = Readiness),
              (status = 503,
               description = "`unavailable`: the database does not accept writes, or the server is stopping",
               body = ProblemDto, content_type = "application/problem+json")),
    security(()),
)]
pub async fn readyz(State(app): State<App>) -> Result<Json<Readiness>, Problem> {
    if app.stopping.is_cancelled() {
        return Err(Problem::unavailable("the server is stopping"));
    }
    if !app.readiness.store_takes_writes() {
        return Err(Problem::unavailable("the database does not accept writes").with("store", AWAY));
    }
    Ok(Json(readiness(app.lifecycle.bus.health(), app.deployment.health())))
}

fn readiness(bus: Option<Result<(), String>>, providers: BTreeMap<String, Result<(), String>>) -> Readiness {
    // The caller may be a stranger, who must not see what a provider said.
    let word = |answer: &Result<(), String>| if answer.is_ok() { "ok" } else { AWAY };
    let mut missing = Vec::new();
    if matches!(bus, Some(Err(_))) {
        missing.push("bus".to_owned());
    }
    missing
        .extend(providers.iter().filter(|(_, answer)| answer.is_err()).map(|(pool, _)| format!("provider of {pool}")));
    Readiness {
        status: "ready",
        store: "ok",
        bus: bus.as_ref().map_or("in_process", word),
        providers: providers.iter().map(|(pool, answer)| (pool.clone(), word(answer))).collect(),
        missing,
    }
}

/// Get metrics for Prometheus
///
/// Gauges that need the database are read at most every 5 seconds. They are `NaN` if it does not answer.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "For everyone",
    responses((status = 200, description = "The metrics in the text format of Prometheus",
               body = String, content_type = "text/plain")),
    security(()),
)]
pub async fn metrics(State(app): State<App>) -> impl IntoResponse {
    app.gauges.refresh(&app).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}
