//! For operators: users and their keys, everyone's bots, and assigning a bot by hand.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use domain::{AuditAction, BotId, PROBE_USER, UserId};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::bot_lists::{MetadataFilter, Page, Whose, filtered};
use super::dto::{Bots, OneBot, PlatformWord, UserDto};
use super::extract::{Asked, Id, Json, Operator, document, read_json};
use super::pages::Pager;
use super::problem::{Problem, ProblemDto};
use super::reading::{any_users, is_last, with_sessions};
use crate::admission::users::{NewUser, UserDeletion};
use crate::store::{NewAuditEntry, UserChange};

const MOST_BOTS: i64 = 1_000_000;
const LONGEST_TEXT: usize = 255;
/// How long the response to the deletion of a user waits for the deletion of its bots.
const ERASED_WITHIN: Duration = Duration::from_secs(5);
const LONGEST_GRACE_MS: u64 = 30 * 24 * 3_600_000;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewUser)]
pub struct NewUserBody {
    /// The email address of the user.
    #[schema(example = "ada@example.com")]
    pub email: String,
    /// The name of the user, at most 255 characters.
    #[schema(example = "Ada")]
    pub name: String,
    /// The URL of an image of the user.
    pub image_url: Option<String>,
    /// How many bots the user may run at once; 0 means none. Default 1.
    #[schema(example = 3, minimum = 0, maximum = 1000000)]
    pub max_concurrent_bots: Option<i64>,
    /// The lowest `priority` that the user may request; bots with a lower value go first. Default 0.
    #[schema(example = 0)]
    pub min_priority: Option<i32>,
    /// Data of the operator, at most 64 KiB of JSON. Greenroom stores and returns it.
    pub data: Option<Map<String, Value>>,
}

/// A user and its new API key. Only this response contains the key: the server stores only its hash.
#[derive(Debug, Serialize, ToSchema)]
pub struct UserWithKey {
    pub user: UserDto,
    pub api_key: String,
}

fn email(email: String) -> Result<String, Problem> {
    let fits = email.len() <= LONGEST_TEXT
        && email.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
        && !email.chars().any(|c| c.is_whitespace() || c.is_control());
    if fits { Ok(email) } else { Err(Problem::invalid("email", "must be an email address, such as ada@example.com")) }
}

fn short(field: &str, text: String) -> Result<String, Problem> {
    if text.trim().is_empty() || text.chars().count() > LONGEST_TEXT || text.chars().any(char::is_control) {
        return Err(Problem::invalid(field, format!("must have 1 to {LONGEST_TEXT} printable characters")));
    }
    Ok(text)
}

fn limit(limit: i64) -> Result<i64, Problem> {
    if (0..=MOST_BOTS).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::invalid("max_concurrent_bots", format!("must be from 0 to {MOST_BOTS}")))
}

/// Create a user
///
/// Creates a user with an API key, and returns both. Only this response contains the key. Returns 422 `invalid` for a
/// wrong field.
#[utoipa::path(
    post, path = "/admin/users", operation_id = "admin_users_create", tag = "For operators", request_body = NewUserBody,
    responses((status = 201, description = "The user and its API key", body = UserWithKey),
              (status = 422, description = "`invalid`: `detail` names the wrong field",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn create_user(
    State(app): State<App>,
    operator: Operator,
    Json(body): Json<NewUserBody>,
) -> Result<(StatusCode, axum::Json<UserWithKey>), Problem> {
    let new = NewUser {
        email: email(body.email)?,
        name: short("name", body.name)?,
        image_url: body.image_url.map(|url| short("image_url", url)).transpose()?,
        max_concurrent_bots: limit(body.max_concurrent_bots.unwrap_or(1))?,
        min_priority: body.min_priority.unwrap_or(0).into(),
        data: document("data", body.data.unwrap_or_default())?,
    };
    let audit = operator.audit(AuditAction::UserCreated);
    let audit = audit.with("max_concurrent_bots", new.max_concurrent_bots).with("min_priority", new.min_priority);
    let (user, key) = app.admission.create_user(new, Some(audit)).await?;
    Ok((StatusCode::CREATED, axum::Json(UserWithKey { user: user.into(), api_key: key.reveal().to_owned() })))
}

/// A page of users, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserPage)]
pub struct Users {
    pub users: Vec<UserDto>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// List users
///
/// Returns one page of users, oldest first.
#[utoipa::path(
    get, path = "/admin/users", operation_id = "admin_users_list", tag = "For operators",
    params(("limit" = Option<i64>, Query,
            description = "The largest number of users on the page, from 1 to 1000. Default 50"),
           ("cursor" = Option<String>, Query, description = "The `next_cursor` of the previous page")),
    responses((status = 200, description = "A page of users, oldest first", body = Users)),
    security(("admin_token" = [])),
)]
pub async fn users(State(app): State<App>, _: Operator, Asked(page): Asked<Page>) -> Result<Response, Problem> {
    let (mut after, mut pager) = (page.cursor::<UserId>()?, Pager::new("users", page.limit()?));
    loop {
        let wanted = pager.wanted();
        let chunk = app.store.users(after, wanted).await?;
        let read = chunk.len();
        for user in chunk {
            if pager.is_full() {
                return pager.finish(true);
            }
            let id = user.id;
            after = Some(id);
            pager.push(&UserDto::from(user), id.to_string())?;
        }
        if is_last(read, wanted) {
            return pager.finish(false);
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OneUser {
    pub user: UserDto,
}

/// Get a user
///
/// Returns 404 `not_found` if there is no such user.
#[utoipa::path(
    get, path = "/admin/users/{id}", operation_id = "admin_users_show", tag = "For operators",
    params(("id" = Uuid, Path, description = "The id of the user")),
    responses((status = 200, description = "The user", body = OneUser)),
    security(("admin_token" = [])),
)]
pub async fn user(State(app): State<App>, _: Operator, Id(id): Id<UserId>) -> Result<axum::Json<OneUser>, Problem> {
    let user = app.store.user(id).await?.filter(|user| user.id != PROBE_USER);
    let user = user.ok_or_else(|| Problem::not_found("user"))?;
    Ok(axum::Json(OneUser { user: user.into() }))
}

/// Tells `null` from absent: the first takes the value away, the second leaves it.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UserChange)]
pub struct UserChangeBody {
    pub email: Option<String>,
    pub name: Option<String>,
    /// `null` removes the image.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    pub image_url: Option<Option<String>>,
    /// How many bots the user may run at once; 0 means none. A lower limit does not end bots that already run.
    pub max_concurrent_bots: Option<i64>,
    /// The lowest `priority` that the user may request; bots with a lower value go first.
    pub min_priority: Option<i32>,
    /// The new data of the operator. It replaces the old data.
    pub data: Option<Map<String, Value>>,
}

/// Change a user
///
/// Changes the fields that the body contains and returns the user. Other fields keep their values. Returns 404
/// `not_found` if there is no such user, and 422 `invalid` for a wrong field.
#[utoipa::path(
    patch, path = "/admin/users/{id}", operation_id = "admin_users_change", tag = "For operators", request_body = UserChangeBody,
    params(("id" = Uuid, Path, description = "The id of the user")),
    responses((status = 200, description = "The changed user", body = OneUser)),
    security(("admin_token" = [])),
)]
pub async fn change_user(
    State(app): State<App>,
    operator: Operator,
    Id(id): Id<UserId>,
    Json(body): Json<UserChangeBody>,
) -> Result<axum::Json<OneUser>, Problem> {
    let change = UserChange {
        email: body.email.map(email).transpose()?,
        name: body.name.map(|name| short("name", name)).transpose()?,
        image_url: match body.image_url {
            Some(Some(url)) => Some(Some(short("image_url", url)?)),
            other => other,
        },
        max_concurrent_bots: body.max_concurrent_bots.map(limit).transpose()?,
        min_priority: body.min_priority.map(Into::into),
        data: body.data.map(|data| document("data", data)).transpose()?,
    };
    let audit = audit_of(&change, operator.audit(AuditAction::UserChanged));
    let user = app.admission.change_user(id, change, Some(audit)).await?.ok_or_else(|| Problem::not_found("user"))?;
    Ok(axum::Json(OneUser { user: user.into() }))
}

/// Names the fields that change. Of their values, only the limits are recorded: the others are about a person.
fn audit_of(change: &UserChange, mut entry: NewAuditEntry) -> NewAuditEntry {
    let limits = [("max_concurrent_bots", change.max_concurrent_bots), ("min_priority", change.min_priority)];
    for (field, limit) in limits {
        if let Some(limit) = limit {
            entry = entry.with(field, limit);
        }
    }
    let fields = [
        ("email", change.email.is_some()),
        ("name", change.name.is_some()),
        ("image_url", change.image_url.is_some()),
        ("max_concurrent_bots", change.max_concurrent_bots.is_some()),
        ("min_priority", change.min_priority.is_some()),
        ("data", change.data.is_some()),
    ];
    let changed: Vec<&str> = fields.iter().filter(|(_, changes)| *changes).map(|(field, _)| *field).collect();
    entry.with("fields", changed)
}

/// Delete a user
///
/// Deletes the user with all its data. The API keys and browser sessions of the user end at once. The server deletes
/// the bots of the user in small steps, so that a user with many bots may have some left for a few minutes.
#[utoipa::path(
    delete, path = "/admin/users/{id}", operation_id = "admin_users_delete", tag = "For operators",
    params(("id" = Uuid, Path, description = "The id of the user")),
    responses((status = 204, description = "The user is deleted"),
              (status = 409, description = "`invalid_transition`: the user has bots that have not ended",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn delete_user(
    State(app): State<App>,
    operator: Operator,
    Id(id): Id<UserId>,
) -> Result<StatusCode, Problem> {
    match app.admission.delete_user(id, Some(operator.audit(AuditAction::UserDeleted))).await? {
        UserDeletion::Deleted => {}
        UserDeletion::NotFound => return Err(Problem::not_found("user")),
        UserDeletion::HasOpenBots(bots) => {
            let detail = format!("the user has {bots} bots that have not ended; stop them first");
            return Err(Problem::new(StatusCode::CONFLICT, "invalid_transition", detail));
        }
    }
    // Usually the data is gone before the response. If not, the keeper continues, now or with its next run.
    let keepers = app.keepers.clone();
    let erased = tokio::spawn(async move { keepers.run("retention").await });
    let _ = tokio::time::timeout(ERASED_WITHIN, erased).await;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateBody {
    /// How long the old keys stay valid, so that clients have time to change. Default 0: they become invalid at once.
    /// At most 2592000000, which is 30 days.
    pub old_keys_valid_for_ms: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct NewKey {
    /// The new API key. Only this response contains it: the server stores only its hash.
    pub api_key: String,
}

/// Rotate the API key of a user
///
/// Creates a new key and makes the old keys invalid, at once or after `old_keys_valid_for_ms`. The body is optional.
/// Returns 404 `not_found` if there is no such user.
#[utoipa::path(
    post, path = "/admin/users/{id}/keys", operation_id = "admin_users_rotate_key", tag = "For operators", request_body = RotateBody,
    params(("id" = Uuid, Path, description = "The id of the user")),
    responses((status = 201, description = "The new API key", body = NewKey)),
    security(("admin_token" = [])),
)]
pub async fn rotate_key(
    State(app): State<App>,
    operator: Operator,
    Id(id): Id<UserId>,
    body: Bytes,
) -> Result<(StatusCode, axum::Json<NewKey>), Problem> {
    let body: RotateBody = if body.is_empty() { RotateBody::default() } else { read_json(&body)? };
    let grace = body.old_keys_valid_for_ms.unwrap_or(0);
    if grace > LONGEST_GRACE_MS {
        return Err(Problem::invalid("old_keys_valid_for_ms", format!("must be at most {LONGEST_GRACE_MS}")));
    }
    let audit = operator.audit(AuditAction::KeyRotated).with("old_keys_valid_for_ms", grace);
    let key = app.admission.rotate_key(id, Duration::from_millis(grace), Some(audit)).await?;
    let key = key.ok_or_else(|| Problem::not_found("user"))?;
    Ok((StatusCode::CREATED, axum::Json(NewKey { api_key: key.reveal().to_owned() })))
}

/// List the bots of all users
///
/// Returns one page of bots, newest first.
#[utoipa::path(
    get, path = "/admin/bots", operation_id = "admin_bots_list", tag = "For operators", params(Page),
    responses((status = 200, description = "A page of bots, newest first", body = Bots)),
    security(("admin_token" = [])),
)]
pub async fn bots(
    State(app): State<App>,
    _: Operator,
    Asked(page): Asked<Page>,
    metadata: MetadataFilter,
) -> Result<Response, Problem> {
    filtered(&app, Whose::Everyones, &page, metadata, Pager::new("bots", page.limit()?)).await
}

/// Get a bot of any user
///
/// Returns the bot with its sessions, or 404 `not_found` if there is no such bot.
#[utoipa::path(
    get, path = "/admin/bots/{id}", operation_id = "admin_bots_show", tag = "For operators",
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "The bot with its sessions", body = OneBot)),
    security(("admin_token" = [])),
)]
pub async fn bot(State(app): State<App>, _: Operator, Id(id): Id<BotId>) -> Result<axum::Json<OneBot>, Problem> {
    let bot = any_users(&app, id).await?;
    Ok(axum::Json(with_sessions(&app, bot).await?))
}

/// The data that a program needs to run a bot.
#[derive(Debug, Serialize, ToSchema)]
pub struct BotData {
    pub bot_id: Uuid,
    /// The id of this connection. The bot sends it with every callback.
    pub connection_id: Uuid,
    #[schema(value_type = PlatformWord)]
    pub platform: &'static str,
    pub native_meeting_id: String,
    pub meeting_url: String,
    #[schema(required)]
    pub bot_display_name: Option<String>,
    /// The configuration that the user gave the bot.
    pub config: Map<String, Value>,
    /// The base URL of the callbacks, for example `<callback_url>/started`.
    pub callback_url: String,
    /// The bot token: the bearer token of the callbacks. It is valid only for this assignment.
    pub token: String,
    /// How often the bot sends a heartbeat.
    pub heartbeat_interval_ms: u64,
    pub commands: CommandChannel,
    /// `true` if the bot is a probe: the agent runs the demo bot instead of its command. Other bots do not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub probe: Option<bool>,
    /// Only for runners: the id of the run, which the runner acknowledges and later releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub run_id: Option<String>,
}

/// Where a bot receives commands, in addition to the responses to its heartbeats.
#[derive(Debug, Serialize, ToSchema)]
pub struct CommandChannel {
    /// The URL of Redis. `null` without Redis: the bot waits at `<callback_url>/commands` instead.
    #[schema(required)]
    pub redis_url: Option<String>,
    /// The name of the Redis channel.
    pub channel: String,
}

/// Assign a bot by hand
///
/// Returns the bot's data, so that the operator can run the bot outside of the pools. The bot leaves the queue and its
/// slot. Each call creates a new connection: callbacks of an older connection get 409 `stale_connection`. Returns 404
/// `not_found` if there is no such bot.
#[utoipa::path(
    post, path = "/admin/bots/{id}/assignment", operation_id = "admin_bots_assign", tag = "For operators",
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 201, description = "The bot's data, the same as in `BOT_DATA`", body = BotData),
              (status = 409,
               description = "`bot_ended`: the bot has ended; `invalid_transition`: the bot is `stopping`",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn assign(
    State(app): State<App>,
    operator: Operator,
    Id(id): Id<BotId>,
) -> Result<(StatusCode, axum::Json<Value>), Problem> {
    let audit = operator.audit(AuditAction::BotAssigned).about(id);
    let assignment =
        app.lifecycle.assign(id, Some(&audit)).await.map_err(|error| Problem::from(error).ended_is_conflict())?;
    Ok((StatusCode::CREATED, axum::Json(app.deployment.assignment_data(&assignment))))
}
