//! The end of what runs, and of applications: seen on the server, and not only told.

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
    // What is known to have stopped is not stopped once more.
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert_eq!((fixture.count(Operation::Stop), fixture.count(Operation::Logs)), (1, 1));
    fixture.no_violations();
}

#[tokio::test]
async fn a_stop_that_never_comes_true_is_an_error_and_is_asked_for_more_than_once() {
    let fixture = CoolifyFixture::new(|settings| settings.stop = Duration::from_secs(100)).await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    let error = provider.stop(&CoolifyFixture::slot(1), true).await.unwrap_err();
    assert!(error.retryable && error.message.contains("not stopped"), "{error:?}");
    assert!(fixture.count(Operation::Stop) >= 2);
}

#[tokio::test]
async fn a_stop_ends_also_what_is_still_to_be_deployed() {
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
async fn what_coolify_does_not_know_to_run_yet_is_stopped_all_the_same() {
    let fixture = CoolifyFixture::plain().await;
    let mut events = fixture.fake.events();
    let uuid = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    until("it is healthy", async || fixture.only().status == "running:healthy").await;
    // The word of its start has not come through.
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
async fn a_stop_that_is_shown_and_was_none_is_no_stop() {
    let fixture = CoolifyFixture::new(|settings| settings.stop_only_shows = true).await;
    let provider = fixture.process();
    let uuid = provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    let error = provider.stop(&CoolifyFixture::slot(1), true).await.unwrap_err();
    assert!(error.retryable && error.message.contains("not stopped"), "{error:?}");
    assert_eq!((fixture.only().status.as_str(), fixture.fake.runs(&uuid)), ("exited", true));
    assert!(fixture.count(Operation::Stop) >= 2);
    // Neither is there anything to be deleted, nor to be started.
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap_err();
    assert_eq!((fixture.count(Operation::Delete), fixture.fake.orphans()), (0, 0));
    provider.start(&CoolifyFixture::spec(1, "b")).await.unwrap_err();
    fixture.fake.set_settings(|settings| settings.stop_only_shows = false);
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap();
    assert_eq!((fixture.fake.applications(), fixture.fake.orphans()), (vec![], 0));
    fixture.no_violations();
}

#[tokio::test]
async fn a_deletion_that_would_leave_what_runs_finds_nothing_running() {
    let fixture = CoolifyFixture::new(|settings| settings.delete_leaves = true).await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap();
    assert_eq!((fixture.fake.applications(), fixture.fake.orphans()), (vec![], 0));
    fixture.no_violations();
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_has_stopped_nothing_whatever_is_shown() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    let uuid = provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    until("it is healthy", async || fixture.only().status == "running:healthy").await;
    fixture.fake.set_settings(|settings| settings.server_is_down = true);
    // That is what Coolify writes for all that is on it.
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
async fn only_coolifys_own_word_says_that_nothing_runs(#[case] fault: Fault) {
    let fixture = CoolifyFixture::new(|settings| settings.stop_only_shows = true).await;
    let provider = fixture.process();
    let uuid = provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    fixture.fake.break_next(Operation::Logs, fault, 1_000);
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap_err();
    assert!(fixture.fake.runs(&uuid));
}

#[tokio::test]
async fn what_docker_is_about_to_start_again_is_ended_as_well() {
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
async fn a_stop_that_is_carried_out_late_does_not_end_what_is_started_next() {
    let mut fixture = CoolifyFixture::new(|settings| settings.stop = Duration::from_millis(400)).await;
    fixture.pace.settled_after = Duration::from_millis(600);
    let (one, other) = (fixture.process(), fixture.process());
    let uuid = one.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    one.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    // This one does not know of it, and has it stopped once more.
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
