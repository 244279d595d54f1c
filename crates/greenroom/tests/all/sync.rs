//! Sync compares the provider with the store, in both directions. It waits before it acts, and never acts against a
//! living bot.

use std::time::Duration;

use domain::{SlotName, SlotStatus, Status};
use greenroom::placement::SlotEvent;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, Call, DeploymentFixture, Fault, Kind, pool, until};

fn slot(number: i64) -> SlotName {
    SlotName::new("meet", number)
}

/// A pool with this many idle, stopped slots.
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

/// A pool with this many slots with waiting agents.
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
async fn an_unknown_slot_is_removed_after_a_grace_period(#[case] backend: Backend) {
    let fixture = stopped(backend, 20).await;
    fixture.fake.appear(&slot(33));
    assert_eq!(fixture.keep("sync").await.counts["removed"], 0, "the slot may be in creation");
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
async fn a_slot_that_becomes_known_within_the_grace_period_stays(#[case] backend: Backend) {
    let fixture = stopped(backend, 20).await;
    fixture.fake.appear(&slot(21));
    fixture.keep("sync").await;
    // The pool creates a slot of this name, and a bot starts in it.
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
async fn a_slot_that_was_deleted_at_the_provider_is_created_again_under_the_same_name(#[case] backend: Backend) {
    let fixture = stopped(backend, 10).await;
    let before = fixture.slot(slot(4).as_str()).await.unwrap();
    fixture.fake.lose(&slot(4));
    assert_eq!(fixture.keep("sync").await.counts["made_anew"], 1);
    let after = fixture.slot_is(slot(4).as_str(), SlotStatus::Idle).await;
    assert!(after.generation > before.generation, "an earlier process in it is fenced off");
    assert_eq!(fixture.fake.has().get(&slot(4)), Some(&false), "the slot exists, and nothing runs in it");
    assert_eq!(fixture.keep("sync").await.counts["made_anew"], 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_wrong_description_at_the_provider_is_corrected(#[case] backend: Backend) {
    let fixture = stopped(backend, 2).await;
    let expected = fixture.slot(slot(1).as_str()).await.unwrap().description;
    until("it is described", async || fixture.fake.described(&slot(1)).as_ref() == Some(&expected)).await;
    // The description of another replica was late.
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
async fn an_unhealthy_hot_slot_is_started_again() {
    let fixture = hot(Backend::Sqlite, 20).await;
    for time in 1..=2 {
        fixture.fake.sicken(&slot(7));
        assert_eq!(fixture.keep("sync").await.counts["made_anew"], 1);
        until("it is healthy", async || {
            fixture.advance_bots(&[]).await;
            fixture.fake.count(&Call::Start(slot(7))) == 1 + time
                && fixture.slot("pool-meet-007").await.unwrap().status == SlotStatus::Idle
        })
        .await;
        assert_eq!(fixture.slot("pool-meet-007").await.unwrap().recovery_attempts, time as i64);
        fixture.core.clock.advance(Duration::from_secs(11));
        assert_eq!(fixture.keep("sync").await.counts["made_anew"], 0);
    }
    // A restart that does not help is not repeated for ever.
    fixture.fake.sicken(&slot(7));
    assert_eq!(fixture.keep("sync").await.counts["made_anew"], 0);
    let broken = fixture.slot_is("pool-meet-007", SlotStatus::Error).await;
    let message = "the provider reports the slot as unhealthy: as the test says";
    assert_eq!(broken.error_message.as_deref(), Some(message));
    assert_eq!(fixture.core.store.failures_in(&slot(7)).await.unwrap()[0].message, message);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_process_in_an_idle_slot_is_stopped_and_the_slot_can_be_used(#[case] backend: Backend) {
    let fixture = stopped(backend, 10).await;
    fixture.fake.appear(&slot(3));
    assert_eq!(fixture.keep("sync").await.counts["stopped"], 1);
    assert_eq!(fixture.disagreement().await, None);
    let slot = fixture.slot(slot(3).as_str()).await.unwrap();
    assert_eq!((slot.status, slot.recovery_attempts), (SlotStatus::Idle, 0), "this is not the slot's fault");
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
    let timeouts = greenroom::deployment::ProviderTimeouts { inspect: moment, ..Default::default() };
    let fixture = DeploymentFixture::patient(core, 4, crate::support::Fake::default().into(), timeouts).await;
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
async fn an_empty_listing_is_not_believed_at_once_and_never_against_a_living_bot(#[case] is_hot: bool) {
    let fixture = if is_hot { hot(Backend::Sqlite, 10).await } else { stopped(Backend::Sqlite, 10).await };
    let (live, _) = fixture.stays(100).await;
    let before = fixture.core.store.slots(None, None).await.unwrap();
    fixture.core.clock.advance(Duration::from_secs(11));
    fixture.fake.break_next(Kind::List, Fault::NoEffect);
    let did = fixture.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["removed"]), (0, 0));
    assert!(did.counts["waiting"] >= 9, "sync reports it first: {did:?}");
    assert_eq!(fixture.core.store.slots(None, None).await.unwrap(), before);
    // The next listing differs, so nothing was done.
    let did = fixture.keep("sync").await;
    assert!(did.counts.values().all(|count| *count == 0), "{did:?}");
    // Two equal listings are believed, but not against the bot.
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

/// How often each slot was created or started.
async fn generations(fixture: &DeploymentFixture) -> std::collections::BTreeMap<i64, i64> {
    let slots = fixture.core.store.slots(None, None).await.unwrap();
    slots.into_iter().map(|slot| (slot.number, slot.generation)).collect()
}

#[tokio::test]
async fn a_loss_of_more_than_a_tenth_of_a_pool_needs_a_second_equal_listing() {
    let fixture = stopped(Backend::Sqlite, 20).await;
    let before = generations(&fixture).await;
    for number in 1..=2 {
        fixture.fake.lose(&slot(number));
    }
    let did = fixture.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (2, 0), "sync acts on a tenth at once");
    fixture.core.clock.advance(Duration::from_secs(11));
    for number in 3..=5 {
        fixture.fake.lose(&slot(number));
    }
    let did = fixture.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (0, 3));
    let did = fixture.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (0, 3), "two runs at the same time count as one");
    minutes(&fixture, 1).await;
    // One of them is back, and another is lost as well. Sync acts only on what both listings show.
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
    // The slot was seen idle, and lost, or with an unknown process in it. Then a bot used it, and it is idle again.
    let before = fixture.slot(slot(1).as_str()).await.unwrap();
    fixture.core.clock.advance(Duration::from_secs(1));
    let bot = fixture.core.reserved(50).await;
    fixture.lives(bot).await;
    let after = fixture.slot_is(slot(1).as_str(), SlotStatus::Idle).await;
    for event in [
        SlotEvent::Lost { since: before.status_since, counts: false },
        SlotEvent::UnknownProcess { since: before.status_since },
    ] {
        assert!(!fixture.core.placement.report(slot(1), event).await.unwrap());
    }
    assert_eq!(fixture.slot(slot(1).as_str()).await.unwrap(), after);
}

#[tokio::test]
async fn an_unknown_slot_that_comes_and_goes_has_its_grace_period_each_time() {
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
async fn a_new_slot_waits_for_the_removal_of_an_unknown_one_with_its_name(#[case] backend: Backend) {
    let meet = PoolRow { max_slots: 40, ..pool("meet") };
    let fixture = DeploymentFixture::with(backend, [meet], 4, crate::support::Fake::slow_to_end()).await;
    fixture.fake.appear(&slot(1));
    let (deployment, provider) = (fixture.deployment.clone(), fixture.fake.clone());
    let removal = tokio::spawn(async move { deployment.remove_unknown(&slot(1), &*provider).await });
    until("it is being removed", async || fixture.fake.count(&Call::Delete(slot(1))) == 1).await;
    let bot = fixture.core.reserved(0).await;
    assert_eq!(fixture.place_of(bot).await.as_deref(), Some(slot(1).as_str()));
    until("its start is inside the gate", async || fixture.at_gate().await == (1, 0)).await;
    fixture.keep("deployment").await;
    assert_eq!(fixture.fake.starts(), [], "it would be deleted together with the unknown one");
    fixture.fake.release_ends(1);
    assert_eq!(removal.await.unwrap(), Ok(true));
    fixture.runs(bot).await;
    assert!(fixture.fake.running(&slot(1)).is_some());
    // The slot is known by now, so it is not removed.
    assert_eq!(fixture.deployment.remove_unknown(&slot(1), &*fixture.fake).await, Ok(false));
}
