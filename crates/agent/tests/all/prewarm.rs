//! Prewarm: the command runs before there is a bot, and the agent waits for a bot only while the command is ready.

use serde_json::{Value, json};

use crate::agent::{Agent, Gate, for_bot, for_slot, lives};
use crate::runner::{folders, for_runner, start};
use crate::server::{Call, Data, Server};

/// Prints its process id and what it knows, is ready, and prints its first line.
const BOT: &str = r#"
    echo "pid $$"
    echo "prewarm [$GREENROOM_PREWARM] data [$BOT_DATA] secrets $(env | grep -c -e grs_ -e grb_ -e TOKEN)"
    echo '{"event":"ready"}'
    read -r line
    echo "got $line" | sed 's/grb_[a-z0-9-]*/THE-TOKEN/'
    echo '{"event":"joined"}'
    read -r line
"#;

fn pids(agent: &Agent) -> Vec<String> {
    agent.printed().lines().filter_map(|line| line.strip_prefix("pid ")).map(str::to_owned).collect()
}

async fn kill(pid: &str) {
    assert!(tokio::process::Command::new("kill").args(["-9", pid]).status().await.unwrap().success());
}

fn reports(server: &Server) -> Vec<(Value, bool)> {
    let calls = server.calls().into_iter().filter(|call: &Call| call.name == "not_ready");
    calls.map(|call| (call.body["message"].clone(), call.body["failed"].as_bool().unwrap())).collect()
}

fn polls(server: &Server) -> usize {
    server.calls().iter().filter(|call| call.name == "assignment").count()
}

#[tokio::test]
async fn a_command_is_started_ahead_and_gets_its_bot_as_its_first_line() {
    let server = Server::start().await;
    let agent = Agent::start(for_slot(&server), &["--prewarm"], BOT);
    agent.until_logged("waits for a bot").await;
    let first = pids(&agent);
    assert_eq!(first.len(), 1, "it runs before there is a bot");
    let data = server.bot();
    server.assign(&data);
    server.until_called("joined").await;
    assert_eq!(pids(&agent), first);
    server.command(&data, "leave", json!({}));
    server.until_called("exited").await;
    // The next one is another process.
    agent.until_logged_times("waits for a bot", 2).await;
    assert_eq!(pids(&agent).len(), 2);
    assert!(!lives(&first[0]));
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    assert_eq!(ended.code, Some(0));
    let known = ended.stdout.lines().find(|line| line.starts_with("prewarm")).unwrap();
    assert_eq!(known, "prewarm [1] data [] secrets 0");
    let got = ended.stdout.lines().find_map(|line| line.strip_prefix("got ")).unwrap();
    let mut payload = data.json.clone();
    payload["token"] = json!("THE-TOKEN");
    assert_eq!(serde_json::from_str::<Value>(got).unwrap(), json!({"action": "assignment", "payload": payload}));
    assert_eq!(server.exited(), json!([0, null]));
    server.no_mistakes();
}

#[tokio::test]
async fn the_environment_asks_for_prewarm_as_the_option_does() {
    let server = Server::start().await;
    let mut command = for_slot(&server);
    command.env("GREENROOM_PREWARM", "1");
    let agent = Agent::start(command, &[], BOT);
    agent.until_logged("waits for a bot").await;
    agent.until_printed("prewarm [1] data []").await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
}

#[tokio::test]
async fn an_agent_that_is_started_for_its_bot_prewarms_nothing() {
    let server = Server::start().await;
    let data = server.bot();
    let script = r#"echo "prewarm [$GREENROOM_PREWARM]"; case $BOT_DATA in *bot-1*) echo '{"event":"joined"}';; esac"#;
    let mut command = for_bot(&data);
    command.env("GREENROOM_PREWARM", "1");
    let ended = Agent::start(command, &["--prewarm"], script).end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "prewarm []\n"));
    assert_eq!(server.said_names(), ["started", "joined", "exited"]);
    server.no_mistakes();
}

#[tokio::test]
async fn the_agent_waits_for_no_bot_before_the_command_is_ready() {
    let server = Server::start().await;
    let gate = Gate::new().await;
    let script = format!(r#"echo up; {}; echo '{{"event":"ready"}}'; read -r line; exit 0"#, gate.pass());
    server.assign(&server.bot());
    let agent = Agent::start(for_slot(&server), &["--prewarm"], &script);
    agent.until_printed("up").await;
    assert_eq!(polls(&server), 0);
    gate.open().await;
    server.until_called("exited").await;
    assert_eq!(polls(&server), 1);
    agent.signal("-TERM").await;
    agent.end().await;
}

#[tokio::test]
async fn a_command_that_is_killed_while_it_waits_is_reported_and_replaced() {
    let server = Server::start().await;
    let agent = Agent::start(for_slot(&server), &["--prewarm"], BOT);
    agent.until_logged("waits for a bot").await;
    kill(&pids(&agent)[0]).await;
    server.until_called("not_ready").await;
    agent.until_logged_times("waits for a bot", 2).await;
    let message = "the command was ended by SIGKILL while it waited for a meeting";
    assert_eq!(reports(&server), [(json!(message), false)]);
    server.assign(&server.bot());
    server.until_called("joined").await;
    assert_eq!(pids(&agent).len(), 2);
    agent.signal("-TERM").await;
    agent.end().await;
    server.no_mistakes();
}

#[tokio::test]
async fn a_bot_that_comes_in_the_moment_in_which_the_command_dies_waits_for_the_next_one() {
    let server = Server::start().await;
    // Each answer is lost with its connection, as if the bot was given in that moment.
    server.tell_always("assignment", Some((0, Value::Null)));
    let agent = Agent::start(for_slot(&server), &["--prewarm"], BOT);
    agent.until_logged("waits for a bot").await;
    server.assign(&server.bot());
    kill(&pids(&agent)[0]).await;
    server.until_called("not_ready").await;
    server.tell_always("assignment", None);
    server.until_called("joined").await;
    assert_eq!(pids(&agent).len(), 2);
    agent.signal("-TERM").await;
    agent.end().await;
}

#[tokio::test]
async fn the_third_failure_in_a_row_is_reported_with_the_last_lines_and_ends_the_agent() {
    let server = Server::start().await;
    let script = "echo 'no browser here'; echo 'to its log' >&2; exit 7";
    let ended = Agent::start(for_slot(&server), &["--prewarm"], script).end().await;
    assert_eq!(ended.code, Some(0), "the server knows, so nothing has to start it again");
    assert_eq!(ended.stdout.matches("no browser here").count(), 3);
    let calls = server.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!((calls[0].name.as_str(), &calls[0].body["failed"]), ("not_ready", &json!(true)));
    let message = "the command was not ready after 3 starts: the command ended with code 7 before it was ready";
    assert_eq!(calls[0].body["message"], message);
    let lines = calls[0].body["last_lines"].as_str().unwrap();
    assert!(lines.contains("no browser here") && lines.contains("to its log"), "{lines}");
    server.no_mistakes();
}

#[tokio::test]
async fn a_bot_whose_slot_never_gets_ready_fails_with_the_reason() {
    let server = Server::start().await;
    server.assign(&server.bot());
    let ended = Agent::start(for_slot(&server), &["--prewarm"], "echo 'no browser here'; exit 7").end().await;
    assert_eq!(ended.code, Some(0));
    assert_eq!(reports(&server).iter().map(|(_, failed)| *failed).collect::<Vec<_>>(), [true, true]);
    let (name, body) = server.said().into_iter().next_back().unwrap();
    assert_eq!((name.as_str(), &body["exit_code"]), ("exited", &json!(1)));
    let error = body["error"].as_str().unwrap();
    assert!(error.contains("not ready after 3 starts") && error.contains("no browser here"), "{error}");
    server.no_mistakes();
}

#[tokio::test]
async fn a_command_that_is_not_ready_in_time_is_killed_with_all_its_processes() {
    let server = Server::start().await;
    let script = "setsid sleep 1000 & echo \"pid $!\"; sleep 1000 & echo \"pid $!\"; wait";
    let options = ["--prewarm", "--ready-timeout", "300ms"];
    let agent = Agent::start(for_slot(&server), &options, script);
    server.until_called("not_ready").await;
    let all = pids(&agent);
    let ended = agent.end().await;
    assert_eq!(ended.code, Some(0));
    assert_eq!(all.len(), 6);
    assert_eq!(all.iter().filter(|pid| lives(pid)).count(), 0);
    assert!(reports(&server)[0].0.as_str().unwrap().ends_with("the command was not ready within 300ms"));
}

#[tokio::test]
async fn a_command_that_is_too_old_is_replaced_before_it_gets_its_bot() {
    let server = Server::start().await;
    let script = r#"
        echo "pid $$"
        echo '{"event":"ready"}'
        (sleep 0.6; echo "old enough") &
        read -r line
        echo '{"event":"joined"}'
        read -r line
    "#;
    let agent = Agent::start(for_slot(&server), &["--prewarm", "--max-warm-age", "500ms"], script);
    agent.until_logged("waits for a bot").await;
    agent.until_printed("old enough").await;
    let first = pids(&agent);
    assert_eq!(first.len(), 1, "only a bot makes a command too old");
    server.assign(&server.bot());
    server.until_called("joined").await;
    assert_eq!((pids(&agent).len(), lives(&first[0])), (2, false));
    agent.signal("-TERM").await;
    agent.end().await;
    server.no_mistakes();
}

#[tokio::test]
async fn a_bot_that_comes_while_no_command_is_ready_is_reported_as_interrupted_when_the_agent_is_ended() {
    let server = Server::start().await;
    server.tell_always("assignment", Some((0, Value::Null)));
    let folder = tempfile::tempdir().unwrap();
    let hold = folder.path().join("hold");
    let script = format!("while [ -e {} ]; do sleep 0.05; done; {BOT}", hold.display());
    let agent = Agent::start(for_slot(&server), &["--prewarm"], &script);
    agent.until_logged("waits for a bot").await;
    std::fs::write(&hold, "").unwrap();
    let data = server.bot();
    server.assign(&data);
    kill(&pids(&agent)[0]).await;
    server.until_called("not_ready").await;
    server.tell_always("assignment", None);
    agent.until_logged("waits until a command is ready").await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
    assert_eq!(server.exited(), json!([143, "interrupted"]));
    server.no_mistakes();
}

#[tokio::test]
async fn an_event_before_the_meeting_is_ignored_with_a_warning_in_the_log() {
    let server = Server::start().await;
    let script = format!("echo '{{\"event\":\"joined\"}}'; {BOT}");
    let agent = Agent::start(for_slot(&server), &["--prewarm"], &script);
    agent.until_logged("event \"joined\" ignored: the command has no meeting yet").await;
    agent.until_logged("waits for a bot").await;
    assert_eq!(server.said_names(), [""; 0]);
    agent.signal("-TERM").await;
    agent.end().await;
}

#[tokio::test]
async fn data_of_any_size_reaches_a_command_as_one_line() {
    let server = Server::start().await;
    let mut data: Data = server.bot();
    data.json["config"] = json!({"text": "a line\nbreak, \"quotes\" and é".repeat(20_000)});
    let script = r#"
        echo '{"event":"ready"}'
        read -r line
        echo "length ${#line}"
        exit 0
    "#;
    let agent = Agent::start(for_slot(&server), &["--prewarm"], script);
    agent.until_logged("waits for a bot").await;
    server.assign(&data);
    server.until_called("exited").await;
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    let line = json!({"action": "assignment", "payload": data.json}).to_string();
    let length: usize = ended.stdout.lines().find_map(|line| line.strip_prefix("length ")).unwrap().parse().unwrap();
    assert!([line.len(), line.chars().count()].contains(&length), "{length} beside {}", line.len());
}

#[tokio::test]
async fn the_command_of_a_runner_is_ready_before_it_registers_and_before_it_is_released() {
    let server = Server::start().await;
    server.machine(|machine| machine.prewarm_ms = Some((10_000, 0)));
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo \"in $(pwd) home $HOME with [$(ls -A)]\"; touch trace; {BOT}");
    let agent = start(for_runner(&server, folder.path()), &[], &script);
    for bot in 1..=2 {
        agent.until_logged_times("command ready", bot).await;
        let data = server.bot();
        let run = server.claim(&data);
        server.until_beat_with(Some(&run)).await;
        server
            .until("joined", |state| state.calls.iter().any(|call| call.name == "joined" && call.token == data.token()))
            .await;
        server.command(&data, "leave", json!({}));
        server.until_called_times("release", bot).await;
        assert_eq!(pids(&agent).len(), bot + 1, "the next command runs before the runner is free");
    }
    assert_eq!(folders(folder.path()).len(), 1, "the folder of the command that waits");
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    assert_eq!(ended.code, Some(0));
    assert_eq!(folders(folder.path()), [""; 0]);
    let places: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("in ")).collect();
    assert_eq!(places.len(), 3);
    assert!(places.iter().all(|place| place.ends_with("with []")), "{places:?}");
    let calls = server.calls();
    let of = |name: &str| calls.iter().position(|call| call.name == name).unwrap();
    assert!(of("pool_settings") < of("register"));
    server.no_mistakes();
}

#[tokio::test]
async fn a_runner_whose_command_never_gets_ready_is_never_registered() {
    let server = Server::start().await;
    server.machine(|machine| machine.prewarm_ms = Some((10_000, 0)));
    let folder = tempfile::tempdir().unwrap();
    let agent = start(for_runner(&server, folder.path()), &[], "exit 7");
    let ended = agent.end().await;
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("the runner is not registered: the command was not ready after 3 starts"),
        "{}",
        ended.stderr
    );
    assert_eq!(server.times("register"), 0);
}
