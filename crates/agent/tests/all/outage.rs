//! A server that is unavailable for a while: at the start, in the middle, or at the end. No callback is lost or out of
//! order.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, Gate, for_bot};
use crate::server::Server;

fn texts(server: &Server) -> Vec<String> {
    server.segments().iter().map(|segment| segment["text"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_server_that_is_down_at_the_start_gets_every_callback_later() {
    let mut server = Server::start().await;
    let data = server.bot();
    server.go_away().await;
    let script = r#"echo '{"event":"joined"}'; echo '{"event":"transcript","segments":[{"text":"a"}]}'; exit 4"#;
    let agent = Agent::start(for_bot(&data), &[], script);
    agent.until_logged("started: no connection").await;
    agent.until_logged("ended with 4").await;
    server.come_back().await;
    assert_eq!(agent.end().await.code, Some(4));
    assert_eq!(server.said_names(), ["started", "joined", "transcript", "exited"]);
    assert_eq!(server.exited(), json!([4, null]));
    server.no_mistakes();
}

#[tokio::test]
async fn a_server_that_is_down_meanwhile_loses_no_callback_and_the_bot_continues() {
    let mut server = Server::start().await;
    let data = server.bot();
    let (gate, end) = (Gate::new().await, Gate::new().await);
    let script = format!(
        r#"
        echo '{{"event":"joined"}}'
        {pass}
        echo '{{"event":"transcript","segments":[{{"text":"a"}}]}}'
        echo '{{"event":"status","status":"needs_help","reason":"captcha"}}'
        echo '{{"event":"transcript","segments":[{{"text":"b"}}]}}'
        echo '{{"event":"transcript","segments":[{{"text":"c"}}]}}'
        echo said
        {end}
        "#,
        pass = gate.pass(),
        end = end.pass()
    );
    let agent = Agent::start(for_bot(&data), &[], &script);
    server.until_called("joined").await;
    server.go_away().await;
    gate.open().await;
    agent.until_printed("said").await;
    agent.until_logged("transcript: no connection").await;
    agent.until_logged("heartbeat: no connection").await;
    server.come_back().await;
    server
        .until("the transcripts", |state| state.calls.iter().filter(|call| call.name == "transcript").count() == 2)
        .await;
    let beats = server.calls().iter().filter(|call| call.name == "heartbeat").count();
    server.until("heartbeats", |state| state.calls.iter().filter(|c| c.name == "heartbeat").count() > beats).await;
    end.open().await;
    agent.end().await;
    assert_eq!(server.said_names(), ["started", "joined", "transcript", "status", "transcript", "exited"]);
    assert_eq!(texts(&server), ["a", "b", "c"]);
    server.no_mistakes();
}

#[tokio::test]
async fn a_server_that_is_down_at_the_end_gets_the_end_later() {
    let mut server = Server::start().await;
    let data = server.bot();
    let gate = Gate::new().await;
    let script = format!("echo '{{\"event\":\"joined\"}}'; {}; exit 6", gate.pass());
    let agent = Agent::start(for_bot(&data), &[], &script);
    server.until_called("joined").await;
    server.go_away().await;
    gate.open().await;
    agent.until_logged("log: no connection").await;
    server.come_back().await;
    assert_eq!(agent.end().await.code, Some(6));
    assert_eq!(server.exited(), json!([6, null]));
    server.no_mistakes();
}

#[tokio::test]
async fn the_agent_gives_up_on_a_server_that_stays_down_for_too_long() {
    let mut server = Server::start().await;
    let data = server.bot();
    server.go_away().await;
    let ended = Agent::start(for_bot(&data), &["--report-for", "50ms"], "exit 6").end().await;
    assert_eq!(ended.code, Some(6));
    assert!(ended.stderr.contains("the server was away for too long"), "{}", ended.stderr);
}

#[tokio::test]
async fn an_impatient_second_signal_ends_the_reporting() {
    let mut server = Server::start().await;
    let data = server.bot();
    server.go_away().await;
    let agent = Agent::start(for_bot(&data), &[], "read -r line");
    agent.until_logged("runs as process").await;
    agent.signal("-TERM").await;
    agent.until_logged("ended with 143").await;
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    assert!(ended.stderr.contains("asked to end again"), "{}", ended.stderr);
}

#[tokio::test]
async fn an_overloaded_server_is_retried_after_its_retry_after() {
    let server = Server::start().await;
    server.script("joined", 503, json!({"code": "unavailable"}), None);
    server.script("joined", 408, Value::Null, None);
    server.script("joined", 429, Value::Null, Some(1));
    let script = r#"echo '{"event":"joined"}'; echo '{"event":"transcript","segments":[{"text":"a"}]}'"#;
    Agent::start(for_bot(&server.bot()), &[], script).end().await;
    assert_eq!(server.said_names(), ["started", "joined", "transcript", "exited"]);
    let calls: Vec<_> = server.calls().into_iter().filter(|call| call.name == "joined").collect();
    assert_eq!(calls.iter().map(|call| call.status).collect::<Vec<_>>(), [503, 408, 429, 200]);
    assert!(calls[3].at - calls[2].at >= Duration::from_secs(1));
    server.no_mistakes();
}

#[tokio::test]
async fn delayed_transcripts_are_sent_in_order_and_in_calls_of_limited_size() {
    let mut server = Server::start().await;
    let data = server.bot();
    server.go_away().await;
    let script = r#"
        i=0; while [ $i -lt 1200 ]; do echo "{\"event\":\"transcript\",\"segments\":[{\"text\":\"$i\"}]}"; i=$((i+1)); done
        big=$(head -c 200000 /dev/zero | tr '\0' 'z')
        for i in 1 2 3 4; do echo "{\"event\":\"transcript\",\"segments\":[{\"text\":\"$big\"}]}"; done
    "#;
    let agent = Agent::start(for_bot(&data), &[], script);
    agent.until_logged("ended with 0").await;
    server.come_back().await;
    agent.end().await;
    let texts = texts(&server);
    assert_eq!(texts[..1200], (0..1200).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(texts[1200..].iter().map(String::len).collect::<Vec<_>>(), [200_000; 4]);
    let calls: Vec<Value> =
        server.said().into_iter().filter(|(name, _)| name == "transcript").map(|(_, body)| body).collect();
    let sizes: Vec<usize> = calls.iter().map(|body| body["segments"].as_array().unwrap().len()).collect();
    assert_eq!(
        sizes,
        [500, 500, 202, 2],
        "two large segments fit behind the small ones, and two more into a separate call"
    );
    assert!(calls.iter().all(|body| body.to_string().len() < 520 * 1024));
    server.no_mistakes();
}

#[tokio::test]
async fn a_log_that_always_fails_holds_back_neither_the_meeting_nor_the_end() {
    ends_without_log(500).await;
}

#[tokio::test]
async fn a_log_whose_connection_always_breaks_holds_back_neither_the_meeting_nor_the_end() {
    ends_without_log(0).await;
}

/// Asserts that all callbacks of a bot arrive although the server answers each log with this status.
async fn ends_without_log(status: u16) {
    let server = Server::start().await;
    server.tell_always("log", Some((status, json!({}))));
    let script = r#"echo '{"event":"join"}'; echo '{"event":"joined"}'; echo printed; exit 7"#;
    let begun = Instant::now();
    let ended = Agent::start(for_bot(&server.bot()), &[], script).end().await;
    assert_eq!((ended.code, server.exited()), (Some(7), json!([7, null])));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(server.said_names(), ["started", "joined", "exited"]);
    assert!(ended.stderr.contains("log not sent"), "{}", ended.stderr);
    server.no_mistakes();
}

#[tokio::test]
async fn a_server_that_delays_the_log_gets_the_end_at_once() {
    let server = Server::start().await;
    server.script("log", 503, json!({"code": "overloaded"}), Some(60));
    let begun = Instant::now();
    let agent = Agent::start(for_bot(&server.bot()), &[], "exit 7");
    assert_eq!(agent.end().await.code, Some(7));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(server.exited(), json!([7, null]));
}

#[tokio::test]
async fn a_log_that_is_refused_twice_still_comes_before_the_end() {
    let server = Server::start().await;
    for _ in 0..2 {
        server.script("log", 503, json!({"code": "unavailable"}), None);
    }
    Agent::start(for_bot(&server.bot()), &[], "echo printed; exit 7").end().await;
    let calls = server.calls();
    let taken: Vec<_> = calls.iter().filter(|call| call.status == 200).map(|call| call.name.as_str()).collect();
    assert_eq!(taken[taken.len() - 2..], ["log", "exited"], "{taken:?}");
    let log = calls.iter().rfind(|call| call.name == "log").unwrap();
    assert_eq!(log.body["lines"][0]["text"], "printed");
    server.no_mistakes();
}

#[tokio::test]
async fn a_server_that_was_down_at_the_end_also_gets_the_log() {
    let mut server = Server::start().await;
    let data = server.bot();
    let gate = Gate::new().await;
    let agent = Agent::start(for_bot(&data), &[], &format!("echo printed; {}; exit 6", gate.pass()));
    server.until_called("started").await;
    server.go_away().await;
    gate.open().await;
    // At the fourth attempt, the agent has also tried to report the end.
    agent.until_logged_times("log: no connection", 3).await;
    server.come_back().await;
    assert_eq!(agent.end().await.code, Some(6));
    let log = server.calls().into_iter().find(|call| call.name == "log").unwrap();
    assert_eq!(log.body["lines"][0]["text"], "printed");
    server.no_mistakes();
}
