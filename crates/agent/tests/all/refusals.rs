//! A server that refuses one call, or the whole assignment.

use serde_json::{Value, json};

use crate::agent::{Agent, for_bot};
use crate::server::Server;

const LEAVES_WHEN_ASKED: &str = "echo up; read -r line; echo \"$line\"; exit 0";

fn problem(code: &str) -> Value {
    json!({"code": code, "detail": "so it is"})
}

#[tokio::test]
async fn a_refused_transition_is_logged_and_the_bot_continues() {
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
async fn one_segment_that_cannot_be_stored_does_not_affect_the_others() {
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
async fn an_assignment_that_has_ended_ends_the_bot_without_another_callback() {
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
        // A call that was already sent may still arrive.
        assert!(server.calls().len() <= calls + 1, "{name} {code}: {:?}", server.calls());
        server.no_mistakes();
    }
}

#[tokio::test]
async fn an_assignment_that_ends_during_a_transcript_ends_the_bot() {
    let server = Server::start().await;
    server.script("joined", 410, problem("bot_ended"), None);
    let script = format!("echo '{{\"event\":\"joined\"}}'; {LEAVES_WHEN_ASKED}");
    let ended = Agent::start(for_bot(&server.bot()), &[], &script).end().await;
    assert!(ended.stdout.contains("\"action\":\"leave\""));
    assert_eq!(server.said_names(), ["started"]);
}

#[tokio::test]
async fn a_heartbeat_answer_that_the_bot_has_ended_ends_its_process() {
    for status in ["completed", "failed"] {
        let server = Server::start().await;
        server.script("heartbeat", 200, json!({"status": status, "commands": []}), None);
        // A bot that does not leave by itself is killed as usual.
        let agent = Agent::start(for_bot(&server.bot()), &["--leave-grace", "50ms"], "exec sleep 1000");
        agent.end().await;
        assert_eq!(server.said_names(), ["started"]);
        server.no_mistakes();
    }
}
