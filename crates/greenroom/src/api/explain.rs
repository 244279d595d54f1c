//! Why a bot or a slot is where it is, for its user and for operators.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use domain::{BotId, SlotName};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::extract::{Id, Operator, User};
use super::problem::{Problem, ProblemDto};
use super::reading::own;
use crate::explain::provider::{ProviderReport, ProviderStatus};
use crate::explain::steps::Step;
use crate::explain::{Audience, Explainer, Explanation};
use crate::store::{BotLog, BotRow, StoreError};

/// How long the provider may take to answer, once for the log of the bot and once for the state of its slot.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a bot or a slot is where it is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Explanation)]
pub struct ExplanationDto {
    /// The whole story in one or two sentences.
    pub summary: String,
    /// The status of the bot or the slot; `gone` for a slot that no longer exists.
    #[schema(example = "deploying")]
    pub status: &'static str,
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// What it waits for; `null` after the end.
    #[schema(required)]
    pub waiting_for: Option<String>,
    /// When the wait ends at the latest, and the server acts; `null` if the wait has no limit.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub until: Option<Timestamp>,
    /// What happened so far, oldest first; of a bot the last 200 steps.
    pub steps: Vec<StepDto>,
    pub provider: ProviderReportDto,
    /// What a person can do; `null` if nothing needs to be done.
    #[schema(required)]
    pub advice: Option<String>,
}

/// A part of the life of a bot or a slot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Step)]
pub struct StepDto {
    /// When the step began.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// How long the step took; `null` if it is not over, or took no time.
    #[schema(required)]
    pub took_ms: Option<i64>,
    /// The median of the same step of the last bots of the pool that have ended; `null` if there is none.
    #[schema(required)]
    pub median_ms: Option<i64>,
    #[schema(example = "waiting for a slot")]
    pub what: String,
}

/// What the provider says about the slot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProviderReport)]
pub struct ProviderReportDto {
    /// `null` if there is no slot, or if the bot has ended.
    #[schema(value_type = Option<ProviderWord>, required)]
    pub status: Option<&'static str>,
    /// The last error of the provider, or its description of the slot, which only operators see.
    #[schema(required)]
    pub message: Option<String>,
    /// The last lines of the output, oldest first, at most 20 of a bot.
    pub last_lines: Vec<String>,
}

/// The state of a slot at its provider.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ProviderState)]
pub enum ProviderWord {
    Running,
    Unhealthy,
    Stopped,
    Missing,
    /// The provider returned an error.
    Failed,
    /// The provider did not answer in time.
    NoAnswer,
    /// The server does not have the pool of the slot.
    NotConfigured,
}

impl From<Explanation> for ExplanationDto {
    fn from(explanation: Explanation) -> Self {
        let Explanation { summary, status, since, waiting, steps, provider, advice } = explanation;
        let until = waiting.as_ref().and_then(|waiting| waiting.until);
        let step = |Step { at, took_ms, median_ms, what, .. }| StepDto { at, took_ms, median_ms, what };
        let ProviderReport { status: provider_status, message, last_lines } = provider;
        let provider_status = provider_status.map(ProviderStatus::as_str);
        Self {
            summary,
            status,
            since,
            waiting_for: waiting.map(|waiting| waiting.what),
            until,
            steps: steps.into_iter().map(step).collect(),
            provider: ProviderReportDto { status: provider_status, message, last_lines },
            advice,
        }
    }
}

fn explainer(app: &App, audience: Audience) -> Explainer {
    Explainer {
        store: app.store.clone(),
        providers: app.deployment.providers().clone(),
        deadlines: app.deadlines.clone(),
        max_recovery_attempts: app.deployment.max_recovery_attempts(),
        provider_timeout: PROVIDER_TIMEOUT,
        audience,
        now: app.clock.now(),
    }
}

async fn explained_bot(app: &App, bot: &BotRow, audience: Audience) -> Result<Json<ExplanationDto>, Problem> {
    let log = last_log(app, bot).await?;
    Ok(Json(explainer(app, audience).bot(bot, log).await?.into()))
}

/// The bot's log from its provider, or the stored one if the provider is silent.
async fn last_log(app: &App, bot: &BotRow) -> Result<BotLog, StoreError> {
    match tokio::time::timeout(PROVIDER_TIMEOUT, app.deployment.log_of(bot)).await {
        Ok(log) => log,
        Err(_) => Ok(app.store.bot_log(bot.id).await?.unwrap_or_default()),
    }
}

/// Explain a bot
///
/// Returns why the bot is where it is: its status and since when, what it waits for and until when, each step with its
/// duration beside the median of the pool, and what can be done. Works in every status. The texts contain no hosts,
/// paths, addresses and tokens of the operator: a placeholder such as `[address]` stands for each.
#[utoipa::path(
    get, path = "/bots/{id}/explain", tag = "For users", operation_id = "bots_explain",
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "The explanation", body = ExplanationDto),
              (status = 404, description = "`not_found`: the user has no such bot",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn own_bot(
    State(app): State<App>,
    User(user): User,
    Id(id): Id<BotId>,
) -> Result<Json<ExplanationDto>, Problem> {
    let bot = own(&app, user, id).await?;
    explained_bot(&app, &bot, Audience::User).await
}

/// Explain a bot of any user
///
/// Returns the same as `GET /bots/{id}/explain`, with everything that the provider said. Returns 404 `not_found` if
/// there is no such bot.
#[utoipa::path(
    get, path = "/admin/bots/{id}/explain", tag = "For operators", operation_id = "admin_bots_explain",
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "The explanation", body = ExplanationDto)),
    security(("admin_token" = [])),
)]
pub async fn any_bot(State(app): State<App>, _: Operator, Id(id): Id<BotId>) -> Result<Json<ExplanationDto>, Problem> {
    let bot = app.store.bot(id).await?.ok_or_else(|| Problem::not_found("bot"))?;
    explained_bot(&app, &bot, Audience::Operator).await
}

/// Explain a slot
///
/// Returns why the slot is where it is, what the provider says about it, and its failures as steps. Also works for a
/// slot that no longer exists, while its failures are stored. Returns 404 `not_found` if there is no such slot.
#[utoipa::path(
    get, path = "/admin/slots/{name}/explain", tag = "For operators", operation_id = "admin_slots_explain",
    params(("name" = String, Path, description = "The name of the slot")),
    responses((status = 200, description = "The explanation", body = ExplanationDto)),
    security(("admin_token" = [])),
)]
pub async fn slot(
    State(app): State<App>,
    _: Operator,
    Path(name): Path<String>,
) -> Result<Json<ExplanationDto>, Problem> {
    let explanation = explainer(&app, Audience::Operator).slot(&SlotName::stored(name)).await?;
    Ok(Json(explanation.ok_or_else(|| Problem::not_found("slot"))?.into()))
}
