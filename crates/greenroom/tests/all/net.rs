//! The safety net: what was forgotten, lost or taken elsewhere is found, and nothing stays as it is for ever.

use std::time::Duration;

use domain::{SlotStatus, Status};
use greenroom::placement::SlotEvent;
use greenroom::store::{Beat, PoolRow};
use rstest::rstest;

use crate::support::{Backend, Call, Database, Fake, House, Plan, Stage, pool, until, waits};

fn hot(min_idle: i64) -> PoolRow {
    PoolRow { hot: true, min_idle, ..pool("meet") }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_was_forgotten_at_the_gate_is_started_all_the_same(#[case] backend: Backend) {
    let house = House::planned(Database::new(backend).await.into(), &Plan::of([pool("meet")])).await;
    let bot = house.reserved(0).await;
    // Whoever was to start it has gone, and with it the row that says so.
    house.database.execute("DELETE FROM deployments").await;
    let stage = Stage::on(house, 1, Fake::default().into()).await;
    stage.house.clock.advance(Duration::from_secs(6));
    stage.look();
    stage.lives(bot).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_hot_slot_whose_agent_never_waits_goes_to_error_and_is_not_counted_as_ready(#[case] backend: Backend) {
    let stage = Stage::new(backend, [hot(1)]).await;
    let slot = stage.slot_is("pool-meet-001", SlotStatus::Creating).await;
    until("it was started", async || stage.fake.starts().len() == 1 && stage.at_gate().await == (0, 0)).await;
    stage.house.clock.advance(Duration::from_secs(61));
    stage.look();
    let slot = stage.slot_is(slot.name.as_str(), SlotStatus::Error).await;
    assert!(slot.error_message.unwrap().contains("did not begin to wait"));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_is_made_ready_for_nobody_may_wait_at_the_gate_as_long_as_it_takes(#[case] backend: Backend) {
    let plan = Plan::of([PoolRow { max_slots: 2, ..hot(2) }]);
    let stage = Stage::planned(backend, &plan, 1, Fake::hanging()).await;
    until("one starts and one waits", async || stage.at_gate().await == (1, 1)).await;
    stage.house.clock.advance(Duration::from_secs(3_600));
    stage.look();
    // The lease of the first has ended meanwhile, so it may be started once more.
    stage.fake.release(3);
    until("both were started", async || stage.at_gate().await == (0, 0)).await;
    assert!(stage.slots().await.iter().all(|(_, status)| *status == SlotStatus::Creating));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_waited_long_at_the_gate_is_not_given_up_before_its_agent_had_a_minute(#[case] backend: Backend) {
    let slots = 6;
    let plan = Plan::of([PoolRow { max_slots: slots, ..hot(slots) }]);
    let stage = Stage::planned(backend, &plan, 2, Fake::hanging()).await;
    until("they wait at the gate", async || {
        let (active, waiting) = stage.at_gate().await;
        active > 0 && active + waiting == 6
    })
    .await;
    // As under load: longer than an agent has to begin to wait.
    stage.house.clock.advance(Duration::from_secs(90));
    stage.fake.release(12);
    until("all were started", async || stage.at_gate().await == (0, 0)).await;
    // The keeper looks before any agent has come.
    let a_minute_ago = stage.house.clock.now().saturating_sub(Duration::from_secs(60)).unwrap();
    assert_eq!(stage.house.store.deaf_slots(a_minute_ago).await.unwrap(), []);
    stage.keep("deployment").await;
    stage.stir(&[]).await;
    assert!(stage.slots().await.iter().all(|(_, status)| *status == SlotStatus::Idle));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_agent_is_not_ready_while_the_start_of_its_slot_is_under_way(#[case] backend: Backend) {
    let stage = Stage::with(backend, [hot(1)], 1, Fake::hanging()).await;
    let slot = stage.slot_is("pool-meet-001", SlotStatus::Creating).await;
    until("it starts", async || stage.fake.starting() == 1).await;
    assert!(stage.house.store.is_at_gate(&slot.name).await.unwrap());
    stage.fake.release(1);
    until("it was started", async || !stage.house.store.is_at_gate(&slot.name).await.unwrap()).await;
    stage.house.placement.report(slot.name.clone(), waits(&slot)).await.unwrap();
    stage.slot_is(slot.name.as_str(), SlotStatus::Idle).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_an_operator_takes_elsewhere_leaves_its_slot_to_the_next(#[case] backend: Backend) {
    let stage = Stage::new(backend, [pool("meet")]).await;
    let bot = stage.house.reserved(0).await;
    let slot = stage.runs(bot).await;
    let before = stage.voice(bot).await;
    let next = stage.house.reserved(1).await;
    let voice = stage.house.assigned(bot).await.unwrap();
    assert_eq!(stage.runs(next).await, slot);
    assert!(stage.house.lifecycle.started(before, None).await.is_err(), "the slot's own connection is fenced off");
    stage.house.lifecycle.started(voice, None).await.unwrap();
    stage.house.lifecycle.joined(voice).await.unwrap();
    assert_eq!(stage.house.exited(voice, 0).await.unwrap(), Status::Completed);
    assert_eq!(stage.slot(slot.as_str()).await.unwrap().bot_id, Some(next), "its end is no business of the slot's");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_recovery_is_finished_although_its_caller_has_gone_away(#[case] backend: Backend) {
    let stage = Stage::with(backend, [pool("meet")], 1, Fake::slow_to_end()).await;
    let bot = stage.house.reserved(0).await;
    let name = stage.runs(bot).await;
    let broken = SlotEvent::Broken { bot: Some(bot), message: "it smokes".to_owned() };
    stage.house.placement.report(name.clone(), broken).await.unwrap();
    let slot = stage.slot_is(name.as_str(), SlotStatus::Error).await;
    let deployment = stage.deployment.clone();
    let caller = tokio::spawn(async move { deployment.recover(&slot.name).await.map(drop) });
    until("it is being stopped", async || stage.fake.count(&Call::Stop(name.clone())) == 1).await;
    caller.abort();
    stage.fake.release_ends(1);
    stage.slot_is(name.as_str(), SlotStatus::Idle).await;
}

/// A bot that was given to an agent that waits.
async fn given(stage: &Stage) -> (domain::BotId, greenroom::store::SlotRow) {
    let slot = stage.slot_is("pool-meet-001", SlotStatus::Creating).await;
    until("an agent waits", async || {
        stage.stir(&[]).await;
        stage.slot(slot.name.as_str()).await.is_some_and(|slot| slot.status == SlotStatus::Idle)
    })
    .await;
    let bot = stage.house.reserved(0).await;
    (bot, stage.slot_of(bot).await.unwrap())
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_was_not_taken_is_started_under_another_connection(#[case] backend: Backend) {
    let stage = Stage::new(backend, [hot(1)]).await;
    let (bot, slot) = given(&stage).await;
    let before = stage.voice_of(&stage.bot(bot).await).unwrap();
    let starts = stage.fake.starts().len();
    stage.house.clock.advance(Duration::from_secs(6));
    assert_eq!(stage.keep("deployment").await.counts["started_again"], 1);
    until("it is started again", async || stage.fake.starts().len() == starts + 1).await;
    stage.gate_is_free().await;
    // Whoever had it before comes too late.
    assert!(stage.house.lifecycle.started(before, None).await.is_err());
    let after = stage.slot_of(bot).await.unwrap();
    assert_eq!(after.generation, slot.generation + 1);
    stage.stir(&[]).await;
    assert_eq!(stage.end_of(bot).await.0, Status::Completed);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_began_between_the_look_and_the_act_is_not_started_again(#[case] backend: Backend) {
    let stage = Stage::new(backend, [hot(1)]).await;
    let (bot, slot) = given(&stage).await;
    stage.house.clock.advance(Duration::from_secs(6));
    let since = stage.house.clock.now().saturating_sub(Duration::from_secs(5)).unwrap();
    let silent = stage.house.store.silent_slots(since).await.unwrap();
    assert_eq!(silent, std::slice::from_ref(&slot), "the look sees it");
    let voice = stage.voice_of(&stage.bot(bot).await).unwrap();
    stage.house.lifecycle.started(voice, None).await.unwrap();
    let news = SlotEvent::Silent { bot, generation: slot.generation };
    assert!(!stage.house.placement.report(slot.name.clone(), news).await.unwrap());
    assert_eq!(stage.slot_of(bot).await.unwrap(), slot);
    stage.house.lifecycle.joined(voice).await.unwrap();
    assert_eq!(stage.house.exited(voice, 0).await.unwrap(), Status::Completed);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_whose_agent_took_it_has_its_time_to_be_heard(#[case] backend: Backend) {
    let stage = Stage::new(backend, [hot(1)]).await;
    let (bot, _) = given(&stage).await;
    // What `GET /agent/assignment` notes when it hands a bot out; its `started` is on a long way.
    let connection_id = stage.bot(bot).await.connection_id.unwrap();
    let beat = Beat { connection_id, at: stage.house.clock.now() };
    stage.house.store.write_heartbeats(&[beat]).await.unwrap();
    stage.house.clock.advance(Duration::from_secs(60));
    assert_eq!(stage.keep("deployment").await.counts["started_again"], 0);
    let voice = stage.voice_of(&stage.bot(bot).await).unwrap();
    stage.house.lifecycle.started(voice, None).await.unwrap();
}

#[tokio::test]
async fn a_slot_that_is_being_started_is_not_deleted_under_whoever_starts_it() {
    let stage = Stage::with(Backend::Sqlite, [hot(1)], 1, Fake::hanging()).await;
    let slot = stage.slot_is("pool-meet-001", SlotStatus::Creating).await;
    until("it starts", async || stage.fake.starting() == 1).await;
    stage.house.placement.report(slot.name.clone(), SlotEvent::Drain).await.unwrap();
    stage.keep("deployment").await;
    assert_eq!(stage.fake.count(&Call::Delete(slot.name.clone())), 0);
    stage.fake.release(1);
    stage.gate_is_free().await;
    until("it is deleted", async || {
        stage.keep("deployment").await;
        stage.slot(slot.name.as_str()).await.is_none()
    })
    .await;
    assert!(stage.fake.has().is_empty());
}

#[tokio::test]
async fn an_agent_that_began_to_wait_between_the_look_and_the_act_keeps_its_slot() {
    let stage = Stage::new(Backend::Sqlite, [hot(1)]).await;
    let slot = stage.slot_is("pool-meet-001", SlotStatus::Creating).await;
    stage.gate_is_free().await;
    let seen = stage.slot(slot.name.as_str()).await.unwrap();
    stage.house.clock.advance(Duration::from_secs(61));
    stage.stir(&[]).await;
    stage.slot_is(slot.name.as_str(), SlotStatus::Idle).await;
    let failed = SlotEvent::Failed { since: seen.status_since, message: "it did not begin to wait".to_owned() };
    assert!(!stage.house.placement.report(slot.name.clone(), failed).await.unwrap());
    let broken = SlotEvent::Broken { bot: None, message: "a start for nobody failed, long ago".to_owned() };
    assert!(!stage.house.placement.report(slot.name.clone(), broken).await.unwrap());
    assert_eq!(stage.slot(slot.name.as_str()).await.unwrap().status, SlotStatus::Idle);
}
