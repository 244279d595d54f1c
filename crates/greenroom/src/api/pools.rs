//! For operators: pools.

use std::collections::BTreeMap;

use axum::Json as JsonResponse;
use axum::extract::{Path, State};
use domain::SlotStatus;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::extract::{Json, Operator};
use super::problem::Problem;
use crate::placement::pool_size::Resize;
use crate::store::PoolRow;

/// The slots of one platform on one provider.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Pool)]
pub struct PoolDto {
    pub name: String,
    pub platform: &'static str,
    pub provider: String,
    pub max_slots: i64,
    pub min_idle: i64,
    /// `stopped` or `running`.
    pub standby: &'static str,
    /// How many slots are in each status.
    pub slots: BTreeMap<&'static str, i64>,
    /// How many bots wait for a slot.
    pub queued: i64,
    /// How long bots have held a slot, on average; the last counts for a tenth.
    pub mean_hold_ms: Option<i64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Pools {
    pub pools: Vec<PoolDto>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OnePool {
    pub pool: PoolDto,
}

async fn list_pools(app: &App) -> Result<Vec<PoolDto>, Problem> {
    let (slots, queued) = (app.store.slots_by_status().await?, app.store.queued_by_pool().await?);
    let dto = |pool: PoolRow| {
        let count = |status: SlotStatus| {
            slots
                .iter()
                .find(|(name, found, _)| *name == pool.name && *found == status)
                .map_or(0, |(_, _, count)| *count)
        };
        PoolDto {
            slots: SlotStatus::ALL.map(|status| (status.as_str(), count(status))).into(),
            queued: queued.iter().find(|(name, _)| *name == pool.name).map_or(0, |(_, count)| *count),
            platform: pool.platform.as_str(),
            provider: pool.provider,
            max_slots: pool.max_slots,
            min_idle: pool.min_idle,
            standby: if pool.hot { "running" } else { "stopped" },
            mean_hold_ms: pool.mean_hold_ms,
            name: pool.name,
        }
    };
    Ok(app.store.pools().await?.into_iter().map(dto).collect())
}

async fn shape_of(app: &App, name: &str) -> Result<PoolDto, Problem> {
    list_pools(app).await?.into_iter().find(|pool| pool.name == name).ok_or_else(|| Problem::not_found("pool"))
}

/// List pools
#[utoipa::path(
    get, path = "/admin/pools", tag = "For operators",
    responses((status = 200, description = "In the order of the configuration", body = Pools)),
    security(("admin_token" = [])),
)]
pub async fn pools(State(app): State<App>, _: Operator) -> Result<JsonResponse<Pools>, Problem> {
    Ok(JsonResponse(Pools { pools: list_pools(&app).await? }))
}

/// One pool
#[utoipa::path(
    get, path = "/admin/pools/{name}", tag = "For operators",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "As it is now", body = OnePool)),
    security(("admin_token" = [])),
)]
pub async fn pool(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<JsonResponse<OnePool>, Problem> {
    Ok(JsonResponse(OnePool { pool: shape_of(&app, &name).await? }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolChange {
    #[schema(minimum = 1, maximum = 100000)]
    pub max_slots: Option<i64>,
    #[schema(minimum = 0, maximum = 100000)]
    pub min_idle: Option<i64>,
}

/// Change the size of a pool
///
/// Holds until the configuration says something else. A pool that shrinks lets go of idle slots that are too many.
#[utoipa::path(
    patch, path = "/admin/pools/{name}", tag = "For operators", request_body = PoolChange,
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "As it is now", body = OnePool)),
    security(("admin_token" = [])),
)]
pub async fn change_pool(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
    Json(change): Json<PoolChange>,
) -> Result<JsonResponse<OnePool>, Problem> {
    let PoolChange { max_slots, min_idle } = change;
    app.placement.resize_pool(&name, Resize { max_slots, min_idle }).await?;
    Ok(JsonResponse(OnePool { pool: shape_of(&app, &name).await? }))
}
