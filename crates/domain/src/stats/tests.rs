//! Figures add up, whatever is added first, and stay small.

use proptest::prelude::*;

use super::*;

/// Something that happens.
#[derive(Clone, Debug)]
enum Happening {
    Request,
    Start(Option<StartKind>, u64),
    End(String, Fault),
    Sample(SlotStatus, u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    let kinds = proptest::option::of(proptest::sample::select(StartKind::ALL.to_vec()));
    prop_oneof![
        Just(Happening::Request),
        (kinds, 0..600_000_u64).prop_map(|(kind, wait)| Happening::Start(kind, wait)),
        ("finished|stopped|[a-c]", proptest::sample::select(Fault::ALL.to_vec()))
            .prop_map(|(reason, fault)| Happening::End(reason, fault)),
        (proptest::sample::select(SlotStatus::ALL.to_vec()), 0..100_u64)
            .prop_map(|(status, slots)| Happening::Sample(status, slots)),
    ]
}

fn of(happenings: &[Happening]) -> Figures {
    let mut figures = Figures::default();
    for happening in happenings {
        match happening {
            Happening::Request => figures.requests += 1,
            Happening::Start(kind, wait_ms) => figures.add_start(*kind, *wait_ms),
            Happening::End(reason, fault) => figures.add_end(Some(reason), Some(*fault)),
            Happening::Sample(status, slots) => {
                figures.samples += 1;
                figures.add_slots(*status, *slots);
            }
        }
    }
    figures
}

proptest! {
    #[test]
    fn the_figures_of_an_hour_are_the_sum_of_its_minutes_in_any_order(
        minutes in proptest::collection::vec(proptest::collection::vec(happening(), 0..20), 0..6),
    ) {
        let whole = of(&minutes.concat());
        let (mut forwards, mut backwards) = (Figures::default(), Figures::default());
        minutes.iter().for_each(|minute| forwards.add(&of(minute)));
        minutes.iter().rev().for_each(|minute| backwards.add(&of(minute)));
        prop_assert_eq!(&forwards, &whole);
        prop_assert_eq!(&backwards, &whole);
        let stored = serde_json::to_string(&whole).unwrap_or_default();
        prop_assert_eq!(serde_json::from_str::<Figures>(&stored).ok(), Some(whole));
    }
}

#[test]
fn reasons_that_bots_make_up_do_not_fill_the_figures_and_no_end_is_lost() {
    let (mut figures, mut sum) = (Figures::default(), Figures::default());
    for number in 0..1_000 {
        figures.add_end(Some(&format!("{number}{}", "é".repeat(300))), Some(Fault::Bot));
    }
    figures.add_end(Some("queue_timeout"), Some(Fault::Capacity));
    figures.add_end(None, None);
    assert!(figures.ends_by_reason.len() <= OWN_REASONS_MAX + KNOWN_REASONS.len());
    assert!(figures.ends_by_reason.keys().all(|reason| reason.chars().count() <= REASON_CHARS_MAX));
    assert_eq!(figures.ends_by_reason.values().sum::<u64>(), 1_002);
    assert_eq!(figures.ends_by_reason["queue_timeout"], 1);
    assert_eq!(figures.ends_by_fault.values().sum::<u64>(), 1_001);
    for number in 0..50 {
        let mut other = Figures::default();
        other.add_end(Some(&format!("made up {number}")), None);
        sum.add(&other);
    }
    sum.add(&figures);
    assert!(sum.ends_by_reason.len() <= OWN_REASONS_MAX + KNOWN_REASONS.len());
    assert_eq!(sum.ends_by_reason.values().sum::<u64>(), 1_052);
}

#[test]
fn the_mean_of_slots_is_over_all_samples_and_unknown_without_one() {
    let mut figures = Figures::default();
    assert_eq!(figures.mean_slots(SlotStatus::Idle), None);
    figures.samples = 4;
    figures.add_slots(SlotStatus::Idle, 6);
    assert_eq!(figures.mean_slots(SlotStatus::Idle), Some(1.5));
    assert_eq!(figures.mean_slots(SlotStatus::Error), Some(0.0));
}

#[test]
fn every_reason_of_greenroom_is_counted_by_its_name() {
    use crate::Reason;
    for reason in [
        Reason::Finished,
        Reason::Stopped,
        Reason::QueueTimeout,
        Reason::DeployTimeout,
        Reason::DeployFailed,
        Reason::NoStart,
        Reason::NoJoin,
        Reason::HeartbeatLost,
        Reason::Crashed,
        Reason::Interrupted,
        Reason::Killed,
        Reason::NeverJoined,
    ] {
        assert!(KNOWN_REASONS.contains(&reason.as_str()), "{reason}");
    }
}
