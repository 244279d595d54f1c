//! The provider for Coolify against a server that is as strict as Coolify: what is not as one would expect there, each by
//! itself.

use std::time::{Duration, Instant};

use greenroom::config::provider::CoolifyConfig;
use greenroom::providers::check::Verdict;
use greenroom::providers::{Provider, Stopped};
use rstest::rstest;
use serde_json::json;

use crate::support::{
    Backend, CoolifyEvent, CoolifyFault as Fault, CoolifyOperation as Operation, CoolifyScene as Scene, Database,
    Dialect, until,
};

#[tokio::test]
async fn an_application_has_what_a_slot_needs_and_nothing_that_leads_to_it() {
    let scene = Scene::plain().await;
    let uuid = scene.process().create(&Scene::spec(1, "a")).await.unwrap();
    let made = scene.only();
    assert_eq!((made.uuid.as_str(), made.name.as_str(), made.domains.as_deref()), (&*uuid, "pool-meet-001", None));
    let expected = [
        ("docker_registry_image_name", json!("images.example/team/bot")),
        ("docker_registry_image_tag", json!("1.4")),
        ("limits_memory", json!("512m")),
        ("limits_cpus", json!("1.5")),
        ("health_check_enabled", json!(false)),
        ("is_consistent_container_name_enabled", json!(true)),
    ];
    for (field, value) in expected {
        assert_eq!(made.fields.get(field), Some(&value), "{field}");
    }
    assert_eq!(made.envs["LANG"], "C.UTF-8");
    assert_eq!(made.envs["GREENROOM_SLOT_TOKEN"], "grs_$secret");
    assert_eq!(made.envs.len(), 4);
    // It was only made.
    assert_eq!((made.status.as_str(), scene.count(Operation::Start)), ("exited", 0));
    scene.no_violations();
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

#[rstest]
#[case::bare("")]
#[case::slash("/")]
#[case::path("/api/v1")]
#[case::path_and_slash("/api/v1/")]
#[tokio::test]
async fn its_address_may_come_with_the_path_of_its_interface(#[case] tail: &str) {
    let scene = Scene::plain().await;
    let config = CoolifyConfig { api_url: format!("{}{tail}", scene.fake.url), ..scene.config() };
    scene.process_with(config).ping().await.unwrap();
    scene.no_violations();
}

#[rstest]
#[case("running:healthy", true, false)]
#[case("running:unknown", true, false)]
#[case("running:unhealthy", true, true)]
#[case("starting:unknown", true, false)]
#[case("restarting:unknown", true, false)]
#[case("degraded:unhealthy", true, true)]
#[case("exited", false, false)]
#[case("exited:unhealthy", false, true)]
#[tokio::test]
async fn a_status_says_whether_something_runs_and_whether_it_is_well(
    #[case] status: &str,
    #[case] running: bool,
    #[case] unwell: bool,
) {
    let scene = Scene::plain().await;
    let uuid = scene.process().create(&Scene::spec(1, "a")).await.unwrap();
    scene.fake.set_status(&uuid, status);
    let found = scene.found(1).await.unwrap();
    assert_eq!((found.running, found.unwell, found.state.as_str()), (running, unwell, status));
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
async fn what_runs_shows_its_own_last_lines() {
    let scene = Scene::plain().await;
    let provider = scene.process();
    assert_eq!(provider.last_lines(&Scene::slot(1)).await.unwrap(), None);
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    assert!(provider.last_lines(&Scene::slot(1)).await.unwrap().unwrap().contains("waiting for work"));
}

#[tokio::test]
async fn a_token_that_may_not_read_secrets_is_enough() {
    let scene = Scene::new(|settings| settings.reads_secrets = false).await;
    let provider = scene.process();
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    assert_eq!(provider.list().await.unwrap().len(), 1);
    provider.stop(&Scene::slot(1), true).await.unwrap();
    scene.fake.fail_next_deployment(&["no"]);
    let error = provider.start(&Scene::spec(1, "b")).await.unwrap_err();
    assert!(error.words.contains("may read secrets"), "{error:?}");
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
async fn a_stop_is_waited_for_and_prunes_no_images() {
    let scene = Scene::new(|settings| settings.stop = Duration::from_millis(300)).await;
    let provider = scene.process();
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    let begun = Instant::now();
    assert_eq!(provider.stop(&Scene::slot(1), true).await.unwrap(), Stopped::Seen);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!((scene.only().status.as_str(), scene.fake.prunes()), ("exited", 0));
    assert_eq!(scene.count(Operation::Stop), 1);
    // What does not run is not stopped once more.
    scene.process().stop(&Scene::slot(1), true).await.unwrap();
    assert_eq!(scene.count(Operation::Stop), 1);
    scene.no_violations();
}

#[tokio::test]
async fn a_stop_that_never_comes_true_is_an_error_and_is_asked_for_more_than_once() {
    let scene = Scene::new(|settings| settings.stop = Duration::from_secs(100)).await;
    let provider = scene.process();
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    let error = provider.stop(&Scene::slot(1), true).await.unwrap_err();
    assert!(error.may_help && error.words.contains("not stopped"), "{error:?}");
    assert!(scene.count(Operation::Stop) >= 2);
}

#[tokio::test]
async fn a_stop_ends_also_what_is_still_to_be_deployed() {
    let scene = Scene::plain().await;
    scene.fake.hold_deployments(true);
    let provider = scene.process();
    let starting = tokio::spawn(async move { provider.start(&Scene::spec(1, "a")).await });
    scene.until_count(Operation::Start, 1).await;
    starting.abort();
    scene.process().stop(&Scene::slot(1), true).await.unwrap();
    scene.fake.hold_deployments(false);
    assert_eq!((scene.only().status.as_str(), scene.fake.deployments()), ("exited", vec!["cancelled-by-user"]));
    scene.no_violations();
}

#[tokio::test]
async fn what_coolify_does_not_know_to_run_yet_is_stopped_all_the_same() {
    let scene = Scene::plain().await;
    let mut events = scene.fake.events();
    let uuid = scene.process().start(&Scene::spec(1, "a")).await.unwrap();
    until("it is healthy", async || scene.only().status == "running:healthy").await;
    // The word of its start has not come through.
    scene.fake.set_status(&uuid, "exited");
    scene.process().stop(&Scene::slot(1), true).await.unwrap();
    assert_eq!(scene.count(Operation::Stop), 1);
    let ended = [events.try_recv().unwrap(), events.try_recv().unwrap()];
    assert!(matches!(&ended[1], CoolifyEvent::Stopped { .. }), "{ended:?}");
}

#[tokio::test]
async fn a_deletion_is_waited_for_and_prunes_no_images() {
    let scene = Scene::new(|settings| settings.delete = Duration::from_millis(300)).await;
    let provider = scene.process();
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    provider.delete(&Scene::slot(1)).await.unwrap();
    assert_eq!((scene.fake.applications(), scene.fake.prunes()), (vec![], 0));
    assert_eq!(scene.count(Operation::Delete), 1);
    scene.no_violations();
}

#[tokio::test]
async fn a_creation_whose_answer_is_lost_is_not_made_twice() {
    let scene = Scene::plain().await;
    scene.fake.break_next(Operation::Create, Fault::Lost, 1);
    let uuid = scene.process().create(&Scene::spec(1, "a")).await.unwrap();
    assert_eq!(scene.only().uuid, uuid);
    assert_eq!(scene.only().envs.len(), 4);
    scene.no_violations();
}

#[tokio::test]
async fn of_two_applications_of_one_slot_the_first_is_kept() {
    let scene = Scene::plain().await;
    let (one, other) = (scene.process(), scene.process());
    let spec = Scene::spec(1, "a");
    // Neither sees what the other makes.
    let (first, second) = tokio::join!(one.create(&spec), other.create(&spec));
    let mut made = [first.unwrap(), second.unwrap()];
    assert_eq!(scene.fake.applications().len(), 2);
    made.sort_by_key(|uuid| scene.fake.applications().iter().position(|one| one.uuid == *uuid));
    assert_eq!(one.list().await.unwrap().len(), 1);
    assert_eq!(scene.process().start(&spec).await.unwrap(), made[0]);
    until("the other is gone", async || scene.fake.applications().len() == 1).await;
    scene.no_violations();
}

#[tokio::test]
async fn what_belongs_to_others_is_neither_listed_nor_touched() {
    let scene = Scene::plain().await;
    scene.fake.add_foreign("pool-meet-001", false);
    scene.fake.add_foreign("database", true);
    scene.process_of("another", scene.config()).start(&Scene::spec(1, "a")).await.unwrap();
    let provider = scene.process();
    assert_eq!(provider.list().await.unwrap(), []);
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    assert_eq!(scene.fake.applications().len(), 4);
    provider.delete(&Scene::slot(1)).await.unwrap();
    let left: Vec<bool> = scene.fake.applications().iter().map(|one| one.status.starts_with("running")).collect();
    assert_eq!(left, [true, true, true]);
    scene.no_violations();
}

#[tokio::test]
async fn a_listing_that_fails_is_an_error() {
    let scene = Scene::plain().await;
    scene.fake.break_next(Operation::List, Fault::Fail, 3);
    let error = scene.process().list().await.unwrap_err();
    assert!(error.may_help && error.words.contains("Server Error"), "{error:?}");
    assert_eq!(scene.process().list().await.unwrap(), []);
    assert_eq!(scene.count(Operation::List), 4);
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
async fn an_application_is_made_anew_when_it_is_to_be_made_of_something_else() {
    let scene = Scene::plain().await;
    let old = scene.process().start(&Scene::spec(1, "a")).await.unwrap();
    let config = CoolifyConfig { tag: "1.5".to_owned(), ..scene.config() };
    let provider = scene.process_with(config);
    // Not under a bot that runs.
    assert_eq!(provider.start(&Scene::spec(1, "a")).await.unwrap(), old);
    provider.stop(&Scene::slot(1), true).await.unwrap();
    assert_ne!(provider.start(&Scene::spec(1, "b")).await.unwrap(), old);
    assert_eq!(scene.only().fields["docker_registry_image_tag"], "1.5");
    scene.no_violations();
}

#[tokio::test]
async fn many_who_wait_share_their_looks() {
    let scene = Scene::new(|settings| {
        settings.deployment = Duration::from_millis(200);
        settings.deployments_at_once = 100;
    })
    .await;
    let provider = std::sync::Arc::new(scene.process());
    let mut all = tokio::task::JoinSet::new();
    for number in 1..=20 {
        let provider = provider.clone();
        all.spawn(async move {
            provider.start(&Scene::spec(number, "a")).await.unwrap();
            provider.stop(&Scene::slot(number), true).await.unwrap();
        });
    }
    all.join_all().await;
    let own = [Operation::Describe, Operation::Start, Operation::Stop].map(|operation| scene.count(operation));
    assert_eq!(own, [20, 20, 20]);
    assert_eq!(scene.count(Operation::Create) + scene.count(Operation::BulkEnvs), 40);
    assert_eq!(scene.count(Operation::Inspect) + scene.count(Operation::Deployment) + scene.count(Operation::Logs), 0);
    let looks = scene.count(Operation::List);
    assert!(looks < 60, "{looks}");
    scene.no_violations();
}

#[tokio::test]
async fn only_the_latest_description_is_sent_and_a_start_takes_it_along() {
    let scene = Scene::plain().await;
    let provider = scene.process();
    provider.create(&Scene::spec(1, "a")).await.unwrap();
    for number in 0..50 {
        provider.describe(&Scene::slot(1), &format!("[BUSY] Bot #{number}")).await;
    }
    until("it is described", async || scene.only().description.as_deref() == Some("[BUSY] Bot #49")).await;
    assert!(scene.count(Operation::Describe) <= 2, "{}", scene.count(Operation::Describe));
    let before = scene.count(Operation::Describe);
    // Before the application is there, the creation has it.
    provider.describe(&Scene::slot(2), "[BUSY] Bot #1").await;
    let uuid = provider.start(&Scene::spec(2, "a")).await.unwrap();
    assert_eq!(scene.fake.application(&uuid).unwrap().description.as_deref(), Some("[BUSY] Bot #1"));
    assert_eq!(scene.count(Operation::Describe), before + 1);
    assert_eq!(provider.list().await.unwrap().len(), 2);
    scene.no_violations();
}

#[tokio::test]
async fn a_description_waits_for_its_turn_and_comes_in_the_end() {
    let database = Database::new(Backend::Sqlite).await;
    let minute = Duration::from_millis(1_500);
    let scene = Scene::on(database.into(), 20, minute, |_| {}).await;
    let provider = scene.process();
    provider.create(&Scene::spec(1, "a")).await.unwrap();
    // More than half is used: what only shows something waits.
    while scene.fake.calls().len() < 12 {
        provider.inspect(&Scene::slot(1)).await.unwrap();
    }
    let begun = Instant::now();
    provider.describe(&Scene::slot(1), "[IDLE] Available").await;
    assert!(begun.elapsed() < Duration::from_millis(100));
    scene.fake.break_next(Operation::Describe, Fault::Fail, 1);
    until("it is described", async || scene.only().description.as_deref() == Some("[IDLE] Available")).await;
    assert_eq!((scene.count(Operation::Describe), scene.fake.throttled()), (2, 0));
}

#[tokio::test]
async fn too_many_requests_are_waited_out_within_the_call() {
    let scene = Scene::plain().await;
    let provider = scene.process();
    for operation in [Operation::List, Operation::Create, Operation::Start] {
        scene.fake.break_next(operation, Fault::Throttle(1), 1);
    }
    let begun = Instant::now();
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(3));
    scene.fake.break_next(Operation::Stop, Fault::Throttle(1), 1);
    provider.stop(&Scene::slot(1), true).await.unwrap();
    assert_eq!(scene.fake.throttled(), 4);
    assert_eq!(scene.fake.deployments(), ["finished"]);
}

#[tokio::test]
async fn lost_answers_and_errors_of_its_own_are_got_over() {
    let scene = Scene::plain().await;
    let provider = scene.process();
    for operation in [Operation::Create, Operation::BulkEnvs, Operation::Describe, Operation::Start, Operation::Stop] {
        scene.fake.break_next(operation, Fault::Lost, 1);
    }
    provider.start(&Scene::spec(1, "a")).await.unwrap();
    provider.stop(&Scene::slot(1), true).await.unwrap();
    assert_eq!((scene.only().status.as_str(), scene.fake.deployments()), ("exited", vec!["finished"]));
    for operation in [Operation::Describe, Operation::Start, Operation::Deployments, Operation::Stop, Operation::Delete]
    {
        scene.fake.break_next(operation, Fault::Fail, 1);
    }
    provider.start(&Scene::spec(1, "b")).await.unwrap();
    provider.stop(&Scene::slot(1), true).await.unwrap();
    provider.delete(&Scene::slot(1)).await.unwrap();
    assert_eq!(scene.fake.applications(), []);
    scene.no_violations();
}

#[tokio::test]
async fn what_it_refuses_stays_refused_in_its_own_words_and_without_the_token() {
    let scene = Scene::plain().await;
    let with = |change: fn(&mut CoolifyConfig)| {
        let mut config = scene.config();
        change(&mut config);
        scene.process_with(config)
    };
    let refused = [
        (with(|config| config.api_token = "2|other-secret".into()), "Unauthenticated"),
        (with(|config| config.project_uuid = "nowhere".to_owned()), "Project not found"),
        (with(|config| config.environment_name = "nowhere".to_owned()), "Environment not found"),
        (with(|config| config.server_uuid = "nowhere".to_owned()), "Server not found"),
        (with(|config| config.tag = "not a tag".to_owned()), "docker_registry_image_tag"),
        (with(|config| drop(config.env.insert("no key".to_owned(), String::new()))), "key"),
    ];
    for (provider, words) in refused {
        let error = provider.start(&Scene::spec(1, "a")).await.unwrap_err();
        assert!(!error.may_help && error.words.contains(words), "{error:?}");
        assert!(!error.words.contains("secret"), "{error:?}");
        assert!(!format!("{provider:?}").contains("other-secret"));
    }
}

#[tokio::test]
async fn nobody_at_the_address_is_an_error_that_may_pass() {
    let scene = Scene::plain().await;
    let config = CoolifyConfig { api_url: "http://127.0.0.1:9".to_owned(), ..scene.config() };
    let provider = scene.process_with(config);
    for error in [provider.ping().await.unwrap_err(), provider.list().await.unwrap_err()] {
        assert!(error.may_help && error.words.contains("does not answer"), "{error:?}");
    }
    assert_eq!(provider.check(3).await[0].verdict, Verdict::Bad);
}

#[tokio::test]
async fn a_ping_costs_a_request_a_minute_at_most() {
    let scene = Scene::plain().await;
    let provider = scene.process();
    for _ in 0..20 {
        provider.ping().await.unwrap();
    }
    assert_eq!(scene.fake.calls().len(), 1);
    let wrong = scene.process_with(CoolifyConfig { api_token: "wrong".into(), ..scene.config() });
    for _ in 0..20 {
        let error = wrong.ping().await.unwrap_err();
        assert!(error.words.contains("does not accept the token"), "{error:?}");
    }
    assert_eq!(scene.fake.calls().len(), 2);
}

#[tokio::test]
async fn an_examination_says_what_is_there_and_what_is_missing() {
    let scene = Scene::plain().await;
    scene.process().start(&Scene::spec(1, "a")).await.unwrap();
    let seen = |checks: Vec<greenroom::providers::check::Check>| -> Vec<(&'static str, bool, String)> {
        checks.into_iter().map(|check| (check.what, check.verdict == Verdict::Good, check.found)).collect()
    };
    let good = seen(scene.process().check(5).await);
    let names: Vec<&str> = good.iter().map(|(what, _, _)| *what).collect();
    assert_eq!(names, ["reachable", "token", "project", "environment", "server", "applications"]);
    assert!(good.iter().all(|(_, good, _)| *good), "{good:?}");
    assert!(good[0].2.contains("4.3.11") && good[5].2.starts_with("1 are of this installation, 1 of them"), "{good:?}");
    let bad = |config: CoolifyConfig| {
        let provider = scene.process_with(config);
        async move {
            let checks = seen(provider.check(5).await);
            checks.into_iter().filter(|(_, good, _)| !good).map(|(what, _, _)| what).collect::<Vec<_>>()
        }
    };
    assert_eq!(bad(CoolifyConfig { api_token: "no".into(), ..scene.config() }).await, ["token"]);
    assert_eq!(bad(CoolifyConfig { project_uuid: "no".into(), ..scene.config() }).await, ["project"]);
    assert_eq!(bad(CoolifyConfig { environment_name: "no".into(), ..scene.config() }).await, ["environment"]);
    assert_eq!(bad(CoolifyConfig { server_uuid: "no".into(), ..scene.config() }).await, ["server"]);
    scene.no_violations();
}
