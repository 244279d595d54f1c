//! A bot's whole life on a runner, and the runner's from one bot to the next.

use reqwest::StatusCode;
use serde_json::json;

use super::{Scene, token_of};
use crate::support::{Cloud, Machine, found, meet_link, until};

#[tokio::test]
async fn a_bot_lives_on_a_runner_of_moto_and_leaves_it_to_the_next() {
    let scene = Scene::open("max_slots = 2").await;
    let instance = scene.cloud.grow("large-on-demand", 1).await.remove(0);
    let machine = Machine::up(&scene.admin, &scene.token, &instance).await;
    let mut connections = Vec::new();
    for number in 0..2 {
        let bot = scene.user.bot(&meet_link(number)).await;
        let life = machine.take().await;
        connections.push(life.connection_id.clone());
        let active = scene.user.until(&bot, "active").await;
        scene.until_on(active["slot"].as_str().unwrap(), &instance).await;
        life.well("exited", json!({"exit_code": 0})).await;
        // The slot waits for the runner, whose agent is the one to know when nothing is left.
        machine.until_told("stop").await;
        assert_eq!(machine.release().await, StatusCode::OK);
        scene.user.until(&bot, "completed").await;
        scene.until_idle().await;
    }
    assert_ne!(connections[0], connections[1]);
    let (status, did) = scene.admin.post("/admin/runners/run", json!({})).await;
    assert_eq!((status, &did["reaped"]), (StatusCode::OK, &json!(0)), "{did}");
    // An idle slot has nothing at the provider, and that is how it should be.
    let (status, did) = scene.admin.post("/admin/sync/run", json!({})).await;
    assert_eq!((status, &did["made_anew"]), (StatusCode::OK, &json!(0)), "{did}");
}

#[tokio::test]
async fn a_bot_for_which_no_runner_of_moto_is_warm_gets_a_fresh_one() {
    let scene = Scene::open("max_slots = 3").await;
    let bot = scene.user.bot(&meet_link(0)).await;
    let words = found("it is told what is waited for", async || {
        let deployments = scene.admin.get("/admin/deployments").await;
        deployments["entries"][0]["last_error"].as_str().map(str::to_owned)
    });
    let group = scene.cloud.group("large-on-demand");
    // It asks once, and then waits for what it has asked for.
    let told =
        ["a fresh one was asked of", "one is on its way in"].map(|what| format!("no warm runner fits; {what} {group}"));
    let words = words.await;
    assert!(told.contains(&words), "{words}");
    until("it is told that one is on its way", async || {
        scene.admin.get("/admin/deployments").await["entries"][0]["last_error"] == told[1]
    })
    .await;
    let machines = scene.cloud.grown("large-on-demand").await;
    assert_eq!(machines.len(), 1, "as many as wait, however often they ask");
    let machine = Machine::up(&scene.admin, &scene.token, &machines[0]).await;
    let life = machine.take().await;
    scene.user.until(&bot, "active").await;
    life.well("exited", json!({"exit_code": 0})).await;
    machine.release().await;
    scene.until_idle().await;
}

#[tokio::test]
async fn a_run_on_moto_is_ended_when_its_bot_is_taken_elsewhere() {
    let scene = Scene::open("max_slots = 1").await;
    let instance = scene.cloud.grow("large-on-demand", 1).await.remove(0);
    let machine = Machine::up(&scene.admin, &scene.token, &instance).await;
    let bot = scene.user.bot(&meet_link(0)).await;
    let life = machine.take().await;
    scene.user.until(&bot, "active").await;
    // Assigned elsewhere by hand: whoever runs it here is fenced off, and its slot is cleared.
    scene.admin.post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;
    machine.until_told("stop").await;
    let (status, answer) = life.say("exited", json!({"exit_code": 0})).await;
    assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("stale_connection")));
    assert_eq!(machine.release().await, StatusCode::OK);
    scene.until_idle().await;
}

#[tokio::test]
async fn pools_of_moto_at_one_place_share_their_runners() {
    let cloud = Cloud::new().await;
    let config = cloud.pool("meet", "max_slots = 1") + &cloud.pool("more", "max_slots = 1");
    let scene = Scene::configured(cloud, config).await;
    let instances = scene.cloud.grow("large-on-demand", 2).await;
    let other_token = token_of(&scene.database, "more").await;
    let bots = [scene.user.bot(&meet_link(0)).await, scene.user.bot(&meet_link(1)).await];
    let first = Machine::up(&scene.admin, &scene.token, &instances[0]).await;
    let second = Machine::up(&scene.admin, &other_token, &instances[1]).await;
    tokio::join!(first.take(), second.take());
    let mut slots = Vec::new();
    for bot in &bots {
        slots.push(scene.user.until(bot, "active").await["slot"].as_str().unwrap().to_owned());
    }
    assert_eq!(slots, ["pool-meet-001", "pool-more-001"]);
}

#[tokio::test]
async fn a_runner_on_moto_registers_once_and_again_only_as_itself() {
    let scene = Scene::open("max_slots = 1").await;
    let instance = scene.cloud.grow("large-on-demand", 1).await.remove(0);
    let machine = Machine::up(&scene.admin, &scene.token, &instance).await;
    let (status, answer) = Machine::register(&scene.admin, &scene.token, &instance).await;
    assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("already_registered")));
    let bot = scene.user.bot(&meet_link(0)).await;
    let data = machine.bot().await;
    assert_eq!(machine.acknowledge(&data).await, StatusCode::OK);
    assert_eq!(machine.acknowledge(&data).await, StatusCode::OK, "a repeat");
    // The agent is started again, and has no bot: its run is over.
    let (status, answer) = machine.client.post("/agent/runner", json!({"instance_id": instance})).await;
    assert_eq!((status, &answer["resource_class"]), (StatusCode::OK, &json!("large")), "{answer}");
    assert_eq!(machine.acknowledge(&data).await, StatusCode::CONFLICT);
    let stale = machine.client.post("/agent/runner/release", json!({"run_id": data["run_id"]})).await;
    assert_eq!((stale.0, &stale.1["code"]), (StatusCode::CONFLICT, &json!("stale_run")));
    scene.user.stop(&bot).await;
    // The machine ends itself.
    let (status, _) = machine.client.post("/agent/runner/end", json!({"reason": "its time is over"})).await;
    assert_eq!(status, StatusCode::OK);
    machine.until_ended().await;
    until("the machine is gone", async || scene.cloud.machines("large-on-demand").await.is_empty()).await;
    let (status, answer) = Machine::register(&scene.admin, &scene.token, &instance).await;
    assert!(matches!(status, StatusCode::GONE | StatusCode::NOT_FOUND), "{answer}");
}
