//! Tests of rules for every plan.

use super::*;
use crate::planner::MOST_AT_ONCE;

#[test]
fn the_same_plan_is_made_twice() {
    let mut planner = Planner::new(&[hot_pool("hot", 0, 3), pool("cold", 1, 3)]);
    planner.add_idle("hot", 1, |_| {});
    let jobs: Vec<Job> = (1..=8).map(|number| reserve(request(number, 1))).chain([Job::KeepWarm]).collect();
    let text = |changes: Changes| {
        let bots: std::collections::BTreeMap<_, _> = changes.bots.clone().into_iter().collect();
        format!("{bots:?} {:?} {:?} {:?}", changes.slots, changes.events, changes.actions)
    };
    assert_eq!(text(planner.plan(&jobs)), text(planner.plan(&jobs)));
}

#[test]
fn each_action_is_requested_once() {
    let mut planner = Planner::new(&[Pool { min_idle: 1, ..hot_pool("hot", 0, 5) }]);
    let idle = planner.add_idle("hot", 1, |_| {});
    let event = SlotEvent::AgentWaits { claim: SlotClaim::current(planner.slot(&idle)), agent: "new".to_owned() };
    let mut jobs = vec![Job::Slot(idle.clone(), event)];
    jobs.extend((1..=9).map(|number| reserve(request(number, 1))));
    let changes = planner.run(&jobs);
    for action in [Action::PassGate, Action::WatchQueue, Action::RefillPools, Action::WakeAgent(idle)] {
        assert_eq!(changes.actions.iter().filter(|asked| **asked == action).count(), 1, "{action:?}");
    }
    let described = changes.actions.iter().filter(|action| matches!(action, Action::Describe { .. })).count();
    assert_eq!(described, 5, "every slot has a bot");
}

#[test]
fn a_plan_with_too_many_assignments_is_continued_later() {
    let many = MOST_AT_ONCE as u64 + 10;
    let mut planner = Planner::new(&[pool("cold", 0, 2000)]);
    let changes = planner.run(&(1..=many).map(|number| reserve(request(number, 1))).collect::<Vec<_>>());
    assert!(changes.unfinished);
    assert_eq!((changes.deployments.len(), changes.queued.len()), (MOST_AT_ONCE, 10));
    let changes = planner.run(&[Job::ServeQueues]);
    assert_eq!((changes.grants.len(), changes.unfinished), (10, false));
}

#[test]
fn nothing_is_written_when_nothing_changes() {
    let mut planner = Planner::new(&[pool("cold", 0, 2)]);
    planner.add_idle("cold", 1, |_| {});
    let changes = planner.run(&[Job::KeepWarm, Job::ServeQueues, Job::RetryWaiting(Attributes::default())]);
    assert!(changes.is_empty() && changes.actions.is_empty());
}

#[test]
fn a_plan_does_not_change_what_it_was_made_on() {
    let mut planner = Planner::new(&[hot_pool("hot", 0, 2)]);
    planner.add_idle("hot", 1, |_| {});
    let before = planner.slot(&slot("hot", 1)).clone();
    planner.plan(&[reserve(request(1, 1))]);
    assert_eq!(planner.slot(&slot("hot", 1)), &before);
    assert_eq!(planner.snapshot.counts(user(1)).running, 0);
}

#[test]
fn bots_with_the_same_arrival_keep_separate_queue_positions() {
    let mut planner = Planner::new(&[pool("cold", 0, 0)]);
    planner.run(&[reserve(request(1, 1)), reserve(request(2, 1))]);
    (1..=2).for_each(|number| planner.change_bot(number, |bot| bot.arrival = 0));
    let waiting = planner.snapshot.queue().groups(Platform::GoogleMeet).map(|(_, group)| group.waiting.len());
    assert_eq!(waiting.sum::<usize>(), 2);
}

#[test]
fn a_deployment_waits_at_the_gate_of_its_host_for_as_long_as_it_may() {
    let mut planner = Planner::new(&[pool("cold", 0, 1)]);
    let changes = planner.run(&[reserve(request(1, 1))]);
    let asked = &changes.deployments[0];
    assert_eq!((asked.host.as_str(), asked.timeout_at), ("here", planner.now + Duration::from_secs(1800)));
    let waits = Deployment { bot: Some(bot(1)), state: GateState::Waiting, holder: None };
    assert_eq!(planner.snapshot.facts.deployments.get(&asked.slot), Some(&waits));
}
