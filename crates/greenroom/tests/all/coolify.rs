//! The provider for Coolify with a fake that is as strict as Coolify. Each test covers one surprising behaviour of
//! Coolify.

mod ends;
mod refusals;
mod request_budget;
mod starts;

use greenroom::config::provider::CoolifyConfig;
use greenroom::providers::Provider;
use greenroom::providers::check::Verdict;
use rstest::rstest;
use serde_json::json;

use crate::support::{CoolifyFault as Fault, CoolifyFixture, CoolifyOperation as Operation, until};

#[tokio::test]
async fn an_application_has_what_a_slot_needs_and_no_public_address() {
    let fixture = CoolifyFixture::plain().await;
    let uuid = fixture.process().create(&CoolifyFixture::spec(1, "a")).await.unwrap();
    let made = fixture.only();
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
    // The application was only created.
    assert_eq!((made.status.as_str(), fixture.count(Operation::Start)), ("exited", 0));
    fixture.no_violations();
}

#[rstest]
#[case::bare("")]
#[case::slash("/")]
#[case::path("/api/v1")]
#[case::path_and_slash("/api/v1/")]
#[tokio::test]
async fn the_configured_address_may_include_the_path_of_the_api(#[case] tail: &str) {
    let fixture = CoolifyFixture::plain().await;
    let config = CoolifyConfig { api_url: format!("{}{tail}", fixture.fake.url), ..fixture.config() };
    fixture.process_with(config).ping().await.unwrap();
    fixture.no_violations();
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
async fn a_status_says_whether_something_runs_and_whether_it_is_healthy(
    #[case] status: &str,
    #[case] running: bool,
    #[case] unhealthy: bool,
) {
    let fixture = CoolifyFixture::plain().await;
    let uuid = fixture.process().create(&CoolifyFixture::spec(1, "a")).await.unwrap();
    fixture.fake.set_status(&uuid, status);
    let found = fixture.found(1).await.unwrap();
    assert_eq!((found.running, found.unhealthy, found.state.as_str()), (running, unhealthy, status));
}

#[tokio::test]
async fn the_last_lines_are_those_of_the_running_container() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    assert_eq!(provider.last_lines(&CoolifyFixture::slot(1)).await.unwrap(), None);
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    assert!(provider.last_lines(&CoolifyFixture::slot(1)).await.unwrap().unwrap().contains("waiting for work"));
}

#[tokio::test]
async fn a_creation_whose_answer_is_lost_is_not_made_twice() {
    let fixture = CoolifyFixture::plain().await;
    fixture.fake.break_next(Operation::Create, Fault::Lost, 1);
    let uuid = fixture.process().create(&CoolifyFixture::spec(1, "a")).await.unwrap();
    assert_eq!(fixture.only().uuid, uuid);
    assert_eq!(fixture.only().envs.len(), 4);
    fixture.no_violations();
}

#[tokio::test]
async fn of_two_applications_of_one_slot_the_first_is_kept() {
    let fixture = CoolifyFixture::plain().await;
    let (one, other) = (fixture.process(), fixture.process());
    let spec = CoolifyFixture::spec(1, "a");
    // Neither process sees the application that the other creates.
    let (first, second) = tokio::join!(one.create(&spec), other.create(&spec));
    let mut made = [first.unwrap(), second.unwrap()];
    assert_eq!(fixture.fake.applications().len(), 2);
    made.sort_by_key(|uuid| fixture.fake.applications().iter().position(|one| one.uuid == *uuid));
    assert_eq!(one.list().await.unwrap().len(), 1);
    assert_eq!(fixture.process().start(&spec).await.unwrap(), made[0]);
    until("the other is gone", async || fixture.fake.applications().len() == 1).await;
    fixture.no_violations();
}

#[tokio::test]
async fn applications_of_others_are_neither_listed_nor_touched() {
    let fixture = CoolifyFixture::plain().await;
    fixture.fake.add_foreign("pool-meet-001", false);
    fixture.fake.add_foreign("database", true);
    fixture.process_of("another", fixture.config()).start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    let provider = fixture.process();
    assert_eq!(provider.list().await.unwrap(), []);
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    assert_eq!(fixture.fake.applications().len(), 4);
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap();
    let left: Vec<bool> = fixture.fake.applications().iter().map(|one| one.status.starts_with("running")).collect();
    assert_eq!(left, [true, true, true]);
    fixture.no_violations();
}

#[tokio::test]
async fn an_application_is_replaced_when_its_recipe_changes() {
    let fixture = CoolifyFixture::plain().await;
    let old = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    let config = CoolifyConfig { tag: "1.5".to_owned(), ..fixture.config() };
    let provider = fixture.process_with(config);
    // The application of a running bot is not changed.
    assert_eq!(provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap(), old);
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert_ne!(provider.start(&CoolifyFixture::spec(1, "b")).await.unwrap(), old);
    assert_eq!(fixture.only().fields["docker_registry_image_tag"], "1.5");
    fixture.no_violations();
}

#[tokio::test]
async fn the_doctor_says_what_exists_and_what_is_missing() {
    let fixture = CoolifyFixture::plain().await;
    fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    let seen = |checks: Vec<greenroom::providers::check::Check>| -> Vec<(&'static str, bool, String)> {
        checks.into_iter().map(|check| (check.what, check.verdict == Verdict::Good, check.found)).collect()
    };
    let good = seen(fixture.process().check(5).await);
    let names: Vec<&str> = good.iter().map(|(what, _, _)| *what).collect();
    assert_eq!(names, ["reachable", "token", "project", "environment", "server", "applications"]);
    assert!(good.iter().all(|(_, good, _)| *good), "{good:?}");
    assert!(
        good[0].2.contains("4.3.11") && good[5].2.starts_with("1 belong to this installation, and 1 of them"),
        "{good:?}"
    );
    let bad = |config: CoolifyConfig| {
        let provider = fixture.process_with(config);
        async move {
            let checks = seen(provider.check(5).await);
            checks.into_iter().filter(|(_, good, _)| !good).map(|(what, _, _)| what).collect::<Vec<_>>()
        }
    };
    assert_eq!(bad(CoolifyConfig { api_token: "no".into(), ..fixture.config() }).await, ["token"]);
    assert_eq!(bad(CoolifyConfig { project_uuid: "no".into(), ..fixture.config() }).await, ["project"]);
    assert_eq!(bad(CoolifyConfig { environment_name: "no".into(), ..fixture.config() }).await, ["environment"]);
    assert_eq!(bad(CoolifyConfig { server_uuid: "no".into(), ..fixture.config() }).await, ["server"]);
    fixture.no_violations();
}

#[tokio::test]
async fn of_two_started_applications_neither_is_removed_and_both_are_stopped() {
    let fixture = CoolifyFixture::plain().await;
    let (one, other) = (fixture.process(), fixture.process());
    let spec = CoolifyFixture::spec(1, "a");
    // Neither process sees the application that the other creates.
    let (first, second) = tokio::join!(one.create(&spec), other.create(&spec));
    let made = [first.unwrap(), second.unwrap()];
    for uuid in &made {
        let options = fixture.fake.application(uuid).unwrap().fields["custom_docker_run_options"].clone();
        fixture.fake.set_field(
            uuid,
            "custom_docker_run_options",
            &format!("{} --label greenroom.start=x", text(&options)),
        );
        fixture.fake.run(uuid);
    }
    one.start(&spec).await.unwrap();
    assert_eq!((fixture.fake.applications().len(), fixture.count(Operation::Delete)), (2, 0));
    one.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert!(made.iter().all(|uuid| !fixture.fake.runs(uuid)));
}

fn text(value: &serde_json::Value) -> &str {
    value.as_str().unwrap()
}

#[rstest]
#[case::made(false)]
#[case::started(true)]
#[tokio::test]
async fn a_clone_that_a_person_made_is_neither_counted_nor_touched(#[case] is_started: bool) {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    let uuid = provider.create(&CoolifyFixture::spec(1, "a")).await.unwrap();
    if is_started {
        provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    }
    let clone = fixture.fake.clone_application(&uuid);
    fixture.fake.run(&clone);
    assert_eq!(provider.list().await.unwrap().len(), 1);
    assert_eq!(provider.start(&CoolifyFixture::spec(1, "b")).await.unwrap(), uuid);
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap();
    assert_eq!(fixture.only().uuid, clone);
    assert!(fixture.fake.runs(&clone));
    assert_eq!(provider.list().await.unwrap(), []);
    fixture.no_violations();
}

#[tokio::test]
async fn the_application_of_an_earlier_slot_of_the_name_is_replaced_because_its_token_is_invalid() {
    let fixture = CoolifyFixture::plain().await;
    let old = fixture.process().start(&CoolifyFixture::hot(1, 1)).await.unwrap();
    let mut spec = CoolifyFixture::hot(1, 1);
    spec.environment.insert("GREENROOM_SLOT_TOKEN".to_owned(), "grs_of_another".to_owned());
    let provider = fixture.process();
    assert_ne!(provider.start(&spec).await.unwrap(), old);
    assert_eq!(fixture.only().envs["GREENROOM_SLOT_TOKEN"], "grs_of_another");
    assert_eq!(fixture.fake.orphans(), 0);
    fixture.no_violations();
}
