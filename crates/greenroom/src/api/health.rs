//! For everyone: whether the server is alive and ready, and its metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use domain::{ShownStatus, SlotStatus};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::problem::{Problem, ProblemDto};

const PATIENCE: Duration = Duration::from_secs(5);
const AWAY: &str = "away";

#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    #[schema(example = "ok")]
    pub status: &'static str,
    pub version: &'static str,
}

/// Whether the process is alive
#[utoipa::path(
    get, path = "/healthz", tag = "For everyone",
    responses((status = 200, description = "It answers", body = Health)),
)]
pub async fn healthz() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// What the server stands on, each `ok` or `away`. Why something is away is told in the log.
#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    #[schema(example = "ready")]
    pub status: &'static str,
    /// `ok` when the database took the server's last write, which is at most a few seconds old.
    #[schema(example = "ok")]
    pub store: &'static str,
    /// `ok` or `away`; `in_process` when no Redis is configured.
    #[schema(example = "ok")]
    pub bus: &'static str,
    /// The provider of each pool: `ok` or `away`.
    #[schema(example = json!({"google-meet": "ok"}))]
    pub providers: BTreeMap<String, &'static str>,
    /// What does not answer. The server serves without it: commands travel by heartbeat, slots that are warm are used.
    #[schema(example = json!([]))]
    pub missing: Vec<String>,
}

/// Whether the server can serve
///
/// The database takes writes, and the server is not about to stop. The server makes a write of its own every two seconds
/// and answers from memory. Whatever else is away is told, and is no reason to take the server out of use.
#[utoipa::path(
    get, path = "/readyz", tag = "For everyone",
    responses((status = 200, description = "It can; `missing` names what does not answer", body = Readiness),
              (status = 503, description = "`unavailable`: it cannot; `store` is `away`, or the server is stopping",
               body = ProblemDto, content_type = "application/problem+json")),
)]
pub async fn readyz(State(app): State<App>) -> Result<Json<Readiness>, Problem> {
    if app.stopping.is_cancelled() {
        return Err(Problem::unavailable("the server is stopping"));
    }
    if !app.readiness.store_takes_writes() {
        return Err(Problem::unavailable("the database does not take writes").with("store", AWAY));
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

/// Metrics for Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "For everyone",
    responses((status = 200, description = "The text format of Prometheus", body = String, content_type = "text/plain")),
)]
pub async fn metrics(State(app): State<App>) -> impl IntoResponse {
    // With the database away the rest is wanted all the more; what cannot be counted is then not a number.
    let counted = tokio::time::timeout(PATIENCE, app.store.open_bots_by_status()).await.ok().and_then(Result::ok);
    for status in
        ShownStatus::ALL.into_iter().filter(|status| !matches!(status, ShownStatus::Completed | ShownStatus::Failed))
    {
        let count = count_of(counted.as_deref(), |counted| *counted == status);
        metrics::gauge!("greenroom_bots", "status" => status.as_str()).set(count);
    }
    let pools = tokio::time::timeout(PATIENCE, app.store.pools()).await.ok().and_then(Result::ok).unwrap_or_default();
    let slots = tokio::time::timeout(PATIENCE, app.store.slots_by_status()).await.ok().and_then(Result::ok);
    let slots = slots.map(|slots| slots.into_iter().map(|(pool, status, n)| ((pool, status), n)).collect::<Vec<_>>());
    for (pool, status) in pools.iter().flat_map(|pool| SlotStatus::ALL.map(|status| (pool, status))) {
        let count = count_of(slots.as_deref(), |(name, of)| *name == pool.name && *of == status);
        metrics::gauge!("greenroom_slots", "pool" => pool.name.clone(), "status" => status.as_str()).set(count);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}

#[allow(clippy::cast_precision_loss)]
fn count_of<K>(counted: Option<&[(K, i64)]>, is: impl Fn(&K) -> bool) -> f64 {
    let find = |counted: &[(K, i64)]| counted.iter().find(|(key, _)| is(key)).map_or(0, |(_, count)| *count);
    counted.map_or(f64::NAN, |counted| find(counted) as f64)
}
