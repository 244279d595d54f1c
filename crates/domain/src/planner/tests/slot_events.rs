//! Tests of slot events that fit, and of those that come too late.

use super::*;

fn one(of: Pool, change: impl FnOnce(&mut Slot)) -> (Planner, SlotName) {
    let name = of.name.clone();
    let mut planner = Planner::new(&[of]);
    let added = planner.add_idle(&name, 1, change);
    (planner, added)
}

/// A hot slot that is being started without a bot.
fn creating() -> (Planner, SlotName) {
    let mut planner = Planner::new(&[Pool { min_idle: 1, ..hot_pool("hot", 0, 1) }]);
    planner.run(&[Job::KeepWarm]);
    (planner, slot("hot", 1))
}

fn waits(planner: &Planner, name: &SlotName, agent: &str) -> SlotEvent {
    SlotEvent::AgentWaits { claim: SlotClaim::current(planner.slot(name)), agent: agent.to_owned() }
}

fn message() -> String {
    "it broke".to_owned()
}

#[test]
fn an_agent_that_waits_makes_its_slot_idle() {
    let (mut planner, name) = creating();
    let event = waits(&planner, &name, "one");
    let changes = planner.event(&name, event);
    assert!(fits(&changes) && changes.actions.contains(&Action::WakeAgent(name.clone())));
    assert_eq!(planner.slot(&name).status, SlotStatus::Idle);
    let mut late = SlotClaim::current(planner.slot(&name));
    late.generation = Some(0);
    assert!(!fits(&planner.event(&name, SlotEvent::AgentWaits { claim: late, agent: "two".to_owned() })));
}

#[test]
fn another_agent_in_an_idle_slot_does_not_renew_it() {
    let (mut planner, name) = one(Pool { expire_after_ms: Some(60_000), ..hot_pool("hot", 0, 1) }, |_| {});
    let end = planner.now + Duration::from_secs(60);
    let ending = Slot { expires_at: Some(end), ..planner.slot(&name).clone() };
    planner.snapshot.set_slot(&name, Some(ending));
    let before = planner.slot(&name).clone();
    planner.wait(30);
    let event = waits(&planner, &name, "another");
    assert!(fits(&planner.event(&name, event)));
    assert_eq!(planner.slot(&name), &Slot { agent: Some("another".to_owned()), ..before });
}

#[test]
fn the_same_agent_again_changes_nothing() {
    let (mut planner, name) = one(hot_pool("hot", 0, 1), |_| {});
    let event = waits(&planner, &name, "agent");
    let changes = planner.event(&name, event);
    assert!(fits(&changes) && changes.is_empty());
}

fn not_ready(planner: &Planner, name: &SlotName, agent: &str) -> SlotEvent {
    SlotEvent::NotReady { claim: SlotClaim::current(planner.slot(name)), agent: agent.to_owned(), left: false }
}

#[test]
fn a_slot_whose_agent_lost_its_command_gets_no_bot_until_the_agent_waits_again() {
    let (mut planner, name) = one(hot_pool("hot", 0, 1), |slot| slot.agent = Some("agent".to_owned()));
    let before = planner.slot(&name).clone();
    let event = not_ready(&planner, &name, "agent");
    assert!(fits(&planner.event(&name, event)));
    let lost = planner.slot(&name).clone();
    assert_eq!((lost.status, lost.generation, &lost.agent), (SlotStatus::Creating, before.generation, &before.agent));
    planner.run(&[reserve(request(1, 1))]);
    assert_eq!(planner.slot_of(1), None);
    let event = waits(&planner, &name, "agent");
    assert!(fits(&planner.event(&name, event)));
    assert_eq!(planner.slot_of(1), Some(name));
}

#[test]
fn an_agent_that_reports_after_it_closed_its_connection_has_not_left() {
    let (mut planner, name) = one(hot_pool("hot", 0, 1), |slot| slot.agent = Some("agent".to_owned()));
    let claim = SlotClaim::current(planner.slot(&name));
    let left = SlotEvent::NotReady { claim, agent: "agent".to_owned(), left: true };
    assert!(fits(&planner.event(&name, left.clone())));
    assert_eq!(planner.slot(&name).error_message.as_deref(), Some(crate::slot::AGENT_LEFT));
    assert!(!fits(&planner.event(&name, left)));
    let event = not_ready(&planner, &name, "agent");
    assert!(fits(&planner.event(&name, event)));
    assert_eq!((planner.slot(&name).status, &planner.slot(&name).error_message), (SlotStatus::Creating, &None));
}

#[test]
fn only_the_agent_that_waits_can_say_that_nothing_is_ready() {
    let (mut planner, name) = one(hot_pool("hot", 0, 1), |slot| slot.agent = Some("agent".to_owned()));
    let event = not_ready(&planner, &name, "another");
    assert!(!fits(&planner.event(&name, event)));
    let mut late = SlotClaim::current(planner.slot(&name));
    late.generation = Some(0);
    assert!(!fits(&planner.event(&name, SlotEvent::NotReady { claim: late, agent: "agent".to_owned(), left: false })));
    planner.run(&[reserve(request(1, 1))]);
    let event = not_ready(&planner, &name, "agent");
    assert!(!fits(&planner.event(&name, event)), "the slot has a bot");
    assert_eq!(planner.slot_of(1), Some(name));
}

#[test]
fn an_agent_is_refused_where_another_has_the_bot() {
    let (mut planner, name) = one(hot_pool("hot", 0, 1), |_| {});
    planner.run(&[reserve(request(1, 1))]);
    let event = waits(&planner, &name, "another");
    assert!(!fits(&planner.event(&name, event)));
}

#[test]
fn a_slot_that_was_started_for_its_bot_is_busy_and_the_bot_is_awaited() {
    let mut planner = Planner::new(&[pool("cold", 0, 1)]);
    planner.run(&[reserve(request(1, 1))]);
    let name = slot("cold", 1);
    let holder = planner.pass_gate(&name);
    let started = |bot| SlotEvent::Started { bot, provider_ref: "ref".to_owned(), recipe: None, holder };
    let changes = planner.event(&name, started(Some(bot(2))));
    assert!(changes.slots.is_empty() && changes.awaited.is_empty(), "it was for another");
    let changes = planner.event(&name, started(Some(bot(1))));
    assert_eq!(changes.awaited, [bot(1)]);
    assert_eq!(planner.slot(&name).status, SlotStatus::Busy);
    assert!(planner.snapshot.facts.deployments.is_empty());
}

#[test]
fn a_slot_that_is_started_after_its_bot_has_ended_waits_to_be_cleared() {
    let mut planner = Planner::new(&[pool("cold", 0, 1)]);
    planner.run(&[reserve(request(1, 1))]);
    let name = slot("cold", 1);
    let holder = planner.pass_gate(&name);
    planner.run(&[planner.exits(1, 0)]);
    planner
        .event(&name, SlotEvent::Started { bot: Some(bot(1)), provider_ref: "ref".to_owned(), recipe: None, holder });
    let after = planner.slot(&name);
    assert_eq!((after.status, after.awaits_clearing), (SlotStatus::Busy, true));
}

#[test]
fn a_stopped_slot_that_was_created_without_a_bot_is_idle() {
    let mut planner = Planner::new(&[Pool { min_idle: 1, ..pool("cold", 0, 1) }]);
    planner.run(&[Job::KeepWarm]);
    let name = slot("cold", 1);
    let holder = planner.pass_gate(&name);
    planner.event(&name, SlotEvent::Started { bot: None, provider_ref: "ref".to_owned(), recipe: None, holder });
    assert_eq!(planner.slot(&name).status, SlotStatus::Idle);
}

#[test]
fn the_deadline_of_a_hot_slots_agent_begins_at_the_start_and_not_at_the_gate() {
    let (mut planner, name) = creating();
    let holder = planner.pass_gate(&name);
    planner.wait(3_600);
    planner.event(&name, SlotEvent::Started { bot: None, provider_ref: "ref".to_owned(), recipe: None, holder });
    let after = planner.slot(&name);
    assert_eq!((after.status, after.status_since), (SlotStatus::Creating, planner.now));
}

#[test]
fn a_late_start_without_a_bot_does_not_prevent_the_start_of_a_freed_hot_slot() {
    let (mut planner, name) = one(Pool { recycle_after: 1, ..hot_pool("hot", 0, 1) }, |_| {});
    planner.run(&[reserve(request(1, 1))]);
    planner.run(&[planner.exits(1, 0)]);
    let late = SlotEvent::Started { bot: None, provider_ref: "ref".to_owned(), recipe: None, holder: Uuid::nil() };
    let jobs = [Job::Slot(name.clone(), SlotEvent::Cleared { bot: bot(1) }), Job::Slot(name.clone(), late)];
    let changes = planner.run(&jobs);
    assert_eq!(changes.deployments.len(), 1, "otherwise it would be Creating for ever");
}

#[test]
fn a_deployment_that_was_not_started_leaves_the_gate() {
    let (mut planner, name) = creating();
    let holder = planner.pass_gate(&name);
    planner.event(&name, SlotEvent::NotBegun { bot: None, holder: Uuid::nil() });
    assert_eq!(planner.snapshot.facts.deployments.len(), 1, "another holds it");
    planner.event(&name, SlotEvent::NotBegun { bot: None, holder });
    assert!(planner.snapshot.facts.deployments.is_empty());
    assert!(!fits(&planner.event(&slot("hot", 9), SlotEvent::NotBegun { bot: None, holder })));
}

#[test]
fn a_silent_slot_is_started_again_under_a_new_connection() {
    let (mut planner, name) = one(hot_pool("hot", 0, 1), |_| {});
    planner.run(&[reserve(request(1, 1))]);
    let before = planner.bot(1).connection;
    let silent = |generation| SlotEvent::Silent { bot: bot(1), generation };
    assert!(!fits(&planner.event(&name, silent(0))));
    let changes = planner.event(&name, silent(1));
    assert_eq!((changes.reconnected.len(), changes.deployments.len()), (1, 1));
    assert_ne!(planner.bot(1).connection, before);
    assert_eq!((planner.slot(&name).generation, &planner.slot(&name).agent), (2, &None));
    assert!(!fits(&planner.event(&name, silent(1))), "a repeat comes too late");
    planner.snapshot.note_status(bot(1), Status::Starting);
    assert!(!fits(&planner.event(&name, silent(2))), "it has spoken");
}

#[test]
fn a_bot_that_was_silent_and_goes_back_is_written_once() {
    let mut planner = Planner::new(&[runner_pool("ec2", 0, 1)]);
    planner.run(&[reserve(request(1, 1))]);
    let name = slot("ec2", 1);
    let holder = planner.pass_gate(&name);
    let silent = SlotEvent::Silent { bot: bot(1), generation: 1 };
    let no_capacity = SlotEvent::NoCapacity { bot: bot(1), holder, message: message() };
    let changes = planner.run(&[Job::Slot(name.clone(), silent), Job::Slot(name, no_capacity)]);
    assert_eq!((changes.returned.len(), changes.reconnected.len(), changes.deployments.len()), (1, 0, 0));
}

#[test]
fn a_cleared_slot_fits_only_its_bot() {
    let (mut planner, name) = one(pool("cold", 0, 1), |_| {});
    planner.run(&[reserve(request(1, 1))]);
    planner.run(&[planner.exits(1, 0)]);
    assert!(!fits(&planner.event(&name, SlotEvent::Cleared { bot: bot(2) })));
    assert!(fits(&planner.event(&name, SlotEvent::Cleared { bot: bot(1) })));
    assert!(!fits(&planner.event(&name, SlotEvent::Cleared { bot: bot(1) })));
    assert_eq!(planner.slot(&name).status, SlotStatus::Idle);
}

#[test]
fn a_slot_that_breaks_is_in_error_with_its_message() {
    let (mut planner, name) = creating();
    let broken = |bot| SlotEvent::Broken { bot, message: message() };
    assert!(!fits(&planner.event(&name, broken(Some(bot(1))))));
    let changes = planner.event(&name, broken(None));
    assert_eq!(changes.cancelled_deployments, std::slice::from_ref(&name));
    let after = planner.slot(&name);
    assert_eq!((after.status, after.error_message.clone()), (SlotStatus::Error, Some(message())));
    assert!(!fits(&planner.event(&name, broken(None))), "it is in error already");
}

#[test]
fn a_draining_slot_that_breaks_stays_draining() {
    let (mut planner, name) = one(pool("cold", 0, 1), |slot| slot.status = SlotStatus::Draining);
    assert!(fits(&planner.event(&name, SlotEvent::Broken { bot: None, message: message() })));
    assert_eq!(planner.slot(&name).status, SlotStatus::Draining);
    assert_eq!(planner.slot(&name).error_message, Some(message()));
}

#[test]
fn an_observation_of_an_idle_slot_counts_only_while_the_slot_is_unchanged() {
    type Seen = fn(Timestamp) -> SlotEvent;
    let cases: [(Seen, SlotStatus); 3] = [
        (|since| SlotEvent::Failed { since, message: message() }, SlotStatus::Error),
        (|since| SlotEvent::UnknownProcess { since }, SlotStatus::Error),
        (|since| SlotEvent::Lost { since, counts: true }, SlotStatus::Creating),
    ];
    for (seen, after) in cases {
        let (mut planner, name) = one(hot_pool("hot", 0, 1), |_| {});
        let since = planner.now;
        planner.wait(1);
        assert!(!fits(&planner.event(&name, seen(since + Duration::from_millis(1)))));
        assert!(fits(&planner.event(&name, seen(since))));
        assert_eq!(planner.slot(&name).status, after);
        assert!(!fits(&planner.event(&name, seen(since))), "a repeat comes too late");
    }
}

#[test]
fn a_lost_slot_is_created_again_and_may_count_as_an_attempt() {
    for counts in [true, false] {
        let (mut planner, name) = one(pool("cold", 0, 1), |_| {});
        let since = planner.now;
        let changes = planner.event(&name, SlotEvent::Lost { since, counts });
        let after = planner.slot(&name);
        assert_eq!((after.recovery_attempts, &after.provider_ref), (i64::from(counts), &None));
        assert_eq!((after.status, changes.deployments.len()), (SlotStatus::Creating, 1));
    }
}

#[test]
fn an_attempt_to_recover_is_counted_once() {
    let (mut planner, name) = one(pool("cold", 0, 1), |slot| slot.status = SlotStatus::Error);
    let since = planner.now;
    planner.wait(1);
    let recovering = SlotEvent::Recovering { since, message: message() };
    assert!(fits(&planner.event(&name, recovering.clone())));
    assert!(!fits(&planner.event(&name, recovering)));
    assert_eq!(planner.slot(&name).recovery_attempts, 1);
    let since = planner.slot(&name).status_since;
    assert!(!fits(&planner.event(&name, SlotEvent::Recovered { since: since - Duration::from_secs(1) })));
    assert!(fits(&planner.event(&name, SlotEvent::Recovered { since })));
    assert_eq!(planner.slot(&name).status, SlotStatus::Idle);
}

#[test]
fn a_slot_without_a_bot_that_is_not_free_is_recovered() {
    let (mut planner, name) = creating();
    let since = planner.now;
    assert!(fits(&planner.event(&name, SlotEvent::Recovering { since, message: message() })));
    assert_eq!((planner.slot(&name).status, planner.slot(&name).recovery_attempts), (SlotStatus::Error, 1));
    let (mut planner, name) = one(pool("cold", 0, 1), |_| {});
    assert!(!fits(&planner.event(&name, SlotEvent::Recovering { since, message: message() })), "it is free");
}

#[test]
fn a_drained_slot_without_a_bot_is_deleted() {
    let (mut planner, name) = one(pool("cold", 0, 1), |_| {});
    assert!(!fits(&planner.event(&name, SlotEvent::Gone)));
    assert!(fits(&planner.event(&name, SlotEvent::Drain)));
    assert!(!fits(&planner.event(&name, SlotEvent::Drain)));
    assert!(fits(&planner.event(&name, SlotEvent::Gone)));
    assert!(planner.snapshot.slot(&name).is_none());
    assert_eq!(planner.snapshot.pool("cold").unwrap().pool.slots, 0);
    assert!(!fits(&planner.event(&name, SlotEvent::Drain)));
}

#[test]
fn a_slot_is_described_as_what_it_is() {
    let mut planner = Planner::new(&[Pool { min_idle: 1, recycle_after: 1, ..hot_pool("hot", 0, 1) }]);
    let name = slot("hot", 1);
    let shown = |planner: &Planner| planner.slot(&name).description.split(' ').next().map(str::to_owned).unwrap();
    planner.run(&[Job::KeepWarm]);
    assert_eq!(shown(&planner), "[CREATING]");
    let holder = planner.pass_gate(&name);
    planner.event(&name, SlotEvent::Started { bot: None, provider_ref: "ref".to_owned(), recipe: None, holder });
    assert_eq!(shown(&planner), "[CREATING]", "its agent does not wait yet");
    let event = waits(&planner, &name, "agent");
    let changes = planner.event(&name, event);
    assert_eq!(shown(&planner), "[IDLE]");
    let described = |action: &Action| matches!(action, Action::Describe { .. });
    assert!(changes.actions.iter().any(described), "the provider shows it too");
    planner.run(&[reserve(request(1, 1))]);
    assert_eq!(shown(&planner), "[BUSY]");
    planner.run(&[planner.exits(1, 0)]);
    planner.event(&name, SlotEvent::Cleared { bot: bot(1) });
    assert_eq!(shown(&planner), "[CREATING]", "it is made fresh");
    planner.event(&name, SlotEvent::Drain);
    assert_eq!(shown(&planner), "[DRAINING]");
}

#[test]
fn a_draining_slot_is_described_as_busy_until_its_bot_has_left() {
    let (mut planner, name) = one(pool("cold", 0, 1), |_| {});
    planner.run(&[reserve(request(1, 1))]);
    planner.event(&name, SlotEvent::Drain);
    assert!(planner.slot(&name).description.starts_with("[BUSY]"));
    planner.run(&[planner.exits(1, 0)]);
    planner.event(&name, SlotEvent::Cleared { bot: bot(1) });
    assert!(planner.slot(&name).description.starts_with("[DRAINING]"));
}
