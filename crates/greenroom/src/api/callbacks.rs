//! For bots: what they say. Each call carries the token of the bot's assignment and its `connection_id`; each can be
//! repeated without harm. Fields that are not known are left alone, so that a bot may say more than we listen to.

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use domain::lifecycle::Trigger;
use domain::{CommandId, ConnectionId, Reason};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::App;
use super::agent_steps;
use super::dto::{CommandDto, StatusWord};
use super::extract::{Asked, Bot, Json};
use super::problem::{CallbackRefusals, Problem};
use crate::lifecycle::callbacks::{Caller, Segment};
use crate::lifecycle::ends::Ending;

const LONGEST_WAIT_MS: u64 = 60_000;
const DEFAULT_WAIT_MS: u64 = 30_000;
const LONGEST_ERROR: usize = 10_000;
const MOST_ACKED: usize = 1_000;
/// A batch is one transaction, and others wait for it.
const MOST_SEGMENTS: usize = 2_000;
const LONGEST_CONTAINER_ID: usize = 255;

fn caller(Bot(claim): Bot, connection_id: Uuid) -> Caller {
    Caller { claim, connection_id: ConnectionId(connection_id) }
}

/// The bot's own word, if it gave one that says something. What it tells must not be lost for its length.
fn reason_of_bot(reason: Option<String>) -> Option<Reason> {
    let word: String = reason?.trim().chars().take(Reason::MAX_CHARS).collect();
    (!word.is_empty()).then(|| Reason::given(word))
}

/// The response to a callback.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Answer)]
pub struct StatusAnswer {
    /// The current status of the bot.
    #[schema(value_type = StatusWord, example = "starting")]
    pub status: &'static str,
}

fn answer(status: domain::Status) -> axum::Json<StatusAnswer> {
    axum::Json(StatusAnswer { status: status.as_str() })
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct StartedBody {
    pub connection_id: Uuid,
    /// The id of the container in which the bot runs, if the bot knows it.
    pub container_id: Option<String>,
}

/// Report that the bot runs
///
/// Changes the status from `reserved` to `starting` and creates the session of this connection. If the bot had started
/// under an earlier connection, its status becomes `starting` again. A repeated call changes nothing. Returns the
/// status.
#[utoipa::path(
    post, path = "/callback/started", operation_id = "callback_started", tag = "For bots", request_body = StartedBody,
    responses((status = 200, description = "The current status; a repeated call gets the same response",
               body = StatusAnswer), CallbackRefusals),
    security(("bot_token" = [])),
)]
pub async fn started(
    State(app): State<App>,
    bot: Bot,
    Json(body): Json<StartedBody>,
) -> Result<axum::Json<StatusAnswer>, Problem> {
    if body.container_id.as_ref().is_some_and(|id| id.chars().count() > LONGEST_CONTAINER_ID) {
        return Err(Problem::invalid("container_id", format!("has more than {LONGEST_CONTAINER_ID} characters")));
    }
    let container = body.container_id.as_deref().filter(|id| !id.is_empty());
    Ok(answer(app.lifecycle.started(caller(bot, body.connection_id), container).await?))
}

/// A status that a bot can report with `PATCH /callback/status`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToldStatus {
    AwaitingAdmission,
    NeedsHelp,
    Stopping,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct StatusBody {
    pub connection_id: Uuid,
    /// The new status.
    #[schema(value_type = ToldStatus)]
    pub status: String,
    /// Why the bot has this status, in a word of its own.
    pub reason: Option<String>,
}

/// Report the status of the bot
///
/// The bot waits in the lobby (`awaiting_admission`), needs a person (`needs_help`), or leaves (`stopping`). A repeated
/// call changes nothing. Returns the status.
#[utoipa::path(
    patch, path = "/callback/status", operation_id = "callback_status", tag = "For bots", request_body = StatusBody,
    responses((status = 200, description = "The current status; a repeated call gets the same response",
               body = StatusAnswer), CallbackRefusals),
    security(("bot_token" = [])),
)]
pub async fn status(
    State(app): State<App>,
    bot: Bot,
    Json(body): Json<StatusBody>,
) -> Result<axum::Json<StatusAnswer>, Problem> {
    let reason = reason_of_bot(body.reason);
    let trigger = match body.status.as_str() {
        "awaiting_admission" => Trigger::AwaitingAdmission { reason },
        "needs_help" => Trigger::NeedsHelp { reason },
        "stopping" => Trigger::Stopping { reason },
        other => {
            let why = format!("is `{other}`, but must be awaiting_admission, needs_help or stopping");
            return Err(Problem::invalid("status", why));
        }
    };
    Ok(answer(app.lifecycle.status(caller(bot, body.connection_id), trigger).await?))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct JoinedBody {
    pub connection_id: Uuid,
}

/// Report that the bot is in the meeting
///
/// Changes the status to `active`. A repeated call changes nothing. Returns the status.
#[utoipa::path(
    post, path = "/callback/joined", operation_id = "callback_joined", tag = "For bots", request_body = JoinedBody,
    responses((status = 200, description = "The current status; a repeated call gets the same response",
               body = StatusAnswer), CallbackRefusals),
    security(("bot_token" = [])),
)]
pub async fn joined(
    State(app): State<App>,
    bot: Bot,
    Json(body): Json<JoinedBody>,
) -> Result<axum::Json<StatusAnswer>, Problem> {
    Ok(answer(app.lifecycle.joined(caller(bot, body.connection_id)).await?))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct HeartbeatBody {
    pub connection_id: Uuid,
    /// The ids of the commands that the bot acknowledges, at most 1000.
    #[schema(max_items = 1000)]
    pub acked: Option<Vec<Uuid>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct HeartbeatAnswer {
    /// The current status of the bot.
    #[schema(value_type = StatusWord)]
    pub status: &'static str,
    /// All commands that the bot has not acknowledged, oldest first.
    pub commands: Vec<CommandDto>,
}

/// Send a heartbeat
///
/// Records the time of the heartbeat and acknowledges the commands in `acked`. Returns the status of the bot and all
/// commands that it has not acknowledged.
#[utoipa::path(
    post, path = "/callback/heartbeat", operation_id = "callback_heartbeat", tag = "For bots", request_body = HeartbeatBody,
    responses((status = 200, description = "The status and the open commands",
               body = HeartbeatAnswer), CallbackRefusals),
    security(("bot_token" = [])),
)]
pub async fn heartbeat(
    State(app): State<App>,
    bot: Bot,
    Json(body): Json<HeartbeatBody>,
) -> Result<axum::Json<HeartbeatAnswer>, Problem> {
    let acked = body.acked.unwrap_or_default();
    if acked.len() > MOST_ACKED {
        return Err(Problem::invalid("acked", format!("has more than {MOST_ACKED} ids")));
    }
    let acked: Vec<CommandId> = acked.into_iter().map(CommandId).collect();
    let (status, commands) = app.lifecycle.heartbeat(caller(bot, body.connection_id), &acked).await?;
    let commands = commands.into_iter().map(CommandDto::from).collect();
    Ok(axum::Json(HeartbeatAnswer { status: status.as_str(), commands }))
}

/// What is kept where a process ended without a code.
const NO_EXIT_CODE: i64 = -1;

/// A field that must be there, and may be `null`.
fn number_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    Option::deserialize(deserializer)
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct ExitedBody {
    pub connection_id: Uuid,
    /// The exit code of the process. 0 means success. `null` means that a signal ended the process, which is a failure.
    #[serde(deserialize_with = "number_or_null")]
    #[schema(example = 0, value_type = Option<i64>)]
    pub exit_code: Option<i64>,
    /// Why the bot ended, in a word of its own.
    pub reason: Option<String>,
    /// What went wrong, as a text for people.
    pub error: Option<String>,
}

/// Report the end of the bot's process
///
/// With exit code 0 the status becomes `completed`, else `failed`. With exit code 0 it becomes `failed` as well if the
/// bot never joined, gave no reason and was not asked to leave. Returns the status.
#[utoipa::path(
    post, path = "/callback/exited", operation_id = "callback_exited", tag = "For bots", request_body = ExitedBody,
    responses((status = 200,
               description = "The final status; a repeated call with the same exit code gets the same response",
               body = StatusAnswer), CallbackRefusals),
    security(("bot_token" = [])),
)]
pub async fn exited(
    State(app): State<App>,
    bot: Bot,
    headers: HeaderMap,
    Json(body): Json<ExitedBody>,
) -> Result<axum::Json<StatusAnswer>, Problem> {
    let received = app.clock.now();
    let reason = reason_of_bot(body.reason);
    // The end of a bot must not be lost for a long explanation of it.
    let error = body.error.map(|text| text.chars().take(LONGEST_ERROR).collect());
    let (caller, exit_code) = (caller(bot, body.connection_id), body.exit_code.unwrap_or(NO_EXIT_CODE));
    let id = caller.claim.bot;
    let status = app.placement.end(Ending::Exited { caller, exit_code, reason, error }).await?;
    agent_steps::trace(&headers, id, received);
    Ok(answer(status))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct SegmentBody {
    /// The start of the segment in seconds. The bot chooses the zero point.
    #[schema(example = 1.5)]
    pub start_time: f64,
    /// The end of the segment in seconds.
    #[schema(example = 3.0)]
    pub end_time: f64,
    #[schema(example = "Good morning.")]
    pub text: String,
    pub speaker: Option<String>,
    pub language: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct TranscriptBody {
    pub connection_id: Uuid,
    #[schema(max_items = 2000)]
    pub segments: Vec<SegmentBody>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct TranscriptAnswer {
    /// How many of the segments are new.
    pub stored: u64,
}

/// Store transcript segments
///
/// Adds at most 2000 segments to the transcript of the bot and returns how many of them are new. The server stores a
/// repeated segment once.
#[utoipa::path(
    post, path = "/callback/transcript", operation_id = "callback_transcript", tag = "For bots", request_body = TranscriptBody,
    responses((status = 200, description = "The number of new segments", body = TranscriptAnswer), CallbackRefusals),
    security(("bot_token" = [])),
)]
pub async fn transcript(
    State(app): State<App>,
    bot: Bot,
    Json(body): Json<TranscriptBody>,
) -> Result<axum::Json<TranscriptAnswer>, Problem> {
    if body.segments.len() > MOST_SEGMENTS {
        return Err(Problem::invalid("segments", format!("has more than {MOST_SEGMENTS}; send them in several calls")));
    }
    let mut segments = Vec::with_capacity(body.segments.len());
    for (index, segment) in body.segments.into_iter().enumerate() {
        if segment.end_time < segment.start_time {
            return Err(Problem::invalid(&format!("segments[{index}].end_time"), "is before start_time"));
        }
        segments.push(Segment {
            start_time: segment.start_time,
            end_time: segment.end_time,
            text: segment.text,
            speaker: segment.speaker,
            language: segment.language,
        });
    }
    let stored = app.lifecycle.transcript(caller(bot, body.connection_id), segments).await?;
    Ok(axum::Json(TranscriptAnswer { stored }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CommandsQuery {
    /// The id of the connection, from the bot's data.
    pub connection_id: Uuid,
    /// How long to wait for a command, at most 60000.
    #[param(default = 30000, maximum = 60000)]
    pub wait_ms: Option<u64>,
}

/// The commands that the bot has not acknowledged.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CommandList)]
pub struct Commands {
    /// All commands that the bot has not acknowledged, oldest first.
    pub commands: Vec<CommandDto>,
}

/// Wait for commands
///
/// Returns all commands that the bot has not acknowledged, as soon as there is one. Returns an empty list when
/// `wait_ms` has passed. The bot acknowledges commands with its heartbeats.
#[utoipa::path(
    get, path = "/callback/commands", operation_id = "callback_commands", tag = "For bots", params(CommandsQuery),
    responses((status = 200, description = "The open commands", body = Commands), CallbackRefusals),
    security(("bot_token" = [])),
)]
pub async fn commands(
    State(app): State<App>,
    bot: Bot,
    Asked(asked): Asked<CommandsQuery>,
) -> Result<axum::Json<Commands>, Problem> {
    let wait = asked.wait_ms.unwrap_or(DEFAULT_WAIT_MS);
    if wait > LONGEST_WAIT_MS {
        return Err(Problem::invalid("wait_ms", format!("must be at most {LONGEST_WAIT_MS}")));
    }
    let caller = caller(bot, asked.connection_id);
    let commands = app.lifecycle.commands(caller, Duration::from_millis(wait), &app.stopping).await?;
    Ok(axum::Json(Commands { commands: commands.into_iter().map(Into::into).collect() }))
}
