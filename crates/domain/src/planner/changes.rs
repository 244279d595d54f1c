//! What a plan changes: rows to write in one transaction, and what is to be done outside once they are written.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use uuid::Uuid;

use super::bot::OpenBot;
use super::job::JobAnswer;
use crate::event::{Actor, Kind};
use crate::{BotId, ConnectionId, Fault, Pool, Reason, ShownStatus, Slot, SlotName, Status, UserId};

/// All that one plan changes.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// To each job, in their order.
    pub answers: Vec<JobAnswer>,
    /// Bots that were admitted.
    pub new_bots: Vec<NewBot>,
    /// Idempotency keys of bots that were admitted.
    pub new_keys: Vec<NewKey>,
    /// Every slot that is made, changed or gone, as it is then.
    pub slots: BTreeMap<SlotName, SlotChange>,
    /// Every pool that is changed, as it is then.
    pub pools: BTreeMap<String, Pool>,
    /// Every open bot that is new or changed, as it is then; `None` when it is at an end.
    pub bots: HashMap<BotId, Option<OpenBot>>,
    /// Bots that were there before and have got a slot.
    pub grants: Vec<Grant>,
    /// Bots that have ended.
    pub ends: Vec<BotEnd>,
    /// Bots that begin to wait, or wait again.
    pub queued: Vec<BotId>,
    /// Bots that no longer wait.
    pub left_queue: Vec<BotId>,
    /// Bots that should be speaking from now on.
    pub awaited: Vec<BotId>,
    /// Bots that get a new connection.
    pub reconnected: Vec<Reconnected>,
    /// Bots that had a slot and wait again.
    pub returned: Vec<Returned>,
    /// Deployments that are asked for.
    pub deployments: Vec<NewDeployment>,
    /// Slots whose deployment nobody wants any more.
    pub cancelled_deployments: Vec<SlotName>,
    /// Deployments that are done.
    pub released_deployments: Vec<ReleasedDeployment>,
    /// In their order.
    pub events: Vec<NewEvent>,
    /// What is to be done after the commit.
    pub actions: Vec<Action>,
    /// The plan had to stop early: another one goes on.
    pub unfinished: bool,
}

impl Changes {
    /// The bots that this makes, as it leaves them.
    pub fn new_open_bots(&self) -> HashMap<BotId, OpenBot> {
        let open = |id: BotId| Some((id, self.bots.get(&id)?.clone()?));
        self.new_bots.iter().filter_map(|new| open(new.id)).collect()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.bots.is_empty()
            && self.slots.is_empty()
            && self.pools.is_empty()
            && self.deployments.is_empty()
            && self.cancelled_deployments.is_empty()
            && self.released_deployments.is_empty()
            && self.awaited.is_empty()
            && self.events.is_empty()
    }
}

/// A bot that was admitted.
#[derive(Clone, Debug, PartialEq)]
pub struct NewBot {
    /// Which job asked for it.
    pub job: usize,
    /// Its id.
    pub id: BotId,
    /// Whether an agent waits in its slot, so that it should be speaking from now on.
    pub is_awaited: bool,
}

/// A slot that is made, changed or gone.
#[derive(Clone, Debug)]
pub struct SlotChange {
    /// Whether the plan makes it.
    pub is_new: bool,
    /// See [`Slot::differs_only_in_use`].
    pub only_use_changed: bool,
    /// `None` when it is gone.
    pub slot: Option<Slot>,
}

/// An idempotency key, and the bot that was asked for under it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewKey {
    /// The user of the key.
    pub user: UserId,
    /// The key.
    pub key: String,
    /// A hash of the request.
    pub body_hash: String,
    /// The bot.
    pub bot: BotId,
}

/// What a bot gets: a slot and a connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The bot.
    pub bot: BotId,
    /// Its slot.
    pub slot: SlotName,
    /// The pool of the slot.
    pub pool: String,
    /// The connection under which it may speak.
    pub connection: ConnectionId,
    /// Whether an agent waits in the slot, so that the bot should be speaking from now on.
    pub is_awaited: bool,
}

/// A bot that ends.
#[derive(Clone, Debug, PartialEq)]
pub struct BotEnd {
    /// The bot.
    pub bot: BotId,
    /// Its user.
    pub user: UserId,
    /// What the decision was made on: the write holds only if it still is so.
    pub from: Status,
    /// The status that it ends with.
    pub to: Status,
    /// Why it ends.
    pub reason: Option<Reason>,
    /// Whose fault that is.
    pub fault: Fault,
    /// What went wrong, for a person to read.
    pub error: Option<String>,
    /// The code that its process exited with.
    pub exit_code: Option<i64>,
    /// The slot at whose gate it waited, and how.
    pub at_gate: Option<(SlotName, GateState)>,
}

/// A bot that nothing was heard of, under a new connection: the write holds only if nothing was heard still.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconnected {
    /// The bot.
    pub bot: BotId,
    /// The connection that it had.
    pub from: Option<ConnectionId>,
    /// The connection that it gets.
    pub to: ConnectionId,
}

/// A bot that had a slot and waits again: the write holds only if its deployment still is the holder's and nothing was
/// heard of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Returned {
    /// The bot.
    pub bot: BotId,
    /// The slot that it had.
    pub slot: SlotName,
    /// Who held its deployment.
    pub holder: Uuid,
}

/// A slot that is to be deployed, for a bot or to be made ready.
#[derive(Clone, Debug, PartialEq)]
pub struct NewDeployment {
    /// The slot.
    pub slot: SlotName,
    /// The pool of the slot.
    pub pool: String,
    /// Whose gate it passes.
    pub host: String,
    /// The bot that it is for.
    pub bot: Option<BotId>,
    /// Until when it may take.
    pub timeout_at: Timestamp,
}

/// A deployment that its holder is done with; what another has begun in the slot since stays.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleasedDeployment {
    /// The slot.
    pub slot: SlotName,
    /// The bot that it was for.
    pub bot: Option<BotId>,
    /// Who holds it.
    pub holder: Uuid,
}

/// How a deployment stands at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// It has not passed: nothing was begun.
    Waiting,
    /// It has passed, and is at work.
    Active,
    /// It failed, and is to be tried again.
    Retry,
}

/// An entry of a bot's audit trail.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The bot.
    pub bot_id: BotId,
    /// Its user.
    pub user_id: UserId,
    /// What happened.
    pub kind: Kind,
    /// The status before.
    pub from: Option<ShownStatus>,
    /// The status after.
    pub to: Option<ShownStatus>,
    /// Why.
    pub reason: Option<String>,
    /// Who made it happen.
    pub actor: Actor,
}

/// What is to be done outside, after the commit. What is forgotten because the process ends is found in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum Action {
    /// An agent waits in this slot for what it was given.
    WakeAgent(SlotName),
    /// Someone has come to the gate, or has left room behind it.
    PassGate,
    /// Somebody has begun to wait.
    WatchQueue,
    /// A slot was given out of a pool that keeps some ready.
    RefillPools,
    /// The slot of this bot is to be cleared.
    Clear(BotId),
    /// What a person sees of the slot at the provider has changed.
    Describe { pool: String, slot: SlotName, description: String },
}
