//! For operators: slots, and what went wrong in them.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use domain::{Attributes, SlotName, SlotStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::App;
use super::extract::{Asked, Operator};
use super::pages::Pager;
use super::problem::{Problem, ProblemDto};
use super::reading::{Paging, is_last};
use crate::store::{PoolRow, SlotRow};

/// A place to run one bot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Slot)]
pub struct SlotDto {
    pub name: String,
    pub pool: String,
    /// `creating`, `idle`, `busy`, `error` or `draining`.
    pub status: &'static str,
    /// Whether an agent runs in it that waits for a bot or has one, so that a bot needs no start.
    pub hot: bool,
    pub bot_id: Option<Uuid>,
    pub provider_ref: Option<String>,
    pub description: String,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Timestamp>,
    pub error_message: Option<String>,
    pub recovery_attempts: i64,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// What it has of what a bot can ask for.
    pub attributes: AttributesDto,
    /// Until when it may be given out while it is idle.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(rename = "threshold")]
    pub expires_at: Option<Timestamp>,
}

/// What a slot has of what a bot can ask for; 0 and null where nothing is known.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attributes)]
pub struct AttributesDto {
    pub resource_class: Option<String>,
    /// `on-demand` or `spot`.
    pub usage_class: &'static str,
    pub instance_type: Option<String>,
    pub cpu: u32,
    /// In MiB.
    pub mem: u32,
}

impl From<Attributes> for AttributesDto {
    fn from(has: Attributes) -> Self {
        let Attributes { resource_class, usage_class, instance_type, cpu, mem } = has;
        Self { resource_class, usage_class: usage_class.as_str(), instance_type, cpu, mem }
    }
}

impl SlotDto {
    /// A slot of one of these pools.
    fn new(slot: SlotRow, pools: &[PoolRow]) -> Self {
        let pool = pools.iter().find(|pool| pool.name == slot.pool);
        Self {
            name: slot.name.to_string(),
            hot: pool.is_some_and(|pool| pool.has_agent(&slot)),
            pool: slot.pool,
            status: slot.status.as_str(),
            bot_id: slot.bot_id.map(|id| id.0),
            provider_ref: slot.provider_ref,
            description: slot.description,
            last_used_at: slot.last_used_at,
            error_message: slot.error_message,
            recovery_attempts: slot.recovery_attempts,
            created_at: slot.created_at,
            attributes: slot.attributes.into(),
            expires_at: slot.expires_at,
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
    /// How many, from 1 to 1000. A page may have fewer: it ends at about 1 MiB.
    #[param(default = 1000, minimum = 1, maximum = 1000)]
    pub limit: Option<i64>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// The slot that a page ended with: its number and its pool.
struct SlotCursor {
    number: i64,
    pool: String,
}

impl std::str::FromStr for SlotCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, pool) = text.split_once('-').ok_or(())?;
        Ok(Self { number: number.parse().map_err(|_| ())?, pool: pool.to_owned() })
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Slots {
    pub slots: Vec<SlotDto>,
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OneSlot {
    pub slot: SlotDto,
}

/// Something that went wrong in a slot.
#[derive(Debug, Serialize, ToSchema)]
pub struct Failure {
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The bot that it went wrong for.
    pub bot_id: Option<Uuid>,
    /// What the provider said, or what was missed.
    #[serde(rename = "words")]
    pub message: String,
    /// The last lines of what ran in the slot.
    pub log: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct SlotAndFailures {
    pub slot: SlotDto,
    /// What went wrong in it, the last first.
    pub failures: Vec<Failure>,
}

/// List slots
#[utoipa::path(
    get, path = "/admin/slots", tag = "For operators", params(SlotFilter),
    responses((status = 200, description = "A page, by pool and number", body = Slots)),
    security(("admin_token" = [])),
)]
pub async fn slots(State(app): State<App>, _: Operator, Asked(filter): Asked<SlotFilter>) -> Result<Response, Problem> {
    let status: Option<SlotStatus> = filter
        .status
        .as_deref()
        .map(|word| word.parse().map_err(|error| Problem::invalid("status", error)))
        .transpose()?;
    let page = Paging { limit: filter.limit, cursor: filter.cursor };
    let (mut after, mut pager) = (page.cursor::<SlotCursor>()?, Pager::new("slots", page.limit()?));
    let pools = app.store.pools().await?;
    loop {
        let wanted = pager.wanted();
        let before = after.as_ref().map(|after| (after.pool.as_str(), after.number));
        let chunk = app.store.slots_after(filter.pool.as_deref(), status, before, wanted).await?;
        let read = chunk.len();
        for slot in chunk {
            if pager.is_full() {
                return pager.finish(true);
            }
            let cursor = format!("{}-{}", slot.number, slot.pool);
            after = Some(SlotCursor { number: slot.number, pool: slot.pool.clone() });
            pager.push(&SlotDto::new(slot, &pools), cursor)?;
        }
        if is_last(read, wanted) {
            return pager.finish(false);
        }
    }
}

async fn find(app: &App, name: &str) -> Result<SlotRow, Problem> {
    app.store.slot(&SlotName::stored(name.to_owned())).await?.ok_or_else(|| Problem::not_found("slot"))
}

async fn shape(app: &App, slot: SlotRow) -> Result<SlotDto, Problem> {
    Ok(SlotDto::new(slot, &app.store.pools().await?))
}

/// One slot
#[utoipa::path(
    get, path = "/admin/slots/{name}", tag = "For operators",
    params(("name" = String, Path, description = "The slot")),
    responses((status = 200, description = "As it is now, and what went wrong in it", body = SlotAndFailures)),
    security(("admin_token" = [])),
)]
pub async fn slot(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<Json<SlotAndFailures>, Problem> {
    let slot = find(&app, &name).await?;
    let failures = app.store.failures_in(&slot.name).await?.into_iter().map(|failure| Failure {
        at: failure.at,
        bot_id: failure.bot_id.map(|id| id.0),
        message: failure.message,
        log: failure.log,
    });
    let failures = failures.collect();
    Ok(Json(SlotAndFailures { failures, slot: shape(&app, slot).await? }))
}

async fn drained(app: &App, name: &str) -> Result<(StatusCode, Json<OneSlot>), Problem> {
    let slot = app.deployment.drain(&SlotName::stored(name.to_owned())).await?;
    let slot = slot.ok_or_else(|| Problem::not_found("slot"))?;
    Ok((StatusCode::ACCEPTED, Json(OneSlot { slot: shape(app, slot).await? })))
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
) -> Result<(StatusCode, Json<OneSlot>), Problem> {
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
) -> Result<(StatusCode, Json<OneSlot>), Problem> {
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
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn recover_slot(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<Json<OneSlot>, Problem> {
    app.deployment.recover_by_hand(&SlotName::stored(name.clone())).await?;
    let slot = find(&app, &name).await?;
    Ok(Json(OneSlot { slot: shape(&app, slot).await? }))
}
