//! What happened to a slot. News that no longer fits the slot as it stands came too late and changes nothing.

use domain::lifecycle::Overdue;
use domain::{BotId, SlotName, SlotStatus, slot};
use jiff::Timestamp;
use uuid::Uuid;

use super::desk::Desk;
use super::ledger::Ledger;
use crate::lifecycle::ends::{Ended, Ending};

#[derive(Clone, Debug)]
pub enum SlotNews {
    /// Nothing of its bot is left in it.
    Cleared { bot: BotId },
    /// Its agent waits for the first time since it was started.
    Ready { generation: i64 },
    /// It runs what it was started for, by this holder of its deployment.
    Started { bot: Option<BotId>, provider_ref: String, holder: Uuid },
    /// What was to be started in it, by this holder of its deployment, is no longer wanted and was not begun.
    NotBegun { bot: Option<BotId>, holder: Uuid },
    /// Nobody may be in it any more although a bot was given to it: it is to be started.
    Silent { bot: BotId },
    /// Something went wrong, in these words.
    Broken { bot: Option<BotId>, words: String },
    /// What was wrong with it is mended, and nothing is left in it.
    Recovered,
    /// It is to take no more bots.
    Drain,
    /// Nothing is left of it at the provider.
    Gone,
}

/// Takes what happened to a slot that is held.
pub fn take(desk: &mut Desk, name: &SlotName, news: &SlotNews, ledger: &mut Ledger, now: Timestamp) {
    let Some(slot) = desk.slot(name) else { return };
    let (status, bot_id, generation) = (slot.status, slot.bot_id, slot.generation);
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
        SlotNews::Ready { generation: ready }
            if status == SlotStatus::Creating && bot_id.is_none() && generation == *ready =>
        {
            desk.free(name, true);
        }
        SlotNews::Started { bot, provider_ref, holder } => {
            ledger.leave_held(name, *bot, *holder);
            if bot_id == *bot && in_order {
                ledger.awaited.extend(bot);
                desk.change(name, |row| row.provider_ref = Some(provider_ref.clone()));
                if status == SlotStatus::Creating {
                    desk.put(name, if bot.is_some() { SlotStatus::Busy } else { SlotStatus::Creating });
                }
                // An agent that was faster than this word may say now that it waits.
                ledger.woken.push(name.clone());
            }
        }
        SlotNews::NotBegun { bot, holder } => ledger.leave_held(name, *bot, *holder),
        SlotNews::Silent { bot } if bot_id == Some(*bot) && in_order => {
            // Whoever is in it is fenced off, and ended by the start.
            desk.change(name, |row| row.generation += 1);
            ledger.unawaited.push(*bot);
            ledger.ask_for_gate(name, Some(*bot));
        }
        SlotNews::Broken { bot, words } if bot_id == *bot => break_down(desk, name, words, ledger, now),
        SlotNews::Recovered if status == SlotStatus::Error => {
            desk.change(name, |row| row.generation += 1);
            desk.free(name, false);
        }
        SlotNews::Drain if status != SlotStatus::Draining => desk.put(name, SlotStatus::Draining),
        SlotNews::Gone if bot_id.is_none() && status == SlotStatus::Draining => {
            ledger.leave_gate(name);
            ledger.gone.push(name.clone());
            desk.forget(name);
        }
        _ => {}
    }
}

/// Takes the slot of a bot that ends in this batch, as far as it can be known that nothing of the bot is left in it.
/// Otherwise it is left to be cleared.
pub fn vacate(desk: &mut Desk, ending: &Ending, ended: &Ended, ledger: &mut Ledger, now: Timestamp) {
    let Some(name) = &ended.bot.slot else { return };
    let Some(slot) = desk.slot(name).filter(|slot| slot.bot_id == Some(ended.bot.id)) else { return };
    let (status, used) = (slot.status, slot.bots_since_fresh);
    let recycle_after = desk.pool.recycle_after;
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
        }
        _ => ledger.to_clear.push(ended.bot.id),
    }
}

fn break_down(desk: &mut Desk, name: &SlotName, words: &str, ledger: &mut Ledger, now: Timestamp) {
    ledger.leave_gate(name);
    desk.put(name, SlotStatus::Error);
    desk.change(name, |row| {
        row.bot_id = None;
        row.description = slot::error(words, now);
        row.error_message = Some(words.to_owned());
    });
}
