//! Failures of the provider: the server retries if that can help, and otherwise fails the bot with the provider's
//! message.

use std::time::Duration;

use domain::{SlotStatus, Status};
use greenroom::deployment::ProviderTimeouts;
use greenroom::providers::ProviderError;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{
    Backend, Call, CoreFixture, Database, DeploymentFixture, Fake, Fault, Kind, Plan, pool, until, waits,
};

fn meet(max_slots: i64) -> PoolRow {
    PoolRow { max_slots, ..pool("meet") }
}

fn failed(reason: &str) -> (Status, Option<String>) {
    (Status::Failed, Some(reason.to_owned()))
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_start_that_fails_twice_is_retried_in_the_same_slot_and_its_message_is_kept(#[case] backend: Backend) {
    let fake = Fake::hanging().failing_starts([
        ProviderError::transient("connection refused"),
        ProviderError::transient("too many requests"),
    ]);
    let fixture = DeploymentFixture::with(backend, [meet(3)], 4, fake).await;
    let bot = fixture.starting(0).await;
    for (message, starts) in [("connection refused", 2), ("too many requests", 3)] {
        fixture.fake.release(1);
        // The next attempt hangs, so that the test has time to look.
        until("it is retried", async || fixture.fake.starts().len() == starts).await;
        let deployment = fixture.core.store.deployments().await.unwrap().remove(0);
        assert_eq!((deployment.active, deployment.last_error.as_deref()), (true, Some(message)));
        assert_eq!(fixture.core.stands(bot).await, (Status::Reserved, None), "the next attempt is in the future");
    }
    fixture.fake.release(1);
    fixture.lives(bot).await;
    let slot = fixture.bot(bot).await.slot.unwrap();
    assert_eq!(fixture.fake.starts(), [slot.clone(), slot.clone(), slot]);
    assert_eq!(fixture.slots().await.len(), 1);
    assert_eq!(fixture.bot(bot).await.error, None);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_permanent_start_error_ends_the_bot_and_sets_the_slot_to_error(#[case] backend: Backend) {
    let fake = Fake::default().failing_starts([ProviderError::permanent("no such image: bot:latst")]);
    let fixture = DeploymentFixture::with(backend, [meet(2)], 4, fake).await;
    let bot = fixture.core.reserved(0).await;
    assert_eq!(fixture.end_of(bot).await, failed("deploy_failed"));
    let bot = fixture.bot(bot).await;
    assert_eq!(bot.error.as_deref(), Some("no such image: bot:latst"));
    // The same transaction ends the bot.
    let slot = fixture.slot("pool-meet-001").await.unwrap();
    assert_eq!((slot.status, slot.bot_id), (SlotStatus::Error, None));
    assert_eq!(slot.error_message.as_deref(), Some("no such image: bot:latst"));
    assert!(slot.description.starts_with("[ERROR] no such image: bot:latst - "), "{}", slot.description);
    until("it is shown at the provider", async || {
        fixture.fake.described(&slot.name).as_deref() == Some(slot.description.as_str())
    })
    .await;
    fixture.gate_is_free().await;
    assert_eq!(fixture.fake.starts().len(), 1, "it is not retried");
    // No bot gets the failed slot; the pool has room for another one.
    let next = fixture.core.reserved(1).await;
    assert_eq!(fixture.runs(next).await.as_str(), "pool-meet-002");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_whose_slot_ends_during_the_start_was_interrupted(#[case] backend: Backend) {
    let fake = Fake::hanging().failing_starts([ProviderError::transient("the container has ended")]);
    let fixture = DeploymentFixture::with(backend, [meet(1)], 4, fake).await;
    let bot = fixture.starting(0).await;
    let caller = fixture.caller_of(&fixture.bot(bot).await).unwrap();
    fixture.core.lifecycle.started(caller, None).await.unwrap();
    // For the start, and for the slot that is created again.
    fixture.fake.release(2);
    assert_eq!(fixture.end_of(bot).await, failed("interrupted"));
    let error = fixture.bot(bot).await.error.unwrap();
    assert!(error.contains("no longer runs, and Greenroom did not stop it: the provider no longer has it"), "{error}");
    fixture.slot_is("pool-meet-001", SlotStatus::Idle).await;
    assert_eq!(fixture.fake.starts().len(), 1, "it is not started a second time");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_started_although_its_start_reported_a_failure_continues(#[case] backend: Backend) {
    let fake = Fake::hanging();
    fake.break_next(Kind::Start, Fault::NoAnswer);
    let core = CoreFixture::planned(Database::new(backend).await.into(), &Plan::of([meet(1)])).await;
    let timeouts = ProviderTimeouts { start: Duration::from_millis(300), ..ProviderTimeouts::default() };
    let fixture = DeploymentFixture::patient(core, 4, fake.into(), timeouts).await;
    let bot = fixture.starting(0).await;
    fixture.fake.release(2);
    until("it runs", async || fixture.fake.running(&fixture.bot(bot).await.slot.unwrap()).is_some()).await;
    let caller = fixture.caller_of(&fixture.bot(bot).await).unwrap();
    fixture.core.lifecycle.started(caller, None).await.unwrap();
    fixture.core.lifecycle.joined(caller).await.unwrap();
    fixture.runs(bot).await;
    assert_eq!(fixture.core.stands(bot).await, (Status::Active, None));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_start_of_a_stopped_bot_is_not_retried(#[case] backend: Backend) {
    let fake = Fake::hanging().failing_starts([ProviderError::transient("connection refused")]);
    let fixture = DeploymentFixture::with(backend, [meet(1)], 4, fake).await;
    let bot = fixture.starting(0).await;
    fixture.core.lifecycle.stop(fixture.core.user, bot).await.unwrap();
    fixture.fake.release(1);
    assert_eq!(fixture.end_of(bot).await, (Status::Completed, Some("stopped".to_owned())));
    // The slot was never created. It is created now, for the next bot.
    fixture.fake.release(1);
    let slot = fixture.slot_is("pool-meet-001", SlotStatus::Idle).await.name;
    assert_eq!(fixture.fake.calls(), [Call::Start(slot.clone()), Call::Stop(slot.clone()), Call::Create(slot)]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_cannot_be_stopped_goes_to_error_while_its_bots_end_stands(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [meet(1)]).await;
    let bot = fixture.core.reserved(0).await;
    fixture.runs(bot).await;
    fixture.fake.fail_stop(ProviderError::transient("the host is unreachable"));
    fixture.lives(bot).await;
    let broken = fixture.slot_is("pool-meet-001", SlotStatus::Error).await;
    assert_eq!(fixture.core.stands(bot).await, (Status::Completed, Some("finished".to_owned())));
    assert_eq!(fixture.bot(bot).await.error, None, "the slot failed, not the bot");
    assert_eq!(broken.error_message.as_deref(), Some("the host is unreachable"));
    assert!(broken.description.starts_with("[ERROR] the host is unreachable - "), "{}", broken.description);
    let next = fixture.core.reserved(1).await;
    assert_eq!(fixture.queue().await, [next], "it counts for the size of the pool, and no bot gets it");

    // Still failing: the error message is the new one.
    fixture.fake.fail_stop(ProviderError::transient("no route to host"));
    until("nothing else works on it", async || fixture.deployment.recover(&broken.name).await.unwrap().is_some()).await;
    let broken = fixture.slot_is("pool-meet-001", SlotStatus::Error).await;
    assert_eq!(broken.error_message.as_deref(), Some("no route to host"));

    fixture.deployment.recover(&broken.name).await.unwrap();
    assert_eq!(fixture.runs(next).await, broken.name, "it goes to the next in the queue");
    assert_eq!(fixture.slot("pool-meet-001").await.unwrap().error_message, None);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_whose_bot_sent_no_callback_goes_to_error_and_nothing_is_left_in_it(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [meet(1)]).await;
    let bot = fixture.core.reserved(0).await;
    let name = fixture.runs(bot).await;
    assert_eq!(fixture.core.after(299).await, 0, "the deadline begins with the provider's answer");
    assert_eq!(fixture.core.after(1).await, 1);
    assert_eq!(fixture.core.stands(bot).await, failed("no_start"));
    let slot = fixture.slot_is(name.as_str(), SlotStatus::Error).await;
    assert!(slot.error_message.unwrap().contains("never called back"));
    assert_eq!(fixture.fake.running(&name).map(|spec| spec.slot), None);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_hot_slot_whose_agent_does_not_take_its_bot_is_started_once_more(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [PoolRow { hot: true, min_idle: 1, ..meet(1) }]).await;
    let slot = fixture.slot_is("pool-meet-001", SlotStatus::Creating).await;
    let name = slot.name.clone();
    until("it was started", async || fixture.fake.starts().len() == 1).await;
    fixture.core.placement.report(name.clone(), waits(&slot)).await.unwrap();
    let bot = fixture.core.reserved(0).await;
    assert_eq!(fixture.slot(name.as_str()).await.unwrap().bot_id, Some(bot));
    for _ in 0..2 {
        fixture.core.clock.advance(Duration::from_secs(6));
        // A second run must have begun after the clock was set.
        fixture.reconcile();
        until("the missing agent was noticed", async || {
            fixture.reconcile();
            fixture.fake.starts().len() == 2 && fixture.at_gate().await == (0, 0)
        })
        .await;
    }
    assert_eq!(fixture.core.after(301).await, 1, "a repeated start is no sign of life of the bot");
    assert_eq!(fixture.core.stands(bot).await, failed("no_start"));
    fixture.slot_is(name.as_str(), SlotStatus::Error).await;
    assert_eq!(fixture.fake.starts().len(), 2);
}
