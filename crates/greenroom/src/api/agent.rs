//! For agents: waiting for a bot, in a slot or on a runner. That an agent waits in a slot is the sign that it is hot.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use domain::SlotStatus;
use serde::Deserialize;
use utoipa::IntoParams;

use super::App;
use super::admin::BotData;
use super::extract::{Agent, Asked};
use super::problem::{Problem, ProblemShape};
use super::runners;
use crate::lifecycle::tokens::SlotClaim;
use crate::placement::SlotNews;
use crate::store::{Beat, BotRow, SlotRow};

const LONGEST_WAIT_MS: u64 = 60_000;
const DEFAULT_WAIT_MS: u64 = 30_000;
/// Who waits looks by itself as well, should the feed be held up.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Waiting {
    /// How long to wait when there is none yet, at most 60000.
    #[param(default = 30000, maximum = 60000)]
    pub wait_ms: Option<u64>,
}

/// Wait for a bot
///
/// Answers with the bot's data as soon as one is assigned to this slot, and again until the bot has started. A runner is
/// answered with its `run_id` too, which it acknowledges before it runs the bot.
#[utoipa::path(
    get, path = "/agent/assignment", tag = "For bots", params(Waiting),
    responses((status = 200, description = "The bot's data, as in `BOT_DATA`", body = BotData),
              (status = 204, description = "None yet"),
              (status = 401, description = "`unauthorized`: the slot is gone, or was made fresh",
               body = ProblemShape, content_type = "application/problem+json"),
              (status = 410, description = "`runner_ended`: this machine is to end",
               body = ProblemShape, content_type = "application/problem+json")),
    security(("slot_token" = []), ("runner_token" = [])),
)]
pub async fn assignment(
    State(app): State<App>,
    agent: Agent,
    Asked(asked): Asked<Waiting>,
) -> Result<Response, Problem> {
    let wait = asked.wait_ms.unwrap_or(DEFAULT_WAIT_MS);
    if wait > LONGEST_WAIT_MS {
        return Err(Problem::invalid("wait_ms", format!("must be at most {LONGEST_WAIT_MS}")));
    }
    let wait = Duration::from_millis(wait);
    match agent {
        Agent::InSlot(claim) => wait_in_slot(&app, &claim, wait).await,
        Agent::OnRunner(claim) => runners::wait(&app, &claim, wait).await,
    }
}

async fn wait_in_slot(app: &App, claim: &SlotClaim, wait: Duration) -> Result<Response, Problem> {
    // Listens before it looks, so that nothing falls between the two.
    let mut listener = app.lifecycle.feed.listen_to_slot(&claim.slot);
    let deadline = tokio::time::sleep(wait);
    tokio::pin!(deadline);
    let mut over = false;
    loop {
        let slot =
            app.lifecycle.store.slot(&claim.slot).await?.filter(|slot| app.deployment.slot_claim(slot) == *claim);
        let slot = slot.ok_or_else(|| Problem::unauthorized("this slot is gone, or was made fresh"))?;
        // While its start is under way, whoever waits may be the one before.
        if slot.status == SlotStatus::Creating
            && slot.bot_id.is_none()
            && !app.lifecycle.store.is_at_gate(&slot.name).await?
        {
            app.placement.tell(slot.name.clone(), SlotNews::Ready { generation: slot.generation }).await?;
            continue;
        }
        if let Some(bot) = slot.bot_id
            && let Some(bot) = app.lifecycle.store.bot(bot).await?.filter(|bot| is_for(bot, &slot))
            && let Some(data) = app.deployment.bot_data(&bot)
        {
            // It is taken: from here on the bot has its time to be heard, and nobody starts the slot once more.
            if let Some(connection_id) = bot.connection_id {
                app.lifecycle.heartbeats.note(Beat { connection_id, at: app.clock.now() });
            }
            return Ok(axum::Json(data).into_response());
        }
        if over {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        tokio::select! {
            _ = listener.recv() => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
            () = &mut deadline => over = true,
            () = app.stopping.cancelled() => over = true,
        }
    }
}

/// Whether a bot is to be run in a slot: it still has it, and nothing was heard of it. One that has begun and is asked for
/// again is lost, and its heartbeats are missed.
fn is_for(bot: &BotRow, slot: &SlotRow) -> bool {
    bot.slot.as_ref() == Some(&slot.name) && !bot.status.is_ended() && !bot.has_session
}
