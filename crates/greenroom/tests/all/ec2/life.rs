//! The whole life of a bot on a runner, and the life of a runner across several bots.

use reqwest::StatusCode;
use serde_json::json;

use super::{Ec2Fixture, token_of};
use crate::support::{Cloud, Machine, found, meet_link, until};

#[tokio::test]
async fn a_bot_runs_on_a_runner_of_moto_and_then_the_next_bot_does() {
    let fixture = Ec2Fixture::open("max_slots = 2").await;
    let instance = fixture.cloud.grow("large-on-demand", 1).await.remove(0);
    let machine = Machine::up(&fixture.admin, &fixture.token, &instance).await;
    let mut connections = Vec::new();
    for number in 0..2 {
        let bot = fixture.user.bot(&meet_link(number)).await;
        let life = machine.take().await;
        connections.push(life.connection_id.clone());
        let active = fixture.user.until(&bot, "active").await;
        fixture.until_on(active["slot"].as_str().unwrap(), &instance).await;
        life.report("exited", json!({"exit_code": 0})).await;
        // The slot waits for the runner: only its agent knows when nothing of the bot is left.
        machine.until_told("stop").await;
        assert_eq!(machine.release().await, StatusCode::OK);
        fixture.user.until(&bot, "completed").await;
        fixture.until_idle().await;
    }
    assert_ne!(connections[0], connections[1]);
    let (status, did) = fixture.admin.post("/admin/runners/run", json!({})).await;
    assert_eq!((status, &did["reaped"]), (StatusCode::OK, &json!(0)), "{did}");
    // An idle slot has nothing at the provider, and sync accepts that.
    let (status, did) = fixture.admin.post("/admin/sync/run", json!({})).await;
    assert_eq!((status, &did["made_anew"]), (StatusCode::OK, &json!(0)), "{did}");
}

#[tokio::test]
async fn a_bot_for_which_no_runner_of_moto_is_warm_gets_a_fresh_one() {
    let fixture = Ec2Fixture::open("max_slots = 3").await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    let message = found("the deployment says what it waits for", async || {
        let deployments = fixture.admin.get("/admin/deployments").await;
        deployments["entries"][0]["last_error"].as_str().map(str::to_owned)
    });
    let group = fixture.cloud.group("large-on-demand");
    // The server requests a machine once, and then waits for it.
    let errors =
        ["was requested from", "is starting in"].map(|what| format!("no idle runner fits; a fresh one {what} {group}"));
    let message = message.await;
    assert!(errors.contains(&message), "{message}");
    until("the deployment says that a machine is coming", async || {
        fixture.admin.get("/admin/deployments").await["entries"][0]["last_error"] == errors[1]
    })
    .await;
    let machines = fixture.cloud.grown("large-on-demand").await;
    assert_eq!(machines.len(), 1, "the group grows by the number of waiting bots, however often they ask");
    let machine = Machine::up(&fixture.admin, &fixture.token, &machines[0]).await;
    let life = machine.take().await;
    fixture.user.until(&bot, "active").await;
    life.report("exited", json!({"exit_code": 0})).await;
    machine.release().await;
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_run_on_moto_ends_when_its_bot_is_assigned_to_another_slot() {
    let fixture = Ec2Fixture::open("max_slots = 1").await;
    let instance = fixture.cloud.grow("large-on-demand", 1).await.remove(0);
    let machine = Machine::up(&fixture.admin, &fixture.token, &instance).await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    let life = machine.take().await;
    fixture.user.until(&bot, "active").await;
    // An operator assigns the bot to another slot. Its process here is fenced off, and the slot is cleared.
    fixture.admin.post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;
    machine.until_told("stop").await;
    let (status, answer) = life.say("exited", json!({"exit_code": 0})).await;
    assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("stale_connection")));
    assert_eq!(machine.release().await, StatusCode::OK);
    fixture.until_idle().await;
}

#[tokio::test]
async fn pools_on_the_same_moto_resources_share_their_runners() {
    let cloud = Cloud::new().await;
    let config = cloud.pool("meet", "max_slots = 1") + &cloud.pool("more", "max_slots = 1");
    let fixture = Ec2Fixture::configured(cloud, config).await;
    let instances = fixture.cloud.grow("large-on-demand", 2).await;
    let other_token = token_of(&fixture.database, "more").await;
    let bots = [fixture.user.bot(&meet_link(0)).await, fixture.user.bot(&meet_link(1)).await];
    let first = Machine::up(&fixture.admin, &fixture.token, &instances[0]).await;
    let second = Machine::up(&fixture.admin, &other_token, &instances[1]).await;
    tokio::join!(first.take(), second.take());
    let mut slots = Vec::new();
    for bot in &bots {
        slots.push(fixture.user.until(bot, "active").await["slot"].as_str().unwrap().to_owned());
    }
    assert_eq!(slots, ["pool-meet-001", "pool-more-001"]);
}

#[tokio::test]
async fn a_runner_on_moto_registers_once_and_again_only_as_itself() {
    let fixture = Ec2Fixture::open("max_slots = 1").await;
    let instance = fixture.cloud.grow("large-on-demand", 1).await.remove(0);
    let machine = Machine::up(&fixture.admin, &fixture.token, &instance).await;
    let (status, answer) = Machine::register(&fixture.admin, &fixture.token, &instance).await;
    assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("already_registered")));
    let bot = fixture.user.bot(&meet_link(0)).await;
    let data = machine.bot().await;
    assert_eq!(machine.acknowledge(&data).await, StatusCode::OK);
    assert_eq!(machine.acknowledge(&data).await, StatusCode::OK, "a repeat");
    // The agent restarts without a bot, so its run has ended.
    let (status, answer) = machine.client.post("/agent/runner", json!({"instance_id": instance})).await;
    assert_eq!((status, &answer["resource_class"]), (StatusCode::OK, &json!("large")), "{answer}");
    assert_eq!(machine.acknowledge(&data).await, StatusCode::CONFLICT);
    let stale = machine.client.post("/agent/runner/release", json!({"run_id": data["run_id"]})).await;
    assert_eq!((stale.0, &stale.1["code"]), (StatusCode::CONFLICT, &json!("stale_run")));
    fixture.user.stop(&bot).await;
    // The machine ends itself.
    let (status, _) = machine.client.post("/agent/runner/end", json!({"reason": "its time is over"})).await;
    assert_eq!(status, StatusCode::OK);
    machine.until_ended().await;
    until("the machine is gone", async || fixture.cloud.machines("large-on-demand").await.is_empty()).await;
    let (status, answer) = Machine::register(&fixture.admin, &fixture.token, &instance).await;
    assert!(matches!(status, StatusCode::GONE | StatusCode::NOT_FOUND), "{answer}");
}
