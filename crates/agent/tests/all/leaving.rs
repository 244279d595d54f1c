//! The end of a bot that is asked to leave: it may leave by itself, and otherwise the agent kills it.

use serde_json::{Value, json};

use crate::agent::{Agent, Gate, for_bot, lives};
use crate::server::Server;

const LEAVES_WHEN_ASKED: &str = r#"
    echo up
    while read -r line; do case $line in *'"leave"'*) echo leaving; exit 0;; esac; done
"#;
const QUICK: [&str; 4] = ["--leave-grace", "50ms", "--kill-grace", "50ms"];

#[tokio::test]
async fn a_bot_that_leaves_when_asked_completes_without_a_signal() {
    let server = Server::start().await;
    let data = server.bot();
    let agent = Agent::start(for_bot(&data), &[], LEAVES_WHEN_ASKED);
    agent.until_printed("up").await;
    server.command(&data, "leave", json!({}));
    let ended = agent.end().await;
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.stdout, "up\nleaving\n");
    assert!(!ended.stderr.contains("SIG"), "{}", ended.stderr);
    assert_eq!(server.exited(), json!([0, null]));
    server.no_mistakes();
}

#[tokio::test]
async fn a_bot_that_ignores_leave_is_ended_by_sigterm_and_counts_as_left() {
    // One bot is killed by the signal. The other catches it, and exits with the code of that signal.
    for script in ["echo up; exec sleep 1000", "trap 'exit 143' TERM; echo up; sleep 1000 & wait"] {
        let server = Server::start().await;
        let data = server.bot();
        let agent = Agent::start(for_bot(&data), &["--leave-grace", "50ms"], script);
        agent.until_printed("up").await;
        let id = server.command(&data, "leave", json!({}));
        server.until_acknowledged(&id).await;
        let ended = agent.end().await;
        assert_eq!(ended.code, Some(0), "{script}");
        assert!(ended.stderr.contains("has not left: SIGTERM"), "{}", ended.stderr);
        assert_eq!(server.exited(), json!([0, "left"]), "{script}");
        server.no_mistakes();
    }
}

#[tokio::test]
async fn a_bot_that_exits_on_sigterm_ends_with_its_own_code_and_reason() {
    let server = Server::start().await;
    let data = server.bot();
    let script =
        r#"trap 'echo "{\"event\":\"exited\",\"reason\":\"kicked\"}"; exit 5' TERM; echo up; sleep 1000 & wait"#;
    let agent = Agent::start(for_bot(&data), &["--leave-grace", "50ms"], script);
    agent.until_printed("up").await;
    server.command(&data, "leave", json!({}));
    agent.end().await;
    assert_eq!(server.exited(), json!([5, "kicked"]));
}

#[tokio::test]
async fn a_bot_that_ignores_sigterm_is_killed_and_the_agent_reports_it() {
    let server = Server::start().await;
    let data = server.bot();
    let agent = Agent::start(for_bot(&data), &QUICK, "trap '' TERM; echo up; while :; do sleep 1000; done");
    agent.until_printed("up").await;
    server.command(&data, "leave", json!({}));
    let ended = agent.end().await;
    assert_eq!(ended.code, Some(137));
    assert_eq!(server.exited(), json!([137, "killed"]));
    server.no_mistakes();
}

#[tokio::test]
async fn a_bot_that_is_already_stopping_at_its_start_gets_leave_once() {
    let server = Server::start().await;
    let data = server.bot();
    server.set_status(&data, "stopping");
    let id = server.command(&data, "leave", json!({}));
    let gate = Gate::new().await;
    // Reads only after both reasons to leave have arrived, and then reads everything at once.
    let script = format!("{}; dd bs=65536 count=1 2>/dev/null", gate.pass());
    let agent = Agent::start(for_bot(&data), &[], &script);
    server.until_acknowledged(&id).await;
    gate.open().await;
    let ended = agent.end().await;
    assert_eq!(ended.stdout.matches("\"leave\"").count(), 1, "{}", ended.stdout);
    assert_eq!(server.exited(), json!([0, null]));
    server.no_mistakes();
}

#[tokio::test]
async fn an_agent_that_gets_a_signal_lets_its_bot_leave_and_reports_an_interruption() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130), ("-HUP", 129)] {
        let server = Server::start().await;
        let agent = Agent::start(for_bot(&server.bot()), &[], LEAVES_WHEN_ASKED);
        agent.until_printed("up").await;
        agent.signal(signal).await;
        let ended = agent.end().await;
        assert_eq!(ended.code, Some(code));
        assert_eq!(ended.stdout, "up\nleaving\n");
        assert_eq!(server.exited(), json!([code, "interrupted"]));
        let stopping = |(name, body): &(String, Value)| name == "status" && body["reason"] == "interrupted";
        assert!(server.said().iter().any(stopping), "{:?}", server.said());
        server.no_mistakes();
    }
}

#[tokio::test]
async fn an_agent_that_gets_a_signal_kills_a_bot_that_does_not_leave() {
    let server = Server::start().await;
    let agent = Agent::start(for_bot(&server.bot()), &QUICK, "echo up; exec sleep 1000");
    agent.until_printed("up").await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(143));
    assert_eq!(server.exited(), json!([143, "interrupted"]));
}

#[tokio::test]
async fn a_signal_after_the_server_asked_the_bot_to_leave_is_no_interruption() {
    let server = Server::start().await;
    let data = server.bot();
    let gate = Gate::new().await;
    let agent = Agent::start(for_bot(&data), &[], &format!("read -r line; {}; exit 0", gate.pass()));
    let id = server.command(&data, "leave", json!({}));
    server.until_acknowledged(&id).await;
    agent.signal("-TERM").await;
    gate.open().await;
    agent.end().await;
    assert_eq!(server.exited(), json!([0, null]));
}

#[tokio::test]
async fn no_process_of_a_bot_survives_it() {
    let server = Server::start().await;
    // A child in its process group, one that ignores all signals that it can, one that has left the group, and a child
    // of that.
    let script = r#"
        sleep 1000 & echo "pid $!"
        (trap '' TERM HUP INT; sleep 1000) & echo "pid $!"
        setsid sh -c 'sleep 1000 & echo "pid $!"; echo "pid $$"; echo all; wait' &
        read -r line
    "#;
    let agent = Agent::start(for_bot(&server.bot()), &[], script);
    agent.until_printed("all").await;
    let printed = agent.printed();
    let ids: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("pid ")).collect();
    assert_eq!(ids.len(), 4);
    assert!(ids.iter().all(|id| lives(id)));
    agent.signal("-TERM").await;
    agent.end().await;
    assert_eq!(ids.iter().filter(|id| lives(id)).count(), 0);
    assert_eq!(server.exited(), json!([143, "interrupted"]));
}
