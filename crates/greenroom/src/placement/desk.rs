//! One pool: the slots that a batch has in its hands, and what it makes of them. All in memory; the
//! ledger writes it.

use std::collections::BTreeMap;

use domain::{BotId, ConnectionId, SlotName, SlotStatus, slot};
use jiff::Timestamp;

use super::ledger::Ledger;
use crate::store::{Grant, PoolAndLine, PoolRow, SlotRow};

#[derive(Debug)]
pub struct Desk {
    pub pool: PoolRow,
    /// How many bots wait in the line that the pool serves.
    pub waiting: i64,
    slots: BTreeMap<SlotName, Held>,
    /// How many slots there were, and the mean hold, when the pool was read.
    before: (i64, Option<i64>),
    now: Timestamp,
}

#[derive(Debug)]
struct Held {
    row: SlotRow,
    /// Whether it can be given out.
    free: bool,
    changed: bool,
    /// Whether it has no row yet.
    is_new: bool,
}

impl Desk {
    pub fn new(PoolAndLine { pool, waiting, idle }: PoolAndLine, now: Timestamp) -> Self {
        let before = (pool.slots, pool.mean_hold_ms);
        let mut desk = Self { before, waiting, pool, slots: BTreeMap::new(), now };
        idle.into_iter().for_each(|slot| desk.hold(slot, true));
        desk
    }

    /// Takes a slot into its hands as it stands in the store.
    pub fn hold(&mut self, row: SlotRow, free: bool) {
        let held = self.slots.entry(row.name.clone()).or_insert(Held { row, free, changed: false, is_new: false });
        held.free |= free && !held.changed;
    }

    pub fn slot(&self, name: &SlotName) -> Option<&SlotRow> {
        self.slots.get(name).map(|held| &held.row)
    }

    /// Changes a slot.
    pub fn change(&mut self, name: &SlotName, change: impl FnOnce(&mut SlotRow)) {
        if let Some(held) = self.slots.get_mut(name) {
            change(&mut held.row);
            held.changed = true;
        }
    }

    /// Changes a slot to a status, from now on.
    pub fn put(&mut self, name: &SlotName, status: SlotStatus) {
        let now = self.now;
        self.change(name, |row| {
            row.status = status;
            row.status_since = now;
        });
        if let Some(held) = self.slots.get_mut(name) {
            held.free = false;
        }
    }

    /// Nobody has the slot any more, and the next may. `waits` when an agent is in it that waits for the next.
    pub fn free(&mut self, name: &SlotName, waits: bool) {
        let status = if self.pool.hot && !waits { SlotStatus::Creating } else { SlotStatus::Idle };
        self.put(name, status);
        self.change(name, |row| {
            row.bot_id = None;
            row.error_message = None;
            if !waits {
                row.bots_since_fresh = 0;
            }
        });
        if let Some(held) = self.slots.get_mut(name) {
            held.free = true;
        }
    }

    pub fn forget(&mut self, name: &SlotName) {
        if self.slots.remove(name).is_some() {
            self.pool.slots -= 1;
        }
    }

    /// How many slots may still be made.
    pub fn room(&self) -> i64 {
        if self.pool.place.is_none() {
            return 0;
        }
        (self.pool.max_slots - self.pool.slots).max(0)
    }

    /// What can be given out, in the order in which it is: where an agent waits before where one has to be started,
    /// then the least recently used.
    pub fn open(&self) -> Vec<SlotName> {
        let mut open: Vec<&SlotRow> = self.slots.values().filter(|held| held.free).map(|held| &held.row).collect();
        open.sort_by_key(|row| (!self.waits_in(row), row.last_used_at, row.number));
        open.into_iter().map(|row| row.name.clone()).collect()
    }

    fn waits_in(&self, row: &SlotRow) -> bool {
        self.pool.hot && row.status == SlotStatus::Idle
    }

    /// Gives a free slot to a bot. One with an agent waiting inside needs no deployment.
    pub fn give(&mut self, name: &SlotName, bot: BotId, connection_id: ConnectionId, ledger: &mut Ledger) -> Grant {
        let waits = self.slot(name).is_some_and(|row| self.waits_in(row));
        let made = self.slot(name).is_some_and(|row| row.provider_ref.is_some());
        self.put(name, if waits || made { SlotStatus::Busy } else { SlotStatus::Creating });
        let now = self.now;
        self.change(name, |row| {
            row.bot_id = Some(bot);
            row.last_used_at = Some(now);
            row.bots_since_fresh += 1;
            row.error_message = None;
            row.description = slot::busy(bot, now);
        });
        ledger.cooled |= self.pool.min_idle > 0;
        if waits {
            ledger.woken.push(name.clone());
        } else {
            ledger.ask_for_gate(name, Some(bot));
        }
        Grant { bot_id: bot, slot: name.clone(), pool: self.pool.name.clone(), connection_id, is_awaited: waits }
    }

    /// A slot that does not exist yet: first only a row that says what is intended.
    pub fn intend(&mut self, number: i64) -> SlotName {
        self.pool.slots += 1;
        let name = SlotName::new(&self.pool.name, number);
        let row = SlotRow {
            name: name.clone(),
            pool: self.pool.name.clone(),
            number,
            status: SlotStatus::Creating,
            status_since: self.now,
            bot_id: None,
            generation: 1,
            bots_since_fresh: 0,
            provider_ref: None,
            description: slot::idle(None),
            last_used_at: None,
            error_message: None,
            recovery_attempts: 0,
            created_at: self.now,
        };
        self.slots.insert(name.clone(), Held { row, free: true, changed: true, is_new: true });
        name
    }

    /// A free slot that nobody wants now: a hot one is started, one that is not there yet is made, any other is ready as
    /// it is.
    pub fn lay_aside(&mut self, name: &SlotName, ledger: &mut Ledger) {
        let Some(held) = self.slots.get(name).filter(|held| held.free) else { return };
        // It was only looked at.
        if !held.changed {
            return;
        }
        let description = slot::idle(held.row.last_used_at);
        let is_made = held.row.provider_ref.is_some();
        if (self.pool.hot && !self.waits_in(&held.row)) || (!self.pool.hot && !is_made) {
            self.put(name, SlotStatus::Creating);
            ledger.ask_for_gate(name, None);
        } else {
            self.put(name, SlotStatus::Idle);
        }
        self.change(name, |row| row.description = description);
    }

    /// A bot has held a slot for as long as this: the mean leans towards it by a tenth.
    pub fn note_hold(&mut self, name: &SlotName) {
        let Some(since) = self.slot(name).and_then(|row| row.last_used_at) else { return };
        let held = i64::try_from(self.now.duration_since(since).as_millis().max(0)).unwrap_or(i64::MAX);
        self.pool.mean_hold_ms = Some(self.pool.mean_hold_ms.map_or(held, |mean| mean + (held - mean) / 10));
    }

    /// What is to be written of the pool itself.
    pub fn pool_change(&self) -> Option<&PoolRow> {
        (self.before != (self.pool.slots, self.pool.mean_hold_ms)).then_some(&self.pool)
    }

    /// The slots that are to be written, once each: new ones, and known ones that have changed.
    pub fn take_changed(&mut self) -> (Vec<SlotRow>, Vec<SlotRow>) {
        let (mut new, mut changed) = (Vec::new(), Vec::new());
        for held in self.slots.values_mut().filter(|held| held.changed) {
            held.changed = false;
            let rows = if std::mem::take(&mut held.is_new) { &mut new } else { &mut changed };
            rows.push(held.row.clone());
        }
        (new, changed)
    }
}
