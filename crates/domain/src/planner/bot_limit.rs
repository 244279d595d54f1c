//! Whether a user may have one more bot. A user has one running bot for each meeting, at most `max_concurrent_bots`
//! running bots, and at most twice as many running and stopping bots.

use super::bot::AtMeeting;
use super::bugs::{Bug, has};
use super::draft::Draft;
use super::job::{Refusal, ReserveRequest};

pub(super) fn check_bot_limit(
    draft: &Draft<'_>,
    request: &ReserveRequest,
    max_concurrent_bots: i64,
) -> Result<(), Refusal> {
    let meeting: AtMeeting = (request.user, request.platform, request.native_meeting_id.clone());
    if let Some(bot) = draft.bot_at(&meeting).filter(|_| !has(Bug::DuplicateIgnored)) {
        return Err(Refusal::DuplicateBot(bot));
    }
    let (counts, mut limit) = (draft.counts(request.user), max_concurrent_bots);
    if has(Bug::LimitOffByOne) {
        limit += 1;
    }
    let open = counts.running + if has(Bug::StoppingNotCounted) { 0 } else { counts.stopping };
    if (counts.running >= limit || open >= limit.saturating_mul(2)) && !has(Bug::LimitIgnored) {
        return Err(Refusal::LimitReached { running: counts.running, limit });
    }
    Ok(())
}
