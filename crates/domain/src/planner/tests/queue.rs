//! Tests of the order of the queue.

use super::*;

/// A pool with one slot, which bot 1 has.
fn full_pool() -> Planner {
    let mut planner = Planner::new(&[hot_pool("hot", 0, 1)]);
    planner.add_idle("hot", 1, |_| {});
    planner.run(&[reserve(request(1, 1))]);
    planner
}

/// The bot that is served when the bot in the slot ends.
fn next(planner: &mut Planner) -> BotId {
    let has = planner.slot(&slot("hot", 1)).bot_id.unwrap();
    let connection = planner.snapshot.bot(has).unwrap().connection.unwrap();
    let cause = EndCause::Exited { token: connection, named: connection, exit_code: 0, reason: None, error: None };
    let changes = planner.run(&[Job::End(Box::new(EndBot { bot: has, cause }))]);
    assert_eq!(changes.grants.len(), 1);
    assert_eq!(changes.left_queue, [changes.grants[0].bot]);
    changes.grants[0].bot
}

#[test]
fn the_queue_is_served_by_priority_and_then_by_arrival() {
    let mut planner = full_pool();
    let of = |number, priority| reserve(ReserveRequest { priority, ..request(number, 1) });
    let changes = planner.run(&[of(2, 100), of(3, 10), of(4, 100)]);
    let positions: Vec<_> = (0..3).map(|job| reserved(&changes, job).queue_position.unwrap()).collect();
    assert_eq!(positions, [2, 1, 3]);
    let changes = planner.run(&[of(5, 10)]);
    assert_eq!(reserved(&changes, 0).queue_position, Some(2));
    assert_eq!(changes.actions, [Action::WatchQueue]);
    assert_eq!([3, 5, 2, 4].map(bot), [(); 4].map(|()| next(&mut planner)));
}

#[test]
fn a_bot_whose_requirements_are_not_available_does_not_delay_others() {
    let large = Pool { max_slots: 0, attribute_sets: vec![cpus(8)], ..pool("large", 1, 0) };
    let mut planner = full_pool();
    planner.snapshot.set_pool("large", Some(large));
    let needs = ReserveRequest { requirements: needs_cpus(8), priority: 1, ..request(2, 1) };
    planner.run(&[reserve(needs), reserve(request(3, 1))]);
    assert_eq!(next(&mut planner), bot(3));
    assert!(planner.bot(2).queued.is_some());
}

#[test]
fn many_bots_of_one_user_do_not_keep_the_first_of_another_waiting() {
    let mut planner = full_pool().fair();
    let many: Vec<Job> = (2..512).map(|number| reserve(request(number, 1))).collect();
    planner.run(&many);
    let changes = planner.run(&[reserve(request(1000, 2)), reserve(request(1001, 2))]);
    // The first waiting bot has the same turn and arrived earlier.
    assert_eq!(reserved(&changes, 0).queue_position, Some(2));
    assert_eq!(reserved(&changes, 1).queue_position, Some(4));
    assert_eq!([2, 1000, 3, 1001, 4].map(bot), [(); 5].map(|()| next(&mut planner)));
    planner.run(&[reserve(request(1002, 2))]);
    assert_eq!([5, 1002, 6].map(bot), [(); 3].map(|()| next(&mut planner)));
}

#[test]
fn without_fair_the_same_user_is_served_by_arrival() {
    let mut planner = full_pool();
    planner.run(&[reserve(request(2, 1)), reserve(request(3, 1)), reserve(request(4, 2))]);
    assert_eq!([2, 3, 4].map(bot), [(); 3].map(|()| next(&mut planner)));
}

#[test]
fn the_estimate_is_the_position_divided_by_the_rate_of_free_slots() {
    let mut planner = full_pool();
    planner.wait(60);
    planner.run(&[reserve(request(2, 1))]);
    next(&mut planner);
    let changes = planner.run(&[reserve(request(3, 1)), reserve(request(4, 1))]);
    assert_eq!(reserved(&changes, 1).estimated_wait_ms, Some(120_000));
}

#[test]
fn a_bot_without_capacity_returns_to_its_position_and_is_skipped_for_a_while() {
    let mut planner = Planner::new(&[runner_pool("ec2", 0, 1)]);
    planner.run(&[reserve(request(1, 1)), reserve(request(2, 1))]);
    let slot_name = slot("ec2", 1);
    let wait_until = planner.bot(1).wait_until;
    let holder = planner.pass_gate(&slot_name);
    let no_capacity = |holder| SlotEvent::NoCapacity { bot: bot(1), holder, message: "full".to_owned() };
    assert!(!fits(&planner.event(&slot_name, no_capacity(Uuid::nil()))), "another holds the deployment");
    planner.wait(1);
    let changes = planner.event(&slot_name, no_capacity(holder));
    assert_eq!((changes.queued, changes.returned.len()), (vec![bot(1)], 1));
    assert_eq!(planner.slot_of(2), None, "who waits for the same behind it would find out the same");
    let back = planner.bot(1).queued.clone().unwrap();
    assert_eq!((Some(back.timeout_at), planner.bot(1).connection), (wait_until, None));
    assert_eq!(back.not_before, Some(planner.now + Duration::from_secs(3)));
    planner.wait(3);
    planner.run(&[Job::ServeQueues]);
    assert_eq!(planner.slot_of(1), Some(slot_name), "the first, once its time has come");
}

#[test]
fn a_free_runner_goes_to_the_first_bot_that_it_fits() {
    let sets = vec![cpus(2), cpus(8)];
    let mut planner = Planner::new(&[Pool { attribute_sets: sets, ..runner_pool("ec2", 0, 2) }]);
    let with = |number, cpu| reserve(ReserveRequest { requirements: needs_cpus(cpu), ..request(number, 1) });
    planner.run(&[with(1, 8), with(2, 2)]);
    for number in 1..=2 {
        let slot_name = planner.slot_of(number).unwrap();
        let holder = planner.pass_gate(&slot_name);
        planner.event(&slot_name, SlotEvent::NoCapacity { bot: bot(number), holder, message: "full".to_owned() });
    }
    let changes = planner.run(&[Job::RetryWaiting(cpus(2))]);
    assert_eq!(changes.grants.len(), 1);
    assert_eq!(changes.grants[0].bot, bot(2));
}
