//! Tests of each command alone: a few rows, one plan, and its changes.
//!
//! - [`reserve`], [`choice`], [`queue`]: which bots are admitted, which slot they get, which bot is next
//! - [`probes`]: bots that get only slots of one pool
//! - [`ends`], [`slot_events`]: the effects on slots
//! - [`keep_warm`], [`plans`]: slots that are kept ready; rules for every plan
//! - [`invariants`]: each violation is found, in the whole, in a part and in the changes of a batch
#![allow(clippy::unwrap_used)]

mod choice;
mod ends;
mod invariants;
mod keep_warm;
mod plans;
mod probes;
mod queue;
mod reserve;
mod slot_events;

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::bot::OpenBot;
use super::changes::{Action, GateState};
use super::job::{EndBot, EndCause, EndRefusal, JobAnswer, Refusal, ReserveRequest, Reserved, SlotEvent, WarmReport};
use super::snapshot::{Deployment, User};
use super::{Changes, Ids, Job, QueueOrder, Settings, Snapshot, plan};
use crate::event::Actor;
use crate::lifecycle::Overdue;
use crate::{
    Attributes, BotId, ConnectionId, KeyId, Platform, Pool, Requirements, Slot, SlotClaim, SlotName, SlotStatus,
    Status, UserId,
};

/// A snapshot with a clock.
struct Planner {
    snapshot: Snapshot,
    now: Timestamp,
    settings: Settings,
    plans: u64,
}

fn user(number: u64) -> UserId {
    UserId(Uuid::from_u64_pair(1, number))
}

fn bot(number: u64) -> BotId {
    BotId(Uuid::from_u64_pair(3, number))
}

fn slot(pool: &str, number: i64) -> SlotName {
    SlotName::new(pool, number)
}

/// A pool of google_meet slots that are not hot.
fn pool(name: &str, position: i64, max_slots: i64) -> Pool {
    Pool {
        name: name.to_owned(),
        platform: Platform::GoogleMeet,
        provider: "process".to_owned(),
        host: "here".to_owned(),
        hot: false,
        recycle_after: 1,
        max_slots,
        min_idle: 0,
        fill_order: Some(position),
        slots: 0,
        mean_hold_ms: None,
        attribute_sets: vec![Attributes::default()],
        expire_after_ms: None,
        idle_timeout_ms: None,
        ready_timeout_ms: None,
        max_warm_age_ms: None,
        recipe: None,
    }
}

fn hot_pool(name: &str, position: i64, max_slots: i64) -> Pool {
    Pool { hot: true, recycle_after: 0, ..pool(name, position, max_slots) }
}

fn runner_pool(name: &str, position: i64, max_slots: i64) -> Pool {
    Pool { provider: "ec2".to_owned(), ..pool(name, position, max_slots) }
}

fn cpus(cpu: u32) -> Attributes {
    Attributes { cpu, ..Attributes::default() }
}

fn needs_cpus(cpu: u32) -> Option<Requirements> {
    Some(Requirements { cpu: Some(cpu), ..Requirements::default() })
}

/// A request of user `of` for bot `number`. Each bot has its own meeting.
fn request(number: u64, of: u64) -> ReserveRequest {
    ReserveRequest {
        id: bot(number),
        user: user(of),
        key: Some(KeyId(user(of).0)),
        platform: Platform::GoogleMeet,
        native_meeting_id: format!("meeting-{number}"),
        priority: 100,
        queue_timeout_ms: 60_000,
        requirements: None,
        idempotency: None,
        pool: None,
    }
}

fn reserve(request: ReserveRequest) -> Job {
    Job::Reserve(Box::new(request))
}

fn give_up(number: u64, overdue: Overdue) -> Job {
    Job::End(Box::new(EndBot { bot: bot(number), cause: EndCause::GivenUp { overdue, error: None } }))
}

impl Planner {
    /// Users 1 to 3 may have a thousand bots each.
    fn new(pools: &[Pool]) -> Self {
        let settings = Settings {
            queue_order: QueueOrder::Arrival,
            deploy_timeout: Duration::from_secs(1800),
            expected_duration: Duration::from_secs(1800),
        };
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let mut planner = Self { snapshot: Snapshot::default(), now, settings, plans: 0 };
        (1..=3).for_each(|number| planner.set_user(number, 1000, 0));
        for pool in pools {
            planner.snapshot.set_pool(&pool.name, Some(pool.clone()));
        }
        planner
    }

    fn fair(mut self) -> Self {
        self.settings.queue_order = QueueOrder::Fair;
        self
    }

    fn set_user(&mut self, number: u64, max_concurrent_bots: i64, min_priority: i64) {
        let api_keys = vec![(KeyId(user(number).0), None)];
        self.snapshot.set_user(user(number), Some(User { max_concurrent_bots, min_priority, api_keys }));
    }

    /// Adds an idle slot. In a hot pool, an agent waits in it.
    fn add_idle(&mut self, name: &str, number: i64, change: impl FnOnce(&mut Slot)) -> SlotName {
        let mut of = self.snapshot.pool(name).unwrap().pool.clone();
        let attributes = of.attributes_of_new();
        of.slots += 1;
        self.snapshot.set_pool(name, Some(of.clone()));
        let mut new = Slot {
            name: slot(name, number),
            pool: name.to_owned(),
            number,
            status: SlotStatus::Idle,
            status_since: self.now,
            bot_id: None,
            incarnation: Uuid::from_u64_pair(4, number.unsigned_abs()),
            generation: 1,
            token_number: 0,
            agent: of.hot.then(|| "agent".to_owned()),
            bots_since_fresh: 0,
            provider_ref: (!of.provisioned_per_bot()).then(|| "made".to_owned()),
            description: crate::slot::idle(None),
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
        change(&mut new);
        self.snapshot.set_slot(&new.name, Some(new.clone()));
        new.name
    }

    fn plan(&self, jobs: &[Job]) -> Changes {
        plan(&self.snapshot, jobs, self.now, Ids::new(self.now, self.plans), &self.settings)
    }

    /// Plans, applies the changes, and checks the invariants.
    fn run(&mut self, jobs: &[Job]) -> Changes {
        let changes = self.plan(jobs);
        self.plans += 1;
        super::model::compare::write(&mut self.snapshot, &changes).unwrap();
        self.snapshot.apply(changes.clone());
        assert_eq!(super::invariants::violations(&self.snapshot), []);
        changes
    }

    /// Moves the clock forward.
    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// The deployment of a slot passes the gate.
    fn pass_gate(&mut self, name: &SlotName) -> Uuid {
        let holder = Uuid::from_u64_pair(5, self.plans);
        let found = self.snapshot.facts.deployments.get_mut(name).unwrap();
        (found.state, found.holder) = (GateState::Active, Some(holder));
        holder
    }

    fn slot(&self, name: &SlotName) -> &Slot {
        self.snapshot.slot(name).unwrap()
    }

    fn bot(&self, number: u64) -> &OpenBot {
        self.snapshot.bot(bot(number)).unwrap()
    }

    /// The slot that a bot has.
    fn slot_of(&self, number: u64) -> Option<SlotName> {
        self.snapshot.bot(bot(number)).and_then(|bot| bot.slot.clone())
    }

    fn exits(&self, number: u64, exit_code: i64) -> Job {
        let connection = self.bot(number).connection.unwrap_or(ConnectionId(Uuid::nil()));
        exits_under(connection, number, exit_code)
    }

    fn event(&mut self, name: &SlotName, event: SlotEvent) -> Changes {
        self.run(&[Job::Slot(name.clone(), event)])
    }

    fn change_bot(&mut self, number: u64, change: impl FnOnce(&mut OpenBot)) {
        let mut changed = self.bot(number).clone();
        change(&mut changed);
        self.snapshot.set_bot(bot(number), Some(changed));
    }
}

fn exits_under(connection: ConnectionId, number: u64, exit_code: i64) -> Job {
    let cause = EndCause::Exited { token: connection, named: connection, exit_code, reason: None, error: None };
    Job::End(Box::new(EndBot { bot: bot(number), cause }))
}

fn refusal(changes: &Changes, job: usize) -> &Refusal {
    match &changes.answers[job] {
        JobAnswer::Reserve(Err(refusal)) => refusal,
        answer => panic!("{answer:?}"),
    }
}

fn reserved(changes: &Changes, job: usize) -> &Reserved {
    match &changes.answers[job] {
        JobAnswer::Reserve(Ok(reserved)) => reserved,
        answer => panic!("{answer:?}"),
    }
}

fn fits(changes: &Changes) -> bool {
    changes.answers == [JobAnswer::Slot(true)]
}

fn warm(changes: &Changes) -> (u64, u64) {
    match changes.answers[0] {
        JobAnswer::KeepWarm(WarmReport { made, let_go, .. }) => (made, let_go),
        ref answer => panic!("{answer:?}"),
    }
}
