//! A user requests a bot, or an operator for the user. Checks the API key, the idempotency key, whether a slot could ever fit, and the user's limit.
//! An admitted bot waits in the queue, which is served before the plan ends.

use crate::planner::Outcome;
use crate::planner::bot::{OpenBot, Queued};
use crate::planner::bot_limit::check_bot_limit;
use crate::planner::bugs::{Bug, has};
use crate::planner::changes::{NewBot, NewKey};
use crate::planner::draft::Draft;
use crate::planner::idempotency::find_earlier_bot;
use crate::planner::job::{JobAnswer, Refusal, ReserveRequest};
use crate::planner::queue::QueueOrder;
use crate::{BotId, Pool, Status};

pub fn apply(draft: &mut Draft<'_>, job: usize, request: &ReserveRequest) -> Outcome {
    // The batch was committed, but its answer was lost. The bot may have ended since.
    if draft.bot(request.id).is_some() || (draft.has_ended(request.id) && !has(Bug::EndedBotMadeAgain)) {
        return Outcome::Admitted(request.id);
    }
    match admit(draft, request) {
        Ok(Some(known)) => Outcome::Known(known),
        Ok(None) => {
            join_queue(draft, job, request);
            Outcome::Admitted(request.id)
        }
        Err(refusal) => Outcome::Done(JobAnswer::Reserve(Err(refusal))),
    }
}

/// `Some` if an earlier request with the same idempotency key made the bot.
fn admit(draft: &Draft<'_>, request: &ReserveRequest) -> Result<Option<BotId>, Refusal> {
    let user = draft.base.user(request.user).ok_or(Refusal::KeyExpired)?;
    if let Some(sent) = request.key {
        let key = user.api_keys.iter().find(|(id, _)| *id == sent);
        if !key.is_some_and(|(_, end)| end.is_none_or(|end| end > draft.now)) {
            return Err(Refusal::KeyExpired);
        }
    }
    if let Some(bot) = find_earlier_bot(draft, request)? {
        return Ok(Some(bot));
    }
    let mut pools = draft.configured_pools(request.platform).filter(|pool| request.allows(pool)).peekable();
    pools.peek().ok_or(Refusal::NoPool(request.platform))?;
    if !pools.any(|pool| pool.could_fit(request.requirements.as_ref())) {
        return Err(Refusal::NothingFits(request.platform));
    }
    if request.priority < user.min_priority && !has(Bug::MinPriorityIgnored) {
        return Err(Refusal::PriorityTooLow { min: user.min_priority });
    }
    check_bot_limit(draft, request, user.max_concurrent_bots)?;
    Ok(None)
}

fn join_queue(draft: &mut Draft<'_>, job: usize, request: &ReserveRequest) {
    let mut arrival = draft.next_arrival();
    if has(Bug::ArrivalReversed) {
        arrival = -arrival;
    }
    let turn = match draft.settings.queue_order {
        QueueOrder::Fair if !has(Bug::FairIgnored) => draft.fair_turn(request.platform, request.priority, request.user),
        _ => 0,
    };
    let timeout_at = draft.after(std::time::Duration::from_millis(request.queue_timeout_ms.unsigned_abs()));
    let fits = |pool: &&Pool| request.allows(pool) && pool.could_fit(request.requirements.as_ref());
    let could = draft.configured_pools(request.platform).find(fits);
    let pool = could.map(|pool| pool.name.clone()).unwrap_or_default();
    let bot = OpenBot {
        id: request.id,
        user: request.user,
        platform: request.platform,
        native_meeting_id: request.native_meeting_id.clone(),
        status: Status::Reserved,
        stop_asked: false,
        has_joined: false,
        connection: None,
        pool: Some(pool.clone()),
        slot: None,
        requirements: request.requirements.clone(),
        priority: request.priority,
        queue_timeout_ms: request.queue_timeout_ms,
        arrival,
        turn,
        wait_until: None,
        returns: 0,
        queued: Some(Queued { pool, queued_at: draft.now, timeout_at, not_before: None }),
    };
    draft.set_bot(request.id, Some(bot));
    draft.changes.new_bots.push(NewBot { job, id: request.id, actor: request.actor(), is_awaited: false });
    if let Some((key, body_hash)) = request.idempotency.clone() {
        draft.changes.new_keys.push(NewKey { user: request.user, key, body_hash, bot: request.id });
    }
    draft.touched.insert(request.platform);
}
