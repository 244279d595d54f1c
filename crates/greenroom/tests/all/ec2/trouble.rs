//! Runners that do not take their bots, tokens that do not match, and servers that die meanwhile.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::json;

use super::{Ec2Fixture, token_of};
use crate::support::{Cloud, Life, Machine, Process, meet_link, until};

#[tokio::test]
async fn a_runner_on_moto_that_does_not_take_its_bot_is_ended_and_the_next_one_gets_it() {
    let fixture = Ec2Fixture::open("max_slots = 1\n\nregistration_timeout = \"1s\"").await;
    let instances = fixture.cloud.grow("large-on-demand", 2).await;
    let deaf = Machine::up(&fixture.admin, &fixture.token, &instances[0]).await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    deaf.until_ended().await;
    until("its machine is gone", async || !fixture.cloud.machines("large-on-demand").await.contains(&instances[0]))
        .await;
    let (status, _) = deaf.client.post("/agent/runner/acknowledge", json!({"run_id": "any"})).await;
    assert_eq!(status, StatusCode::GONE);
    let next = Machine::up(&fixture.admin, &fixture.token, &instances[1]).await;
    next.take().await;
    fixture.user.until(&bot, "active").await;
}

#[tokio::test]
async fn a_runner_on_moto_that_is_silent_is_given_no_bot_and_may_come_back() {
    // The registration timeout is longer than this test. If a silent runner were claimed, it would keep the bot.
    let settings = "heartbeat_interval = \"200ms\"\nhealthy_within = \"1s\"\nregistration_timeout = \"2m\"";
    let fixture = Ec2Fixture::open(&format!("max_slots = 1\n\n{settings}")).await;
    let instances = fixture.cloud.grow("large-on-demand", 2).await;
    let silent = Machine::up(&fixture.admin, &fixture.token, &instances[0]).await;
    silent.fall_silent(Duration::from_millis(1500)).await;
    let other = Machine::up(&fixture.admin, &fixture.token, &instances[1]).await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    let life = other.take().await;
    fixture.user.until(&bot, "active").await;
    life.report("exited", json!({"exit_code": 0})).await;
    assert_eq!(other.release().await, StatusCode::OK);
    fixture.until_idle().await;
    // The agent restarts without its old token. Once the runner is silent, the pool's token can register it again.
    let back = Machine::up(&fixture.admin, &fixture.token, &instances[0]).await;
    other.fall_silent(Duration::from_millis(1500)).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    back.take().await;
    fixture.user.until(&bot, "active").await;
}

#[tokio::test]
async fn a_machine_on_moto_is_a_runner_of_its_own_pool_only() {
    let (cloud, other) = (Cloud::new().await, Cloud::new().await);
    let config = cloud.pool("meet", "max_slots = 1") + &other.pool("other", "max_slots = 1");
    let fixture = Ec2Fixture::configured(cloud, config).await;
    let instance = fixture.cloud.grow("large-on-demand", 1).await.remove(0);
    let other_token = token_of(&fixture.database, "other").await;
    let (status, answer) = Machine::register(&fixture.admin, &other_token, &instance).await;
    assert_eq!((status, &answer["code"]), (StatusCode::NOT_FOUND, &json!("not_found")));
    for token in ["grp_", "", &fixture.token[..fixture.token.len() - 2], &fixture.token.replace("grp_", "grr_")] {
        let (status, _) = Machine::register(&fixture.admin, token, &instance).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{token}");
    }
    let (status, _) = Machine::register(&fixture.admin, &fixture.token, "i-0 1").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    // The pool's token is valid only for registration.
    let machine = Machine::up(&fixture.admin, &fixture.token, &instance).await;
    let of_pool = fixture.admin.with(&fixture.token);
    assert_eq!(of_pool.post("/agent/runner/heartbeat", json!({"run_id": null})).await.0, StatusCode::UNAUTHORIZED);
    let (status, _) = machine.client.post("/agent/runner", json!({"instance_id": "i-other"})).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_bot_runs_once_on_moto_when_the_server_is_killed_before_its_runner_has_taken_it() {
    let fixture = Ec2Fixture::open("max_slots = 2").await;
    let instances = fixture.cloud.grow("large-on-demand", 2).await;
    let machine = Machine::up(&fixture.admin, &fixture.token, &instances[0]).await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    let data = machine.bot().await;
    let address = fixture.server.url.strip_prefix("http://").unwrap().to_owned();
    fixture.server.kill().await;
    let file = fixture.database.folder.path().join("greenroom.toml");
    let mut command = Process::command();
    command.args(["serve", "--listen", &address, "--database", &fixture.database.url, "--config"]).arg(file);
    let _server = Process::spawn(command).await;
    // Another machine that could run the bot.
    let _idle = Machine::up(&fixture.admin, &fixture.token, &instances[1]).await;
    let repeated = machine.bot().await;
    assert_eq!((&repeated["run_id"], &repeated["connection_id"]), (&data["run_id"], &data["connection_id"]));
    assert_eq!(machine.acknowledge(&repeated).await, StatusCode::OK);
    let life = Life::from_data(&machine.client, &repeated);
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    // The server that was starting the bot is gone. Another finds the deployment when its lease has ended.
    until("nothing is being started", async || {
        let deployments = fixture.admin.get("/admin/deployments").await;
        deployments["entries"].as_array().unwrap().is_empty()
    })
    .await;
    let active = fixture.user.show_bot(&bot).await;
    assert_eq!((&active["status"], &active["slot"]), (&json!("active"), &json!("pool-meet-001")));
    super::until_on(&fixture.admin, "pool-meet-001", &instances[0]).await;
    life.report("heartbeat", json!({})).await;
}
