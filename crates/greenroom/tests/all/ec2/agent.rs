//! The real agent on a machine, from its registration to the end of the machine.

use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use tokio::process::{Child, Command};

use super::{Ec2Fixture, until_idle};
use crate::support::{Process, meet_link, until};

/// Joins, reports as a transcript how many files it found in its folder, leaves files there, and stays until it gets the
/// command to leave.
const BOT: &str = r#"
    found=$(ls | wc -l)
    touch trace "$HOME/trace-at-home" "$TMPDIR/trace-in-tmp"
    [ -z "$GREENROOM_RUNNER_TOKEN" ] || found="a token"
    echo '{"event": "joined"}'
    echo "{\"event\": \"transcript\", \"segments\": [{\"start_time\": 0, \"end_time\": 1, \"text\": \"found $found\"}]}"
    read leave
"#;

/// Starts the agent of a runner as a launch template would.
pub fn agent(fixture: &Ec2Fixture, instance: &str, folder: &Path, script: &str) -> Child {
    let ended = format!("touch {}", folder.join("ended").display());
    let mut command: Command = Process::command();
    command
        .args(["agent", "runner", "--end-command", &ended, "--leave-grace", "2s", "--", "sh", "-c", script])
        .env("GREENROOM_URL", &fixture.server.url)
        .env("GREENROOM_RUNNER_TOKEN", &fixture.token)
        .env("GREENROOM_INSTANCE_ID", instance)
        .env("GREENROOM_RUNNER_DIR", folder.join("bots"))
        .stdout(Stdio::null())
        .current_dir(folder);
    command.spawn().unwrap()
}

#[tokio::test]
async fn the_agent_of_a_runner_on_moto_takes_bots_one_by_one_and_ends_the_machine_when_it_expires() {
    let fixture = Ec2Fixture::open(
        "max_slots = 1\n\nheartbeat_interval = \"200ms\"\nhealthy_within = \"5s\"\nidle_timeout = \"15s\"",
    )
    .await;
    let instance = fixture.cloud.grow("large-on-demand", 1).await.remove(0);
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bots")).unwrap();
    let mut agent = agent(&fixture, &instance, folder.path(), BOT);
    for number in 0..2 {
        let bot = fixture.user.bot(&meet_link(number)).await;
        let active = fixture.user.until(&bot, "active").await;
        assert_eq!(active["container_id"], json!(instance));
        until("the bot has reported what it found", async || {
            let said = fixture.user.get(&format!("/bots/{bot}/transcript")).await;
            said["segments"][0]["text"] == "found 0"
        })
        .await;
        fixture.user.stop(&bot).await;
        let ended = fixture.user.until(&bot, "completed").await;
        assert_eq!(ended["reason"], "stopped");
        until_idle(&fixture.admin).await;
        let left = || std::fs::read_dir(folder.path().join("bots")).unwrap().flatten();
        until("nothing of the bot is left", async || {
            left().all(|entry| !entry.file_name().to_string_lossy().starts_with("greenroom-bot-"))
        })
        .await;
    }
    // The agent ends by itself.
    assert!(agent.wait().await.unwrap().success());
    assert!(folder.path().join("ended").exists(), "the machine was ended");
    until("the group no longer has it", async || fixture.cloud.machines("large-on-demand").await.is_empty()).await;
}
