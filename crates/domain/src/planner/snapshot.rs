//! All that placement decides on, in memory: pools and their slots, open bots and the queue, users and their limits. A plan
//! only reads it; [`Snapshot::apply`] brings it up to what was written.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use uuid::Uuid;

use super::bot::{AtMeeting, EndedBot, OpenBot};
use super::changes::{Changes, GateState};
use super::queue::Queue;
use crate::{Attributes, BotId, KeyId, Platform, Pool, Slot, SlotName, SlotStatus, UserId};

/// All that placement decides on.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pools: BTreeMap<String, PoolState>,
    /// The pools of each platform: those of the configuration first, in its order.
    by_platform: BTreeMap<Platform, Vec<String>>,
    slots: HashMap<SlotName, Slot>,
    bots: HashMap<BotId, OpenBot>,
    /// How many bots of a user run, and how many are on their way out.
    counts: HashMap<UserId, BotCounts>,
    meetings: HashMap<AtMeeting, BotId>,
    queue: Queue,
    last_arrival: i64,
    /// Users that asked before. Others are looked up before a plan.
    users: HashMap<UserId, User>,
    keys: HashMap<(UserId, String), KnownKey>,
    /// What was looked up for one plan.
    pub facts: Facts,
}

/// A pool, and its slots by what is looked for.
#[derive(Clone, Debug)]
pub struct PoolState {
    /// The pool.
    pub pool: Pool,
    /// Idle slots with the same attributes: those that are not stopped first, then the least recently used.
    idle: HashMap<Attributes, BTreeSet<IdleSlot>>,
    /// How many slots in which an agent waits were started with what.
    recipes: HashMap<Option<String>, usize>,
    /// The numbers that its slots have.
    pub numbers: Numbers,
    /// How many slots are being made for nobody, are in error, go away.
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
    /// Since when it is idle.
    pub idle_since: Timestamp,
}

/// How many slots of a pool are not as they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsettled {
    /// Being made for nobody.
    pub making: i64,
    /// In error.
    pub error: i64,
    /// Going away.
    pub draining: i64,
    /// Those above, those being made for a bot, and those that wait to be cleared.
    pub all: i64,
}

/// Which numbers of a pool are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    highest: i64,
    /// Below the highest, and free.
    gaps: BTreeSet<i64>,
}

/// How many bots a user has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BotCounts {
    /// Running.
    pub running: i64,
    /// Leaving.
    pub stopping: i64,
}

/// What placement knows of a user.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    /// How many bots of the user may run at the same time.
    pub max_concurrent_bots: i64,
    /// The least number that a request may give as its priority.
    pub min_priority: i64,
    /// The API keys, and until when they are good.
    pub api_keys: Vec<(KeyId, Option<Timestamp>)>,
}

/// What was asked for under an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    /// A hash of the request.
    pub body_hash: String,
    /// The bot that was reserved.
    pub bot_id: BotId,
}

/// What is not kept in memory, looked up for the jobs of one plan.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Bots that are at an end.
    pub ended: HashMap<BotId, EndedBot>,
    /// Deployments of slots.
    pub deployments: HashMap<SlotName, Deployment>,
}

/// How the deployment of a slot stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// The bot that it is for.
    pub bot: Option<BotId>,
    /// Where it is at the gate.
    pub state: GateState,
    /// Who is at work on it.
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

    /// How many are taken.
    pub fn taken(&self) -> i64 {
        self.highest - i64::try_from(self.gaps.len()).unwrap_or(i64::MAX)
    }

    /// The first that is free, which is taken from now on.
    pub fn take_first(&mut self) -> i64 {
        let number = self.gaps.first().copied().unwrap_or(self.highest + 1);
        self.take(number);
        number
    }
}

impl Unsettled {
    fn count(&mut self, slot: &Slot, by: i64) {
        match slot.status {
            SlotStatus::Creating if slot.bot_id.is_none() => self.making += by,
            SlotStatus::Error => self.error += by,
            SlotStatus::Draining => self.draining += by,
            _ => {}
        }
        self.all += if slot.is_unsettled() { by } else { 0 };
    }

    /// With one slot as it is now instead of as it was.
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

    /// Whether a slot in which an agent waits was started with something else than the pool has now.
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
            // Without a copy of the attributes where others are alike.
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

    /// The pools of a platform: those of the configuration first, in its order.
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

    /// The number of the bot that came last.
    pub fn last_arrival(&self) -> i64 {
        self.last_arrival
    }

    /// A user who asked before.
    pub fn user(&self, id: UserId) -> Option<&User> {
        self.users.get(&id)
    }

    /// Users that asked before.
    pub fn users(&self) -> impl Iterator<Item = (UserId, &User)> {
        self.users.iter().map(|(id, user)| (*id, user))
    }

    /// How many users are known.
    pub fn users_known(&self) -> usize {
        self.users.len()
    }

    /// What was asked for under an idempotency key.
    pub fn key(&self, user: UserId, key: &str) -> Option<&KnownKey> {
        self.keys.get(&(user, key.to_owned()))
    }
}

/// Bringing it up to date.
impl Snapshot {
    /// Adds, replaces or removes a pool.
    pub fn set_pool(&mut self, name: &str, pool: Option<Pool>) {
        match (pool, self.pools.get_mut(name)) {
            (Some(pool), Some(state)) => {
                let stays = (state.pool.platform, state.pool.config_position) == (pool.platform, pool.config_position);
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
            let position = |name: &String| self.pools.get(name).and_then(|state| state.pool.config_position);
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

    /// What a bot was heard to be, without anything else.
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

    /// Forgets every user: they are looked up again.
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

    /// Forgets every idempotency key: they are looked up again.
    pub fn forget_keys(&mut self) {
        self.keys.clear();
    }

    /// Takes over what was written.
    pub fn apply(&mut self, changes: Changes) {
        for (name, pool) in changes.pools {
            match self.pools.get_mut(&name) {
                // Its platform and place are not a plan's to change.
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
    /// Counts a bot so many times.
    pub fn add(&mut self, bot: &OpenBot, by: i64) {
        if bot.status.is_running() {
            self.running += by;
        } else {
            self.stopping += by;
        }
    }
}
