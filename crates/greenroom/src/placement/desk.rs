//! One pool: the slots that a batch has in its hands, and what it makes of them. All in memory; the
//! ledger writes it.

use std::collections::BTreeMap;

use std::time::Duration;

use domain::{BotId, ConnectionId, Requirements, SlotName, SlotStatus, slot};
use jiff::Timestamp;
use uuid::Uuid;

use super::ledger::Ledger;
use crate::store::{Batch, Grant, PoolAndLine, PoolRow, Size, SlotRow};

#[derive(Debug)]
pub struct Desk {
    pub pool: PoolRow,
    /// How many bots wait in the line that the pool serves.
    pub waiting: i64,
    slots: BTreeMap<SlotName, Held>,
    /// The pool as it was read.
    before: PoolRow,
    now: Timestamp,
}

#[derive(Debug)]
struct Held {
    row: SlotRow,
    /// Whether it can be given out.
    free: bool,
    changed: bool,
    /// Whether it has other attributes, or another threshold, than when it was read.
    marked: bool,
    /// Whether it has no row yet.
    is_new: bool,
}

impl Desk {
    pub fn new(PoolAndLine { pool, waiting, idle }: PoolAndLine, now: Timestamp) -> Self {
        let before = pool.clone();
        let mut desk = Self { before, waiting, pool, slots: BTreeMap::new(), now };
        idle.into_iter().for_each(|slot| desk.hold(slot, true));
        desk
    }

    /// Takes a slot into its hands as it stands in the store.
    pub fn hold(&mut self, row: SlotRow, free: bool) {
        let held = self.slots.entry(row.name.clone()).or_insert(Held {
            row,
            free,
            changed: false,
            marked: false,
            is_new: false,
        });
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
        let (now, expires) = (self.now, self.expires());
        self.change(name, |row| {
            row.status = status;
            row.status_since = now;
        });
        if let Some(held) = self.slots.get_mut(name) {
            held.free = false;
            if status == SlotStatus::Idle && held.row.threshold != expires {
                held.row.threshold = expires;
                held.marked = true;
            }
        }
    }

    /// Nobody has the slot any more, and the next may. `waits` when an agent is in it that waits for the next.
    pub fn free(&mut self, name: &SlotName, waits: bool) {
        let status = if self.pool.hot && !waits { SlotStatus::Creating } else { SlotStatus::Idle };
        self.put(name, status);
        let (new, is_places) = (self.pool.kind_of_new(), self.pool.is_places());
        self.change(name, |row| {
            row.bot_id = None;
            row.error_message = None;
            if !waits {
                row.bots_since_fresh = 0;
                row.end_tokens();
            }
            if is_places {
                row.provider_ref = None;
            }
        });
        if let Some(held) = self.slots.get_mut(name) {
            held.free = true;
            if !waits && held.row.attributes != new {
                held.row.attributes = new;
                held.marked = true;
            }
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

    /// What can be given out.
    pub fn open(&self) -> Vec<SlotName> {
        self.open_rows().map(|row| row.name.clone()).collect()
    }

    pub fn open_rows(&self) -> impl Iterator<Item = &SlotRow> {
        self.slots.values().filter(|held| held.free).map(|held| &held.row)
    }

    /// How large a slot would be that is made for a bot: `None` when it would not fit.
    pub fn size_of_new(&self, wants: Option<&Requirements>) -> Option<Size> {
        self.pool.size_for(wants, &self.pool.kind_of_new())
    }

    /// How many bots that want this could have something of what is open, or what can be made.
    pub fn seats(&self, wants: Option<&Requirements>) -> i64 {
        let fits = |row: &&SlotRow| self.pool.size_for(wants, &row.attributes).is_some();
        let room = self.size_of_new(wants).map_or(0, |_| self.room());
        i64::try_from(self.open_rows().filter(fits).count()).unwrap_or(i64::MAX).saturating_add(room)
    }

    /// Until when a slot that is idle from now on may be given out.
    fn expires(&self) -> Option<Timestamp> {
        let after = Duration::from_millis(self.pool.expire_after_ms?.unsigned_abs());
        self.now.checked_add(after).ok()
    }

    pub fn waits_in(&self, row: &SlotRow) -> bool {
        self.pool.hot && row.status == SlotStatus::Idle
    }

    /// Gives a free slot to a bot. One with an agent waiting inside needs no deployment.
    pub fn give(
        &mut self,
        name: &SlotName,
        bot: BotId,
        connection_id: ConnectionId,
        from_line: Option<(i64, Timestamp)>,
        ledger: &mut Ledger,
    ) -> Grant {
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
            ledger.ask_for_gate(&self.pool, name, Some(bot));
        }
        let pool = self.pool.name.clone();
        Grant { bot_id: bot, slot: name.clone(), pool, connection_id, is_awaited: waits, from_line }
    }

    /// A slot that does not exist yet: first only a row that says what is intended.
    pub fn intend(&mut self, number: i64, incarnation: Uuid) -> SlotName {
        self.pool.slots += 1;
        let name = SlotName::new(&self.pool.name, number);
        let row = SlotRow {
            name: name.clone(),
            pool: self.pool.name.clone(),
            number,
            status: SlotStatus::Creating,
            status_since: self.now,
            bot_id: None,
            incarnation,
            generation: 1,
            token_number: 0,
            agent: None,
            bots_since_fresh: 0,
            provider_ref: None,
            description: slot::idle(None),
            last_used_at: None,
            error_message: None,
            recovery_attempts: 0,
            created_at: self.now,
            attributes: self.pool.kind_of_new(),
            threshold: None,
        };
        self.slots.insert(name.clone(), Held { row, free: true, changed: true, marked: false, is_new: true });
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
        if (self.pool.hot && !self.waits_in(&held.row)) || (!self.pool.hot && !is_made && !self.pool.is_places()) {
            self.put(name, SlotStatus::Creating);
            ledger.ask_for_gate(&self.pool, name, None);
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
        (self.before != self.pool).then_some(&self.pool)
    }

    /// Puts the slots that are to be written into a batch, once each: new ones, and known ones that have changed.
    pub fn take_changed(&mut self, batch: &mut Batch) {
        for held in self.slots.values_mut().filter(|held| held.changed) {
            held.changed = false;
            if std::mem::take(&mut held.is_new) {
                batch.new_slots.push(held.row.clone());
            } else {
                batch.slots.push(held.row.clone());
                batch.marked.extend(held.marked.then(|| held.row.clone()));
            }
            held.marked = false;
        }
    }
}
