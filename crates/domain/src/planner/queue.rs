//! Bots that wait for a slot: one queue for each platform, by priority, then by arrival; or, under `fair`, by priority, then
//! in turns between users. Bots with the same requirements are kept together: what one of them cannot get, none can.

use std::collections::{BTreeMap, BTreeSet};

use super::bot::OpenBot;
use crate::{BotId, Platform, Requirements, UserId};

/// A position in the queue of a platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order {
    /// Lower goes first.
    pub priority: i64,
    /// Under `fair`, the round in which it is served.
    pub turn: i64,
    /// In which order it came.
    pub arrival: i64,
    /// So that no two share a place, whatever their arrival is.
    pub bot: BotId,
}

/// In which order bots of one priority are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// Who came first goes first.
    #[default]
    Arrival,
    /// Users take turns.
    Fair,
}

/// Bots of one platform with the same requirements.
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
    /// The turns that bots of a user have, in one priority of a platform.
    turns: BTreeMap<(Platform, i64, UserId), BTreeSet<(i64, BotId)>>,
}

/// The same text for the same requirements.
pub fn queue_key(requirements: Option<&Requirements>) -> String {
    requirements.map(Requirements::key).unwrap_or_default()
}

impl Queue {
    /// Adds a bot that begins to wait.
    pub fn insert(&mut self, bot: &OpenBot) {
        let key = (bot.platform, queue_key(bot.requirements.as_ref()));
        let group = self.groups.entry(key).or_default();
        group.requirements.clone_from(&bot.requirements);
        group.waiting.insert(bot.order(), bot.id);
        self.turns.entry((bot.platform, bot.priority, bot.user)).or_default().insert((bot.turn, bot.id));
    }

    /// Takes out a bot that no longer waits.
    pub fn remove(&mut self, bot: &OpenBot) {
        let key = (bot.platform, queue_key(bot.requirements.as_ref()));
        if let Some(group) = self.groups.get_mut(&key) {
            group.waiting.remove(&bot.order());
            if group.waiting.is_empty() {
                self.groups.remove(&key);
            }
        }
        let key = (bot.platform, bot.priority, bot.user);
        if let Some(turns) = self.turns.get_mut(&key) {
            turns.remove(&(bot.turn, bot.id));
            if turns.is_empty() {
                self.turns.remove(&key);
            }
        }
    }

    /// The groups of a platform, with the keys of their requirements.
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

    /// Whether nobody waits for a slot of a platform.
    pub fn is_empty(&self, platform: Platform) -> bool {
        self.groups(platform).next().is_none()
    }

    /// The turns of a user's bots, the last first.
    pub fn turns(&self, platform: Platform, priority: i64, user: UserId) -> impl Iterator<Item = (i64, BotId)> {
        self.turns.get(&(platform, priority, user)).into_iter().flatten().rev().copied()
    }

    /// Those of a platform before a place.
    pub fn before(&self, platform: Platform, order: Order) -> impl Iterator<Item = BotId> {
        self.groups(platform).flat_map(move |(_, group)| group.waiting.range(..order).map(|(_, bot)| *bot))
    }
}
