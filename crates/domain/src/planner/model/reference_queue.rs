//! The simple rules for assignments, returned slots, and slots that are kept warm.

use super::reference::{Batch, NEW};
use crate::event::{Kind, StartKind};
use crate::planner::bot::OpenBot;
use crate::pool::Size;
use crate::requirements::fits;
use crate::{Attributes, BotId, PROBE_USER, Platform, Pool, Requirements, Slot, SlotName, SlotStatus, slot};

pub fn attributes_of_new(pool: &Pool) -> Attributes {
    match pool.attribute_sets.first() {
        Some(first) if !pool.provisioned_per_bot() => first.clone(),
        _ => Attributes::default(),
    }
}

/// The size of a slot for a bot, if it fits.
fn size(pool: &Pool, slot: &Attributes, required: Option<&Requirements>) -> Option<Size> {
    let sets: &[Attributes] =
        if pool.provisioned_per_bot() { &pool.attribute_sets } else { std::slice::from_ref(slot) };
    sets.iter().filter(|set| fits(required, set)).map(|set| (set.usage_class, set.cpu, set.mem)).min()
}

/// The pool that a bot probes, if it is a probe.
pub fn probed(bot: &OpenBot) -> Option<String> {
    if bot.user == PROBE_USER { bot.pool.clone() } else { None }
}

impl Batch<'_> {
    /// Gives each waiting bot, in order, the best slot for it.
    pub fn serve(&mut self, platform: Platform) {
        if !self.all.pools.iter().any(|pool| pool.platform == platform && pool.fill_order.is_some()) {
            return;
        }
        let mut runners = self.runners.clone();
        // The pool of a probe, and the requirements.
        type Needs = (Option<String>, Option<Requirements>);
        let mut tried: Vec<Needs> = Vec::new();
        // A bot gets nothing if an earlier bot with the same needs got nothing.
        let mut in_vain: Vec<Needs> = Vec::new();
        let mut given = 0;
        for id in self.all.queue(platform) {
            if given == crate::planner::MOST_AT_ONCE {
                self.expected_plan.unfinished = true;
                return;
            }
            let Some(bot) = self.all.bot(id).cloned() else { continue };
            let needs = (probed(&bot), bot.requirements.clone());
            if in_vain.contains(&needs) {
                continue;
            }
            let required = bot.requirements.as_ref();
            let not_before = bot.queued.as_ref().and_then(|queued| queued.not_before);
            let runner = runners.iter().position(|runner| fits(required, runner));
            let may_provision = match not_before {
                None => true,
                Some(time) => runner.is_some() || (time <= self.now && !tried.contains(&needs)),
            };
            let Some(slot) = self.best(&bot, may_provision).or_else(|| self.grow(&bot, may_provision)) else {
                in_vain.push(needs);
                continue;
            };
            let of_runner = self.all.slot(&slot).and_then(|slot| self.all.pool(&slot.pool));
            if of_runner.is_some_and(|pool| pool.provisioned_per_bot()) {
                match (runner, not_before) {
                    (Some(at), _) => drop(runners.swap_remove(at)),
                    (None, Some(_)) => tried.push(needs),
                    (None, None) => {}
                }
            }
            self.give(&slot, id);
            given += 1;
        }
    }

    /// Whether the slot may be given out.
    fn is_free(&self, slot: &Slot) -> bool {
        let expires = self.all.pool(&slot.pool).is_some_and(|pool| pool.expire_after_ms.is_some());
        let is_good = !expires || slot.expires_at.is_none_or(|end| end > self.now);
        let idle = slot.status == SlotStatus::Idle && is_good;
        idle || (self.loose.contains(&slot.name) && slot.status == SlotStatus::Creating)
    }

    fn best(&self, bot: &OpenBot, may_provision: bool) -> Option<SlotName> {
        let mut fitting = Vec::new();
        for slot in self.all.slots.iter().filter(|slot| self.is_free(slot)) {
            let Some(pool) = self.all.pool(&slot.pool) else { continue };
            if probed(bot).is_some_and(|name| name != pool.name) {
                continue;
            }
            let Some(fill_order) = pool.fill_order.filter(|_| pool.platform == bot.platform) else {
                continue;
            };
            let provisioned = pool.provisioned_per_bot();
            let Some(size) = size(pool, &slot.attributes, bot.requirements.as_ref()) else { continue };
            let to_start = !(pool.hot && slot.status == SlotStatus::Idle && !slot.stopped);
            if may_provision || !provisioned {
                fitting.push((
                    (provisioned, size, fill_order, to_start, slot.last_used_at, slot.number),
                    slot.name.clone(),
                ));
            }
        }
        fitting.into_iter().min().map(|(_, name)| name)
    }

    /// Makes a new slot in the pool whose new slots are the smallest that fit.
    fn grow(&mut self, bot: &OpenBot, may_provision: bool) -> Option<SlotName> {
        let mut fitting = Vec::new();
        for pool in self.all.pools.iter().filter(|pool| pool.platform == bot.platform) {
            let provisioned = pool.provisioned_per_bot();
            let size = size(pool, &attributes_of_new(pool), bot.requirements.as_ref());
            let has_room = pool.slots < pool.max_slots && probed(bot).is_none_or(|name| name == pool.name);
            if let (Some(fill_order), Some(size), true, true) =
                (pool.fill_order, size, has_room, may_provision || !provisioned)
            {
                fitting.push(((provisioned, size, fill_order), pool.name.clone()));
            }
        }
        let (_, pool) = fitting.into_iter().min()?;
        Some(self.make(&pool))
    }

    fn make(&mut self, name: &str) -> SlotName {
        let of_pool: Vec<i64> =
            self.all.slots.iter().filter(|slot| slot.pool == name).map(|slot| slot.number).collect();
        let number = (1..).find(|number| !of_pool.contains(number)).unwrap_or(0);
        let attributes = self.all.pool(name).map(attributes_of_new).unwrap_or_default();
        if let Some(pool) = self.pool_mut(name) {
            pool.slots += 1;
        }
        let slot = Slot {
            name: SlotName::new(name, number),
            pool: name.to_owned(),
            number,
            status: SlotStatus::Creating,
            status_since: self.now,
            bot_id: None,
            incarnation: NEW,
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
        let made = slot.name.clone();
        self.all.slots.push(slot);
        made
    }

    fn give(&mut self, name: &SlotName, id: BotId) {
        let Some(slot) = self.all.slot(name).cloned() else { return };
        let Some(pool) = self.all.pool(&slot.pool).cloned() else { return };
        let awaited = pool.hot && slot.status == SlotStatus::Idle && !slot.stopped;
        let runs_there = awaited || slot.provider_ref.is_some();
        let start_kind = if awaited {
            StartKind::Hot
        } else if runs_there {
            StartKind::Stopped
        } else {
            StartKind::Cold
        };
        self.put(name, if runs_there { SlotStatus::Busy } else { SlotStatus::Creating });
        let now = self.now;
        if let Some(slot) = self.slot_mut(name) {
            slot.bot_id = Some(id);
            slot.last_used_at = Some(now);
            slot.bots_since_fresh += 1;
            slot.error_message = None;
            slot.description = slot::busy(id, now);
        }
        self.expected_plan.refill |= pool.min_idle > 0;
        if awaited {
            self.wake(name);
        } else {
            self.ask(name, Some(id));
        }
        if let Some(bot) = self.bot_mut(id) {
            bot.pool = Some(pool.name.clone());
            bot.slot = Some(name.clone());
            bot.connection = Self::new_connection();
            bot.wait_until = bot.queued.take().map(|queued| queued.timeout_at);
        }
        match self.expected_plan.new_bots.iter_mut().find(|(_, new, _)| *new == id) {
            Some(new) => {
                new.2 = awaited;
                self.tells_created(id, Some((name.to_string(), start_kind)));
            }
            None => {
                self.expected_plan.grants.push((id, name.clone(), awaited));
                self.tells(id, Kind::Assigned, name.to_string(), Some(start_kind));
            }
        }
    }

    /// Makes the free slots ready that no bot got.
    pub fn return_loose(&mut self) {
        for name in self.loose.clone() {
            let Some(slot) = self.all.slot(&name).cloned() else { continue };
            let Some(pool) = self.all.pool(&slot.pool).cloned() else { continue };
            let served = |other: &Pool| other.platform == pool.platform && other.fill_order.is_some();
            if self.all.pools.iter().any(served) {
                self.make_ready(&slot, &pool);
            }
        }
        self.loose.clear();
    }

    fn make_ready(&mut self, slot: &Slot, pool: &Pool) {
        let is_ready = if pool.hot {
            slot.status == SlotStatus::Idle && !slot.stopped
        } else {
            slot.provider_ref.is_some() || pool.provisioned_per_bot()
        };
        self.put(&slot.name, if is_ready { SlotStatus::Idle } else { SlotStatus::Creating });
        if !is_ready {
            self.ask(&slot.name, None);
        } else if let Some(slot) = self.slot_mut(&slot.name) {
            slot.description = slot::idle(slot.last_used_at);
        }
    }

    pub fn keep_warm(&mut self, name: &str) {
        let Some(pool) = self.all.pool(name).filter(|pool| pool.fill_order.is_some()).cloned() else { return };
        let provisioned = pool.provisioned_per_bot();
        let of_pool =
            |batch: &Self| -> Vec<Slot> { batch.all.slots.iter().filter(|slot| slot.pool == name).cloned().collect() };
        let now = self.now;
        let expires = pool.expire_after_ms.is_some();
        let is_good = |slot: &Slot| !expires || slot.expires_at.is_none_or(|end| end > now);
        let is_idle = |slot: &&Slot| slot.status == SlotStatus::Idle;
        let waits = |slot: &Slot| is_good(slot) && !(pool.hot && slot.stopped);
        let count = |of: usize| of as i64;
        if !provisioned && pool.min_idle > 0 {
            let slots = of_pool(self);
            let ready = slots.iter().filter(is_idle).filter(|slot| waits(slot)).count()
                + slots.iter().filter(|slot| slot.status == SlotStatus::Creating && slot.bot_id.is_none()).count();
            let broken = slots.iter().filter(|slot| slot.status == SlotStatus::Error).count();
            let hopeless = (count(broken) - pool.min_idle).max(0);
            let missing = pool.min_idle - count(ready) - hopeless;
            for _ in 0..missing {
                self.one_more(name);
            }
        }
        let new = attributes_of_new(&pool);
        let slots = of_pool(self);
        let mut idle: Vec<&Slot> = slots.iter().filter(is_idle).collect();
        if !provisioned {
            let mut sets: Vec<Attributes> = idle.iter().map(|slot| slot.attributes.clone()).collect();
            sets.sort_by_key(ToString::to_string);
            sets.dedup();
            sets.retain(|set| *set != new);
            sets.insert(0, new.clone());
            if let Some(pool) = self.pool_mut(name) {
                pool.attribute_sets = sets;
            }
        }
        let draining = slots.iter().filter(|slot| slot.status == SlotStatus::Draining).count();
        let excess = (count(slots.len()) - count(draining) - pool.max_slots).max(0);
        idle.sort_by_key(|slot| (slot.attributes == new, slot.last_used_at, slot.number));
        let good = idle.iter().filter(|slot| is_good(slot)).take(usize::try_from(excess).unwrap_or(0));
        let mut leaving: Vec<SlotName> = good.map(|slot| slot.name.clone()).collect();
        leaving.extend(idle.iter().filter(|slot| !is_good(slot)).map(|slot| slot.name.clone()));
        let unsettled = slots.iter().any(|slot| {
            let on_its_way = matches!(slot.status, SlotStatus::Creating | SlotStatus::Error | SlotStatus::Draining);
            on_its_way || slot.awaits_clearing
        });
        if leaving.is_empty() && !provisioned && !unsettled {
            let other = idle.iter().filter(|slot| is_good(slot) && slot.attributes != new);
            leaving.extend(other.take(1).map(|slot| slot.name.clone()));
        }
        for slot in leaving {
            self.put(&slot, SlotStatus::Draining);
            self.warm.let_go += 1;
        }
        if pool.hot {
            self.stop_unneeded(&pool);
            self.replace_one(&pool);
        }
    }

    /// Slots of a hot pool that have a waiting agent and may be given out.
    fn waiting(&self, pool: &Pool) -> Vec<Slot> {
        let is_good = |slot: &Slot| pool.expire_after_ms.is_none() || slot.expires_at.is_none_or(|end| end > self.now);
        let waits = |slot: &&Slot| slot.pool == pool.name && slot.status == SlotStatus::Idle && !slot.stopped;
        self.all.slots.iter().filter(waits).filter(|slot| is_good(slot)).cloned().collect()
    }

    /// Makes one more slot ready: a stopped one, or a new one. Returns false if neither is possible.
    fn one_more(&mut self, name: &str) -> bool {
        let Some(pool) = self.all.pool(name).cloned() else { return false };
        let is_good = |slot: &Slot| pool.expire_after_ms.is_none() || slot.expires_at.is_none_or(|end| end > self.now);
        let of_pool = self.all.slots.iter().filter(|slot| slot.pool == name && slot.status == SlotStatus::Idle);
        let stopped = of_pool.filter(|slot| pool.hot && slot.stopped && is_good(slot));
        let stopped = stopped.min_by_key(|slot| (slot.last_used_at, slot.number)).cloned();
        let slot = match stopped {
            Some(slot) => Some(slot),
            None if pool.slots < pool.max_slots => {
                let made = self.make(name);
                self.all.slot(&made).cloned()
            }
            None => None,
        };
        let Some(slot) = slot else { return false };
        self.make_ready(&slot, &pool);
        self.warm.made += 1;
        true
    }

    /// Stops slots that waited longer than the pool allows, while enough remain.
    fn stop_unneeded(&mut self, pool: &Pool) {
        let Some(timeout) = pool.idle_timeout_ms else { return };
        let mut waiting = self.waiting(pool);
        let spare = waiting.len() as i64 - pool.min_idle;
        let since = self.after_ms(-timeout);
        waiting.retain(|slot| slot.status_since <= since);
        waiting.sort_by_key(|slot| (slot.status_since, slot.number));
        for slot in waiting.into_iter().take(usize::try_from(spare).unwrap_or(0)) {
            self.put(&slot.name, SlotStatus::Draining);
            if let Some(slot) = self.slot_mut(&slot.name) {
                slot.stopped = true;
            }
            self.ends_tokens(&slot.name);
            self.warm.stopped += 1;
        }
    }

    /// Replaces one slot with an old image, while no other slot is in change.
    fn replace_one(&mut self, pool: &Pool) {
        let of_pool = |slot: &&Slot| slot.pool == pool.name;
        let is_unsettled = |slot: &Slot| {
            slot.status == SlotStatus::Error || (slot.status == SlotStatus::Creating && slot.bot_id.is_none())
        };
        if self.all.slots.iter().filter(of_pool).any(is_unsettled) {
            return;
        }
        let waiting = self.waiting(pool);
        let outdated = waiting.iter().filter(|slot| pool.recipe.is_some() && slot.recipe != pool.recipe);
        let outdated = outdated.min_by_key(|slot| (slot.last_used_at, slot.number));
        // A ready command is replaced at three quarters of the age that it may reach.
        let aged = waiting.iter().filter(|slot| match (pool.ready_timeout_ms, pool.max_warm_age_ms) {
            (Some(_), Some(age)) if pool.hot => slot.status_since <= self.after_ms(-age / 4 * 3),
            _ => false,
        });
        let aged = aged.min_by_key(|slot| (slot.status_since, slot.number));
        let is_outdated = outdated.is_some();
        let Some(old) = outdated.or(aged).cloned() else { return };
        let ready = waiting.len() as i64;
        let unused_since = old.last_used_at.unwrap_or(old.created_at);
        let is_unused = pool.idle_timeout_ms.is_some_and(|timeout| unused_since <= self.after_ms(-timeout));
        if !is_outdated && ready > pool.min_idle && is_unused {
            self.put(&old.name, SlotStatus::Draining);
            if let Some(slot) = self.slot_mut(&old.name) {
                slot.stopped = true;
            }
            self.ends_tokens(&old.name);
            self.warm.stopped += 1;
            return;
        }
        if ready <= pool.min_idle && self.one_more(&pool.name) {
            return;
        }
        if ready >= pool.min_idle {
            self.leaves_gate(&old.name);
            self.comes_free(&old.name, false);
            if let Some(slot) = self.all.slot(&old.name).cloned() {
                self.make_ready(&slot, pool);
            }
            self.warm.replaced += 1;
        }
    }
}
