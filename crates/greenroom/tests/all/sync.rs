//! What the provider has against what the store has: both ways, with patience, and never against a bot that lives.

use std::time::Duration;

use domain::{SlotName, SlotStatus, Status};
use greenroom::placement::SlotEvent;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, Call, Fault, Kind, Stage, pool, until};

fn slot(number: i64) -> SlotName {
    SlotName::new("meet", number)
}

/// A pool with so many idle slots that stand stopped.
async fn stopped(backend: Backend, slots: i64) -> Stage {
    let stage = Stage::new(backend, [PoolRow { max_slots: 40, ..pool("meet") }]).await;
    let wishes = (0..usize::try_from(slots).unwrap()).map(crate::support::wish);
    let bots: Vec<_> = stage.house.ask_at_once(wishes).await.into_iter().map(|reserved| reserved.bot.id).collect();
    for bot in bots {
        stage.lives(bot).await;
    }
    until("all are idle", async || {
        stage.slots().await.iter().filter(|(_, status)| *status == SlotStatus::Idle).count() == slots as usize
    })
    .await;
    stage.house.clock.advance(Duration::from_secs(11));
    stage
}

/// A pool with so many slots in which agents wait.
async fn hot(backend: Backend, slots: i64) -> Stage {
    let meet = PoolRow { hot: true, max_slots: 40, min_idle: slots, ..pool("meet") };
    let stage = Stage::new(backend, [meet]).await;
    until("all wait", async || {
        stage.stir(&[]).await;
        stage.slots().await.iter().filter(|(_, status)| *status == SlotStatus::Idle).count() == slots as usize
    })
    .await;
    stage.house.clock.advance(Duration::from_secs(11));
    stage
}

async fn minutes(stage: &Stage, count: u64) {
    stage.house.clock.advance(Duration::from_secs(61 * count));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_nobody_knows_is_removed_after_a_grace(#[case] backend: Backend) {
    let stage = stopped(backend, 20).await;
    stage.fake.appear(&slot(33));
    assert_eq!(stage.keep("sync").await.counts["removed"], 0, "it may be a slot that is being made");
    minutes(&stage, 1).await;
    assert_eq!(stage.keep("sync").await.counts["removed"], 0);
    minutes(&stage, 1).await;
    assert_eq!(stage.keep("sync").await.counts["removed"], 1);
    assert!(!stage.fake.has().contains_key(&slot(33)));
    assert_eq!(stage.disagreement().await, None);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_becomes_known_within_the_grace_stays(#[case] backend: Backend) {
    let stage = stopped(backend, 20).await;
    stage.fake.appear(&slot(21));
    stage.keep("sync").await;
    // The pool grows a slot of this name, and a bot begins in it.
    let mut bots = Vec::new();
    for number in 100..121 {
        bots.push(stage.house.reserved(number).await);
    }
    stage.runs(bots[20]).await;
    assert_eq!(stage.place_of(bots[20]).await.as_deref(), Some(slot(21).as_str()));
    minutes(&stage, 3).await;
    assert_eq!(stage.keep("sync").await.counts["removed"], 0);
    assert!(stage.fake.running(&slot(21)).is_some());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_was_deleted_by_hand_at_the_provider_is_made_anew_under_the_same_name(#[case] backend: Backend) {
    let stage = stopped(backend, 10).await;
    let before = stage.slot(slot(4).as_str()).await.unwrap();
    stage.fake.lose(&slot(4));
    assert_eq!(stage.keep("sync").await.counts["made_anew"], 1);
    let after = stage.slot_is(slot(4).as_str(), SlotStatus::Idle).await;
    assert!(after.generation > before.generation, "whoever was in it is fenced off");
    assert_eq!(stage.fake.has().get(&slot(4)), Some(&false), "it is there, and nothing runs in it");
    assert_eq!(stage.keep("sync").await.counts["made_anew"], 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_a_provider_shows_wrongly_of_a_slot_is_described_again(#[case] backend: Backend) {
    let stage = stopped(backend, 2).await;
    let expected = stage.slot(slot(1).as_str()).await.unwrap().description;
    until("it is described", async || stage.fake.described(&slot(1)).as_ref() == Some(&expected)).await;
    // The word of another replica was late.
    stage.fake.mislabel(&slot(1), "[BUSY] Bot #1");
    assert_eq!(stage.keep("sync").await.counts.values().sum::<u64>(), 0);
    assert_eq!(stage.fake.described(&slot(1)), Some(expected));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_hot_slot_that_lost_its_agent_while_it_was_idle_gets_another(#[case] backend: Backend) {
    let stage = hot(backend, 20).await;
    stage.fake.end(&slot(7));
    stage.fake.lose(&slot(8));
    assert_eq!(stage.keep("sync").await.counts["made_anew"], 2);
    until("they wait again", async || {
        stage.stir(&[]).await;
        stage.disagreement().await.is_none()
    })
    .await;
    assert_eq!(stage.slots().await.len(), 20);
}

#[tokio::test]
async fn a_hot_slot_that_the_provider_says_is_not_well_is_made_anew() {
    let stage = hot(Backend::Sqlite, 20).await;
    for time in 1..=2 {
        stage.fake.sicken(&slot(7));
        assert_eq!(stage.keep("sync").await.counts["made_anew"], 1);
        until("it is well", async || {
            stage.stir(&[]).await;
            stage.fake.count(&Call::Start(slot(7))) == 1 + time
                && stage.slot("pool-meet-007").await.unwrap().status == SlotStatus::Idle
        })
        .await;
        assert_eq!(stage.slot("pool-meet-007").await.unwrap().recovery_attempts, time as i64);
        stage.house.clock.advance(Duration::from_secs(11));
        assert_eq!(stage.keep("sync").await.counts["made_anew"], 0);
    }
    // What is no help is not tried for ever.
    stage.fake.sicken(&slot(7));
    assert_eq!(stage.keep("sync").await.counts["made_anew"], 0);
    let broken = stage.slot_is("pool-meet-007", SlotStatus::Error).await;
    let words = "the provider says that it is not well: as the test says";
    assert_eq!(broken.error_message.as_deref(), Some(words));
    assert_eq!(stage.house.store.failures_in(&slot(7)).await.unwrap()[0].words, words);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_runs_in_an_idle_slot_is_stopped_and_the_slot_can_be_used(#[case] backend: Backend) {
    let stage = stopped(backend, 10).await;
    stage.fake.appear(&slot(3));
    assert_eq!(stage.keep("sync").await.counts["stopped"], 1);
    assert_eq!(stage.disagreement().await, None);
    let slot = stage.slot(slot(3).as_str()).await.unwrap();
    assert_eq!((slot.status, slot.recovery_attempts), (SlotStatus::Idle, 0), "it is not the slot's fault");
}

#[rstest]
#[case::an_error(Fault::Error)]
#[case::a_call_that_hangs(Fault::Hang)]
#[tokio::test]
async fn a_listing_that_fails_changes_nothing(#[case] fault: Fault) {
    let meet = PoolRow { max_slots: 40, ..pool("meet") };
    let house = crate::support::House::planned(
        crate::support::Database::new(Backend::Sqlite).await.into(),
        &crate::support::Plan::of([meet]),
    )
    .await;
    let moment = Duration::from_millis(100);
    let patience = greenroom::deployment::Patience { look: moment, ..Default::default() };
    let stage = Stage::patient(house, 4, crate::support::Fake::default().into(), patience).await;
    let bot = stage.house.reserved(0).await;
    stage.lives(bot).await;
    stage.slot_is(slot(1).as_str(), SlotStatus::Idle).await;
    let (live, voice) = stage.stays(1).await;
    let (slots, calls) = (stage.house.store.slots(None, None).await.unwrap(), stage.fake.calls().len());
    for _ in 0..5 {
        minutes(&stage, 1).await;
        stage.fake.break_next(Kind::List, fault);
        let did = stage.keep("sync").await;
        assert!(did.counts.values().all(|count| *count == 0), "{did:?}");
        assert!(did.complaints[0].contains("meet cannot be listed"), "{did:?}");
    }
    assert_eq!(stage.house.store.slots(None, None).await.unwrap(), slots);
    assert_eq!(stage.fake.calls().len(), calls);
    assert_eq!(stage.bot(live).await.status, Status::Active);
    stage.house.lifecycle.heartbeat(voice, &[]).await.unwrap();
}

#[rstest]
#[case::stopped(false)]
#[case::hot(true)]
#[tokio::test]
async fn an_empty_listing_is_not_believed_at_once_and_never_against_a_bot_that_lives(#[case] is_hot: bool) {
    let stage = if is_hot { hot(Backend::Sqlite, 10).await } else { stopped(Backend::Sqlite, 10).await };
    let (live, _) = stage.stays(100).await;
    let before = stage.house.store.slots(None, None).await.unwrap();
    stage.house.clock.advance(Duration::from_secs(11));
    stage.fake.break_next(Kind::List, Fault::NoEffect);
    let did = stage.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["removed"]), (0, 0));
    assert!(did.counts["waiting"] >= 9, "it says so first: {did:?}");
    assert_eq!(stage.house.store.slots(None, None).await.unwrap(), before);
    // The next look does not agree, and so nothing was done.
    let did = stage.keep("sync").await;
    assert!(did.counts.values().all(|count| *count == 0), "{did:?}");
    // Two looks that agree are believed, but not against the bot.
    for _ in 0..2 {
        stage.fake.break_next(Kind::List, Fault::NoEffect);
        stage.keep("sync").await;
        stage.house.clock.advance(Duration::from_secs(31));
    }
    let slot = stage.slot_of(live).await.unwrap();
    assert_eq!(Some(&slot), before.iter().find(|before| before.name == slot.name), "its slot was not touched");
    assert_eq!(stage.bot(live).await.status, Status::Active);
    assert_eq!(stage.fake.count(&Call::Stop(slot.name.clone())) + stage.fake.count(&Call::Delete(slot.name)), {
        usize::from(!is_hot)
    });
}

/// How often each slot was made or started.
async fn generations(stage: &Stage) -> std::collections::BTreeMap<i64, i64> {
    let slots = stage.house.store.slots(None, None).await.unwrap();
    slots.into_iter().map(|slot| (slot.number, slot.generation)).collect()
}

#[tokio::test]
async fn more_than_a_tenth_of_a_pool_waits_until_the_next_look_agrees() {
    let stage = stopped(Backend::Sqlite, 20).await;
    let before = generations(&stage).await;
    for number in 1..=2 {
        stage.fake.lose(&slot(number));
    }
    let did = stage.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (2, 0), "a tenth is acted on at once");
    stage.house.clock.advance(Duration::from_secs(11));
    for number in 3..=5 {
        stage.fake.lose(&slot(number));
    }
    let did = stage.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (0, 3));
    let did = stage.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (0, 3), "two looks in one moment are one");
    minutes(&stage, 1).await;
    // One of them is there again, another is lost as well: only what both looks saw is acted on.
    stage.fake.end(&slot(3));
    stage.fake.lose(&slot(6));
    let did = stage.keep("sync").await;
    assert_eq!((did.counts["made_anew"], did.counts["waiting"]), (2, 1));
    let after = generations(&stage).await;
    let made: Vec<i64> =
        before.iter().filter(|(number, was)| after[number] > **was).map(|(number, _)| *number).collect();
    assert_eq!(made, [1, 2, 4, 5]);
}

#[tokio::test]
async fn a_slot_that_was_used_meanwhile_is_not_touched() {
    let stage = stopped(Backend::Sqlite, 1).await;
    // It was seen idle, and lost, or with a stray in it; then a bot had it, and it is idle once more.
    let before = stage.slot(slot(1).as_str()).await.unwrap();
    stage.house.clock.advance(Duration::from_secs(1));
    let bot = stage.house.reserved(50).await;
    stage.lives(bot).await;
    let after = stage.slot_is(slot(1).as_str(), SlotStatus::Idle).await;
    for news in
        [SlotEvent::Lost { since: before.status_since, counts: false }, SlotEvent::Stray { since: before.status_since }]
    {
        assert!(!stage.house.placement.report(slot(1), news).await.unwrap());
    }
    assert_eq!(stage.slot(slot(1).as_str()).await.unwrap(), after);
}

#[tokio::test]
async fn something_unknown_that_comes_and_goes_has_its_grace_each_time() {
    let stage = stopped(Backend::Sqlite, 20).await;
    stage.fake.appear(&slot(33));
    stage.keep("sync").await;
    stage.fake.lose(&slot(33));
    minutes(&stage, 3).await;
    stage.keep("sync").await;
    stage.fake.appear(&slot(33));
    assert_eq!(stage.keep("sync").await.counts["removed"], 0);
    minutes(&stage, 3).await;
    assert_eq!(stage.keep("sync").await.counts["removed"], 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_is_made_while_something_unknown_of_its_name_is_removed_waits_for_that(#[case] backend: Backend) {
    let meet = PoolRow { max_slots: 40, ..pool("meet") };
    let stage = Stage::with(backend, [meet], 4, crate::support::Fake::slow_to_end()).await;
    stage.fake.appear(&slot(1));
    let (deployment, provider) = (stage.deployment.clone(), stage.fake.clone());
    let removal = tokio::spawn(async move { deployment.remove_unknown(&slot(1), &*provider).await });
    until("it is being removed", async || stage.fake.count(&Call::Delete(slot(1))) == 1).await;
    let bot = stage.house.reserved(0).await;
    assert_eq!(stage.place_of(bot).await.as_deref(), Some(slot(1).as_str()));
    until("its start is behind the gate", async || stage.at_gate().await == (1, 0)).await;
    stage.keep("deployment").await;
    assert_eq!(stage.fake.starts(), [], "it would be deleted with what is unknown");
    stage.fake.release_ends(1);
    assert_eq!(removal.await.unwrap(), Ok(true));
    stage.runs(bot).await;
    assert!(stage.fake.running(&slot(1)).is_some());
    // Known by now, it is not removed.
    assert_eq!(stage.deployment.remove_unknown(&slot(1), &*stage.fake).await, Ok(false));
}
