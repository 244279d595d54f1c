//! The agent of a runner is killed and restarted, and the logs of its bots.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::Ec2Fixture;
use super::agent::agent;
use crate::support::{meet_link, until};

const SETTINGS: &str = "max_slots = 1\n\nheartbeat_interval = \"200ms\"\nhealthy_within = \"5s\"";

/// Leaves a process that has neither its environment nor its group, and that ignores signals.
const STUBBORN: &str = r#"
    trap '' TERM
    setsid env -i /bin/sleep 4242 &
    echo "stubborn bot is here"
    echo '{"event": "joined"}'
    while true; do sleep 4242; done
"#;

/// The processes whose folder is below this one.
fn inside(folder: &Path) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_inside = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path().join("cwd")).is_ok_and(|path| path.starts_with(folder.join("bots")))
    };
    processes.filter(is_inside).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[tokio::test]
async fn a_killed_agent_on_moto_that_is_started_again_ends_its_old_bot_before_its_machine_is_idle() {
    let fixture = Ec2Fixture::open(SETTINGS).await;
    let instance = fixture.cloud.grow("large-on-demand", 1).await.remove(0);
    let folder = tempfile::tempdir().unwrap();
    let killed = agent(&fixture, &instance, folder.path(), STUBBORN);
    let lost = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&lost, "active").await;
    until("both of its processes run", async || inside(folder.path()).len() >= 2).await;
    // The agent sends the output while the bot runs, because nothing else could be asked for it.
    until("it has a log", async || {
        let log = fixture.user.get(&format!("/bots/{lost}/logs")).await;
        log["lines"].as_array().unwrap().iter().any(|line| line["text"] == "stubborn bot is here")
    })
    .await;
    kill(Pid::from_raw(killed.id().unwrap().try_into().unwrap()), Signal::SIGKILL).unwrap();
    let old = inside(folder.path());
    assert!(old.len() >= 2, "{old:?}: they survive their agent");
    let _again = agent(&fixture, &instance, folder.path(), "echo '{\"event\": \"joined\"}'; read leave");
    let lost = fixture.user.until(&lost, "failed").await;
    assert_eq!(lost["reason"], "crashed");
    assert!(lost["error"].as_str().unwrap().contains("was killed and started again"), "{lost}");
    // The agent ended them before it registered, and it registered before its report.
    assert!(inside(folder.path()).iter().all(|process| !old.contains(process)));
    let next = fixture.user.bot(&meet_link(2)).await;
    let next = fixture.user.until(&next, "active").await;
    assert_eq!(next["container_id"], json!(instance));
    assert!(inside(folder.path()).iter().all(|process| !old.contains(process)));
    let log = fixture.user.get(&format!("/bots/{}/logs", lost["id"].as_str().unwrap())).await;
    assert!(log["lines"].to_string().contains("stubborn bot is here"), "{log}");
}
