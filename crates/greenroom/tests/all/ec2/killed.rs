//! A server is killed at each step of the pickup of a runner. The runner can be claimed again within a minute, and its
//! bot runs on it once.

use aws::RunnerState;
use rstest::rstest;
use serde_json::json;

use super::{Ec2Fixture, until_idle, until_on};
use crate::support::{Life, Machine, Process, meet_link, until};

/// As short as allowed, so that a test does not wait for a minute.
const SETTINGS: &str = "max_slots = 1\n\nannouncement = \"20s\"\nclaim_timeout = \"20s\"";

#[rstest]
#[case::after_receive("Received")]
#[case::after_delete("Deleted")]
#[case::after_hand_over("HandedOver")]
#[case::after_claim("Claimed")]
#[case::before_registration("Healthy")]
#[tokio::test]
async fn a_bot_runs_on_moto_after_the_server_was_killed_while_it_picked_up_its_runner(#[case] step: &str) {
    let fixture = Ec2Fixture::open(SETTINGS).await;
    let instance = fixture.cloud.grow("large-on-demand", 1).await.remove(0);
    let machine = Machine::up(&fixture.admin, &fixture.token, &instance).await;
    let address = fixture.server.url.strip_prefix("http://").unwrap().to_owned();
    fixture.server.kill().await;
    let file = fixture.database.folder.path().join("greenroom.toml");
    let start = async |step: Option<&str>| {
        let mut command = Process::command();
        command.args(["serve", "--listen", &address, "--database", &fixture.database.url, "--config"]).arg(&file);
        if let Some(step) = step {
            command.env("TEST_STAND_STILL_AT", step);
        }
        Process::spawn(command).await
    };
    // This server stops at the step, and is killed there.
    let dying = start(Some(step)).await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    until("the runner is being picked up", async || {
        let deployments = fixture.admin.get("/admin/deployments").await;
        let runners = fixture.cloud.runners(Vec::new()).await;
        let is_there = match step {
            "Received" | "Deleted" | "HandedOver" => fixture.cloud.queued("large").await == 0,
            _ => runners[0].state == RunnerState::Claimed,
        };
        deployments["active"] == 1 && is_there
    })
    .await;
    dying.kill().await;
    let _server = start(None).await;
    let data = machine.bot().await;
    assert_eq!(data["bot_id"], json!(bot));
    assert_eq!(machine.acknowledge(&data).await, 200);
    let life = Life::from_data(&machine.client, &data);
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    fixture.user.until(&bot, "active").await;
    until_on(&fixture.admin, "pool-meet-001", &instance).await;
    life.report("exited", json!({"exit_code": 0})).await;
    machine.until_told("stop").await;
    machine.release().await;
    until_idle(&fixture.admin).await;
    // The next bot gets the runner, and only once.
    let next = fixture.user.bot(&meet_link(1)).await;
    let life = machine.take().await;
    fixture.user.until(&next, "active").await;
    life.report("exited", json!({"exit_code": 0})).await;
}
