//! Bots and the queue in a draft, with the plan's changes applied.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::event::{Actor, StartKind};
use crate::planner::bot::{AtMeeting, OpenBot};
use crate::planner::bugs::{Bug, has};
use crate::planner::changes::{Action, Grant};
use crate::planner::queue::Order;
use crate::planner::snapshot::BotCounts;
use crate::{BotId, ConnectionId, Platform, Requirements, SlotName, SlotStatus, UserId, slot};

use super::{Draft, count};

impl Draft<'_> {
    pub fn bot(&self, id: BotId) -> Option<&OpenBot> {
        match self.changes.bots.get(&id) {
            Some(bot) => bot.as_ref(),
            None => self.base.bot(id),
        }
    }

    pub fn has_ended(&self, id: BotId) -> bool {
        self.ended.contains_key(&id) || self.base.facts.ended.contains_key(&id)
    }

    pub fn counts(&self, user: UserId) -> BotCounts {
        self.counts.get(&user).copied().unwrap_or_else(|| self.base.counts(user))
    }

    pub fn bot_at(&self, meeting: &AtMeeting) -> Option<BotId> {
        self.meetings.get(meeting).copied().unwrap_or_else(|| self.base.bot_at(meeting))
    }

    pub fn set_bot(&mut self, id: BotId, bot: Option<OpenBot>) {
        if self.untouched(id)
            && let Some(before) = self.base.bot(id).filter(|bot| bot.queued.is_some())
        {
            self.changed_in_queue.entry(before.platform).or_default().insert(before.order());
        }
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

    pub(super) fn untouched(&self, bot: BotId) -> bool {
        !self.changes.bots.contains_key(&bot)
    }

    /// The groups of a platform's queue, by key.
    pub fn groups(&self, platform: Platform) -> BTreeMap<String, Option<Requirements>> {
        let all = self.base.queue().groups(platform).chain(self.queue.groups(platform));
        all.map(|(key, group)| (key.to_owned(), group.requirements.clone())).collect()
    }

    /// The first bot of a group after a position.
    pub fn next_in_queue(&self, platform: Platform, key: &str, after: Option<Order>) -> Option<(Order, BotId)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let base = self.base.queue().group(platform, key).and_then(|group| {
            group
                .waiting
                .range((from, Unbounded))
                .find(|(_, bot)| self.untouched(**bot))
                .map(|(order, bot)| (*order, *bot))
        });
        let own = self.queue.group(platform, key);
        let own =
            own.and_then(|group| group.waiting.range((from, Unbounded)).next().map(|(order, bot)| (*order, *bot)));
        base.into_iter().chain(own).min()
    }

    /// The position of a bot in the queue of its platform. The first position is 1.
    pub fn position(&self, bot: &OpenBot) -> i64 {
        let (platform, order) = (bot.platform, bot.order());
        let changed = self.changed_in_queue.get(&platform).map_or(0, |changed| changed.rank(&order));
        let base = self.base.queue().rank(platform, order).saturating_sub(changed);
        count(1 + base + self.queue.rank(platform, order))
    }

    /// With queue order `fair`: the turn of a bot that starts to wait. It is after the waiting bots of the same user,
    /// and not before the first turn of all waiting bots.
    pub fn fair_turn(&self, platform: Platform, priority: i64, user: UserId) -> i64 {
        let base = self.base.queue().turns(platform, priority, user).find(|(_, bot)| self.untouched(*bot));
        let own = self.queue.turns(platform, priority, user).next();
        let after_own = base.into_iter().chain(own).map(|(turn, _)| turn + 1).max();
        let groups = self.groups(platform);
        let first = groups.keys().filter_map(|key| {
            let from = Order { priority, turn: i64::MIN, arrival: i64::MIN, bot: BotId(Uuid::nil()) };
            self.next_in_queue(platform, key, Some(from))
                .map(|(order, _)| order)
                .filter(|order| order.priority == priority)
        });
        let first = first.map(|order| order.turn).min();
        after_own.into_iter().chain(first).max().unwrap_or(0)
    }

    /// Gives a free slot to a bot. A slot with a waiting agent needs no deployment.
    pub fn give(&mut self, name: &SlotName, bot: BotId) {
        let Some(slot) = self.slot(name) else { return };
        let Some(pool) = self.pool(&slot.pool) else { return };
        let (pool_name, keeps_some) = (pool.name.clone(), pool.min_idle > 0);
        let is_awaited = pool.hot && pool.is_ready(slot);
        let is_made = slot.provider_ref.is_some();
        let start_kind = match (is_awaited, is_made) {
            (true, _) => StartKind::Hot,
            (false, true) => StartKind::Stopped,
            (false, false) => StartKind::Cold,
        };
        let now = self.now;
        self.put_slot(name, if is_awaited || is_made { SlotStatus::Busy } else { SlotStatus::Creating });
        self.change_slot(name, |slot| {
            slot.bot_id = Some(bot);
            slot.last_used_at = Some(now);
            slot.bots_since_fresh += 1;
            slot.error_message = None;
            slot.description = slot::busy(bot, now);
        });
        if has(Bug::SlotStaysFree) {
            self.add_freed(name);
        }
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
            self.record_assigned(bot, user, name, start_kind);
            self.changes.grants.push(grant);
        } else {
            let mut actor = Actor::User;
            if let Some(new) = self.changes.new_bots.iter_mut().rev().find(|new| new.id == bot) {
                new.is_awaited = is_awaited;
                actor = new.actor;
            }
            self.record_created(bot, user, Some((name, start_kind)), actor);
        }
    }
}
