//! Tests of the admission of bots.

use super::*;
use crate::ShownStatus;

#[test]
fn a_bot_gets_an_idle_slot_and_one_event_that_names_it() {
    let mut planner = Planner::new(&[hot_pool("hot", 0, 5)]);
    let idle = planner.add_idle("hot", 1, |_| {});
    let changes = planner.run(&[reserve(request(1, 1))]);
    assert_eq!(planner.slot_of(1), Some(idle.clone()));
    assert_eq!(reserved(&changes, 0).queue_position, None);
    assert_eq!(changes.events.len(), 1);
    assert_eq!(changes.events[0].reason, Some(idle.to_string()));
    assert!(changes.new_bots[0].is_awaited);
    assert!(changes.grants.is_empty() && changes.queued.is_empty() && changes.deployments.is_empty());
}

#[test]
fn a_user_has_no_more_running_bots_than_its_limit() {
    let mut planner = Planner::new(&[pool("cold", 0, 5)]);
    planner.set_user(1, 2, 0);
    let changes = planner.run(&[reserve(request(1, 1)), reserve(request(2, 1)), reserve(request(3, 1))]);
    assert_eq!(refusal(&changes, 2), &Refusal::LimitReached { running: 2, limit: 2 });
    let changes = planner.run(&[reserve(request(4, 1)), reserve(request(5, 2))]);
    assert_eq!(refusal(&changes, 0), &Refusal::LimitReached { running: 2, limit: 2 });
    assert!(reserved(&changes, 1).is_new, "another user is not concerned");
}

#[test]
fn a_limit_of_zero_admits_no_bot() {
    let mut planner = Planner::new(&[pool("cold", 0, 5)]);
    planner.set_user(1, 0, 0);
    let changes = planner.run(&[reserve(request(1, 1))]);
    assert_eq!(refusal(&changes, 0), &Refusal::LimitReached { running: 0, limit: 0 });
    assert!(changes.is_empty());
}

#[test]
fn with_leaving_bots_a_user_has_at_most_twice_its_limit() {
    let mut planner = Planner::new(&[pool("cold", 0, 9)]);
    planner.set_user(1, 2, 0);
    for first in [1, 3] {
        planner.run(&[reserve(request(first, 1)), reserve(request(first + 1, 1))]);
        if first == 1 {
            (1..=2).for_each(|number| planner.change_bot(number, |bot| bot.status = Status::Stopping));
        }
    }
    (3..=4).for_each(|number| planner.change_bot(number, |bot| bot.status = Status::Stopping));
    let changes = planner.run(&[reserve(request(5, 1))]);
    assert_eq!(refusal(&changes, 0), &Refusal::LimitReached { running: 0, limit: 2 });
}

#[test]
fn an_end_makes_room_under_the_limit_for_the_next_job_of_the_same_plan() {
    let mut planner = Planner::new(&[pool("cold", 0, 5)]);
    planner.set_user(1, 1, 0);
    planner.run(&[reserve(request(1, 1))]);
    let changes = planner.run(&[planner.exits(1, 0), reserve(request(2, 1))]);
    assert!(reserved(&changes, 1).is_new);
}

#[test]
fn a_priority_below_the_minimum_of_the_user_is_refused() {
    let mut planner = Planner::new(&[pool("cold", 0, 5)]);
    planner.set_user(1, 5, 50);
    let of = |number, priority| reserve(ReserveRequest { priority, ..request(number, 1) });
    let changes = planner.run(&[of(1, 49), of(2, 50)]);
    assert_eq!(refusal(&changes, 0), &Refusal::PriorityTooLow { min: 50 });
    assert!(reserved(&changes, 1).is_new);
}

#[test]
fn a_user_cannot_have_two_running_bots_in_one_meeting() {
    let mut planner = Planner::new(&[pool("cold", 0, 5)]);
    let at = |number, of| reserve(ReserveRequest { native_meeting_id: "same".to_owned(), ..request(number, of) });
    let changes = planner.run(&[at(1, 1), at(2, 1), at(3, 2)]);
    assert_eq!(refusal(&changes, 1), &Refusal::DuplicateBot(bot(1)));
    assert!(reserved(&changes, 2).is_new, "another user may");
    planner.change_bot(1, |bot| bot.status = Status::Stopping);
    let changes = planner.run(&[at(4, 1), at(5, 1)]);
    assert!(reserved(&changes, 0).is_new, "one on its way out keeps nobody out");
    assert_eq!(refusal(&changes, 1), &Refusal::DuplicateBot(bot(4)));
}

#[test]
fn the_same_request_under_one_idempotency_key_is_one_bot() {
    let mut planner = Planner::new(&[pool("cold", 0, 5)]);
    let under = |number, of, body: &str| {
        let idempotency = Some(("key".to_owned(), body.to_owned()));
        reserve(ReserveRequest { idempotency, ..request(number, of) })
    };
    let changes = planner.run(&[under(1, 1, "a"), under(2, 1, "a"), under(3, 1, "b"), under(4, 2, "b")]);
    assert_eq!((reserved(&changes, 1).bot, reserved(&changes, 1).is_new), (bot(1), false));
    assert_eq!(refusal(&changes, 2), &Refusal::IdempotencyMismatch);
    assert!(reserved(&changes, 3).is_new, "the key is another user's");
    assert_eq!(changes.new_keys.len(), 2);
    let changes = planner.run(&[under(5, 1, "a"), under(6, 1, "b")]);
    assert_eq!((reserved(&changes, 0).bot, reserved(&changes, 0).is_new), (bot(1), false));
    assert_eq!(refusal(&changes, 1), &Refusal::IdempotencyMismatch);
    assert!(changes.is_empty());
}

#[test]
fn a_request_whose_commit_result_was_lost_is_not_admitted_twice() {
    let mut planner = Planner::new(&[pool("cold", 0, 5)]);
    planner.run(&[reserve(request(1, 1))]);
    let second = planner.run(&[reserve(request(1, 1))]);
    assert!(reserved(&second, 0).is_new && second.is_empty());
    planner.run(&[planner.exits(1, 0)]);
    let second = planner.run(&[reserve(request(1, 1))]);
    assert!(second.is_empty(), "it has ended meanwhile");
}

#[test]
fn a_platform_without_a_pool_and_requirements_that_no_slot_can_meet_are_refused() {
    let gone = Pool { fill_order: None, ..pool("gone", 0, 5) };
    let teams = Pool { platform: Platform::Teams, fill_order: None, ..pool("teams", 0, 5) };
    let mut planner = Planner::new(&[pool("cold", 1, 5), gone, teams]);
    let on = |number, platform| reserve(ReserveRequest { platform, ..request(number, 1) });
    let large = reserve(ReserveRequest { requirements: needs_cpus(64), ..request(3, 1) });
    let changes = planner.run(&[on(1, Platform::Zoom), on(2, Platform::Teams), large]);
    assert_eq!(refusal(&changes, 0), &Refusal::NoPool(Platform::Zoom));
    assert_eq!(refusal(&changes, 1), &Refusal::NoPool(Platform::Teams), "it is not in the configuration any more");
    assert_eq!(refusal(&changes, 2), &Refusal::NothingFits(Platform::GoogleMeet));
}

#[test]
fn an_unknown_or_expired_key_is_refused() {
    let mut planner = Planner::new(&[pool("cold", 0, 5)]);
    let api_keys = vec![(KeyId(user(1).0), Some(planner.now))];
    planner.snapshot.set_user(user(1), Some(User { max_concurrent_bots: 1, min_priority: 0, api_keys }));
    let other = reserve(ReserveRequest { key: Some(KeyId(user(3).0)), ..request(2, 2) });
    let changes = planner.run(&[reserve(request(1, 1)), other, reserve(request(3, 9))]);
    (0..3).for_each(|job| assert_eq!(refusal(&changes, job), &Refusal::KeyExpired));
}

#[test]
fn an_operator_needs_no_key_of_the_user_and_the_limits_of_the_user_hold() {
    let mut planner = Planner::new(&[pool("cold", 1, 1)]);
    let api_keys = vec![(KeyId(user(1).0), Some(planner.now))];
    planner.snapshot.set_user(user(1), Some(User { max_concurrent_bots: 2, min_priority: 0, api_keys }));
    let by_operator = |number, of| reserve(ReserveRequest { key: None, ..request(number, of) });
    let changes = planner.run(&[by_operator(1, 1), by_operator(2, 1), by_operator(3, 1), by_operator(4, 9)]);
    assert_eq!(refusal(&changes, 2), &Refusal::LimitReached { running: 2, limit: 2 });
    assert_eq!(refusal(&changes, 3), &Refusal::KeyExpired, "there is no such user");
    let created: Vec<_> = changes.events.iter().map(|event| (event.bot_id, event.to, event.actor)).collect();
    let (placed, queued) = (Some(ShownStatus::Deploying), Some(ShownStatus::Queued));
    assert_eq!(created, [(bot(1), placed, Actor::Operator), (bot(2), queued, Actor::Operator)]);
}
