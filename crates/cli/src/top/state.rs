//! The fleet as the live stream tells it: a snapshot, and the changes after it. A change costs what changed, and not
//! the number of slots.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use uuid::Uuid;

use super::message::{self, Bot, Gate, Keeper, Message, Slot, SlotKey, Waiting, entries};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    pub pools: Vec<Pool>,
    pub bots: BTreeMap<Uuid, Bot>,
    /// In the order in which bots are served, platform by platform.
    pub queue: Vec<Waiting>,
    pub gates: Vec<Gate>,
    pub keepers: Vec<Keeper>,
    slot_statuses: Vec<String>,
    bot_statuses: Vec<String>,
    /// How many bots have each status.
    bot_counts: Vec<usize>,
    /// The bot of each slot. It may be known before the slot is.
    bot_of: HashMap<SlotKey, Uuid>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    pub name: String,
    pub platform: String,
    pub slots: BTreeMap<i64, Slot>,
    /// How many slots have each status.
    counts: Vec<usize>,
    /// How many of the idle slots are hot.
    pub hot_idle: usize,
}

impl Fleet {
    /// Takes a message in. Returns false if it is not what the stream sends, and nothing changed.
    pub fn apply(&mut self, message: &Message) -> bool {
        match message {
            Message::Snapshot(snapshot) => match Self::from_snapshot(snapshot) {
                Some(fleet) => *self = fleet,
                None => return false,
            },
            Message::Change(change) => self.change(change),
        }
        true
    }

    fn from_snapshot(snapshot: &Value) -> Option<Self> {
        // A text of something else, such as a proxy, has no pools.
        snapshot.get("pools")?.as_array()?;
        let mut fleet = Self {
            slot_statuses: message::texts(snapshot, "slot_statuses"),
            bot_statuses: message::texts(snapshot, "bot_statuses"),
            ..Self::default()
        };
        fleet.bot_counts = vec![0; fleet.bot_statuses.len()];
        for pool in entries(snapshot, "pools") {
            let (name, platform) = message::pool(pool);
            let counts = vec![0; fleet.slot_statuses.len()];
            fleet.pools.push(Pool { name, platform, counts, ..Pool::default() });
        }
        for (pool, slots) in entries(snapshot, "slots").iter().enumerate() {
            let slots = slots.as_array().map_or(&[][..], Vec::as_slice);
            for (number, slot) in slots.iter().filter_map(|slot| message::slot(slot, 0)) {
                fleet.put_slot((pool, number), slot);
            }
        }
        fleet.put_bots(snapshot);
        fleet.queue = entries(snapshot, "queue").iter().filter_map(message::waiting).collect();
        fleet.sort_queue();
        fleet.gates = entries(snapshot, "gates").iter().filter_map(message::gate).collect();
        fleet.keepers = entries(snapshot, "keepers").iter().filter_map(message::keeper).collect();
        Some(fleet)
    }

    fn change(&mut self, change: &Value) {
        for entry in entries(change, "slots") {
            let pool = message::slot_key(entry, 0).map(|key| key.0);
            if let (Some(pool), Some((number, slot))) = (pool, message::slot(entry, 1)) {
                self.put_slot((pool, number), slot);
            }
        }
        for key in entries(change, "slots_gone").iter().filter_map(|entry| message::slot_key(entry, 0)) {
            self.remove_slot(key);
        }
        // Before the new bots, because one of them may have the slot of a bot that is gone.
        for id in entries(change, "bots_gone").iter().filter_map(message::id) {
            self.remove_bot(id);
        }
        self.put_bots(change);
        self.change_queue(change);
        if change.get("gates").is_some() {
            self.gates = entries(change, "gates").iter().filter_map(message::gate).collect();
        }
        if change.get("keepers").is_some() {
            self.keepers = entries(change, "keepers").iter().filter_map(message::keeper).collect();
        }
    }

    fn put_slot(&mut self, (pool, number): SlotKey, slot: Slot) {
        // The server sends a snapshot when the pools change, so an unknown pool is not one to show.
        let Some(pool) = self.pools.get_mut(pool) else { return };
        let idle = self.slot_statuses.iter().position(|status| status == "idle");
        if let Some(earlier) = pool.slots.get(&number).cloned() {
            pool.count(&earlier, idle, false);
        }
        pool.count(&slot, idle, true);
        pool.slots.insert(number, slot);
    }

    fn remove_slot(&mut self, (pool, number): SlotKey) {
        let idle = self.slot_statuses.iter().position(|status| status == "idle");
        let Some(pool) = self.pools.get_mut(pool) else { return };
        if let Some(slot) = pool.slots.remove(&number) {
            pool.count(&slot, idle, false);
        }
    }

    fn put_bots(&mut self, message: &Value) {
        for (id, bot) in entries(message, "bots").iter().filter_map(message::bot) {
            self.remove_bot(id);
            if let Some(count) = self.bot_counts.get_mut(bot.status) {
                *count += 1;
            }
            if let Some(slot) = bot.slot {
                self.bot_of.insert(slot, id);
            }
            self.bots.insert(id, bot);
        }
    }

    fn remove_bot(&mut self, id: Uuid) {
        let Some(bot) = self.bots.remove(&id) else { return };
        if let Some(count) = self.bot_counts.get_mut(bot.status) {
            *count = count.saturating_sub(1);
        }
        // The slot may have another bot already.
        if let Some(slot) = bot.slot.filter(|slot| self.bot_of.get(slot) == Some(&id)) {
            self.bot_of.remove(&slot);
        }
    }

    fn change_queue(&mut self, change: &Value) {
        let changed: Vec<Waiting> = entries(change, "queue").iter().filter_map(message::waiting).collect();
        let mut gone: Vec<Uuid> = entries(change, "queue_gone").iter().filter_map(message::id).collect();
        if changed.is_empty() && gone.is_empty() {
            return;
        }
        gone.extend(changed.iter().map(|waiting| waiting.bot));
        gone.sort_unstable();
        self.queue.retain(|waiting| gone.binary_search(&waiting.bot).is_err());
        self.queue.extend(changed);
        self.sort_queue();
    }

    fn sort_queue(&mut self) {
        fn order(waiting: &Waiting) -> (&str, i64, i64, i64) {
            (&waiting.platform, waiting.priority, waiting.turn, waiting.arrival)
        }
        self.queue.sort_by(|a, b| order(a).cmp(&order(b)));
        let (mut platform, mut position) = (None, 0);
        for waiting in &mut self.queue {
            position = if platform.as_deref() == Some(waiting.platform.as_str()) { position + 1 } else { 1 };
            platform = Some(waiting.platform.clone());
            waiting.position = position;
        }
    }
}

impl Pool {
    fn count(&mut self, slot: &Slot, idle: Option<usize>, is_new: bool) {
        let add = |count: &mut usize| *count = if is_new { *count + 1 } else { count.saturating_sub(1) };
        if let Some(count) = self.counts.get_mut(slot.status) {
            add(count);
        }
        if slot.hot && Some(slot.status) == idle {
            add(&mut self.hot_idle);
        }
    }
}

/// What views read.
impl Fleet {
    pub fn slot(&self, (pool, number): SlotKey) -> Option<&Slot> {
        self.pools.get(pool)?.slots.get(&number)
    }

    /// The name of a slot, as the server makes it.
    pub fn slot_name(&self, (pool, number): SlotKey) -> String {
        format!("pool-{}-{number:03}", self.pools.get(pool).map_or("?", |pool| pool.name.as_str()))
    }

    pub fn bot_in(&self, slot: SlotKey) -> Option<(Uuid, &Bot)> {
        let id = self.bot_of.get(&slot)?;
        Some((*id, self.bots.get(id)?))
    }

    pub fn slot_status(&self, slot: &Slot) -> &str {
        self.slot_statuses.get(slot.status).map_or("unknown", String::as_str)
    }

    pub fn bot_status(&self, bot: &Bot) -> &str {
        self.bot_statuses.get(bot.status).map_or("unknown", String::as_str)
    }

    /// How many slots of a pool, or of all, have each status, in the server's order.
    pub fn slot_counts(&self, pool: Option<usize>) -> Vec<(&str, usize)> {
        let pools = || self.pools.iter().enumerate().filter(move |(index, _)| pool.is_none_or(|pool| pool == *index));
        let count = |status: usize| pools().map(|(_, pool)| pool.counts.get(status).copied().unwrap_or(0)).sum();
        self.slot_statuses.iter().enumerate().map(|(index, status)| (status.as_str(), count(index))).collect()
    }

    /// How many bots have each status, in the server's order.
    pub fn bot_counts(&self) -> Vec<(&str, usize)> {
        self.bot_statuses.iter().map(String::as_str).zip(self.bot_counts.iter().copied()).collect()
    }

    pub fn slots_total(&self) -> usize {
        self.pools.iter().map(|pool| pool.slots.len()).sum()
    }

    pub fn hot_idle(&self, pool: Option<usize>) -> usize {
        let pools = self.pools.iter().enumerate().filter(|(index, _)| pool.is_none_or(|pool| pool == *index));
        pools.map(|(_, pool)| pool.hot_idle).sum()
    }

    pub fn pool_named(&self, name: &str) -> Option<usize> {
        self.pools.iter().position(|pool| pool.name == name)
    }

    /// When the bot that has waited longest came.
    pub fn oldest_wait(&self) -> Option<i64> {
        self.queue.iter().map(|waiting| waiting.queued_at).min()
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
