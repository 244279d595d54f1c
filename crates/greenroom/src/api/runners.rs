//! For runners: machines on which an agent waits for bots. [`crate::runners`] does what they ask.

use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::extract::{Json, Runner};
use super::problem::{Problem, ProblemDto};
use super::requirements::UsageClassWord;
use crate::runners::{HeartbeatReply, Newcomer, NotReadyReply, Registration};

const LONGEST_ID: usize = 64;
const LONGEST_REASON: usize = 200;

#[derive(Debug, Deserialize, ToSchema)]
pub struct RegisterBody {
    /// The id of the machine at EC2.
    #[schema(example = "i-0123456789abcdef0")]
    pub instance_id: String,
    /// A name that the agent process chose at its start, 1 to 64 characters. The same process can repeat the call if
    /// the response was lost.
    pub agent: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Registered {
    /// The id of the machine at EC2.
    pub runner: String,
    /// The runner token, which the runner sends with all other calls.
    pub token: String,
    /// The name of the pool.
    pub pool: String,
    #[schema(required)]
    pub resource_class: Option<String>,
    #[schema(value_type = UsageClassWord)]
    pub usage_class: domain::UsageClass,
    /// How often the runner sends a heartbeat.
    pub heartbeat_interval_ms: u64,
    /// How long a runner without a bot continues when it cannot reach the server. After that, it ends its machine.
    pub orphaned_after_ms: u64,
}

/// Register a machine as a runner
///
/// Send the pool token, or the runner token if the agent has restarted. Returns the runner token and the settings of
/// the runner. The runner then waits for bots at `GET /agent/assignment`.
#[utoipa::path(
    post, path = "/agent/runner", operation_id = "runner_register", tag = "For bots", request_body = RegisterBody,
    responses((status = 200, description = "The runner is registered", body = Registered),
              (status = 404,
               description = "`not_found`: the machine is not, or not yet, in an Auto Scaling group of the pool",
               body = ProblemDto, content_type = "application/problem+json"),
              (status = 409, description = "`already_registered`: another agent has registered this machine",
               body = ProblemDto, content_type = "application/problem+json"),
              (status = 410, description = "`runner_ended`: the runner has ended, and its machine must end",
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
        return Err(Problem::invalid("instance_id", "is not an instance id such as i-0123456789abcdef0"));
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

#[derive(Debug, Serialize, ToSchema)]
pub struct PoolSettings {
    /// How runners start the bot's command ahead; `null` if they do not.
    #[schema(required)]
    pub prewarm: Option<PrewarmSettings>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct PrewarmSettings {
    /// How long the command may take to become ready.
    pub ready_timeout_ms: u64,
    /// How long a ready command may wait for a bot; 0 means no limit.
    pub max_warm_age_ms: u64,
}

/// Read the settings of a runner's pool
///
/// An agent reads them before it registers its machine, because a registered runner can get a bot at once.
#[utoipa::path(
    get, path = "/agent/runner", operation_id = "runner_settings", tag = "For bots",
    responses((status = 200, description = "The settings of the pool", body = PoolSettings)),
    security(("pool_token" = []), ("runner_token" = [])),
)]
pub async fn pool_settings(State(app): State<App>, newcomer: Newcomer) -> Result<axum::Json<PoolSettings>, Problem> {
    let prewarm = app.runners.prewarm(&newcomer).await?;
    Ok(axum::Json(PoolSettings {
        prewarm: prewarm.map(|(ready_timeout, max_warm_age)| PrewarmSettings {
            ready_timeout_ms: millis(ready_timeout),
            max_warm_age_ms: millis(max_warm_age.unwrap_or_default()),
        }),
    }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct BeatBody {
    /// The id of the current run; `null` while the runner waits.
    pub run_id: Option<String>,
}

/// The state of a runner.
///
/// - `created`: it must register again
/// - `idle`, `claimed`, `running`: it waits, has a bot, runs the bot
/// - `terminated`: it has ended
/// - `unknown`: the server no longer knows it
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RunnerState)]
pub enum RunnerStateWord {
    Created,
    Idle,
    Claimed,
    Running,
    Terminated,
    Unknown,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct BeatAnswer {
    #[schema(value_type = RunnerStateWord)]
    pub state: &'static str,
    /// Whether the runner must end its run and release it.
    pub stop: bool,
    /// Whether the machine must end.
    pub end: bool,
}

/// Send a heartbeat of a runner
///
/// Returns the state of the runner, and whether it must end its run or its machine.
#[utoipa::path(
    post, path = "/agent/runner/heartbeat", operation_id = "runner_heartbeat", tag = "For bots", request_body = BeatBody,
    responses((status = 200, description = "The state of the runner and its instructions", body = BeatAnswer), Ended),
    security(("runner_token" = [])),
)]
pub async fn heartbeat(
    State(app): State<App>,
    Runner(claim): Runner,
    Json(body): Json<BeatBody>,
) -> Result<axum::Json<BeatAnswer>, Problem> {
    let HeartbeatReply { state, stop, end } = app.runners.heartbeat(&claim, body.run_id.as_deref()).await?;
    Ok(axum::Json(BeatAnswer { state, stop, end }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct RunBody {
    /// The id of the run, from the bot's data.
    pub run_id: String,
}

/// An empty response.
#[derive(Debug, Serialize, ToSchema)]
pub struct Noted {}

/// The errors of calls about a run.
#[derive(Debug, utoipa::IntoResponses)]
pub enum RunRefusals {
    /// `stale_run`: the runner does not have this run, or no longer has it
    #[response(status = 409, content_type = "application/problem+json")]
    Stale(#[allow(dead_code)] ProblemDto),
    /// `runner_ended`: the runner has ended, and its machine must end
    #[response(status = 410, content_type = "application/problem+json")]
    Ended(#[allow(dead_code)] ProblemDto),
}

/// The error of calls of a runner that has ended.
#[derive(Debug, utoipa::IntoResponses)]
pub enum Ended {
    /// `runner_ended`: the runner has ended, and its machine must end
    #[response(status = 410, content_type = "application/problem+json")]
    Ended(#[allow(dead_code)] ProblemDto),
}

/// Acknowledge a run
///
/// A runner calls this before it runs the bot. If the call returns an error, the runner must not run the bot.
#[utoipa::path(
    post, path = "/agent/runner/acknowledge", operation_id = "runner_acknowledge", tag = "For bots", request_body = RunBody,
    responses((status = 200, description = "The runner has the run; a repeated call gets the same response",
               body = Noted), RunRefusals),
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

#[derive(Debug, Deserialize, ToSchema)]
pub struct ReleaseBody {
    /// The id of the run, from the bot's data.
    pub run_id: String,
    /// `false` if the next command is not ready yet. The runner then gets no bot until it registers again.
    pub ready: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Released {
    /// Whether the runner can get a bot. If not, it must register again.
    pub registered: bool,
}

/// Release a run
///
/// A runner calls this after it has removed everything of the bot from the machine. It can then wait for the next bot.
#[utoipa::path(
    post, path = "/agent/runner/release", operation_id = "runner_release", tag = "For bots", request_body = ReleaseBody,
    responses((status = 200, description = "The runner is free", body = Released), RunRefusals),
    security(("runner_token" = [])),
)]
pub async fn release(
    State(app): State<App>,
    Runner(claim): Runner,
    Json(body): Json<ReleaseBody>,
) -> Result<axum::Json<Released>, Problem> {
    let registered = body.ready.unwrap_or(true);
    app.runners.release(&claim, &body.run_id, registered).await?;
    Ok(axum::Json(Released { registered }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct RunnerNotReadyBody {
    /// Why no command is ready. The server writes at most 200 characters of it to its log.
    pub message: Option<String>,
    /// Whether the command is ready and only too old. One runner of a group at a time may replace such a command.
    #[serde(default)]
    pub renewal: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct RunnerNotReadyAnswer {
    /// Whether the runner can still get a bot. If not, it must register again when its command is ready.
    pub registered: bool,
    /// Whether the runner already has a bot. The agent gets it at `GET /agent/assignment`.
    pub assigned: bool,
}

/// Report that no command of a runner is ready
///
/// The agent of a prewarmed runner calls this when the command that it started ahead has ended, or before it replaces
/// a command that is too old. The runner gets no bot until it registers again.
#[utoipa::path(
    post, path = "/agent/runner/not_ready", tag = "For bots", operation_id = "runner_not_ready",
    request_body = RunnerNotReadyBody,
    responses((status = 200, description = "The state of the runner", body = RunnerNotReadyAnswer), Ended),
    security(("runner_token" = [])),
)]
pub async fn not_ready(
    State(app): State<App>,
    Runner(claim): Runner,
    Json(body): Json<RunnerNotReadyBody>,
) -> Result<axum::Json<RunnerNotReadyAnswer>, Problem> {
    let message: String = body.message.unwrap_or_default().chars().take(LONGEST_REASON).collect();
    let NotReadyReply { registered, assigned } = app.runners.not_ready(&claim, body.renewal, &message).await?;
    Ok(axum::Json(RunnerNotReadyAnswer { registered, assigned }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct EndBody {
    /// Why the runner ends. The server writes at most 200 characters of it to its log.
    pub reason: Option<String>,
}

/// End a runner
///
/// Terminates the machine and reduces the size of its Auto Scaling group.
#[utoipa::path(
    post, path = "/agent/runner/end", operation_id = "runner_end", tag = "For bots", request_body = EndBody,
    responses((status = 200, description = "The machine is terminating", body = Noted)),
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
