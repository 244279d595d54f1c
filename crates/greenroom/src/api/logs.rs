//! What a bot printed: read by its user and by operators, sent by its agent.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use domain::{BotId, ConnectionId, Reason};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::App;
use super::extract::{Asked, Bot, Id, Operator, User, read_json_with_nul};
use super::problem::{CallbackRefusals, Problem, ProblemDto};
use super::reading::own;
use crate::lifecycle::callbacks::Caller;
use crate::store::{BotLog, BotRow, LogLine};

const DEFAULT_LINES: i64 = 200;
const LINES_MAX: i64 = 5_000;
/// So many warnings are read of one call.
const WARNINGS_MAX: usize = 5;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// How many of the last lines to return.
    #[param(default = 200, minimum = 1, maximum = 5000)]
    pub lines: Option<i64>,
}

/// A line of the log of a bot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LogLine)]
pub struct LogLineDto {
    /// When the bot printed the line; `null` if the time is unknown.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub at: Option<Timestamp>,
    pub text: String,
}

/// The last lines of the log of a bot, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BotLog)]
pub struct BotLogDto {
    pub lines: Vec<LogLineDto>,
    /// Whether the bot printed earlier lines that are missing here.
    pub truncated: bool,
}

/// Get the log of a bot
///
/// Returns the last lines that the bot printed on standard output and standard error, without its events. Works while
/// the bot runs and after its end. The server keeps the last 64 KiB.
#[utoipa::path(
    get, path = "/bots/{id}/logs", tag = "For users", operation_id = "bots_logs",
    params(LogQuery, ("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "The last lines of the log, oldest first", body = BotLogDto),
              (status = 404, description = "`not_found`: the user has no such bot",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn of_own_bot(
    State(app): State<App>,
    User(user): User,
    Id(id): Id<BotId>,
    Asked(query): Asked<LogQuery>,
) -> Result<Json<BotLogDto>, Problem> {
    let bot = own(&app, user, id).await?;
    last_lines(&app, &bot, query).await
}

/// Get the log of a bot of any user
///
/// Returns the same as `GET /bots/{id}/logs`, or 404 `not_found` if there is no such bot.
#[utoipa::path(
    get, path = "/admin/bots/{id}/logs", tag = "For operators", operation_id = "admin_bots_logs",
    params(LogQuery, ("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "The last lines of the log, oldest first", body = BotLogDto)),
    security(("admin_token" = [])),
)]
pub async fn of_any_bot(
    State(app): State<App>,
    _: Operator,
    Id(id): Id<BotId>,
    Asked(query): Asked<LogQuery>,
) -> Result<Json<BotLogDto>, Problem> {
    let bot = app.store.bot(id).await?.ok_or_else(|| Problem::not_found("bot"))?;
    last_lines(&app, &bot, query).await
}

async fn last_lines(app: &App, bot: &BotRow, query: LogQuery) -> Result<Json<BotLogDto>, Problem> {
    let lines = query.lines.unwrap_or(DEFAULT_LINES);
    if !(1..=LINES_MAX).contains(&lines) {
        return Err(Problem::invalid("lines", format!("must be from 1 to {LINES_MAX}")));
    }
    let log = app.deployment.log_of(bot).await?.last(usize::try_from(lines).unwrap_or(usize::MAX));
    let lines = log.lines.into_iter().map(|LogLine { at, text }| LogLineDto { at, text }).collect();
    Ok(Json(BotLogDto { lines, truncated: log.truncated }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct SentLine {
    /// When the bot printed the line.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub at: Option<Timestamp>,
    pub text: String,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct LogBody {
    pub connection_id: Uuid,
    /// The last lines, oldest first. They replace the lines of earlier calls. The server keeps the last 64 KiB.
    pub lines: Vec<SentLine>,
    /// Whether the bot printed earlier lines that are missing here.
    #[serde(default)]
    pub truncated: bool,
    /// What the bot did without effect, for example that it printed an unknown event. The server adds each warning to
    /// the bot's events once, at most 5 in total.
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LogAnswer {
    /// Always `true`.
    pub stored: bool,
}

/// Store the log of the bot
///
/// Replaces the lines of earlier calls, and adds new warnings to the events of the bot.
#[utoipa::path(
    post, path = "/callback/log", tag = "For bots", request_body = LogBody, operation_id = "callback_log",
    responses((status = 200, description = "The server stored the lines", body = LogAnswer), CallbackRefusals),
    security(("bot_token" = [])),
)]
pub async fn received(State(app): State<App>, Bot(claim): Bot, body: Bytes) -> Result<Json<LogAnswer>, Problem> {
    let body: LogBody = read_json_with_nul(&body)?;
    let lines = body.lines.into_iter().map(|SentLine { at, text }| LogLine { at: at.map(to_micros), text }).collect();
    let warnings = body.warnings.into_iter().take(WARNINGS_MAX).map(fit).filter(|text| !text.is_empty()).collect();
    let caller = Caller { claim, connection_id: ConnectionId(body.connection_id) };
    app.lifecycle.keep_log(caller, BotLog::bounded(lines, body.truncated), warnings).await?;
    Ok(Json(LogAnswer { stored: true }))
}

/// A warning as an event's reason: no database stores NUL, and a reason has a length.
fn fit(warning: String) -> String {
    warning.trim().chars().filter(|c| *c != '\0').take(Reason::MAX_CHARS).collect()
}

fn to_micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}
