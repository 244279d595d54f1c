//! Tests that each violation is found: in the whole snapshot, in the part that has it, and in the changes of a batch.

use super::*;
use crate::planner::changes::SlotChange;
use crate::planner::invariants::{BatchCheck, Scope, Violation, violations};

/// Two bots in a pool with two slots, and a third bot that waits.
fn planner() -> Planner {
    let mut planner = Planner::new(&[pool("cold", 0, 2)]);
    planner.run(&[reserve(request(1, 1)), reserve(request(2, 1)), reserve(request(3, 2))]);
    planner
}

/// Changes that contain the changed bot.
fn changed(planner: &Planner, number: u64, change: impl FnOnce(&mut OpenBot)) -> Changes {
    let mut changed = planner.bot(number).clone();
    change(&mut changed);
    Changes { bots: [(bot(number), Some(changed))].into(), ..Changes::default() }
}

fn changed_slot(planner: &Planner, name: &SlotName, change: impl FnOnce(&mut Slot)) -> Changes {
    let mut slot = planner.slot(name).clone();
    change(&mut slot);
    let change = SlotChange { is_new: false, only_use_changed: false, slot: Some(slot) };
    Changes { slots: [(name.clone(), change)].into(), ..Changes::default() }
}

/// Checks that exactly this kind of violation is found, with every way to check.
fn expect_found(mut planner: Planner, changes: Changes, kind: &str) -> Vec<Violation> {
    let check = BatchCheck::new(&planner.snapshot, &changes);
    planner.snapshot.apply(changes);
    let found = violations(&planner.snapshot);
    assert!(!found.is_empty() && found.iter().all(|one| one.kind() == kind), "{found:?}");
    let mut parts = Vec::new();
    for skipped in 0..planner.snapshot.slots().len().max(planner.snapshot.bots().count()) {
        parts.extend(Scope::part(&planner.snapshot, skipped, 1).violations(&planner.snapshot));
    }
    assert!(!parts.is_empty() && parts.iter().all(|one| one.kind() == kind), "{parts:?}");
    let complaints = check.complaints(&planner.snapshot);
    assert!(!complaints.is_empty(), "what the batch changed shows it");
    found
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let planner = planner();
    assert_eq!(violations(&planner.snapshot), []);
    assert_eq!(Scope::part(&planner.snapshot, 0, 100).violations(&planner.snapshot), []);
}

#[test]
fn a_bot_in_two_slots_is_found() {
    let planner = planner();
    let (own, other) = (planner.slot_of(1).unwrap(), planner.slot_of(2).unwrap());
    let mut changes = changed_slot(&planner, &other, |slot| slot.bot_id = Some(bot(1)));
    changes.bots.insert(bot(2), None);
    let found = expect_found(planner, changes, "bot_in_two_slots");
    let Violation::BotInTwoSlots { slots, .. } = &found[0] else { panic!("{found:?}") };
    assert!(slots.contains(&own) && slots.contains(&other));
}

#[test]
fn a_slot_of_two_bots_is_found() {
    let planner = planner();
    let slot = planner.slot_of(1);
    let mut changes = changed(&planner, 2, |bot| bot.slot = slot);
    changes.slots = changed_slot(&planner, &planner.slot_of(2).unwrap(), |slot| slot.bot_id = None).slots;
    expect_found(planner, changes, "slot_of_two_bots");
}

#[test]
fn a_bot_in_a_slot_of_another_platform_is_found() {
    let planner = planner();
    let changes = changed(&planner, 1, |bot| bot.platform = Platform::Zoom);
    expect_found(planner, changes, "wrong_platform");
}

#[test]
fn two_bots_of_a_user_at_one_meeting_are_found_whichever_was_changed() {
    for number in [1, 2] {
        let planner = planner();
        let changes = changed(&planner, number, |bot| bot.native_meeting_id = format!("meeting-{}", 3 - number));
        expect_found(planner, changes, "two_at_a_meeting");
    }
}

#[test]
fn a_pool_that_counts_its_slots_wrong_is_found() {
    let planner = planner();
    let mut of = planner.snapshot.pool("cold").unwrap().pool.clone();
    of.slots = 1;
    let changes = Changes { pools: [("cold".to_owned(), of)].into(), ..Changes::default() };
    expect_found(planner, changes, "pool_miscounted");
}

#[test]
fn a_bot_without_a_slot_and_outside_the_queue_is_found() {
    let planner = planner();
    let changes = changed(&planner, 3, |bot| bot.queued = None);
    expect_found(planner, changes, "bot_lost");
}

#[test]
fn a_bot_that_waits_in_a_slot_is_found() {
    let planner = planner();
    let queued = planner.bot(3).queued.clone();
    let changes = changed(&planner, 1, |bot| bot.queued = queued);
    expect_found(planner, changes, "queued_with_slot");
}

/// The result of the batch check for these changes.
fn complaints(mut planner: Planner, changes: Changes) -> Vec<String> {
    let check = BatchCheck::new(&planner.snapshot, &changes);
    planner.snapshot.apply(changes);
    check.complaints(&planner.snapshot)
}

#[test]
fn a_batch_that_exceeds_a_limit_or_a_pool_size_is_found() {
    let mut planner = planner();
    planner.set_user(1, 2, 0);
    let changes = planner.plan(&[give_up(3, Overdue::QueueTimeout)]);
    assert_eq!(complaints(planner, changes), Vec::<String>::new());

    let mut planner = self::planner();
    planner.set_user(1, 2, 0);
    let changes = changed(&planner, 3, |bot| bot.user = user(1));
    assert_eq!(complaints(planner, changes), [format!("3 running bots of user {}; 2 are allowed", user(1))]);

    let planner = self::planner();
    let mut of = planner.snapshot.pool("cold").unwrap().pool.clone();
    of.slots = 3;
    let mut slot = planner.slot(&planner.slot_of(1).unwrap()).clone();
    (slot.name, slot.number, slot.bot_id, slot.status) = (slot_name(), 3, None, SlotStatus::Idle);
    let change = SlotChange { is_new: true, only_use_changed: false, slot: Some(slot) };
    let changes = Changes {
        slots: [(slot_name(), change)].into(),
        pools: [("cold".to_owned(), of)].into(),
        ..Changes::default()
    };
    assert_eq!(complaints(planner, changes), ["3 slots of pool cold; 2 are allowed"]);
}

fn slot_name() -> SlotName {
    slot("cold", 3)
}

#[test]
fn a_limit_that_was_lowered_before_is_no_fault_of_the_batch() {
    let mut planner = planner();
    planner.set_user(1, 1, 0);
    let changes = changed(&planner, 1, |bot| bot.stop_asked = true);
    assert_eq!(complaints(planner, changes), Vec::<String>::new());
}
