//! Slots that are kept ready.

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
fn no_more_are_made_than_there_is_room_for() {
    let mut planner = Planner::new(&[Pool { min_idle: 3, ..pool("cold", 0, 2) }]);
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (2, 0));
}

#[test]
fn what_is_broken_is_replaced_once_and_then_waited_for() {
    let mut planner = Planner::new(&[Pool { min_idle: 1, ..pool("cold", 0, 9) }]);
    planner.add_idle("cold", 1, |slot| slot.status = SlotStatus::Error);
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (1, 0));
    planner.event(&slot("cold", 2), SlotEvent::Broken { bot: None, message: "no".to_owned() });
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (0, 0));
}

#[test]
fn nothing_is_made_ahead_where_slots_are_provisioned_per_bot_or_the_pool_is_gone() {
    let gone = Pool { min_idle: 1, place: None, ..pool("gone", 0, 2) };
    let mut planner = Planner::new(&[Pool { min_idle: 1, ..runner_pool("ec2", 0, 2) }, gone]);
    assert!(planner.run(&[Job::KeepWarm]).is_empty());
}

#[test]
fn a_pool_that_is_too_large_lets_go_of_idle_slots_the_least_recently_used_first() {
    let mut planner = Planner::new(&[pool("cold", 0, 1)]);
    let now = planner.now;
    planner.add_idle("cold", 1, |slot| slot.last_used_at = Some(now));
    planner.add_idle("cold", 2, |_| {});
    planner.add_idle("cold", 3, |slot| slot.status = SlotStatus::Draining);
    assert_eq!(warm(&planner.run(&[Job::KeepWarm])), (0, 1));
    assert_eq!(planner.slot(&slot("cold", 2)).status, SlotStatus::Draining);
}

#[test]
fn a_slot_that_came_free_in_the_same_plan_can_be_let_go() {
    let mut planner = Planner::new(&[hot_pool("hot", 0, 1)]);
    planner.add_idle("hot", 1, |_| {});
    planner.run(&[reserve(request(1, 1))]);
    planner.snapshot.set_pool("hot", Some(Pool { max_slots: 0, slots: 1, ..hot_pool("hot", 0, 0) }));
    let changes = planner.run(&[planner.exits(1, 0), Job::KeepWarm]);
    assert_eq!(changes.answers[1], Answer::KeepWarm(WarmReport { made: 0, let_go: 1 }));
    assert_eq!(planner.slot(&slot("hot", 1)).status, SlotStatus::Draining);
}

#[test]
fn slots_whose_time_is_over_are_let_go() {
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
