//! For operators: pools.

use std::collections::{BTreeMap, HashMap};

use axum::Json as JsonResponse;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use domain::{AuditAction, SlotStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::audit;
use super::dto::{BotDto, OneBot, PlatformWord};
use super::extract::{Asked, Json, Operator};
use super::pages::Pager;
use super::problem::{Problem, ProblemDto};
use super::reading::Paging;
use crate::explain::moment::after;
use crate::placement::Reserved;
use crate::placement::pool_size::Resize;
use crate::placement::view::PoolView;
use crate::providers::configured_image;
use crate::store::PoolRow;

/// A pool: slots for one platform at one provider.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Pool)]
pub struct PoolDto {
    pub name: String,
    #[schema(value_type = PlatformWord)]
    pub platform: &'static str,
    #[schema(value_type = ProviderKindWord)]
    pub provider: String,
    /// The position in the order in which pools of one platform are filled, from 1; `null` if the pool is no longer in
    /// the configuration.
    #[schema(required)]
    pub order: Option<i64>,
    /// The largest number of slots.
    pub max_slots: i64,
    /// How many idle slots the server keeps ready.
    pub min_idle: i64,
    /// The state of idle slots.
    #[schema(value_type = StandbyWord)]
    pub standby: &'static str,
    /// The image of new slots, as configured; `null` if the provider uses no images.
    #[schema(required)]
    pub image: Option<String>,
    /// How many slots are in each status.
    pub slots: BTreeMap<&'static str, i64>,
    /// How many bots wait for a slot of this pool.
    pub queued: i64,
    /// How long bots have used a slot, as a moving average in which the last bot has the weight 1/10.
    #[schema(required)]
    pub mean_hold_ms: Option<i64>,
    /// The memory in bytes of the slots in which an agent runs now, as their agents measured it when they last waited;
    /// `null` if it is not known of any.
    #[schema(required)]
    pub memory_bytes: Option<i64>,
    /// Until when the provider refuses requests, so that starts and stops of slots wait; `null` if it does not.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub closed_until: Option<Timestamp>,
}

/// What runs the slots of a pool.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ProviderKind)]
pub enum ProviderKindWord {
    Process,
    Docker,
    Swarm,
    Nomad,
    Coolify,
    Ec2,
}

/// The state of the idle slots of a pool.
///
/// - `stopped`: the server starts the slot for each bot
/// - `running`: an agent waits in the slot
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Standby)]
pub enum StandbyWord {
    Stopped,
    Running,
}

/// A page of pools, in the order of the configuration.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PoolList)]
pub struct Pools {
    pub pools: Vec<PoolDto>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OnePool {
    pub pool: PoolDto,
}

async fn list_pools(app: &App) -> Result<Vec<PoolDto>, Problem> {
    let counts = app.placement.read_view(&app.store, |view| {
        let of = |view: &PoolView| (view.pool.name.clone(), (view.slots, view.waiting.len()));
        view.pools().map(of).collect::<HashMap<_, _>>()
    });
    let counts = counts.await?;
    let slots: i64 = counts.values().flat_map(|(slots, _)| slots.iter().map(|(_, count)| *count)).sum();
    let memory = app.pool_memory.read(&app.store, slots).await?;
    let images = app.store.stored_pools().await?.into_iter().filter_map(|stored| {
        let image = configured_image(&stored.settings)?;
        Some((stored.name, image))
    });
    let (images, now): (HashMap<String, String>, _) = (images.collect(), app.clock.now());
    // A provider's request budget has the name of its host.
    let closed: HashMap<String, _> = app.store.stopped_budgets().await?.into_iter().collect();
    let dto = |pool: PoolRow| {
        let (slots, queued) = counts.get(&pool.name).copied().unwrap_or((SlotStatus::ALL.map(|status| (status, 0)), 0));
        PoolDto {
            slots: slots.map(|(status, count)| (status.as_str(), count)).into(),
            queued: i64::try_from(queued).unwrap_or(i64::MAX),
            platform: pool.platform.as_str(),
            provider: pool.provider,
            order: pool.fill_order.map(|position| position + 1),
            image: images.get(&pool.name).cloned(),
            closed_until: closed.get(&pool.host).map(|left| after(now, *left)),
            max_slots: pool.max_slots,
            min_idle: pool.min_idle,
            standby: if pool.hot { "running" } else { "stopped" },
            mean_hold_ms: pool.mean_hold_ms,
            memory_bytes: memory.get(&pool.name).map(|memory| memory.bytes),
            name: pool.name,
        }
    };
    Ok(app.store.pools().await?.into_iter().map(dto).collect())
}

async fn pool_dto(app: &App, name: &str) -> Result<PoolDto, Problem> {
    list_pools(app).await?.into_iter().find(|pool| pool.name == name).ok_or_else(|| Problem::not_found("pool"))
}

/// List pools
///
/// Returns one page of pools with the number of their slots in each status.
#[utoipa::path(
    get, path = "/admin/pools", operation_id = "admin_pools_list", tag = "For operators", params(Paging),
    responses((status = 200, description = "A page of pools, in the order of the configuration", body = Pools)),
    security(("admin_token" = [])),
)]
pub async fn pools(State(app): State<App>, _: Operator, Asked(page): Asked<Paging>) -> Result<Response, Problem> {
    let (after, pager) = (page.cursor::<String>()?, Pager::new("pools", page.limit()?));
    pager.write_after(list_pools(&app).await?, after.as_deref(), |pool| pool.name.clone())
}

/// Get a pool
///
/// Returns 404 `not_found` if there is no such pool.
#[utoipa::path(
    get, path = "/admin/pools/{name}", operation_id = "admin_pools_show", tag = "For operators",
    params(("name" = String, Path, description = "The name of the pool")),
    responses((status = 200, description = "The pool", body = OnePool)),
    security(("admin_token" = [])),
)]
pub async fn pool(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<JsonResponse<OnePool>, Problem> {
    Ok(JsonResponse(OnePool { pool: pool_dto(&app, &name).await? }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolChange {
    /// The new largest number of slots.
    #[schema(minimum = 1, maximum = 100000)]
    pub max_slots: Option<i64>,
    /// How many idle slots the server keeps ready, at most `max_slots`.
    #[schema(minimum = 0, maximum = 100000)]
    pub min_idle: Option<i64>,
}

/// Change the size of a pool
///
/// Changes `max_slots`, `min_idle` or both, and returns the pool. The new size is valid until the configuration of this
/// size changes. If the pool becomes smaller, the server deletes surplus idle slots. Returns 404 `not_found` if there
/// is no such pool, and 422 `invalid` for a size that is not allowed.
#[utoipa::path(
    patch, path = "/admin/pools/{name}", operation_id = "admin_pools_change", tag = "For operators", request_body = PoolChange,
    params(("name" = String, Path, description = "The name of the pool")),
    responses((status = 200, description = "The changed pool", body = OnePool)),
    security(("admin_token" = [])),
)]
pub async fn change_pool(
    State(app): State<App>,
    operator: Operator,
    Path(name): Path<String>,
    Json(change): Json<PoolChange>,
) -> Result<JsonResponse<OnePool>, Problem> {
    let PoolChange { max_slots, min_idle } = change;
    let sizes = [("max_slots", max_slots), ("min_idle", min_idle)];
    let given = sizes.into_iter().filter_map(|(name, size)| Some((name, size?)));
    let audit = given.fold(operator.audit(AuditAction::PoolChanged), |audit, (name, size)| audit.with(name, size));
    app.placement.resize_pool(&name, Resize { max_slots, min_idle }, Some(audit)).await?;
    Ok(JsonResponse(OnePool { pool: pool_dto(&app, &name).await? }))
}

/// Probe a pool
///
/// Runs the demo bot through a real slot of this pool, to prove that the pool works. The probe is a bot: it takes a free
/// slot or a new one, or waits in the queue like other bots. Its steps are its events. It ends as `completed` with the
/// reason `finished` if it was started, joined its pretend meeting and left. Otherwise its `reason` and `error` say what
/// failed. Each pool has one probe at a time. Users do not see probes.
#[utoipa::path(
    post, path = "/admin/pools/{name}/probe", tag = "For operators", operation_id = "admin_pools_probe",
    params(("name" = String, Path, description = "The name of the pool")),
    responses(
        (status = 202, description = "The probe", body = OneBot,
         headers(("Location" = String, description = "The path of the bot: `/admin/bots/{id}`"))),
        (status = 404, description = "`not_found`: there is no such pool",
         body = ProblemDto, content_type = "application/problem+json"),
        (status = 409,
         description = "`duplicate_bot`: a probe of this pool has not ended yet; `bot_id` is its id. \
         `invalid_transition`: the pool has left the configuration, or may have no slots",
         body = ProblemDto, content_type = "application/problem+json"),
        (status = 429, description = "`limit_reached`: too many probes run at once",
         body = ProblemDto, content_type = "application/problem+json"),
    ),
    security(("admin_token" = [])),
)]
pub async fn probe_pool(
    State(app): State<App>,
    operator: Operator,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    audit::to_end(async move {
        let reserved = app.placement.probe(&name, app.deadlines.queue_default).await?;
        let Reserved { bot, queue_position, estimated_wait_ms, .. } = reserved;
        let mut bot = BotDto::from(bot);
        (bot.queue_position, bot.estimated_wait_ms) = (queue_position, estimated_wait_ms);
        let entry = operator.audit(AuditAction::PoolProbed).about(&name).with("bot_id", bot.id.to_string());
        audit::record(&app, entry).await;
        let location = [(LOCATION, format!("/admin/bots/{}", bot.id))];
        Ok((StatusCode::ACCEPTED, location, JsonResponse(OneBot { bot })).into_response())
    })
    .await
}
