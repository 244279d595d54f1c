//! The end of containers and of applications. The provider checks it at the server, and does not trust the shown status
//! alone.

use std::time::{Duration, Instant};

use greenroom::providers::{Provider, Stopped};
use rstest::rstest;

use crate::support::{CoolifyEvent, CoolifyFault as Fault, CoolifyFixture, CoolifyOperation as Operation, until};

#[tokio::test]
async fn a_stop_is_waited_for_and_prunes_no_images() {
    let fixture = CoolifyFixture::new(|settings| settings.stop = Duration::from_millis(300)).await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    let begun = Instant::now();
    assert_eq!(provider.stop(&CoolifyFixture::slot(1), true).await.unwrap(), Stopped::Seen);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!((fixture.only().status.as_str(), fixture.fake.prunes()), ("exited", 0));
    assert_eq!(fixture.count(Operation::Stop), 1);
    // A second stop is not sent, because the provider knows that the container has stopped.
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert_eq!((fixture.count(Operation::Stop), fixture.count(Operation::Logs)), (1, 1));
    fixture.no_violations();
}

#[tokio::test]
async fn a_stop_that_never_takes_effect_is_retried_and_then_an_error() {
    let fixture = CoolifyFixture::new(|settings| settings.stop = Duration::from_secs(100)).await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    let error = provider.stop(&CoolifyFixture::slot(1), true).await.unwrap_err();
    assert!(error.retryable && error.message.contains("did not stop"), "{error:?}");
    assert!(fixture.count(Operation::Stop) >= 2);
}

#[tokio::test]
async fn a_stop_also_ends_a_queued_deployment() {
    let fixture = CoolifyFixture::plain().await;
    fixture.fake.hold_deployments(true);
    let provider = fixture.process();
    let starting = tokio::spawn(async move { provider.start(&CoolifyFixture::spec(1, "a")).await });
    fixture.until_count(Operation::Start, 1).await;
    starting.abort();
    fixture.process().stop(&CoolifyFixture::slot(1), true).await.unwrap();
    fixture.fake.hold_deployments(false);
    assert_eq!((fixture.only().status.as_str(), fixture.fake.deployments()), ("exited", vec!["cancelled-by-user"]));
    fixture.no_violations();
}

#[tokio::test]
async fn a_container_that_coolify_does_not_show_as_running_yet_is_stopped() {
    let fixture = CoolifyFixture::plain().await;
    let mut events = fixture.fake.events();
    let uuid = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    until("it is healthy", async || fixture.only().status == "running:healthy").await;
    // Coolify has not noticed the start yet.
    fixture.fake.set_status(&uuid, "exited");
    fixture.process().stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert_eq!(fixture.count(Operation::Stop), 1);
    let ended = [events.try_recv().unwrap(), events.try_recv().unwrap()];
    assert!(matches!(&ended[1], CoolifyEvent::Stopped { .. }), "{ended:?}");
}

#[tokio::test]
async fn a_deletion_is_waited_for_and_prunes_no_images() {
    let fixture = CoolifyFixture::new(|settings| settings.delete = Duration::from_millis(300)).await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap();
    assert_eq!((fixture.fake.applications(), fixture.fake.prunes()), (vec![], 0));
    assert_eq!(fixture.count(Operation::Delete), 1);
    fixture.no_violations();
}

#[tokio::test]
async fn a_stop_that_is_only_shown_does_not_count() {
    let fixture = CoolifyFixture::new(|settings| settings.stop_only_shows = true).await;
    let provider = fixture.process();
    let uuid = provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    let error = provider.stop(&CoolifyFixture::slot(1), true).await.unwrap_err();
    assert!(error.retryable && error.message.contains("did not stop"), "{error:?}");
    assert_eq!((fixture.only().status.as_str(), fixture.fake.runs(&uuid)), ("exited", true));
    assert!(fixture.count(Operation::Stop) >= 2);
    // Nothing can be deleted or started either.
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap_err();
    assert_eq!((fixture.count(Operation::Delete), fixture.fake.orphans()), (0, 0));
    provider.start(&CoolifyFixture::spec(1, "b")).await.unwrap_err();
    fixture.fake.set_settings(|settings| settings.stop_only_shows = false);
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap();
    assert_eq!((fixture.fake.applications(), fixture.fake.orphans()), (vec![], 0));
    fixture.no_violations();
}

#[tokio::test]
async fn a_deletion_stops_the_container_first() {
    let fixture = CoolifyFixture::new(|settings| settings.delete_leaves = true).await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap();
    assert_eq!((fixture.fake.applications(), fixture.fake.orphans()), (vec![], 0));
    fixture.no_violations();
}

#[tokio::test]
async fn an_unreachable_server_has_stopped_nothing_whatever_coolify_shows() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    let uuid = provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    until("it is healthy", async || fixture.only().status == "running:healthy").await;
    fixture.fake.set_settings(|settings| settings.server_is_down = true);
    // Coolify shows this status for every application on such a server.
    fixture.fake.set_status(&uuid, "exited");
    for process in [&provider, &fixture.process()] {
        let error = process.stop(&CoolifyFixture::slot(1), true).await.unwrap_err();
        assert!(error.retryable, "{error:?}");
    }
    assert!(fixture.fake.runs(&uuid));
    fixture.fake.set_settings(|settings| settings.server_is_down = false);
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert!(!fixture.fake.runs(&uuid));
}

#[rstest]
#[case::page_of_a_proxy(Fault::Page(404))]
#[case::bad_request(Fault::Page(400))]
#[case::gateway(Fault::Refuse(404, "no Route matched with those values"))]
#[case::token(Fault::Refuse(400, "Invalid token."))]
#[tokio::test]
async fn only_an_answer_of_coolify_itself_proves_that_nothing_runs(#[case] fault: Fault) {
    let fixture = CoolifyFixture::new(|settings| settings.stop_only_shows = true).await;
    let provider = fixture.process();
    let uuid = provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    fixture.fake.break_next(Operation::Logs, fault, 1_000);
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap_err();
    assert!(fixture.fake.runs(&uuid));
}

#[tokio::test]
async fn a_container_that_docker_is_about_to_restart_is_ended_as_well() {
    let fixture = CoolifyFixture::new(|settings| settings.restart = Duration::from_millis(600)).await;
    let uuid = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    fixture.fake.exit(&uuid);
    fixture.fake.set_status(&uuid, "exited");
    fixture.process().stop(&CoolifyFixture::slot(1), true).await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!fixture.fake.runs(&uuid));
    assert_eq!(fixture.count(Operation::Stop), 1);
}

#[tokio::test]
async fn a_late_stop_does_not_end_the_next_start() {
    let mut fixture = CoolifyFixture::new(|settings| settings.stop = Duration::from_millis(400)).await;
    fixture.pace.settled_after = Duration::from_millis(600);
    let (one, other) = (fixture.process(), fixture.process());
    let uuid = one.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    one.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    // This process does not know that the application has stopped, and stops it again.
    other.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert_eq!(fixture.count(Operation::Stop), 2);
    other.start(&CoolifyFixture::spec(1, "b")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(fixture.fake.runs(&uuid));
    fixture.no_violations();
}

#[tokio::test]
async fn a_deletion_keeps_volumes_that_a_person_has_added() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    provider.create(&CoolifyFixture::spec(1, "a")).await.unwrap();
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap();
    assert_eq!((fixture.count(Operation::Delete), fixture.fake.deleted_volumes()), (1, 0));
}
