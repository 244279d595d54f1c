//! The changes of a plan: rows to write in one transaction, and actions to take after the commit.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use uuid::Uuid;

use super::bot::OpenBot;
use super::job::JobAnswer;
use crate::event::{Actor, Kind, StartKind};
use crate::{BotId, ConnectionId, Fault, Pool, Reason, ShownStatus, Slot, SlotName, Status, UserId};

/// All that one plan changes.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The answers to the jobs, in the same order.
    pub answers: Vec<JobAnswer>,
    /// Bots that were admitted.
    pub new_bots: Vec<NewBot>,
    /// Idempotency keys of bots that were admitted.
    pub new_keys: Vec<NewKey>,
    /// Every slot that is created, changed or deleted, in its new state.
    pub slots: BTreeMap<SlotName, SlotChange>,
    /// Every changed pool, in its new state.
    pub pools: BTreeMap<String, Pool>,
    /// Every open bot that is new or changed, in its new state; `None` if it has ended.
    pub bots: HashMap<BotId, Option<OpenBot>>,
    /// Existing bots that got a slot.
    pub grants: Vec<Grant>,
    /// Bots that have ended.
    pub ends: Vec<BotEnd>,
    /// Bots that start to wait, or wait again.
    pub queued: Vec<BotId>,
    /// Bots that no longer wait.
    pub left_queue: Vec<BotId>,
    /// Bots whose first callback is expected from now on.
    pub awaited: Vec<BotId>,
    /// Bots that get a new connection.
    pub reconnected: Vec<Reconnected>,
    /// Bots that had a slot and wait again.
    pub returned: Vec<Returned>,
    /// Requested deployments.
    pub deployments: Vec<NewDeployment>,
    /// Slots whose deployment is no longer needed.
    pub cancelled_deployments: Vec<SlotName>,
    /// Deployments that are finished.
    pub released_deployments: Vec<ReleasedDeployment>,
    /// The events, in order.
    pub events: Vec<NewEvent>,
    /// The actions to take after the commit.
    pub actions: Vec<Action>,
    /// The plan stopped at its limit: another plan must continue.
    pub unfinished: bool,
}

impl Changes {
    /// The bots that this plan creates, in their final state.
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
    /// The index of the job that requested it.
    pub job: usize,
    /// Its id.
    pub id: BotId,
    /// Who requested it: its user or an operator.
    pub actor: Actor,
    /// Whether an agent waits in its slot, so that its first callback is expected from now on.
    pub is_awaited: bool,
}

/// A slot that is created, changed or deleted.
#[derive(Clone, Debug)]
pub struct SlotChange {
    /// Whether the plan creates it.
    pub is_new: bool,
    /// See [`Slot::differs_only_in_use`].
    pub only_use_changed: bool,
    /// `None` if it is deleted.
    pub slot: Option<Slot>,
}

/// An idempotency key, and the bot that was requested with it.
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

/// The slot and the connection that a bot gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The bot.
    pub bot: BotId,
    /// Its slot.
    pub slot: SlotName,
    /// The pool of the slot.
    pub pool: String,
    /// The connection that the bot's callbacks must name.
    pub connection: ConnectionId,
    /// Whether an agent waits in the slot, so that the bot's first callback is expected from now on.
    pub is_awaited: bool,
}

/// A bot that ends.
#[derive(Clone, Debug, PartialEq)]
pub struct BotEnd {
    /// The bot.
    pub bot: BotId,
    /// Its user.
    pub user: UserId,
    /// The status that the decision is based on. The write fails if the status has changed.
    pub from: Status,
    /// The status that it ends with.
    pub to: Status,
    /// Why it ends.
    pub reason: Option<Reason>,
    /// The side that caused the end.
    pub fault: Fault,
    /// The error, as text for a person.
    pub error: Option<String>,
    /// The code that its process exited with.
    pub exit_code: Option<i64>,
    /// The slot at whose gate it waited, and the state of its deployment.
    pub at_gate: Option<(SlotName, GateState)>,
}

/// A silent bot that gets a new connection. The write fails if the bot has sent a callback meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconnected {
    /// The bot.
    pub bot: BotId,
    /// The connection that it had.
    pub from: Option<ConnectionId>,
    /// The connection that it gets.
    pub to: ConnectionId,
}

/// A bot that had a slot and waits again. The write fails if another process holds its deployment, or if the bot has
/// sent a callback.
#[derive(Clone, Debug, PartialEq)]
pub struct Returned {
    /// The bot.
    pub bot: BotId,
    /// The slot that it had.
    pub slot: SlotName,
    /// The holder of its deployment.
    pub holder: Uuid,
}

/// A slot to deploy, for a bot or to keep it ready.
#[derive(Clone, Debug, PartialEq)]
pub struct NewDeployment {
    /// The slot.
    pub slot: SlotName,
    /// The pool of the slot.
    pub pool: String,
    /// The host whose gate it must pass.
    pub host: String,
    /// The bot, if the deployment is for one.
    pub bot: Option<BotId>,
    /// The deadline of the deployment.
    pub timeout_at: Timestamp,
}

/// A deployment that its holder has finished. A newer deployment in the same slot stays.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleasedDeployment {
    /// The slot.
    pub slot: SlotName,
    /// The bot, if the deployment was for one.
    pub bot: Option<BotId>,
    /// The holder.
    pub holder: Uuid,
}

/// The state of a deployment at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// It has not passed the gate: nothing has started.
    Waiting,
    /// It has passed the gate and is in progress.
    Active,
    /// It failed and will be tried again.
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
    /// The actor that caused the event.
    pub actor: Actor,
    /// How the bot starts, if it gets a slot with this event.
    pub start_kind: Option<StartKind>,
}

/// An action to take after the commit. If the process ends first, keepers find the work in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum Action {
    /// Wake the agent that waits in this slot, so that it reads its slot again.
    WakeAgent(SlotName),
    /// A deployment came to the gate, or left it.
    PassGate,
    /// A bot started to wait.
    WatchQueue,
    /// A pool that keeps slots ready gave one out.
    RefillPools,
    /// Clear the slot of this bot.
    Clear(BotId),
    /// Update the description of the slot at the provider.
    Describe { pool: String, slot: SlotName, description: String },
}
