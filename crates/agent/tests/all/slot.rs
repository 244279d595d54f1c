//! A hot slot: an agent that is there before its bots and stays after them.

use serde_json::json;

use crate::agent::{Agent, for_slot, lives};
use crate::server::{SLOT_TOKEN, Server};

#[tokio::test]
async fn a_slot_runs_one_bot_after_the_other_and_they_know_nothing_of_each_other() {
    let server = Server::start().await;
    let script = r#"
        echo "slot token: [$GREENROOM_SLOT_TOKEN]"
        case $BOT_DATA in *bot-1*) echo "is bot-1";; esac
        case $BOT_DATA in *bot-2*) echo "is bot-2";; esac
        setsid sleep 1000 &
        echo "pid $!"
        sleep 1000 &
        echo "pid $!"
        echo '{"event":"joined"}'
        read -r line
    "#;
    let agent = Agent::start(for_slot(&server), &[], script);
    let first = server.bot();
    server.assign(&first);
    server.until_called("joined").await;
    let printed = agent.printed();
    let of_first: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("pid ")).collect();
    assert_eq!(of_first.len(), 2);
    let second = server.bot();
    server.assign(&second);
    server.command(&first, "leave", json!({}));
    server
        .until("the second one's joining", |state| state.calls.iter().filter(|call| call.name == "joined").count() == 2)
        .await;
    assert_eq!(of_first.iter().filter(|id| lives(id)).count(), 0, "what the first left behind is gone");

    let said: Vec<_> =
        server.calls().into_iter().filter(|call| call.name == "started" || call.name == "exited").collect();
    let said: Vec<_> = said.iter().map(|call| (call.name.as_str(), call.token.as_str())).collect();
    assert_eq!(said, [("started", first.token()), ("exited", first.token()), ("started", second.token())]);
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    assert_eq!(ended.code, Some(0));
    let lines: Vec<&str> = ended.stdout.lines().filter(|line| !line.starts_with("pid ")).collect();
    assert_eq!(lines, ["slot token: []", "is bot-1", "slot token: []", "is bot-2"]);
    assert_eq!(server.exited(), json!([0, null]));
    server.no_mistakes();
}

#[tokio::test]
async fn a_slot_goes_on_after_a_crash_and_after_an_assignment_that_is_over() {
    let server = Server::start().await;
    let (first, second, third) = (server.bot(), server.bot(), server.bot());
    for data in [&first, &second, &third] {
        server.assign(data);
    }
    server.script("started", 200, json!({"status": "starting"}), None);
    server.script("started", 409, json!({"code": "stale_connection"}), None);
    let script = r#"
        case $BOT_DATA in *bot-1*) exit 7;; *bot-2*) read -r line; exit 0;; esac
        echo '{"event":"joined"}'
        read -r line
    "#;
    let agent = Agent::start(for_slot(&server), &[], script);
    let third_joined = |call: &crate::server::Call| call.name == "joined" && call.token == third.token();
    server.until("the third one's joining", |state| state.calls.iter().any(third_joined)).await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
}

#[tokio::test]
async fn a_slot_waits_for_a_server_that_is_away() {
    let mut server = Server::start().await;
    let data = server.bot();
    server.assign(&data);
    server.go_away().await;
    let agent = Agent::start(for_slot(&server), &[], "exit 0");
    agent.until_logged("waiting for a bot: no connection").await;
    server.script("assignment", 503, json!({}), None);
    server.script("assignment", 204, json!({}), None);
    server.come_back().await;
    server.until_called("exited").await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
    server.no_mistakes();
}

#[tokio::test]
async fn a_slot_that_waits_ends_at_once_when_asked() {
    let server = Server::start().await;
    let agent = Agent::start(for_slot(&server), &[], "exit 0");
    agent.until_logged("waits for a bot").await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
}

#[tokio::test]
async fn a_slot_that_the_server_does_not_know_ends_and_says_so() {
    let server = Server::start().await;
    let mut command = for_slot(&server);
    command.env("GREENROOM_SLOT_TOKEN", SLOT_TOKEN.to_uppercase());
    let ended = Agent::start(command, &[], "exit 0").end().await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("does not accept GREENROOM_SLOT_TOKEN: this is not a slot"), "{}", ended.stderr);
}
