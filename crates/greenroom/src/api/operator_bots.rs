//! For operators: acting for users. The calls answer as those of users do, and the events of the bots name the operator.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use domain::{AuditAction, BotId, UserId};
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use super::App;
use super::audit;
use super::bot_request::NewBotBody;
use super::bots::{ConfigBody, ReservedBot, reserved_response, stopped_response};
use super::dto::OneBot;
use super::extract::{Asked, Id, Json, Operator, document, read_json};
use super::open_bots;
use super::problem::{Problem, ProblemDto};
use super::reading::{Events, Paging, Transcript, any_users, events_page, transcript_page};

/// The body of `POST /bots`, and the user of the bot.
#[derive(Debug)]
pub struct NewBotForUser {
    pub user: UserId,
    pub body: NewBotBody,
}

impl NewBotForUser {
    /// The rest is read as for a user. So an operator and the user can repeat a request with the same idempotency key.
    fn read(bytes: &[u8]) -> Result<Self, Problem> {
        let mut fields: Map<String, Value> = read_json(bytes)?;
        let user = fields.remove("user_id").ok_or_else(|| Problem::invalid("user_id", "is missing"))?;
        let user: Option<UserId> = user.as_str().and_then(|id| id.parse().ok());
        let user = user.ok_or_else(|| Problem::invalid("user_id", "is not the id of a user"))?;
        let rest = serde_json::to_vec(&fields).map_err(Problem::malformed)?;
        Ok(Self { user, body: read_json(&rest)? })
    }
}

/// The schema has the fields of `NewBot` and one more. `allOf` cannot say it, because `NewBot` refuses other fields.
impl PartialSchema for NewBotForUser {
    fn schema() -> RefOr<Schema> {
        let mut schema = NewBotBody::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            let user_id = ObjectBuilder::new()
                .schema_type(Type::String)
                .format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid)))
                .description(Some("The id of the user whose bot it is."));
            object.properties.insert("user_id".to_owned(), Schema::from(user_id).into());
            object.required.push("user_id".to_owned());
            object.description =
                Some("A request for a bot of a user: the fields of `NewBot` and `user_id`.".to_owned());
        }
        schema
    }
}

impl ToSchema for NewBotForUser {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        NewBotBody::schemas(schemas);
    }
}

/// Request a bot for a user
///
/// Does the same as `POST /bots` of this user, under the user's limits. The `Idempotency-Key` is one of the user. The
/// first event of the bot has the actor `operator`.
#[utoipa::path(
    post, path = "/admin/bots", tag = "For operators", operation_id = "admin_create_bot", request_body = NewBotForUser,
    params(("Idempotency-Key" = Option<String>, Header,
            description = "1 to 255 printable ASCII characters. The same key and request return the same bot")),
    responses(
        (status = 201, description = "The new bot", body = ReservedBot,
         headers(("Location" = String, description = "The path of the bot: `/admin/bots/{id}`"))),
        (status = 200, description = "The bot of an earlier request with the same `Idempotency-Key`",
         body = ReservedBot),
        (status = 409,
         description = "`duplicate_bot`: another bot of the user attends this meeting; `bot_id` is its id",
         body = ProblemDto, content_type = "application/problem+json"),
        (status = 422,
         description = "`invalid` or `unsupported`: `detail` names the field, also a `user_id` that no user has; \
         `idempotency_mismatch`: the key belongs to an earlier request with another body",
         body = ProblemDto, content_type = "application/problem+json"),
        (status = 429, description = "`limit_reached`: the user has reached its limit of bots",
         body = ProblemDto, content_type = "application/problem+json"),
    ),
    security(("admin_token" = [])),
)]
pub async fn create(
    State(app): State<App>,
    operator: Operator,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let NewBotForUser { user, body } = NewBotForUser::read(&body)?;
    let bot_request = body.into_bot_request(&headers, &app.deadlines)?;
    audit::to_end(async move {
        let reserved = app.placement.reserve_by_operator(user, bot_request).await?;
        if reserved.is_new {
            let entry = operator.audit(AuditAction::BotCreated).about(reserved.bot.id);
            audit::record(&app, entry.with("user_id", user.to_string())).await;
        }
        reserved_response(&app, reserved, "/admin/bots").await
    })
    .await
}

/// Ask a bot of any user to leave
///
/// Does the same as `DELETE /bots/{id}`. The events of the bot have the actor `operator`.
#[utoipa::path(
    delete, path = "/admin/bots/{id}", tag = "For operators", operation_id = "admin_stop_bot",
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 202, description = "The bot was asked to leave", body = OneBot),
              (status = 200, description = "The bot had already ended", body = OneBot),
              (status = 404, description = "`not_found`: there is no such bot",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn stop(State(app): State<App>, operator: Operator, Id(id): Id<BotId>) -> Result<Response, Problem> {
    let audit = operator.audit(AuditAction::BotStopped).about(id);
    stopped_response(&app, app.lifecycle.stop_by_operator(id, Some(&audit)).await?).await
}

/// Reconfigure a bot of any user
///
/// Does the same as `PUT /bots/{id}/config`. The events of the bot have the actor `operator`. Returns 404 `not_found`
/// if there is no such bot.
#[utoipa::path(
    put, path = "/admin/bots/{id}/config", tag = "For operators", operation_id = "admin_configure_bot",
    request_body = ConfigBody,
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 202, description = "The bot with its new configuration", body = OneBot),
              (status = 409, description = "`bot_ended`: the bot has ended",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn configure(
    State(app): State<App>,
    operator: Operator,
    Id(id): Id<BotId>,
    Json(body): Json<ConfigBody>,
) -> Result<(StatusCode, axum::Json<OneBot>), Problem> {
    let config = document("config", body.config)?;
    let audit = operator.audit(AuditAction::BotReconfigured).about(id);
    let bot = app.lifecycle.configure_by_operator(id, config, Some(&audit)).await;
    let bot = bot.map_err(|error| Problem::from(error).ended_is_conflict())?;
    Ok((StatusCode::ACCEPTED, axum::Json(OneBot { bot: open_bots::bot_dto(&app, bot).await? })))
}

/// List the events of a bot of any user
///
/// Returns the same as `GET /bots/{id}/events`, or 404 `not_found` if there is no such bot.
#[utoipa::path(
    get, path = "/admin/bots/{id}/events", tag = "For operators", operation_id = "admin_bot_events",
    params(Paging, ("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "A page of events, oldest first", body = Events)),
    security(("admin_token" = [])),
)]
pub async fn events(
    State(app): State<App>,
    _: Operator,
    Id(id): Id<BotId>,
    Asked(page): Asked<Paging>,
) -> Result<Response, Problem> {
    let bot = any_users(&app, id).await?.id;
    events_page(&app, bot, &page).await
}

/// Get the transcript of a bot of any user
///
/// Returns the same as `GET /bots/{id}/transcript`, or 404 `not_found` if there is no such bot.
#[utoipa::path(
    get, path = "/admin/bots/{id}/transcript", tag = "For operators", operation_id = "admin_bot_transcript",
    params(Paging, ("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "A page of segments, ordered by their start time", body = Transcript)),
    security(("admin_token" = [])),
)]
pub async fn transcript(
    State(app): State<App>,
    _: Operator,
    Id(id): Id<BotId>,
    Asked(page): Asked<Paging>,
) -> Result<Response, Problem> {
    let bot = any_users(&app, id).await?.id;
    transcript_page(&app, bot, &page).await
}
