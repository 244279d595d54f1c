//! For users: asking for a bot, asking it to leave, and giving it another configuration.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::BotId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::bot_request::NewBotBody;
use super::dto::{BotDto, OneBot};
use super::extract::{Id, Json, Key, User, document, read_json};
use super::open_bots;
use super::problem::{Problem, ProblemDto};
use crate::admission::browser_sessions::UserCredential;
use crate::lifecycle::Stopped;
use crate::placement::Reserved;
use crate::traces::{self, Span, TraceParent};

/// A bot that the server has reserved.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReservedBot {
    pub bot: BotDto,
    /// The position of the bot in the queue, from 1, while it waits for a slot; else `null`.
    #[schema(required)]
    pub queue_position: Option<i64>,
    /// The estimated time until the bot gets a slot, if the server can estimate it; else `null`.
    #[schema(required)]
    pub estimated_wait_ms: Option<i64>,
}

/// Request a bot
///
/// Reserves a bot for a meeting and returns it. The bot gets a slot at once or waits in the queue. Name the meeting by
/// `meeting_url`, or by `platform` and `native_meeting_id`. Send an `Idempotency-Key` to repeat a request safely: the
/// same request with the same key returns the same bot.
#[utoipa::path(
    post, path = "/bots", operation_id = "bots_create", tag = "For users", request_body = NewBotBody,
    params(("Idempotency-Key" = Option<String>, Header,
            description = "1 to 255 printable ASCII characters. The same key and request return the same bot")),
    responses(
        (status = 201, description = "The new bot", body = ReservedBot,
         headers(("Location" = String, description = "The path of the bot: `/bots/{id}`"))),
        (status = 200, description = "The bot of an earlier request with the same `Idempotency-Key`",
         body = ReservedBot),
        (status = 409,
         description = "`duplicate_bot`: another bot of the user attends this meeting; `bot_id` is its id",
         body = ProblemDto, content_type = "application/problem+json"),
        (status = 422,
         description = "`invalid` or `unsupported`: `detail` names the field; `idempotency_mismatch`: the key \
         belongs to an earlier request with another body",
         body = ProblemDto, content_type = "application/problem+json"),
        (status = 429, description = "`limit_reached`: the user has reached its limit of bots",
         body = ProblemDto, content_type = "application/problem+json"),
    ),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn create(
    State(app): State<App>,
    Key(key): Key,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    reserve(&app, &key, &headers, &body).await
}

/// Request a bot (older path)
///
/// Does the same as `POST /bots`.
#[utoipa::path(
    post, path = "/bots/start", operation_id = "bots_start", tag = "For users", request_body = NewBotBody,
    params(("Idempotency-Key" = Option<String>, Header,
            description = "1 to 255 printable ASCII characters. The same key and request return the same bot")),
    responses((status = 201, description = "The new bot", body = ReservedBot),
              (status = 200, description = "The bot of an earlier request with the same `Idempotency-Key`",
               body = ReservedBot)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn start(state: State<App>, key: Key, headers: HeaderMap, body: Bytes) -> Result<Response, Problem> {
    create(state, key, headers, body).await
}

async fn reserve(app: &App, key: &UserCredential, headers: &HeaderMap, body: &[u8]) -> Result<Response, Problem> {
    let bot_request = read_json::<NewBotBody>(body).and_then(|body| body.into_bot_request(headers, &app.deadlines));
    let bot_request = match bot_request {
        Ok(bot_request) => bot_request,
        Err(problem) => {
            // The reservation checks the key in its own transaction. Without one it is checked here, so that a
            // stranger learns nothing about what a good request looks like.
            app.sessions.user_of(key).await?;
            return Err(problem);
        }
    };
    let (user, key) = app.sessions.user_of(key).await?;
    let begun = app.clock.now();
    let reserved = app.placement.reserve_for(user, key, bot_request).await?;
    if reserved.is_new && traces::is_on() {
        let caller = headers.get("traceparent").and_then(|value| TraceParent::parse(value.to_str().ok()?));
        let span = Span::step(reserved.bot.id, "POST /bots", begun, app.clock.now());
        traces::record(Span { link: caller, is_server: true, ..span });
    }
    reserved_response(app, reserved, "/bots").await
}

/// The response to a request for a bot, which can be read below `path`.
pub async fn reserved_response(app: &App, reserved: Reserved, path: &str) -> Result<Response, Problem> {
    let Reserved { bot, is_new, is_awaited, queue_position, estimated_wait_ms } = reserved;
    let (status, mut bot) = match is_new {
        true => (StatusCode::CREATED, open_bots::new_bot_dto(bot, is_awaited, &app.deadlines)),
        false => (StatusCode::OK, open_bots::bot_dto(app, bot).await?),
    };
    (bot.queue_position, bot.estimated_wait_ms) = (queue_position, estimated_wait_ms);
    let location = [(LOCATION, format!("{path}/{}", bot.id))];
    let reserved = ReservedBot { bot, queue_position, estimated_wait_ms };
    Ok((status, location, axum::Json(reserved)).into_response())
}

/// Ask a bot to leave
///
/// Works in every status and returns the bot. If the server has started nothing for the bot yet, the bot ends at once.
/// Otherwise it receives the command `leave`. When it has left, it is `completed` with the reason `stopped`.
#[utoipa::path(
    delete, path = "/bots/{id}", operation_id = "bots_delete", tag = "For users",
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 202, description = "The bot was asked to leave", body = OneBot),
              (status = 200, description = "The bot had already ended", body = OneBot),
              (status = 404, description = "`not_found`: the user has no such bot",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn delete(State(app): State<App>, User(user): User, Id(id): Id<BotId>) -> Result<Response, Problem> {
    stopped_response(&app, app.lifecycle.stop(user.id, id).await?).await
}

/// The response to a request that a bot leaves.
pub async fn stopped_response(app: &App, stopped: Stopped) -> Result<Response, Problem> {
    let status = if stopped.had_ended { StatusCode::OK } else { StatusCode::ACCEPTED };
    let bot = open_bots::bot_dto(app, stopped.bot).await?;
    Ok((status, axum::Json(OneBot { bot })).into_response())
}

/// Delete the data of a bot
///
/// Deletes the transcript, log, screenshot, configuration and metadata of an ended bot. The bot and its events stay. A
/// repeated call changes nothing.
#[utoipa::path(
    delete, path = "/bots/{id}/data", operation_id = "bots_delete_data", tag = "For users",
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 204, description = "The data is deleted"),
              (status = 404, description = "`not_found`: the user has no such bot",
               body = ProblemDto, content_type = "application/problem+json"),
              (status = 409, description = "`invalid_transition`: the bot has not ended",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn delete_data(State(app): State<App>, User(user): User, Id(id): Id<BotId>) -> Result<StatusCode, Problem> {
    app.lifecycle.delete_data(user.id, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopBody {
    /// The id of the bot.
    #[serde(alias = "botId")]
    pub bot_id: Uuid,
}

/// Ask a bot to leave (older path)
///
/// Does the same as `DELETE /bots/{id}`.
#[utoipa::path(
    post, path = "/bots/stop", operation_id = "bots_stop", tag = "For users", request_body = StopBody,
    responses((status = 202, description = "The bot was asked to leave", body = OneBot),
              (status = 200, description = "The bot had already ended", body = OneBot)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn stop(state: State<App>, user: User, Json(body): Json<StopBody>) -> Result<Response, Problem> {
    delete(state, user, Id(BotId(body.bot_id))).await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigBody {
    /// The complete new configuration, at most 64 KiB of JSON.
    pub config: Map<String, Value>,
}

/// Reconfigure a bot
///
/// Replaces the configuration of the bot and returns the bot. If the bot is already assigned, it receives the command
/// `reconfigure`. If not, it gets the new configuration in its data. Returns 404 `not_found` if the user has no such
/// bot.
#[utoipa::path(
    put, path = "/bots/{id}/config", operation_id = "bots_configure", tag = "For users", request_body = ConfigBody,
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 202, description = "The bot with its new configuration", body = OneBot),
              (status = 409, description = "`bot_ended`: the bot has ended",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn configure(
    State(app): State<App>,
    User(user): User,
    Id(id): Id<BotId>,
    Json(body): Json<ConfigBody>,
) -> Result<(StatusCode, axum::Json<OneBot>), Problem> {
    let config = document("config", body.config)?;
    let bot = app.lifecycle.configure(user.id, id, config).await.map_err(|e| Problem::from(e).ended_is_conflict())?;
    Ok((StatusCode::ACCEPTED, axum::Json(OneBot { bot: open_bots::bot_dto(&app, bot).await? })))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BotConfigBody {
    /// The id of the bot.
    #[serde(alias = "botId")]
    pub bot_id: Uuid,
    /// The complete new configuration, at most 64 KiB of JSON.
    pub config: Map<String, Value>,
}

/// Reconfigure a bot (older path)
///
/// Does the same as `PUT /bots/{id}/config`.
#[utoipa::path(
    put, path = "/bots/config", operation_id = "bots_configure_by_body", tag = "For users", request_body = BotConfigBody,
    responses((status = 202, description = "The bot with its new configuration", body = OneBot)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn configure_by_body(
    state: State<App>,
    user: User,
    Json(body): Json<BotConfigBody>,
) -> Result<(StatusCode, axum::Json<OneBot>), Problem> {
    configure(state, user, Id(BotId(body.bot_id)), Json(ConfigBody { config: body.config })).await
}
