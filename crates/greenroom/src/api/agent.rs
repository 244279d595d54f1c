//! For agents: waiting for a bot, in a slot or on a runner. That an agent waits in a slot is the sign that it is hot.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::App;
use super::admin::BotData;
use super::extract::{Agent, Asked};
use super::problem::{Problem, ProblemDto};
use crate::deployment::assignment::Offer;
use domain::SlotClaim;

const LONGEST_WAIT_MS: u64 = 60_000;
const DEFAULT_WAIT_MS: u64 = 30_000;
/// Who waits looks by itself as well, should the feed be held up.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// With the bot's data: the token under which its agent waits again.
const SLOT_TOKEN: &str = "greenroom-slot-token";
/// The name that an agent process gives itself.
const AGENT: &str = "greenroom-agent";
const AGENT_NAME_MAX: usize = 64;

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
    get, path = "/agent/assignment", tag = "For bots",
    params(AssignmentQuery, ("Greenroom-Agent" = Option<String>, Header,
                     description = "A random name of the agent process. Only this process gets an assignment again")),
    responses((status = 200, description = "The bot's data, the same as in `BOT_DATA`", body = BotData,
               headers(("Greenroom-Slot-Token" = String,
                description = "The slot token with which the agent waits for its next bot. Not sent to runners"))),
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
        Agent::InSlot(claim) => wait_in_slot(&app, &claim, agent_name(&headers)?, wait).await,
        Agent::OnRunner(claim) => Ok(match app.runners.wait(&claim, wait, &app.stopping).await? {
            Some(data) => axum::Json(data).into_response(),
            None => StatusCode::NO_CONTENT.into_response(),
        }),
    }
}

async fn wait_in_slot(app: &App, claim: &SlotClaim, agent: &str, wait: Duration) -> Result<Response, Problem> {
    // Listens before it looks, so that nothing falls between the two.
    let mut listener = app.signals.listen_to_slot(&claim.slot);
    let deadline = tokio::time::sleep(wait);
    tokio::pin!(deadline);
    let (mut over, mut is_first_poll) = (false, true);
    loop {
        match app.deployment.offer(claim, agent, is_first_poll).await? {
            Offer::Bot { data, next_token } => {
                return Ok(([(SLOT_TOKEN, next_token)], axum::Json(data)).into_response());
            }
            Offer::Refused(why) => return Err(Problem::unauthorized(why)),
            Offer::NoneYet if over => return Ok(StatusCode::NO_CONTENT.into_response()),
            Offer::NoneYet => is_first_poll = false,
        }
        tokio::select! {
            _ = listener.recv() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = &mut deadline => over = true,
            () = app.stopping.cancelled() => over = true,
        }
    }
}

/// The name that an agent process has given itself; one without is known by its token alone.
fn agent_name(headers: &HeaderMap) -> Result<&str, Problem> {
    let Some(name) = headers.get(AGENT) else { return Ok("") };
    let name =
        name.to_str().ok().filter(|name| name.len() <= AGENT_NAME_MAX && name.bytes().all(|b| b.is_ascii_graphic()));
    name.ok_or_else(|| Problem::invalid(AGENT, format!("must have at most {AGENT_NAME_MAX} letters, without spaces")))
}
