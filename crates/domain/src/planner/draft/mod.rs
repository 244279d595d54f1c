//! A plan in progress: the snapshot with the plan's earlier decisions applied. Each decision sees those before it.
//!
//! - this file: the fields of a draft, and its deployments, events and actions
//! - [`slots`]: pools and slots
//! - [`free_slots`]: which slot is best for a bot
//! - [`bots`]: bots and the queue

mod bots;
mod free_slots;
mod slots;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::event::{Actor, Kind, StartKind};
use crate::planner::Settings;
use crate::planner::bot::{AtMeeting, EndedBot};
use crate::planner::bugs::{Bug, has};
use crate::planner::changes::{Action, Changes, NewDeployment, NewEvent, ReleasedDeployment};
use crate::planner::ids::Ids;
use crate::planner::queue::{Order, Queue};
use crate::planner::ranked_set::RankedSet;
use crate::planner::snapshot::{BotCounts, Deployment, Numbers, Snapshot};
use crate::{BotId, Platform, ShownStatus, SlotName, UserId};

use free_slots::{Group, groups};

pub struct Draft<'a> {
    pub base: &'a Snapshot,
    pub settings: &'a Settings,
    pub now: Timestamp,
    pub ids: Ids,
    pub changes: Changes,
    /// Platforms whose queue this plan must serve.
    pub touched: BTreeSet<Platform>,
    /// Bots that ended in this plan.
    pub ended: HashMap<BotId, EndedBot>,
    counts: HashMap<UserId, BotCounts>,
    meetings: HashMap<AtMeeting, Option<BotId>>,
    /// Waiting bots of this plan. A bot of the snapshot that this plan has changed is only here.
    queue: Queue,
    /// The positions of those bots of the snapshot's queue that this plan has changed.
    changed_in_queue: HashMap<Platform, RankedSet<Order>>,
    last_arrival: i64,
    numbers: HashMap<String, Numbers>,
    /// Slots that can be given out and that this plan has changed.
    freed: BTreeSet<SlotName>,
    /// Those that this plan has freed or made. If no bot gets one, it returns to its pool.
    to_return: BTreeSet<SlotName>,
    groups: Vec<Group<'a>>,
    /// The actions of this plan, to find duplicates.
    acted: HashSet<Action>,
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
            changed_in_queue: HashMap::new(),
            last_arrival: base.last_arrival(),
            numbers: HashMap::new(),
            freed: BTreeSet::new(),
            to_return: BTreeSet::new(),
            groups: groups(base),
            acted: HashSet::new(),
        }
    }

    pub fn uuid(&mut self) -> Uuid {
        self.ids.next_id()
    }

    pub fn after(&self, time: Duration) -> Timestamp {
        self.now.saturating_add(time).unwrap_or(Timestamp::MAX)
    }
}

/// Deployments, events and actions.
impl Draft<'_> {
    /// Queues a slot at the gate of its pool's host.
    pub fn deploy(&mut self, name: &SlotName, bot: Option<BotId>) {
        let Some(pool) = self.slot(name).and_then(|slot| self.pool(&slot.pool)) else { return };
        let (pool, host) = (pool.name.clone(), pool.host.clone());
        let timeout_at = self.after(self.settings.deploy_timeout);
        self.changes.deployments.push(NewDeployment { slot: name.clone(), pool, host, bot, timeout_at });
        self.act(Action::PassGate);
    }

    pub fn cancel_deployment(&mut self, slot: &SlotName) {
        self.changes.deployments.retain(|deployment| deployment.slot != *slot);
        if !self.changes.cancelled_deployments.contains(slot) {
            self.changes.cancelled_deployments.push(slot.clone());
        }
        self.act(Action::PassGate);
    }

    /// The deployment of a slot as it was read, unless this plan has finished it.
    pub fn deployment(&self, slot: &SlotName) -> Option<&Deployment> {
        let found = self.base.facts.deployments.get(slot)?;
        let changes = &self.changes;
        let is_done = changes.cancelled_deployments.contains(slot)
            || changes.returned.iter().any(|returned| returned.slot == *slot)
            || changes.ends.iter().any(|end| end.at_gate.as_ref().is_some_and(|(at, _)| at == slot))
            || changes.released_deployments.iter().any(|released| {
                released.slot == *slot && released.bot == found.bot && Some(released.holder) == found.holder
            });
        (!is_done || has(Bug::DoneDeploymentSeen)).then_some(found)
    }

    pub fn release_deployment(&mut self, slot: &SlotName, bot: Option<BotId>, holder: Uuid) {
        self.changes.released_deployments.push(ReleasedDeployment { slot: slot.clone(), bot, holder });
        self.act(Action::PassGate);
    }

    pub fn record(&mut self, bot_id: BotId, user_id: UserId, kind: Kind, reason: Option<String>, actor: Actor) {
        let (from, to) = kind.statuses();
        self.changes.events.push(NewEvent { bot_id, user_id, kind, from, to, reason, actor, start_kind: None });
    }

    /// Records that a waiting bot got a slot.
    pub fn record_assigned(&mut self, bot: BotId, user: UserId, slot: &SlotName, start_kind: StartKind) {
        self.record(bot, user, Kind::Assigned, Some(slot.to_string()), Actor::Greenroom);
        if let Some(event) = self.changes.events.last_mut() {
            event.start_kind = Some(start_kind);
        }
    }

    /// Records that a bot was created, with its slot if it got one at once. The call comes late in the plan, after the
    /// events that freed the slot.
    pub fn record_created(
        &mut self,
        bot_id: BotId,
        user_id: UserId,
        slot: Option<(&SlotName, StartKind)>,
        actor: Actor,
    ) {
        if has(Bug::EventForgotten) {
            return;
        }
        self.changes.events.push(NewEvent {
            bot_id,
            user_id,
            kind: Kind::Created,
            from: None,
            to: Some(if slot.is_some() { ShownStatus::Deploying } else { ShownStatus::Queued }),
            reason: slot.map(|(name, _)| name.to_string()),
            actor,
            start_kind: slot.map(|(_, start_kind)| start_kind),
        });
    }

    /// Adds an action to take after the commit. A duplicate is ignored.
    pub fn act(&mut self, action: Action) {
        if self.acted.insert(action.clone()) {
            self.changes.actions.push(action);
        }
    }
}

pub fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
