//! The bots that wait for a slot. Each platform has one queue, sorted by priority and arrival; with queue order `fair`,
//! by priority and then in turns between users. Bots with the same requirements form a group, and so do probes of the
//! same pool: if one of them cannot get a slot, none of the group can.

use std::collections::{BTreeMap, BTreeSet};

use super::bot::OpenBot;
use super::ranked_set::RankedSet;
use crate::{BotId, Platform, Requirements, UserId};

/// A position in the queue of a platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order {
    /// A lower number goes first.
    pub priority: i64,
    /// With queue order `fair`: the round in which the bot is served.
    pub turn: i64,
    /// The order of arrival.
    pub arrival: i64,
    /// Makes positions unique, even if two bots have the same arrival.
    pub bot: BotId,
}

/// The order in which bots of one priority are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// First come, first served.
    #[default]
    Arrival,
    /// Users take turns.
    Fair,
}

/// Bots of one platform that the same slots fit.
#[derive(Clone, Debug, Default)]
pub struct QueueGroup {
    /// The requirements.
    pub requirements: Option<Requirements>,
    /// The bots, in the order in which they are served.
    pub waiting: BTreeMap<Order, BotId>,
}

/// All bots that wait.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    groups: BTreeMap<(Platform, String), QueueGroup>,
    /// The turns of a user's bots, in one priority of a platform.
    turns: BTreeMap<(Platform, i64, UserId), BTreeSet<(i64, BotId)>>,
    /// All bots of a platform, so that a position is known without counting.
    ranks: BTreeMap<Platform, RankedSet<Order>>,
}

/// The key of the group that a bot belongs to.
pub fn queue_key(bot: &OpenBot) -> String {
    let requirements = bot.requirements.as_ref().map(Requirements::key).unwrap_or_default();
    match bot.only_pool() {
        None => requirements,
        Some(pool) => format!("pool {pool} {requirements}"),
    }
}

impl Queue {
    /// Adds a bot that starts to wait.
    pub fn insert(&mut self, bot: &OpenBot) {
        let key = (bot.platform, queue_key(bot));
        let group = self.groups.entry(key).or_default();
        group.requirements.clone_from(&bot.requirements);
        group.waiting.insert(bot.order(), bot.id);
        self.ranks.entry(bot.platform).or_default().insert(bot.order());
        self.turns.entry((bot.platform, bot.priority, bot.user)).or_default().insert((bot.turn, bot.id));
    }

    /// Removes a bot that no longer waits.
    pub fn remove(&mut self, bot: &OpenBot) {
        let key = (bot.platform, queue_key(bot));
        if let Some(group) = self.groups.get_mut(&key) {
            group.waiting.remove(&bot.order());
            if group.waiting.is_empty() {
                self.groups.remove(&key);
            }
        }
        if let Some(ranks) = self.ranks.get_mut(&bot.platform) {
            ranks.remove(&bot.order());
        }
        let key = (bot.platform, bot.priority, bot.user);
        if let Some(turns) = self.turns.get_mut(&key) {
            turns.remove(&(bot.turn, bot.id));
            if turns.is_empty() {
                self.turns.remove(&key);
            }
        }
    }

    /// The groups of a platform, with their keys.
    pub fn groups(&self, platform: Platform) -> impl Iterator<Item = (&str, &QueueGroup)> {
        self.groups
            .range((platform, String::new())..)
            .take_while(move |((of, _), _)| *of == platform)
            .map(|((_, key), group)| (key.as_str(), group))
    }

    /// One group of a platform.
    pub fn group(&self, platform: Platform, key: &str) -> Option<&QueueGroup> {
        self.groups.get(&(platform, key.to_owned()))
    }

    /// Whether no bot waits for a slot of a platform.
    pub fn is_empty(&self, platform: Platform) -> bool {
        self.groups(platform).next().is_none()
    }

    /// The turns of a user's bots, last first.
    pub fn turns(&self, platform: Platform, priority: i64, user: UserId) -> impl Iterator<Item = (i64, BotId)> {
        self.turns.get(&(platform, priority, user)).into_iter().flatten().rev().copied()
    }

    /// How many bots of a platform are before a position.
    pub fn rank(&self, platform: Platform, order: Order) -> usize {
        self.ranks.get(&platform).map_or(0, |ranks| ranks.rank(&order))
    }

    /// The bots of a platform after a position, in the order in which they are served; all of them if it is `None`.
    pub fn after(&self, platform: Platform, order: Option<Order>) -> impl Iterator<Item = BotId> {
        let ranks = self.ranks.get(&platform).into_iter();
        ranks.flat_map(move |ranks| ranks.after(order)).map(|order| order.bot)
    }

    /// How many bots wait for a slot of a platform.
    pub fn len(&self, platform: Platform) -> usize {
        self.ranks.get(&platform).map_or(0, RankedSet::len)
    }
}
