//! The safety net: lost or forgotten bots and slots are found, and nothing stays in a temporary state for ever.

use std::time::Duration;

use domain::{SlotStatus, Status};
use greenroom::placement::SlotEvent;
use greenroom::store::{Beat, PoolRow};
use rstest::rstest;

use crate::support::{Backend, Call, CoreFixture, Database, DeploymentFixture, Fake, Plan, pool, until, waits};

fn hot(min_idle: i64) -> PoolRow {
    PoolRow { hot: true, min_idle, ..pool("meet") }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_whose_deployment_row_was_lost_is_still_started(#[case] backend: Backend) {
    let core = CoreFixture::planned(Database::new(backend).await.into(), &Plan::of([pool("meet")])).await;
    let bot = core.reserved(0).await;
    // The server that was to start it is gone, and so is the deployment's row.
    core.database.execute("DELETE FROM deployments").await;
    let fixture = DeploymentFixture::on(core, 1, Fake::default().into()).await;
    fixture.core.clock.advance(Duration::from_secs(6));
    fixture.reconcile();
    fixture.lives(bot).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_hot_slot_whose_agent_never_waits_goes_to_error_and_is_not_counted_as_ready(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [hot(1)]).await;
    let slot = fixture.slot_is("pool-meet-001", SlotStatus::Creating).await;
    until("it was started", async || fixture.fake.starts().len() == 1 && fixture.at_gate().await == (0, 0)).await;
    fixture.core.clock.advance(Duration::from_secs(61));
    fixture.reconcile();
    let slot = fixture.slot_is(slot.name.as_str(), SlotStatus::Error).await;
    assert!(slot.error_message.unwrap().contains("did not begin to wait"));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_without_a_bot_may_wait_at_the_gate_without_a_deadline(#[case] backend: Backend) {
    let plan = Plan::of([PoolRow { max_slots: 2, ..hot(2) }]);
    let fixture = DeploymentFixture::planned(backend, &plan, 1, Fake::hanging()).await;
    until("one starts and one waits", async || fixture.at_gate().await == (1, 1)).await;
    fixture.core.clock.advance(Duration::from_secs(3_600));
    fixture.reconcile();
    // The lease of the first has expired meanwhile, so it may be started again.
    fixture.fake.release(3);
    until("both were started", async || fixture.at_gate().await == (0, 0)).await;
    assert!(fixture.slots().await.iter().all(|(_, status)| *status == SlotStatus::Creating));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_waited_long_at_the_gate_still_has_a_minute_for_its_agent(#[case] backend: Backend) {
    let slots = 6;
    let plan = Plan::of([PoolRow { max_slots: slots, ..hot(slots) }]);
    let fixture = DeploymentFixture::planned(backend, &plan, 2, Fake::hanging()).await;
    until("they wait at the gate", async || {
        let (active, waiting) = fixture.at_gate().await;
        active > 0 && active + waiting == 6
    })
    .await;
    // As under load: longer than an agent has until it must wait.
    fixture.core.clock.advance(Duration::from_secs(90));
    fixture.fake.release(12);
    until("all were started", async || fixture.at_gate().await == (0, 0)).await;
    // The keeper runs before any agent waits.
    let a_minute_ago = fixture.core.clock.now().saturating_sub(Duration::from_secs(60)).unwrap();
    assert_eq!(fixture.core.store.slots_without_agent(a_minute_ago).await.unwrap(), []);
    fixture.keep("deployment").await;
    fixture.advance_bots(&[]).await;
    assert!(fixture.slots().await.iter().all(|(_, status)| *status == SlotStatus::Idle));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_agent_is_not_ready_while_the_start_of_its_slot_is_in_progress(#[case] backend: Backend) {
    let fixture = DeploymentFixture::with(backend, [hot(1)], 1, Fake::hanging()).await;
    let slot = fixture.slot_is("pool-meet-001", SlotStatus::Creating).await;
    until("it starts", async || fixture.fake.starting() == 1).await;
    assert!(fixture.core.store.is_at_gate(&slot.name).await.unwrap());
    fixture.fake.release(1);
    until("it was started", async || !fixture.core.store.is_at_gate(&slot.name).await.unwrap()).await;
    fixture.core.placement.report(slot.name.clone(), waits(&slot)).await.unwrap();
    fixture.slot_is(slot.name.as_str(), SlotStatus::Idle).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_an_operator_assigns_elsewhere_frees_its_slot(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [pool("meet")]).await;
    let bot = fixture.core.reserved(0).await;
    let slot = fixture.runs(bot).await;
    let before = fixture.caller(bot).await;
    let next = fixture.core.reserved(1).await;
    let caller = fixture.core.assigned(bot).await.unwrap();
    assert_eq!(fixture.runs(next).await, slot);
    assert!(fixture.core.lifecycle.started(before, None).await.is_err(), "the slot's own connection is fenced off");
    fixture.core.lifecycle.started(caller, None).await.unwrap();
    fixture.core.lifecycle.joined(caller).await.unwrap();
    assert_eq!(fixture.core.exited(caller, 0).await.unwrap(), Status::Completed);
    assert_eq!(
        fixture.slot(slot.as_str()).await.unwrap().bot_id,
        Some(next),
        "the end of the bot does not affect the slot"
    );
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_recovery_is_finished_although_its_caller_has_gone_away(#[case] backend: Backend) {
    let fixture = DeploymentFixture::with(backend, [pool("meet")], 1, Fake::slow_to_end()).await;
    let bot = fixture.core.reserved(0).await;
    let name = fixture.runs(bot).await;
    let broken = SlotEvent::Broken { bot: Some(bot), message: "it smokes".to_owned() };
    fixture.core.placement.report(name.clone(), broken).await.unwrap();
    let slot = fixture.slot_is(name.as_str(), SlotStatus::Error).await;
    let deployment = fixture.deployment.clone();
    let caller = tokio::spawn(async move { deployment.recover(&slot.name).await.map(drop) });
    until("it is being stopped", async || fixture.fake.count(&Call::Stop(name.clone())) == 1).await;
    caller.abort();
    fixture.fake.release_ends(1);
    fixture.slot_is(name.as_str(), SlotStatus::Idle).await;
}

/// A bot that was given to a waiting agent.
async fn given(fixture: &DeploymentFixture) -> (domain::BotId, greenroom::store::SlotRow) {
    let slot = fixture.slot_is("pool-meet-001", SlotStatus::Creating).await;
    until("an agent waits", async || {
        fixture.advance_bots(&[]).await;
        fixture.slot(slot.name.as_str()).await.is_some_and(|slot| slot.status == SlotStatus::Idle)
    })
    .await;
    let bot = fixture.core.reserved(0).await;
    (bot, fixture.slot_of(bot).await.unwrap())
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_its_agent_did_not_take_is_started_under_another_connection(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [hot(1)]).await;
    let (bot, slot) = given(&fixture).await;
    let before = fixture.caller_of(&fixture.bot(bot).await).unwrap();
    let starts = fixture.fake.starts().len();
    fixture.core.clock.advance(Duration::from_secs(6));
    assert_eq!(fixture.keep("deployment").await.counts["started_again"], 1);
    until("it is started again", async || fixture.fake.starts().len() == starts + 1).await;
    fixture.gate_is_free().await;
    // The earlier agent comes too late.
    assert!(fixture.core.lifecycle.started(before, None).await.is_err());
    let after = fixture.slot_of(bot).await.unwrap();
    assert_eq!(after.generation, slot.generation + 1);
    fixture.advance_bots(&[]).await;
    assert_eq!(fixture.end_of(bot).await.0, Status::Completed);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_started_after_the_keepers_check_is_not_started_again(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [hot(1)]).await;
    let (bot, slot) = given(&fixture).await;
    fixture.core.clock.advance(Duration::from_secs(6));
    let since = fixture.core.clock.now().saturating_sub(Duration::from_secs(5)).unwrap();
    let silent = fixture.core.store.silent_slots(since).await.unwrap();
    assert_eq!(silent, std::slice::from_ref(&slot), "the keeper's query finds it");
    let caller = fixture.caller_of(&fixture.bot(bot).await).unwrap();
    fixture.core.lifecycle.started(caller, None).await.unwrap();
    let news = SlotEvent::Silent { bot, generation: slot.generation };
    assert!(!fixture.core.placement.report(slot.name.clone(), news).await.unwrap());
    assert_eq!(fixture.slot_of(bot).await.unwrap(), slot);
    fixture.core.lifecycle.joined(caller).await.unwrap();
    assert_eq!(fixture.core.exited(caller, 0).await.unwrap(), Status::Completed);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_its_agent_took_has_the_full_deadline_for_its_first_callback(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [hot(1)]).await;
    let (bot, _) = given(&fixture).await;
    // `GET /agent/assignment` notes this when it hands out a bot. The bot's `started` has not arrived yet.
    let connection_id = fixture.bot(bot).await.connection_id.unwrap();
    let beat = Beat { connection_id, at: fixture.core.clock.now() };
    fixture.core.store.write_heartbeats(&[beat]).await.unwrap();
    fixture.core.clock.advance(Duration::from_secs(60));
    assert_eq!(fixture.keep("deployment").await.counts["started_again"], 0);
    let caller = fixture.caller_of(&fixture.bot(bot).await).unwrap();
    fixture.core.lifecycle.started(caller, None).await.unwrap();
}

#[tokio::test]
async fn a_slot_is_not_deleted_while_it_is_being_started() {
    let fixture = DeploymentFixture::with(Backend::Sqlite, [hot(1)], 1, Fake::hanging()).await;
    let slot = fixture.slot_is("pool-meet-001", SlotStatus::Creating).await;
    until("it starts", async || fixture.fake.starting() == 1).await;
    fixture.core.placement.report(slot.name.clone(), SlotEvent::Drain).await.unwrap();
    fixture.keep("deployment").await;
    assert_eq!(fixture.fake.count(&Call::Delete(slot.name.clone())), 0);
    fixture.fake.release(1);
    fixture.gate_is_free().await;
    until("it is deleted", async || {
        fixture.keep("deployment").await;
        fixture.slot(slot.name.as_str()).await.is_none()
    })
    .await;
    assert!(fixture.fake.has().is_empty());
}

#[tokio::test]
async fn an_agent_that_waits_since_the_keepers_check_keeps_its_slot() {
    let fixture = DeploymentFixture::new(Backend::Sqlite, [hot(1)]).await;
    let slot = fixture.slot_is("pool-meet-001", SlotStatus::Creating).await;
    fixture.gate_is_free().await;
    let seen = fixture.slot(slot.name.as_str()).await.unwrap();
    fixture.core.clock.advance(Duration::from_secs(61));
    fixture.advance_bots(&[]).await;
    fixture.slot_is(slot.name.as_str(), SlotStatus::Idle).await;
    let failed = SlotEvent::Failed { since: seen.status_since, message: "it did not begin to wait".to_owned() };
    assert!(!fixture.core.placement.report(slot.name.clone(), failed).await.unwrap());
    let broken = SlotEvent::Broken { bot: None, message: "a start for nobody failed, long ago".to_owned() };
    assert!(!fixture.core.placement.report(slot.name.clone(), broken).await.unwrap());
    assert_eq!(fixture.slot(slot.name.as_str()).await.unwrap().status, SlotStatus::Idle);
}
