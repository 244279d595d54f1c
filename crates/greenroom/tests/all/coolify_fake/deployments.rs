//! Deployments, and the ends of what they brought.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::Scene;
use crate::support::{CoolifyEvent, CoolifySettings, until};

#[tokio::test]
async fn a_start_is_a_deployment_that_pulls_and_then_runs() {
    let scene = Scene::plain().await;
    let mut events = scene.coolify.events();
    let uuid = scene.create("bot").await;
    assert_eq!(scene.read(&format!("applications/{uuid}")).await["status"], "exited");
    let variable = json!({ "key": "GREENROOM_SLOT", "value": " bot-1 ", "is_literal": true });
    assert_eq!(scene.send(Method::POST, &format!("applications/{uuid}/envs"), &variable).await.0, 201);
    let deployment = scene.start(&uuid).await["deployment_uuid"].as_str().unwrap().to_owned();
    let CoolifyEvent::Started { name, envs, container, .. } = events.recv().await.unwrap() else {
        panic!("it starts first")
    };
    assert_eq!((name.as_str(), envs["GREENROOM_SLOT"].as_str()), ("bot", "bot-1"));
    scene.until_status(&uuid, "running:healthy").await;
    let deployment = scene.read(&format!("deployments/{deployment}")).await;
    assert_eq!(deployment["status"], "finished");
    let lines: Vec<Value> = serde_json::from_str(deployment["logs"].as_str().unwrap()).unwrap();
    assert_eq!(lines[1]["output"], "Pulling latest images from the registry.");
    let page = scene.read(&format!("deployments/applications/{uuid}?skip=0&take=1")).await;
    assert_eq!((&page["count"], &page["deployments"][0]["status"]), (&json!(1), &json!("finished")));
    assert_eq!(scene.coolify.pulls(), ["images.example/greenroom/bot:1"]);

    scene.start(&uuid).await;
    let CoolifyEvent::Started { container: next, .. } = events.recv().await.unwrap() else {
        panic!("the new one starts before the old one is stopped")
    };
    assert_ne!(next, container);
    assert_eq!(events.recv().await.unwrap(), CoolifyEvent::Stopped { uuid, container });
    scene.no_violations();
}

#[tokio::test]
async fn a_start_while_one_is_under_way_has_no_deployment_of_its_own() {
    let scene = Scene::plain().await;
    scene.coolify.hold_deployments(true);
    let uuid = scene.create("bot").await;
    assert!(scene.start(&uuid).await["deployment_uuid"].is_string());
    assert_eq!(scene.start(&uuid).await, json!({ "message": "Deployment already queued for this commit." }));
    assert_eq!(scene.read("deployments").await.as_array().unwrap().len(), 1);
    assert_eq!(scene.coolify.deployments(), ["in_progress"]);
}

#[tokio::test]
async fn a_full_queue_answers_with_a_deployment_that_does_not_exist() {
    let scene = Scene::new(|settings| settings.queue = 1).await;
    scene.coolify.hold_deployments(true);
    for name in ["a", "b", "c"] {
        let uuid = scene.create(name).await;
        scene.start(&uuid).await;
    }
    assert_eq!(scene.coolify.deployments(), ["in_progress", "in_progress", "queued"]);
    let uuid = scene.create("d").await;
    let answer = scene.start(&uuid).await;
    let phantom = answer["deployment_uuid"].as_str().unwrap();
    assert_eq!(scene.get(&format!("deployments/{phantom}")).await.status(), 404);
    let told = scene.post(&format!("deploy?uuid={uuid}")).await;
    assert_eq!((told.status().as_u16(), &told.headers()["Retry-After"]), (429, &"60".parse().unwrap()));
    assert_eq!(scene.coolify.most_deployments_at_once(), 3);
    scene.coolify.hold_deployments(false);
    until("all have run", async || scene.coolify.deployments() == ["finished"; 3]).await;
}

#[tokio::test]
async fn a_deployment_can_fail_and_can_be_cancelled() {
    let scene = Scene::plain().await;
    scene.coolify.fail_next_deployment(&["manifest unknown"]);
    let uuid = scene.create("bot").await;
    let deployment = scene.start(&uuid).await["deployment_uuid"].as_str().unwrap().to_owned();
    until("it has failed", async || scene.coolify.deployments() == ["failed"]).await;
    let failed = scene.read(&format!("deployments/{deployment}")).await;
    assert!(failed["logs"].as_str().unwrap().contains("manifest unknown"));
    assert_eq!(scene.seen(&uuid).status, "exited");

    scene.coolify.hold_deployments(true);
    let deployment = scene.start(&uuid).await["deployment_uuid"].as_str().unwrap().to_owned();
    assert_eq!(scene.seen(&uuid).status, "starting:unknown");
    let cancel = format!("deployments/{deployment}/cancel");
    let cancelled: Value = scene.post(&cancel).await.json().await.unwrap();
    assert_eq!(cancelled["status"], "cancelled-by-user");
    assert_eq!(scene.post(&cancel).await.status(), 400);
    assert_eq!(scene.seen(&uuid).status, "exited");
}

#[tokio::test]
async fn coolifys_own_health_check_fails_a_container_that_serves_nothing() {
    let scene = Scene::plain().await;
    let uuid = scene.create("bot").await;
    let path = format!("applications/{uuid}");
    scene.send(Method::PATCH, &path, &json!({ "health_check_enabled": true })).await;
    scene.start(&uuid).await;
    until("it has failed", async || scene.coolify.deployments() == ["failed"]).await;
    assert_eq!(scene.seen(&uuid).status, "exited");
    scene.no_violations();
}

#[tokio::test]
async fn a_stop_takes_its_time_and_throws_images_away_unless_told_not_to() {
    let scene = Scene::new(|settings| settings.stop = Duration::from_millis(300)).await;
    let uuid = scene.running("bot").await;
    let logs = format!("applications/{uuid}/logs?lines=1");
    assert_eq!(scene.read(&logs).await["logs"], "waiting for work");
    scene.post(&format!("applications/{uuid}/stop?docker_cleanup=false")).await;
    assert_eq!(scene.seen(&uuid).status, "running:healthy");
    scene.until_status(&uuid, "exited").await;
    assert_eq!(scene.coolify.prunes(), 0);
    let answer = scene.get(&logs).await;
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.json::<Value>().await.unwrap()["message"], "Application is not running.");
    scene.post(&format!("applications/{uuid}/stop")).await;
    until("images are gone", async || scene.coolify.prunes() == 1).await;
    scene.no_violations();
}

#[tokio::test]
async fn a_deleted_application_is_listed_for_a_while() {
    let scene = Scene::new(|settings| settings.delete = Duration::from_millis(300)).await;
    let uuid = scene.running("bot").await;
    let path = format!("applications/{uuid}");
    let answer = scene.request(Method::DELETE, &format!("{path}?docker_cleanup=false&delete_volumes=true")).send();
    assert_eq!(answer.await.unwrap().status(), 200);
    assert_eq!(scene.get(&path).await.status(), 200);
    until("it is gone", async || scene.get(&path).await.status() == 404).await;
    assert_eq!(scene.coolify.prunes(), 0);
    scene.no_violations();
}

#[tokio::test]
async fn what_ends_by_itself_is_started_again_until_it_was_too_often() {
    let scene = Scene::new(|settings| settings.restart = Duration::from_millis(200)).await;
    let uuid = scene.create("bot").await;
    scene.send(Method::PATCH, &format!("applications/{uuid}"), &json!({ "max_restart_count": 2 })).await;
    scene.start(&uuid).await;
    scene.until_status(&uuid, "running:healthy").await;
    scene.coolify.exit(&uuid);
    assert_eq!(scene.seen(&uuid).status, "restarting:unknown");
    scene.until_status(&uuid, "running:healthy").await;
    scene.coolify.exit(&uuid);
    scene.until_status(&uuid, "exited").await;
    scene.start(&uuid).await;
    scene.until_status(&uuid, "running:healthy").await;
    scene.coolify.crash(&uuid);
    assert_eq!(scene.read(&format!("applications/{uuid}")).await["status"], "exited:unhealthy");
}

#[tokio::test]
async fn the_list_of_deployments_may_be_an_object() {
    let scene = Scene::new(|settings| settings.deployments_as_object = true).await;
    scene.coolify.hold_deployments(true);
    for name in ["a", "b"] {
        let uuid = scene.create(name).await;
        scene.start(&uuid).await;
    }
    let listed = scene.read("deployments").await;
    assert_eq!((&listed["1"]["application_name"], &listed["0"]["application_name"]), (&json!("a"), &json!("b")));
    scene.coolify.set_settings(|settings| settings.deployments_as_object = false);
    assert_eq!(scene.read("deployments").await[0]["status"], "in_progress");
}

#[tokio::test]
async fn a_status_may_be_behind_the_container_or_never_have_been_true() {
    let scene = Scene::new(|settings| settings.shown_after = Duration::from_millis(200)).await;
    let uuid = scene.create("bot").await;
    scene.start(&uuid).await;
    until("it runs", async || scene.coolify.runs(&uuid)).await;
    assert_eq!(scene.seen(&uuid).status, "exited");
    scene.until_status(&uuid, "running:healthy").await;

    scene.coolify.set_settings(|settings| settings.server_is_down = true);
    scene.post(&format!("applications/{uuid}/stop?docker_cleanup=false")).await;
    assert_eq!(scene.get(&format!("applications/{uuid}/logs")).await.status(), 500);
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(scene.seen(&uuid).status, "running:healthy");

    let only_shows =
        |settings: &mut CoolifySettings| (settings.server_is_down, settings.stop_only_shows) = (false, true);
    scene.coolify.set_settings(only_shows);
    scene.post(&format!("applications/{uuid}/stop?docker_cleanup=false")).await;
    scene.until_status(&uuid, "exited").await;
    assert_eq!(scene.get(&format!("applications/{uuid}/logs")).await.status(), 200);
    scene.no_violations();
}

#[tokio::test]
async fn a_deletion_may_forget_what_runs_on() {
    let scene = Scene::new(|settings| settings.delete_leaves = true).await;
    let uuid = scene.running("bot").await;
    let path = format!("applications/{uuid}?docker_cleanup=false&delete_volumes=false");
    scene.request(Method::DELETE, &path).send().await.unwrap();
    until("it is gone", async || scene.coolify.application(&uuid).is_none()).await;
    assert_eq!((scene.coolify.orphans(), scene.coolify.deleted_volumes()), (1, 0));
}
