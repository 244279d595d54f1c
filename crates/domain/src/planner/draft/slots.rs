//! Pools and slots in a draft, with the plan's changes applied.

use std::time::Duration;

use jiff::Timestamp;

use crate::planner::bugs::{Bug, has};
use crate::planner::changes::SlotChange;
use crate::planner::snapshot::{Numbers, Unsettled};
use crate::{Platform, Pool, Slot, SlotName, SlotStatus, slot};

use super::Draft;

impl<'a> Draft<'a> {
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.changes.pools.get(name).or_else(|| self.base.pool(name).map(|state| &state.pool))
    }

    /// The configured pools of a platform, in the order of the configuration.
    pub fn configured_pools(&self, platform: Platform) -> impl Iterator<Item = &Pool> {
        self.base.pools_of(platform).iter().filter_map(|name| self.pool(name)).filter(|pool| pool.is_configured())
    }

    pub fn change_pool(&mut self, name: &str, change: impl FnOnce(&mut Pool)) {
        let Some(mut pool) = self.pool(name).cloned() else { return };
        change(&mut pool);
        self.changes.pools.insert(name.to_owned(), pool);
    }

    pub fn slot(&self, name: &SlotName) -> Option<&Slot> {
        match self.changes.slots.get(name) {
            Some(change) => change.slot.as_ref(),
            None => self.base.slot(name),
        }
    }

    /// Changes a slot. A free slot stays free unless its status changes.
    pub fn change_slot(&mut self, name: &SlotName, change: impl FnOnce(&mut Slot)) {
        let Some(mut slot) = self.slot(name).cloned() else { return };
        let (was_free, status) = (self.is_free(name), slot.status);
        self.forget_freed(name);
        change(&mut slot);
        let is_new = self.changes.slots.get(name).is_some_and(|change| change.is_new);
        let is_free = was_free && slot.status == status;
        if has(Bug::FreedForgotten) && status == SlotStatus::Creating {
            self.to_return.remove(name);
        }
        self.changes.slots.insert(name.clone(), SlotChange { is_new, only_use_changed: false, slot: Some(slot) });
        if is_free {
            self.add_freed(name);
        }
        if is_free && has(Bug::IdleRenewed) {
            self.to_return.insert(name.clone());
        }
    }

    /// Sets the status of a slot from now on. The slot is not given out until [`Draft::free_slot`] frees it.
    pub fn put_slot(&mut self, name: &SlotName, status: SlotStatus) {
        let (now, expires_at) = (self.now, self.expires_at(name));
        self.change_slot(name, |slot| {
            slot.status = status;
            slot.status_since = now;
            slot.stopped = false;
            slot.awaits_clearing &= status == SlotStatus::Busy;
            match status {
                SlotStatus::Idle => slot.expires_at = expires_at,
                SlotStatus::Creating => slot.description = slot::creating(now),
                SlotStatus::Draining if slot.bot_id.is_none() => slot.description = slot::draining(now),
                _ => {}
            }
        });
        self.forget_freed(name);
        self.to_return.remove(name);
    }

    /// Frees a slot for the next bot. `waits` is true if an agent waits in it.
    pub fn free_slot(&mut self, name: &SlotName, waits: bool) {
        let Some(pool) = self.slot(name).and_then(|slot| self.pool(&slot.pool)) else { return };
        let (hot, platform, attributes) = (pool.hot, pool.platform, pool.attributes_of_new());
        let provisioned_per_bot = pool.provisioned_per_bot();
        // Drops this plan's earlier deployment of the slot.
        self.changes.deployments.retain(|deployment| deployment.slot != *name);
        self.put_slot(name, if hot && !waits { SlotStatus::Creating } else { SlotStatus::Idle });
        self.change_slot(name, |slot| {
            slot.bot_id = None;
            slot.awaits_clearing = false;
            slot.error_message = None;
            if !waits {
                slot.bots_since_fresh = 0;
                if !has(Bug::TokensSurviveClearing) {
                    slot.end_tokens();
                }
                slot.attributes = attributes;
            }
            if provisioned_per_bot {
                slot.provider_ref = None;
            }
        });
        self.add_freed(name);
        self.to_return.insert(name.clone());
        self.touched.insert(platform);
    }

    /// Empties a slot whose agent runs and does not wait yet. The slot gets no bot before that.
    pub fn await_agent(&mut self, name: &SlotName) {
        self.changes.deployments.retain(|deployment| deployment.slot != *name);
        self.put_slot(name, SlotStatus::Creating);
        self.change_slot(name, |slot| {
            slot.bot_id = None;
            slot.awaits_clearing = false;
            slot.error_message = None;
        });
    }

    pub fn delete_slot(&mut self, name: &SlotName) {
        let Some(slot) = self.slot(name) else { return };
        let (pool, number) = (slot.pool.clone(), slot.number);
        self.forget_freed(name);
        self.to_return.remove(name);
        self.changes.slots.insert(name.clone(), SlotChange { is_new: false, only_use_changed: false, slot: None });
        self.change_pool(&pool, |pool| pool.slots -= 1);
        self.numbers(&pool).give_back(number);
        // The pool has room for a new slot.
        let platform = self.pool(&pool).map(|pool| pool.platform);
        self.touched.extend(platform.filter(|_| !has(Bug::RoomUnserved)));
    }

    /// Makes a new slot. At first it is only a row that records the intention.
    pub fn make_slot(&mut self, pool: &str) -> Option<SlotName> {
        let attributes = self.pool(pool)?.attributes_of_new();
        self.change_pool(pool, |pool| pool.slots += 1);
        let number = self.numbers(pool).take_first();
        let name = SlotName::new(pool, number);
        let slot = Slot {
            name: name.clone(),
            pool: pool.to_owned(),
            number,
            status: SlotStatus::Creating,
            status_since: self.now,
            bot_id: None,
            incarnation: self.uuid(),
            generation: 1,
            token_number: 0,
            agent: None,
            bots_since_fresh: 0,
            provider_ref: None,
            description: slot::creating(self.now),
            last_used_at: None,
            error_message: None,
            recovery_attempts: 0,
            created_at: self.now,
            attributes,
            expires_at: None,
            awaits_clearing: false,
            stopped: false,
            recipe: None,
        };
        // If this plan deleted the slot, its row still exists and is replaced.
        self.changes.slots.insert(
            name.clone(),
            SlotChange { is_new: self.base.slot(&name).is_none(), only_use_changed: false, slot: Some(slot) },
        );
        self.add_freed(&name);
        self.to_return.insert(name.clone());
        Some(name)
    }

    pub(super) fn numbers(&mut self, pool: &str) -> &mut Numbers {
        let base = self.base;
        let of = || base.pool(pool).map(|state| state.numbers.clone()).unwrap_or_default();
        self.numbers.entry(pool.to_owned()).or_insert_with(of)
    }

    /// Until when a slot that becomes idle now may be given out.
    pub(super) fn expires_at(&self, name: &SlotName) -> Option<Timestamp> {
        let pool = self.slot(name).and_then(|slot| self.pool(&slot.pool))?;
        let after = Duration::from_millis(pool.expire_after_ms?.unsigned_abs());
        self.now.checked_add(after).ok()
    }

    /// How many slots of a pool are not settled.
    pub fn unsettled(&self, pool: &str) -> Unsettled {
        let base = self.base.pool(pool).map(|state| state.unsettled).unwrap_or_default();
        let changed = self.changes.slots.iter().filter(|(name, change)| {
            let of = change.slot.as_ref().or_else(|| self.base.slot(name));
            of.is_some_and(|slot| slot.pool == pool)
        });
        changed.fold(base, |unsettled, (name, change)| unsettled.with(self.base.slot(name), change.slot.as_ref()))
    }

    /// Returns a free slot that no bot needs now. A hot slot is started, a slot that does not exist yet is made, and
    /// any other slot is ready.
    pub fn return_to_pool(&mut self, name: &SlotName) {
        let Some(slot) = self.slot(name) else { return };
        let Some(pool) = self.pool(&slot.pool) else { return };
        let waits = pool.hot && pool.is_ready(slot);
        let is_made = slot.provider_ref.is_some();
        if (pool.hot && !waits) || (!pool.hot && !is_made && !pool.provisioned_per_bot()) {
            self.put_slot(name, SlotStatus::Creating);
            self.deploy(name, None);
        } else {
            self.put_slot(name, SlotStatus::Idle);
            self.change_slot(name, |slot| slot.description = slot::idle(slot.last_used_at));
        }
    }

    /// Makes a stopped slot idle, so that it may be given out.
    pub fn keep_stopped(&mut self, name: &SlotName) {
        self.put_slot(name, SlotStatus::Idle);
        self.change_slot(name, |slot| {
            slot.stopped = true;
            slot.bots_since_fresh = 0;
            slot.error_message = None;
            slot.description = slot::idle(slot.last_used_at);
        });
        self.add_freed(name);
        let platform = self.slot(name).and_then(|slot| self.pool(&slot.pool)).map(|pool| pool.platform);
        self.touched.extend(platform);
    }

    /// Returns all slots that this plan freed and that no bot got.
    pub fn return_unused(&mut self) {
        for name in std::mem::take(&mut self.to_return) {
            let platform = self.slot(&name).and_then(|slot| self.pool(&slot.pool)).map(|pool| pool.platform);
            // If the platform has no configured pool, the slot is not started.
            if platform.is_some_and(|platform| self.configured_pools(platform).next().is_some()) {
                self.return_to_pool(&name);
            }
        }
    }
}
