//! Random lives of bots: the rules hold for any triggers in any order.

use proptest::prelude::*;

use super::*;

fn state(status: Status) -> LifecycleState {
    LifecycleState { status, stop_asked: false, has_joined: false, exit_code: None }
}

fn any_trigger() -> impl Strategy<Value = Trigger> {
    let word = prop_oneof![
        Just(None),
        Just(Some(Reason::Own("kicked".to_owned()))),
        Just(Some(Reason::Interrupted)),
        Just(Some(Reason::Killed))
    ];
    prop_oneof![
        any::<bool>().prop_map(|new_session| Trigger::Started { new_session }),
        word.clone().prop_map(|reason| Trigger::AwaitingAdmission { reason }),
        word.clone().prop_map(|reason| Trigger::NeedsHelp { reason }),
        Just(Trigger::Joined),
        word.clone().prop_map(|reason| Trigger::Stopping { reason }),
        (prop_oneof![Just(0), Just(1), Just(137)], word)
            .prop_map(|(exit_code, reason)| Trigger::Exited { exit_code, reason }),
        any::<bool>().prop_map(|assigned| Trigger::StopAsked { assigned }),
        prop_oneof![
            Just(Overdue::QueueTimeout),
            Just(Overdue::DeployTimeout),
            Just(Overdue::DeployFailed),
            Just(Overdue::NoStart),
            Just(Overdue::NoJoin),
            Just(Overdue::HeartbeatLost),
            Just(Overdue::Interrupted),
            Just(Overdue::StopGrace),
        ]
        .prop_map(Trigger::Passed),
    ]
}

/// A bot that follows the verdicts, as the store does.
fn follow(bot: &mut LifecycleState, trigger: &Trigger) -> Verdict {
    let verdict = decide(bot, trigger);
    if matches!(trigger, Trigger::StopAsked { .. }) && !bot.status.is_ended() {
        bot.stop_asked = true;
    }
    if let Verdict::Move { to, .. } = &verdict {
        bot.status = *to;
        bot.has_joined |= *to == Active;
        if let Trigger::Exited { exit_code, .. } = trigger {
            bot.exit_code = Some(*exit_code);
        }
    }
    verdict
}

proptest! {
    #[test]
    fn an_end_is_final_whatever_comes_after_it(triggers in prop::collection::vec(any_trigger(), 1..60)) {
        let mut bot = state(Reserved);
        let mut end = None;
        for trigger in &triggers {
            let verdict = follow(&mut bot, trigger);
            if let Some(end) = end {
                prop_assert_eq!(bot.status, end);
                prop_assert!(!matches!(verdict, Verdict::Move { .. } | Verdict::Refuse), "{:?} gave {:?}", trigger, verdict);
            } else if bot.status.is_ended() {
                end = Some(bot.status);
            }
        }
    }

    #[test]
    fn no_move_is_outside_the_table(triggers in prop::collection::vec(any_trigger(), 1..60)) {
        let mut bot = state(Reserved);
        for trigger in &triggers {
            let (before, state) = (bot.status, bot);
            if let Verdict::Move { to, .. } = follow(&mut bot, trigger) {
                prop_assert!(
                    TABLE.iter().any(|rule| rule.on == trigger.kind(&state) && rule.from.contains(&before) && rule.to == to),
                    "{} to {} on {:?}", before, to, trigger
                );
            }
        }
    }

    #[test]
    fn a_callback_that_is_repeated_at_once_changes_nothing_and_is_not_refused(
        triggers in prop::collection::vec(any_trigger(), 0..30),
        last in any_trigger(),
    ) {
        let mut bot = state(Reserved);
        for trigger in &triggers {
            follow(&mut bot, trigger);
        }
        if matches!(follow(&mut bot, &last), Verdict::Move { .. } | Verdict::Hold) {
            // The session of this connection is known by now, so a second `started` is not a new one.
            let repeated = match last {
                Trigger::Started { .. } => Trigger::Started { new_session: false },
                Trigger::Passed(_) => return Ok(()),
                other => other,
            };
            let before = bot;
            prop_assert_eq!(follow(&mut bot, &repeated), Verdict::Hold);
            prop_assert_eq!(bot, before);
        }
    }

    #[test]
    fn a_bot_that_its_user_stopped_ends_stopped_unless_it_crashed(
        triggers in prop::collection::vec(any_trigger(), 1..60),
    ) {
        let mut bot = state(Reserved);
        for trigger in &triggers {
            let asked = bot.stop_asked;
            if let Verdict::Move { to, reason } = follow(&mut bot, trigger)
                && asked
                && to.is_ended()
            {
                let crashed = matches!(
                    trigger,
                    Trigger::Exited { exit_code, reason } if *exit_code != 0 && !matches!(reason, Some(Reason::Interrupted | Reason::Killed))
                );
                prop_assert_eq!(to == Completed && reason == Some(Reason::Stopped), !crashed);
            }
        }
    }
}

#[test]
fn every_open_state_can_be_stopped_by_its_user() {
    for status in Status::OPEN {
        for assigned in [true, false] {
            let verdict = decide(&state(status), &Trigger::StopAsked { assigned });
            assert!(matches!(verdict, Verdict::Move { .. } | Verdict::Hold), "{status}: {verdict:?}");
        }
    }
}

#[test]
fn every_open_state_can_end() {
    for status in Status::OPEN {
        let verdict = decide(&state(status), &Trigger::Exited { exit_code: 1, reason: None });
        assert_eq!(verdict, Verdict::Move { to: Failed, reason: Some(Reason::Crashed) }, "{status}");
    }
}

#[test]
fn a_bot_that_exits_with_0_and_never_joined_has_failed() {
    let exited = Trigger::Exited { exit_code: 0, reason: None };
    let failed = Verdict::Move { to: Failed, reason: Some(Reason::NeverJoined) };
    for status in [Reserved, Starting, Status::AwaitingAdmission, Status::NeedsHelp] {
        assert_eq!(decide(&state(status), &exited), failed, "{status}");
        let completed = |state, exited| matches!(decide(&state, exited), Verdict::Move { to: Completed, .. });
        assert!(completed(LifecycleState { has_joined: true, ..state(status) }, &exited), "joined before");
        assert!(completed(LifecycleState { stop_asked: true, ..state(status) }, &exited), "asked to leave");
        let own = Trigger::Exited { exit_code: 0, reason: Some(Reason::Own("no_meeting".to_owned())) };
        assert!(completed(state(status), &own), "gave a reason");
    }
}

#[test]
fn a_bot_whose_slot_was_ended_from_outside_has_failed_unless_it_was_to_leave() {
    let exited = Trigger::Exited { exit_code: 143, reason: Some(Reason::Interrupted) };
    for trigger in [exited, Trigger::Passed(Overdue::Interrupted)] {
        let failed = Verdict::Move { to: Failed, reason: Some(Reason::Interrupted) };
        assert_eq!(decide(&state(Active), &trigger), failed);
        let stopped = Verdict::Move { to: Completed, reason: Some(Reason::Stopped) };
        assert_eq!(decide(&LifecycleState { stop_asked: true, ..state(Status::Stopping) }, &trigger), stopped);
    }
}

#[test]
fn a_second_rule_for_the_same_trigger_would_never_be_reached() {
    for (index, rule) in TABLE.iter().enumerate() {
        assert!(TABLE[..index].iter().all(|earlier| earlier.on != rule.on), "{:?} twice", rule.on);
    }
}

#[test]
fn a_bot_may_not_join_before_it_has_started() {
    assert_eq!(decide(&state(Reserved), &Trigger::Joined), Verdict::Refuse);
}

#[test]
fn another_exit_code_after_the_end_is_no_repeat() {
    let ended = LifecycleState { exit_code: Some(0), ..state(Completed) };
    assert_eq!(decide(&ended, &Trigger::Exited { exit_code: 0, reason: None }), Verdict::Hold);
    assert_eq!(decide(&ended, &Trigger::Exited { exit_code: 1, reason: None }), Verdict::Ended);
}

#[test]
fn a_deadline_that_passes_after_the_bot_moved_on_changes_nothing() {
    assert_eq!(decide(&state(Active), &Trigger::Passed(Overdue::NoJoin)), Verdict::Refuse);
    assert_eq!(decide(&state(Completed), &Trigger::Passed(Overdue::NoJoin)), Verdict::Ended);
}
