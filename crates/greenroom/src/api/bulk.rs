//! For operators: one action for many bots or slots. Each has a result of its own, so one that fails stops no other.

use std::collections::HashSet;

use axum::extract::State;
use domain::{AuditAction, BotId, SlotName};
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::audit;
use super::dto::StatusWord;
use super::extract::{Json, Operator};
use super::problem::{Problem, ProblemDto};
use super::slots::SlotStatusWord;
use crate::store::NewAuditEntry;

const MOST_ENTRIES: usize = 1_000;
/// How many bots are asked at once. Each is a short transaction, and users need the database too.
const BOTS_AT_ONCE: usize = 4;
/// How many slots are worked on at once. A recovery waits mostly for the provider.
const SLOTS_AT_ONCE: usize = 16;

/// Why an entry of a bulk failed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BulkError)]
pub struct BulkErrorDto {
    /// The code of the error, for programs: the same as of the call for one.
    #[schema(example = "not_found")]
    pub code: &'static str,
    /// The explanation of the error, for people.
    #[schema(example = "there is no such bot")]
    pub detail: String,
}

impl From<Problem> for BulkErrorDto {
    fn from(problem: Problem) -> Self {
        let (code, detail) = problem.into_parts();
        Self { code, detail }
    }
}

/// Each entry once, in the order given.
fn distinct(field: &str, mut entries: Vec<String>) -> Result<Vec<String>, Problem> {
    if entries.len() > MOST_ENTRIES {
        return Err(Problem::invalid(field, format!("must have at most {MOST_ENTRIES} entries")));
    }
    let mut seen = HashSet::new();
    entries.retain(|entry| seen.insert(entry.clone()));
    Ok(entries)
}

/// Records a bulk that changed something, with the names of what it changed.
async fn record_bulk(app: &App, entry: NewAuditEntry, field: &str, requested: usize, failed: usize, done: Vec<String>) {
    if !done.is_empty() {
        let entry = entry.with("requested", requested).with("done", done.len()).with("failed", failed);
        audit::record(app, entry.with(field, done)).await;
    }
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BotAction {
    /// Ask each bot to leave.
    Stop,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BotBulk)]
pub struct BotBulkBody {
    #[schema(inline)]
    pub action: BotAction,
    /// The ids of the bots. An id that occurs twice is handled once.
    #[schema(max_items = 1000)]
    pub bots: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct BotBulkResult {
    /// The id of the bot.
    pub bot_id: String,
    /// The status of the bot after the action; `null` if the action failed.
    #[schema(value_type = Option<StatusWord>, required)]
    pub status: Option<&'static str>,
    /// `null` if the action succeeded, or if the bot had already ended.
    #[schema(required)]
    pub error: Option<BulkErrorDto>,
    /// Whether this call changed something.
    #[serde(skip)]
    has_changed: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct BotBulkResults {
    pub results: Vec<BotBulkResult>,
}

/// Stop many bots
///
/// Asks each of these bots to leave, as `DELETE /admin/bots/{id}` does. Returns one result for each bot, in the order
/// given. A bot that does not exist has an error in its result and does not stop the others.
#[utoipa::path(
    post, path = "/admin/bots/bulk", tag = "For operators", operation_id = "admin_bots_bulk",
    request_body = BotBulkBody,
    responses((status = 200, description = "One result for each bot, in the order given", body = BotBulkResults),
              (status = 422, description = "`invalid`: `detail` names the field",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn bots(
    State(app): State<App>,
    operator: Operator,
    Json(body): Json<BotBulkBody>,
) -> Result<axum::Json<BotBulkResults>, Problem> {
    let BotBulkBody { action: BotAction::Stop, bots } = body;
    // The same id may be written in two ways.
    let ids = bots.into_iter().map(|id| id.parse::<BotId>().map_or(id, |id| id.to_string())).collect();
    let ids = distinct("bots", ids)?;
    audit::to_end(async move {
        let requested = ids.len();
        let stopping = stream::iter(ids).map(|id| stop_one(app.clone(), id)).buffered(BOTS_AT_ONCE);
        let results: Vec<BotBulkResult> = stopping.collect().await;
        let failed = results.iter().filter(|result| result.error.is_some()).count();
        let done = results.iter().filter(|result| result.has_changed).map(|result| result.bot_id.clone()).collect();
        record_bulk(&app, operator.audit(AuditAction::BotsStopped), "bots", requested, failed, done).await;
        Ok(axum::Json(BotBulkResults { results }))
    })
    .await
}

async fn stop_one(app: App, bot_id: String) -> BotBulkResult {
    let stopped = match bot_id.parse::<BotId>() {
        Ok(id) => app.lifecycle.stop_by_operator(id, None).await.map_err(Problem::from),
        Err(_) => Err(Problem::not_found("bot")),
    };
    match stopped {
        Ok(stopped) => {
            let status = Some(stopped.bot.shown().as_str());
            BotBulkResult { bot_id, status, error: None, has_changed: stopped.has_changed }
        }
        Err(problem) => BotBulkResult { bot_id, status: None, error: Some(problem.into()), has_changed: false },
    }
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SlotAction {
    /// Prepare slots in `error` again.
    Recover,
    /// Take no more bots, and delete each slot when it has no bot.
    Drain,
    /// The same as `drain`.
    Delete,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SlotBulk)]
pub struct SlotBulkBody {
    #[schema(inline)]
    pub action: SlotAction,
    /// The names of the slots. A name that occurs twice is handled once.
    #[schema(max_items = 1000)]
    pub slots: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct SlotBulkResult {
    /// The name of the slot.
    pub name: String,
    /// The status of the slot after the action; `null` if the action failed, or if the slot no longer exists.
    #[schema(value_type = Option<SlotStatusWord>, required)]
    pub status: Option<&'static str>,
    /// `null` if the action succeeded.
    #[schema(required)]
    pub error: Option<BulkErrorDto>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct SlotBulkResults {
    pub results: Vec<SlotBulkResult>,
}

/// Recover, drain or delete many slots
///
/// Does for each of these slots what the call for one slot does. Returns one result for each slot, in the order given.
/// A slot that does not exist, or that is not in `error` and so cannot be recovered, has an error in its result and does
/// not stop the others.
#[utoipa::path(
    post, path = "/admin/slots/bulk", tag = "For operators", operation_id = "admin_slots_bulk",
    request_body = SlotBulkBody,
    responses((status = 200, description = "One result for each slot, in the order given", body = SlotBulkResults),
              (status = 422, description = "`invalid`: `detail` names the field",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn slots(
    State(app): State<App>,
    operator: Operator,
    Json(body): Json<SlotBulkBody>,
) -> Result<axum::Json<SlotBulkResults>, Problem> {
    let SlotBulkBody { action, slots } = body;
    let names = distinct("slots", slots)?;
    audit::to_end(async move {
        let requested = names.len();
        let working = stream::iter(names).map(|name| act_on_slot(app.clone(), action, name)).buffered(SLOTS_AT_ONCE);
        let results: Vec<SlotBulkResult> = working.collect().await;
        let failed = results.iter().filter(|result| result.error.is_some()).count();
        let done = results.iter().filter(|result| result.error.is_none()).map(|result| result.name.clone()).collect();
        let action = match action {
            SlotAction::Recover => AuditAction::SlotsRecovered,
            SlotAction::Drain => AuditAction::SlotsDrained,
            SlotAction::Delete => AuditAction::SlotsDeleted,
        };
        record_bulk(&app, operator.audit(action), "slots", requested, failed, done).await;
        Ok(axum::Json(SlotBulkResults { results }))
    })
    .await
}

async fn act_on_slot(app: App, action: SlotAction, name: String) -> SlotBulkResult {
    match slot_status_after(&app, action, &SlotName::stored(name.clone())).await {
        Ok(status) => SlotBulkResult { name, status, error: None },
        Err(problem) => SlotBulkResult { name, status: None, error: Some(problem.into()) },
    }
}

async fn slot_status_after(app: &App, action: SlotAction, slot: &SlotName) -> Result<Option<&'static str>, Problem> {
    let row = match action {
        SlotAction::Recover => {
            app.deployment.recover_by_hand(slot).await?;
            app.store.slot(slot).await?
        }
        SlotAction::Drain | SlotAction::Delete => {
            Some(app.deployment.drain(slot).await?.ok_or_else(|| Problem::not_found("slot"))?)
        }
    };
    Ok(row.map(|row| row.status.as_str()))
}
