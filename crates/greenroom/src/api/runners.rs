//! For runners: machines on which an agent waits for bots, whichever pool's they are. A runner registers with the token of
//! its pool and speaks from then on with one of its own; what it is, and whose, is in the table at AWS, which only the
//! server sees.

use std::time::Duration;

use aws::{RunnerPool, RunnerState};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use domain::SlotName;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::App;
use super::extract::{Json, Newcomer, Runner};
use super::problem::{Problem, ProblemDto};
use crate::lifecycle::tokens::RunnerClaim;
use crate::store::StoreError;

/// How long a runner that has no bot and hears nothing of the server goes on.
const ORPHANED_AFTER: Duration = Duration::from_mins(30);
/// How often to look whether the bot of a run is there.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
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
    let (pool, is_known) = match newcomer {
        Newcomer::OfPool(pool) => (pool, false),
        Newcomer::Known(claim) if claim.instance == instance => (claim.pool, true),
        Newcomer::Known(_) => return Err(Problem::unauthorized("the token is that of another machine")),
    };
    let runners = runners(&app, &pool)?;
    let runner = runners.register_as(&instance, is_known, body.agent.as_deref()).await?;
    app.came_free(&pool, &instance);
    let token = app.lifecycle.tokens.make_runner(&RunnerClaim { pool: pool.clone(), instance: instance.clone() });
    Ok(axum::Json(Registered {
        runner: instance,
        token,
        pool,
        resource_class: runner.attributes.resource_class,
        usage_class: runner.attributes.usage_class,
        heartbeat_interval_ms: millis(runners.settings().pace.heartbeat),
        orphaned_after_ms: millis(ORPHANED_AFTER),
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
    let standing = runners(&app, &claim.pool)?.beat(&claim.instance, body.run_id.as_deref()).await?;
    if standing.state == Some(RunnerState::Terminated) {
        return Err(Problem::runner_ended());
    }
    let state = standing.state.map_or("unknown", RunnerState::as_str);
    Ok(axum::Json(BeatAnswer { state, stop: standing.stop, end: standing.end }))
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
    let pool = runners(&app, &claim.pool)?;
    if !pool.acknowledge(&claim.instance, &body.run_id).await? {
        return Err(stale(pool, &claim).await?);
    }
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
    let pool = runners(&app, &claim.pool)?;
    if !pool.release(&claim.instance, &body.run_id).await? {
        return Err(stale(pool, &claim).await?);
    }
    app.came_free(&claim.pool, &claim.instance);
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
    runners(&app, &claim.pool)?.end(&claim.instance).await?;
    tracing::info!(pool = claim.pool, runner = claim.instance, reason, "runner ended");
    Ok(axum::Json(Noted {}))
}

/// Waits until the runner is claimed for a bot, and answers with the bot's data.
pub async fn wait(app: &App, claim: &RunnerClaim, wait: Duration) -> Result<Response, Problem> {
    let pool = runners(app, &claim.pool)?;
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let run = tokio::select! {
            run = pool.await_claim(&claim.instance, left) => run?,
            () = app.stopping.cancelled() => None,
        };
        let Some(run) = run else {
            // One that is at an end is not waited for.
            let is_early = Instant::now() < deadline && !app.stopping.is_cancelled();
            if is_early && pool.beat(&claim.instance, None).await?.end {
                return Err(Problem::runner_ended());
            }
            return Ok(StatusCode::NO_CONTENT.into_response());
        };
        if let Some(data) = bot_of(app, &run).await? {
            return Ok(axum::Json(data).into_response());
        }
        // Its bot has come to an end, and whoever claimed the runner takes it back.
        if left <= POLL_INTERVAL {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = app.stopping.cancelled() => return Ok(StatusCode::NO_CONTENT.into_response()),
        }
    }
}

/// The data of the bot that a runner was claimed for, if it still is to be run.
async fn bot_of(app: &App, run: &aws::Run) -> Result<Option<Value>, StoreError> {
    let slot = SlotName::stored(run.slot.clone());
    let Some(mut data) = app.deployment.offer_to_runner(&slot, run.connection.as_deref()).await? else {
        return Ok(None);
    };
    data["run_id"] = Value::String(run.run_id.clone());
    Ok(Some(data))
}

impl App {
    /// A runner of this pool came free: somebody may be waiting for one.
    fn came_free(&self, pool: &str, instance: &str) {
        let (app, pool, instance) = (self.clone(), pool.to_owned(), instance.to_owned());
        tokio::spawn(async move {
            let Some(runners) = app.runners.of(&pool) else { return };
            let reported = match runners.runner(&instance).await {
                Ok(Some(runner)) => {
                    let pools: Vec<&str> = app.runners.sharing(&pool).collect();
                    app.deployment.came_free(&pools, runner.attributes).await.map_err(|error| error.to_string())
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = reported {
                tracing::warn!(pool, error, "bots that wait for a runner not served; retried at the next run");
            }
        });
    }
}

/// The runners of a pool that a token names.
fn runners<'a>(app: &'a App, pool: &str) -> Result<&'a RunnerPool, Problem> {
    let gone = || Problem::unauthorized(format!("the pool {pool} of this token has no runners, or no longer"));
    app.runners.of(pool).ok_or_else(gone)
}

/// Why a run is not the runner's.
async fn stale(pool: &RunnerPool, claim: &RunnerClaim) -> Result<Problem, Problem> {
    if pool.beat(&claim.instance, None).await?.end {
        return Ok(Problem::runner_ended());
    }
    Ok(Problem::new(StatusCode::CONFLICT, "stale_run", "this run is not, or no longer, that of the runner"))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
