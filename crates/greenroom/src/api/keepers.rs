//! For operators: the keepers, what they did, and running one of them now.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::extract::Operator;
use super::problem::{Problem, ProblemDto};
use crate::keepers::driver::RunError;
use crate::store::KeeperRow;

/// A background job, and what it did last.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Keeper)]
pub struct KeeperDto {
    #[schema(example = "recovery")]
    pub name: String,
    /// When it ran last; `null` before the first time.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_run: Option<Timestamp>,
    pub took_ms: Option<i64>,
    /// How much of what it did then.
    #[schema(example = json!({"recovered": 1, "failed": 0, "deleted": 0}))]
    pub did: BTreeMap<String, u64>,
    /// What it could not do then.
    pub error: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_run: Option<Timestamp>,
    /// The replica that runs it, by its host and port; `null` while none leads.
    #[schema(example = "host-a:7700")]
    pub leader: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Keepers {
    pub keepers: Vec<KeeperDto>,
}

fn shape(row: KeeperRow, leader: Option<String>) -> KeeperDto {
    KeeperDto {
        name: row.name,
        last_run: row.last_run,
        took_ms: row.took_ms,
        did: serde_json::from_str(&row.did).unwrap_or_default(),
        error: row.error,
        next_run: row.next_run,
        leader,
    }
}

/// List keepers
#[utoipa::path(
    get, path = "/admin/keepers", tag = "For operators",
    responses((status = 200, description = "What each did last, and when it runs next", body = Keepers)),
    security(("admin_token" = [])),
)]
pub async fn keepers(State(app): State<App>, _: Operator) -> Result<Json<Keepers>, Problem> {
    let (rows, leader) = app.keepers.shown().await?;
    let keepers = rows.into_iter().map(|row| shape(row, leader.clone())).collect();
    Ok(Json(Keepers { keepers }))
}

/// Run a keeper now
///
/// On whichever replica leads. Answers with what the run did.
#[utoipa::path(
    post, path = "/admin/{keeper}/run", tag = "For operators",
    params(("keeper" = String, Path, description = "Its name, as in `GET /admin/keepers`", example = "recovery")),
    responses((status = 200, description = "How much of what it did", body = BTreeMap<String, u64>,
               example = json!({"recovered": 1, "failed": 0, "deleted": 0})),
              (status = 404, description = "`not_found`: there is no such keeper", body = ProblemDto,
               content_type = "application/problem+json"),
              (status = 504, description = "`timeout`: it takes long, and goes on", body = ProblemDto,
               content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn run(
    State(app): State<App>,
    _: Operator,
    Path(keeper): Path<String>,
) -> Result<Json<BTreeMap<String, u64>>, Problem> {
    match app.keepers.run(&keeper).await {
        Ok(did) => Ok(Json(did.into_iter().collect())),
        Err(RunError::Unknown) => Err(Problem::not_found("keeper")),
        Err(error @ RunError::TakesLong) => {
            Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, "timeout", error.to_string()))
        }
        Err(RunError::Failed(message)) => Err(Problem::unavailable(format!("the run failed: {message}"))),
        Err(RunError::Keeper(error)) => Err(error.into()),
    }
}
