//! Bots that are given a place, at which there turns out to be no room for their requirements.

use std::time::Duration;

use domain::{Attributes, SlotStatus, Status};
use greenroom::admission::BotRequest;
use greenroom::providers::ProviderError;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, Fake, Stage, pool, until, wish};

/// A pool whose slots are places, to which the provider brings something or not.
fn places(max_slots: i64) -> PoolRow {
    PoolRow { provider: "ec2".to_owned(), max_slots, ..pool("meet") }
}

fn full() -> ProviderError {
    ProviderError::full("all of large are taken")
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_for_which_the_provider_has_no_room_goes_back_to_its_place_in_line(#[case] backend: Backend) {
    let fake = Fake::default().failing_starts([full(), full()]);
    let stage = Stage::with(backend, [places(2)], 1, fake).await;
    let first = stage.house.reserved(1).await;
    let second = stage.house.reserved(2).await;
    until("both were tried", async || stage.fake.starts().len() == 2).await;
    until("both are in line", async || stage.line().await == [first, second]).await;
    let bot = stage.bot(first).await;
    assert_eq!((bot.shown().as_str(), bot.slot, bot.connection_id), ("queued", None, None));
    let events = stage.house.store.events_of_bot(first).await.unwrap();
    let last = events.last().unwrap();
    assert_eq!((last.kind.as_str(), last.reason.as_deref()), ("requeued", Some("all of large are taken")));
    stage.house.placement.keep_warm().await.unwrap();
    assert_eq!(stage.line().await, [first, second], "they are passed over for a moment");
    // Something came free where the provider is: it is for the first whom it fits.
    stage.house.placement.retry_waiting(Attributes::default());
    stage.runs(first).await;
    assert_eq!(stage.line().await, [second]);
    stage.house.placement.retry_waiting(Attributes::default());
    stage.runs(second).await;
    assert_eq!(stage.line().await, []);
    stage.lives(first).await;
    let idle = stage.slot_is("pool-meet-001", SlotStatus::Idle).await;
    assert_eq!(idle.provider_ref, None, "a place has nothing while nobody is there");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_comes_back_keeps_its_place_and_its_patience(#[case] backend: Backend) {
    let fake = Fake::default().failing_starts([]);
    let stage = Stage::with(backend, [places(1)], 1, fake).await;
    let runs = stage.house.reserved(0).await;
    stage.runs(runs).await;
    let first = stage.house.ask(BotRequest { queue_timeout_ms: 10_000, ..wish(1) }).await.bot.id;
    let later = stage.house.ask(wish(2)).await.bot.id;
    let until_when = stage.house.store.queue().await.unwrap()[0].timeout_at;
    stage.house.clock.advance(Duration::from_secs(5));
    stage.fake.fail_starts((0..50).map(|_| full()));
    stage.lives(runs).await;
    // It finds no room; whoever waits for the same behind it would find none either.
    until("it was tried", async || stage.fake.starts().len() == 2).await;
    until("it came back", async || stage.line().await == [first, later]).await;
    let back = stage.house.store.queue().await.unwrap();
    assert_eq!((back[0].bot_id, back[0].timeout_at), (first, until_when), "neither place nor patience are new");
    stage.house.clock.advance(Duration::from_secs(3));
    let starts = stage.fake.starts().len();
    stage.house.placement.keep_warm().await.unwrap();
    until("one was tried", async || stage.fake.starts().len() > starts).await;
    until("it is back", async || stage.line().await == [first, later]).await;
    assert_eq!(stage.fake.starts().len(), starts + 1);
    stage.house.clock.advance(Duration::from_secs(3));
    until("its patience is over", async || {
        stage.keep("queue_expiry").await;
        stage.house.stands(first).await.0.is_ended()
    })
    .await;
    assert_eq!(stage.house.stands(first).await, (Status::Failed, Some("queue_timeout".to_owned())));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_is_stopped_while_there_is_no_room_for_it_ends(#[case] backend: Backend) {
    let fake = Fake::hanging().failing_starts([full()]);
    let stage = Stage::with(backend, [places(1)], 1, fake).await;
    let bot = stage.house.reserved(1).await;
    until("its start is under way", async || stage.fake.starts().len() == 1).await;
    stage.house.lifecycle.stop(stage.house.user, bot).await.unwrap();
    stage.fake.release(10);
    assert_eq!(stage.end_of(bot).await, (Status::Completed, Some("stopped".to_owned())));
    stage.slot_is("pool-meet-001", SlotStatus::Idle).await;
    assert_eq!(stage.line().await, []);
}

#[tokio::test]
async fn a_bot_that_was_assigned_by_hand_meanwhile_is_left_alone() {
    let fake = Fake::hanging().failing_starts([full()]);
    let stage = Stage::with(Backend::Sqlite, [places(1)], 1, fake).await;
    let bot = stage.house.reserved(1).await;
    until("its start is under way", async || stage.fake.starts().len() == 1).await;
    let voice = stage.house.assigned(bot).await.unwrap();
    stage.fake.release(10);
    stage.gate_is_free().await;
    assert_eq!(stage.line().await, []);
    stage.house.lifecycle.started(voice, None).await.unwrap();
    assert_eq!(stage.house.stands(bot).await.0, Status::Starting);
}
