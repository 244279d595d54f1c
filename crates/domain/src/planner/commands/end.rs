//! Ends a bot: the bot reports its end, or Greenroom gives it up. Its slot is free at once if its agent keeps waiting
//! or nothing was started. The slot is in error if it could not be started. Otherwise the slot waits to be cleared.

use super::broken;
use crate::event::{Actor, Kind};
use crate::lifecycle::{LifecycleState, Overdue, Trigger, Verdict, decide};
use crate::planner::bot::{EndedBot, OpenBot};
use crate::planner::bugs::{Bug, has};
use crate::planner::changes::{Action, BotEnd, GateState, NewEvent};
use crate::planner::draft::Draft;
use crate::planner::job::{EndBot, EndCause, EndRefusal};
use crate::{ConnectionId, Fault, Reason, SlotName, SlotStatus, Status};

pub fn apply(draft: &mut Draft<'_>, end: &EndBot) -> Result<Status, EndRefusal> {
    let (state, connection, reason) = lifecycle_state(draft, end).ok_or(EndRefusal::NoSuchBot)?;
    let bot = draft.bot(end.bot).cloned();
    let mut at_gate = None;
    let trigger = match &end.cause {
        EndCause::Exited { token, named, exit_code, reason, .. } => {
            let speaks_for_it = connection == Some(*token) && connection == Some(*named);
            if !speaks_for_it && !has(Bug::FencingIgnored) {
                return Err(EndRefusal::StaleConnection);
            }
            Trigger::Exited { exit_code: *exit_code, reason: reason.clone() }
        }
        EndCause::GivenUp { overdue, .. } => {
            at_gate = bot.as_ref().filter(|_| *overdue == Overdue::DeployTimeout).and_then(|bot| gate(draft, bot));
            let still = match overdue {
                Overdue::QueueTimeout => {
                    bot.as_ref().is_some_and(|bot| bot.queued.is_some()) || has(Bug::TimeoutIgnoresGrant)
                }
                Overdue::DeployTimeout => at_gate.is_some(),
                _ => true,
            };
            // The bot got a slot or passed the gate meanwhile.
            if !still {
                return Ok(state.status);
            }
            Trigger::Passed(*overdue)
        }
    };
    match decide(&state, &trigger) {
        Verdict::Move { to, reason } => {
            let Some(bot) = bot else { return Err(EndRefusal::NoSuchBot) };
            let (error, exit_code) = match &end.cause {
                EndCause::Exited { error, exit_code, .. } => (error.clone(), Some(*exit_code)),
                EndCause::GivenUp { error, .. } => (error.clone(), None),
            };
            let fault = Fault::of_end(bot.status, to, reason.as_ref());
            let error = error.or_else(|| end_error(&bot, to, reason.as_ref(), exit_code));
            let (from, user) = (bot.status, bot.user);
            let ended = BotEnd { bot: bot.id, user, from, to, reason, fault, error, exit_code, at_gate };
            record(draft, &bot, end, ended);
            Ok(to)
        }
        Verdict::Hold => Ok(state.status),
        Verdict::Refuse => Err(EndRefusal::InvalidTransition(state.status)),
        Verdict::Ended => Err(EndRefusal::Ended { status: state.status, reason }),
    }
}

/// The error text for a failed bot that gave none.
pub fn end_error(bot: &OpenBot, to: Status, reason: Option<&Reason>, exit_code: Option<i64>) -> Option<String> {
    if to != Status::Failed {
        return None;
    }
    Some(match (reason, exit_code) {
        (Some(Reason::QueueTimeout), _) => {
            let pool = bot.pool.as_deref().unwrap_or("its platform");
            format!("no slot of {pool} became free within {} s", bot.queue_timeout_ms / 1_000)
        }
        (Some(Reason::DeployTimeout), _) => "its slot waited too long at the deploy gate".to_owned(),
        (Some(Reason::DeployFailed), _) => "its slot could not be started".to_owned(),
        (Some(Reason::NeverJoined), _) => {
            "the bot exited with code 0, had not joined the meeting, and gave no reason".to_owned()
        }
        (Some(Reason::Interrupted), _) => "its slot was stopped from outside while the bot ran".to_owned(),
        (_, Some(code)) => format!("the bot exited with code {code}"),
        (_, None) => "the bot passed a deadline".to_owned(),
    })
}

/// The bot's state, its connection, and its reason if it has ended.
fn lifecycle_state(draft: &Draft<'_>, end: &EndBot) -> Option<(LifecycleState, Option<ConnectionId>, Option<String>)> {
    if let Some(bot) = draft.bot(end.bot) {
        return Some((bot.lifecycle_state(), bot.connection, None));
    }
    let ended = draft.ended.get(&end.bot).or_else(|| draft.base.facts.ended.get(&end.bot))?;
    Some((ended.lifecycle_state(), ended.connection, ended.reason.clone()))
}

/// The gate at which the bot's deployment waits, if it does.
fn gate(draft: &Draft<'_>, bot: &OpenBot) -> Option<(SlotName, GateState)> {
    let slot = bot.slot.as_ref()?;
    let found = draft.deployment(slot).filter(|found| found.bot == Some(bot.id))?;
    (found.state != GateState::Active).then(|| (slot.clone(), found.state))
}

fn record(draft: &mut Draft<'_>, bot: &OpenBot, end: &EndBot, ended: BotEnd) {
    let is_reported_by_bot = matches!(end.cause, EndCause::Exited { .. });
    draft.changes.events.push(NewEvent {
        bot_id: bot.id,
        user_id: bot.user,
        kind: Kind::StatusChanged,
        from: Some(bot.shown()),
        to: Some(ended.to.into()),
        reason: ended.reason.as_ref().map(ToString::to_string),
        actor: if is_reported_by_bot { Actor::Bot } else { Actor::Greenroom },
        start_kind: None,
    });
    if !has(Bug::EndedTwice) {
        draft.ended.insert(
            bot.id,
            EndedBot {
                status: ended.to,
                reason: ended.reason.as_ref().map(ToString::to_string),
                exit_code: ended.exit_code,
                stop_asked: bot.stop_asked,
                connection: bot.connection,
            },
        );
        draft.set_bot(bot.id, None);
    }
    if ended.at_gate.is_some() {
        draft.act(Action::PassGate);
    }
    let was_waiting = matches!(ended.at_gate, Some((_, GateState::Waiting)));
    let completed = ended.to == Status::Completed;
    draft.changes.ends.push(ended);
    if let Some(slot) = &bot.slot {
        vacate(draft, bot, slot, end, was_waiting, completed);
    }
}

/// Releases the slot of a bot that ends, if it is certain that nothing of the bot remains in it.
fn vacate(draft: &mut Draft<'_>, bot: &OpenBot, name: &SlotName, end: &EndBot, was_waiting: bool, completed: bool) {
    let held = draft.slot(name).filter(|slot| slot.bot_id == Some(bot.id));
    let Some((slot, pool)) = held.and_then(|slot| Some((slot.clone(), draft.pool(&slot.pool)?.clone()))) else {
        if draft.slot(name).is_none() {
            draft.act(Action::Clear(bot.id));
        }
        return;
    };
    let is_reported_by_bot = matches!(end.cause, EndCause::Exited { .. });
    // A bot completed in this slot, so earlier failures no longer count.
    if slot.recovery_attempts > 0 && is_reported_by_bot && completed {
        draft.change_slot(name, |slot| slot.recovery_attempts = 0);
    }
    // A probe does not count as a use of its slot, and not towards the mean hold, from which waits are estimated.
    if bot.is_probe() {
        draft.change_slot(name, |slot| slot.last_used_at = None);
    }
    let is_used_up = pool.is_used_up(&slot);
    match &end.cause {
        EndCause::GivenUp { overdue: Overdue::DeployFailed, error, .. } => {
            broken::break_down(draft, name, error.as_deref().unwrap_or("the slot could not be started"));
        }
        // The deployment never passed the gate: nothing was started.
        _ if was_waiting && slot.status != SlotStatus::Draining => draft.free_slot(name, false),
        // The agent reports the end after the bot's last process is gone, and then waits for the next bot.
        EndCause::Exited { .. }
            if (pool.hot && slot.status == SlotStatus::Busy && !is_used_up) || has(Bug::FreedWhileBusy) =>
        {
            note_hold(draft, name);
            if pool.is_prewarmed() {
                // The agent waits only when its next command is ready.
                draft.await_agent(name);
            } else {
                draft.free_slot(name, true);
            }
            // The token of this assignment ends. The agent got the next token with the assignment.
            draft.change_slot(name, |slot| slot.token_number += 1);
        }
        _ if has(Bug::ClearForgotten) => {}
        _ => {
            draft.change_slot(name, |slot| slot.awaits_clearing = slot.status == SlotStatus::Busy);
            draft.act(Action::Clear(bot.id));
        }
    }
}

/// A hold of at least this length always counts towards the pool's mean. A shorter hold counts with a probability equal
/// to its share of this length. Otherwise a pool of short bots would be written with every end.
pub const COUNTED_HOLD_MS: i64 = 10_000;

/// Adds the length of a bot's hold to the pool's mean, with a weight of one tenth.
pub fn note_hold(draft: &mut Draft<'_>, name: &SlotName) {
    let Some(slot) = draft.slot(name) else { return };
    let (Some(since), Some(bot)) = (slot.last_used_at, slot.bot_id) else { return };
    let (pool, held) = (slot.pool.clone(), draft.now.duration_since(since).as_millis().max(0));
    let held = i64::try_from(held).unwrap_or(i64::MAX);
    let is_first = draft.pool(&pool).is_none_or(|pool| pool.mean_hold_ms.is_none());
    // The last part of a bot's id is random.
    let drawn = i64::from(bot.0.as_u128() as u32) % COUNTED_HOLD_MS;
    if is_first || drawn < held {
        draft.change_pool(&pool, |pool| {
            pool.mean_hold_ms = Some(pool.mean_hold_ms.map_or(held, |mean| mean + (held - mean) / 10));
        });
    }
}
