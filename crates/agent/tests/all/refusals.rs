//! A server that says no: to one thing, or to the whole assignment.

use serde_json::{Value, json};

use crate::agent::{Agent, for_bot};
use crate::server::Server;

const LEAVES_WHEN_ASKED: &str = "echo up; read -r line; echo \"$line\"; exit 0";

fn problem(code: &str) -> Value {
    json!({"code": code, "detail": "so it is"})
}

#[tokio::test]
async fn a_transition_that_is_refused_is_logged_and_the_bot_goes_on() {
    let server = Server::start().await;
    server.script("joined", 409, problem("invalid_transition"), None);
    server.script("heartbeat", 409, problem("invalid_transition"), None);
    let script = r#"echo '{"event":"joined"}'; echo '{"event":"transcript","segments":[{"text":"a"}]}'"#;
    let ended = Agent::start(for_bot(&server.bot()), &[], script).end().await;
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("joined was refused: 409 Conflict invalid_transition: so it is"), "{}", ended.stderr);
    assert_eq!(server.said_names(), ["started", "transcript", "exited"]);
    server.no_mistakes();
}

#[tokio::test]
async fn one_segment_that_cannot_be_stored_does_not_take_others_down() {
    let server = Server::start().await;
    let script = r#"
        echo '{"event":"transcript","segments":[{"text":"a"},{"text":"b"},{"text":7},{"text":"c"},{"text":"d"}]}'
        echo '{"event":"transcript","segments":[{"text":"e"}]}'
    "#;
    let ended = Agent::start(for_bot(&server.bot()), &[], script).end().await;
    let texts: Vec<Value> = server.segments().into_iter().map(|segment| segment["text"].clone()).collect();
    assert_eq!(texts, ["a", "b", "c", "d", "e"]);
    assert!(ended.stderr.contains("transcript was refused: 422"), "{}", ended.stderr);
}

#[tokio::test]
async fn an_assignment_that_is_over_ends_the_bot_without_another_word() {
    let over = [
        ("started", 409, "stale_connection"),
        ("started", 401, "unauthorized"),
        ("heartbeat", 409, "stale_connection"),
        ("heartbeat", 410, "bot_ended"),
        ("commands", 409, "stale_connection"),
    ];
    for (name, status, code) in over {
        let server = Server::start().await;
        server.script(name, status, problem(code), None);
        let agent = Agent::start(for_bot(&server.bot()), &[], LEAVES_WHEN_ASKED);
        agent.until_logged("the assignment is over").await;
        let calls = server.calls().len();
        let ended = agent.end().await;
        assert_eq!(ended.code, Some(0));
        assert!(ended.stdout.contains("\"action\":\"leave\""), "{name} {code}: {}", ended.stdout);
        let said = server.said_names();
        assert!(!said.contains(&"exited".to_owned()), "{name} {code}: {said:?}");
        // What was on its way already may still arrive.
        assert!(server.calls().len() <= calls + 1, "{name} {code}: {:?}", server.calls());
        server.no_mistakes();
    }
}

#[tokio::test]
async fn an_assignment_that_ends_while_the_bot_speaks_ends_it_too() {
    let server = Server::start().await;
    server.script("joined", 410, problem("bot_ended"), None);
    let script = format!("echo '{{\"event\":\"joined\"}}'; {LEAVES_WHEN_ASKED}");
    let ended = Agent::start(for_bot(&server.bot()), &[], &script).end().await;
    assert!(ended.stdout.contains("\"action\":\"leave\""));
    assert_eq!(server.said_names(), ["started"]);
}

#[tokio::test]
async fn a_heartbeat_that_hears_of_the_end_ends_the_bot() {
    for status in ["completed", "failed"] {
        let server = Server::start().await;
        server.script("heartbeat", 200, json!({"status": status, "commands": []}), None);
        // One that does not want to: it is pushed as always.
        let agent = Agent::start(for_bot(&server.bot()), &["--leave-grace", "50ms"], "exec sleep 1000");
        agent.end().await;
        assert_eq!(server.said_names(), ["started"]);
        server.no_mistakes();
    }
}
