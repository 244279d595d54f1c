//! Tests of slots that are kept ready.

use super::*;

#[test]
fn slots_are_made_until_as_many_are_ready_as_the_pool_wants() {
    let mut planner = Planner::new(&[Pool { min_idle: 3, ..hot_pool("hot", 0, 5) }]);
    planner.add_idle("hot", 1, |_| {});
    let changes = planner.run(&[Job::KeepWarm]);
    assert_eq!(warm(&changes), (2, 0));
    assert_eq!(changes.deployments.len(), 2);
    assert!(changes.deployments.iter().all(|asked| asked.bot.is_none()));
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (0, 0), "those that are being made count");
}

#[test]
fn no_more_slots_are_created_than_the_pool_may_have() {
    let mut planner = Planner::new(&[Pool { min_idle: 3, ..pool("cold", 0, 2) }]);
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (2, 0));
}

#[test]
fn a_broken_slot_is_replaced_once_and_then_waited_for() {
    let mut planner = Planner::new(&[Pool { min_idle: 1, ..pool("cold", 0, 9) }]);
    planner.add_idle("cold", 1, |slot| slot.status = SlotStatus::Error);
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (1, 0));
    planner.event(&slot("cold", 2), SlotEvent::Broken { bot: None, message: "no".to_owned() });
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (0, 0));
}

#[test]
fn no_slot_is_created_in_advance_if_slots_are_provisioned_per_bot_or_the_pool_is_gone() {
    let gone = Pool { min_idle: 1, fill_order: None, ..pool("gone", 0, 2) };
    let mut planner = Planner::new(&[Pool { min_idle: 1, ..runner_pool("ec2", 0, 2) }, gone]);
    assert!(planner.run(&[Job::KeepWarm]).is_empty());
}

#[test]
fn a_pool_that_is_too_large_deletes_idle_slots_the_least_recently_used_first() {
    let mut planner = Planner::new(&[pool("cold", 0, 1)]);
    let now = planner.now;
    planner.add_idle("cold", 1, |slot| slot.last_used_at = Some(now));
    planner.add_idle("cold", 2, |_| {});
    planner.add_idle("cold", 3, |slot| slot.status = SlotStatus::Draining);
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (0, 1));
    assert_eq!(planner.slot(&slot("cold", 2)).status, SlotStatus::Draining);
}

#[test]
fn a_slot_that_was_freed_in_the_same_plan_can_be_deleted() {
    let mut planner = Planner::new(&[hot_pool("hot", 0, 1)]);
    planner.add_idle("hot", 1, |_| {});
    planner.run(&[reserve(request(1, 1))]);
    planner.snapshot.set_pool("hot", Some(Pool { max_slots: 0, slots: 1, ..hot_pool("hot", 0, 0) }));
    let changes = planner.run(&[planner.exits(1, 0), Job::KeepWarm]);
    assert_eq!(changes.answers[1], JobAnswer::KeepWarm(WarmReport { let_go: 1, ..WarmReport::default() }));
    assert_eq!(planner.slot(&slot("hot", 1)).status, SlotStatus::Draining);
}

#[test]
fn expired_slots_are_deleted() {
    let mut planner = Planner::new(&[Pool { expire_after_ms: Some(1000), ..pool("cold", 0, 3) }]);
    let now = planner.now;
    planner.add_idle("cold", 1, |slot| slot.expires_at = Some(now));
    planner.add_idle("cold", 2, |slot| slot.expires_at = Some(now + Duration::from_secs(1)));
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (0, 1));
    assert_eq!(planner.slot(&slot("cold", 1)).status, SlotStatus::Draining);
}

#[test]
fn slots_of_other_attributes_are_replaced_one_at_a_time() {
    let mut planner = Planner::new(&[Pool { attribute_sets: vec![cpus(4)], ..hot_pool("hot", 0, 3) }]);
    (1..=2).for_each(|number| drop(planner.add_idle("hot", number, |slot| slot.attributes = cpus(2))));
    planner.add_idle("hot", 3, |_| {});
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (0, 1));
    assert_eq!(planner.slot(&slot("hot", 1)).status, SlotStatus::Draining);
    assert_eq!(planner.snapshot.pool("hot").unwrap().pool.attribute_sets, [cpus(4), cpus(2)]);
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (0, 0), "one is on its way out");
    planner.event(&slot("hot", 1), SlotEvent::Gone);
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (0, 1));
    assert_eq!(planner.slot(&slot("hot", 2)).status, SlotStatus::Draining);
}

#[test]
fn the_attributes_of_a_pool_are_those_that_its_idle_slots_have_after_the_plan() {
    let mut planner = Planner::new(&[Pool { attribute_sets: vec![cpus(4), cpus(2)], ..hot_pool("hot", 0, 1) }]);
    planner.add_idle("hot", 1, |slot| slot.attributes = cpus(2));
    planner.run(&[reserve(request(1, 1)), Job::KeepWarm]);
    assert_eq!(planner.snapshot.pool("hot").unwrap().pool.attribute_sets, [cpus(4)]);
}

fn report(changes: &Changes) -> WarmReport {
    match &changes.answers[0] {
        JobAnswer::KeepWarm(report) => *report,
        other => panic!("{other:?}"),
    }
}

/// Idle slots of a hot pool that keeps `min_idle`, started with the old image.
fn idle(min_idle: i64, max_slots: i64, count: i64) -> Planner {
    let of = Pool { min_idle, idle_timeout_ms: Some(60_000), recipe: Some("old".to_owned()), ..hot_pool("hot", 0, 9) };
    let mut planner = Planner::new(&[Pool { max_slots, ..of }]);
    for number in 1..=count {
        planner.add_idle("hot", number, |slot| slot.recipe = Some("old".to_owned()));
    }
    planner
}

#[test]
fn hot_slots_above_min_idle_are_stopped_once_they_were_idle_for_long_the_longest_first() {
    let mut planner = idle(2, 9, 4);
    planner.wait(30);
    let later = planner.add_idle("hot", 5, |slot| slot.recipe = Some("old".to_owned()));
    assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport::default());
    planner.wait(31);
    assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport { stopped: 3, ..WarmReport::default() });
    for number in 1..=3 {
        let before = planner.slot(&slot("hot", number)).clone();
        assert_eq!((before.status, before.stopped, before.agent.as_ref()), (SlotStatus::Draining, true, None));
        assert!(!fits(&planner.event(&before.name, SlotEvent::Gone)), "it stays");
        planner.event(&before.name, SlotEvent::Stopped);
        let after = planner.slot(&before.name);
        assert_eq!((after.status, after.stopped, after.generation), (SlotStatus::Idle, true, 2));
    }
    assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport::default(), "two are ready");
    // Slots with a waiting agent go first, then a stopped one, which is started for its bot.
    let changes = planner.run(&[reserve(request(1, 1)), reserve(request(2, 2)), reserve(request(3, 3))]);
    assert_eq!([1, 2].map(|number| planner.slot_of(number)), [slot("hot", 4), later].map(Some));
    assert_eq!(planner.slot_of(3), Some(slot("hot", 1)));
    assert_eq!(changes.deployments.iter().map(|asked| asked.bot).collect::<Vec<_>>(), [Some(bot(3))]);
    assert!(!planner.slot(&slot("hot", 1)).stopped);
    // Missing slots come from stopped ones before new ones are made.
    assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport { made: 2, ..WarmReport::default() });
    assert_eq!(planner.snapshot.slots().len(), 5);
}

#[test]
fn a_slot_that_is_about_to_be_stopped_can_be_drained_and_one_that_could_not_be_stopped_is_tried_again() {
    let mut planner = idle(0, 9, 2);
    planner.wait(61);
    planner.run(&[Job::KeepWarm]);
    let (first, second) = (slot("hot", 1), slot("hot", 2));
    planner.event(&first, SlotEvent::Drain);
    assert!(!planner.slot(&first).stopped);
    planner.event(&first, SlotEvent::Gone);
    let since = planner.slot(&second).status_since;
    planner.event(&second, SlotEvent::Failed { since, message: "no".to_owned() });
    let after = planner.slot(&second);
    assert_eq!((after.status, after.stopped), (SlotStatus::Draining, true));
    planner.event(&second, SlotEvent::Stopped);
    assert_eq!(planner.slot(&second).error_message, None);
}

/// The agents of all slots that are being made ready start to wait. Their slots have the new image.
fn all_start(planner: &mut Planner) {
    let making = planner.snapshot.slots().filter(|slot| slot.status == SlotStatus::Creating);
    for name in making.map(|slot| slot.name.clone()).collect::<Vec<_>>() {
        let holder = planner.pass_gate(&name);
        let recipe = Some("new".to_owned());
        let started = SlotEvent::Started { bot: None, provider_ref: "ref".to_owned(), recipe, holder };
        planner.event(&name, started);
        let claim = SlotClaim::current(planner.slot(&name));
        planner.event(&name, SlotEvent::AgentWaits { claim, agent: "new".to_owned() });
    }
}

fn ready(planner: &Planner) -> usize {
    planner.snapshot.slots().filter(|slot| slot.status == SlotStatus::Idle && !slot.stopped).count()
}

#[test]
fn a_new_image_reaches_the_idle_slots_one_by_one_and_as_many_stay_ready_where_the_pool_can_grow() {
    reaches_all(9, 2);
}

#[test]
fn a_new_image_reaches_the_idle_slots_of_a_pool_that_cannot_grow_with_one_fewer_ready() {
    reaches_all(2, 1);
}

fn reaches_all(max_slots: i64, least_ready: usize) {
    let mut planner = idle(2, max_slots, 2);
    let of = planner.snapshot.pool("hot").unwrap().pool.clone();
    planner.snapshot.set_pool("hot", Some(Pool { recipe: Some("new".to_owned()), ..of }));
    let mut steps = 0;
    while planner.snapshot.slots().any(|slot| slot.recipe.as_deref() != Some("new")) {
        let did = report(&planner.run(&[Job::KeepWarm]));
        assert_eq!(did.made + did.replaced, 1, "one at a time");
        assert!(ready(&planner) >= least_ready);
        assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport::default(), "one is being made ready");
        all_start(&mut planner);
        steps += 1;
        assert!(steps < 9);
    }
    assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport::default());
}

#[test]
fn a_command_that_was_ready_for_long_is_replaced_one_slot_at_a_time_before_it_reaches_its_limit() {
    for (max_slots, least_ready) in [(9, 2), (2, 1)] {
        let mut planner = idle(2, max_slots, 2);
        let of = planner.snapshot.pool("hot").unwrap().pool.clone();
        let prewarmed = Pool {
            idle_timeout_ms: None,
            ready_timeout_ms: Some(1_000),
            max_warm_age_ms: Some(40_000),
            recipe: None,
            ..of
        };
        planner.snapshot.set_pool("hot", Some(prewarmed));
        planner.wait(29);
        assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport::default());
        planner.wait(2);
        let start = planner.now;
        let mut replaced = 0;
        while planner.snapshot.slots().any(|slot| slot.status_since < start) {
            let did = report(&planner.run(&[Job::KeepWarm]));
            assert_eq!(did.made + did.replaced, 1, "one at a time");
            assert!(ready(&planner) >= least_ready);
            assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport::default(), "one is being made ready");
            all_start(&mut planner);
            replaced += did.replaced;
        }
        assert_eq!(replaced, 2);
        assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport::default());
    }
}

#[test]
fn a_spare_slot_that_is_replaced_again_and_again_is_stopped_when_it_was_unused_for_long() {
    let mut planner = idle(1, 9, 2);
    let of = planner.snapshot.pool("hot").unwrap().pool.clone();
    let prewarmed = Pool { ready_timeout_ms: Some(1_000), max_warm_age_ms: Some(40_000), recipe: None, ..of };
    planner.snapshot.set_pool("hot", Some(prewarmed));
    let mut stopped = 0;
    for round in 0..40 {
        planner.wait(15);
        stopped += report(&planner.run(&[Job::KeepWarm])).stopped;
        let draining = planner.snapshot.slots().filter(|slot| slot.status == SlotStatus::Draining);
        for name in draining.map(|slot| slot.name.clone()).collect::<Vec<_>>() {
            planner.event(&name, SlotEvent::Stopped);
        }
        all_start(&mut planner);
        // A replacement grows the pool by one slot, which is stopped in its turn.
        assert!((1..=2).contains(&ready(&planner)), "round {round}: {}", ready(&planner));
    }
    assert!(stopped > 0 && planner.snapshot.slots().len() <= 3);
}

#[test]
fn a_pool_that_starts_no_command_ahead_replaces_none() {
    let mut planner = idle(2, 9, 2);
    let of = planner.snapshot.pool("hot").unwrap().pool.clone();
    planner.snapshot.set_pool("hot", Some(Pool { idle_timeout_ms: None, max_warm_age_ms: Some(1_000), ..of }));
    planner.wait(60);
    assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport::default());
}

#[test]
fn an_image_that_does_not_start_reaches_one_slot() {
    let mut planner = idle(2, 9, 4);
    let of = planner.snapshot.pool("hot").unwrap().pool.clone();
    planner.snapshot.set_pool("hot", Some(Pool { recipe: Some("new".to_owned()), ..of }));
    assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport { replaced: 1, ..WarmReport::default() });
    planner.event(&slot("hot", 1), SlotEvent::Broken { bot: None, message: "no such command".to_owned() });
    assert_eq!(report(&planner.run(&[Job::KeepWarm])), WarmReport::default());
    assert_eq!(ready(&planner), 3);
}
