//! For operators: slots, and what went wrong in them.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use domain::{Attributes, AuditAction, SlotName, SlotStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::App;
use super::audit;
use super::dto::{FaultWord, PlatformWord, StatusWord};
use super::extract::{Asked, Operator};
use super::pages::Pager;
use super::problem::{Problem, ProblemDto};
use super::reading::{Paging, is_last};
use super::requirements::UsageClassWord;
use crate::explain::slot_deadline::SlotClocks;
use crate::store::{NewAuditEntry, PoolRow, SlotBotRow, SlotRow};

/// The status of a slot.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SlotStatus)]
pub enum SlotStatusWord {
    Creating,
    Idle,
    Busy,
    Error,
    Draining,
}

/// A slot, which runs one bot at a time.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Slot)]
pub struct SlotDto {
    pub name: String,
    pub pool: String,
    #[schema(value_type = SlotStatusWord)]
    pub status: &'static str,
    /// Since when the slot has this status.
    #[schema(value_type = String, format = DateTime)]
    pub status_since: Timestamp,
    /// For a slot in `error`: the next attempt to recover it. For a slot that is `creating`: when it must be ready.
    /// Otherwise `null`.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub deadline_at: Option<Timestamp>,
    /// Whether an agent runs in the slot. A bot then needs no start of the slot.
    pub hot: bool,
    /// The bot that has the slot.
    #[schema(required)]
    pub bot_id: Option<Uuid>,
    /// The id of the slot at the provider.
    #[schema(required)]
    pub provider_ref: Option<String>,
    /// The state of the slot as a text for people.
    pub description: String,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub last_used_at: Option<Timestamp>,
    /// The error of a slot in `error`.
    #[schema(required)]
    pub error_message: Option<String>,
    /// How often the server has tried to recover the slot.
    pub recovery_attempts: i64,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// The attributes that the requirements of bots refer to.
    pub attributes: AttributesDto,
    /// The release that the slot runs. Not supported yet: always `null`.
    #[schema(required)]
    pub release: Option<String>,
    /// The memory in bytes of everything that runs in the slot, as its agent measured it when it last waited for a bot;
    /// `null` if no agent runs in the slot, or if it is not known.
    #[schema(required)]
    pub memory_bytes: Option<i64>,
    /// Until when the idle slot can be assigned to a bot; `null` means without limit.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    #[serde(rename = "threshold")]
    pub expires_at: Option<Timestamp>,
}

/// The attributes of a slot that the requirements of bots refer to. 0 and `null` mean unknown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attributes)]
pub struct AttributesDto {
    #[schema(required)]
    pub resource_class: Option<String>,
    #[schema(value_type = UsageClassWord)]
    pub usage_class: &'static str,
    #[schema(required)]
    pub instance_type: Option<String>,
    /// The number of processors.
    pub cpu: u32,
    /// The memory in MiB.
    pub mem: u32,
}

impl From<Attributes> for AttributesDto {
    fn from(has: Attributes) -> Self {
        let Attributes { resource_class, usage_class, instance_type, cpu, mem } = has;
        Self { resource_class, usage_class: usage_class.as_str(), instance_type, cpu, mem }
    }
}

/// Whether an agent runs in the slot, which is one of these pools.
fn is_hot(slot: &SlotRow, pools: &[PoolRow]) -> bool {
    pools.iter().any(|pool| pool.name == slot.pool && pool.has_agent(slot))
}

/// What is shown of some slots beyond their rows.
struct SlotFacts {
    /// The memory of slots in which an agent runs, by name and incarnation.
    memory: HashMap<(SlotName, Uuid), i64>,
    clocks: SlotClocks,
}

impl SlotFacts {
    /// Reads the facts about these slots, with three queries at most.
    async fn read(app: &App, slots: &[SlotRow], pools: &[PoolRow]) -> Result<Self, Problem> {
        let hot = slots.iter().filter(|slot| is_hot(slot, pools)).map(|slot| slot.name.clone());
        let memory = app.store.memory_of_slots(&hot.collect::<Vec<SlotName>>()).await?;
        Ok(Self { memory, clocks: SlotClocks::read(&app.store, &app.keepers, slots).await? })
    }
}

impl SlotDto {
    /// A slot of one of these pools.
    fn new(slot: SlotRow, pools: &[PoolRow], facts: &SlotFacts) -> Self {
        let pool = pools.iter().find(|pool| pool.name == slot.pool);
        Self {
            status_since: slot.status_since,
            deadline_at: facts.clocks.deadline(&slot, pool),
            release: None,
            memory_bytes: facts.memory.get(&(slot.name.clone(), slot.incarnation)).copied(),
            name: slot.name.to_string(),
            hot: is_hot(&slot, pools),
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
    /// Only slots of this pool.
    pub pool: Option<String>,
    /// Only slots with this status.
    #[param(value_type = Option<SlotStatusWord>)]
    pub status: Option<String>,
    /// The largest number of entries on the page. A page may have fewer, because it ends at about 1 MiB.
    #[param(default = 1000, minimum = 1, maximum = 1000)]
    pub limit: Option<i64>,
    /// The `next_cursor` of the previous page.
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

/// A page of slots, by pool and number.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SlotPage)]
pub struct Slots {
    pub slots: Vec<SlotDto>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OneSlot {
    pub slot: SlotDto,
}

/// A failure in a slot.
#[derive(Debug, Serialize, ToSchema)]
pub struct Failure {
    /// When it happened.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The bot that was affected.
    #[schema(required)]
    pub bot_id: Option<Uuid>,
    /// The error of the provider, or the deadline that passed.
    #[serde(rename = "words")]
    pub message: String,
    /// The last lines that the program in the slot printed.
    #[schema(required)]
    pub log: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct SlotAndHistory {
    pub slot: SlotDto,
    /// The failures in the slot, newest first.
    pub failures: Vec<Failure>,
    /// The last 20 bots that ran in the slot, newest first. Only the newest bots of the installation are searched, and
    /// those of the failures: at least 10,000 bots, and 40 for each slot, up to 100,000.
    pub bots: Vec<SlotBot>,
}

/// A bot that ran in a slot, or runs in it. `GET /admin/bots/{id}` returns the whole bot.
#[derive(Debug, Serialize, ToSchema)]
pub struct SlotBot {
    pub id: Uuid,
    pub user_id: Uuid,
    #[schema(value_type = PlatformWord)]
    pub platform: &'static str,
    pub native_meeting_id: String,
    #[schema(required)]
    pub bot_display_name: Option<String>,
    #[schema(value_type = StatusWord)]
    pub status: &'static str,
    #[schema(value_type = String, format = DateTime)]
    pub status_since: Timestamp,
    #[schema(required)]
    pub reason: Option<String>,
    /// The cause of the end; `null` before the end.
    #[schema(value_type = Option<FaultWord>, required)]
    pub fault: Option<&'static str>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub start_time: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub end_time: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

impl From<SlotBotRow> for SlotBot {
    fn from(bot: SlotBotRow) -> Self {
        Self {
            id: bot.id.0,
            user_id: bot.user_id.0,
            platform: bot.platform.as_str(),
            native_meeting_id: bot.native_meeting_id,
            bot_display_name: bot.bot_display_name,
            status: bot.status.as_str(),
            status_since: bot.status_since,
            reason: bot.reason,
            fault: bot.fault.map(domain::Fault::as_str),
            start_time: bot.start_time,
            end_time: bot.end_time,
            created_at: bot.created_at,
        }
    }
}

/// How many bots of a slot are shown.
const BOTS_OF_SLOT: i64 = 20;

/// How many of the newest bots are searched for those of one slot: about twice as many as its last 20 bots need if all
/// slots are used equally.
fn bots_to_search(pools: &[PoolRow]) -> i64 {
    let slots: i64 = pools.iter().map(|pool| pool.slots).sum();
    slots.saturating_mul(2 * BOTS_OF_SLOT).clamp(10_000, 100_000)
}

/// List slots
///
/// Returns one page of slots.
#[utoipa::path(
    get, path = "/admin/slots", operation_id = "admin_slots_list", tag = "For operators", params(SlotFilter),
    responses((status = 200, description = "A page of slots, ordered by pool and number", body = Slots)),
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
        let (chunk, more) = next_slots(&app, filter.pool.as_deref(), status, after.as_ref(), wanted).await?;
        let facts = SlotFacts::read(&app, &chunk, &pools).await?;
        for slot in chunk {
            if pager.is_full() {
                return pager.finish(true);
            }
            let cursor = format!("{}-{}", slot.number, slot.pool);
            pager.push(&SlotDto::new(slot, &pools, &facts), cursor)?;
        }
        match more {
            Some(last) => after = Some(last),
            None => return pager.finish(false),
        }
    }
}

/// The next slots after one, and the last of them if there may be more. Those with a status are found in the view of
/// placement, because no index leads to what every start changes.
async fn next_slots(
    app: &App,
    pool: Option<&str>,
    status: Option<SlotStatus>,
    after: Option<&SlotCursor>,
    wanted: i64,
) -> Result<(Vec<SlotRow>, Option<SlotCursor>), Problem> {
    let position = after.map(|after| (after.pool.as_str(), after.number));
    let (slots, read, last) = match (status, pool) {
        (Some(status), _) => {
            let limit = usize::try_from(wanted).unwrap_or(0);
            let names = app.placement.read_view(&app.store, |view| view.slots_after(pool, status, position, limit));
            let names = names.await?;
            let mut slots = app.store.slots_by_name(&names).await?;
            // Its status may have changed since.
            slots.retain(|slot| slot.status == status);
            slots.sort_by(|one, other| (&one.pool, one.number).cmp(&(&other.pool, other.number)));
            let last = names.last().and_then(SlotName::parts);
            let last = last.map(|(pool, number)| SlotCursor { number, pool: pool.to_owned() });
            (slots, names.len(), last)
        }
        (None, Some(pool)) => {
            let number = match position {
                Some((of, number)) if of == pool => number,
                Some((of, _)) if of > pool => i64::MAX,
                _ => i64::MIN,
            };
            let slots = app.store.slots_of_pool_after(pool, number, wanted).await?;
            (slots, 0, None)
        }
        (None, None) => (app.store.slots_after(position, wanted).await?, 0, None),
    };
    let read = read.max(slots.len());
    let last = last.or_else(|| slots.last().map(|slot| SlotCursor { number: slot.number, pool: slot.pool.clone() }));
    Ok((slots, last.filter(|_| !is_last(read, wanted))))
}

async fn find(app: &App, name: &str) -> Result<SlotRow, Problem> {
    app.store.slot(&SlotName::stored(name.to_owned())).await?.ok_or_else(|| Problem::not_found("slot"))
}

async fn slot_dto(app: &App, slot: SlotRow) -> Result<SlotDto, Problem> {
    let pools = app.store.pools().await?;
    let facts = SlotFacts::read(app, std::slice::from_ref(&slot), &pools).await?;
    Ok(SlotDto::new(slot, &pools, &facts))
}

/// Get a slot
///
/// Returns the slot, its failures and the last bots that ran in it, or 404 `not_found` if there is no such slot.
#[utoipa::path(
    get, path = "/admin/slots/{name}", operation_id = "admin_slots_show", tag = "For operators",
    params(("name" = String, Path, description = "The name of the slot")),
    responses((status = 200, description = "The slot, its failures and its bots", body = SlotAndHistory)),
    security(("admin_token" = [])),
)]
pub async fn slot(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<Json<SlotAndHistory>, Problem> {
    let slot = find(&app, &name).await?;
    let failures = app.store.failures_in(&slot.name).await?.into_iter().map(|failure| Failure {
        at: failure.at,
        bot_id: failure.bot_id.map(|id| id.0),
        message: failure.message,
        log: failure.log,
    });
    let failures = failures.collect();
    let pools = app.store.pools().await?;
    let bots = app.store.bots_in_slot(&slot.name, bots_to_search(&pools), BOTS_OF_SLOT).await?;
    let facts = SlotFacts::read(&app, std::slice::from_ref(&slot), &pools).await?;
    let slot = SlotDto::new(slot, &pools, &facts);
    Ok(Json(SlotAndHistory { slot, failures, bots: bots.into_iter().map(Into::into).collect() }))
}

/// Drains a slot, and records it as the call that the operator made.
async fn drained(app: App, name: String, entry: NewAuditEntry) -> Result<(StatusCode, Json<OneSlot>), Problem> {
    let drained = audit::to_end(async move {
        let slot = app.deployment.drain(&SlotName::stored(name)).await?;
        let slot = slot.ok_or_else(|| Problem::not_found("slot"))?;
        audit::record(&app, entry.about(&slot.name)).await;
        slot_dto(&app, slot).await
    });
    Ok((StatusCode::ACCEPTED, Json(OneSlot { slot: drained.await? })))
}

/// Delete a slot
///
/// The slot takes no more bots. When it has no bot, the server deletes it at the provider and then in the database.
/// Returns the slot, or 404 `not_found` if there is no such slot.
#[utoipa::path(
    delete, path = "/admin/slots/{name}", operation_id = "admin_slots_delete", tag = "For operators",
    params(("name" = String, Path, description = "The name of the slot")),
    responses((status = 202, description = "The server deletes the slot when its bot has ended", body = OneSlot)),
    security(("admin_token" = [])),
)]
pub async fn delete_slot(
    State(app): State<App>,
    operator: Operator,
    Path(name): Path<String>,
) -> Result<(StatusCode, Json<OneSlot>), Problem> {
    drained(app, name, operator.audit(AuditAction::SlotDeleted)).await
}

/// Drain a slot
///
/// Does the same as `DELETE /admin/slots/{name}`.
#[utoipa::path(
    post, path = "/admin/slots/{name}/drain", operation_id = "admin_slots_drain", tag = "For operators",
    params(("name" = String, Path, description = "The name of the slot")),
    responses((status = 202, description = "The server deletes the slot when its bot has ended", body = OneSlot)),
    security(("admin_token" = [])),
)]
pub async fn drain_slot(
    State(app): State<App>,
    operator: Operator,
    Path(name): Path<String>,
) -> Result<(StatusCode, Json<OneSlot>), Problem> {
    drained(app, name, operator.audit(AuditAction::SlotDrained)).await
}

/// Recover a slot
///
/// Stops everything that still runs in the slot, prepares the slot again, and returns it. Works only for slots in
/// `error`. Returns 404 `not_found` if there is no such slot.
#[utoipa::path(
    post, path = "/admin/slots/{name}/recover", operation_id = "admin_slots_recover", tag = "For operators",
    params(("name" = String, Path, description = "The name of the slot")),
    responses((status = 200, description = "The slot after the attempt", body = OneSlot),
              (status = 409,
               description = "`invalid_transition`: the slot is not in `error`, or another operation uses it",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn recover_slot(
    State(app): State<App>,
    operator: Operator,
    Path(name): Path<String>,
) -> Result<Json<OneSlot>, Problem> {
    let recovered = audit::to_end(async move {
        app.deployment.recover_by_hand(&SlotName::stored(name.clone())).await?;
        audit::record(&app, operator.audit(AuditAction::SlotRecovered).about(&name)).await;
        let slot = find(&app, &name).await?;
        slot_dto(&app, slot).await
    });
    Ok(Json(OneSlot { slot: recovered.await? }))
}
