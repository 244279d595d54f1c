//! Prewarm on a runner: it gets bots only while its command is ready, and follows the settings of its pool.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::agent::{Agent, lives};
use crate::runner::{folders, for_runner, start};
use crate::server::{Call, Data, Server};

/// A runner in a pool with prewarm. Its commands become ready while there is no file `hold`.
struct Runner {
    server: Server,
    folder: tempfile::TempDir,
}

impl Runner {
    async fn new() -> Self {
        let server = Server::start().await;
        server.machine(|machine| machine.prewarm_ms = Some((20_000, 0)));
        Self { server, folder: tempfile::tempdir().unwrap() }
    }

    fn hold(&self) -> PathBuf {
        self.folder.path().join("hold")
    }

    /// The folder of the agent.
    fn bots(&self) -> PathBuf {
        self.folder.path().join("bots")
    }

    fn start(&self, options: &[&str]) -> Agent {
        let script = format!(
            r#"
            echo "pid $$"
            while [ -e {} ]; do sleep 0.02; done
            echo "prewarm [$GREENROOM_PREWARM]"
            if [ -z "$BOT_DATA" ]; then echo '{{"event":"ready"}}'; read -r line; fi
            echo '{{"event":"joined"}}'
            read -r line
            "#,
            self.hold().display()
        );
        start(for_runner(&self.server, &self.bots()), options, &script)
    }

    /// Claims the runner, and waits until the bot has joined.
    async fn joins(&self) -> Data {
        let data = self.server.bot();
        self.server.claim(&data);
        self.joined(&data).await;
        data
    }

    async fn joined(&self, data: &Data) {
        let is_it = |call: &Call| call.name == "joined" && call.token == data.token();
        self.server.until("joined", |state| state.calls.iter().any(is_it)).await;
    }

    /// The reports that no command is ready: whether each asks for a renewal, and why.
    fn reports(&self) -> Vec<(bool, String)> {
        let calls = self.server.calls().into_iter().filter(|call| call.name == "runner_not_ready");
        calls.map(|call| (call.body["renewal"] == true, call.body["message"].as_str().unwrap().to_owned())).collect()
    }
}

fn pids(agent: &Agent) -> Vec<String> {
    agent.printed().lines().filter_map(|line| line.strip_prefix("pid ")).map(str::to_owned).collect()
}

async fn kill(pid: &str) {
    assert!(tokio::process::Command::new("kill").args(["-9", pid]).status().await.unwrap().success());
}

#[tokio::test]
async fn a_runner_whose_command_died_gets_no_bot_until_the_next_command_is_ready() {
    let runner = Runner::new().await;
    let agent = runner.start(&[]);
    agent.until_logged("waits for a bot").await;
    std::fs::write(runner.hold(), "").unwrap();
    kill(&pids(&agent)[0]).await;
    runner.server.until("it is not registered", |state| !state.machine.is_registered).await;
    agent.until_logged_times("command started ahead", 2).await;
    assert_eq!(runner.server.times("register"), 1);
    std::fs::remove_file(runner.hold()).unwrap();
    runner.server.until("it is registered again", |state| state.machine.is_registered).await;
    assert_eq!(
        runner.reports(),
        [(false, "the command was ended by SIGKILL while it waited for a meeting".to_owned())]
    );
    runner.joins().await;
    assert_eq!(pids(&agent).len(), 2);
    agent.signal("-TERM").await;
    agent.end().await;
    assert_eq!(folders(&runner.bots()), [""; 0]);
    runner.server.no_mistakes();
}

#[tokio::test]
async fn a_bot_that_a_runner_gets_in_the_moment_in_which_its_command_dies_waits_and_shows_its_token_to_no_other_command()
 {
    let runner = Runner::new().await;
    // Each answer is lost with its connection, as if the bot was given in that moment.
    runner.server.tell_always("assignment", Some((0, Value::Null)));
    let agent = runner.start(&[]);
    agent.until_logged("waits for a bot").await;
    std::fs::write(runner.hold(), "").unwrap();
    let data = runner.server.bot();
    runner.server.claim(&data);
    kill(&pids(&agent)[0]).await;
    runner.server.until_called("runner_not_ready").await;
    runner.server.tell_always("assignment", None);
    runner.server.until_called("acknowledge").await;
    agent.until_logged_times("command started ahead", 2).await;
    let record = runner.bots().join("greenroom-runner.bot");
    assert!(!record.exists(), "a command without a bot could read the token");
    std::fs::remove_file(runner.hold()).unwrap();
    runner.joined(&data).await;
    assert!(std::fs::read_to_string(&record).unwrap().contains(data.token()));
    assert_eq!((pids(&agent).len(), runner.server.times("register")), (2, 1));
    agent.signal("-TERM").await;
    agent.end().await;
    assert!(!record.exists());
    runner.server.no_mistakes();
}

#[tokio::test]
async fn a_runner_is_released_without_a_command_that_takes_long_and_registers_again_with_it() {
    let runner = Runner::new().await;
    let agent = runner.start(&[]);
    let data = runner.joins().await;
    std::fs::write(runner.hold(), "").unwrap();
    runner.server.command(&data, "leave", json!({}));
    runner.server.until_called("release").await;
    let release = runner.server.calls().into_iter().find(|call| call.name == "release").unwrap();
    assert_eq!((&release.body["ready"], release.status), (&json!(false), 200));
    assert_eq!(runner.server.times("register"), 1);
    std::fs::remove_file(runner.hold()).unwrap();
    runner.server.until_called_times("register", 2).await;
    runner.joins().await;
    assert_eq!(pids(&agent).len(), 2);
    agent.signal("-TERM").await;
    agent.end().await;
    runner.server.no_mistakes();
}

#[tokio::test]
async fn a_command_of_a_runner_that_gets_old_is_replaced_when_no_other_runner_replaces_its_own() {
    let runner = Runner::new().await;
    runner.server.machine(|machine| machine.others_renew = true);
    let agent = runner.start(&["--prewarm", "--max-warm-age", "400ms"]);
    runner.server.until_called("runner_not_ready").await;
    assert_eq!(runner.reports()[0], (true, "its command is too old".to_owned()));
    let first = pids(&agent);
    assert_eq!((first.len(), runner.server.times("register")), (1, 1), "it still takes bots");
    runner.server.machine(|machine| machine.others_renew = false);
    agent.until_logged_times("command ready", 2).await;
    assert!(!lives(&first[0]));
    runner.server.until_called_times("register", 2).await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
    assert_eq!(folders(&runner.bots()), [""; 0]);
    runner.server.no_mistakes();
}

#[tokio::test]
async fn a_runner_follows_changed_settings_of_its_pool_after_its_bot() {
    let runner = Runner::new().await;
    runner.server.machine(|machine| machine.prewarm_ms = None);
    let agent = runner.start(&[]);
    let mut expected = String::new();
    for (next, said) in [(Some((20_000, 0)), "prewarm []\n"), (None, "prewarm [1]\n"), (None, "prewarm []\n")] {
        let data = runner.joins().await;
        expected.push_str(said);
        runner.server.machine(|machine| machine.prewarm_ms = next);
        let released = runner.server.times("release") + 1;
        runner.server.command(&data, "leave", json!({}));
        runner.server.until_called_times("release", released).await;
    }
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    let said: String =
        ended.stdout.lines().filter(|line| line.starts_with("prewarm")).map(|line| format!("{line}\n")).collect();
    assert_eq!(said, expected);
    assert_eq!(runner.server.times("register"), 1);
    runner.server.no_mistakes();
}

#[tokio::test]
async fn a_runner_that_the_server_has_taken_out_of_its_pool_registers_again() {
    let runner = Runner::new().await;
    let agent = runner.start(&[]);
    agent.until_logged("waits for a bot").await;
    // As if an old report that no command is ready had arrived late.
    runner.server.machine(|machine| machine.is_registered = false);
    runner.server.until_called_times("register", 2).await;
    runner.joins().await;
    agent.signal("-TERM").await;
    agent.end().await;
    runner.server.no_mistakes();
}

#[tokio::test]
async fn a_registered_runner_whose_commands_never_get_ready_again_ends_its_machine() {
    let runner = Runner::new().await;
    let first = runner.folder.path().join("first");
    let script = format!(
        r#"[ -e {0} ] && exit 7; touch {0}; echo "pid $$"; echo '{{"event":"ready"}}'; read -r line"#,
        first.display()
    );
    let agent = start(for_runner(&runner.server, &runner.bots()), &[], &script);
    agent.until_logged("waits for a bot").await;
    kill(&pids(&agent)[0]).await;
    let ended = agent.end().await;
    assert!(ended.stdout.contains("the machine ends"), "{ended:?}");
    let end = runner.server.calls().into_iter().find(|call| call.name == "end").unwrap();
    let reason = "the command was not ready after 3 starts: the command ended with code 7 before it was ready";
    assert_eq!(end.body["reason"], reason);
    assert_eq!((runner.server.times("register"), folders(&runner.bots())), (1, vec![]));
    runner.server.no_mistakes();
}

#[tokio::test]
async fn a_server_that_does_not_know_the_report_gives_bots_that_wait_for_a_command() {
    let runner = Runner::new().await;
    let problem = json!({"code": "not_found", "detail": "there is nothing here"});
    runner.server.tell_always("runner_not_ready", Some((404, problem)));
    let agent = runner.start(&[]);
    agent.until_logged("waits for a bot").await;
    kill(&pids(&agent)[0]).await;
    runner.server.until_called("runner_not_ready").await;
    runner.joins().await;
    assert_eq!((pids(&agent).len(), runner.server.times("register")), (2, 1));
    agent.signal("-TERM").await;
    agent.end().await;
}
