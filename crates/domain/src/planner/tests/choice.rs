//! Tests of the choice of a slot for a bot.

use super::*;

#[test]
fn a_slot_of_another_platform_is_not_assigned() {
    let mut planner = Planner::new(&[
        Pool { platform: Platform::Zoom, ..pool("zoom", 0, 5) },
        Pool { max_slots: 0, ..pool("meet", 1, 5) },
    ]);
    planner.add_idle("zoom", 1, |_| {});
    let changes = planner.run(&[reserve(request(1, 1))]);
    assert_eq!(reserved(&changes, 0).queue_position, Some(1));
}

#[test]
fn the_smallest_slot_that_meets_the_requirements_is_assigned() {
    let of = |name, position, cpu| Pool { attribute_sets: vec![cpus(cpu)], ..pool(name, position, 3) };
    let mut planner = Planner::new(&[of("eight", 0, 8), of("four", 1, 4), of("two", 2, 2)]);
    for name in ["eight", "four", "two"] {
        planner.add_idle(name, 1, |_| {});
    }
    let with = |number, cpu| reserve(ReserveRequest { requirements: needs_cpus(cpu), ..request(number, 1) });
    planner.run(&[with(1, 3), reserve(request(2, 1)), with(3, 3)]);
    assert_eq!(planner.slot_of(1), Some(slot("four", 1)));
    assert_eq!(planner.slot_of(2), Some(slot("two", 1)));
    assert_eq!(planner.slot_of(3), Some(slot("eight", 1)), "an idle one that is too large before a new one");
    planner.run(&[with(4, 3)]);
    assert_eq!(planner.slot_of(4), Some(slot("four", 2)), "the smallest new one");
}

#[test]
fn of_equal_slots_the_least_recently_used_is_assigned() {
    let mut planner = Planner::new(&[pool("cold", 0, 5)]);
    let now = planner.now;
    for (number, ago) in [(1, Some(10)), (2, Some(30)), (3, None), (4, Some(20))] {
        planner.add_idle("cold", number, |slot| slot.last_used_at = ago.map(|ago| now - Duration::from_secs(ago)));
    }
    planner.run(&(1..=4).map(|number| reserve(request(number, 1))).collect::<Vec<_>>());
    let given: Vec<_> = (1..=4).map(|number| planner.slot_of(number).unwrap()).collect();
    assert_eq!(given, [slot("cold", 3), slot("cold", 2), slot("cold", 4), slot("cold", 1)]);
}

#[test]
fn a_slot_with_a_waiting_agent_is_used_before_one_that_must_be_started() {
    let mut planner = Planner::new(&[Pool { recycle_after: 1, ..hot_pool("hot", 0, 2) }]);
    let used = planner.add_idle("hot", 1, |_| {});
    planner.run(&[reserve(request(1, 1))]);
    planner.run(&[planner.exits(1, 0)]);
    let (now, cleared) = (planner.now, SlotEvent::Cleared { bot: bot(1) });
    planner.add_idle("hot", 2, |slot| slot.last_used_at = Some(now + Duration::from_secs(1)));
    let changes = planner.run(&[Job::Slot(used, cleared), reserve(request(2, 1))]);
    assert_eq!(planner.slot_of(2), Some(slot("hot", 2)), "although the other was used less recently");
    assert!(changes.actions.contains(&Action::WakeAgent(slot("hot", 2))));
}

#[test]
fn pools_are_used_in_the_order_of_the_configuration() {
    let mut planner = Planner::new(&[pool("a", 1, 1), pool("b", 0, 1)]);
    planner.run(&[reserve(request(1, 1)), reserve(request(2, 1)), reserve(request(3, 1))]);
    assert_eq!(planner.slot_of(1), Some(slot("b", 1)));
    assert_eq!(planner.slot_of(2), Some(slot("a", 1)));
    assert_eq!(planner.slot_of(3), None);
    assert_eq!(planner.bot(3).queued.as_ref().unwrap().pool, "b");
}

#[test]
fn an_expired_slot_is_not_assigned() {
    let mut planner = Planner::new(&[Pool { expire_after_ms: Some(1000), ..pool("cold", 0, 1) }]);
    let now = planner.now;
    planner.add_idle("cold", 1, |slot| slot.expires_at = Some(now));
    let changes = planner.run(&[reserve(request(1, 1))]);
    assert_eq!(reserved(&changes, 0).queue_position, Some(1));
}

#[test]
fn a_slot_is_assigned_after_its_pool_stopped_expiring_slots() {
    let mut planner = Planner::new(&[pool("cold", 0, 1)]);
    let now = planner.now;
    let idle = planner.add_idle("cold", 1, |slot| slot.expires_at = Some(now));
    planner.run(&[reserve(request(1, 1))]);
    assert_eq!(planner.slot_of(1), Some(idle));
}

#[test]
fn a_pool_grows_up_to_its_most_slots_and_uses_the_first_free_number() {
    let mut planner = Planner::new(&[pool("cold", 0, 3)]);
    planner.add_idle("cold", 2, |slot| slot.status = SlotStatus::Error);
    let changes = planner.run(&(1..=3).map(|number| reserve(request(number, 1))).collect::<Vec<_>>());
    assert_eq!(planner.slot_of(1), Some(slot("cold", 1)));
    assert_eq!(planner.slot_of(2), Some(slot("cold", 3)));
    assert_eq!(planner.slot_of(3), None);
    assert_eq!(planner.snapshot.pool("cold").unwrap().pool.slots, 3);
    assert_eq!(changes.deployments.len(), 2);
    assert_eq!(changes.deployments[0].bot, Some(bot(1)));
    assert_eq!(planner.slot(&slot("cold", 1)).status, SlotStatus::Creating);
}

#[test]
fn existing_slots_are_used_before_those_provisioned_per_bot() {
    let mut planner = Planner::new(&[runner_pool("ec2", 0, 5), pool("cold", 1, 5)]);
    planner.add_idle("cold", 1, |_| {});
    planner.add_idle("ec2", 1, |_| {});
    planner.run(&[reserve(request(1, 1)), reserve(request(2, 1))]);
    assert_eq!(planner.slot_of(1), Some(slot("cold", 1)));
    assert_eq!(planner.slot_of(2), Some(slot("ec2", 1)), "an idle one before a new one");
}
