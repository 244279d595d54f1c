//! Prewarmed runners with the real agent: a runner gets bots only while its command is ready.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Ec2Fixture;
use super::agent::agent;
use crate::support::{Machine, PREWARMED_POOL, PrewarmedBot, meet_link, until};

/// Heartbeats that a busy machine does not miss, and a class that keeps no idle machine.
const EC2: &str =
    "heartbeat_interval = \"200ms\"\nhealthy_within = \"30s\"\nclasses = { large = { min_idle = 0, max = 3 } }";

async fn fixture() -> Ec2Fixture {
    Ec2Fixture::open(&format!("{PREWARMED_POOL}\n\n{EC2}")).await
}

fn prewarmed_bot(folder: &tempfile::TempDir) -> PrewarmedBot {
    std::fs::create_dir(folder.path().join("bots")).unwrap();
    // The folder of all bots is that of the agent, too.
    PrewarmedBot::new(folder.path().to_str().unwrap(), "/proc/self/environ ../greenroom-runner.*", "trace")
}

impl Ec2Fixture {
    /// Waits until the table has the only runner in this state.
    async fn until_runner(&self, state: aws::RunnerState) {
        until(&format!("the runner is {state}"), async || {
            self.cloud.runners(Vec::new()).await.iter().any(|runner| runner.state == state)
        })
        .await;
    }

    /// Waits until the start of a bot has found no idle runner.
    async fn until_no_runner_is_found(&self) {
        until("no idle runner fits", async || {
            let deployments = self.admin.get("/admin/deployments").await;
            deployments["entries"][0]["last_error"].as_str().is_some_and(|error| error.starts_with("no idle runner"))
        })
        .await;
    }
}

#[tokio::test]
async fn a_prewarmed_runner_on_moto_gets_bots_only_while_its_command_is_ready() {
    let fixture = fixture().await;
    let instance = fixture.cloud.grow("large-on-demand", 1).await.remove(0);
    let folder = tempfile::tempdir().unwrap();
    let prewarmed = prewarmed_bot(&folder);
    let _agent = agent(&fixture, &instance, folder.path(), &prewarmed.script);

    // The machine registers when its first command is ready.
    let first = prewarmed.command(&[]).await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    fixture.until_no_runner_is_found().await;
    prewarmed.let_ready(first);
    let first_life = prewarmed.lives(&fixture.user, &bot).await;

    // The next bot gets another process.
    let second = prewarmed.command(&[first]).await;
    prewarmed.let_ready(second);
    fixture.until_runner(aws::RunnerState::Idle).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let second_life = prewarmed.lives(&fixture.user, &bot).await;
    assert_ne!(first_life, second_life);

    // A command that dies gets no bot.
    let third = prewarmed.command(&[first, second]).await;
    prewarmed.let_ready(third);
    fixture.until_runner(aws::RunnerState::Idle).await;
    kill(Pid::from_raw(third), Signal::SIGKILL).unwrap();
    fixture.until_runner(aws::RunnerState::Created).await;
    let fourth = prewarmed.command(&[first, second, third]).await;
    let bot = fixture.user.bot(&meet_link(2)).await;
    fixture.until_no_runner_is_found().await;
    assert_eq!(fixture.cloud.machines("large-on-demand").await, [instance], "the machine counts as one that starts");
    prewarmed.let_ready(fourth);
    assert_ne!(prewarmed.lives(&fixture.user, &bot).await, second_life);
}

#[tokio::test]
async fn a_bot_on_moto_goes_to_another_runner_than_the_one_whose_command_died() {
    let fixture = fixture().await;
    let instances = fixture.cloud.grow("large-on-demand", 2).await;
    let folder = tempfile::tempdir().unwrap();
    let prewarmed = prewarmed_bot(&folder);
    let _agent = agent(&fixture, &instances[0], folder.path(), &prewarmed.script);
    let first = prewarmed.command(&[]).await;
    prewarmed.let_ready(first);
    fixture.until_runner(aws::RunnerState::Idle).await;
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    fixture.until_runner(aws::RunnerState::Created).await;
    let other = Machine::up(&fixture.admin, &fixture.token, &instances[1]).await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    other.take().await;
    let active = fixture.user.until(&bot, "active").await;
    assert_eq!(active["container_id"], instances[1].as_str());
    // The runner comes back with its next command.
    let second = prewarmed.command(&[first]).await;
    prewarmed.let_ready(second);
    fixture.until_runner(aws::RunnerState::Idle).await;
}
