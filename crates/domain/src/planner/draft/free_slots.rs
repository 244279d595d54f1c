//! The slots that can be given out, and the choice of the best one for a bot.

use std::collections::BTreeSet;
use std::iter::Peekable;

use jiff::Timestamp;

use crate::planner::bot::OpenBot;
use crate::planner::bugs::{Bug, has};
use crate::planner::snapshot::{IdleSlot, Snapshot};
use crate::{Attributes, Pool, Slot, SlotName, SlotStatus};

use super::{Draft, count};

/// The order of similar slots: those with an agent first, then the least recently used.
pub type Turn = (bool, Option<Timestamp>, i64);

/// Free slots of one pool with the same attributes.
pub struct Group<'a> {
    pub(super) pool: &'a Pool,
    attributes: Attributes,
    /// The slots of the snapshot that were not examined yet.
    idle: Option<Peekable<std::collections::btree_set::Iter<'a, IdleSlot>>>,
    /// The slots that this plan freed.
    freed: BTreeSet<(Turn, SlotName)>,
}

impl<'a> Draft<'a> {
    pub(super) fn is_free(&self, name: &SlotName) -> bool {
        match self.changes.slots.get(name) {
            Some(_) => self.freed.contains(name),
            None => self.base.slot(name).is_some_and(|slot| slot.status == SlotStatus::Idle),
        }
    }

    pub(super) fn add_freed(&mut self, name: &SlotName) {
        let Some(slot) = self.slot(name) else { return };
        let Some(state) = self.base.pool(&slot.pool) else { return };
        let waits = state.pool.hot && state.pool.is_ready(slot);
        let turn = (!waits, slot.last_used_at, slot.number);
        let attributes = slot.attributes.clone();
        let alike = |group: &&mut Group| group.pool.name == state.pool.name && group.attributes == attributes;
        match self.groups.iter_mut().find(alike) {
            Some(group) => drop(group.freed.insert((turn, name.clone()))),
            None => {
                let freed = [(turn, name.clone())].into();
                self.groups.push(Group { pool: &state.pool, attributes, idle: None, freed });
            }
        }
        self.freed.insert(name.clone());
    }

    pub(super) fn forget_freed(&mut self, name: &SlotName) {
        if !self.freed.remove(name) {
            return;
        }
        for group in &mut self.groups {
            group.freed.retain(|(_, freed)| freed != name);
        }
    }

    /// The first slot of a group that can be given out.
    fn first_of(&mut self, at: usize) -> Option<(Turn, SlotName)> {
        let (base, now, changes) = (self.base, self.now, &self.changes.slots);
        let group = &mut self.groups[at];
        let pool = group.pool;
        let expired = |name: &SlotName| {
            let slot = changes.get(name).map_or_else(|| base.slot(name), |change| change.slot.as_ref());
            slot.is_some_and(|slot| slot.status == SlotStatus::Idle && pool.has_expired(slot, now))
        };
        let hot = pool.hot;
        let idle = group.idle.as_mut().and_then(|idle| {
            while idle
                .next_if(|slot| changes.contains_key(&slot.name) || (expired(&slot.name) && !has(Bug::ExpiryIgnored)))
                .is_some()
            {}
            idle.peek().map(|slot| ((!hot || slot.stopped, slot.last_used_at, slot.number), slot.name.clone()))
        });
        let freed = group.freed.iter().find(|(_, name)| !expired(name)).cloned();
        idle.into_iter().chain(freed).min()
    }

    /// The best free slot for a bot. In this order: an existing slot before one that is provisioned per bot, the
    /// smallest size, the first pool, a waiting agent, the least recently used.
    pub fn best_slot(&mut self, bot: &OpenBot, may_provision: bool) -> Option<SlotName> {
        let mut best = None;
        for at in 0..self.groups.len() {
            let group = &self.groups[at];
            let pool = group.pool;
            if (pool.platform != bot.platform && !has(Bug::PlatformIgnored)) || !pool.is_configured() {
                continue;
            }
            if !bot.allows(pool) && !has(Bug::PoolIgnored) {
                continue;
            }
            let provisioned = pool.provisioned_per_bot();
            if provisioned && !may_provision {
                continue;
            }
            let required = bot.requirements.as_ref().filter(|_| !has(Bug::RequirementsIgnored));
            let Some(mut size) = pool.size_for(required, &group.attributes) else { continue };
            if has(Bug::SizeIgnored) {
                size = Default::default();
            }
            let position = pool.fill_order;
            if let Some((mut turn, name)) = self.first_of(at) {
                if has(Bug::LeastRecentReversed) {
                    turn = self.last_of(at).unwrap_or(turn);
                }
                let order = (provisioned, size, position, turn);
                if best.as_ref().is_none_or(|(known, _)| order < *known) {
                    best = Some((order, self.name_of(at, turn).unwrap_or(name)));
                }
            }
        }
        best.map(|(_, name)| name)
    }

    /// The last slot of a group: only for a planted bug.
    fn last_of(&self, at: usize) -> Option<Turn> {
        let group = &self.groups[at];
        let mut idle = group.idle.clone()?.filter(|slot| !self.changes.slots.contains_key(&slot.name));
        idle.next_back().map(|slot| (!group.pool.hot || slot.stopped, slot.last_used_at, slot.number))
    }

    fn name_of(&self, at: usize, turn: Turn) -> Option<SlotName> {
        if has(Bug::LeastRecentReversed) { Some(SlotName::new(&self.groups[at].pool.name, turn.2)) } else { None }
    }

    /// How many idle slots of a pool can be given out without a start. Counts up to `most`.
    pub fn count_idle(&self, pool: &str, most: i64) -> i64 {
        let Some(state) = self.base.pool(pool) else { return 0 };
        let good = |slot: &Slot| state.pool.is_ready(slot) && !state.pool.has_expired(slot, self.now);
        let unchanged = state.idle().flat_map(|(_, alike)| alike).filter(|idle| {
            !self.changes.slots.contains_key(&idle.name) && self.base.slot(&idle.name).is_some_and(good)
        });
        let changed = self.changed_idle(pool).filter(|slot| good(slot)).count();
        let most = usize::try_from(most).unwrap_or(0);
        count(unchanged.take(most).count() + changed)
    }

    /// Idle slots of a pool.
    pub fn idle_of(&self, pool: &str) -> impl Iterator<Item = &Slot> {
        let idle = self.base.pool(pool).into_iter().flat_map(|state| state.idle().flat_map(|(_, alike)| alike));
        let idle = idle.filter(|idle| !self.changes.slots.contains_key(&idle.name));
        idle.filter_map(|idle| self.base.slot(&idle.name)).chain(self.changed_idle(pool))
    }

    /// The first `most` slots of a hot pool that have waited for a bot since `since` or longer, longest first.
    pub fn idle_since(&self, pool: &str, since: Timestamp, most: usize) -> Vec<SlotName> {
        let Some(state) = self.base.pool(pool) else { return Vec::new() };
        let unchanged = state.idle().flat_map(|(_, alike)| alike);
        let unchanged = unchanged.filter(|idle| !idle.stopped && idle.idle_since <= since);
        let unchanged = unchanged.filter(|idle| !self.changes.slots.contains_key(&idle.name));
        let unchanged = unchanged.filter_map(|idle| self.base.slot(&idle.name));
        let changed = self.changed_idle(pool).filter(|slot| !slot.stopped && slot.status_since <= since);
        let mut found: Vec<&Slot> =
            unchanged.chain(changed).filter(|slot| !state.pool.has_expired(slot, self.now)).collect();
        found.sort_by_key(|slot| (slot.status_since, slot.number));
        found.into_iter().take(most).map(|slot| slot.name.clone()).collect()
    }

    /// The stopped slots of a hot pool, least recently used first.
    pub fn idle_stopped(&self, pool: &str) -> Vec<SlotName> {
        let Some(state) = self.base.pool(pool).filter(|state| state.pool.hot) else { return Vec::new() };
        let unchanged = state.idle().flat_map(|(_, alike)| alike).filter(|idle| idle.stopped);
        let unchanged = unchanged.filter(|idle| !self.changes.slots.contains_key(&idle.name));
        let unchanged = unchanged.filter_map(|idle| self.base.slot(&idle.name));
        let changed = self.changed_idle(pool).filter(|slot| slot.stopped);
        let mut found: Vec<&Slot> =
            unchanged.chain(changed).filter(|slot| !state.pool.has_expired(slot, self.now)).collect();
        found.sort_by_key(|slot| (slot.last_used_at, slot.number));
        found.into_iter().map(|slot| slot.name.clone()).collect()
    }

    /// The least recently used slot of a hot pool that has a waiting agent and an image or command that differs from
    /// the pool's configuration.
    pub fn idle_outdated(&self, pool: &str) -> Option<SlotName> {
        let state = self.base.pool(pool)?;
        let is_outdated = |slot: &&Slot| state.pool.is_outdated(slot) && !state.pool.has_expired(slot, self.now);
        if !state.has_outdated() && !self.changed_idle(pool).any(|slot| is_outdated(&slot)) {
            return None;
        }
        let oldest = self.idle_of(pool).filter(is_outdated).min_by_key(|slot| (slot.last_used_at, slot.number));
        oldest.map(|slot| slot.name.clone())
    }

    /// Idle slots of a pool with other attributes than these.
    pub fn idle_unlike(&self, pool: &str, attributes: &Attributes) -> impl Iterator<Item = &Slot> {
        let groups = self.base.pool(pool).into_iter().flat_map(|state| state.idle());
        let idle = groups.filter(move |(of, _)| *of != attributes).flat_map(|(_, alike)| alike);
        let idle = idle.filter(|idle| !self.changes.slots.contains_key(&idle.name));
        let idle = idle.filter_map(|idle| self.base.slot(&idle.name));
        idle.chain(self.changed_idle(pool).filter(move |slot| slot.attributes != *attributes))
    }

    /// Idle slots of a pool that this plan has changed.
    fn changed_idle(&self, pool: &str) -> impl Iterator<Item = &Slot> {
        let changed = self.changes.slots.values().filter_map(|change| change.slot.as_ref());
        changed
            .filter(|_| !has(Bug::WarmLooksBack))
            .filter(move |slot| slot.pool == pool && slot.status == SlotStatus::Idle)
    }

    /// The attributes of a pool's idle slots.
    pub fn idle_attributes(&self, pool: &str) -> Vec<Attributes> {
        let groups = self.base.pool(pool).into_iter().flat_map(|state| state.idle());
        let unchanged =
            groups.filter(|(_, alike)| alike.iter().any(|idle| !self.changes.slots.contains_key(&idle.name)));
        let mut found: Vec<Attributes> = unchanged.map(|(attributes, _)| attributes.clone()).collect();
        found.extend(self.changed_idle(pool).map(|slot| slot.attributes.clone()));
        found.sort_by_cached_key(ToString::to_string);
        found.dedup();
        found
    }
}

/// The free slots of all pools, before the plan changes any.
pub fn groups(base: &Snapshot) -> Vec<Group<'_>> {
    let mut groups = Vec::new();
    for state in base.pools() {
        for (attributes, alike) in state.idle() {
            let idle = Some(alike.iter().peekable());
            groups.push(Group { pool: &state.pool, attributes: attributes.clone(), idle, freed: BTreeSet::new() });
        }
    }
    groups
}
