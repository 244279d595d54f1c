//! Tests of probes: bots that get only slots of one pool.

use super::*;
use crate::PROBE_USER;

/// A planner that knows the user of probes, which has no key.
fn with_probes(pools: &[Pool]) -> Planner {
    let mut planner = Planner::new(pools);
    let user = User { max_concurrent_bots: 2, min_priority: 0, api_keys: Vec::new() };
    planner.snapshot.set_user(PROBE_USER, Some(user));
    planner
}

fn probe(number: u64, pool: &str) -> Job {
    let (user, key, native_meeting_id) = (PROBE_USER, None, pool.to_owned());
    reserve(ReserveRequest { user, key, native_meeting_id, pool: Some(pool.to_owned()), ..request(number, 1) })
}

#[test]
fn a_probe_gets_a_slot_of_its_pool_although_another_pool_comes_first() {
    let mut planner = with_probes(&[hot_pool("first", 0, 5), hot_pool("probed", 1, 5)]);
    planner.add_idle("first", 1, |_| {});
    let idle = planner.add_idle("probed", 1, |_| {});
    planner.run(&[probe(1, "probed")]);
    assert_eq!(planner.slot_of(1), Some(idle));
}

#[test]
fn a_probe_makes_a_slot_only_in_its_pool() {
    let mut planner = with_probes(&[pool("first", 0, 5), pool("probed", 1, 1)]);
    planner.add_idle("first", 1, |_| {});
    planner.run(&[probe(1, "probed")]);
    assert_eq!(planner.slot_of(1), Some(slot("probed", 1)));
}

#[test]
fn a_probe_waits_for_its_full_pool_and_delays_no_bot_of_another_pool() {
    let mut planner = with_probes(&[pool("first", 0, 2), pool("probed", 1, 1)]);
    planner.run(&[probe(1, "probed"), reserve(request(2, 1))]);
    planner.change_bot(1, |bot| bot.status = Status::Stopping);
    let changes = planner.run(&[probe(3, "probed"), reserve(request(4, 1))]);
    assert_eq!(reserved(&changes, 0).queue_position, Some(1));
    assert_eq!(planner.bot(3).queued.as_ref().map(|queued| queued.pool.as_str()), Some("probed"));
    assert_eq!(planner.slot_of(4), Some(slot("first", 2)), "the bot behind the probe gets another pool's slot");
    // A slot of the other pool that comes free is not for the probe.
    planner.run(&[planner.exits(2, 0)]);
    planner.event(&slot("first", 1), SlotEvent::Cleared { bot: bot(2) });
    assert_eq!((planner.slot_of(3), planner.slot(&slot("first", 1)).bot_id), (None, None));
    planner.run(&[planner.exits(1, 0)]);
    planner.event(&slot("probed", 1), SlotEvent::Cleared { bot: bot(1) });
    assert_eq!(planner.slot_of(3), Some(slot("probed", 1)));
}

#[test]
fn a_pool_has_one_probe_at_a_time_and_all_pools_together_have_few() {
    let mut planner = with_probes(&[pool("a", 0, 5), pool("b", 1, 5), pool("c", 2, 5)]);
    let changes = planner.run(&[probe(1, "a"), probe(2, "a"), probe(3, "b"), probe(4, "c")]);
    assert_eq!(refusal(&changes, 1), &Refusal::DuplicateBot(bot(1)));
    assert!(reserved(&changes, 2).is_new);
    assert_eq!(refusal(&changes, 3), &Refusal::LimitReached { running: 2, limit: 2 });
}

#[test]
fn a_probe_of_a_pool_that_is_unknown_or_not_configured_is_refused() {
    let gone = Pool { fill_order: None, ..pool("gone", 0, 5) };
    let mut planner = with_probes(&[pool("a", 0, 5), gone]);
    let without_pool = reserve(ReserveRequest { user: PROBE_USER, key: None, ..request(3, 1) });
    let changes = planner.run(&[probe(1, "nowhere"), probe(2, "gone"), without_pool]);
    (0..3).for_each(|job| assert_eq!(refusal(&changes, job), &Refusal::NoPool(Platform::GoogleMeet)));
}

#[test]
fn a_probe_counts_neither_as_a_use_of_its_slot_nor_towards_the_mean_hold() {
    let mut planner = with_probes(&[hot_pool("probed", 0, 1)]);
    let idle = planner.add_idle("probed", 1, |_| {});
    planner.run(&[probe(1, "probed")]);
    planner.wait(3);
    planner.run(&[planner.exits(1, 0)]);
    assert_eq!((planner.slot(&idle).status, planner.slot(&idle).last_used_at), (SlotStatus::Idle, None));
    assert_eq!(planner.snapshot.pool("probed").unwrap().pool.mean_hold_ms, None);
}
