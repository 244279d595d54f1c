//! For runners: machines on which an agent waits for bots. [`crate::runners`] does what they ask.

use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::extract::{Json, Runner};
use super::problem::{Problem, ProblemDto};
use crate::runners::{Newcomer, Registration, Standing};

const LONGEST_ID: usize = 64;
const LONGEST_REASON: usize = 200;

#[derive(Debug, Deserialize, ToSchema)]
pub struct RegisterBody {
    /// The id of the machine at EC2.
    #[schema(example = "i-0123456789abcdef0")]
    pub instance_id: String,
    /// A word that the agent has chosen for itself when it was started: who asks again under it, because the answer was lost, is
    /// answered again.
    pub agent: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Registered {
    /// The id of the machine at EC2.
    pub runner: String,
    /// The runner's own token, for all other calls.
    pub token: String,
    pub pool: String,
    pub resource_class: Option<String>,
    #[schema(value_type = String, example = "on-demand")]
    pub usage_class: domain::UsageClass,
    /// How often the runner is to be heard of.
    pub heartbeat_interval_ms: u64,
    /// How long a runner without a bot that cannot reach the server goes on before it ends its machine.
    pub orphaned_after_ms: u64,
}

/// A machine comes up as a runner
///
/// With the token of its pool, or, when its agent was started again, with its own. From here on it waits for bots.
#[utoipa::path(
    post, path = "/agent/runner", tag = "For bots", request_body = RegisterBody,
    responses((status = 200, description = "It waits for bots now", body = Registered),
              (status = 404, description = "`not_found`: this machine is not in a group of the pool, or not yet",
               body = ProblemDto, content_type = "application/problem+json"),
              (status = 409, description = "`already_registered`: another agent speaks for this machine",
               body = ProblemDto, content_type = "application/problem+json"),
              (status = 410, description = "`runner_ended`: this machine is to end",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("pool_token" = []), ("runner_token" = [])),
)]
pub async fn register(
    State(app): State<App>,
    newcomer: Newcomer,
    Json(body): Json<RegisterBody>,
) -> Result<axum::Json<Registered>, Problem> {
    let instance = body.instance_id;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if instance.is_empty() || instance.len() > LONGEST_ID || !instance.bytes().all(fits) {
        return Err(Problem::invalid("instance_id", "is no id of a machine, such as i-0123456789abcdef0"));
    }
    if body.agent.as_ref().is_some_and(|agent| agent.is_empty() || agent.len() > LONGEST_ID) {
        return Err(Problem::invalid("agent", format!("must have 1 to {LONGEST_ID} characters")));
    }
    let Registration { claim, token, resource_class, usage_class, heartbeat_interval, orphaned_after } =
        app.runners.register(newcomer, instance, body.agent.as_deref()).await?;
    Ok(axum::Json(Registered {
        runner: claim.instance,
        token,
        pool: claim.pool,
        resource_class,
        usage_class,
        heartbeat_interval_ms: millis(heartbeat_interval),
        orphaned_after_ms: millis(orphaned_after),
    }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct BeatBody {
    /// What it is busy with; `null` when it waits.
    pub run_id: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct BeatAnswer {
    /// `idle`, `claimed` or `running`; `unknown` where nothing is known of it any more.
    #[schema(example = "idle")]
    pub state: &'static str,
    /// Its run is to be ended and given back.
    pub stop: bool,
    /// The machine is to end.
    pub end: bool,
}

/// A runner tells that it lives
#[utoipa::path(
    post, path = "/agent/runner/heartbeat", tag = "For bots", request_body = BeatBody,
    responses((status = 200, description = "What it is, and what it is to do", body = BeatAnswer), Ended),
    security(("runner_token" = [])),
)]
pub async fn heartbeat(
    State(app): State<App>,
    Runner(claim): Runner,
    Json(body): Json<BeatBody>,
) -> Result<axum::Json<BeatAnswer>, Problem> {
    let Standing { state, stop, end } = app.runners.heartbeat(&claim, body.run_id.as_deref()).await?;
    Ok(axum::Json(BeatAnswer { state, stop, end }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct RunBody {
    /// As it came with the bot's data.
    pub run_id: String,
}

/// Nothing more is to be said.
#[derive(Debug, Serialize, ToSchema)]
pub struct Noted {}

/// How a runner is refused that speaks of a run, for the OpenAPI document.
#[derive(Debug, utoipa::IntoResponses)]
pub enum RunRefusals {
    /// `stale_run`: this run is not, or no longer, the runner's
    #[response(status = 409, content_type = "application/problem+json")]
    Stale(#[allow(dead_code)] ProblemDto),
    /// `runner_ended`: this machine is to end
    #[response(status = 410, content_type = "application/problem+json")]
    Ended(#[allow(dead_code)] ProblemDto),
}

/// How a runner is refused that is at an end, for the OpenAPI document.
#[derive(Debug, utoipa::IntoResponses)]
pub enum Ended {
    /// `runner_ended`: this machine is to end
    #[response(status = 410, content_type = "application/problem+json")]
    Ended(#[allow(dead_code)] ProblemDto),
}

/// A runner takes its bot
///
/// Before it begins: whoever is refused must not run the bot.
#[utoipa::path(
    post, path = "/agent/runner/acknowledge", tag = "For bots", request_body = RunBody,
    responses((status = 200, description = "It is this runner's, now or already", body = Noted), RunRefusals),
    security(("runner_token" = [])),
)]
pub async fn acknowledge(
    State(app): State<App>,
    Runner(claim): Runner,
    Json(body): Json<RunBody>,
) -> Result<axum::Json<Noted>, Problem> {
    app.runners.acknowledge(&claim, &body.run_id).await?;
    Ok(axum::Json(Noted {}))
}

/// A runner gives itself back
///
/// Once nothing of its bot is left on the machine. It waits for the next one then.
#[utoipa::path(
    post, path = "/agent/runner/release", tag = "For bots", request_body = RunBody,
    responses((status = 200, description = "It is free", body = Noted), RunRefusals),
    security(("runner_token" = [])),
)]
pub async fn release(
    State(app): State<App>,
    Runner(claim): Runner,
    Json(body): Json<RunBody>,
) -> Result<axum::Json<Noted>, Problem> {
    app.runners.release(&claim, &body.run_id).await?;
    Ok(axum::Json(Noted {}))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct EndBody {
    /// Why, in a word or a sentence.
    pub reason: Option<String>,
}

/// A runner ends
///
/// Its machine is terminated, and its group becomes smaller.
#[utoipa::path(
    post, path = "/agent/runner/end", tag = "For bots", request_body = EndBody,
    responses((status = 200, description = "The machine is being terminated", body = Noted)),
    security(("runner_token" = [])),
)]
pub async fn end(
    State(app): State<App>,
    Runner(claim): Runner,
    Json(body): Json<EndBody>,
) -> Result<axum::Json<Noted>, Problem> {
    let reason: String = body.reason.unwrap_or_default().chars().take(LONGEST_REASON).collect();
    app.runners.end(&claim, &reason).await?;
    Ok(axum::Json(Noted {}))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
