//! The reported end of a bot is true: whose fault it was, and what failed.

use std::time::Duration;

use bollard::query_parameters::{RemoveContainerOptionsBuilder, StopContainerOptionsBuilder};
use domain::lifecycle::Trigger;
use domain::{Reason, Status};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{
    Backend, CoreFixture, Database, DockerFixture, Engine, Life, OBEDIENT, Process, Recipe, meet_link, process_pool,
};

/// Sends these callbacks, and returns the bot's status, reason and fault, and whether it has an error.
async fn after(said: &[(&str, Value)], stop: bool) -> (Value, bool) {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(5).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({})).await;
    for (index, (callback, body)) in said.iter().enumerate() {
        if stop && index + 1 == said.len() {
            user.stop(&bot).await;
        }
        life.report(callback, body.clone()).await;
    }
    let bot = user.show_bot(&bot).await;
    (json!([bot["status"], bot["reason"], bot["fault"]]), bot["error"].as_str().is_some_and(|error| error.len() > 10))
}

#[rstest]
#[case::never_joined(&[("exited", json!({"exit_code": 0}))], json!(["failed", "never_joined", "bot"]))]
#[case::in_the_lobby(
    &[("status", json!({"status": "awaiting_admission"})), ("exited", json!({"exit_code": 0}))],
    json!(["failed", "never_joined", "bot"])
)]
#[case::crashed(&[("exited", json!({"exit_code": 3}))], json!(["failed", "crashed", "bot"]))]
#[case::not_let_in(
    &[("exited", json!({"exit_code": 1, "reason": "not_admitted"}))],
    json!(["failed", "not_admitted", "host"])
)]
#[case::interrupted(
    &[("joined", json!({})), ("exited", json!({"exit_code": 143, "reason": "interrupted", "error": "got SIGTERM"}))],
    json!(["failed", "interrupted", "provider"])
)]
#[tokio::test]
async fn a_bot_that_failed_says_why_and_whose_fault_it_was(#[case] said: &[(&str, Value)], #[case] expected: Value) {
    assert_eq!(after(said, false).await, (expected, true));
}

#[rstest]
#[case::finished(&[("joined", json!({})), ("exited", json!({"exit_code": 0}))], json!(["completed", "finished", "none"]))]
#[case::with_a_reason(
    &[("exited", json!({"exit_code": 0, "reason": "no_such_meeting"}))],
    json!(["completed", "no_such_meeting", "none"])
)]
#[case::needed_help_after_it_had_joined(
    &[("joined", json!({})), ("status", json!({"status": "needs_help"})), ("exited", json!({"exit_code": 0}))],
    json!(["completed", "finished", "none"])
)]
#[case::removed(
    &[("joined", json!({})), ("exited", json!({"exit_code": 0, "reason": "removed_by_host"}))],
    json!(["completed", "removed_by_host", "host"])
)]
#[tokio::test]
async fn a_bot_that_ended_well_has_completed(#[case] said: &[(&str, Value)], #[case] expected: Value) {
    assert_eq!(after(said, false).await, (expected, false));
}

#[rstest]
#[case::before_it_joined(json!({"exit_code": 0}))]
#[case::and_was_killed(json!({"exit_code": 137, "reason": "killed"}))]
#[case::and_was_ended_from_outside_on_its_way(json!({"exit_code": 143, "reason": "interrupted"}))]
#[tokio::test]
async fn a_bot_that_its_user_stopped_has_completed(#[case] exited: Value) {
    let (ended, _) = after(&[("exited", exited)], true).await;
    assert_eq!(ended, json!(["completed", "stopped", "none"]));
}

#[tokio::test]
async fn a_bot_that_crashes_while_it_is_stopping_has_failed() {
    let said = [("joined", json!({})), ("exited", json!({"exit_code": 2}))];
    assert_eq!(after(&said, true).await, (json!(["failed", "crashed", "bot"]), true));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_misses_a_deadline_fails_with_its_last_known_state(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let (lobby, caller) = core.started(1).await;
    core.lifecycle.status(caller, Trigger::AwaitingAdmission { reason: None }).await.unwrap();
    let (lost, caller) = core.started(2).await;
    core.lifecycle.joined(caller).await.unwrap();
    core.lifecycle.heartbeat(caller, &[]).await.unwrap();
    let (interrupted, caller) = core.started(3).await;
    core.lifecycle.status(caller, Trigger::Stopping { reason: Some(Reason::Interrupted) }).await.unwrap();
    assert_eq!(core.after(700).await, 3);

    for (bot, reason, fault, expected) in [
        (lobby, "no_join", "host", "still awaiting_admission"),
        (lost, "heartbeat_lost", "provider", "last heartbeat at "),
        (interrupted, "interrupted", "provider", "got a signal to stop"),
    ] {
        let bot = core.store.bot(bot).await.unwrap().unwrap();
        let ended = (bot.status, bot.reason.as_deref(), bot.fault.map(domain::Fault::as_str));
        assert_eq!(ended, (Status::Failed, Some(reason), Some(fault)));
        assert!(bot.error.as_deref().is_some_and(|error| error.contains(expected)), "{:?}", bot.error);
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn events_show_the_statuses_that_the_bot_shows(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start_configured(&database, &process_pool("one", "max_slots = 1", OBEDIENT)).await;
    let user = server.admin().user(5).await;
    let [first, second] = [user.bot(&meet_link(1)).await, user.bot(&meet_link(2)).await];
    user.until(&first, "active").await;
    user.stop(&first).await;
    user.until(&first, "completed").await;
    user.until(&second, "active").await;
    let trail = async |bot: &str| -> Vec<Value> {
        let events = user.get(&format!("/bots/{bot}/events")).await;
        let events = events["events"].as_array().unwrap().iter().filter(|event| event["to"].is_string());
        events.map(|event| json!([event["from"], event["to"]])).collect()
    };
    let started = [json!(["deploying", "starting"]), json!(["starting", "active"])];
    assert_eq!(trail(&first).await[..3], [&[json!([null, "deploying"])][..], &started].concat());
    let queued = [json!([null, "queued"]), json!(["queued", "deploying"])];
    assert_eq!(trail(&second).await, [&queued[..], &started].concat());
}

/// A fixture on a real Docker Engine with a bot in its meeting.
async fn active_on_docker() -> (DockerFixture, String, String) {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let settings = "max_slots = 1\nstandby = \"stopped\"";
    let fixture = DockerFixture::start(&engine, "docker", &image, settings, "[sync]\ninterval = \"1s\"").await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&bot, "active").await;
    let container = fixture.container(1).await.id.unwrap();
    (fixture, bot, container)
}

#[tokio::test]
async fn docker_stop_of_a_busy_container_interrupts_its_bot() {
    let (fixture, bot, container) = active_on_docker().await;
    let engine = Engine::shared().await;
    engine.docker.stop_container(&container, Some(StopContainerOptionsBuilder::new().t(10).build())).await.unwrap();
    let bot = fixture.user.until(&bot, "failed").await;
    assert_eq!((&bot["reason"], &bot["fault"]), (&json!("interrupted"), &json!("provider")));
    assert!(bot["error"].as_str().unwrap().contains("SIGTERM"), "{bot}");
}

#[tokio::test]
async fn a_busy_docker_container_that_is_removed_interrupts_its_bot() {
    let (fixture, bot, container) = active_on_docker().await;
    let engine = Engine::shared().await;
    let force = RemoveContainerOptionsBuilder::new().force(true).build();
    engine.docker.remove_container(&container, Some(force)).await.unwrap();
    // Sync ignores everything that changed within the last ten seconds.
    let bot = tokio::time::timeout(Duration::from_secs(60), fixture.user.until(&bot, "failed")).await.unwrap();
    assert_eq!((&bot["reason"], &bot["fault"]), (&json!("interrupted"), &json!("provider")));
    assert!(bot["error"].as_str().unwrap().contains("the provider no longer has it"), "{bot}");
    fixture.until_idle(1).await;
}
