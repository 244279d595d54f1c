//! The end of a run, of the agent, and of the machine.

use serde_json::{Value, json};

use super::{MACHINE_ENDS, folders, for_runner, start};
use crate::agent::Gate;
use crate::server::{Call, Server};

const LEAVES_WHEN_ASKED: &str = r#"
    echo up
    while read -r line; do case $line in *'"leave"'*) echo leaving; exit 0;; esac; done
"#;
const QUICK: [&str; 4] = ["--leave-grace", "50ms", "--kill-grace", "50ms"];

fn gone() -> Value {
    json!({"code": "runner_ended", "detail": "so it is"})
}

#[tokio::test]
async fn a_stopped_run_ends_and_the_runner_continues() {
    for script in [LEAVES_WHEN_ASKED, "trap '' TERM; echo up; while :; do sleep 1000; done"] {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        let agent = start(for_runner(&server, folder.path()), &QUICK, script);
        for times in 1..=2 {
            server.claim(&server.bot());
            server.until_called_times("started", times).await;
            server.machine(|machine| machine.stop = true);
            server.until_called_times("release", times).await;
        }
        agent.signal("-TERM").await;
        let ended = agent.end().await;
        assert!(ended.stderr.contains("run run-1 is to end, says the server"), "{}", ended.stderr);
        assert_eq!(ended.stdout.matches("up").count(), 2);
        let once = ["acknowledge", "started", "exited", "release"];
        assert_eq!(server.course(), [&["register"], &once[..], &once[..], &["end"]].concat());
        server.no_mistakes();
    }
}

#[tokio::test]
async fn a_machine_that_has_expired_reports_it_and_ends() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let agent = start(for_runner(&server, folder.path()), &[], "exit 0");
    server.until_called("beat").await;
    server.machine(|machine| machine.end = true);
    let ended = agent.end().await;
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), MACHINE_ENDS));
    assert_eq!(server.course(), ["register", "end"]);
    server.no_mistakes();
}

#[tokio::test]
async fn a_machine_that_has_expired_ends_its_bot_first() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let agent = start(for_runner(&server, folder.path()), &[], LEAVES_WHEN_ASKED);
    server.claim(&server.bot());
    server.until_called("started").await;
    server.machine(|machine| machine.end = true);
    let ended = agent.end().await;
    assert_eq!((ended.code, ended.stdout), (Some(0), format!("up\nleaving\n{MACHINE_ENDS}\n")));
    assert_eq!(server.course(), ["register", "acknowledge", "started", "exited", "end"]);
    assert_eq!(folders(folder.path()), [""; 0]);
    server.no_mistakes();
}

#[tokio::test]
async fn any_answer_that_the_runner_has_ended_ends_the_machine() {
    for name in ["beat", "assignment", "acknowledge", "release"] {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        server.script(name, 410, gone(), None);
        if name == "acknowledge" || name == "release" {
            server.claim(&server.bot());
        }
        let ended = start(for_runner(&server, folder.path()), &[], "echo ran").end().await;
        assert_eq!(ended.code, Some(0), "{name}");
        assert!(ended.stdout.ends_with(&format!("{MACHINE_ENDS}\n")), "{name}: {}", ended.stdout);
        assert_eq!(ended.stdout.contains("ran"), name == "release");
        assert_eq!(server.course().last().unwrap(), "end");
        assert_eq!(folders(folder.path()), [""; 0]);
        server.no_mistakes();
    }
}

#[tokio::test]
async fn a_machine_that_cannot_be_ended_is_a_failure() {
    for (command, says) in [("no-such-program now", "cannot be ended"), ("false", "was not ended")] {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        server.script("register", 410, gone(), None);
        let arguments = ["runner", "--end-command", command, "--", "true"];
        let ended = crate::agent::Agent::start_exactly(for_runner(&server, folder.path()), &arguments).end().await;
        assert_eq!(ended.code, Some(1));
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn an_idle_machine_whose_server_stays_down_ends() {
    let mut server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.machine(|machine| machine.orphaned_after_ms = 3_000);
    let agent = start(for_runner(&server, folder.path()), &[], "exit 0");
    server.until_called("beat").await;
    server.go_away().await;
    let ended = agent.end().await;
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), MACHINE_ENDS));
    assert!(ended.stderr.contains("the server was away for too long"), "{}", ended.stderr);
}

#[tokio::test]
async fn an_idle_agent_that_is_asked_to_end_reports_it_and_does_not_end_the_machine() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let agent = start(for_runner(&server, folder.path()), &[], "exit 0");
    server.until_called("beat").await;
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    let end = server.calls().into_iter().find(|call| call.name == "end").unwrap();
    assert_eq!(end.body, json!({"reason": "the agent was asked to end"}));
    assert_eq!(server.course(), ["register", "end"]);
    server.no_mistakes();
}

#[tokio::test]
async fn an_agent_with_a_bot_that_is_asked_to_end_lets_it_leave_first() {
    for script in [LEAVES_WHEN_ASKED, "echo up; exec sleep 1000"] {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        let agent = start(for_runner(&server, folder.path()), &QUICK[..2], script);
        server.claim(&server.bot());
        agent.until_printed("up").await;
        server.until_called("started").await;
        agent.signal("-TERM").await;
        let ended = agent.end().await;
        assert_eq!(ended.code, Some(0));
        assert!(!ended.stdout.contains(MACHINE_ENDS));
        assert_eq!(server.course(), ["register", "acknowledge", "started", "exited", "end"]);
        assert_eq!(folders(folder.path()), [""; 0]);
        server.no_mistakes();
    }
}

#[tokio::test]
async fn an_agent_that_is_asked_to_end_takes_no_further_bot() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.tell_always("acknowledge", Some((503, json!({}))));
    let agent = start(for_runner(&server, folder.path()), &[], "echo ran");
    server.claim(&server.bot());
    server.until_called("acknowledge").await;
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    assert_eq!((ended.code, ended.stdout.as_str(), server.said_names()), (Some(0), "", vec![]));
    assert_eq!(server.course().last().unwrap(), "end");
    assert_eq!(folders(folder.path()), [""; 0]);
}

#[tokio::test]
async fn an_idle_spot_machine_with_a_termination_notice_takes_no_bot() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.machine(|machine| (machine.is_spot, machine.notice) = (true, true));
    let ended = start(for_runner(&server, folder.path()), &[], "exit 0").end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    assert_eq!(server.course(), ["register", "end"]);
    server.no_mistakes();
}

#[tokio::test]
async fn a_spot_machine_with_a_termination_notice_keeps_its_bot_and_takes_no_other() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.machine(|machine| machine.is_spot = true);
    let gate = Gate::new().await;
    let agent = start(for_runner(&server, folder.path()), &[], &format!("{}; exit 5", gate.pass()));
    server.claim(&server.bot());
    server.until_called("started").await;
    server.machine(|machine| machine.notice = true);
    let noticed = |call: &Call| call.name == "instance-action" && call.status == 200;
    server.until("the notice", |state| state.calls.iter().any(noticed)).await;
    let run = Some("run-1");
    server.until_beat_with(run).await;
    assert_eq!(server.said_names(), ["started"], "the bot keeps running");
    gate.open().await;
    assert_eq!(agent.end().await.code, Some(0));
    assert_eq!(server.exited(), json!([5, null]));
    assert_eq!(server.course(), ["register", "acknowledge", "started", "exited", "end"]);
    server.no_mistakes();
}
