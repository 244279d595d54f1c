//! This module answers the callers of placement after the commit. Answers are sent only then, because an answered
//! request must never be lost.

use std::collections::HashMap;

use domain::planner::bot::OpenBot;
use domain::planner::changes::Changes;
use domain::planner::changes::NewBot;
use domain::planner::job::{self, EndRefusal, JobAnswer, Refusal};
use domain::{BotId, ShownStatus, SlotName};
use jiff::Timestamp;

use super::message::Reply;
use super::{PlacementError, Reserved};
use crate::lifecycle::LifecycleError;
use crate::store::{BotDetails, BotRow, Store, StoreError};

impl From<Refusal> for PlacementError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoPool(platform) => PlacementError::NoPool(platform),
            Refusal::NothingFits(platform) => PlacementError::NoneFits(platform),
            Refusal::KeyExpired => PlacementError::Unauthorized,
            Refusal::IdempotencyMismatch => PlacementError::IdempotencyMismatch,
            Refusal::PriorityTooLow { min } => PlacementError::PriorityTooLow { min },
            Refusal::DuplicateBot(bot) => PlacementError::DuplicateBot(bot),
            Refusal::LimitReached { running, limit } => PlacementError::LimitReached { running, limit },
        }
    }
}

impl From<EndRefusal> for LifecycleError {
    fn from(refusal: EndRefusal) -> Self {
        match refusal {
            EndRefusal::NoSuchBot => LifecycleError::Unauthorized,
            EndRefusal::StaleConnection => LifecycleError::StaleConnection,
            EndRefusal::InvalidTransition(status) => LifecycleError::InvalidTransition(status),
            EndRefusal::Ended { status, reason } => LifecycleError::BotEnded { status, reason },
        }
    }
}

/// Answers each job, with the bots as they were written. A caller that no longer waits is skipped.
pub async fn answer(
    store: Store,
    replies: Vec<Reply>,
    mut details: HashMap<usize, BotDetails>,
    changes: Changes,
    bots: HashMap<BotId, OpenBot>,
    now: Timestamp,
) {
    let new: HashMap<BotId, &NewBot> = changes.new_bots.iter().map(|new| (new.id, new)).collect();
    let mut known = Vec::new();
    for (reply, answer) in replies.into_iter().zip(changes.answers) {
        match (reply, answer) {
            (Reply::Reserve(reply, _permit), JobAnswer::Reserve(Err(refusal))) => drop(reply.send(Err(refusal.into()))),
            (Reply::Reserve(reply, permit), JobAnswer::Reserve(Ok(reserved))) => {
                let made = new.get(&reserved.bot).filter(|_| reserved.is_new);
                let is_awaited = made.is_some_and(|new| new.is_awaited);
                let details = made.and_then(|new| details.remove(&new.job));
                let bot = bots.get(&reserved.bot);
                match details.zip(bot) {
                    Some((details, bot)) => drop(reply.send(Ok(of(row(bot, details, now), &reserved, is_awaited)))),
                    None => known.push((reply, permit, reserved)),
                }
            }
            (Reply::End(reply), JobAnswer::End(ended)) => drop(reply.send(ended.map_err(Into::into))),
            (Reply::Slot(reply), JobAnswer::Slot(fitted)) => drop(reply.send(Ok(fitted))),
            (Reply::KeepWarm(reply), JobAnswer::KeepWarm(report)) => drop(reply.send(Ok(report))),
            _ => {}
        }
    }
    if known.is_empty() {
        return;
    }
    let ids: Vec<BotId> = known.iter().map(|(_, _, reserved)| reserved.bot).collect();
    let found = store.bots_by_id(&ids).await;
    for (reply, _permit, reserved) in known {
        let bot = match &found {
            Ok(rows) => rows.iter().find(|row| row.id == reserved.bot).cloned(),
            Err(error) => {
                let _ = reply.send(Err(error.copy().into()));
                continue;
            }
        };
        let gone = || {
            let (table, row) = ("idempotency_keys".to_owned(), format!("bot_id {}", reserved.bot));
            let found = "a bot that does not exist".to_owned();
            StoreError::Inconsistent { call: "bots.by_id", table, column: "bot_id", row, found }.into()
        };
        let _ = reply.send(bot.map(|bot| of(bot, &reserved, false)).ok_or_else(gone));
    }
}

fn of(bot: BotRow, reserved: &job::Reserved, is_awaited: bool) -> Reserved {
    let job::Reserved { is_new, queue_position, estimated_wait_ms, .. } = reserved.clone();
    Reserved { bot, is_new, is_awaited, queue_position, estimated_wait_ms }
}

/// The row of a bot that was just written.
fn row(bot: &OpenBot, details: BotDetails, now: Timestamp) -> BotRow {
    BotRow {
        id: bot.id,
        user_id: bot.user,
        platform: bot.platform,
        native_meeting_id: bot.native_meeting_id.clone(),
        meeting_url: details.meeting_url,
        bot_display_name: details.bot_display_name,
        status: bot.status,
        status_since: now,
        reason: None,
        fault: None,
        error: None,
        exit_code: None,
        container_id: None,
        connection_id: bot.connection,
        has_session: false,
        priority: bot.priority,
        queue_timeout_ms: bot.queue_timeout_ms,
        pool: bot.pool.clone(),
        slot: bot.slot.clone(),
        requirements: details.requirements,
        config: details.config,
        metadata: details.metadata,
        stop_asked_at: None,
        start_time: None,
        joined_at: None,
        end_time: None,
        created_at: now,
        updated_at: now,
    }
}

/// Logs and counts the committed changes.
pub fn log(changes: &Changes) {
    for new in &changes.new_bots {
        if let Some(bot) = changes.bots.get(&new.id).and_then(Option::as_ref) {
            let slot = bot.slot.as_ref().map_or("", SlotName::as_str);
            tracing::info!(bot = %bot.id, pool = bot.pool, slot, priority = bot.priority, "bot reserved");
        }
    }
    for grant in &changes.grants {
        tracing::info!(bot = %grant.bot, slot = %grant.slot, "bot assigned");
    }
    for event in changes.events.iter().filter(|event| event.to.is_some_and(ShownStatus::is_ended)) {
        crate::lifecycle::log_move(event);
    }
}
