//! Signals connect the parts of a process after a change is committed: they wake agents, the gate, and the clearing of
//! slots. They only save time. If a signal is lost because the process ends, the keepers find the work in the store.
//!
//! - this file: the signals
//! - [`channels`]: listening under a key
//! - [`row_copies`]: copies of rows, each until its row changes

pub mod channels;
pub mod row_copies;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::planner::Action;
use domain::{BotId, Slot, SlotName, Status};
use tokio::sync::{Notify, broadcast};

use channels::Channels;
use row_copies::{RowCopies, RowRead};

#[derive(Clone, Debug, Default)]
pub struct Signals(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// A deployment arrived at the gate, or left room there.
    gate: Notify,
    /// A bot joined the queue.
    queue: Notify,
    /// A pool that keeps slots ready gave one to a bot.
    pools: Notify,
    descriptions: PendingWork<HashMap<SlotName, Description>>,
    cleared: PendingWork<Vec<BotId>>,
    /// Statuses that bots reported, for placement's copy in memory.
    reported: Mutex<Vec<(BotId, Status)>>,
    /// Agents that wait in slots.
    agents: Mutex<Channels<SlotName, ()>>,
    /// The slots in which agents wait, as last read. An agent that waits again needs no query.
    waiting_slots: RowCopies<SlotName, Slot>,
}

/// Items that wait for the task that takes them.
#[derive(Debug, Default)]
struct PendingWork<T> {
    items: Mutex<T>,
    added: Notify,
}

/// The text that a provider shows for a slot, for people to read.
#[derive(Clone, Debug)]
pub struct Description {
    pub pool: String,
    pub slot: SlotName,
    pub text: String,
}

impl<T: Default> PendingWork<T> {
    fn items(&self) -> MutexGuard<'_, T> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there are items, and takes them.
    async fn take(&self, is_empty: impl Fn(&T) -> bool) -> T {
        loop {
            let items = std::mem::take(&mut *self.items());
            if !is_empty(&items) {
                return items;
            }
            self.added.notified().await;
        }
    }
}

impl Signals {
    /// Sends the signals for all actions of a plan.
    pub fn carry_out(&self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::WakeAgent(slot) => self.wake_agent(&slot),
                Action::PassGate => self.0.gate.notify_one(),
                Action::WatchQueue => self.0.queue.notify_one(),
                Action::RefillPools => self.0.pools.notify_one(),
                Action::Clear(bot) => self.clear(bot),
                Action::Describe { pool, slot, description } => {
                    let description = Description { pool, slot: slot.clone(), text: description };
                    self.0.descriptions.items().insert(slot, description);
                    self.0.descriptions.added.notify_one();
                }
            }
        }
    }

    /// Asks to clear the slot of this bot.
    pub fn clear(&self, bot: BotId) {
        self.0.cleared.items().push(bot);
        self.0.cleared.added.notify_one();
    }

    /// Receives a message when a bot is assigned to this slot.
    pub fn listen_to_slot(&self, slot: &SlotName) -> broadcast::Receiver<()> {
        self.agents().subscribe(slot.clone(), 1)
    }

    /// Wakes the agent that waits in a slot.
    pub fn wake_agent(&self, slot: &SlotName) {
        self.agents().send(slot, &());
    }

    /// The slot in which an agent waits, unless it has changed since it was read.
    pub fn waiting_slot(&self, slot: &SlotName) -> Option<Arc<Slot>> {
        self.0.waiting_slots.get(slot)
    }

    /// All slots in which agents wait.
    pub fn waiting_slots(&self) -> Vec<Arc<Slot>> {
        self.0.waiting_slots.all()
    }

    /// Announces a read of a slot in which an agent waits.
    pub fn read_waiting_slot(&self, slot: &SlotName) -> RowRead<'_, SlotName, Slot> {
        self.0.waiting_slots.begin_read(slot.clone())
    }

    /// A slot has changed: its copy is dropped. An agent is woken only for a bot. The agent of a slot that is started
    /// again must not ask before the slot has its new token.
    pub fn slot_changed(&self, slot: &SlotName) {
        self.0.waiting_slots.forget(slot);
    }

    /// Any slot may have changed. Wakes the agents whose slots differ from the current ones, and every agent whose slot
    /// is not known.
    pub fn slots_changed<'a>(&self, current: impl Fn(&SlotName) -> Option<&'a Slot>) {
        let before: Vec<SlotName> =
            self.agents().keys().filter(|slot| self.waiting_slot(slot).is_none()).cloned().collect();
        let changed = self.0.waiting_slots.forget_changed(|name, slot| current(name) != Some(slot));
        for slot in before.iter().chain(&changed) {
            self.wake_agent(slot);
        }
    }

    fn agents(&self) -> MutexGuard<'_, Channels<SlotName, ()>> {
        self.0.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the status that a bot reported.
    pub fn note_reported(&self, bot: BotId, status: Status) {
        self.0.reported.lock().unwrap_or_else(PoisonError::into_inner).push((bot, status));
    }

    /// Returns the statuses that bots reported since the last call.
    pub fn take_reported(&self) -> Vec<(BotId, Status)> {
        std::mem::take(&mut *self.0.reported.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until a deployment arrives at the gate, or leaves room there.
    pub async fn gate_changed(&self) {
        self.0.gate.notified().await;
    }

    /// Waits until this process has put a bot into the queue.
    pub async fn queue_joined(&self) {
        self.0.queue.notified().await;
    }

    /// Waits until this process has given a bot a slot of a pool that keeps some ready.
    pub async fn pool_below_min_idle(&self) {
        self.0.pools.notified().await;
    }

    /// Waits until there are slots to clear, and returns their bots.
    pub async fn bots_to_clear(&self) -> Vec<BotId> {
        self.0.cleared.take(Vec::is_empty).await
    }

    /// Waits until descriptions have changed, and returns the new ones.
    pub async fn changed_descriptions(&self) -> Vec<Description> {
        self.0.descriptions.take(HashMap::is_empty).await.into_values().collect()
    }
}
