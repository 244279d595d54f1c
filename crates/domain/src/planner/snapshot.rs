//! The input of placement, in memory: pools and their slots, open bots and the queue, users and their limits. A plan
//! only reads it; [`Snapshot::apply`] applies the changes that were written.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use uuid::Uuid;

use super::bot::{AtMeeting, EndedBot, OpenBot};
use super::changes::{Changes, GateState};
use super::queue::Queue;
use crate::{Attributes, BotId, KeyId, Platform, Pool, Slot, SlotName, SlotStatus, UserId};

/// The input of placement.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pools: BTreeMap<String, PoolState>,
    /// The pools of each platform: configured pools first, in the order of the configuration.
    by_platform: BTreeMap<Platform, Vec<String>>,
    slots: HashMap<SlotName, Slot>,
    bots: HashMap<BotId, OpenBot>,
    /// How many running and stopping bots a user has.
    counts: HashMap<UserId, BotCounts>,
    meetings: HashMap<AtMeeting, BotId>,
    queue: Queue,
    last_arrival: i64,
    /// Users that made a request before. Other users are read before a plan.
    users: HashMap<UserId, User>,
    keys: HashMap<(UserId, String), KnownKey>,
    /// The rows that were read for one plan.
    pub facts: Facts,
}

/// A pool, with indexes of its slots.
#[derive(Clone, Debug)]
pub struct PoolState {
    /// The pool.
    pub pool: Pool,
    /// Idle slots by attributes: slots that are not stopped first, then the least recently used.
    idle: HashMap<Attributes, BTreeSet<IdleSlot>>,
    /// How many slots with a waiting agent have each fingerprint of start parameters.
    recipes: HashMap<Option<String>, usize>,
    /// The numbers that its slots have.
    pub numbers: Numbers,
    /// The slots that are being made without a bot, are in error, or are draining.
    pub unsettled: Unsettled,
}

/// An idle slot, in the order in which slots are given out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdleSlot {
    /// Whether nothing runs in it.
    pub stopped: bool,
    /// When a bot was last given to it.
    pub last_used_at: Option<Timestamp>,
    /// The number in its pool.
    pub number: i64,
    /// The name.
    pub name: SlotName,
    /// When it became idle.
    pub idle_since: Timestamp,
}

/// Counts of a pool's slots that are in a transitional state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsettled {
    /// In their first start, with or without a bot.
    pub creating: i64,
    /// Being made without a bot.
    pub making: i64,
    /// In error.
    pub error: i64,
    /// Draining.
    pub draining: i64,
    /// All of these, and those that are being made for a bot or wait to be cleared.
    pub all: i64,
}

/// Which numbers of a pool are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    highest: i64,
    /// Free numbers below the highest.
    gaps: BTreeSet<i64>,
}

/// The numbers of a user's bots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BotCounts {
    /// Running.
    pub running: i64,
    /// Leaving.
    pub stopping: i64,
}

/// The facts about a user that placement needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    /// How many bots of the user may run at the same time.
    pub max_concurrent_bots: i64,
    /// The lowest priority number that a request may give.
    pub min_priority: i64,
    /// The API keys, and when they expire.
    pub api_keys: Vec<(KeyId, Option<Timestamp>)>,
}

/// The request that was made with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    /// A hash of the request.
    pub body_hash: String,
    /// The bot that was reserved.
    pub bot_id: BotId,
}

/// Rows that are not kept in memory, read for the jobs of one plan.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Bots that have ended.
    pub ended: HashMap<BotId, EndedBot>,
    /// Deployments of slots.
    pub deployments: HashMap<SlotName, Deployment>,
}

/// The state of a slot's deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// The bot, if the deployment is for one.
    pub bot: Option<BotId>,
    /// Its state at the gate.
    pub state: GateState,
    /// The process that works on it.
    pub holder: Option<Uuid>,
}

impl Numbers {
    fn take(&mut self, number: i64) {
        if number > self.highest {
            self.gaps.extend(self.highest + 1..number);
            self.highest = number;
        } else {
            self.gaps.remove(&number);
        }
    }

    /// Frees a number.
    pub fn give_back(&mut self, number: i64) {
        if number == self.highest {
            self.highest -= 1;
            while self.gaps.remove(&self.highest) {
                self.highest -= 1;
            }
        } else if number < self.highest {
            self.gaps.insert(number);
        }
    }

    /// How many numbers are taken.
    pub fn taken(&self) -> i64 {
        self.highest - i64::try_from(self.gaps.len()).unwrap_or(i64::MAX)
    }

    /// Takes the first free number.
    pub fn take_first(&mut self) -> i64 {
        let number = self.gaps.first().copied().unwrap_or(self.highest + 1);
        self.take(number);
        number
    }
}

impl Unsettled {
    fn count(&mut self, slot: &Slot, by: i64) {
        match slot.status {
            SlotStatus::Creating => {
                self.creating += by;
                self.making += if slot.bot_id.is_none() { by } else { 0 };
            }
            SlotStatus::Error => self.error += by,
            SlotStatus::Draining => self.draining += by,
            _ => {}
        }
        self.all += if slot.is_unsettled() { by } else { 0 };
    }

    /// The counts after one slot has changed from `before` to `after`.
    pub fn with(mut self, before: Option<&Slot>, after: Option<&Slot>) -> Self {
        before.inspect(|slot| self.count(slot, -1));
        after.inspect(|slot| self.count(slot, 1));
        self
    }
}

impl PoolState {
    fn new(pool: Pool) -> Self {
        let (idle, recipes, numbers, unsettled) = Default::default();
        Self { pool, idle, recipes, numbers, unsettled }
    }

    /// The idle slots, by their attributes.
    pub fn idle(&self) -> impl Iterator<Item = (&Attributes, &BTreeSet<IdleSlot>)> {
        self.idle.iter()
    }

    /// How many slots have a status, without a look at each slot.
    pub fn count(&self, status: SlotStatus) -> i64 {
        let idle = || self.idle.values().map(BTreeSet::len).sum::<usize>();
        let idle = || i64::try_from(idle()).unwrap_or(i64::MAX);
        let Unsettled { creating, error, draining, .. } = self.unsettled;
        match status {
            SlotStatus::Creating => creating,
            SlotStatus::Idle => idle(),
            SlotStatus::Error => error,
            SlotStatus::Draining => draining,
            SlotStatus::Busy => self.numbers.taken() - idle() - creating - error - draining,
        }
    }

    /// Whether a slot with a waiting agent has start parameters that differ from the pool's configuration.
    pub fn has_outdated(&self) -> bool {
        let Pool { hot, recipe, .. } = &self.pool;
        *hot && recipe.is_some() && self.recipes.keys().any(|known| known != recipe)
    }

    fn add(&mut self, slot: &Slot) {
        self.numbers.take(slot.number);
        self.unsettled.count(slot, 1);
        if slot.status == SlotStatus::Idle {
            if !slot.stopped {
                match self.recipes.get_mut(&slot.recipe) {
                    Some(count) => *count += 1,
                    None => drop(self.recipes.insert(slot.recipe.clone(), 1)),
                }
            }
            // Avoids a copy of the attributes if the group exists.
            match self.idle.get_mut(&slot.attributes) {
                Some(alike) => drop(alike.insert(IdleSlot::of(slot))),
                None => drop(self.idle.insert(slot.attributes.clone(), [IdleSlot::of(slot)].into())),
            }
        }
    }

    fn remove(&mut self, slot: &Slot, is_gone: bool) {
        if is_gone {
            self.numbers.give_back(slot.number);
        }
        self.unsettled.count(slot, -1);
        if slot.status == SlotStatus::Idle
            && !slot.stopped
            && let Some(count) = self.recipes.get_mut(&slot.recipe)
        {
            *count -= 1;
            if *count == 0 {
                self.recipes.remove(&slot.recipe);
            }
        }
        if let Some(alike) = self.idle.get_mut(&slot.attributes) {
            alike.remove(&IdleSlot::of(slot));
            if alike.is_empty() {
                self.idle.remove(&slot.attributes);
            }
        }
    }
}

impl IdleSlot {
    fn of(slot: &Slot) -> Self {
        Self {
            stopped: slot.stopped,
            last_used_at: slot.last_used_at,
            number: slot.number,
            name: slot.name.clone(),
            idle_since: slot.status_since,
        }
    }
}

/// Reading.
impl Snapshot {
    /// A pool by its name.
    pub fn pool(&self, name: &str) -> Option<&PoolState> {
        self.pools.get(name)
    }

    /// Every pool.
    pub fn pools(&self) -> impl Iterator<Item = &PoolState> {
        self.pools.values()
    }

    /// The pools of a platform: configured pools first, in the order of the configuration.
    pub fn pools_of(&self, platform: Platform) -> &[String] {
        self.by_platform.get(&platform).map_or(&[], Vec::as_slice)
    }

    /// Every platform that a pool serves.
    pub fn platforms(&self) -> impl Iterator<Item = Platform> {
        self.by_platform.keys().copied()
    }

    /// A slot by its name.
    pub fn slot(&self, name: &SlotName) -> Option<&Slot> {
        self.slots.get(name)
    }

    /// Every slot.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = &Slot> {
        self.slots.values()
    }

    /// An open bot by its id.
    pub fn bot(&self, id: BotId) -> Option<&OpenBot> {
        self.bots.get(&id)
    }

    /// Every open bot.
    pub fn bots(&self) -> impl Iterator<Item = &OpenBot> {
        self.bots.values()
    }

    /// How many bots a user has.
    pub fn counts(&self, user: UserId) -> BotCounts {
        self.counts.get(&user).copied().unwrap_or_default()
    }

    /// The running bot of a user at a meeting.
    pub fn bot_at(&self, meeting: &AtMeeting) -> Option<BotId> {
        self.meetings.get(meeting).copied()
    }

    /// The bots that wait.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The arrival number of the last bot.
    pub fn last_arrival(&self) -> i64 {
        self.last_arrival
    }

    /// A user that made a request before.
    pub fn user(&self, id: UserId) -> Option<&User> {
        self.users.get(&id)
    }

    /// Users that made a request before.
    pub fn users(&self) -> impl Iterator<Item = (UserId, &User)> {
        self.users.iter().map(|(id, user)| (*id, user))
    }

    /// How many users are known.
    pub fn users_known(&self) -> usize {
        self.users.len()
    }

    /// The request that was made with an idempotency key.
    pub fn key(&self, user: UserId, key: &str) -> Option<&KnownKey> {
        self.keys.get(&(user, key.to_owned()))
    }
}

/// Updates.
impl Snapshot {
    /// Adds, replaces or removes a pool.
    pub fn set_pool(&mut self, name: &str, pool: Option<Pool>) {
        match (pool, self.pools.get_mut(name)) {
            (Some(pool), Some(state)) => {
                let stays = (state.pool.platform, state.pool.fill_order) == (pool.platform, pool.fill_order);
                state.pool = pool;
                if stays {
                    return;
                }
            }
            (Some(pool), None) => drop(self.pools.insert(name.to_owned(), PoolState::new(pool))),
            (None, _) => drop(self.pools.remove(name)),
        }
        self.by_platform.clear();
        for PoolState { pool, .. } in self.pools.values() {
            self.by_platform.entry(pool.platform).or_default().push(pool.name.clone());
        }
        for names in self.by_platform.values_mut() {
            let position = |name: &String| self.pools.get(name).and_then(|state| state.pool.fill_order);
            names.sort_by_key(|name| (position(name).is_none(), position(name), name.clone()));
        }
    }

    /// Adds, replaces or removes a slot.
    pub fn set_slot(&mut self, name: &SlotName, slot: Option<Slot>) {
        let before = match slot {
            Some(slot) => {
                if let Some(before) = self.slots.get(name)
                    && let Some(state) = self.pools.get_mut(&before.pool)
                {
                    state.remove(before, before.pool != slot.pool);
                }
                if let Some(state) = self.pools.get_mut(&slot.pool) {
                    state.add(&slot);
                }
                self.slots.insert(name.clone(), slot);
                return;
            }
            None => self.slots.remove(name),
        };
        if let Some(before) = before
            && let Some(state) = self.pools.get_mut(&before.pool)
        {
            state.remove(&before, true);
        }
    }

    /// Adds, replaces or removes an open bot.
    pub fn set_bot(&mut self, id: BotId, bot: Option<OpenBot>) {
        if let Some(before) = self.bots.remove(&id) {
            self.count(&before, -1);
            if before.status.is_running() && self.meetings.get(&before.meeting()) == Some(&id) {
                self.meetings.remove(&before.meeting());
            }
            if before.queued.is_some() {
                self.queue.remove(&before);
            }
        }
        let Some(bot) = bot else { return };
        self.count(&bot, 1);
        if bot.status.is_running() {
            self.meetings.insert(bot.meeting(), id);
        }
        if bot.queued.is_some() {
            self.queue.insert(&bot);
        }
        self.last_arrival = self.last_arrival.max(bot.arrival);
        self.bots.insert(id, bot);
    }

    fn count(&mut self, bot: &OpenBot, by: i64) {
        let counts = self.counts.entry(bot.user).or_default();
        counts.add(bot, by);
        if *counts == BotCounts::default() {
            self.counts.remove(&bot.user);
        }
    }

    /// Sets only the status of a bot, from a callback.
    pub fn note_status(&mut self, id: BotId, status: crate::Status) {
        if let Some(bot) = self.bots.get_mut(&id).filter(|bot| bot.status.is_running() && status.is_running()) {
            bot.status = status;
            bot.has_joined |= status == crate::Status::Active;
        }
    }

    /// Adds, replaces or removes a user.
    pub fn set_user(&mut self, id: UserId, user: Option<User>) {
        match user {
            Some(user) => drop(self.users.insert(id, user)),
            None => drop(self.users.remove(&id)),
        }
    }

    /// Forgets every user. Users are read again when needed.
    pub fn forget_users(&mut self) {
        self.users.clear();
    }

    /// Adds an idempotency key.
    pub fn set_key(&mut self, user: UserId, key: String, known: KnownKey) {
        self.keys.insert((user, key), known);
    }

    /// How many idempotency keys are known.
    pub fn keys_known(&self) -> usize {
        self.keys.len()
    }

    /// Forgets every idempotency key. Keys are read again when needed.
    pub fn forget_keys(&mut self) {
        self.keys.clear();
    }

    /// Applies the changes that were written.
    pub fn apply(&mut self, changes: Changes) {
        for (name, pool) in changes.pools {
            match self.pools.get_mut(&name) {
                // A plan does not change a pool's platform or position.
                Some(state) => state.pool = pool,
                None => self.set_pool(&name, Some(pool)),
            }
        }
        for (name, change) in changes.slots {
            self.set_slot(&name, change.slot);
        }
        for (id, bot) in changes.bots {
            self.set_bot(id, bot);
        }
        for new in changes.new_keys {
            self.set_key(new.user, new.key, KnownKey { body_hash: new.body_hash, bot_id: new.bot });
        }
    }
}

impl BotCounts {
    /// Adds `by` to the count of this bot's state.
    pub fn add(&mut self, bot: &OpenBot, by: i64) {
        if bot.status.is_running() {
            self.running += by;
        } else {
            self.stopping += by;
        }
    }
}
