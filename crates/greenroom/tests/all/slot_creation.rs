//! Slots that are created in advance, and the errors that are kept if a slot cannot be created or started.

use domain::{SlotName, SlotStatus, Status};
use greenroom::providers::ProviderError;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, Call, DeploymentFixture, Fake, Fault, Kind, pool, until};

fn slot(number: i64) -> SlotName {
    SlotName::new("meet", number)
}

/// A pool of stopped slots that keeps two ready.
fn meet() -> PoolRow {
    PoolRow { max_slots: 4, min_idle: 2, ..pool("meet") }
}

async fn idle(fixture: &DeploymentFixture) -> usize {
    fixture.slots().await.iter().filter(|(_, status)| *status == SlotStatus::Idle).count()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn slots_that_are_kept_ready_are_created_at_the_provider_and_not_started(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [meet()]).await;
    until("two slots are ready", async || idle(&fixture).await == 2).await;
    assert_eq!(fixture.fake.has(), [(slot(1), false), (slot(2), false)].into());
    assert_eq!(fixture.slot("pool-meet-001").await.unwrap().provider_ref.as_deref(), Some("fake/pool-meet-001"));
    // A bot is started in a slot that was created in advance.
    let bot = fixture.core.reserved(1).await;
    fixture.runs(bot).await;
    assert_eq!(fixture.place_of(bot).await.as_deref(), Some("pool-meet-001"));
    assert_eq!(fixture.fake.calls_for(&slot(1)), [Call::Create(slot(1)), Call::Start(slot(1))]);
}

#[tokio::test]
async fn a_waiting_bot_gets_a_slot_as_soon_as_it_is_created() {
    let fake = Fake::hanging();
    let fixture =
        DeploymentFixture::with(Backend::Sqlite, [PoolRow { max_slots: 1, min_idle: 1, ..pool("meet") }], 4, fake)
            .await;
    until("it is being made", async || fixture.fake.count(&Call::Create(slot(1))) == 1).await;
    let bot = fixture.core.reserved(1).await;
    assert_eq!(fixture.queue().await, [bot]);
    fixture.fake.release(2);
    fixture.runs(bot).await;
    assert_eq!(fixture.fake.calls_for(&slot(1)), [Call::Create(slot(1)), Call::Start(slot(1))]);
}

#[tokio::test]
async fn a_slot_that_could_not_be_created_is_in_error_and_recovery_creates_it() {
    let fake = Fake::default();
    fake.break_next(Kind::Create, Fault::Error);
    let one = PoolRow { max_slots: 1, min_idle: 1, ..pool("meet") };
    let fixture = DeploymentFixture::with(Backend::Sqlite, [one], 4, fake).await;
    let row = fixture.slot_is("pool-meet-001", SlotStatus::Error).await;
    assert_eq!(row.error_message.as_deref(), Some("it broke on purpose"));
    fixture.keep("recovery").await;
    fixture.slot_is("pool-meet-001", SlotStatus::Idle).await;
    assert_eq!(fixture.fake.has(), [(slot(1), false)].into());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_failure_of_a_start_is_kept_with_the_last_lines_also_after_the_slot_is_gone(#[case] backend: Backend) {
    let fake = Fake::default().failing_starts([ProviderError::permanent("no such image: bot:1")]);
    fake.write(&slot(1), "first line\nlast line");
    let fixture = DeploymentFixture::with(backend, [PoolRow { max_slots: 1, ..pool("meet") }], 4, fake).await;
    let bot = fixture.core.reserved(1).await;
    assert_eq!(fixture.end_of(bot).await, (Status::Failed, Some("deploy_failed".to_owned())));
    let store = &fixture.core.store;
    let failures = store.failures_in(&slot(1)).await.unwrap();
    assert_eq!(failures.len(), 1);
    assert_eq!((failures[0].bot_id, failures[0].message.as_str()), (Some(bot), "no such image: bot:1"));
    assert_eq!(failures[0].log.as_deref(), Some("first line\nlast line"));
    fixture.core.placement.report(slot(1), greenroom::placement::SlotEvent::Drain).await.unwrap();
    // A failed slot is not retried for half a minute.
    fixture.core.clock.advance(std::time::Duration::from_secs(31));
    until("the slot is gone", async || {
        fixture.reconcile();
        fixture.slot("pool-meet-001").await.is_none()
    })
    .await;
    assert_eq!(store.failures_of(bot).await.unwrap(), failures);
}

#[tokio::test]
async fn the_last_lines_of_a_failed_bot_are_kept_and_those_of_a_completed_bot_are_not() {
    let fixture = DeploymentFixture::new(Backend::Sqlite, [PoolRow { max_slots: 2, ..pool("meet") }]).await;
    for (number, code) in [(1, 0), (2, 3)] {
        fixture.fake.write(&slot(1), &format!("it ends with {code}"));
        let bot = fixture.core.reserved(number).await;
        fixture.runs(bot).await;
        let caller = fixture.caller(bot).await;
        fixture.core.lifecycle.started(caller, None).await.unwrap();
        fixture.core.lifecycle.joined(caller).await.unwrap();
        fixture.core.exited(caller, code).await.unwrap();
        fixture.slot_is("pool-meet-001", SlotStatus::Idle).await;
        let failures = fixture.core.store.failures_of(bot).await.unwrap();
        let logs: Vec<_> = failures.iter().filter_map(|failure| failure.log.as_deref()).collect();
        assert_eq!(logs, if code == 0 { vec![] } else { vec!["it ends with 3"] });
    }
}

#[tokio::test]
async fn a_repeated_failure_is_kept_once() {
    let fake = Fake::default().failing_starts([ProviderError::permanent("no such image: bot:1")]);
    let fixture = DeploymentFixture::with(Backend::Sqlite, [PoolRow { max_slots: 1, ..pool("meet") }], 4, fake).await;
    let bot = fixture.core.reserved(1).await;
    fixture.end_of(bot).await;
    for message in ["no route to host", "no route to host", "no route to host", "it hangs"] {
        fixture.core.clock.advance(std::time::Duration::from_secs(1));
        fixture.fake.fail_stop(ProviderError::transient(message));
        until("nothing else works on it", async || fixture.deployment.recover(&slot(1)).await.unwrap().is_some()).await;
    }
    let kept = fixture.core.store.failures_in(&slot(1)).await.unwrap();
    let message: Vec<&str> = kept.iter().map(|failure| failure.message.as_str()).collect();
    assert_eq!(message, ["it hangs", "no route to host", "no such image: bot:1"]);
}

#[tokio::test]
async fn failures_are_not_kept_for_ever() {
    let fixture = DeploymentFixture::new(Backend::Sqlite, [pool("meet")]).await;
    let store = &fixture.core.store;
    let failure = |number: i64| greenroom::store::FailureRow {
        slot: slot(1),
        bot_id: None,
        at: jiff::Timestamp::from_second(1_700_000_000 + number).unwrap(),
        message: format!("number {number}"),
        log: None,
    };
    for number in 0..30 {
        store.keep_failure(&failure(number)).await.unwrap();
    }
    let kept = store.failures_in(&slot(1)).await.unwrap();
    assert_eq!(kept.len(), 20);
    assert_eq!((kept[0].message.as_str(), kept[19].message.as_str()), ("number 29", "number 10"));
}
