//! For agents: waiting for a bot, in a slot or on a runner. That an agent waits in a slot is the sign that it is hot.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::admin::BotData;
use super::extract::{Agent, Asked, read_json_with_nul};
use super::problem::{Problem, ProblemDto};
use crate::deployment::agent_readiness::NotReady;
use crate::deployment::assignment::Offer;
use crate::traces::{self, TraceParent};
use domain::SlotClaim;

const LONGEST_WAIT_MS: u64 = 60_000;
const DEFAULT_WAIT_MS: u64 = 30_000;
/// With the bot's data: the token under which its agent waits again.
const SLOT_TOKEN: &str = "greenroom-slot-token";
/// With the bot's data, if the slot gets a fresh start after the bot: the agent has no next bot to prepare for.
const LAST_BOT: &str = "greenroom-last-bot";
/// The name that an agent process gives itself.
const AGENT: &str = "greenroom-agent";
const AGENT_NAME_MAX: usize = 64;
const MESSAGE_MAX: usize = 1_000;
const LAST_LINES_MAX: usize = 10_000;
/// The memory of the agent and of everything that it runs, in bytes.
const MEMORY: &str = "greenroom-memory-bytes";
/// No slot is larger than this. The sum over the slots of the largest pool is still a number of the database.
const MEMORY_MAX: i64 = 1 << 45;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AssignmentQuery {
    /// How long to wait for a bot, at most 60000.
    #[param(default = 30000, maximum = 60000)]
    pub wait_ms: Option<u64>,
}

/// Wait for a bot
///
/// Returns the bot's data as soon as a bot is assigned to this slot or runner, or 204 when `wait_ms` has passed. Until
/// the bot has started, the same agent process gets the same data again. The slot token becomes invalid with the
/// assignment: to wait for the next bot, the agent uses the token in `Greenroom-Slot-Token`. For a runner, the data
/// contains `run_id`, which the runner must acknowledge before it runs the bot.
#[utoipa::path(
    get, path = "/agent/assignment", operation_id = "agent_assignment", tag = "For bots",
    params(AssignmentQuery, ("Greenroom-Agent" = Option<String>, Header,
                     description = "A random name of the agent process. Only this process gets an assignment again"),
           ("Greenroom-Memory-Bytes" = Option<String>, Header,
            description = "The memory of the agent and its descendants, in bytes. Ignored on runners, and if it is \
                           not a number")),
    responses((status = 200, description = "The bot's data, the same as in `BOT_DATA`", body = BotData,
               headers(("Greenroom-Slot-Token" = String,
                description = "The slot token with which the agent waits for its next bot. Not sent to runners"),
                       ("Greenroom-Last-Bot" = Option<String>,
                description = "`true` if the slot is started again after this bot"))),
              (status = 204, description = "No bot was assigned in time"),
              (status = 401, description = "`unauthorized`: the token is not, or no longer, valid for the slot",
               body = ProblemDto, content_type = "application/problem+json"),
              (status = 410, description = "`runner_ended`: the runner has ended, and its machine must end",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("slot_token" = []), ("runner_token" = [])),
)]
pub async fn assignment(
    State(app): State<App>,
    agent: Agent,
    headers: HeaderMap,
    Asked(asked): Asked<AssignmentQuery>,
) -> Result<Response, Problem> {
    let wait = asked.wait_ms.unwrap_or(DEFAULT_WAIT_MS);
    if wait > LONGEST_WAIT_MS {
        return Err(Problem::invalid("wait_ms", format!("must be at most {LONGEST_WAIT_MS}")));
    }
    let wait = Duration::from_millis(wait);
    match agent {
        Agent::InSlot(claim) => {
            let agent = InSlot { claim, name: agent_name(&headers)?, memory: memory(&headers) };
            let left = NoteLeaving::new(&app, &agent.claim, agent.name);
            let answer = wait_in_slot(&app, &agent, wait).await;
            left.has_answer();
            answer
        }
        // Boxed, because its large state would count for every agent in a slot too.
        Agent::OnRunner(claim) => Ok(match Box::pin(app.runners.wait(&claim, wait, &app.stopping)).await? {
            Some(data) => axum::Json(data).into_response(),
            None => StatusCode::NO_CONTENT.into_response(),
        }),
    }
}

/// Notes that an agent has closed its connection while it waited. The server drops the request then.
struct NoteLeaving(Option<(App, SlotClaim, String)>);

impl NoteLeaving {
    fn new(app: &App, claim: &SlotClaim, agent: &str) -> Self {
        Self(Some((app.clone(), claim.clone(), agent.to_owned())))
    }

    fn has_answer(mut self) {
        self.0 = None;
    }
}

impl Drop for NoteLeaving {
    fn drop(&mut self) {
        let Some((app, claim, agent)) = self.0.take() else { return };
        if app.stopping.is_cancelled() {
            return;
        }
        tokio::spawn(async move {
            if let Err(error) = app.deployment.stopped_waiting(&claim, &agent).await {
                tracing::warn!(slot = %claim.slot, %error, "leaving of an agent not stored");
            }
        });
    }
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct NotReadyBody {
    /// Why no command is ready. The server keeps at most 1000 characters.
    pub message: String,
    /// The last output of the command. The server keeps at most 10000 characters.
    pub last_lines: Option<String>,
    /// Whether the agent has given up: the slot goes to `error`.
    #[serde(default)]
    pub failed: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct NotReadyAnswer {
    /// Whether the slot already has a bot. The agent gets it at `GET /agent/assignment`.
    pub assigned: bool,
}

/// Report that no command is ready
///
/// The agent of a prewarmed slot calls this when the command that it started ahead has ended. The slot gets no bot
/// until the agent waits again at `GET /agent/assignment`. With `failed` the agent has given up, and the slot goes to
/// `error`.
#[utoipa::path(
    post, path = "/agent/not_ready", operation_id = "agent_not_ready", tag = "For bots", request_body = NotReadyBody,
    params(("Greenroom-Agent" = Option<String>, Header, description = "The name of the agent process")),
    responses((status = 200, description = "The report is stored", body = NotReadyAnswer),
              (status = 401, description = "`unauthorized`: the token is not, or no longer, valid for the slot",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("slot_token" = [])),
)]
pub async fn not_ready(
    State(app): State<App>,
    agent: Agent,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<axum::Json<NotReadyAnswer>, Problem> {
    let Agent::InSlot(claim) = agent else {
        return Err(Problem::unauthorized("this call needs the token of a slot"));
    };
    let agent = agent_name(&headers)?;
    let body: NotReadyBody = read_json_with_nul(&bytes)?;
    let limited = |text: &str, most: usize| text.chars().filter(|c| *c != '\0').take(most).collect::<String>();
    let message = limited(&body.message, MESSAGE_MAX);
    let last_lines = body.last_lines.as_deref().map(|lines| limited(lines, LAST_LINES_MAX));
    let report =
        NotReady { claim: &claim, agent, message: &message, last_lines: last_lines.as_deref(), failed: body.failed };
    match app.deployment.not_ready(report).await? {
        Some(assigned) => Ok(axum::Json(NotReadyAnswer { assigned })),
        None => Err(Problem::unauthorized("this slot is gone, was started again, or has another agent")),
    }
}

/// An agent that polls in a slot.
struct InSlot<'a> {
    claim: SlotClaim,
    name: &'a str,
    memory: Option<i64>,
}

async fn wait_in_slot(app: &App, agent: &InSlot<'_>, wait: Duration) -> Result<Response, Problem> {
    let InSlot { claim, name, memory } = agent;
    // Listens before it looks, so that nothing falls between the two.
    let mut listener = app.signals.listen_to_slot(&claim.slot);
    let deadline = tokio::time::sleep(wait);
    tokio::pin!(deadline);
    let (mut over, mut is_first_poll) = (false, true);
    loop {
        // Boxed, so that an agent that waits does not hold the memory that this needs.
        let offer = Box::pin(app.deployment.offer(claim, name, is_first_poll)).await?;
        // A refused agent is not, or no longer, the slot's.
        if let Some(bytes) = memory.filter(|_| is_first_poll && !matches!(offer, Offer::Refused(_))) {
            app.deployment.note_memory(claim, bytes);
        }
        match offer {
            Offer::Bot { data, next_token, is_last } => {
                let traceparent = traceparent(&data);
                let mut response = ([(SLOT_TOKEN, next_token)], axum::Json(data)).into_response();
                response.headers_mut().extend(traceparent);
                if is_last {
                    response.headers_mut().insert(LAST_BOT, HeaderValue::from_static("true"));
                }
                return Ok(response);
            }
            Offer::Refused(why) => return Err(Problem::unauthorized(why)),
            Offer::NoneYet if over => return Ok(StatusCode::NO_CONTENT.into_response()),
            Offer::NoneYet => is_first_poll = false,
        }
        tokio::select! {
            _ = listener.recv() => {}
            () = &mut deadline => over = true,
            () = app.stopping.cancelled() => over = true,
        }
    }
}

/// Tells the agent that its bot is traced.
fn traceparent(data: &serde_json::Value) -> Option<(HeaderName, HeaderValue)> {
    let bot = data["bot_id"].as_str().filter(|_| traces::is_on())?.parse().ok()?;
    let value = HeaderValue::from_str(&TraceParent::of_bot(bot).to_string()).ok()?;
    Some((HeaderName::from_static("traceparent"), value))
}

/// The name that an agent process has given itself; one without is known by its token alone.
fn agent_name(headers: &HeaderMap) -> Result<&str, Problem> {
    let Some(name) = headers.get(AGENT) else { return Ok("") };
    let name =
        name.to_str().ok().filter(|name| name.len() <= AGENT_NAME_MAX && name.bytes().all(|b| b.is_ascii_graphic()));
    name.ok_or_else(|| {
        Problem::invalid(
            AGENT,
            format!("must have at most {AGENT_NAME_MAX} printable ASCII characters, without spaces"),
        )
    })
}

/// The memory that the agent has measured. Anything but a plain number in the bounds is ignored: the figure is only
/// shown, and a bot is worth more than it.
fn memory(headers: &HeaderMap) -> Option<i64> {
    let text = headers.get(MEMORY)?.to_str().ok()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|bytes| is_plain && *bytes <= MEMORY_MAX)
}
