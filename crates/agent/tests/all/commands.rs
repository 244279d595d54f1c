//! The delivery of commands to the bot, and their acknowledgements.

use serde_json::{Value, json};

use crate::agent::{Agent, for_bot};
use crate::server::Server;

/// Prints each command, and exits after `leave`.
const REPEATS: &str = r#"
    while read -r line; do printf 'heard %s\n' "$line"; case $line in *'"leave"'*) exit 0;; esac; done
"#;

#[tokio::test]
async fn a_command_reaches_the_bot_as_a_line_and_is_acknowledged() {
    let server = Server::start().await;
    // The next heartbeat is in an hour. So these commands arrive by long polling, and the agent acknowledges them at
    // once.
    let data = server.bot_with_heartbeat(3_600_000);
    let agent = Agent::start(for_bot(&data), &[], REPEATS);
    server.until_called("heartbeat").await;
    let first = server.command(&data, "reconfigure", json!({"language": "fr", "text": "two\nlines"}));
    server.until_acknowledged(&first).await;
    agent.until_printed("heard").await;
    let second = server.command(&data, "reconfigure", json!({"language": "it"}));
    server.until_acknowledged(&second).await;
    agent.until_printed("\"it\"").await;

    let heard: Vec<Value> = agent
        .printed()
        .lines()
        .map(|line| serde_json::from_str(line.strip_prefix("heard ").unwrap()).unwrap())
        .collect();
    assert_eq!(
        heard,
        [
            json!({"id": first, "action": "reconfigure", "payload": {"language": "fr", "text": "two\nlines"}}),
            json!({"id": second, "action": "reconfigure", "payload": {"language": "it"}}),
        ]
    );
    agent.signal("-TERM").await;
    agent.end().await;
    server.no_mistakes();
}

#[tokio::test]
async fn a_command_that_arrives_by_heartbeat_and_by_long_poll_reaches_the_bot_once() {
    let server = Server::start().await;
    let data = server.bot_with_heartbeat(10);
    let agent = Agent::start(for_bot(&data), &[], REPEATS);
    server.until_called("heartbeat").await;
    let mut ids = Vec::new();
    for _ in 0..50 {
        let id = server.command(&data, "reconfigure", json!({}));
        server.until_acknowledged(&id).await;
        ids.push(id);
    }
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    let heard: Vec<&str> = ended.stdout.lines().filter(|line| line.contains("reconfigure")).collect();
    assert_eq!(heard.len(), ids.len(), "{}", ended.stdout);
    assert!(heard.iter().zip(&ids).all(|(line, id)| line.contains(id.as_str())), "{}", ended.stdout);
    server.no_mistakes();
}

#[tokio::test]
async fn without_a_long_poll_endpoint_commands_arrive_by_heartbeat() {
    let server = Server::start().await;
    let data = server.bot();
    server.script("commands", 404, json!({"code": "not_found"}), None);
    let agent = Agent::start(for_bot(&data), &[], REPEATS);
    agent.until_logged("they come with heartbeats only").await;
    let id = server.command(&data, "reconfigure", json!({}));
    server.until_acknowledged(&id).await;
    agent.until_printed(&id).await;
    agent.signal("-TERM").await;
    agent.end().await;
    assert_eq!(server.calls().iter().filter(|call| call.name == "commands").count(), 1);
}

#[tokio::test]
async fn a_bot_that_closed_its_input_is_not_waited_for() {
    let server = Server::start().await;
    let data = server.bot();
    let agent = Agent::start(for_bot(&data), &["--leave-grace", "50ms"], "exec 0<&-; echo closed; exec sleep 1000");
    agent.until_printed("closed").await;
    let id = server.command(&data, "reconfigure", json!({}));
    server.until_acknowledged(&id).await;
    agent.until_logged("does not read its standard input").await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(143));
    server.no_mistakes();
}

#[tokio::test]
async fn a_bot_that_never_reads_blocks_neither_heartbeats_nor_its_own_end() {
    let server = Server::start().await;
    let data = server.bot();
    let agent = Agent::start(for_bot(&data), &["--leave-grace", "50ms"], "echo up; exec sleep 1000");
    agent.until_printed("up").await;
    // More than a pipe holds.
    server.command(&data, "reconfigure", json!({"text": "x".repeat(300_000)}));
    server.command(&data, "leave", json!({}));
    let ended = agent.end().await;
    assert_eq!(ended.code, Some(0));
    assert_eq!(server.exited(), json!([0, "left"]));
    server.no_mistakes();
}
