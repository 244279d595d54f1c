//! Ends of many bots at once, decided in the transaction that also gives their slots to the next; and the bots whose
//! slots are left to be cleared after it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use domain::lifecycle::{Overdue, Trigger, Verdict, decide};
use domain::{BotId, Reason, Status};
use tokio::sync::Notify;

use super::callbacks::{Voice, fence};
use super::{Lifecycle, LifecycleError, Told};
use crate::store::{Actor, Change, EndingBot, Kind, NewEvent, StoreError, Tx};

/// What may end a bot.
#[derive(Clone, Debug)]
pub enum Ending {
    /// The bot says that its process ended.
    Exited { voice: Voice, exit_code: i64, reason: Option<Reason>, error: Option<String> },
    /// It waited too long, or could not be deployed, in these words.
    GivenUp { bot: BotId, overdue: Overdue, words: Option<String> },
}

impl Ending {
    pub fn bot(&self) -> BotId {
        match self {
            Ending::Exited { voice, .. } => voice.claim.bot,
            Ending::GivenUp { bot, .. } => *bot,
        }
    }

    fn change(&self, to: Status, reason: Option<Reason>) -> Change {
        let (error, exit_code) = match self {
            Ending::Exited { error, exit_code, .. } => (error.clone(), Some(*exit_code)),
            Ending::GivenUp { words, .. } => (words.clone(), None),
        };
        Change { to, reason, error, exit_code }
    }
}

/// A bot that ended in this transaction.
#[derive(Clone, Debug)]
pub struct Ended {
    /// As it was before.
    pub bot: EndingBot,
    pub change: Change,
    /// It waited at the gate: nothing was begun for it.
    pub was_in_line: bool,
    pub event: NewEvent,
}

/// What came of the endings of a batch.
#[derive(Debug, Default)]
pub struct Endings {
    /// To each, in their order: the status that holds now.
    pub answers: Vec<Result<Status, LifecycleError>>,
    pub ended: HashMap<BotId, Ended>,
}

impl Lifecycle {
    /// Decides on ends, each as if it had come alone. The bots are held until `tx` ends; what is decided is not written
    /// yet: that is placement's to do, together with what becomes of their slots.
    pub async fn end_all(&self, tx: &mut Tx, endings: &[Ending]) -> Result<Endings, StoreError> {
        let mut done = Endings::default();
        if endings.is_empty() {
            return Ok(done);
        }
        let ids: Vec<BotId> = endings.iter().map(Ending::bot).collect();
        let bots = tx.hold_ending_bots(&ids).await?;
        let mut bots: HashMap<BotId, EndingBot> = bots.into_iter().map(|bot| (bot.id, bot)).collect();
        let waits =
            |overdue| move |ending: &&Ending| matches!(ending, Ending::GivenUp { overdue: o, .. } if *o == overdue);
        let those = |overdue| -> Vec<BotId> { endings.iter().filter(waits(overdue)).map(Ending::bot).collect() };
        // It may have got a slot, or have passed the gate, meanwhile.
        let left_queue: HashSet<BotId> = tx.leave_queue(&those(Overdue::QueueTimeout)).await?.into_iter().collect();
        let left_line: HashSet<BotId> = tx.leave_line(&those(Overdue::DeployTimeout)).await?.into_iter().collect();
        let left_retries: HashSet<BotId> =
            tx.leave_retries(&those(Overdue::DeployTimeout)).await?.into_iter().collect();
        for ending in endings {
            let Some(bot) = bots.get_mut(&ending.bot()) else {
                done.answers.push(Err(LifecycleError::Unauthorized));
                continue;
            };
            let trigger = match ending {
                Ending::Exited { voice, exit_code, reason, .. } => {
                    if let Err(error) = fence(bot.connection_id, *voice) {
                        done.answers.push(Err(error));
                        continue;
                    }
                    Trigger::Exited { exit_code: *exit_code, reason: reason.clone() }
                }
                Ending::GivenUp { overdue, .. } => {
                    let still = match overdue {
                        Overdue::QueueTimeout => left_queue.contains(&bot.id),
                        Overdue::DeployTimeout => left_line.contains(&bot.id) || left_retries.contains(&bot.id),
                        _ => true,
                    };
                    if !still {
                        done.answers.push(Ok(bot.status));
                        continue;
                    }
                    Trigger::Passed(*overdue)
                }
            };
            done.answers.push(match decide(&bot.standing(), &trigger) {
                Verdict::Move { to, reason } => {
                    let change = ending.change(to, reason);
                    let event = told(bot, &change, ending);
                    let was_in_line = left_line.contains(&bot.id);
                    let ended = Ended { bot: bot.clone(), change, was_in_line, event };
                    (bot.status, bot.exit_code) = (to, ended.change.exit_code.or(bot.exit_code));
                    bot.reason = ended.change.reason.as_ref().map(ToString::to_string);
                    done.ended.insert(bot.id, ended);
                    Ok(to)
                }
                Verdict::Hold => Ok(bot.status),
                Verdict::Refuse => Err(LifecycleError::InvalidTransition(bot.status)),
                Verdict::Ended => Err(LifecycleError::BotEnded { status: bot.status, reason: bot.reason.clone() }),
            });
        }
        Ok(done)
    }

    /// Tells what was committed.
    pub fn tell_ended(&self, ended: Ended) {
        Told(ended.event).log();
    }
}

fn told(bot: &EndingBot, change: &Change, ending: &Ending) -> NewEvent {
    NewEvent {
        bot_id: bot.id,
        user_id: bot.user_id,
        kind: Kind::StatusChanged,
        from: Some(bot.status),
        to: Some(change.to),
        reason: change.reason.as_ref().map(ToString::to_string),
        actor: if matches!(ending, Ending::Exited { .. }) { Actor::Bot } else { Actor::Greenroom },
    }
}

/// Bots that ended in this process and whose slots are to be cleared. What is forgotten here, because the process ends,
/// is found in the store.
#[derive(Clone, Debug, Default)]
pub struct ToClear(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    bots: Mutex<Vec<BotId>>,
    told: Notify,
}

impl ToClear {
    pub fn add(&self, bot: BotId) {
        self.0.bots.lock().unwrap_or_else(PoisonError::into_inner).push(bot);
        self.0.told.notify_one();
    }

    /// Waits until there are some, and takes them.
    pub async fn take(&self) -> Vec<BotId> {
        loop {
            let bots = std::mem::take(&mut *self.0.bots.lock().unwrap_or_else(PoisonError::into_inner));
            if !bots.is_empty() {
                return bots;
            }
            self.0.told.notified().await;
        }
    }
}
