//! An unavailable provider is not a failed slot. Its slots keep their state, and delayed work is done as soon as the
//! provider answers again.

use std::time::Duration;

use domain::{SlotName, SlotStatus};
use greenroom::deployment::assignment::Offer;
use greenroom::keepers::RunReport;
use greenroom::store::{PoolRow, SlotRow};
use rstest::rstest;

use crate::support::{
    Backend, Call, DeploymentFixture, DockerFixture, Fake, Fault, Kind, OBEDIENT, PrivateEngine, Recipe, found,
    meet_link, pool, until, waits,
};

const SLOT: &str = "pool-meet-001";

fn name() -> SlotName {
    SlotName::stored(SLOT.to_owned())
}

async fn all(fixture: &DeploymentFixture) -> Vec<SlotRow> {
    fixture.core.store.slots(None, None).await.unwrap()
}

/// Asserts that no slot has an error, a failure or a recovery attempt.
async fn nothing_is_marked(fixture: &DeploymentFixture) {
    for slot in all(fixture).await {
        let SlotRow { status, recovery_attempts, error_message, .. } = &slot;
        assert!(*status != SlotStatus::Error && *recovery_attempts == 0 && error_message.is_none(), "{slot:?}");
        assert_eq!(fixture.core.store.failures_in(&slot.name).await.unwrap(), []);
    }
}

/// A hot pool whose agents wait.
async fn hot(backend: Backend, slots: i64) -> DeploymentFixture {
    let fixture =
        DeploymentFixture::new(backend, [PoolRow { hot: true, min_idle: slots, max_slots: slots, ..pool("meet") }])
            .await;
    agents_wait(&fixture, slots).await;
    fixture
}

async fn agents_wait(fixture: &DeploymentFixture, slots: i64) {
    until("all are idle", async || {
        fixture.advance_bots(&[]).await;
        all(fixture).await.iter().filter(|slot| slot.status == SlotStatus::Idle).count() == slots as usize
    })
    .await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn work_that_failed_during_an_outage_is_done_when_the_provider_answers_again(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [PoolRow { max_slots: 4, ..pool("meet") }]).await;
    let (ended, caller) = fixture.stays(0).await;
    let (stays, _) = fixture.stays(1).await;
    let drained = fixture.core.reserved(2).await;
    fixture.lives(drained).await;
    fixture.slot_is("pool-meet-003", SlotStatus::Idle).await;
    fixture.fake.go_away();

    fixture.core.exited(caller, 0).await.unwrap();
    until("clearing was attempted", async || fixture.fake.count(&Call::Stop(name())) > 0).await;
    let waits = fixture.core.reserved(3).await;
    let third = SlotName::stored("pool-meet-003".to_owned());
    assert_eq!(fixture.place_of(waits).await, Some(third.to_string()));
    until("its start was attempted", async || fixture.fake.starts().iter().filter(|slot| **slot == third).count() > 2)
        .await;
    for _ in 0..3 {
        fixture.core.clock.advance(Duration::from_secs(61));
        for keeper in ["deployment", "recovery", "sync"] {
            fixture.keep(keeper).await;
        }
    }
    nothing_is_marked(&fixture).await;
    assert_eq!(fixture.slot_of(ended).await.unwrap().status, SlotStatus::Busy, "the slot is cleared later");
    assert_eq!(fixture.bot(stays).await.status.as_str(), "active");

    // No keeper is needed for this.
    fixture.fake.come_back();
    fixture.slot_is(SLOT, SlotStatus::Idle).await;
    fixture.runs(waits).await;
    nothing_is_marked(&fixture).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn hot_slots_lost_in_an_outage_are_started_again_at_once_without_a_recovery_attempt(#[case] backend: Backend) {
    let fixture = hot(backend, 4).await;
    // One slot whose agent does not wait yet, and one with a bot that has sent no callback.
    fixture.core.placement.report(name(), lost(&fixture).await).await.unwrap();
    fixture.gate_is_free().await;
    let bot = fixture.core.reserved(0).await;
    let of_bot = fixture.bot(bot).await.slot.unwrap();
    assert_ne!(of_bot, name());
    fixture.core.clock.advance(Duration::from_secs(11));
    let before = all(&fixture).await;

    fixture.fake.go_away();
    before.iter().for_each(|slot| fixture.fake.end(&slot.name));
    let report = fixture.keep("sync").await;
    assert!(report.complaints[0].contains("connection refused"), "{report:?}");
    fixture.fake.come_back();
    tokio::time::timeout(Duration::from_secs(30), fixture.deployment.until_provider_returns()).await.unwrap();
    let report = fixture.keep("sync").await;
    assert_eq!((report.counts["made_anew"], report.counts["waiting"]), (4, 0));
    nothing_is_marked(&fixture).await;
    until("all run again", async || fixture.fake.has().values().all(|runs| *runs)).await;
    assert_eq!(fixture.bot(bot).await.slot, Some(of_bot), "the bot keeps its slot");
    agents_wait(&fixture, 4).await;
}

/// The slot is to be started again, and its agent does not wait yet.
async fn lost(fixture: &DeploymentFixture) -> greenroom::placement::SlotEvent {
    let since = fixture.slot(SLOT).await.unwrap().status_since;
    greenroom::placement::SlotEvent::Lost { since, counts: false }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_is_lost_during_its_start_is_started_once_more(#[case] backend: Backend) {
    let pool = PoolRow { hot: true, min_idle: 1, max_slots: 1, ..pool("meet") };
    let fixture = DeploymentFixture::with(backend, [pool], 4, Fake::hanging()).await;
    until("it is being started", async || fixture.fake.starting() == 1).await;
    let before = fixture.slot(SLOT).await.unwrap();
    assert!(fixture.core.placement.report(name(), lost(&fixture).await).await.unwrap());
    fixture.fake.release(2);
    until("the start for the new tokens is done", async || {
        let tokens = fixture.slot(SLOT).await.unwrap().generation;
        let runs = fixture.fake.running(&name()).map(|spec| spec.generation);
        tokens == before.generation + 1 && runs == Some(tokens) && fixture.at_gate().await == (0, 0)
    })
    .await;
    agents_wait(&fixture, 1).await;
}

#[tokio::test]
async fn an_outage_without_lost_slots_changes_nothing() {
    let fixture = hot(Backend::Sqlite, 3).await;
    fixture.core.clock.advance(Duration::from_secs(11));
    let before = all(&fixture).await;
    fixture.fake.go_away();
    fixture.keep("sync").await;
    fixture.fake.come_back();
    tokio::time::timeout(Duration::from_secs(30), fixture.deployment.until_provider_returns()).await.unwrap();
    // A single listing without any slots is not believed.
    fixture.fake.break_next(Kind::List, Fault::NoEffect);
    fixture.keep("sync").await;
    fixture.keep("sync").await;
    assert_eq!(all(&fixture).await, before);
}

#[tokio::test]
async fn a_slot_in_error_is_not_recovered_while_the_provider_is_down() {
    let fixture = DeploymentFixture::new(Backend::Sqlite, [pool("meet")]).await;
    fixture.fake.break_next(Kind::Start, Fault::Error);
    let bot = fixture.core.reserved(0).await;
    fixture.end_of(bot).await;
    let before = fixture.slot_is(SLOT, SlotStatus::Error).await;
    fixture.fake.go_away();
    for _ in 0..4 {
        assert_eq!(fixture.keep("recovery").await.counts["failed"], 0);
        assert_eq!(fixture.deployment.recover(&name()).await.unwrap(), Some(greenroom::deployment::Recovery::Failed));
    }
    assert_eq!(fixture.slot(SLOT).await.unwrap(), before, "no attempt counts, and the error is unchanged");
    fixture.fake.come_back();
    until("the provider is known to be back", async || !fixture.deployment.is_unavailable("meet")).await;
    assert_eq!(fixture.keep("recovery").await, RunReport::of([("recovered", 1), ("failed", 0), ("deleted", 0)]));
}

#[tokio::test]
async fn an_outage_that_outlasts_a_bots_deadline_ends_the_bot_but_not_its_slot() {
    let fixture = DeploymentFixture::new(Backend::Sqlite, [pool("meet")]).await;
    let first = fixture.core.reserved(0).await;
    fixture.lives(first).await;
    fixture.slot_is(SLOT, SlotStatus::Idle).await;
    fixture.fake.go_away();
    let bot = fixture.core.reserved(1).await;
    until("its start was attempted", async || fixture.fake.starts().len() > 1).await;
    let end = found("the bot has ended", async || {
        fixture.core.clock.advance(Duration::from_mins(16));
        fixture.keep("queue_expiry").await;
        let end = fixture.core.stands(bot).await;
        end.0.is_ended().then_some(end)
    })
    .await;
    assert_eq!(end.1.as_deref(), Some("deploy_timeout"));
    nothing_is_marked(&fixture).await;
    fixture.fake.come_back();
    fixture.slot_is(SLOT, SlotStatus::Idle).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_agent_that_waits_after_its_slot_went_to_error_recovers_it(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [PoolRow { hot: true, min_idle: 1, ..pool("meet") }]).await;
    until("it was started", async || fixture.fake.starts().len() == 1 && fixture.at_gate().await == (0, 0)).await;
    fixture.core.clock.advance(Duration::from_secs(61));
    fixture.keep("deployment").await;
    let slot = fixture.slot_is(SLOT, SlotStatus::Error).await;
    let claim = domain::SlotClaim::current(&slot);
    assert!(matches!(fixture.deployment.offer(&claim, "late", true).await.unwrap(), Offer::NoneYet));
    let slot = fixture.slot(SLOT).await.unwrap();
    assert_eq!((slot.status, slot.recovery_attempts, slot.error_message), (SlotStatus::Idle, 0, None));
    // The agent gets a bot at once.
    let bot = fixture.core.reserved(0).await;
    assert!(matches!(fixture.deployment.offer(&claim, "late", false).await.unwrap(), Offer::Bot { .. }));
    assert_eq!(fixture.slot_of(bot).await.unwrap().name, name());
    assert_eq!(fixture.fake.starts().len(), 1);
}

#[tokio::test]
async fn an_agent_in_a_slot_that_is_being_recovered_comes_too_late() {
    let fixture = DeploymentFixture::new(Backend::Sqlite, [PoolRow { hot: true, min_idle: 1, ..pool("meet") }]).await;
    until("it was started", async || fixture.fake.starts().len() == 1 && fixture.at_gate().await == (0, 0)).await;
    fixture.core.clock.advance(Duration::from_secs(61));
    fixture.keep("deployment").await;
    let slot = fixture.slot_is(SLOT, SlotStatus::Error).await;
    let recovering = greenroom::placement::SlotEvent::Recovering { since: slot.status_since, message: String::new() };
    assert!(fixture.core.placement.report(name(), recovering).await.unwrap());
    assert!(!fixture.core.placement.report(name(), waits(&slot)).await.unwrap());
    assert_eq!(fixture.slot(SLOT).await.unwrap().status, SlotStatus::Error);
}

#[rstest]
#[case::stopped(false)]
#[case::killed(true)]
#[tokio::test]
async fn an_outage_of_the_docker_engine_passes_without_a_slot_in_error(#[case] is_killed: bool) {
    let mut engine = PrivateEngine::start("alone").await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    // Only the return of the engine can bring its slots back.
    let keepers = "[sync]\ninterval = \"1h\"\n[recovery]\ninterval = \"1h\"\n\
                   [heartbeat]\ninterval = \"1s\"\n[sweeper]\ninterval = \"1s\"\nstop_grace = \"2s\"";
    let settings = "standby = \"running\"\nmax_slots = 5\nmin_idle = 3";
    let fixture = DockerFixture::start(&engine, "docker", &image, settings, keepers).await;
    fixture.until_idle(3).await;
    let leaving = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&leaving, "active").await;
    fixture.until_idle(3).await;
    if is_killed {
        engine.kill().await;
    } else {
        engine.stop().await;
    }
    let waiting = [fixture.user.bot(&meet_link(2)).await, fixture.user.bot(&meet_link(3)).await];
    fixture.user.stop(&leaving).await;
    let tried = "the starts of both are tried";
    until(tried, async || {
        let gate = fixture.server.admin().get("/admin/deployments").await;
        let entries = gate["entries"].as_array().unwrap().clone();
        let failed = |bot: &String| entries.iter().any(|row| row["bot_id"] == **bot && !row["last_error"].is_null());
        waiting.iter().all(failed)
    })
    .await;
    engine.start_again().await;
    for bot in &waiting {
        fixture.user.until(bot, "active").await;
    }
    let slots = found("the rest are idle", async || {
        let slots = fixture.slots().await;
        let idle = slots.iter().filter(|slot| slot["status"] == "idle").count();
        (idle == 3).then_some(slots)
    })
    .await;
    assert!(slots.iter().all(|slot| slot["recovery_attempts"] == 0), "{slots:?}");
    for slot in &slots {
        let path = format!("/admin/slots/{}", slot["name"].as_str().unwrap());
        let slot = fixture.server.admin().get(&path).await;
        // The only failure is that of the bot that was in its meeting when its container was stopped.
        let of_slot = |failure: &&serde_json::Value| failure["bot_id"] != leaving.as_str();
        assert_eq!(slot["failures"].as_array().unwrap().iter().filter(of_slot).count(), 0, "{slot}");
    }
}
