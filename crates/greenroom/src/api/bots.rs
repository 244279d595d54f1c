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
use super::problem::{Problem, ProblemDto};
use crate::admission::api_keys::ApiKey;
use crate::placement::Reserved;

/// A bot that was reserved.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReservedBot {
    pub bot: BotDto,
    /// Its position in the queue, while it waits for a slot.
    pub queue_position: Option<i64>,
    pub estimated_wait_ms: Option<i64>,
}

/// Ask for a bot
///
/// Reserves a bot under your limit. A meeting is named by a link, as people paste it, or by its platform and its id
/// there. With an `Idempotency-Key` the same question finds the same bot again, however often it is asked.
#[utoipa::path(
    post, path = "/bots", tag = "For users", request_body = NewBotBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key finds the same bot again")),
    responses(
        (status = 201, description = "Reserved", body = ReservedBot,
         headers(("Location" = String, description = "Where the bot is: `/bots/{id}`"))),
        (status = 200, description = "The same key again: the same bot", body = ReservedBot),
        (status = 409, description = "`duplicate_bot`: a bot of yours is already at this meeting; `bot_id` says which",
         body = ProblemDto, content_type = "application/problem+json"),
        (status = 422, description = "`invalid`, `unsupported` or `idempotency_mismatch`",
         body = ProblemDto, content_type = "application/problem+json"),
        (status = 429, description = "`limit_reached`: as many bots are running as you may run",
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

/// Ask for a bot (the older path)
///
/// The same as `POST /bots`.
#[utoipa::path(
    post, path = "/bots/start", tag = "For users", request_body = NewBotBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key finds the same bot again")),
    responses((status = 201, description = "Reserved", body = ReservedBot),
              (status = 200, description = "The same key again: the same bot", body = ReservedBot)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn start(state: State<App>, key: Key, headers: HeaderMap, body: Bytes) -> Result<Response, Problem> {
    create(state, key, headers, body).await
}

async fn reserve(app: &App, key: &ApiKey, headers: &HeaderMap, body: &[u8]) -> Result<Response, Problem> {
    let bot_request = read_json::<NewBotBody>(body).and_then(|body| body.into_bot_request(headers, &app.deadlines));
    let bot_request = match bot_request {
        Ok(bot_request) => bot_request,
        Err(problem) => {
            // The reservation checks the key in its own transaction. Without one it is checked here, so that a
            // stranger learns nothing about what a good request looks like.
            app.admission.authenticate(key).await?;
            return Err(problem);
        }
    };
    let Reserved { bot, is_new, queue_position, estimated_wait_ms } =
        app.placement.reserve(key.clone(), bot_request).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut bot = BotDto::from(bot);
    (bot.queue_position, bot.estimated_wait_ms) = (queue_position, estimated_wait_ms);
    let location = [(LOCATION, format!("/bots/{}", bot.id))];
    let reserved = ReservedBot { bot, queue_position, estimated_wait_ms };
    Ok((status, location, axum::Json(reserved)).into_response())
}

/// Ask a bot to leave
///
/// Works in every state. A bot for which nothing runs yet ends at once; one that runs is told to leave, and ends
/// `completed`, `stopped` when it has.
#[utoipa::path(
    delete, path = "/bots/{id}", tag = "For users",
    params(("id" = Uuid, Path, description = "The bot")),
    responses((status = 202, description = "It was asked to leave", body = OneBot),
              (status = 200, description = "It was at an end already", body = OneBot),
              (status = 404, description = "`not_found`", body = ProblemDto, content_type = "application/problem+json")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn delete(State(app): State<App>, User(user): User, Id(id): Id<BotId>) -> Result<Response, Problem> {
    let stopped = app.lifecycle.stop(user.id, id).await?;
    let status = if stopped.had_ended { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(OneBot::from(stopped.bot))).into_response())
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopBody {
    /// Which bot.
    #[serde(alias = "botId")]
    pub bot_id: Uuid,
}

/// Ask a bot to leave (the older path)
///
/// The same as `DELETE /bots/{id}`.
#[utoipa::path(
    post, path = "/bots/stop", tag = "For users", request_body = StopBody,
    responses((status = 202, description = "It was asked to leave", body = OneBot),
              (status = 200, description = "It was at an end already", body = OneBot)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn stop(state: State<App>, user: User, Json(body): Json<StopBody>) -> Result<Response, Problem> {
    delete(state, user, Id(BotId(body.bot_id))).await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigBody {
    /// The whole new configuration.
    pub config: Map<String, Value>,
}

/// Reconfigure a bot
///
/// Replaces its configuration. A bot that runs hears of it by the command `reconfigure`; one that has not started
/// finds it in its data.
#[utoipa::path(
    put, path = "/bots/{id}/config", tag = "For users", request_body = ConfigBody,
    params(("id" = Uuid, Path, description = "The bot")),
    responses((status = 202, description = "Taken", body = OneBot),
              (status = 409, description = "`bot_ended`", body = ProblemDto, content_type = "application/problem+json")),
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
    Ok((StatusCode::ACCEPTED, axum::Json(bot.into())))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BotConfigBody {
    /// Which bot.
    #[serde(alias = "botId")]
    pub bot_id: Uuid,
    /// The whole new configuration.
    pub config: Map<String, Value>,
}

/// Reconfigure a bot (the older path)
///
/// The same as `PUT /bots/{id}/config`.
#[utoipa::path(
    put, path = "/bots/config", tag = "For users", request_body = BotConfigBody,
    responses((status = 202, description = "Taken", body = OneBot)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn configure_by_body(
    state: State<App>,
    user: User,
    Json(body): Json<BotConfigBody>,
) -> Result<(StatusCode, axum::Json<OneBot>), Problem> {
    configure(state, user, Id(BotId(body.bot_id)), Json(ConfigBody { config: body.config })).await
}
