#![allow(clippy::unwrap_used)]

use domain::UsageClass;

use super::*;
use crate::clock::from_millis;

const ROUNDS: u32 = 5;

fn announcement(instance: &str) -> Announcement {
    let attributes = Attributes {
        resource_class: Some("large".into()),
        usage_class: UsageClass::OnDemand,
        instance_type: Some("c6i.large".into()),
        cpu: 2,
        mem: 4096,
    };
    Announcement::new(instance, &attributes, from_millis(1_748_692_800_000))
}

fn wants_spot() -> Option<Requirements> {
    Some(Requirements { usage_class: UsageClass::Spot, ..Requirements::default() })
}

fn arrives(pickups: &mut PickupQueue, wanted: Option<Requirements>) -> oneshot::Receiver<PickupResult> {
    let (reply, answer) = oneshot::channel();
    pickups.arrived += 1;
    let number = pickups.arrived;
    pickups.waiting.push_back(Waiter { number, wanted, empty: 0, times_offered: HashMap::new(), reply });
    answer
}

fn got(answer: &mut oneshot::Receiver<PickupResult>) -> Option<String> {
    answer.try_recv().ok()?.unwrap().map(|announcement| announcement.instance)
}

#[test]
fn an_announcement_goes_to_the_first_whom_it_fits() {
    let mut pickups = PickupQueue::default();
    let mut spot = arrives(&mut pickups, wants_spot());
    let [mut first, mut second] = [(); 2].map(|()| arrives(&mut pickups, None));
    let mut served = Vec::new();
    assert!(matches!(pickups.offer(announcement("i-1"), &mut served, ROUNDS), OfferResult::HandedOver));
    assert_eq!(got(&mut first).as_deref(), Some("i-1"));
    assert!(second.try_recv().is_err() && spot.try_recv().is_err());
}

#[test]
fn what_fits_somebody_who_has_got_another_is_told_from_what_fits_nobody() {
    let mut pickups = PickupQueue::default();
    let _spot = arrives(&mut pickups, wants_spot());
    let mut served = Vec::new();
    assert!(matches!(pickups.offer(announcement("i-1"), &mut served, ROUNDS), OfferResult::FitsNobody(_)));
    let _first = arrives(&mut pickups, None);
    assert!(matches!(pickups.offer(announcement("i-2"), &mut served, ROUNDS), OfferResult::HandedOver));
    assert!(matches!(pickups.offer(announcement("i-3"), &mut served, ROUNDS), OfferResult::NotNeeded(_)));
}

#[test]
fn the_same_runner_comes_by_as_often_as_it_may_and_then_there_is_none() {
    let mut pickups = PickupQueue::default();
    let mut spot = arrives(&mut pickups, wants_spot());
    for round in 1..=ROUNDS {
        assert!(spot.try_recv().is_err(), "round {round}");
        for other in ["i-1", "i-2"] {
            pickups.offer(announcement(other), &mut Vec::new(), ROUNDS);
        }
    }
    assert_eq!(spot.try_recv().unwrap().unwrap(), None);
    assert!(pickups.waiting.is_empty());
}

#[test]
fn one_who_is_gone_is_passed_over() {
    let mut pickups = PickupQueue::default();
    drop(arrives(&mut pickups, None));
    let mut second = arrives(&mut pickups, None);
    assert!(matches!(pickups.offer(announcement("i-1"), &mut Vec::new(), ROUNDS), OfferResult::HandedOver));
    assert_eq!(got(&mut second).as_deref(), Some("i-1"));
    // The announcement fits a request that left, so others may receive it at once.
    drop(arrives(&mut pickups, None));
    assert!(matches!(pickups.offer(announcement("i-2"), &mut Vec::new(), ROUNDS), OfferResult::NotNeeded(_)));
}
