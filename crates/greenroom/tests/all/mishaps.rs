//! What goes wrong at the provider: it is tried again where that may help, and otherwise told in the provider's words.

use std::time::Duration;

use domain::{SlotStatus, Status};
use greenroom::deployment::Patience;
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
async fn a_start_that_fails_twice_is_tried_again_in_the_same_slot_and_its_words_are_kept(#[case] backend: Backend) {
    let fake = Fake::hanging().failing_starts([
        ProviderError::transient("connection refused"),
        ProviderError::transient("too many requests"),
    ]);
    let fixture = DeploymentFixture::with(backend, [meet(3)], 4, fake).await;
    let bot = fixture.starting(0).await;
    for (message, starts) in [("connection refused", 2), ("too many requests", 3)] {
        fixture.fake.release(1);
        // The next try hangs, so that there is time to look.
        until("it is tried again", async || fixture.fake.starts().len() == starts).await;
        let deployment = fixture.core.store.deployments().await.unwrap().remove(0);
        assert_eq!((deployment.active, deployment.last_error.as_deref()), (true, Some(message)));
        assert_eq!(fixture.core.stands(bot).await, (Status::Reserved, None), "it is still to come");
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
async fn a_start_that_can_never_work_ends_the_bot_and_puts_the_slot_to_error(#[case] backend: Backend) {
    let fake = Fake::default().failing_starts([ProviderError::permanent("no such image: bot:latst")]);
    let fixture = DeploymentFixture::with(backend, [meet(2)], 4, fake).await;
    let bot = fixture.core.reserved(0).await;
    assert_eq!(fixture.end_of(bot).await, failed("deploy_failed"));
    let bot = fixture.bot(bot).await;
    assert_eq!(bot.error.as_deref(), Some("no such image: bot:latst"));
    // In one transaction with the bot's end.
    let slot = fixture.slot("pool-meet-001").await.unwrap();
    assert_eq!((slot.status, slot.bot_id), (SlotStatus::Error, None));
    assert_eq!(slot.error_message.as_deref(), Some("no such image: bot:latst"));
    assert!(slot.description.starts_with("[ERROR] no such image: bot:latst - "), "{}", slot.description);
    until("it is shown at the provider", async || {
        fixture.fake.described(&slot.name).as_deref() == Some(slot.description.as_str())
    })
    .await;
    fixture.gate_is_free().await;
    assert_eq!(fixture.fake.starts().len(), 1, "it is not tried again");
    // What is broken is not given out; there is room for another.
    let next = fixture.core.reserved(1).await;
    assert_eq!(fixture.runs(next).await.as_str(), "pool-meet-002");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_began_and_ended_with_its_slot_during_the_start_was_interrupted(#[case] backend: Backend) {
    let fake = Fake::hanging().failing_starts([ProviderError::transient("the container has ended")]);
    let fixture = DeploymentFixture::with(backend, [meet(1)], 4, fake).await;
    let bot = fixture.starting(0).await;
    let caller = fixture.caller_of(&fixture.bot(bot).await).unwrap();
    fixture.core.lifecycle.started(caller, None).await.unwrap();
    // The start, and the slot that is made anew.
    fixture.fake.release(2);
    assert_eq!(fixture.end_of(bot).await, failed("interrupted"));
    let error = fixture.bot(bot).await.error.unwrap();
    assert!(error.contains("no longer runs, and Greenroom did not stop it: it is gone"), "{error}");
    fixture.slot_is("pool-meet-001", SlotStatus::Idle).await;
    assert_eq!(fixture.fake.starts().len(), 1, "it is not begun a second time");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_began_although_its_start_is_said_to_have_failed_goes_on(#[case] backend: Backend) {
    let fake = Fake::hanging();
    fake.break_next(Kind::Start, Fault::NoAnswer);
    let core = CoreFixture::planned(Database::new(backend).await.into(), &Plan::of([meet(1)])).await;
    let patience = Patience { start: Duration::from_millis(300), ..Patience::default() };
    let fixture = DeploymentFixture::patient(core, 4, fake.into(), patience).await;
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
async fn a_bot_that_is_to_leave_is_not_tried_again(#[case] backend: Backend) {
    let fake = Fake::hanging().failing_starts([ProviderError::transient("connection refused")]);
    let fixture = DeploymentFixture::with(backend, [meet(1)], 4, fake).await;
    let bot = fixture.starting(0).await;
    fixture.core.lifecycle.stop(fixture.core.user, bot).await.unwrap();
    fixture.fake.release(1);
    assert_eq!(fixture.end_of(bot).await, (Status::Completed, Some("stopped".to_owned())));
    // What was never made is made now, for the next.
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
    assert_eq!(fixture.bot(bot).await.error, None, "it is the slot that failed, not the bot");
    assert_eq!(broken.error_message.as_deref(), Some("the host is unreachable"));
    assert!(broken.description.starts_with("[ERROR] the host is unreachable - "), "{}", broken.description);
    let next = fixture.core.reserved(1).await;
    assert_eq!(fixture.queue().await, [next], "it counts towards the cap, and is not given out");

    // Still broken: the words are the new ones.
    fixture.fake.fail_stop(ProviderError::transient("no route to host"));
    until("nobody else is at it", async || fixture.deployment.recover(&broken.name).await.unwrap().is_some()).await;
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
async fn a_slot_of_whose_bot_nothing_was_heard_goes_to_error_and_nothing_is_left_in_it(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [meet(1)]).await;
    let bot = fixture.core.reserved(0).await;
    let name = fixture.runs(bot).await;
    assert_eq!(fixture.core.after(299).await, 0, "its time begins with the provider's answer");
    assert_eq!(fixture.core.after(1).await, 1);
    assert_eq!(fixture.core.stands(bot).await, failed("no_start"));
    let slot = fixture.slot_is(name.as_str(), SlotStatus::Error).await;
    assert!(slot.error_message.unwrap().contains("nothing was heard"));
    assert_eq!(fixture.fake.running(&name).map(|spec| spec.slot), None);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_hot_slot_whose_agent_does_not_take_its_bot_is_started_once_more_and_then_the_bot_has_its_time(
    #[case] backend: Backend,
) {
    let fixture = DeploymentFixture::new(backend, [PoolRow { hot: true, min_idle: 1, ..meet(1) }]).await;
    let slot = fixture.slot_is("pool-meet-001", SlotStatus::Creating).await;
    let name = slot.name.clone();
    until("it was started", async || fixture.fake.starts().len() == 1).await;
    fixture.core.placement.report(name.clone(), waits(&slot)).await.unwrap();
    let bot = fixture.core.reserved(0).await;
    assert_eq!(fixture.slot(name.as_str()).await.unwrap().bot_id, Some(bot));
    for _ in 0..2 {
        fixture.core.clock.advance(Duration::from_secs(6));
        // Whoever looks twice has looked after the clock was set.
        fixture.reconcile();
        until("its agent was missed", async || {
            fixture.reconcile();
            fixture.fake.starts().len() == 2 && fixture.at_gate().await == (0, 0)
        })
        .await;
    }
    assert_eq!(fixture.core.after(301).await, 1, "being started once more is no sign of the bot's life");
    assert_eq!(fixture.core.stands(bot).await, failed("no_start"));
    fixture.slot_is(name.as_str(), SlotStatus::Error).await;
    assert_eq!(fixture.fake.starts().len(), 2);
}
