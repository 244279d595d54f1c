//! What the API shows of placement's copy in memory: positions in the queue, the open bots of each user, and the counts
//! of each pool. They are kept with every change, and never counted for a request. Readers share the view under a lock
//! that placement holds only while it adds the changes of a batch.
//!
//! A reader first compares the placement token of the database with that of the view. If they differ, placement brings
//! its copy up to date. So a reader sees what was committed before its request, by any replica.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use domain::planner::Snapshot;
use domain::planner::bot::OpenBot;
use domain::planner::queue::{Order, Queue};
use domain::wait_estimate::estimated_wait_ms;
use domain::{BotId, Platform, Pool, Slot, SlotName, SlotStatus, UserId};
use jiff::Timestamp;
use uuid::Uuid;

/// The view, which placement writes and the API reads.
#[derive(Clone, Debug)]
pub struct PlacementView(Arc<RwLock<ViewState>>);

/// The view at one moment.
#[derive(Debug, Default)]
pub struct ViewState {
    /// The token of the copy that it shows. `None` before the copy was read.
    token: Option<Uuid>,
    expected_duration: Duration,
    queue: Queue,
    bots: HashMap<BotId, KnownBot>,
    everyones: OpenBotIds,
    users: HashMap<UserId, OpenBotIds>,
    pools: BTreeMap<String, PoolView>,
}

#[derive(Debug)]
struct KnownBot {
    user: UserId,
    /// Only while it waits for a slot.
    waiting: Option<OpenBot>,
}

/// The ids of open bots, which sort by the time of their requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenBotIds {
    /// Those that wait for a slot.
    pub queued: BTreeSet<BotId>,
    /// All others.
    pub placed: BTreeSet<BotId>,
}

/// A pool, with the numbers of its slots and of the bots that wait for it.
#[derive(Clone, Debug)]
pub struct PoolView {
    pub pool: Pool,
    pub slots: [(SlotStatus, i64); SlotStatus::ALL.len()],
    /// The status of each slot, by its number.
    statuses: Vec<Option<SlotStatus>>,
    /// The bots whose first choice it is, by the time since which they wait.
    pub waiting: BTreeSet<(Timestamp, BotId)>,
}

/// A bot in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuePlace {
    pub bot_id: BotId,
    pub platform: Platform,
    pub order: Order,
    /// The first pool that could have a slot for it.
    pub pool: String,
    /// Its position in the queue of its platform, from 1.
    pub position: i64,
    pub queued_at: Timestamp,
    pub timeout_at: Timestamp,
    pub estimated_wait_ms: i64,
}

impl OpenBotIds {
    fn set(&mut self, id: BotId, is_queued: Option<bool>) {
        self.queued.remove(&id);
        self.placed.remove(&id);
        match is_queued {
            Some(true) => drop(self.queued.insert(id)),
            Some(false) => drop(self.placed.insert(id)),
            None => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.queued.is_empty() && self.placed.is_empty()
    }
}

/// Writing.
impl PlacementView {
    pub fn new(expected_duration: Duration) -> Self {
        Self(Arc::new(RwLock::new(ViewState { expected_duration, ..ViewState::default() })))
    }

    /// Shows these bots and slots, and all pools, as they are in the copy.
    pub fn publish(
        &self,
        copy: &Snapshot,
        token: Uuid,
        bots: impl IntoIterator<Item = BotId>,
        slots: impl IntoIterator<Item = SlotName>,
    ) {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for id in bots {
            state.set_bot(id, copy.bot(id));
        }
        state.set_pools(copy);
        for name in slots {
            state.set_slot(&name, copy.slot(&name));
        }
        state.token = Some(token);
        debug_assert!(state.agrees_with(copy), "the view differs from the copy that it shows");
    }

    /// Shows a copy that was read completely.
    pub fn publish_all(&self, copy: &Snapshot, token: Uuid) {
        let mut new = ViewState { expected_duration: self.state().expected_duration, ..ViewState::default() };
        new.set_pools(copy);
        for slot in copy.slots() {
            new.set_slot(&slot.name, Some(slot));
        }
        for bot in copy.bots() {
            new.set_bot(bot.id, Some(bot));
        }
        new.token = Some(token);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

impl ViewState {
    /// Whether it has as many bots as the copy, and as many of them wait. Only tests ask.
    fn agrees_with(&self, copy: &Snapshot) -> bool {
        let waiting: usize = Platform::ALL.into_iter().map(|platform| copy.queue().len(platform)).sum();
        let placed = self.bots.len() - waiting.min(self.bots.len());
        self.bots.len() == copy.bots().count()
            && (self.everyones.queued.len(), self.everyones.placed.len()) == (waiting, placed)
    }

    fn set_bot(&mut self, id: BotId, bot: Option<&OpenBot>) {
        let is_queued = bot.map(|bot| bot.queued.is_some());
        let before = self.bots.remove(&id);
        let user = bot.map(|bot| bot.user).or(before.as_ref().map(|before| before.user));
        let was_queued = before.as_ref().map(|before| before.waiting.is_some());
        if let Some(waited) = before.and_then(|before| before.waiting) {
            self.queue.remove(&waited);
            self.count_waiting(&waited, false);
        }
        if let Some(bot) = bot {
            let waiting = bot.queued.is_some().then(|| bot.clone());
            if waiting.is_some() {
                self.queue.insert(bot);
                self.count_waiting(bot, true);
            }
            self.bots.insert(id, KnownBot { user: bot.user, waiting });
        }
        let Some(user) = user.filter(|_| was_queued != is_queued) else { return };
        self.everyones.set(id, is_queued);
        let ids = self.users.entry(user).or_default();
        ids.set(id, is_queued);
        if ids.is_empty() {
            self.users.remove(&user);
        }
    }

    fn count_waiting(&mut self, bot: &OpenBot, waits: bool) {
        let Some(queued) = &bot.queued else { return };
        let Some(pool) = self.pools.get_mut(&queued.pool) else { return };
        match waits {
            true => pool.waiting.insert((queued.queued_at, bot.id)),
            false => pool.waiting.remove(&(queued.queued_at, bot.id)),
        };
    }

    fn set_slot(&mut self, name: &SlotName, slot: Option<&Slot>) {
        let Some((pool, number)) = name.parts() else { return };
        let Some(view) = self.pools.get_mut(pool) else { return };
        let number = usize::try_from(number).unwrap_or(0);
        if number >= view.statuses.len() {
            view.statuses.resize(number + 1, None);
        }
        view.statuses[number] = slot.map(|slot| slot.status);
    }

    fn set_pools(&mut self, copy: &Snapshot) {
        for state in copy.pools() {
            let slots = SlotStatus::ALL.map(|status| (status, state.count(status)));
            match self.pools.get_mut(&state.pool.name) {
                Some(known) => {
                    known.slots = slots;
                    if known.pool != state.pool {
                        known.pool.clone_from(&state.pool);
                    }
                }
                None => {
                    // Its bots are known already if its row was read after them.
                    let waiting = self.bots.values().filter_map(|bot| bot.waiting.as_ref());
                    let times = waiting.filter_map(|bot| Some((bot.queued.as_ref()?, bot.id)));
                    let own = times.filter(|(queued, _)| queued.pool == state.pool.name);
                    let waiting = own.map(|(queued, id)| (queued.queued_at, id)).collect();
                    let view = PoolView { pool: state.pool.clone(), slots, statuses: Vec::new(), waiting };
                    self.pools.insert(state.pool.name.clone(), view);
                }
            }
        }
        if self.pools.len() > copy.pools().count() {
            self.pools.retain(|name, _| copy.pool(name).is_some());
        }
    }
}

/// Reading.
impl ViewState {
    /// The open bots of a user.
    pub fn bots_of(&self, user: UserId) -> Option<&OpenBotIds> {
        self.users.get(&user)
    }

    /// The open bots of all users.
    pub fn bots(&self) -> &OpenBotIds {
        &self.everyones
    }

    /// Every pool, by name.
    pub fn pools(&self) -> impl Iterator<Item = &PoolView> {
        self.pools.values()
    }

    /// A pool by its name.
    pub fn pool(&self, name: &str) -> Option<&PoolView> {
        self.pools.get(name)
    }

    /// The next slots with a status, by pool and number: those of one pool, or of all pools if it is `None`, after the
    /// one with this pool and number.
    pub fn slots_after(
        &self,
        pool: Option<&str>,
        status: SlotStatus,
        after: Option<(&str, i64)>,
        limit: usize,
    ) -> Vec<SlotName> {
        let (after_pool, after_number) = after.unwrap_or(("", -1));
        let pools = self
            .pools
            .iter()
            .filter(|(name, _)| name.as_str() >= after_pool && pool.is_none_or(|pool| pool == name.as_str()));
        let slots = pools.flat_map(|(name, view)| {
            let is_first = name.as_str() == after_pool;
            let first = if is_first { usize::try_from(after_number.saturating_add(1)).unwrap_or(0) } else { 0 };
            let statuses = view.statuses.iter().enumerate().skip(first);
            let found = statuses.filter(move |(_, found)| **found == Some(status));
            found.map(move |(number, _)| SlotName::new(name, i64::try_from(number).unwrap_or(0)))
        });
        slots.take(limit).collect()
    }

    /// Where a bot is in the queue. `None` if it does not wait.
    pub fn queue_place(&self, bot: BotId) -> Option<QueuePlace> {
        let bot = self.bots.get(&bot)?.waiting.as_ref()?;
        let before = self.queue.rank(bot.platform, bot.order());
        self.place(bot, i64::try_from(before).unwrap_or(i64::MAX).saturating_add(1))
    }

    /// The first bots of a platform's queue after a position, in the order in which they get slots.
    pub fn queue_after(&self, platform: Platform, after: Option<Order>, limit: usize) -> Vec<QueuePlace> {
        let mut waiting = self.queue.after(platform, after).take(limit).peekable();
        let Some(first) = waiting.peek().and_then(|id| self.queue_place(*id)) else { return Vec::new() };
        let waiting = waiting.filter_map(|id| self.bots.get(&id)?.waiting.as_ref());
        waiting.zip(first.position..).filter_map(|(bot, position)| self.place(bot, position)).collect()
    }

    fn place(&self, bot: &OpenBot, position: i64) -> Option<QueuePlace> {
        let queued = bot.queued.as_ref()?;
        let pools = self.pools.values().map(|view| &view.pool).filter(|pool| pool.platform == bot.platform);
        let (only, requirements) = (bot.only_pool(), bot.requirements.as_ref());
        Some(QueuePlace {
            bot_id: bot.id,
            platform: bot.platform,
            order: bot.order(),
            pool: queued.pool.clone(),
            position,
            queued_at: queued.queued_at,
            timeout_at: queued.timeout_at,
            estimated_wait_ms: estimated_wait_ms(position, only, requirements, pools, self.expected_duration),
        })
    }
}

impl PlacementView {
    /// The current state. Placement waits while a reader has it.
    pub fn state(&self) -> RwLockReadGuard<'_, ViewState> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it shows the copy with this token.
    pub fn is_at(&self, token: Uuid) -> bool {
        self.state().token == Some(token)
    }

    /// Whether it shows any copy.
    pub fn is_known(&self) -> bool {
        self.state().token.is_some()
    }
}
