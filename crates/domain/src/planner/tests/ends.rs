//! Tests of the effect of a bot's end on its slot.

use super::*;

/// Bot 1 is in a slot of this pool.
fn running(of: Pool) -> (Planner, SlotName) {
    let name = of.name.clone();
    let mut planner = Planner::new(&[of]);
    let idle = planner.add_idle(&name, 1, |_| {});
    planner.run(&[reserve(request(1, 1))]);
    (planner, idle)
}

fn ended(changes: &Changes) -> &Result<Status, EndRefusal> {
    match &changes.answers[0] {
        JobAnswer::End(ended) => ended,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_hot_slot_is_free_at_once_and_goes_to_the_next_in_the_same_plan() {
    let (mut planner, name) = running(hot_pool("hot", 0, 1));
    planner.run(&[reserve(request(2, 1))]);
    planner.snapshot.note_status(bot(1), Status::Active);
    let before = planner.slot(&name).clone();
    let changes = planner.run(&[planner.exits(1, 0)]);
    assert_eq!(ended(&changes), &Ok(Status::Completed));
    assert_eq!(planner.slot_of(2), Some(name.clone()));
    let after = planner.slot(&name);
    assert_eq!((after.token_number, after.generation), (before.token_number + 1, before.generation));
    assert_eq!((after.status, after.bot_id), (SlotStatus::Busy, Some(bot(2))));
    assert!(changes.actions.contains(&Action::WakeAgent(name)));
    assert!(changes.deployments.is_empty() && !changes.actions.contains(&Action::Clear(bot(1))));
    assert_eq!(changes.ends[0].from, Status::Active);
}

#[test]
fn a_hot_slot_without_a_waiting_bot_is_idle() {
    let (mut planner, name) = running(hot_pool("hot", 0, 1));
    planner.run(&[planner.exits(1, 1)]);
    let after = planner.slot(&name);
    assert_eq!((after.status, after.bot_id, after.bots_since_fresh), (SlotStatus::Idle, None, 1));
}

#[test]
fn a_hot_slot_after_its_last_bot_is_cleared_and_started_again() {
    let (mut planner, name) = running(Pool { recycle_after: 1, ..hot_pool("hot", 0, 1) });
    let changes = planner.run(&[planner.exits(1, 0)]);
    assert!(changes.actions.contains(&Action::Clear(bot(1))));
    assert!(planner.slot(&name).awaits_clearing);
    let changes = planner.event(&name, SlotEvent::Cleared { bot: bot(1) });
    let after = planner.slot(&name);
    assert_eq!((after.status, after.bots_since_fresh, after.generation), (SlotStatus::Creating, 0, 2));
    assert!(!after.awaits_clearing);
    assert_eq!(changes.deployments.len(), 1);
    assert_eq!(changes.cancelled_deployments, [name]);
}

#[test]
fn a_stopped_slot_is_cleared_before_the_next_has_it() {
    let (mut planner, name) = running(pool("cold", 0, 1));
    planner.run(&[reserve(request(2, 1))]);
    let changes = planner.run(&[planner.exits(1, 0)]);
    assert!(changes.grants.is_empty() && changes.actions.contains(&Action::Clear(bot(1))));
    planner.wait(60);
    let changes = planner.event(&name, SlotEvent::Cleared { bot: bot(1) });
    assert_eq!(changes.grants[0].bot, bot(2));
    assert_eq!(planner.snapshot.pool("cold").unwrap().pool.mean_hold_ms, Some(60_000));
}

#[test]
fn short_holds_of_a_hot_pool_seldom_change_its_mean_and_long_ones_always() {
    let mut planner = Planner::new(&[hot_pool("hot", 0, 1)]);
    planner.add_idle("hot", 1, |_| {});
    let mean = |planner: &Planner| planner.snapshot.pool("hot").unwrap().pool.mean_hold_ms;
    let mut hold = |id: u64, seconds: u64| {
        planner.run(&[reserve(request(id, 1))]);
        planner.wait(seconds);
        let changes = planner.run(&[planner.exits(id, 0)]);
        (mean(&planner), changes.pools.len())
    };
    assert_eq!(hold(9_999, 1), (Some(1_000), 1), "the first counts");
    assert_eq!(hold(1_002_001, 2), (Some(1_000), 0), "it is one of the four in five that do not count");
    assert_eq!(hold(2_001_999, 2), (Some(1_100), 1), "it is the fifth");
    assert_eq!(hold(3_009_999, 11), (Some(2_090), 1));
}

#[test]
fn a_bot_that_waited_too_long_in_the_queue_fails() {
    let mut planner = Planner::new(&[pool("cold", 0, 0)]);
    planner.run(&[reserve(request(1, 1))]);
    let changes = planner.run(&[give_up(1, Overdue::QueueTimeout)]);
    assert_eq!(ended(&changes), &Ok(Status::Failed));
    assert_eq!((changes.left_queue, changes.events[0].reason.as_deref()), (vec![bot(1)], Some("queue_timeout")));
    assert!(planner.snapshot.queue().is_empty(Platform::GoogleMeet));
}

#[test]
fn a_bot_that_has_got_a_slot_meanwhile_does_not_fail_in_the_queue() {
    let (mut planner, _) = running(pool("cold", 0, 1));
    let changes = planner.run(&[give_up(1, Overdue::QueueTimeout)]);
    assert_eq!(ended(&changes), &Ok(Status::Reserved));
    assert!(changes.is_empty());
}

#[test]
fn a_slot_whose_bot_never_passed_the_gate_goes_to_the_next() {
    let (mut planner, name) = running(pool("cold", 0, 1));
    planner.run(&[reserve(request(2, 1))]);
    let changes = planner.run(&[give_up(1, Overdue::DeployTimeout)]);
    assert_eq!(changes.ends[0].at_gate, Some((name.clone(), GateState::Waiting)));
    assert_eq!((changes.grants[0].bot, changes.deployments.len()), (bot(2), 1));
    planner.pass_gate(&name);
    let changes = planner.run(&[give_up(2, Overdue::DeployTimeout)]);
    assert_eq!(ended(&changes), &Ok(Status::Reserved), "it has passed");
}

#[test]
fn a_retried_deployment_leaves_a_slot_to_be_cleared() {
    let (mut planner, name) = running(pool("cold", 0, 1));
    planner.snapshot.facts.deployments.get_mut(&name).unwrap().state = GateState::Retry;
    let changes = planner.run(&[give_up(1, Overdue::DeployTimeout)]);
    assert_eq!(changes.ends[0].at_gate, Some((name, GateState::Retry)));
    assert!(changes.actions.contains(&Action::Clear(bot(1))));
}

#[test]
fn a_deployment_that_was_cancelled_earlier_in_the_plan_does_not_fail() {
    let (mut planner, name) = running(pool("cold", 0, 1));
    let broken = SlotEvent::Broken { bot: Some(bot(1)), message: "no".to_owned() };
    let changes = planner.run(&[Job::Slot(name, broken), give_up(1, Overdue::DeployTimeout)]);
    assert_eq!(changes.answers[1], JobAnswer::End(Ok(Status::Reserved)));
    assert!(changes.ends.is_empty());
}

#[test]
fn a_slot_that_could_not_be_deployed_is_in_error() {
    let (mut planner, name) = running(pool("cold", 0, 1));
    let changes = planner.run(&[give_up(1, Overdue::DeployFailed)]);
    assert_eq!(ended(&changes), &Ok(Status::Failed));
    let after = planner.slot(&name);
    assert_eq!((after.status, after.bot_id), (SlotStatus::Error, None));
    assert_eq!(changes.cancelled_deployments, [name]);
}

#[test]
fn a_late_or_stale_or_repeated_end_changes_nothing() {
    let (mut planner, _) = running(hot_pool("hot", 0, 1));
    planner.snapshot.note_status(bot(1), Status::Active);
    let stale = exits_under(ConnectionId(Uuid::nil()), 1, 0);
    assert_eq!(ended(&planner.run(&[stale])), &Err(EndRefusal::StaleConnection));
    let (exit, other) = (planner.exits(1, 0), planner.exits(1, 1));
    let changes = planner.run(&[exit.clone(), exit.clone(), other.clone()]);
    assert_eq!(changes.answers[1], JobAnswer::End(Ok(Status::Completed)), "a repeat holds");
    let refused = EndRefusal::Ended { status: Status::Completed, reason: Some("finished".to_owned()) };
    assert_eq!(changes.answers[2], JobAnswer::End(Err(refused.clone())));
    assert_eq!((changes.ends.len(), changes.events.len()), (1, 1));
    let changes = planner.run(&[exit]);
    assert_eq!((ended(&changes), changes.is_empty()), (&Ok(Status::Completed), true));
    assert_eq!(ended(&planner.run(&[other])), &Err(refused));
    assert_eq!(ended(&planner.run(&[give_up(9, Overdue::NoStart)])), &Err(EndRefusal::NoSuchBot));
}

#[test]
fn a_completed_bot_resets_the_recovery_attempts_of_its_slot() {
    for (exit_code, left) in [(0, 0), (1, 2)] {
        let (mut planner, name) = running(hot_pool("hot", 0, 1));
        planner.snapshot.note_status(bot(1), Status::Active);
        let changed = Slot { recovery_attempts: 2, ..planner.slot(&name).clone() };
        planner.snapshot.set_slot(&name, Some(changed));
        planner.run(&[planner.exits(1, exit_code)]);
        assert_eq!(planner.slot(&name).recovery_attempts, left);
    }
}

#[test]
fn a_draining_slot_is_not_assigned_to_the_next_bot() {
    let (mut planner, name) = running(hot_pool("hot", 0, 1));
    planner.run(&[reserve(request(2, 1))]);
    planner.event(&name, SlotEvent::Drain);
    planner.run(&[planner.exits(1, 0)]);
    planner.event(&name, SlotEvent::Cleared { bot: bot(1) });
    assert_eq!((planner.slot(&name).status, planner.slot(&name).bot_id), (SlotStatus::Draining, None));
    let changes = planner.event(&name, SlotEvent::Gone);
    assert_eq!(changes.grants[0].bot, bot(2), "there is room for a new one");
    assert_eq!(planner.slot(&name).generation, 1);
}

#[test]
fn a_prewarmed_slot_that_ran_its_bot_is_not_idle_before_its_agent_waits_again() {
    let of = Pool { ready_timeout_ms: Some(1_000), ..hot_pool("hot", 0, 1) };
    let mut planner = Planner::new(&[of]);
    let name = planner.add_idle("hot", 1, |slot| slot.agent = Some("agent".to_owned()));
    planner.run(&[reserve(request(1, 1))]);
    let before = planner.slot(&name).clone();
    planner.run(&[planner.exits(1, 0)]);
    let after = planner.slot(&name).clone();
    assert_eq!((after.status, after.bot_id), (SlotStatus::Creating, None));
    assert_eq!((after.token_number, &after.agent), (before.token_number + 1, &before.agent));
    planner.run(&[reserve(request(2, 1))]);
    assert_eq!(planner.slot_of(2), None);
    let claim = SlotClaim::current(planner.slot(&name));
    planner.event(&name, SlotEvent::AgentWaits { claim, agent: "agent".to_owned() });
    assert_eq!(planner.slot_of(2), Some(name));
}
