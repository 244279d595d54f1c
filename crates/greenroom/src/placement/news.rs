//! What happened to a slot. News that no longer fits the slot as it stands came too late and changes nothing.

use domain::lifecycle::Overdue;
use domain::{BotId, SlotName, SlotStatus, Status, slot};
use jiff::Timestamp;
use uuid::Uuid;

use super::desk::Desk;
use super::ledger::Ledger;
use crate::lifecycle::ends::{Ended, Ending};
use crate::lifecycle::tokens::SlotClaim;
use crate::store::SlotRow;

#[derive(Clone, Debug)]
pub enum SlotNews {
    /// Nothing of its bot is left in it.
    Cleared { bot: BotId },
    /// An agent process waits in it, under the slot's current token.
    Waits { claim: SlotClaim, agent: String },
    /// It runs what it was started for, or was made for nobody yet, by this holder of its deployment.
    Started { bot: Option<BotId>, provider_ref: String, holder: Uuid },
    /// What was to be started in it, by this holder of its deployment, is no longer wanted and was not begun.
    NotBegun { bot: Option<BotId>, holder: Uuid },
    /// There is no room for its bot's requirements, in these words: what was to be started, by this holder of its
    /// deployment, was not begun, and the bot goes back in line. Only for a bot that nothing was heard of.
    Full { bot: BotId, holder: Uuid, words: String },
    /// Nobody may be in it any more although a bot was given to it: it is to be started, under a new connection. Only for
    /// a bot that nothing was heard of.
    Silent { bot: BotId, generation: i64 },
    /// Its bot's start or end went wrong, or a start for nobody, in these words.
    Broken { bot: Option<BotId>, words: String },
    /// It has been without a bot, as it is, since then, and something went wrong.
    Failed { since: Timestamp, words: String },
    /// It has been in error, or stuck, since then, and is about to be recovered: one attempt more.
    Recovering { since: Timestamp, words: &'static str },
    /// What has been wrong with it since then is mended, and nothing is left in it.
    Recovered { since: Timestamp },
    /// It has been free since then, and the provider has nothing of it, or nothing that waits in it: it is made anew.
    /// When that counts, it is one attempt more to recover it.
    Lost { since: Timestamp, counts: bool },
    /// It has been free since then, and something runs in it that nobody knows of.
    Stray { since: Timestamp },
    /// It is to take no more bots.
    Drain,
    /// Nothing is left of it at the provider.
    Gone,
}

/// The bot that news of silence is about, if it still fits the slot.
pub fn silent_bot(desk: &Desk, name: &SlotName, news: &SlotNews) -> Option<BotId> {
    let SlotNews::Silent { bot, generation } = news else { return None };
    let fits = |slot: &&SlotRow| {
        slot.bot_id == Some(*bot) && slot.generation == *generation && slot.status != SlotStatus::Error
    };
    desk.slot(name).filter(fits).map(|_| *bot)
}

/// The bot that goes back in line, if the news still fits the slot.
pub fn full_bot(desk: &Desk, name: &SlotName, news: &SlotNews) -> Option<BotId> {
    let SlotNews::Full { bot, .. } = news else { return None };
    desk.slot(name).filter(|slot| slot.bot_id == Some(*bot) && slot.status != SlotStatus::Error).map(|_| *bot)
}

/// Takes what happened to a slot that is held. False when it does not fit the slot as it stands.
pub fn take(desk: &mut Desk, name: &SlotName, news: &SlotNews, ledger: &mut Ledger, now: Timestamp) -> bool {
    let Some(slot) = desk.slot(name) else { return false };
    let (status, status_since, bot_id, generation) = (slot.status, slot.status_since, slot.bot_id, slot.generation);
    let is_free = |since: &Timestamp| status == SlotStatus::Idle && status_since == *since;
    let in_order = status != SlotStatus::Error;
    match news {
        SlotNews::Cleared { bot } if bot_id == Some(*bot) && in_order => {
            ledger.leave_gate(name);
            desk.note_hold(name);
            if status == SlotStatus::Draining {
                desk.change(name, |row| row.bot_id = None);
            } else {
                desk.free(name, false);
            }
        }
        // The first since the start; while it has no bot, also another: what runs in it was started again by itself.
        SlotNews::Waits { claim, agent } if claim.is_current(slot) && (slot.agent.is_none() || bot_id.is_none()) => {
            if status == SlotStatus::Creating && bot_id.is_none() {
                desk.free(name, true);
            }
            desk.change(name, |row| row.agent = Some(agent.clone()));
            // An agent that waited before it ends.
            ledger.woken.push(name.clone());
        }
        SlotNews::Started { bot, provider_ref, holder } => {
            ledger.leave_held(name, *bot, *holder);
            if bot_id == *bot && in_order {
                ledger.awaited.extend(bot);
                desk.change(name, |row| row.provider_ref = Some(provider_ref.clone()));
                if status == SlotStatus::Creating && bot.is_some() {
                    desk.put(name, SlotStatus::Busy);
                } else if status == SlotStatus::Creating && !desk.pool.hot {
                    // It is made, and waits to be started.
                    desk.free(name, false);
                }
                // An agent that was faster than this word may say now that it waits.
                ledger.woken.push(name.clone());
            }
        }
        SlotNews::Full { bot, holder, .. } if bot_id == Some(*bot) && in_order => {
            // Its deployment is gone already; there is room behind the gate.
            ledger.leave_held(name, Some(*bot), *holder);
            if status == SlotStatus::Draining {
                desk.change(name, |row| row.bot_id = None);
            } else {
                desk.free(name, false);
            }
        }
        SlotNews::NotBegun { bot, holder } => ledger.leave_held(name, *bot, *holder),
        SlotNews::Silent { bot, generation: silent } if bot_id == Some(*bot) && generation == *silent && in_order => {
            // Whoever is in it is fenced off, and ended by the start.
            desk.change(name, SlotRow::end_tokens);
            ledger.ask_for_gate(&desk.pool, name, Some(*bot));
        }
        SlotNews::Broken { bot, words }
            if bot_id == *bot && (bot.is_some() || matches!(status, SlotStatus::Creating | SlotStatus::Draining)) =>
        {
            break_down(desk, name, words, ledger, now);
        }
        SlotNews::Failed { since, words } if bot_id.is_none() && status_since == *since => {
            break_down(desk, name, words, ledger, now);
        }
        SlotNews::Recovering { since, words }
            if status_since == *since && (status == SlotStatus::Error || is_stuck(desk, name)) =>
        {
            if status != SlotStatus::Error {
                break_down(desk, name, words, ledger, now);
            }
            desk.change(name, |row| row.recovery_attempts += 1);
        }
        SlotNews::Lost { since, counts } if is_free(since) => {
            desk.change(name, |row| {
                row.recovery_attempts += i64::from(*counts);
                row.provider_ref = None;
            });
            desk.free(name, false);
        }
        SlotNews::Stray { since } if is_free(since) => {
            break_down(desk, name, "something runs in it that was not started for anyone", ledger, now);
        }
        SlotNews::Recovered { since } if status == SlotStatus::Error && status_since == *since => {
            desk.free(name, false);
        }
        SlotNews::Drain if status != SlotStatus::Draining => desk.put(name, SlotStatus::Draining),
        SlotNews::Gone if bot_id.is_none() && status == SlotStatus::Draining => {
            ledger.leave_gate(name);
            ledger.gone.push(name.clone());
            desk.forget(name);
        }
        _ => return false,
    }
    true
}

/// Whether nobody has it although it is not free.
fn is_stuck(desk: &Desk, name: &SlotName) -> bool {
    let status = |row: &SlotRow| matches!(row.status, SlotStatus::Creating | SlotStatus::Busy);
    desk.slot(name).is_some_and(|row| row.bot_id.is_none() && status(row))
}

/// Takes the slot of a bot that ends in this batch, as far as it can be known that nothing of the bot is left in it.
/// Otherwise it is left to be cleared.
pub fn vacate(desk: &mut Desk, ending: &Ending, ended: &Ended, ledger: &mut Ledger, now: Timestamp) {
    let Some(name) = &ended.bot.slot else { return };
    let Some(slot) = desk.slot(name).filter(|slot| slot.bot_id == Some(ended.bot.id)) else { return };
    let (status, used) = (slot.status, slot.bots_since_fresh);
    let recycle_after = desk.pool.recycle_after;
    // A bot has run well in it: what went wrong before is forgiven.
    if slot.recovery_attempts > 0 && matches!(ending, Ending::Exited { .. }) && ended.change.to == Status::Completed {
        desk.change(name, |row| row.recovery_attempts = 0);
    }
    match ending {
        Ending::GivenUp { overdue: Overdue::DeployFailed, words, .. } => {
            break_down(desk, name, words.as_deref().unwrap_or("it could not be deployed"), ledger, now);
        }
        // It never passed the gate: nothing was begun.
        _ if ended.was_in_line && status != SlotStatus::Draining => desk.free(name, false),
        // Its agent tells the end once the bot's last process is gone, and waits for the next.
        Ending::Exited { .. }
            if desk.pool.hot && status == SlotStatus::Busy && (recycle_after == 0 || used < recycle_after) =>
        {
            desk.note_hold(name);
            desk.free(name, true);
            // The token of this assignment ends; its agent got the next one with it.
            desk.change(name, |row| row.token_number += 1);
        }
        _ => ledger.to_clear.push(ended.bot.id),
    }
}

/// A slot that was to go still is: what went wrong is kept with it, and it is tried again after a while.
fn break_down(desk: &mut Desk, name: &SlotName, words: &str, ledger: &mut Ledger, now: Timestamp) {
    ledger.leave_gate(name);
    let goes = desk.slot(name).is_some_and(|slot| slot.status == SlotStatus::Draining);
    desk.put(name, if goes { SlotStatus::Draining } else { SlotStatus::Error });
    desk.change(name, |row| {
        row.bot_id = None;
        row.description = slot::error(words, now);
        row.error_message = Some(words.to_owned());
    });
}
