//! The start of an application, until its container runs.

use std::time::Duration;

use greenroom::config::provider::CoolifyConfig;
use greenroom::providers::Provider;
use rstest::rstest;

use crate::support::{CoolifyFault as Fault, CoolifyFixture, CoolifyOperation as Operation, Dialect, until};

#[rstest]
#[case::posts(Dialect::Posts, 0)]
#[case::gets(Dialect::Gets, 1)]
#[case::both(Dialect::Both, 0)]
#[tokio::test]
async fn the_http_method_of_coolify_is_found_once_and_again_after_an_update(
    #[case] dialect: Dialect,
    #[case] refused: usize,
) {
    let fixture = CoolifyFixture::new(|settings| settings.dialect = dialect).await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    let count = || fixture.fake.calls().iter().filter(|call| call.status == 405).count();
    assert_eq!(count(), refused);
    // An update of Coolify, or its rollback.
    let other = if dialect == Dialect::Gets { Dialect::Posts } else { Dialect::Gets };
    fixture.fake.set_settings(|settings| settings.dialect = other);
    provider.start(&CoolifyFixture::spec(1, "b")).await.unwrap();
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert_eq!(count(), refused + 1);
    fixture.no_violations();
}

#[tokio::test]
async fn a_start_whose_deployment_is_queued_already_is_followed() {
    let fixture = CoolifyFixture::plain().await;
    fixture.fake.hold_deployments(true);
    let first = fixture.process();
    let starting = tokio::spawn(async move { first.start(&CoolifyFixture::spec(1, "a")).await });
    fixture.until_count(Operation::Start, 1).await;
    // That process dies, and another continues.
    starting.abort();
    let second = fixture.process();
    let starting = tokio::spawn(async move { second.start(&CoolifyFixture::spec(1, "a")).await });
    let listings = fixture.count(Operation::Deployments);
    fixture.until_count(Operation::Deployments, listings + 2).await;
    fixture.fake.hold_deployments(false);
    starting.await.unwrap().unwrap();
    assert_eq!((fixture.count(Operation::Start), fixture.fake.deployments()), (1, vec!["finished"]));
    fixture.no_violations();
}

#[tokio::test]
async fn a_start_that_did_not_fit_into_the_queue_is_requested_again() {
    let fixture = CoolifyFixture::new(|settings| settings.queue = 0).await;
    let provider = fixture.process();
    let starting = tokio::spawn(async move { provider.start(&CoolifyFixture::spec(1, "a")).await });
    fixture.until_count(Operation::Deployment, 1).await;
    assert_eq!(fixture.fake.deployments(), Vec::<&str>::new());
    fixture.fake.set_settings(|settings| settings.queue = 25);
    starting.await.unwrap().unwrap();
    assert!(fixture.count(Operation::Start) >= 2);
    fixture.no_violations();
}

#[tokio::test]
async fn a_queue_that_stays_full_is_a_transient_error() {
    let fixture = CoolifyFixture::new(|settings| settings.queue = 0).await;
    let error = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap_err();
    assert!(error.retryable && error.message.contains("queue"), "{error:?}");
}

#[rstest]
#[case("pull access denied for images.example/team/bot", false)]
#[case("error pulling image: net/http: TLS handshake timeout", true)]
#[tokio::test]
async fn a_failed_deployment_is_reported_with_its_last_lines(#[case] line: &str, #[case] retryable: bool) {
    let fixture = CoolifyFixture::plain().await;
    fixture.fake.fail_next_deployment(&["Pulling the image", line]);
    let error = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap_err();
    assert!(error.message.contains(line) && error.message.contains("failed"), "{error:?}");
    assert_eq!(error.retryable, retryable);
    // The lines can be read later too, and the next start is a new deployment.
    let lines = fixture.process().last_lines(&CoolifyFixture::slot(1)).await.unwrap().unwrap();
    assert!(lines.ends_with(line), "{lines}");
    fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    fixture.no_violations();
}

#[tokio::test]
async fn a_list_of_deployments_that_is_an_object_is_read_as_well() {
    let fixture = CoolifyFixture::new(|settings| settings.deployments_as_object = true).await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    fixture.no_violations();
}

#[tokio::test]
async fn variables_that_a_dead_process_did_not_set_are_set_by_the_next() {
    let fixture = CoolifyFixture::plain().await;
    fixture.fake.break_next(Operation::BulkEnvs, Fault::Fail, 3);
    let error = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap_err();
    assert!(error.retryable, "{error:?}");
    assert_eq!((fixture.only().envs.len(), fixture.count(Operation::Start)), (0, 0));
    fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    assert_eq!(fixture.only().envs.len(), 4);
    // After that, the variables are not changed.
    let set = fixture.count(Operation::BulkEnvs);
    fixture.process().stop(&CoolifyFixture::slot(1), true).await.unwrap();
    fixture.process().start(&CoolifyFixture::spec(1, "b")).await.unwrap();
    fixture.process().create(&CoolifyFixture::spec(1, "b")).await.unwrap();
    assert_eq!(fixture.count(Operation::BulkEnvs), set);
    fixture.no_violations();
}

#[rstest]
#[case::for_a_bot(false)]
#[case::for_whoever_comes(true)]
#[tokio::test]
async fn a_start_for_another_bot_ends_the_running_one_first_and_a_repeated_start_does_not(#[case] hot: bool) {
    let fixture = CoolifyFixture::plain().await;
    let mut events = fixture.fake.events();
    let (first, second) = if hot {
        (CoolifyFixture::hot(1, 1), CoolifyFixture::hot(1, 2))
    } else {
        (CoolifyFixture::spec(1, "a"), CoolifyFixture::spec(1, "b"))
    };
    fixture.process().start(&first).await.unwrap();
    // The answer was lost, and another process repeats the start.
    fixture.process().start(&first).await.unwrap();
    assert_eq!((fixture.count(Operation::Start), fixture.count(Operation::Stop)), (1, 0));
    fixture.process().start(&second).await.unwrap();
    assert_eq!((fixture.count(Operation::Start), fixture.count(Operation::Stop)), (2, 1));
    let mut order = Vec::new();
    while let Ok(event) = events.try_recv() {
        order.push(format!("{event:?}").split(' ').next().unwrap().to_owned());
    }
    assert_eq!(order, ["Started", "Stopped", "Started"]);
    fixture.no_violations();
}

#[tokio::test]
async fn a_container_that_coolify_does_not_show_as_running_yet_is_not_started_twice() {
    let fixture = CoolifyFixture::plain().await;
    let uuid = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    until("it is healthy", async || fixture.only().status == "running:healthy").await;
    fixture.fake.set_status(&uuid, "exited");
    let provider = fixture.process();
    let starting = tokio::spawn(async move { provider.start(&CoolifyFixture::spec(1, "a")).await });
    fixture.until_count(Operation::Logs, 1).await;
    fixture.fake.set_status(&uuid, "running:healthy");
    starting.await.unwrap().unwrap();
    assert_eq!(fixture.count(Operation::Start), 1);
}

#[tokio::test]
async fn an_image_with_a_digest_is_split_and_joined_without_a_change() {
    let fixture = CoolifyFixture::plain().await;
    let digits = "0123456789abcdef".repeat(4);
    let config = CoolifyConfig { tag: format!("sha256:{digits}"), ..fixture.config() };
    fixture.process_with(config).start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    assert_eq!(fixture.fake.pulls(), [format!("images.example/team/bot@sha256:{digits}")]);
    fixture.no_violations();
}

#[tokio::test]
async fn a_start_waits_until_coolify_shows_the_running_container() {
    let fixture = CoolifyFixture::new(|settings| settings.shown_after = Duration::from_millis(300)).await;
    let uuid = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    assert!(fixture.only().status.starts_with("running"));
    assert!(fixture.fake.runs(&uuid));
    assert_eq!(fixture.count(Operation::Start), 1);
    fixture.no_violations();
}

#[tokio::test]
async fn a_container_of_an_earlier_attempt_that_docker_restarts_is_ended_before_the_next() {
    let fixture = CoolifyFixture::new(|settings| settings.restart = Duration::from_millis(700)).await;
    let mut events = fixture.fake.events();
    let uuid = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    fixture.fake.exit(&uuid);
    fixture.fake.set_status(&uuid, "exited");
    fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    assert_eq!((fixture.count(Operation::Stop), fixture.count(Operation::Start)), (1, 2));
    tokio::time::sleep(Duration::from_millis(800)).await;
    let started =
        std::iter::from_fn(|| events.try_recv().ok()).filter(|event| format!("{event:?}").contains("Started"));
    assert_eq!(started.count(), 2);
}

#[tokio::test]
async fn a_later_start_of_another_process_is_not_taken_for_stopped() {
    let fixture = CoolifyFixture::plain().await;
    let (one, other) = (fixture.process(), fixture.process());
    let uuid = one.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    one.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    other.start(&CoolifyFixture::spec(1, "b")).await.unwrap();
    until("it is healthy", async || fixture.only().status == "running:healthy").await;
    fixture.fake.set_status(&uuid, "exited");
    one.start(&CoolifyFixture::spec(1, "c")).await.unwrap();
    assert_eq!((fixture.count(Operation::Stop), fixture.count(Operation::Start)), (2, 3));
    fixture.no_violations();
}
