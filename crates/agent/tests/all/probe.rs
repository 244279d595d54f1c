//! A probe: the agent runs its own demo bot instead of the command, under the same supervision.

use serde_json::{Value, json};

use crate::agent::{Agent, for_bot, for_slot};
use crate::runner::{folders, for_runner, start};
use crate::server::{Data, Server};

/// A bot that is a probe, and stays only a moment.
fn probe(server: &Server) -> Data {
    let mut data = server.bot();
    data.json["probe"] = json!(true);
    data.json["config"] = json!({"demo_ms": 0});
    data
}

const LIFE: [&str; 4] = ["started", "joined", "transcript", "exited"];

#[tokio::test]
async fn a_probe_runs_the_demo_bot_and_never_the_command() {
    let server = Server::start().await;
    let ended = Agent::start(for_bot(&probe(&server)), &[], "echo ran; exit 3").end().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stdout.contains("ran"), "{ended:?}");
    assert_eq!(server.said_names(), LIFE);
    assert_eq!(server.exited(), json!([0, null]));
    assert!(server.segments()[0]["text"].as_str().unwrap().starts_with("This is a probe"));
    server.no_mistakes();
}

#[tokio::test]
async fn a_bot_whose_data_does_not_say_true_is_no_probe() {
    for value in [json!(false), json!("true"), json!(null)] {
        let server = Server::start().await;
        let mut data = server.bot();
        data.json["probe"] = value;
        assert_eq!(Agent::start(for_bot(&data), &[], "exit 3").end().await.code, Some(3));
    }
}

#[tokio::test]
async fn a_probe_fails_where_the_program_of_the_command_is_missing() {
    let server = Server::start().await;
    let ended = Agent::start_exactly(for_bot(&probe(&server)), &["--", "/nowhere/bot"]).end().await;
    assert_eq!(ended.code, Some(127), "{ended:?}");
    let (_, exited) = server.said().pop().unwrap();
    let error = "/nowhere/bot cannot be run: there is no such program in this slot";
    assert_eq!((&exited["exit_code"], &exited["error"]), (&json!(127), &json!(error)));
    server.no_mistakes();
}

#[tokio::test]
async fn a_probe_is_asked_to_leave_like_any_bot() {
    let server = Server::start().await;
    let mut data = probe(&server);
    data.json["config"] = json!({"demo_ms": 1_000_000});
    let agent = Agent::start(for_bot(&data), &[], "exit 3");
    server.until_called("joined").await;
    server.command(&data, "leave", json!({}));
    assert_eq!(agent.end().await.code, Some(0));
    assert_eq!(server.said_names(), ["started", "joined", "exited"]);
}

/// Is ready, and prints what it gets.
const READY: &str = r#"
    echo "pid $$"
    echo '{"event":"ready"}'
    read -r line
    echo "got a meeting"
    echo '{"event":"joined"}'
"#;

fn commands(agent: &Agent) -> usize {
    agent.printed().lines().filter(|line| line.starts_with("pid ")).count()
}

#[tokio::test]
async fn before_a_probe_the_prewarmed_command_ends_and_after_it_the_next_one_waits() {
    let server = Server::start().await;
    let agent = Agent::start(for_slot(&server), &["--prewarm"], READY);
    agent.until_logged("waits for a bot").await;
    server.assign(&probe(&server));
    server.until_called("exited").await;
    agent.until_logged_times("waits for a bot", 2).await;
    assert_eq!(server.said_names(), LIFE);
    assert_eq!((commands(&agent), agent.printed().contains("got a meeting")), (2, false));
    server.assign(&server.bot());
    agent.until_printed("got a meeting").await;
    agent.until_logged_times("waits for a bot", 3).await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
    server.no_mistakes();
}

#[tokio::test]
async fn a_runner_runs_a_probe_in_a_folder_of_its_own_with_and_without_prewarm() {
    for options in [&[][..], &["--prewarm"]] {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        let agent = start(for_runner(&server, folder.path()), options, READY);
        server.until_beat_with(None).await;
        server.claim(&probe(&server));
        server.until_called("release").await;
        let said: Vec<Value> = server.said_names().into_iter().map(Value::from).collect();
        assert_eq!(said, LIFE.map(Value::from));
        assert!(!agent.printed().contains("got a meeting"));
        agent.signal("-TERM").await;
        assert_eq!(agent.end().await.code, Some(0));
        assert_eq!(folders(folder.path()), [""; 0]);
        server.no_mistakes();
    }
}
