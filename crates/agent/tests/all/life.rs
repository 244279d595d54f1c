//! The life of a bot from its start to its end, with success and with failures.

use serde_json::{Value, json};

use crate::agent::{Agent, for_bot};
use crate::server::Server;

#[tokio::test]
async fn all_callbacks_of_a_bot_arrive_in_order() {
    let server = Server::start().await;
    let data = server.bot();
    let mut command = for_bot(&data);
    command.env("GREENROOM_CONTAINER_ID", "container-7");
    let script = r#"
        echo '{"event":"status","status":"awaiting_admission","reason":"lobby"}'
        echo '{"event":"joined"}'
        echo '{"event":"transcript","segments":[{"start_time":0.1,"end_time":1,"text":"one"},{"start_time":1,"end_time":2.50,"text":"two","speaker":"Ada"}]}'
        echo '{"event":"transcript","segments":[]}'
        echo '{"event":"transcript","segments":[{"start_time":3,"end_time":4,"text":"three"}]}'
        echo '{"event":"status","status":"stopping"}'
        echo '{"event":"exited","reason":"meeting_ended","error":"none to speak of"}'
    "#;
    let ended = Agent::start(command, &[], script).end().await;
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.stdout, "");

    let connection_id = &data.json["connection_id"];
    let mut said = server.said();
    let transcripts = said.iter().filter(|(name, _)| name == "transcript").count();
    said.retain(|(name, _)| name != "transcript");
    assert_eq!(
        said,
        [
            ("started".to_owned(), json!({"connection_id": connection_id, "container_id": "container-7"})),
            (
                "status".to_owned(),
                json!({"connection_id": connection_id, "status": "awaiting_admission", "reason": "lobby"})
            ),
            ("joined".to_owned(), json!({"connection_id": connection_id})),
            ("status".to_owned(), json!({"connection_id": connection_id, "status": "stopping", "reason": null})),
            (
                "exited".to_owned(),
                json!({
                    "connection_id": connection_id, "exit_code": 0, "reason": "meeting_ended",
                    "error": "none to speak of"
                })
            ),
        ]
    );
    let names = server.said_names();
    assert_eq!(names[3..3 + transcripts], vec!["transcript"; transcripts], "{names:?}");
    assert_eq!(
        server.segments(),
        [
            json!({"start_time": 0.1, "end_time": 1, "text": "one"}),
            json!({"start_time": 1, "end_time": 2.5, "text": "two", "speaker": "Ada"}),
            json!({"start_time": 3, "end_time": 4, "text": "three"}),
        ]
    );
    server.no_mistakes();
}

#[tokio::test]
async fn the_bot_gets_its_data_and_its_input_but_not_the_slots_token() {
    let server = Server::start().await;
    let data = server.bot();
    let mut command = for_bot(&data);
    command.env("GREENROOM_SLOT_TOKEN", "grs_other").env("OWN", "its own");
    // Without the token's value, because the test asserts that no output contains it.
    let script = r#"echo "$BOT_DATA" | sed 's/"token":"[^"]*",*//'; echo "slot=$GREENROOM_SLOT_TOKEN own=$OWN""#;
    let ended = Agent::start(command, &[], script).end().await;
    let (first, second) = ended.stdout.split_once('\n').unwrap();
    let mut expected = data.json.clone();
    expected.as_object_mut().unwrap().remove("token");
    let printed: Value = serde_json::from_str(&first.replace(",}", "}")).unwrap();
    assert_eq!(printed, expected);
    assert_eq!(second, "slot= own=its own\n");
}

#[tokio::test]
async fn all_other_output_of_the_bot_is_its_log() {
    let server = Server::start().await;
    let script = r#"
        echo 'hello'
        echo '{"event":"sneezed"}'
        echo '{"event":"status"}'
        printf 'caf\351 \303\251\n'
        head -c 2500000 /dev/zero | tr '\0' 'x'; echo
        printf '{"event":"joined"}\r\n'
        echo 'to stderr' >&2
        printf 'no line break'
    "#;
    let ended = Agent::start(for_bot(&server.bot()), &[], script).end().await;
    let long = "x".repeat(2_500_000);
    let expected =
        format!("hello\n{{\"event\":\"sneezed\"}}\n{{\"event\":\"status\"}}\ncaf\u{fffd} é\n{long}\nno line break");
    assert!(ended.stdout == expected, "{}", ended.stdout.replace(&long, "…"));
    assert!(ended.stderr.contains("to stderr\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("event \"status\" not understood"), "{}", ended.stderr);
    assert!(ended.stderr.contains("unknown event \"sneezed\"; the known ones are"), "{}", ended.stderr);
    let log =
        server.calls().into_iter().rfind(|call| call.name == "log").expect("the agent sent the bot's output").body;
    assert_eq!(log["warnings"].as_array().unwrap().len(), 2);
    assert_eq!(log["truncated"], true);
    assert_eq!(log["lines"].as_array().unwrap().last().unwrap()["text"], "no line break");
    assert_eq!(server.said_names(), ["started", "joined", "exited"]);
    server.no_mistakes();
}

#[tokio::test]
async fn an_event_may_be_as_long_as_a_mebibyte() {
    let server = Server::start().await;
    let script = r#"
        printf '{"event":"transcript","segments":[{"text":"'
        head -c 1000000 /dev/zero | tr '\0' 'y'
        printf '"}]}\n'
    "#;
    Agent::start(for_bot(&server.bot()), &[], script).end().await;
    assert_eq!(server.segments()[0]["text"].as_str().unwrap().len(), 1_000_000);
}

#[tokio::test]
async fn heartbeats_begin_after_the_start_and_continue_until_the_end() {
    let server = Server::start().await;
    let agent = Agent::start(for_bot(&server.bot_with_heartbeat(20)), &[], "read line");
    let beats = |calls: &[crate::server::Call]| calls.iter().filter(|call| call.name == "heartbeat").count();
    server.until("ten heartbeats", |state| beats(&state.calls) >= 10).await;
    agent.signal("-TERM").await;
    agent.end().await;
    let mut calls = server.calls();
    calls.retain(|call| call.name != "commands");
    assert_eq!(calls.first().unwrap().name, "started");
    assert_eq!(calls.last().unwrap().name, "exited");
    server.no_mistakes();
}

#[tokio::test]
async fn a_crash_is_reported_with_its_exit_code() {
    let server = Server::start().await;
    let ended = Agent::start(for_bot(&server.bot()), &[], "exit 3").end().await;
    assert_eq!(ended.code, Some(3));
    assert_eq!(server.exited(), json!([3, null]));
    let (_, body) = server.said().pop().unwrap();
    assert_eq!(body["error"], "the command ended with code 3");
    server.no_mistakes();
}

#[tokio::test]
async fn a_crash_is_reported_with_the_bots_own_error_if_it_has_one() {
    let server = Server::start().await;
    let script = r#"echo '{"event":"exited","reason":"kicked","error":"the host removed me"}'; exit 9"#;
    Agent::start(for_bot(&server.bot()), &[], script).end().await;
    let (_, body) = server.said().pop().unwrap();
    assert_eq!((&body["exit_code"], &body["reason"]), (&json!(9), &json!("kicked")));
    assert_eq!(body["error"], "the host removed me");
}

#[tokio::test]
async fn a_bot_that_dies_of_a_signal_ends_with_128_and_the_signal() {
    let server = Server::start().await;
    let ended = Agent::start(for_bot(&server.bot()), &[], "kill -SEGV $$").end().await;
    assert_eq!(ended.code, Some(139));
    assert_eq!(server.exited(), json!([139, null]));
    let (_, body) = server.said().pop().unwrap();
    assert_eq!(body["error"], "the command was ended by SIGSEGV");
}

#[tokio::test]
async fn a_signal_from_elsewhere_is_a_crash_even_if_it_is_sigterm() {
    let server = Server::start().await;
    Agent::start(for_bot(&server.bot()), &[], "kill -TERM $$").end().await;
    assert_eq!(server.exited(), json!([143, null]));
}

#[tokio::test]
async fn a_missing_command_ends_with_127_and_one_that_cannot_run_with_126() {
    for (program, code) in [("/no/such/bot", 127), ("/etc/passwd", 126)] {
        let server = Server::start().await;
        let ended = Agent::start_exactly(for_bot(&server.bot()), &["--", program]).end().await;
        assert_eq!(ended.code, Some(code), "{program}");
        assert_eq!(server.said_names(), ["exited"]);
        let (_, body) = server.said().pop().unwrap();
        assert_eq!(body["exit_code"], code);
        assert!(body["error"].as_str().unwrap().starts_with(&format!("{program} cannot be run: ")), "{body}");
        server.no_mistakes();
    }
}
