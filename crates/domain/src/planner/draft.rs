//! A plan while it is made: the snapshot, with what was decided so far laid over it. Each decision sees those before it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::iter::Peekable;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::Settings;
use super::bot::{AtMeeting, EndedBot, OpenBot};
use super::bugs::{Bug, has};
use super::changes::{Action, Changes, Grant, NewDeployment, NewEvent, ReleasedDeployment, SlotChange};
use super::ids::Ids;
use super::queue::{Order, Queue};
use super::snapshot::{BotCounts, IdleSlot, Numbers, Snapshot, Unsettled};
use crate::event::{Actor, Kind};
use crate::{
    Attributes, BotId, ConnectionId, Platform, Pool, Requirements, Slot, SlotName, SlotStatus, Status, UserId, slot,
};

pub struct Draft<'a> {
    pub base: &'a Snapshot,
    pub settings: &'a Settings,
    pub now: Timestamp,
    pub ids: Ids,
    pub changes: Changes,
    /// Platforms whose queue is to be served.
    pub touched: BTreeSet<Platform>,
    /// Bots that ended in this plan.
    pub ended: HashMap<BotId, EndedBot>,
    counts: HashMap<UserId, BotCounts>,
    meetings: HashMap<AtMeeting, Option<BotId>>,
    /// Bots of this plan that wait; those of the snapshot that this plan has touched are only here.
    queue: Queue,
    last_arrival: i64,
    numbers: HashMap<String, Numbers>,
    /// Slots that this plan has freed or made and not given out yet.
    freed: BTreeSet<SlotName>,
    groups: Vec<Group<'a>>,
}

/// What slots that are alike are ordered by: those with an agent inside first, then the least recently used.
type Turn = (bool, Option<Timestamp>, i64);

/// Free slots of one pool with the same attributes.
struct Group<'a> {
    pool: &'a Pool,
    attributes: Attributes,
    /// Those of the snapshot, as far as they were not looked at.
    idle: Option<Peekable<std::collections::btree_set::Iter<'a, IdleSlot>>>,
    /// Those of this plan.
    freed: BTreeSet<(Turn, SlotName)>,
}

impl<'a> Draft<'a> {
    pub fn new(base: &'a Snapshot, settings: &'a Settings, now: Timestamp, ids: Ids) -> Self {
        Self {
            base,
            settings,
            now,
            ids,
            changes: Changes::default(),
            touched: BTreeSet::new(),
            ended: HashMap::new(),
            counts: HashMap::new(),
            meetings: HashMap::new(),
            queue: Queue::default(),
            last_arrival: base.last_arrival(),
            numbers: HashMap::new(),
            freed: BTreeSet::new(),
            groups: groups(base),
        }
    }

    pub fn uuid(&mut self) -> Uuid {
        self.ids.next_id()
    }

    pub fn after(&self, time: Duration) -> Timestamp {
        self.now.saturating_add(time).unwrap_or(Timestamp::MAX)
    }
}

/// Pools and slots.
impl<'a> Draft<'a> {
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.changes.pools.get(name).or_else(|| self.base.pool(name).map(|state| &state.pool))
    }

    /// The pools of a platform that are in the configuration, in its order.
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

    /// Changes a slot. One that was free and idle stays free.
    pub fn change_slot(&mut self, name: &SlotName, change: impl FnOnce(&mut Slot)) {
        let Some(mut slot) = self.slot(name).cloned() else { return };
        let was_idle = self.is_free(name);
        self.forget_freed(name);
        change(&mut slot);
        let is_new = self.changes.slots.get(name).is_some_and(|change| change.is_new);
        let is_idle = was_idle && slot.status == SlotStatus::Idle;
        self.changes.slots.insert(name.clone(), SlotChange { is_new, slot: Some(slot) });
        if is_idle {
            self.add_freed(name);
        }
    }

    /// Puts a slot into a status, from now on. It is not given out unless it is [`Draft::free_slot`]d.
    pub fn put_slot(&mut self, name: &SlotName, status: SlotStatus) {
        let (now, expires_at) = (self.now, self.expires_at(name));
        self.change_slot(name, |slot| {
            slot.status = status;
            slot.status_since = now;
            if status == SlotStatus::Idle {
                slot.expires_at = expires_at;
            }
        });
        self.forget_freed(name);
    }

    /// Nobody has the slot any more, and the next may. `waits` when an agent is in it that waits for the next.
    pub fn free_slot(&mut self, name: &SlotName, waits: bool) {
        let Some(pool) = self.slot(name).and_then(|slot| self.pool(&slot.pool)) else { return };
        let (hot, platform, attributes) = (pool.hot, pool.platform, pool.attributes_of_new());
        let provisioned_per_bot = pool.provisioned_per_bot();
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
        self.touched.insert(platform);
    }

    pub fn delete_slot(&mut self, name: &SlotName) {
        let Some(slot) = self.slot(name) else { return };
        let (pool, number) = (slot.pool.clone(), slot.number);
        self.forget_freed(name);
        self.changes.slots.insert(name.clone(), SlotChange { is_new: false, slot: None });
        self.change_pool(&pool, |pool| pool.slots -= 1);
        self.numbers(&pool).give_back(number);
    }

    /// A slot that does not exist yet: first only a row that says what is intended.
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
            description: slot::idle(None),
            last_used_at: None,
            error_message: None,
            recovery_attempts: 0,
            created_at: self.now,
            attributes,
            expires_at: None,
            awaits_clearing: false,
        };
        // One that was deleted in this plan has its row still: it is made over.
        self.changes
            .slots
            .insert(name.clone(), SlotChange { is_new: self.base.slot(&name).is_none(), slot: Some(slot) });
        self.add_freed(&name);
        Some(name)
    }

    fn numbers(&mut self, pool: &str) -> &mut Numbers {
        let base = self.base;
        let of = || base.pool(pool).map(|state| state.numbers.clone()).unwrap_or_default();
        self.numbers.entry(pool.to_owned()).or_insert_with(of)
    }

    /// Until when a slot may be given out that is idle from now on.
    fn expires_at(&self, name: &SlotName) -> Option<Timestamp> {
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

    /// A free slot that nobody wants now: a hot one is started, one that is not there yet is made, any other is ready as it
    /// is.
    pub fn return_to_pool(&mut self, name: &SlotName) {
        let Some(slot) = self.slot(name) else { return };
        let Some(pool) = self.pool(&slot.pool) else { return };
        let description = slot::idle(slot.last_used_at);
        let waits = pool.hot && slot.status == SlotStatus::Idle;
        let is_made = slot.provider_ref.is_some();
        if (pool.hot && !waits) || (!pool.hot && !is_made && !pool.provisioned_per_bot()) {
            self.put_slot(name, SlotStatus::Creating);
            self.deploy(name, None);
        } else {
            self.put_slot(name, SlotStatus::Idle);
        }
        self.change_slot(name, |slot| slot.description = description);
    }

    /// Everything that this plan freed and nobody wants.
    pub fn return_unused(&mut self) {
        for name in std::mem::take(&mut self.freed) {
            let platform = self.slot(&name).and_then(|slot| self.pool(&slot.pool)).map(|pool| pool.platform);
            // Where no pool is configured any more nobody would start it.
            if platform.is_some_and(|platform| self.configured_pools(platform).next().is_some()) {
                self.return_to_pool(&name);
            }
        }
    }
}

/// Free slots.
impl<'a> Draft<'a> {
    fn is_free(&self, name: &SlotName) -> bool {
        match self.changes.slots.get(name) {
            Some(_) => self.freed.contains(name),
            None => self.base.slot(name).is_some_and(|slot| slot.status == SlotStatus::Idle),
        }
    }

    fn add_freed(&mut self, name: &SlotName) {
        let Some(slot) = self.slot(name) else { return };
        let Some(state) = self.base.pool(&slot.pool) else { return };
        let waits = state.pool.hot && slot.status == SlotStatus::Idle;
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

    fn forget_freed(&mut self, name: &SlotName) {
        if !self.freed.remove(name) {
            return;
        }
        for group in &mut self.groups {
            group.freed.retain(|(_, freed)| freed != name);
        }
    }

    /// The first of a group that can be given out.
    fn first_of(&mut self, at: usize) -> Option<(Turn, SlotName)> {
        let (base, now, changes) = (self.base, self.now, &self.changes.slots);
        let group = &mut self.groups[at];
        let expired = |name: &SlotName| {
            let slot = changes.get(name).map_or_else(|| base.slot(name), |change| change.slot.as_ref());
            slot.is_some_and(|slot| slot.status == SlotStatus::Idle && slot.expires_at.is_some_and(|end| end <= now))
        };
        let hot = group.pool.hot;
        let idle = group.idle.as_mut().and_then(|idle| {
            while idle
                .next_if(|slot| changes.contains_key(&slot.name) || (expired(&slot.name) && !has(Bug::ExpiryIgnored)))
                .is_some()
            {}
            idle.peek().map(|slot| ((!hot, slot.last_used_at, slot.number), slot.name.clone()))
        });
        let freed = group.freed.iter().find(|(_, name)| !expired(name)).cloned();
        idle.into_iter().chain(freed).min()
    }

    /// The best free slot for a bot: one that is there before one that is provisioned per bot, the smallest that fits, of the
    /// first pool, where an agent waits, the least recently used.
    pub fn best_slot(
        &mut self,
        platform: Platform,
        required: Option<&Requirements>,
        may_provision: bool,
    ) -> Option<SlotName> {
        let mut best = None;
        for at in 0..self.groups.len() {
            let group = &self.groups[at];
            let pool = group.pool;
            if (pool.platform != platform && !has(Bug::PlatformIgnored)) || !pool.is_configured() {
                continue;
            }
            let provisioned = pool.provisioned_per_bot();
            if provisioned && !may_provision {
                continue;
            }
            let required = required.filter(|_| !has(Bug::RequirementsIgnored));
            let Some(mut size) = pool.size_for(required, &group.attributes) else { continue };
            if has(Bug::SizeIgnored) {
                size = Default::default();
            }
            let place = pool.place;
            if let Some((mut turn, name)) = self.first_of(at) {
                if has(Bug::LeastRecentReversed) {
                    turn = self.last_of(at).unwrap_or(turn);
                }
                let order = (provisioned, size, place, turn);
                if best.as_ref().is_none_or(|(known, _)| order < *known) {
                    best = Some((order, self.name_of(at, turn).unwrap_or(name)));
                }
            }
        }
        best.map(|(_, name)| name)
    }

    /// The last of a group: only for a planted bug.
    fn last_of(&self, at: usize) -> Option<Turn> {
        let group = &self.groups[at];
        let idle = group.idle.clone()?.filter(|slot| !self.changes.slots.contains_key(&slot.name));
        idle.last().map(|slot| (!group.pool.hot, slot.last_used_at, slot.number))
    }

    fn name_of(&self, at: usize, turn: Turn) -> Option<SlotName> {
        if has(Bug::LeastRecentReversed) { Some(SlotName::new(&self.groups[at].pool.name, turn.2)) } else { None }
    }

    /// How many idle slots of a pool may be given out, counted no further than `most`.
    pub fn count_idle(&self, pool: &str, most: i64) -> i64 {
        let Some(state) = self.base.pool(pool) else { return 0 };
        let good = |slot: &Slot| slot.status == SlotStatus::Idle && slot.expires_at.is_none_or(|end| end > self.now);
        let unchanged = state.idle().flat_map(|(_, alike)| alike).filter(|idle| {
            !self.changes.slots.contains_key(&idle.name) && self.base.slot(&idle.name).is_some_and(good)
        });
        let changed = self.changes.slots.values().filter_map(|change| change.slot.as_ref());
        let changed = changed.filter(|slot| slot.pool == pool && good(slot)).count();
        let most = usize::try_from(most).unwrap_or(0);
        count(unchanged.take(most).count() + changed)
    }

    /// Idle slots of a pool that this plan has not touched.
    pub fn idle_of(&self, pool: &str) -> impl Iterator<Item = &'a Slot> + '_ {
        let idle = self.base.pool(pool).into_iter().flat_map(|state| state.idle().flat_map(|(_, alike)| alike));
        idle.filter(|idle| !self.changes.slots.contains_key(&idle.name)).filter_map(|idle| self.base.slot(&idle.name))
    }

    /// The attributes that idle slots of a pool have.
    pub fn idle_attributes(&self, pool: &str) -> Vec<Attributes> {
        let base = self.base.pool(pool).into_iter().flat_map(|state| state.idle().map(|(attributes, _)| attributes));
        let mut found: Vec<Attributes> = base.cloned().collect();
        found.sort_by_key(ToString::to_string);
        found
    }
}

/// Bots and the queue.
impl Draft<'_> {
    pub fn bot(&self, id: BotId) -> Option<&OpenBot> {
        match self.changes.bots.get(&id) {
            Some(bot) => bot.as_ref(),
            None => self.base.bot(id),
        }
    }

    pub fn counts(&self, user: UserId) -> BotCounts {
        self.counts.get(&user).copied().unwrap_or_else(|| self.base.counts(user))
    }

    pub fn bot_at(&self, meeting: &AtMeeting) -> Option<BotId> {
        self.meetings.get(meeting).copied().unwrap_or_else(|| self.base.bot_at(meeting))
    }

    pub fn set_bot(&mut self, id: BotId, bot: Option<OpenBot>) {
        if let Some(before) = self.bot(id).cloned() {
            let mut counts = self.counts(before.user);
            counts.add(&before, -1);
            self.counts.insert(before.user, counts);
            if before.status.is_running() {
                self.meetings.insert(before.meeting(), None);
            }
            if before.queued.is_some() {
                self.queue.remove(&before);
            }
        }
        if let Some(bot) = &bot {
            let mut counts = self.counts(bot.user);
            counts.add(bot, 1);
            self.counts.insert(bot.user, counts);
            if bot.status.is_running() {
                self.meetings.insert(bot.meeting(), Some(id));
            }
            if bot.queued.is_some() {
                self.queue.insert(bot);
            }
        }
        self.changes.bots.insert(id, bot);
    }

    pub fn next_arrival(&mut self) -> i64 {
        self.last_arrival += 1;
        self.last_arrival
    }

    fn untouched(&self, bot: BotId) -> bool {
        !self.changes.bots.contains_key(&bot)
    }

    /// The lines of a platform's queue, by their keys.
    pub fn lines(&self, platform: Platform) -> BTreeMap<String, Option<Requirements>> {
        let all = self.base.queue().lines(platform).chain(self.queue.lines(platform));
        all.map(|(key, line)| (key.to_owned(), line.requirements.clone())).collect()
    }

    /// The first of a line after a place.
    pub fn next_in_line(&self, platform: Platform, key: &str, after: Option<Order>) -> Option<(Order, BotId)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let base = self.base.queue().line(platform, key).and_then(|line| {
            line.waiting
                .range((from, Unbounded))
                .find(|(_, bot)| self.untouched(**bot))
                .map(|(order, bot)| (*order, *bot))
        });
        let own = self.queue.line(platform, key);
        let own = own.and_then(|line| line.waiting.range((from, Unbounded)).next().map(|(order, bot)| (*order, *bot)));
        base.into_iter().chain(own).min()
    }

    /// The place of a bot in the queue of its platform; the first is 1.
    pub fn position(&self, bot: &OpenBot) -> i64 {
        let place = bot.order();
        let base = self.base.queue().before(bot.platform, place).filter(|bot| self.untouched(*bot)).count();
        count(1 + base + self.queue.before(bot.platform, place).count())
    }

    /// Under `fair`: the turn of a bot that begins to wait. It is after those of its user that wait already, and with the
    /// first of those of others.
    pub fn fair_turn(&self, platform: Platform, priority: i64, user: UserId) -> i64 {
        let base = self.base.queue().turns(platform, priority, user).find(|(_, bot)| self.untouched(*bot));
        let own = self.queue.turns(platform, priority, user).next();
        let after_own = base.into_iter().chain(own).map(|(turn, _)| turn + 1).max();
        let lines = self.lines(platform);
        let first = lines.keys().filter_map(|key| {
            let from = Order { priority, turn: i64::MIN, arrival: i64::MIN };
            self.next_in_line(platform, key, Some(from))
                .map(|(order, _)| order)
                .filter(|order| order.priority == priority)
        });
        let first = first.map(|order| order.turn).min();
        after_own.into_iter().chain(first).max().unwrap_or(0)
    }

    /// Gives a free slot to a bot. One with an agent waiting inside needs no deployment.
    pub fn give(&mut self, name: &SlotName, bot: BotId) {
        let Some(slot) = self.slot(name) else { return };
        let Some(pool) = self.pool(&slot.pool) else { return };
        let (pool_name, keeps_some) = (pool.name.clone(), pool.min_idle > 0);
        let is_awaited = pool.hot && slot.status == SlotStatus::Idle;
        let is_made = slot.provider_ref.is_some();
        let now = self.now;
        self.put_slot(name, if is_awaited || is_made { SlotStatus::Busy } else { SlotStatus::Creating });
        if has(Bug::SlotStaysFree) {
            self.add_freed(name);
        }
        self.change_slot(name, |slot| {
            slot.bot_id = Some(bot);
            slot.last_used_at = Some(now);
            slot.bots_since_fresh += 1;
            slot.error_message = None;
            slot.description = slot::busy(bot, now);
        });
        if keeps_some {
            self.act(Action::RefillPools);
        }
        if is_awaited {
            self.act(Action::WakeAgent(name.clone()));
        } else if !has(Bug::DeploymentForgotten) {
            self.deploy(name, Some(bot));
        }
        let connection = ConnectionId(self.uuid());
        let Some(mut placed) = self.bot(bot).cloned() else { return };
        let is_new = self.base.bot(bot).is_none();
        placed.pool = Some(pool_name.clone());
        placed.slot = Some(name.clone());
        placed.connection = Some(connection);
        placed.wait_until = placed.queued.as_ref().map(|queued| queued.timeout_at).or(placed.wait_until);
        if !has(Bug::StaysInQueue) {
            placed.queued = None;
        }
        let user = placed.user;
        self.set_bot(bot, Some(placed));
        let grant = Grant { bot, slot: name.clone(), pool: pool_name, connection, is_awaited };
        if !is_new {
            self.tell(bot, user, Kind::Assigned, Some(name.to_string()), Actor::Greenroom);
            self.changes.grants.push(grant);
        } else {
            self.tell_created(bot, user, Some(name));
            if let Some(new) = self.changes.new_bots.iter_mut().rev().find(|new| new.id == bot) {
                new.is_awaited = is_awaited;
            }
        }
    }
}

/// What else is left behind.
impl Draft<'_> {
    /// Puts a slot before the gate of its pool's host.
    pub fn deploy(&mut self, name: &SlotName, bot: Option<BotId>) {
        let Some(pool) = self.slot(name).and_then(|slot| self.pool(&slot.pool)) else { return };
        let (pool, host) = (pool.name.clone(), pool.host.clone());
        let timeout_at = self.after(self.settings.deploy_timeout);
        self.changes.deployments.push(NewDeployment { slot: name.clone(), pool, host, bot, timeout_at });
        self.act(Action::PassGate);
    }

    pub fn cancel_deployment(&mut self, slot: &SlotName) {
        self.changes.deployments.retain(|deployment| deployment.slot != *slot);
        self.changes.cancelled_deployments.push(slot.clone());
        self.act(Action::PassGate);
    }

    pub fn release_deployment(&mut self, slot: &SlotName, bot: Option<BotId>, holder: Uuid) {
        self.changes.released_deployments.push(ReleasedDeployment { slot: slot.clone(), bot, holder });
        self.act(Action::PassGate);
    }

    pub fn tell(&mut self, bot_id: BotId, user_id: UserId, kind: Kind, reason: Option<String>, actor: Actor) {
        self.changes.events.push(NewEvent { bot_id, user_id, kind, from: None, to: None, reason, actor });
    }

    /// A bot was made; with its slot, if it got one at once. Told when that is known: what freed the slot was told before.
    pub fn tell_created(&mut self, bot_id: BotId, user_id: UserId, slot: Option<&SlotName>) {
        if has(Bug::EventForgotten) {
            return;
        }
        self.changes.events.push(NewEvent {
            bot_id,
            user_id,
            kind: Kind::Created,
            from: None,
            to: Some(Status::Reserved),
            reason: slot.map(ToString::to_string),
            actor: Actor::User,
        });
    }

    /// Has something done after the commit; what was asked for already is not done twice.
    pub fn act(&mut self, action: Action) {
        let once = matches!(action, Action::PassGate | Action::WatchQueue | Action::RefillPools);
        if !once || !self.changes.actions.contains(&action) {
            self.changes.actions.push(action);
        }
    }
}

/// The free slots of all pools, before anything was decided.
fn groups(base: &Snapshot) -> Vec<Group<'_>> {
    let mut groups = Vec::new();
    for state in base.pools() {
        for (attributes, alike) in state.idle() {
            let idle = Some(alike.iter().peekable());
            groups.push(Group { pool: &state.pool, attributes: attributes.clone(), idle, freed: BTreeSet::new() });
        }
    }
    groups
}

pub fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
