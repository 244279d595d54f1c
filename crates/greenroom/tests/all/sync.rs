//! What the provider has against what the store has: both ways, with patience, and never against a bot that lives.

use std::time::Duration;

use domain::{SlotName, SlotStatus, Status};
use greenroom::placement::SlotEvent;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, Call, DeploymentFixture, Fault, Kind, pool, until};

fn slot(number: i64) -> SlotName {
    SlotName::new("meet", number)
}

/// A pool with so many idle slots that stand stopped.
async fn stopped(backend: Backend, slots: i64) -> DeploymentFixture {
    let fixture = DeploymentFixture::new(backend, [PoolRow { max_slots: 40, ..pool("meet") }]).await;
    let bot_requests = (0..usize::try_from(slots).unwrap()).map(crate::support::bot_request);
    let bots: Vec<_> =
        fixture.core.ask_at_once(bot_requests).await.into_iter().map(|reserved| reserved.bot.id).collect();
    for bot in bots {
        fixture.lives(bot).await;
    }
    until("all are idle", async || {
        fixture.slots().await.iter().filter(|(_, status)| *status == SlotStatus::Idle).count() == slots as usize
    })
    .await;
    fixture.core.clock.advance(Duration::from_secs(11));
    fixture
}

/// A pool with so many slots in which agents wait.
async fn hot(backend: Backend, slots: i64) -> DeploymentFixture {
    let meet = PoolRow { hot: true, max_slots: 40, min_idle: slots, ..pool("meet") };
    let fixture = DeploymentFixture::new(backend, [meet]).await;
    until("all wait", async || {
        fixture.advance_bots(&[]).await;
        fixture.slots().await.iter().filter(|(_, status)| *status == SlotStatus::Idle).count() == slots as usize
    })
    .await;
    fixture.core.clock.advance(Duration::from_secs(11));
    fixture
}

async fn minutes(fixture: &DeploymentFixture, count: u64) {
    fixture.core.clock.advance(Duration::from_secs(61 * count));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_nobody_knows_is_removed_after_a_grace(#[case] backend: Backend) {
    let fixture = stopped(backend, 20).await;
    fixture.fake.appear(&slot(33));
    assert_eq!(fixture.keep("sync").await.counts["removed"], 0, "it may be a slot that is being made");
    minutes(&fixture, 1).await;
    assert_eq!(fixture.keep("sync").await.counts["removed"], 0);
    minutes(&fixture, 1).await;
    assert_eq!(fixture.keep("sync").await.counts["removed"], 1);
    assert!(!fixture.fake.has().contains_key(&slot(33)));
    assert_eq!(fixture.disagreement().await, None);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_becomes_known_within_the_grace_stays(#[case] backend: Backend) {
    let fixture = stopped(backend, 20).await;
    fixture.fake.appear(&slot(21));
    fixture.keep("sync").await;
    // The pool grows a slot of this name, and a bot begins in it.
    let mut bots = Vec::new();
    for number in 100..121 {
        bots.push(fixture.core.reserved(number).await);
    }
    fixture.runs(bots[20]).await;
    assert_eq!(fixture.place_of(bots[20]).await.as_deref(), Some(slot(21).as_str()));
    minutes(&fixture, 3).await;
    assert_eq!(fixture.keep("sync").await.counts["removed"], 0);
    assert!(fixture.fake.running(&slot(21)).is_some());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_was_deleted_by_hand_at_the_provider_is_made_anew_under_the_same_name(#[case] backend: Backend) {
    let fixture = stopped(backend, 10).await;
    let before = fixture.slot(slot(4).as_str()).await.unwrap();
    fixture.fake.lose(&slot(4));
    assert_eq!(fixture.keep("sync").await.counts["made_anew"], 1);
    let after = fixture.slot_is(slot(4).as_str(), SlotStatus::Idle).await;
    assert!(after.generation > before.generation, "whoever was in it is fenced off");
    assert_eq!(fixture.fake.has().get(&slot(4)), Some(&false), "it is there, and nothing runs in it");
    assert_eq!(fixture.keep("sync").await.counts["made_anew"], 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_a_provider_shows_wrongly_of_a_slot_is_described_again(#[case] backend: Backend) {
    let fixture = stopped(backend, 2).await;
    let expected = fixture.slot(slot(1).as_str()).await.unwrap().description;
    until("it is described", async || fixture.fake.described(&slot(1)).as_ref() == Some(&expected)).await;
    // The word of another replica was late.
    fixture.fake.mislabel(&slot(1), "[BUSY] Bot #1");
    assert_eq!(fixture.keep("sync").await.counts.values().sum::<u64>(), 0);
    assert_eq!(fixture.fake.described(&slot(1)), Some(expected));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_hot_slot_that_lost_its_agent_while_it_was_idle_gets_another(#[case] backend: Backend) {
    let fixture = hot(backend, 20).await;
    fixture.fake.end(&slot(7));
    fixture.fake.lose(&slot(8));
    assert_eq!(fixture.keep("sync").await.counts["made_anew"], 2);
    until("they wait again", async || {
        fixture.advance_bots(&[]).await;
        fixture.disagreement().await.is_none()
    })
    .await;
    assert_eq!(fixture.slots().await.len(), 20);
}

#[tokio::test]
async fn a_hot_slot_that_the_provider_says_is_not_well_is_made_anew() {
    let fixture = hot(Backend::Sqlite, 20).await;
    for time in 1..=2 {
        fixture.fake.sicken(&slot(7));
        assert_eq!(fixture.keep("sync").await.counts["made_anew"], 1);
        until("it is well", async || {
            fixture.advance_bots(&[]).await;
            fixture.fake.count(&Call::Start(slot(7))) == 1 + time
                && fixture.slot("pool-meet-007").await.unwrap().status == SlotStatus::Idle
        })
        .await;
        assert_eq!(fixture.slot("pool-meet-007").await.unwrap().recovery_attempts, time as i64);
        fixture.core.clock.advance(Duration::from_secs(11));
        assert_eq!(fixture.keep("sync").await.counts["made_anew"], 0);
    }
    // What is no help is not tried for ever.
    fixture.fake.sicken(&slot(7));
    assert_eq!(fixture.keep("sync").await.counts["made_anew"], 0);
    let broken = fixture.slot_is("pool-meet-007", SlotStatus::Error).await;
    let message = "the provider says that it is not well: as the test says";
    assert_eq!(broken.error_message.as_deref(), Some(message));
    assert_eq!(fixture.core.store.failures_in(&slot(7)).await.unwrap()[0].message, message);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_runs_in_an_idle_slot_is_stopped_and_the_slot_can_be_used(#[case] backend: Backend) {
    let fixture = stopped(backend, 10).await;
    fixture.fake.appear(&slot(3));
    assert_eq!(fixture.keep("sync").await.counts["stopped"], 1);
    assert_eq!(fixture.disagreement().await, None);
    let slot = fixture.slot(slot(3).as_str()).await.unwrap();
    assert_eq!((slot.status, slot.recovery_attempts), (SlotStatus::Idle, 0), "it is not the slot's fault");
}

#[rstest]
#[case::an_error(Fault::Error)]
#[case::a_call_that_hangs(Fault::Hang)]
#[tokio::test]
async fn a_listing_that_fails_changes_nothing(#[case] fault: Fault) {
    let meet = PoolRow { max_slots: 40, ..pool("meet") };
    let core = crate::support::CoreFixture::planned(
        crate::support::Database::new(Backend::Sqlite).await.into(),
        &crate::support::Plan::of([meet]),
    )
    .await;
    let moment = Duration::from_millis(100);
    let patience = greenroom::deployment::Patience { inspect: moment, ..Default::default() };
    let fixture = DeploymentFixture::patient(core, 4, crate::support::Fake::default().into(), patience).await;
    let bot = fixture.core.reserved(0).await;
    fixture.lives(bot).await;
    fixture.slot_is(slot(1).as_str(), SlotStatus::Idle).await;
    let (live, caller) = fixture.stays(1).await;
    let (slots, calls) = (fixture.core.store.slots(None, None).await.unwrap(), fixture.fake.calls().len());
    for _ in 0..5 {
        minutes(&fixture, 1).await;
        fixture.fake.break_next(Kind::List, fault);
        let did = fixture.keep("sync").await;
        assert!(did.counts.values().all(|count| *count == 0), "{did:?}");
        assert!(did.complaints[0].contains("meet cannot be listed"), "{did:?}");
    }
    assert_eq!(fixture.core.store.slots(None, None).await.unwrap(), slots);
    assert_eq!(fixture.fake.calls().len(), calls);
    assert_eq!(fixture.bot(live).await.status, Status::Active);
    fixture.core.lifecycle.heartbeat(caller, &[]).await.unwrap();
}

#[rstest]
#[case::stopped(false)]
#[case::hot(true)]
#[tokio::test]
async fn an_empty_listing_is_not_believed_at_once_and_never_against_a_bot_that_lives(#[case] is_hot: bool) {
    let fixture = if is_hot { hot(Backend::Sqlite, 10).await } else { stopped(Backend::Sqlite, 10).await };
    let (live, _) = fixture.stays(100).await;
    let before = fixture.core.store.slots(None, None).await.unwrap();
    fixture.core.clock.advance(Duration::from_secs(11));
    fixture.fake.break_next(Kind::List, Fault::NoEffect);
    let did = fixture.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["removed"]), (0, 0));
    assert!(did.counts["waiting"] >= 9, "it says so first: {did:?}");
    assert_eq!(fixture.core.store.slots(None, None).await.unwrap(), before);
    // The next look does not agree, and so nothing was done.
    let did = fixture.keep("sync").await;
    assert!(did.counts.values().all(|count| *count == 0), "{did:?}");
    // Two looks that agree are believed, but not against the bot.
    for _ in 0..2 {
        fixture.fake.break_next(Kind::List, Fault::NoEffect);
        fixture.keep("sync").await;
        fixture.core.clock.advance(Duration::from_secs(31));
    }
    let slot = fixture.slot_of(live).await.unwrap();
    assert_eq!(Some(&slot), before.iter().find(|before| before.name == slot.name), "its slot was not touched");
    assert_eq!(fixture.bot(live).await.status, Status::Active);
    assert_eq!(fixture.fake.count(&Call::Stop(slot.name.clone())) + fixture.fake.count(&Call::Delete(slot.name)), {
        usize::from(!is_hot)
    });
}

/// How often each slot was made or started.
async fn generations(fixture: &DeploymentFixture) -> std::collections::BTreeMap<i64, i64> {
    let slots = fixture.core.store.slots(None, None).await.unwrap();
    slots.into_iter().map(|slot| (slot.number, slot.generation)).collect()
}

#[tokio::test]
async fn more_than_a_tenth_of_a_pool_waits_until_the_next_look_agrees() {
    let fixture = stopped(Backend::Sqlite, 20).await;
    let before = generations(&fixture).await;
    for number in 1..=2 {
        fixture.fake.lose(&slot(number));
    }
    let did = fixture.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (2, 0), "a tenth is acted on at once");
    fixture.core.clock.advance(Duration::from_secs(11));
    for number in 3..=5 {
        fixture.fake.lose(&slot(number));
    }
    let did = fixture.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (0, 3));
    let did = fixture.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (0, 3), "two looks in one moment are one");
    minutes(&fixture, 1).await;
    // One of them is there again, another is lost as well: only what both looks saw is acted on.
    fixture.fake.end(&slot(3));
    fixture.fake.lose(&slot(6));
    let did = fixture.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (2, 1));
    let after = generations(&fixture).await;
    let made: Vec<i64> =
        before.iter().filter(|(number, was)| after[number] > **was).map(|(number, _)| *number).collect();
    assert_eq!(made, [1, 2, 4, 5]);
}

#[tokio::test]
async fn a_slot_that_was_used_meanwhile_is_not_touched() {
    let fixture = stopped(Backend::Sqlite, 1).await;
    // It was seen idle, and lost, or with a stray in it; then a bot had it, and it is idle once more.
    let before = fixture.slot(slot(1).as_str()).await.unwrap();
    fixture.core.clock.advance(Duration::from_secs(1));
    let bot = fixture.core.reserved(50).await;
    fixture.lives(bot).await;
    let after = fixture.slot_is(slot(1).as_str(), SlotStatus::Idle).await;
    for news in
        [SlotEvent::Lost { since: before.status_since, counts: false }, SlotEvent::Stray { since: before.status_since }]
    {
        assert!(!fixture.core.placement.report(slot(1), news).await.unwrap());
    }
    assert_eq!(fixture.slot(slot(1).as_str()).await.unwrap(), after);
}

#[tokio::test]
async fn something_unknown_that_comes_and_goes_has_its_grace_each_time() {
    let fixture = stopped(Backend::Sqlite, 20).await;
    fixture.fake.appear(&slot(33));
    fixture.keep("sync").await;
    fixture.fake.lose(&slot(33));
    minutes(&fixture, 3).await;
    fixture.keep("sync").await;
    fixture.fake.appear(&slot(33));
    assert_eq!(fixture.keep("sync").await.counts["removed"], 0);
    minutes(&fixture, 3).await;
    assert_eq!(fixture.keep("sync").await.counts["removed"], 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_is_made_while_something_unknown_of_its_name_is_removed_waits_for_that(#[case] backend: Backend) {
    let meet = PoolRow { max_slots: 40, ..pool("meet") };
    let fixture = DeploymentFixture::with(backend, [meet], 4, crate::support::Fake::slow_to_end()).await;
    fixture.fake.appear(&slot(1));
    let (deployment, provider) = (fixture.deployment.clone(), fixture.fake.clone());
    let removal = tokio::spawn(async move { deployment.remove_unknown(&slot(1), &*provider).await });
    until("it is being removed", async || fixture.fake.count(&Call::Delete(slot(1))) == 1).await;
    let bot = fixture.core.reserved(0).await;
    assert_eq!(fixture.place_of(bot).await.as_deref(), Some(slot(1).as_str()));
    until("its start is behind the gate", async || fixture.at_gate().await == (1, 0)).await;
    fixture.keep("deployment").await;
    assert_eq!(fixture.fake.starts(), [], "it would be deleted with what is unknown");
    fixture.fake.release_ends(1);
    assert_eq!(removal.await.unwrap(), Ok(true));
    fixture.runs(bot).await;
    assert!(fixture.fake.running(&slot(1)).is_some());
    // Known by now, it is not removed.
    assert_eq!(fixture.deployment.remove_unknown(&slot(1), &*fixture.fake).await, Ok(false));
}
