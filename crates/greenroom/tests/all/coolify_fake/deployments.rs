//! Deployments of the fake Coolify, and the end of their containers.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::FakeFixture;
use crate::support::{CoolifyEvent, CoolifySettings, until};

#[tokio::test]
async fn a_start_is_a_deployment_that_pulls_and_then_runs() {
    let fixture = FakeFixture::plain().await;
    let mut events = fixture.coolify.events();
    let uuid = fixture.create("bot").await;
    assert_eq!(fixture.read(&format!("applications/{uuid}")).await["status"], "exited");
    let variable = json!({ "key": "GREENROOM_SLOT", "value": " bot-1 ", "is_literal": true });
    assert_eq!(fixture.send(Method::POST, &format!("applications/{uuid}/envs"), &variable).await.0, 201);
    let deployment = fixture.start(&uuid).await["deployment_uuid"].as_str().unwrap().to_owned();
    let CoolifyEvent::Started { name, envs, container, .. } = events.recv().await.unwrap() else {
        panic!("the application starts first")
    };
    assert_eq!((name.as_str(), envs["GREENROOM_SLOT"].as_str()), ("bot", "bot-1"));
    fixture.until_status(&uuid, "running:healthy").await;
    let deployment = fixture.read(&format!("deployments/{deployment}")).await;
    assert_eq!(deployment["status"], "finished");
    let lines: Vec<Value> = serde_json::from_str(deployment["logs"].as_str().unwrap()).unwrap();
    assert_eq!(lines[1]["output"], "Pulling latest images from the registry.");
    let page = fixture.read(&format!("deployments/applications/{uuid}?skip=0&take=1")).await;
    assert_eq!((&page["count"], &page["deployments"][0]["status"]), (&json!(1), &json!("finished")));
    assert_eq!(fixture.coolify.pulls(), ["images.example/greenroom/bot:1"]);

    fixture.start(&uuid).await;
    let CoolifyEvent::Started { container: next, .. } = events.recv().await.unwrap() else {
        panic!("the new one starts before the old one is stopped")
    };
    assert_ne!(next, container);
    assert_eq!(events.recv().await.unwrap(), CoolifyEvent::Stopped { uuid, container });
    fixture.no_violations();
}

#[tokio::test]
async fn a_start_during_a_deployment_makes_no_second_deployment() {
    let fixture = FakeFixture::plain().await;
    fixture.coolify.hold_deployments(true);
    let uuid = fixture.create("bot").await;
    assert!(fixture.start(&uuid).await["deployment_uuid"].is_string());
    assert_eq!(fixture.start(&uuid).await, json!({ "message": "Deployment already queued for this commit." }));
    assert_eq!(fixture.read("deployments").await.as_array().unwrap().len(), 1);
    assert_eq!(fixture.coolify.deployments(), ["in_progress"]);
}

#[tokio::test]
async fn a_full_queue_answers_with_a_deployment_that_does_not_exist() {
    let fixture = FakeFixture::new(|settings| settings.queue = 1).await;
    fixture.coolify.hold_deployments(true);
    for name in ["a", "b", "c"] {
        let uuid = fixture.create(name).await;
        fixture.start(&uuid).await;
    }
    assert_eq!(fixture.coolify.deployments(), ["in_progress", "in_progress", "queued"]);
    let uuid = fixture.create("d").await;
    let answer = fixture.start(&uuid).await;
    let phantom = answer["deployment_uuid"].as_str().unwrap();
    assert_eq!(fixture.get(&format!("deployments/{phantom}")).await.status(), 404);
    let answer = fixture.post(&format!("deploy?uuid={uuid}")).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["Retry-After"]), (429, &"60".parse().unwrap()));
    assert_eq!(fixture.coolify.most_deployments_at_once(), 3);
    fixture.coolify.hold_deployments(false);
    until("all have run", async || fixture.coolify.deployments() == ["finished"; 3]).await;
}

#[tokio::test]
async fn a_deployment_can_fail_and_can_be_cancelled() {
    let fixture = FakeFixture::plain().await;
    fixture.coolify.fail_next_deployment(&["manifest unknown"]);
    let uuid = fixture.create("bot").await;
    let deployment = fixture.start(&uuid).await["deployment_uuid"].as_str().unwrap().to_owned();
    until("it has failed", async || fixture.coolify.deployments() == ["failed"]).await;
    let failed = fixture.read(&format!("deployments/{deployment}")).await;
    assert!(failed["logs"].as_str().unwrap().contains("manifest unknown"));
    assert_eq!(fixture.seen(&uuid).status, "exited");

    fixture.coolify.hold_deployments(true);
    let deployment = fixture.start(&uuid).await["deployment_uuid"].as_str().unwrap().to_owned();
    assert_eq!(fixture.seen(&uuid).status, "starting:unknown");
    let cancel = format!("deployments/{deployment}/cancel");
    let cancelled: Value = fixture.post(&cancel).await.json().await.unwrap();
    assert_eq!(cancelled["status"], "cancelled-by-user");
    assert_eq!(fixture.post(&cancel).await.status(), 400);
    assert_eq!(fixture.seen(&uuid).status, "exited");
}

#[tokio::test]
async fn coolifys_own_health_check_fails_a_container_that_serves_nothing() {
    let fixture = FakeFixture::plain().await;
    let uuid = fixture.create("bot").await;
    let path = format!("applications/{uuid}");
    fixture.send(Method::PATCH, &path, &json!({ "health_check_enabled": true })).await;
    fixture.start(&uuid).await;
    until("it has failed", async || fixture.coolify.deployments() == ["failed"]).await;
    assert_eq!(fixture.seen(&uuid).status, "exited");
    fixture.no_violations();
}

#[tokio::test]
async fn a_stop_takes_time_and_removes_unused_images_unless_the_request_disables_it() {
    let fixture = FakeFixture::new(|settings| settings.stop = Duration::from_millis(300)).await;
    let uuid = fixture.running("bot").await;
    let logs = format!("applications/{uuid}/logs?lines=1");
    assert_eq!(fixture.read(&logs).await["logs"], "waiting for work");
    fixture.post(&format!("applications/{uuid}/stop?docker_cleanup=false")).await;
    assert_eq!(fixture.seen(&uuid).status, "running:healthy");
    fixture.until_status(&uuid, "exited").await;
    assert_eq!(fixture.coolify.prunes(), 0);
    let answer = fixture.get(&logs).await;
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.json::<Value>().await.unwrap()["message"], "Application is not running.");
    fixture.post(&format!("applications/{uuid}/stop")).await;
    until("images are gone", async || fixture.coolify.prunes() == 1).await;
    fixture.no_violations();
}

#[tokio::test]
async fn a_deleted_application_is_listed_for_a_while() {
    let fixture = FakeFixture::new(|settings| settings.delete = Duration::from_millis(300)).await;
    let uuid = fixture.running("bot").await;
    let path = format!("applications/{uuid}");
    let answer = fixture.request(Method::DELETE, &format!("{path}?docker_cleanup=false&delete_volumes=true")).send();
    assert_eq!(answer.await.unwrap().status(), 200);
    assert_eq!(fixture.get(&path).await.status(), 200);
    until("it is gone", async || fixture.get(&path).await.status() == 404).await;
    assert_eq!(fixture.coolify.prunes(), 0);
    fixture.no_violations();
}

#[tokio::test]
async fn a_container_that_ends_by_itself_is_restarted_a_limited_number_of_times() {
    let fixture = FakeFixture::new(|settings| settings.restart = Duration::from_millis(200)).await;
    let uuid = fixture.create("bot").await;
    fixture.send(Method::PATCH, &format!("applications/{uuid}"), &json!({ "max_restart_count": 2 })).await;
    fixture.start(&uuid).await;
    fixture.until_status(&uuid, "running:healthy").await;
    fixture.coolify.exit(&uuid);
    assert_eq!(fixture.seen(&uuid).status, "restarting:unknown");
    fixture.until_status(&uuid, "running:healthy").await;
    fixture.coolify.exit(&uuid);
    fixture.until_status(&uuid, "exited").await;
    fixture.start(&uuid).await;
    fixture.until_status(&uuid, "running:healthy").await;
    fixture.coolify.crash(&uuid);
    assert_eq!(fixture.read(&format!("applications/{uuid}")).await["status"], "exited:unhealthy");
}

#[tokio::test]
async fn the_list_of_deployments_may_be_an_object() {
    let fixture = FakeFixture::new(|settings| settings.deployments_as_object = true).await;
    fixture.coolify.hold_deployments(true);
    for name in ["a", "b"] {
        let uuid = fixture.create(name).await;
        fixture.start(&uuid).await;
    }
    let listed = fixture.read("deployments").await;
    assert_eq!((&listed["1"]["application_name"], &listed["0"]["application_name"]), (&json!("a"), &json!("b")));
    fixture.coolify.set_settings(|settings| settings.deployments_as_object = false);
    assert_eq!(fixture.read("deployments").await[0]["status"], "in_progress");
}

#[tokio::test]
async fn a_status_may_be_behind_the_container_or_never_have_been_true() {
    let fixture = FakeFixture::new(|settings| settings.shown_after = Duration::from_millis(200)).await;
    let uuid = fixture.create("bot").await;
    fixture.start(&uuid).await;
    until("it runs", async || fixture.coolify.runs(&uuid)).await;
    assert_eq!(fixture.seen(&uuid).status, "exited");
    fixture.until_status(&uuid, "running:healthy").await;

    fixture.coolify.set_settings(|settings| settings.server_is_down = true);
    fixture.post(&format!("applications/{uuid}/stop?docker_cleanup=false")).await;
    assert_eq!(fixture.get(&format!("applications/{uuid}/logs")).await.status(), 500);
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(fixture.seen(&uuid).status, "running:healthy");

    let only_shows =
        |settings: &mut CoolifySettings| (settings.server_is_down, settings.stop_only_shows) = (false, true);
    fixture.coolify.set_settings(only_shows);
    fixture.post(&format!("applications/{uuid}/stop?docker_cleanup=false")).await;
    fixture.until_status(&uuid, "exited").await;
    assert_eq!(fixture.get(&format!("applications/{uuid}/logs")).await.status(), 200);
    fixture.no_violations();
}

#[tokio::test]
async fn a_deletion_may_leave_the_container_running() {
    let fixture = FakeFixture::new(|settings| settings.delete_leaves = true).await;
    let uuid = fixture.running("bot").await;
    let path = format!("applications/{uuid}?docker_cleanup=false&delete_volumes=false");
    fixture.request(Method::DELETE, &path).send().await.unwrap();
    until("it is gone", async || fixture.coolify.application(&uuid).is_none()).await;
    assert_eq!((fixture.coolify.orphans(), fixture.coolify.deleted_volumes()), (1, 0));
}
