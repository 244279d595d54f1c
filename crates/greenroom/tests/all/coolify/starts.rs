//! From an application to what runs in it.

use std::time::Duration;

use greenroom::config::provider::CoolifyConfig;
use greenroom::providers::Provider;
use rstest::rstest;

use crate::support::{CoolifyFault as Fault, CoolifyOperation as Operation, CoolifyScene as Scene, Dialect, until};

#[rstest]
#[case::posts(Dialect::Posts, 0)]
#[case::gets(Dialect::Gets, 1)]
#[case::both(Dialect::Both, 0)]
#[tokio::test]
async fn the_method_that_it_takes_is_found_once_and_again_when_it_changes(
    #[case] dialect: Dialect,
    #[case] refused: usize,
) {
    let scene = Scene::new(|settings| settings.dialect = dialect).await;
    let provider = scene.process();
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    provider.stop(&Scene::slot(1), true).await.unwrap();
    let count = || scene.fake.calls().iter().filter(|call| call.status == 405).count();
    assert_eq!(count(), refused);
    // An update, or its taking back.
    let other = if dialect == Dialect::Gets { Dialect::Posts } else { Dialect::Gets };
    scene.fake.set_settings(|settings| settings.dialect = other);
    provider.start(&Scene::spec(1, "b")).await.unwrap();
    provider.stop(&Scene::slot(1), true).await.unwrap();
    assert_eq!(count(), refused + 1);
    scene.no_violations();
}

#[tokio::test]
async fn a_start_whose_deployment_is_queued_already_is_followed() {
    let scene = Scene::plain().await;
    scene.fake.hold_deployments(true);
    let first = scene.process();
    let starting = tokio::spawn(async move { first.start(&Scene::spec(1, "a")).await });
    scene.until_count(Operation::Start, 1).await;
    // That process dies, and another goes on.
    starting.abort();
    let second = scene.process();
    let starting = tokio::spawn(async move { second.start(&Scene::spec(1, "a")).await });
    let looks = scene.count(Operation::Deployments);
    scene.until_count(Operation::Deployments, looks + 2).await;
    scene.fake.hold_deployments(false);
    starting.await.unwrap().unwrap();
    assert_eq!((scene.count(Operation::Start), scene.fake.deployments()), (1, vec!["finished"]));
    scene.no_violations();
}

#[tokio::test]
async fn a_start_that_was_not_queued_because_the_queue_was_full_is_asked_for_again() {
    let scene = Scene::new(|settings| settings.queue = 0).await;
    let provider = scene.process();
    let starting = tokio::spawn(async move { provider.start(&Scene::spec(1, "a")).await });
    scene.until_count(Operation::Deployment, 1).await;
    assert_eq!(scene.fake.deployments(), Vec::<&str>::new());
    scene.fake.set_settings(|settings| settings.queue = 25);
    starting.await.unwrap().unwrap();
    assert!(scene.count(Operation::Start) >= 2);
    scene.no_violations();
}

#[tokio::test]
async fn a_queue_that_stays_full_is_an_error_that_may_pass() {
    let scene = Scene::new(|settings| settings.queue = 0).await;
    let error = scene.process().start(&Scene::spec(1, "a")).await.unwrap_err();
    assert!(error.may_help && error.words.contains("queue"), "{error:?}");
}

#[rstest]
#[case("pull access denied for images.example/team/bot", false)]
#[case("error pulling image: net/http: TLS handshake timeout", true)]
#[tokio::test]
async fn a_deployment_that_fails_is_told_with_its_last_lines(#[case] line: &str, #[case] may_help: bool) {
    let scene = Scene::plain().await;
    scene.fake.fail_next_deployment(&["Pulling the image", line]);
    let error = scene.process().start(&Scene::spec(1, "a")).await.unwrap_err();
    assert!(error.words.contains(line) && error.words.contains("failed"), "{error:?}");
    assert_eq!(error.may_help, may_help);
    // It is there to be read afterwards too, and the next start is another.
    let lines = scene.process().last_lines(&Scene::slot(1)).await.unwrap().unwrap();
    assert!(lines.ends_with(line), "{lines}");
    scene.process().start(&Scene::spec(1, "a")).await.unwrap();
    scene.no_violations();
}

#[tokio::test]
async fn a_list_of_deployments_that_is_an_object_is_read_as_well() {
    let scene = Scene::new(|settings| settings.deployments_as_object = true).await;
    let provider = scene.process();
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    provider.stop(&Scene::slot(1), true).await.unwrap();
    scene.no_violations();
}

#[tokio::test]
async fn variables_that_a_process_died_before_setting_are_set_by_the_next() {
    let scene = Scene::plain().await;
    scene.fake.break_next(Operation::BulkEnvs, Fault::Fail, 3);
    let error = scene.process().start(&Scene::spec(1, "a")).await.unwrap_err();
    assert!(error.may_help, "{error:?}");
    assert_eq!((scene.only().envs.len(), scene.count(Operation::Start)), (0, 0));
    scene.process().start(&Scene::spec(1, "a")).await.unwrap();
    assert_eq!(scene.only().envs.len(), 4);
    // From then on they are left as they are.
    let set = scene.count(Operation::BulkEnvs);
    scene.process().stop(&Scene::slot(1), true).await.unwrap();
    scene.process().start(&Scene::spec(1, "b")).await.unwrap();
    scene.process().create(&Scene::spec(1, "b")).await.unwrap();
    assert_eq!(scene.count(Operation::BulkEnvs), set);
    scene.no_violations();
}

#[rstest]
#[case::for_a_bot(false)]
#[case::for_whoever_comes(true)]
#[tokio::test]
async fn a_start_for_something_else_ends_what_runs_first_and_a_repeated_one_leaves_it(#[case] hot: bool) {
    let scene = Scene::plain().await;
    let mut events = scene.fake.events();
    let (first, second) =
        if hot { (Scene::hot(1, 1), Scene::hot(1, 2)) } else { (Scene::spec(1, "a"), Scene::spec(1, "b")) };
    scene.process().start(&first).await.unwrap();
    // Its answer was lost, and another process asks.
    scene.process().start(&first).await.unwrap();
    assert_eq!((scene.count(Operation::Start), scene.count(Operation::Stop)), (1, 0));
    scene.process().start(&second).await.unwrap();
    assert_eq!((scene.count(Operation::Start), scene.count(Operation::Stop)), (2, 1));
    let mut order = Vec::new();
    while let Ok(event) = events.try_recv() {
        order.push(format!("{event:?}").split(' ').next().unwrap().to_owned());
    }
    assert_eq!(order, ["Started", "Stopped", "Started"]);
    scene.no_violations();
}

#[tokio::test]
async fn what_coolify_does_not_know_to_run_yet_is_not_started_once_more() {
    let scene = Scene::plain().await;
    let uuid = scene.process().start(&Scene::spec(1, "a")).await.unwrap();
    until("it is healthy", async || scene.only().status == "running:healthy").await;
    scene.fake.set_status(&uuid, "exited");
    let provider = scene.process();
    let starting = tokio::spawn(async move { provider.start(&Scene::spec(1, "a")).await });
    scene.until_count(Operation::Logs, 1).await;
    scene.fake.set_status(&uuid, "running:healthy");
    starting.await.unwrap().unwrap();
    assert_eq!(scene.count(Operation::Start), 1);
}

#[tokio::test]
async fn an_image_with_a_digest_is_put_together_again_as_it_was() {
    let scene = Scene::plain().await;
    let digits = "0123456789abcdef".repeat(4);
    let config = CoolifyConfig { tag: format!("sha256:{digits}"), ..scene.config() };
    scene.process_with(config).start(&Scene::spec(1, "a")).await.unwrap();
    assert_eq!(scene.fake.pulls(), [format!("images.example/team/bot@sha256:{digits}")]);
    scene.no_violations();
}

#[tokio::test]
async fn a_start_waits_until_coolify_shows_what_runs() {
    let scene = Scene::new(|settings| settings.shown_after = Duration::from_millis(300)).await;
    let uuid = scene.process().start(&Scene::spec(1, "a")).await.unwrap();
    assert!(scene.only().status.starts_with("running"));
    assert!(scene.fake.runs(&uuid));
    assert_eq!(scene.count(Operation::Start), 1);
    scene.no_violations();
}

#[tokio::test]
async fn what_an_earlier_try_left_and_docker_starts_again_is_ended_before_the_next_try() {
    let scene = Scene::new(|settings| settings.restart = Duration::from_millis(700)).await;
    let mut events = scene.fake.events();
    let uuid = scene.process().start(&Scene::spec(1, "a")).await.unwrap();
    scene.fake.exit(&uuid);
    scene.fake.set_status(&uuid, "exited");
    scene.process().start(&Scene::spec(1, "a")).await.unwrap();
    assert_eq!((scene.count(Operation::Stop), scene.count(Operation::Start)), (1, 2));
    tokio::time::sleep(Duration::from_millis(800)).await;
    let started =
        std::iter::from_fn(|| events.try_recv().ok()).filter(|event| format!("{event:?}").contains("Started"));
    assert_eq!(started.count(), 2);
}

#[tokio::test]
async fn what_another_process_has_started_since_is_not_taken_for_stopped() {
    let scene = Scene::plain().await;
    let (one, other) = (scene.process(), scene.process());
    let uuid = one.start(&Scene::spec(1, "a")).await.unwrap();
    one.stop(&Scene::slot(1), true).await.unwrap();
    other.start(&Scene::spec(1, "b")).await.unwrap();
    until("it is healthy", async || scene.only().status == "running:healthy").await;
    scene.fake.set_status(&uuid, "exited");
    one.start(&Scene::spec(1, "c")).await.unwrap();
    assert_eq!((scene.count(Operation::Stop), scene.count(Operation::Start)), (2, 3));
    scene.no_violations();
}
