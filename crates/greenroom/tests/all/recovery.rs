//! Failed slots recover, or are replaced.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{SlotName, SlotStatus};
use greenroom::deployment::Recovery;
use greenroom::keepers::RunReport;
use greenroom::placement::SlotEvent;
use greenroom::providers::ProviderError;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, Call, DeploymentFixture, Fake, Fault, Kind, Plan, pool, until, waits};

const SLOT: &str = "pool-meet-001";

fn name() -> SlotName {
    SlotName::stored(SLOT.to_owned())
}

fn report(recovered: u64, failed: u64, deleted: u64) -> RunReport {
    RunReport::of([("recovered", recovered), ("failed", failed), ("deleted", deleted)])
}

/// A bot whose slot cannot be started: the slot goes to error.
async fn fails(fixture: &DeploymentFixture, number: usize) {
    fixture.fake.break_next(Kind::Start, Fault::Error);
    let bot = fixture.core.reserved(number).await;
    assert_eq!(fixture.end_of(bot).await.1.as_deref(), Some("deploy_failed"));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_in_error_is_stopped_at_the_provider_and_used_again(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [pool("meet")]).await;
    fails(&fixture, 0).await;
    let slot = fixture.slot_is(SLOT, SlotStatus::Error).await;
    assert_eq!(slot.error_message.as_deref(), Some("it broke on purpose"));
    assert_eq!(fixture.keep("recovery").await, report(1, 0, 0));
    assert_eq!(fixture.fake.count(&Call::Stop(name())), 1);
    // The slot was never created, so it is created first.
    let slot = fixture.slot_is(SLOT, SlotStatus::Idle).await;
    assert_eq!((slot.recovery_attempts, slot.error_message), (1, None));
    assert_eq!(fixture.keep("recovery").await, report(0, 0, 0), "there is nothing more to do");
    // A successful bot resets the count of attempts.
    let bot = fixture.core.reserved(1).await;
    fixture.lives(bot).await;
    let slot = fixture.slot_is(SLOT, SlotStatus::Idle).await;
    assert_eq!(slot.recovery_attempts, 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_waits_gets_the_slot_that_was_recovered(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [pool("meet")]).await;
    fails(&fixture, 0).await;
    let bot = fixture.core.reserved(1).await;
    assert_eq!(fixture.queue().await, [bot]);
    assert_eq!(fixture.keep("recovery").await, report(1, 0, 0));
    assert_eq!(fixture.place_of(bot).await.as_deref(), Some(SLOT));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_repeatedly_failing_slot_is_deleted_at_its_third_failure_and_replaced(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [pool("meet")]).await;
    for failure in 0..2 {
        fails(&fixture, failure).await;
        assert_eq!(fixture.keep("recovery").await, report(1, 0, 0));
        let slot = fixture.slot_is(SLOT, SlotStatus::Idle).await;
        assert_eq!(slot.recovery_attempts, failure as i64 + 1);
    }
    let before = fixture.slot(SLOT).await.unwrap();
    fails(&fixture, 2).await;
    assert_eq!(fixture.keep("recovery").await, report(0, 0, 1));
    assert_eq!(fixture.fake.count(&Call::Delete(name())), 1);
    assert_eq!(fixture.slots().await, [], "the slot is gone");
    assert!(fixture.fake.has().is_empty());
    fixture.core.clock.advance(Duration::from_secs(1));
    let bot = fixture.core.reserved(3).await;
    fixture.lives(bot).await;
    let fresh = fixture.slot_is(SLOT, SlotStatus::Idle).await;
    assert!(fresh.created_at > before.created_at && fresh.recovery_attempts == 0, "{fresh:?}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_cannot_be_stopped_is_deleted_at_the_third_attempt(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [pool("meet")]).await;
    fails(&fixture, 0).await;
    for attempt in 1..=2 {
        fixture.fake.fail_stop(ProviderError::transient(format!("no, says the provider, {attempt}")));
        assert_eq!(fixture.keep("recovery").await, report(0, 1, 0));
        let slot = fixture.slot(SLOT).await.unwrap();
        assert_eq!((slot.status, slot.recovery_attempts), (SlotStatus::Error, attempt));
        assert_eq!(slot.error_message, Some(format!("no, says the provider, {attempt}")));
    }
    assert_eq!(fixture.keep("recovery").await, report(0, 0, 1));
    assert_eq!(fixture.slots().await, []);
}

#[rstest]
#[case::says_no(Fault::Error)]
#[case::does_nothing(Fault::NoEffect)]
#[tokio::test]
async fn the_row_stays_until_the_provider_confirms_that_the_slot_is_gone(#[case] fault: Fault) {
    let fixture = DeploymentFixture::new(Backend::Sqlite, [pool("meet")]).await;
    let bot = fixture.core.reserved(0).await;
    fixture.lives(bot).await;
    fixture.slot_is(SLOT, SlotStatus::Idle).await;
    for failure in 1..=3 {
        fails(&fixture, failure).await;
        if failure == 3 {
            fixture.fake.break_next(Kind::Delete, fault);
        }
        fixture.keep("recovery").await;
    }
    let slot = fixture.slot(SLOT).await.unwrap();
    assert_eq!(slot.status, SlotStatus::Draining, "no bot gets it any more");
    assert!(slot.error_message.is_some() && slot.description.starts_with("[ERROR]"), "{slot:?}");
    assert!(fixture.fake.has().contains_key(&name()), "it keeps running, and the store has it");
    // It is retried after some time, not in every run.
    fixture.keep("deployment").await;
    assert_eq!(fixture.fake.count(&Call::Delete(name())), 1);
    fixture.core.clock.advance(Duration::from_secs(31));
    fixture.keep("deployment").await;
    until("it is gone", async || fixture.slots().await.is_empty()).await;
    assert!(fixture.fake.has().is_empty());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn slots_that_are_stuck_without_a_bot_are_recovered(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [PoolRow { max_slots: 2, ..pool("meet") }]).await;
    let bots = [fixture.core.reserved(0).await, fixture.core.reserved(1).await];
    for bot in bots {
        fixture.lives(bot).await;
    }
    for slot in [SLOT, "pool-meet-002"] {
        fixture.slot_is(slot, SlotStatus::Idle).await;
    }
    fixture.core.database.execute("UPDATE slots SET status = 'creating' WHERE number = 1").await;
    fixture.core.database.execute("UPDATE slots SET status = 'busy' WHERE number = 2").await;
    assert_eq!(fixture.keep("recovery").await, report(0, 0, 0), "another task may be working on them");
    fixture.core.clock.advance(Duration::from_secs(61));
    // A slot that is still being cleared is left to the next run.
    let mut recovered = 0;
    until("both are recovered", async || {
        recovered += fixture.keep("recovery").await.counts["recovered"];
        recovered == 2
    })
    .await;
    for (slot, status) in fixture.slots().await {
        assert_eq!(status, SlotStatus::Idle, "{slot}");
    }
    assert_eq!(fixture.keep("recovery").await, report(0, 0, 0), "each was recovered once");
}

#[tokio::test]
async fn a_hot_slot_that_never_starts_is_finally_deleted_and_replaced() {
    let meet = PoolRow { hot: true, min_idle: 1, ..pool("meet") };
    let fixture = DeploymentFixture::planned(Backend::Sqlite, &Plan::of([meet]), 1, Fake::default()).await;
    let first = fixture.slot_is(SLOT, SlotStatus::Creating).await;
    for attempt in 1..=3 {
        until("it was started", async || fixture.fake.starts().len() == attempt && fixture.at_gate().await == (0, 0))
            .await;
        // The agent never waits.
        fixture.core.clock.advance(Duration::from_secs(61));
        fixture.keep("deployment").await;
        fixture.slot_is(SLOT, SlotStatus::Error).await;
        fixture.keep("recovery").await;
    }
    assert_eq!(fixture.slots().await, []);
    fixture.keep("warm_buffer").await;
    let second = fixture.slot(SLOT).await.unwrap();
    assert!(second.created_at > first.created_at);
}

#[tokio::test]
async fn a_crash_of_the_bot_itself_does_not_count_as_a_failure_of_its_slot() {
    let fixture = DeploymentFixture::new(Backend::Sqlite, [pool("meet")]).await;
    for number in 0..4 {
        let bot = fixture.core.reserved(number).await;
        let caller = fixture.caller(bot).await;
        fixture.core.lifecycle.started(caller, None).await.unwrap();
        fixture.core.exited(caller, 1).await.unwrap();
        let slot = fixture.slot_is(SLOT, SlotStatus::Idle).await;
        assert_eq!(slot.recovery_attempts, 0);
    }
}

#[tokio::test]
async fn a_slot_that_is_being_started_again_is_not_stuck() {
    let meet = PoolRow { hot: true, min_idle: 1, ..pool("meet") };
    let fixture = DeploymentFixture::with(Backend::Sqlite, [meet], 1, Fake::hanging()).await;
    let slot = fixture.slot_is(SLOT, SlotStatus::Creating).await;
    until("it starts", async || fixture.fake.starting() == 1).await;
    fixture.core.clock.advance(Duration::from_secs(61));
    // The slot was in error when recovery read it, and was recovered by hand after that.
    let stuck_since = fixture.core.clock.now();
    let attempted = fixture.deployment.attempt(&slot.name, stuck_since).await.unwrap();
    assert_eq!(attempted, Recovery::NotNeeded);
    let after = fixture.slot(SLOT).await.unwrap();
    assert_eq!((after.status, after.recovery_attempts), (SlotStatus::Creating, 0));
    assert_eq!(fixture.fake.count(&Call::Stop(name())), 0);
}

#[tokio::test]
async fn an_attempt_that_comes_too_late_frees_nothing() {
    let fixture = DeploymentFixture::new(Backend::Sqlite, [pool("meet")]).await;
    fails(&fixture, 0).await;
    let before = fixture.slot(SLOT).await.unwrap();
    fixture.keep("recovery").await;
    fixture.core.clock.advance(Duration::from_secs(1));
    fails(&fixture, 1).await;
    let since = before.status_since;
    assert!(!fixture.core.placement.report(name(), SlotEvent::Recovered { since }).await.unwrap());
    assert!(
        !fixture.core.placement.report(name(), SlotEvent::Recovering { since, message: String::new() }).await.unwrap()
    );
    let slot = fixture.slot(SLOT).await.unwrap();
    assert_eq!((slot.status, slot.recovery_attempts), (SlotStatus::Error, 1));
}

#[tokio::test]
async fn a_slot_that_other_work_holds_is_not_recovered() {
    let fixture = DeploymentFixture::with(Backend::Sqlite, [pool("meet")], 1, Fake::slow_to_end()).await;
    let bot = fixture.core.reserved(0).await;
    fixture.runs(bot).await;
    let broken = SlotEvent::Broken { bot: Some(bot), message: "it smokes".to_owned() };
    fixture.core.placement.report(name(), broken).await.unwrap();
    let slot = fixture.slot_is(SLOT, SlotStatus::Error).await;
    let deployment = fixture.deployment.clone();
    let by_hand = tokio::spawn(async move { deployment.recover(&slot.name).await.unwrap() });
    until("it is being stopped", async || fixture.fake.count(&Call::Stop(name())) == 1).await;
    assert_eq!(fixture.keep("recovery").await, report(0, 0, 0));
    fixture.fake.release_ends(1);
    assert_eq!(by_hand.await.unwrap(), Some(Recovery::Recovered));
    assert_eq!(fixture.slot(SLOT).await.unwrap().recovery_attempts, 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_pool_whose_slots_cannot_be_started_is_not_filled_with_broken_ones(#[case] backend: Backend) {
    let meet = PoolRow { hot: true, min_idle: 2, max_slots: 50, ..pool("meet") };
    let errors = (0..100).map(|_| ProviderError::permanent("there is no such command"));
    let fixture = DeploymentFixture::with(backend, [meet], 4, Fake::default().failing_starts(errors)).await;
    for _ in 0..6 {
        fixture.keep("warm_buffer").await;
        fixture.gate_is_free().await;
    }
    let broken = vec![SlotStatus::Error; 4];
    assert_eq!(fixture.slots().await.into_iter().map(|(_, status)| status).collect::<Vec<_>>(), broken);
}

/// The log lines of this thread, which runs the test's own tasks.
#[derive(Clone, Debug, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Logged {
    fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let logged = Self::default();
        let writer = logged.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        (logged, tracing::subscriber::set_default(subscriber))
    }

    fn count(&self, message: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().unwrap()).matches(message).count()
    }
}

#[tokio::test]
async fn a_slot_is_logged_as_recovered_only_if_it_was_not_drained_meanwhile() {
    let (logged, _guard) = Logged::begin();
    let fixture = DeploymentFixture::with(Backend::Sqlite, [pool("meet")], 4, Fake::slow_to_end()).await;
    for (is_drained, recovery, times) in [(true, Recovery::NotNeeded, 0), (false, Recovery::Recovered, 1)] {
        fails(&fixture, usize::from(is_drained)).await;
        fixture.slot_is(SLOT, SlotStatus::Error).await;
        let stops = fixture.fake.count(&Call::Stop(name()));
        let deployment = fixture.deployment.clone();
        let recovering = tokio::spawn(async move { deployment.recover(&name()).await.unwrap() });
        until("it is being stopped", async || fixture.fake.count(&Call::Stop(name())) > stops).await;
        if is_drained {
            assert!(fixture.core.placement.report(name(), SlotEvent::Drain).await.unwrap());
        }
        fixture.fake.release_ends(1);
        assert_eq!(recovering.await.unwrap(), Some(recovery));
        assert_eq!(logged.count("slot recovered"), times);
        if is_drained {
            // A failed slot is not retried for half a minute.
            fixture.core.clock.advance(Duration::from_secs(31));
            fixture.fake.release_ends(1);
            until("it is deleted", async || {
                fixture.keep("deployment").await;
                fixture.slot(SLOT).await.is_none()
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_late_agent_does_not_recover_a_slot_that_is_being_stopped() {
    let meet = PoolRow { hot: true, min_idle: 1, ..pool("meet") };
    let fixture = DeploymentFixture::with(Backend::Sqlite, [meet], 4, Fake::slow_to_end()).await;
    until("it was started", async || fixture.fake.starts().len() == 1 && fixture.at_gate().await == (0, 0)).await;
    fixture.core.clock.advance(Duration::from_secs(61));
    fixture.keep("deployment").await;
    let slot = fixture.slot_is(SLOT, SlotStatus::Error).await;
    let deployment = fixture.deployment.clone();
    let recovering = tokio::spawn(async move { deployment.recover(&name()).await.unwrap() });
    until("it is being stopped", async || fixture.fake.count(&Call::Stop(name())) == 1).await;
    fixture.core.placement.report(name(), waits(&slot)).await.unwrap();
    assert_eq!(
        fixture.slot(SLOT).await.unwrap().status,
        SlotStatus::Error,
        "an agent that comes now is about to be ended"
    );
    fixture.fake.release_ends(1);
    assert_eq!(recovering.await.unwrap(), Some(Recovery::Recovered));
    until("it is started again", async || fixture.fake.starts().len() == 2 && fixture.at_gate().await == (0, 0)).await;
    fixture.advance_bots(&[]).await;
    fixture.slot_is(SLOT, SlotStatus::Idle).await;
}
