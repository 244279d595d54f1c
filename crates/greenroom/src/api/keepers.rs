//! For operators: the keepers, what they did, and running one of them now.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use domain::AuditAction;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::audit;
use super::extract::{Asked, Operator};
use super::pages::Pager;
use super::problem::{Problem, ProblemDto};
use super::reading::Paging;
use crate::keepers::driver::RunError;
use crate::store::KeeperRow;

/// A keeper: a background job of the server, and its last run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Keeper)]
pub struct KeeperDto {
    #[schema(example = "recovery")]
    pub name: String,
    /// When it last ran; `null` before the first run.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub last_run: Option<Timestamp>,
    /// How long the last run took.
    #[schema(required)]
    pub took_ms: Option<i64>,
    /// What the last run did: the name and the number of each action.
    #[schema(example = json!({"recovered": 1, "failed": 0, "deleted": 0}))]
    pub did: BTreeMap<String, u64>,
    /// The error of the last run; `null` if it succeeded.
    #[schema(required)]
    pub error: Option<String>,
    /// When it runs next.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub next_run: Option<Timestamp>,
    /// The host and port of the replica that runs it; `null` while no replica is the leader.
    #[schema(example = "host-a:7700", required)]
    pub leader: Option<String>,
}

/// A page of keepers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = KeeperList)]
pub struct Keepers {
    pub keepers: Vec<KeeperDto>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

fn keeper_dto(row: KeeperRow, leader: Option<String>) -> KeeperDto {
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
///
/// Returns one page of keepers, each with its last run and the time of its next run.
#[utoipa::path(
    get, path = "/admin/keepers", operation_id = "admin_keepers_list", tag = "For operators", params(Paging),
    responses((status = 200, description = "A page of keepers", body = Keepers)),
    security(("admin_token" = [])),
)]
pub async fn keepers(State(app): State<App>, _: Operator, Asked(page): Asked<Paging>) -> Result<Response, Problem> {
    let (after, pager) = (page.cursor::<String>()?, Pager::new("keepers", page.limit()?));
    let (rows, leader) = app.keepers.shown().await?;
    let keepers = rows.into_iter().map(|row| keeper_dto(row, leader.clone())).collect();
    pager.write_after(keepers, after.as_deref(), |keeper| keeper.name.clone())
}

/// Run a keeper now
///
/// Runs the keeper on the replica that is the leader and returns what the run did. Returns 503 `unavailable` if the run
/// fails.
#[utoipa::path(
    post, path = "/admin/{keeper}/run", operation_id = "admin_keepers_run", tag = "For operators",
    params(("keeper" = String, Path,
            description = "The name of the keeper, as in `GET /admin/keepers`", example = "recovery")),
    responses((status = 200, description = "What the run did: the name and the number of each action",
               body = BTreeMap<String, u64>,
               example = json!({"recovered": 1, "failed": 0, "deleted": 0})),
              (status = 404, description = "`not_found`: there is no such keeper", body = ProblemDto,
               content_type = "application/problem+json"),
              (status = 504, description = "`timeout`: the run takes long and continues", body = ProblemDto,
               content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn run(
    State(app): State<App>,
    operator: Operator,
    Path(keeper): Path<String>,
) -> Result<Json<BTreeMap<String, u64>>, Problem> {
    let ran = audit::to_end(async move {
        let ran = app.keepers.run(&keeper).await;
        // A run that failed, or that takes long, may have changed something too.
        let outcome = match &ran {
            Ok(_) => Some("done"),
            Err(RunError::TakesLong) => Some("still_running"),
            Err(RunError::Failed(_)) => Some("failed"),
            Err(RunError::Unknown | RunError::Keeper(_)) => None,
        };
        if let Some(outcome) = outcome {
            let entry = operator.audit(AuditAction::KeeperRun).about(&keeper).with("outcome", outcome);
            audit::record(&app, entry).await;
        }
        Ok(ran)
    });
    match ran.await? {
        Ok(did) => Ok(Json(did.into_iter().collect())),
        Err(RunError::Unknown) => Err(Problem::not_found("keeper")),
        Err(error @ RunError::TakesLong) => {
            Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, "timeout", error.to_string()))
        }
        Err(RunError::Failed(message)) => Err(Problem::unavailable(format!("the run failed: {message}"))),
        Err(RunError::Keeper(error)) => Err(error.into()),
    }
}
