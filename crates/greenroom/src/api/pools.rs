//! For operators: pools, slots, the queue and the deploy gate.

use std::collections::BTreeMap;

use axum::Json as Answer;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use domain::{SlotName, SlotStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::App;
use super::extract::{Asked, Json, Operator};
use super::problem::{Problem, ProblemShape};
use crate::placement::SlotNews;
use crate::store::{PoolRow, SlotRow};

const MOST_SLOTS: i64 = 100_000;

/// The slots of one platform on one provider.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Pool)]
pub struct PoolShape {
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
    pub pools: Vec<PoolShape>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OnePool {
    pub pool: PoolShape,
}

async fn shapes(app: &App) -> Result<Vec<PoolShape>, Problem> {
    let (slots, queued) = (app.store.slots_by_status().await?, app.store.queued_by_pool().await?);
    let shape = |pool: PoolRow| {
        let count = |status: SlotStatus| {
            slots
                .iter()
                .find(|(name, found, _)| *name == pool.name && *found == status)
                .map_or(0, |(_, _, count)| *count)
        };
        PoolShape {
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
    Ok(app.store.pools().await?.into_iter().map(shape).collect())
}

async fn shape_of(app: &App, name: &str) -> Result<PoolShape, Problem> {
    shapes(app).await?.into_iter().find(|pool| pool.name == name).ok_or_else(|| Problem::not_found("pool"))
}

/// List pools
#[utoipa::path(
    get, path = "/admin/pools", tag = "For operators",
    responses((status = 200, description = "In the order of the configuration", body = Pools)),
    security(("admin_token" = [])),
)]
pub async fn pools(State(app): State<App>, _: Operator) -> Result<Answer<Pools>, Problem> {
    Ok(Answer(Pools { pools: shapes(&app).await? }))
}

/// One pool
#[utoipa::path(
    get, path = "/admin/pools/{name}", tag = "For operators",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "As it is now", body = OnePool)),
    security(("admin_token" = [])),
)]
pub async fn pool(State(app): State<App>, _: Operator, Path(name): Path<String>) -> Result<Answer<OnePool>, Problem> {
    Ok(Answer(OnePool { pool: shape_of(&app, &name).await? }))
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
) -> Result<Answer<OnePool>, Problem> {
    let mut tx = app.store.begin().await?;
    let pool = tx.hold_pool(&name).await?.ok_or_else(|| Problem::not_found("pool"))?;
    let (max_slots, min_idle) = (change.max_slots.unwrap_or(pool.max_slots), change.min_idle.unwrap_or(pool.min_idle));
    if !(1..=MOST_SLOTS).contains(&max_slots) {
        return Err(Problem::invalid("max_slots", format!("must be from 1 to {MOST_SLOTS}")));
    }
    if !(0..=max_slots).contains(&min_idle) {
        return Err(Problem::invalid("min_idle", format!("must be from 0 to max_slots, which is {max_slots}")));
    }
    tx.resize_pool(&name, max_slots, min_idle).await?;
    tx.commit().await?;
    tracing::info!(pool = name, max_slots, min_idle, "pool resized");
    app.placement.look().await?;
    Ok(Answer(OnePool { pool: shape_of(&app, &name).await? }))
}

/// A place to run one bot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Slot)]
pub struct SlotShape {
    pub name: String,
    pub pool: String,
    /// `creating`, `idle`, `busy`, `error` or `draining`.
    pub status: &'static str,
    pub bot_id: Option<Uuid>,
    pub provider_ref: Option<String>,
    pub description: String,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Timestamp>,
    pub error_message: Option<String>,
    pub recovery_attempts: i64,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

impl From<SlotRow> for SlotShape {
    fn from(slot: SlotRow) -> Self {
        Self {
            name: slot.name.to_string(),
            pool: slot.pool,
            status: slot.status.as_str(),
            bot_id: slot.bot_id.map(|id| id.0),
            provider_ref: slot.provider_ref,
            description: slot.description,
            last_used_at: slot.last_used_at,
            error_message: slot.error_message,
            recovery_attempts: slot.recovery_attempts,
            created_at: slot.created_at,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SlotFilter {
    /// Only those of this pool.
    pub pool: Option<String>,
    /// Only those in this status.
    pub status: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Slots {
    pub slots: Vec<SlotShape>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OneSlot {
    pub slot: SlotShape,
}

/// List slots
#[utoipa::path(
    get, path = "/admin/slots", tag = "For operators", params(SlotFilter),
    responses((status = 200, description = "By pool and number", body = Slots)),
    security(("admin_token" = [])),
)]
pub async fn slots(
    State(app): State<App>,
    _: Operator,
    Asked(filter): Asked<SlotFilter>,
) -> Result<Answer<Slots>, Problem> {
    let status: Option<SlotStatus> = filter
        .status
        .as_deref()
        .map(|word| word.parse().map_err(|error| Problem::invalid("status", error)))
        .transpose()?;
    let slots = app.store.slots(filter.pool.as_deref(), status).await?;
    Ok(Answer(Slots { slots: slots.into_iter().map(Into::into).collect() }))
}

async fn find(app: &App, name: &str) -> Result<SlotRow, Problem> {
    app.store.slot(&SlotName::stored(name.to_owned())).await?.ok_or_else(|| Problem::not_found("slot"))
}

/// One slot
#[utoipa::path(
    get, path = "/admin/slots/{name}", tag = "For operators",
    params(("name" = String, Path, description = "The slot")),
    responses((status = 200, description = "As it is now", body = OneSlot)),
    security(("admin_token" = [])),
)]
pub async fn slot(State(app): State<App>, _: Operator, Path(name): Path<String>) -> Result<Answer<OneSlot>, Problem> {
    Ok(Answer(OneSlot { slot: find(&app, &name).await?.into() }))
}

async fn drained(app: &App, name: &str) -> Result<(StatusCode, Answer<OneSlot>), Problem> {
    let slot = find(app, name).await?;
    app.placement.tell(slot.name.clone(), SlotNews::Drain).await?;
    let slot = app.store.slot(&slot.name).await?.unwrap_or(slot);
    if slot.bot_id.is_none() {
        let (deployment, slot) = (app.deployment.clone(), slot.clone());
        tokio::spawn(async move { deployment.remove(slot).await });
    }
    let slot = SlotShape::from(slot);
    Ok((StatusCode::ACCEPTED, Answer(OneSlot { slot })))
}

/// Delete a slot
///
/// It takes no more bots. Once it has none it is deleted at the provider, and then its row.
#[utoipa::path(
    delete, path = "/admin/slots/{name}", tag = "For operators",
    params(("name" = String, Path, description = "The slot")),
    responses((status = 202, description = "It goes when its bot is at an end", body = OneSlot)),
    security(("admin_token" = [])),
)]
pub async fn delete_slot(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<(StatusCode, Answer<OneSlot>), Problem> {
    drained(&app, &name).await
}

/// Drain a slot
///
/// The same as deleting it: it takes no more bots, and goes when it has none.
#[utoipa::path(
    post, path = "/admin/slots/{name}/drain", tag = "For operators",
    params(("name" = String, Path, description = "The slot")),
    responses((status = 202, description = "It goes when its bot is at an end", body = OneSlot)),
    security(("admin_token" = [])),
)]
pub async fn drain_slot(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<(StatusCode, Answer<OneSlot>), Problem> {
    drained(&app, &name).await
}

/// Recover a slot by hand
///
/// Stops whatever is left in it and makes it ready again. Only for slots in `error`.
#[utoipa::path(
    post, path = "/admin/slots/{name}/recover", tag = "For operators",
    params(("name" = String, Path, description = "The slot")),
    responses((status = 200, description = "As it is now", body = OneSlot),
              (status = 409, description = "`invalid_transition`: it is not in error, or someone is at it",
               body = ProblemShape, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn recover_slot(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<Answer<OneSlot>, Problem> {
    let slot = find(&app, &name).await?;
    if slot.status != SlotStatus::Error {
        let why = format!("the slot is {}, not in error", slot.status);
        return Err(Problem::new(StatusCode::CONFLICT, "invalid_transition", why));
    }
    if app.deployment.recover(&slot.name).await?.is_none() {
        let why = "the slot is being stopped or recovered already";
        return Err(Problem::new(StatusCode::CONFLICT, "invalid_transition", why));
    }
    Ok(Answer(OneSlot { slot: find(&app, &name).await?.into() }))
}

/// A bot that waits for a slot.
#[derive(Debug, Serialize, ToSchema)]
pub struct QueueEntry {
    pub bot_id: Uuid,
    pub pool: String,
    /// From 1 on, in the line of its platform.
    pub position: i64,
    pub priority: i64,
    #[schema(value_type = String, format = DateTime)]
    pub queued_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub timeout_at: Timestamp,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Queue {
    pub entries: Vec<QueueEntry>,
}

/// Who waits for a slot
#[utoipa::path(
    get, path = "/admin/queue", tag = "For operators",
    responses((status = 200, description = "By platform, in the order in which they will be served", body = Queue)),
    security(("admin_token" = [])),
)]
pub async fn queue(State(app): State<App>, _: Operator) -> Result<Answer<Queue>, Problem> {
    let entries = app.store.queue().await?.into_iter().map(|entry| QueueEntry {
        bot_id: entry.bot_id.0,
        pool: entry.pool,
        position: entry.position,
        priority: entry.priority,
        queued_at: entry.queued_at,
        timeout_at: entry.timeout_at,
    });
    Ok(Answer(Queue { entries: entries.collect() }))
}

/// A slot at the deploy gate, or behind it.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeploymentEntry {
    pub slot: String,
    /// `null` when a slot is made ready without a bot.
    pub bot_id: Option<Uuid>,
    /// `active` or `waiting`.
    pub state: &'static str,
    #[schema(value_type = String, format = DateTime)]
    pub asked_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub timeout_at: Timestamp,
    /// What the provider said last, when a start is being tried again.
    pub last_error: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Deployments {
    pub active: usize,
    pub queued: usize,
    pub max_concurrent: i64,
    pub entries: Vec<DeploymentEntry>,
}

/// The deploy gate
#[utoipa::path(
    get, path = "/admin/deployments", tag = "For operators",
    responses((status = 200, description = "In the order of arrival", body = Deployments)),
    security(("admin_token" = [])),
)]
pub async fn deployments(State(app): State<App>, _: Operator) -> Result<Answer<Deployments>, Problem> {
    let entries: Vec<DeploymentEntry> = app
        .store
        .deployments()
        .await?
        .into_iter()
        .map(|row| DeploymentEntry {
            slot: row.slot.to_string(),
            bot_id: row.bot_id.map(|id| id.0),
            state: if row.active { "active" } else { "waiting" },
            asked_at: row.asked_at,
            timeout_at: row.timeout_at,
            last_error: row.last_error,
        })
        .collect();
    let active = entries.iter().filter(|entry| entry.state == "active").count();
    Ok(Answer(Deployments {
        active,
        queued: entries.len() - active,
        max_concurrent: app.deployment.max_concurrent(),
        entries,
    }))
}
