//! Bots whose slot has no capacity for their requirements when the provider starts it.

use std::time::Duration;

use domain::{Attributes, SlotStatus, Status};
use greenroom::admission::BotRequest;
use greenroom::providers::ProviderError;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, DeploymentFixture, Fake, bot_request, pool, until};

/// A pool whose slots have nothing until the provider brings a runner.
fn runner_pool(max_slots: i64) -> PoolRow {
    PoolRow { provider: "ec2".to_owned(), max_slots, ..pool("meet") }
}

fn no_capacity() -> ProviderError {
    ProviderError::no_capacity("all of large are taken")
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_without_capacity_at_the_provider_returns_to_its_position_in_the_queue(#[case] backend: Backend) {
    let fake = Fake::default().failing_starts([no_capacity(), no_capacity()]);
    let fixture = DeploymentFixture::with(backend, [runner_pool(2)], 1, fake).await;
    let first = fixture.core.reserved(1).await;
    let second = fixture.core.reserved(2).await;
    until("both were attempted", async || fixture.fake.starts().len() == 2).await;
    until("both are in the queue", async || fixture.queue().await == [first, second]).await;
    let bot = fixture.bot(first).await;
    assert_eq!((bot.shown().as_str(), bot.slot, bot.connection_id), ("queued", None, None));
    let events = fixture.core.store.events_of_bot(first).await.unwrap();
    let last = events.last().unwrap();
    assert_eq!((last.kind.as_str(), last.reason.as_deref()), ("requeued", Some("all of large are taken")));
    fixture.core.placement.keep_warm().await.unwrap();
    assert_eq!(fixture.queue().await, [first, second], "they are not tried for a moment");
    // The provider has capacity again. The first bot in the queue that fits gets it.
    fixture.core.placement.retry_waiting(Attributes::default());
    fixture.runs(first).await;
    assert_eq!(fixture.queue().await, [second]);
    fixture.core.placement.retry_waiting(Attributes::default());
    fixture.runs(second).await;
    assert_eq!(fixture.queue().await, []);
    fixture.lives(first).await;
    let idle = fixture.slot_is("pool-meet-001", SlotStatus::Idle).await;
    assert_eq!(idle.provider_ref, None, "the slot has no attributes without a runner");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_returns_to_the_queue_keeps_its_position_and_its_timeout(#[case] backend: Backend) {
    let fake = Fake::default().failing_starts([]);
    let fixture = DeploymentFixture::with(backend, [runner_pool(1)], 1, fake).await;
    let runs = fixture.core.reserved(0).await;
    fixture.runs(runs).await;
    let first = fixture.core.ask(BotRequest { queue_timeout_ms: 10_000, ..bot_request(1) }).await.bot.id;
    let later = fixture.core.ask(bot_request(2)).await.bot.id;
    let until_when = fixture.core.store.queue().await.unwrap()[0].timeout_at;
    fixture.core.clock.advance(Duration::from_secs(5));
    fixture.fake.fail_starts((0..50).map(|_| no_capacity()));
    fixture.lives(runs).await;
    // The provider has no capacity. The bots behind it with the same requirements would get none either.
    until("it was attempted", async || fixture.fake.starts().len() == 2).await;
    until("it is back in the queue", async || fixture.queue().await == [first, later]).await;
    let back = fixture.core.store.queue().await.unwrap();
    assert_eq!((back[0].bot_id, back[0].timeout_at), (first, until_when), "position and timeout are unchanged");
    fixture.core.clock.advance(Duration::from_secs(3));
    let starts = fixture.fake.starts().len();
    fixture.core.placement.keep_warm().await.unwrap();
    until("one was attempted", async || fixture.fake.starts().len() > starts).await;
    until("it is back in the queue", async || fixture.queue().await == [first, later]).await;
    assert_eq!(fixture.fake.starts().len(), starts + 1);
    fixture.core.clock.advance(Duration::from_secs(3));
    until("its queue timeout has passed", async || {
        fixture.keep("queue_expiry").await;
        fixture.core.stands(first).await.0.is_ended()
    })
    .await;
    assert_eq!(fixture.core.stands(first).await, (Status::Failed, Some("queue_timeout".to_owned())));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_is_stopped_while_there_is_no_capacity_ends(#[case] backend: Backend) {
    let fake = Fake::hanging().failing_starts([no_capacity()]);
    let fixture = DeploymentFixture::with(backend, [runner_pool(1)], 1, fake).await;
    let bot = fixture.core.reserved(1).await;
    until("its start is in progress", async || fixture.fake.starts().len() == 1).await;
    fixture.core.lifecycle.stop(fixture.core.user, bot).await.unwrap();
    fixture.fake.release(10);
    assert_eq!(fixture.end_of(bot).await, (Status::Completed, Some("stopped".to_owned())));
    fixture.slot_is("pool-meet-001", SlotStatus::Idle).await;
    assert_eq!(fixture.queue().await, []);
}

#[tokio::test]
async fn a_bot_that_was_assigned_by_hand_meanwhile_is_not_touched() {
    let fake = Fake::hanging().failing_starts([no_capacity()]);
    let fixture = DeploymentFixture::with(Backend::Sqlite, [runner_pool(1)], 1, fake).await;
    let bot = fixture.core.reserved(1).await;
    until("its start is in progress", async || fixture.fake.starts().len() == 1).await;
    let caller = fixture.core.assigned(bot).await.unwrap();
    fixture.fake.release(10);
    fixture.gate_is_free().await;
    assert_eq!(fixture.queue().await, []);
    fixture.core.lifecycle.started(caller, None).await.unwrap();
    assert_eq!(fixture.core.stands(bot).await.0, Status::Starting);
}
