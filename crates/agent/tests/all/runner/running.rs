//! A runner and its bots: it acknowledges each bot before it runs it, removes all traces of it, and then takes the
//! next.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::side::INSTANCE;
use super::{folders, for_runner, start};
use crate::agent::Gate;
use crate::server::{Call, Server};

#[tokio::test]
async fn a_bot_is_acknowledged_run_and_reported_and_then_the_runner_is_released() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::new().await;
    let agent = start(for_runner(&server, folder.path()), &[], &format!("{}; exit 3", gate.pass()));
    server.until_beat_with(None).await;
    let run = server.claim(&server.bot());
    // The machine keeps sending heartbeats while it has a bot.
    server.until_beat_with(Some(&run)).await;
    server.until_beat_with(Some(&run)).await;
    gate.open().await;
    server.until_called("release").await;
    server.until_beat_with(None).await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
    assert_eq!(server.course(), ["register", "acknowledge", "started", "exited", "release", "end"]);
    let said = |name: &str| server.calls().into_iter().find(|call| call.name == name).unwrap().body;
    assert_eq!((said("acknowledge"), said("release")), (json!({"run_id": run}), json!({"run_id": run})));
    assert_eq!(said("started")["container_id"], INSTANCE);
    assert_eq!(server.exited(), json!([3, null]));
    server.no_mistakes();
}

#[tokio::test]
async fn each_bot_has_a_fresh_folder_and_none_of_the_runners_secrets() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
        echo "in $(pwd) home $HOME tmp $TMPDIR with [$(ls -A)]"
        env | grep -c -e RUNNER_TOKEN -e SLOT_TOKEN -e grp_ -e grr_ -e grs_
        mkdir -p closed/inner && echo left > closed/inner/file && ln -s / closed/link && chmod 000 closed/inner closed
        setsid sleep 1000 &
        exit 0
    "#;
    let mut command = for_runner(&server, folder.path());
    command.env("GREENROOM_SLOT_TOKEN", crate::server::SLOT_TOKEN);
    let agent = start(command, &[], script);
    for bot in 1..=2 {
        server.claim(&server.bot());
        server.until_called_times("release", bot).await;
        assert_eq!(folders(folder.path()), [""; 0], "the folder is gone before the runner is released");
    }
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!((lines.len(), lines[1], lines[3]), (4, "0", "0"), "{lines:?}");
    let base = folder.path().canonicalize().unwrap();
    let homes = [lines[0], lines[2]].map(|line| {
        let home = line.split_whitespace().nth(1).unwrap();
        assert!(home.starts_with(base.join("greenroom-bot-").to_str().unwrap()), "{line}");
        assert_eq!(line, format!("in {home} home {home} tmp {home} with []"));
        home
    });
    assert_ne!(homes[0], homes[1]);
    server.no_mistakes();
}

#[tokio::test]
async fn files_of_a_killed_agent_are_removed_and_files_of_others_stay() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("greenroom-bot-left");
    std::fs::create_dir_all(left.join("closed")).unwrap();
    std::fs::write(left.join("closed/file"), "secret").unwrap();
    std::fs::set_permissions(left.join("closed"), std::fs::Permissions::from_mode(0o500)).unwrap();
    std::fs::write(folder.path().join("others"), "").unwrap();
    let agent = start(for_runner(&server, folder.path()), &[], "exit 0");
    server.until_called("register").await;
    assert!(!left.exists() && folder.path().join("others").exists());
    agent.signal("-TERM").await;
    agent.end().await;
}

#[tokio::test]
async fn a_second_agent_on_the_machine_does_not_disturb_the_first_and_its_bot() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::new().await;
    let agent = start(for_runner(&server, folder.path()), &[], &format!("echo up; {}; ls -d .", gate.pass()));
    server.claim(&server.bot());
    agent.until_printed("up").await;
    let second = start(for_runner(&server, folder.path()), &[], "exit 0").end().await;
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains("held by another agent"), "{}", second.stderr);
    assert_eq!((folders(folder.path()).len(), server.times("register")), (1, 1));
    gate.open().await;
    server.until_called("release").await;
    agent.signal("-TERM").await;
    agent.end().await;
}

#[tokio::test]
async fn a_relative_command_is_found_from_the_folder_where_the_agent_started() {
    let server = Server::start().await;
    let (folder, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let bot = here.path().join("my-bot");
    std::fs::write(&bot, "#!/bin/sh\nexit 9\n").unwrap();
    std::fs::set_permissions(&bot, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = for_runner(&server, folder.path());
    command.current_dir(here.path());
    let agent = crate::agent::Agent::start_exactly(command, &["runner", "--end-command", "none", "--", "./my-bot"]);
    server.claim(&server.bot());
    server.until_called("release").await;
    assert_eq!(server.exited(), json!([9, null]));
    agent.signal("-TERM").await;
    agent.end().await;
}

#[tokio::test]
async fn a_bot_that_no_longer_belongs_to_the_runner_is_not_run() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (server.bot(), server.bot());
    server.machine(|machine| machine.gives_away = true);
    let agent = start(for_runner(&server, folder.path()), &[], "echo ran");
    server.claim(&first);
    server.until_called("acknowledge").await;
    server.claim(&second);
    server.until_called("release").await;
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    assert_eq!(ended.stdout, "ran\n");
    assert!(ended.stderr.contains("run run-1 is not run: 409"), "{}", ended.stderr);
    assert!(server.calls().iter().all(|call| call.token != first.token()), "there are no callbacks of the first bot");
    server.no_mistakes();
}

#[tokio::test]
async fn a_bot_is_not_run_until_its_acknowledgement_is_answered() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let data = server.bot();
    server.tell_always("acknowledge", Some((0, json!(null))));
    let agent = start(for_runner(&server, folder.path()), &[], "echo ran");
    server.claim(&data);
    agent.until_logged("run run-1 is not run: no answer in time").await;
    assert_eq!((agent.printed().as_str(), server.said_names()), ("", vec![]));
    assert!(server.times("acknowledge") > 1, "the acknowledgement is retried");
    // The server still has the run for this runner, and offers it again.
    server.tell_always("acknowledge", None);
    server.until_called("release").await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.stdout, "ran\n");
    assert_eq!(server.said_names(), ["started", "exited"]);
    server.no_mistakes();
}

#[tokio::test]
async fn an_acknowledgement_and_a_release_are_retried_until_they_succeed() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    for name in ["acknowledge", "release"] {
        server.script(name, 0, json!(null), None);
        server.script(name, 503, json!({}), None);
    }
    let agent = start(for_runner(&server, folder.path()), &[], "exit 0");
    server.claim(&server.bot());
    let released = |call: &Call| call.name == "release" && call.status == 200;
    server.until("the release", |state| state.calls.iter().any(released)).await;
    let first = server.times("assignment");
    server.claim(&server.bot());
    server.until_called_times("release", 4).await;
    assert!(server.times("assignment") > first);
    agent.signal("-TERM").await;
    agent.end().await;
    let expected = [
        &["register", "acknowledge", "acknowledge", "acknowledge", "started", "exited", "release", "release"][..],
        &["release", "acknowledge", "started", "exited", "release", "end"],
    ];
    assert_eq!(server.course(), expected.concat());
    server.no_mistakes();
}

#[tokio::test]
async fn a_server_that_is_down_at_a_bots_end_gets_the_end_and_the_release_later() {
    let mut server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::new().await;
    let agent = start(for_runner(&server, folder.path()), &[], &format!("{}; exit 0", gate.pass()));
    let run = server.claim(&server.bot());
    server.until_beat_with(Some(&run)).await;
    server.until_called("started").await;
    server.go_away().await;
    gate.open().await;
    agent.until_logged("log: no connection").await;
    server.come_back().await;
    server.until_called("release").await;
    agent.signal("-TERM").await;
    agent.end().await;
    assert_eq!(server.course()[3..], ["exited", "release", "end"]);
    server.no_mistakes();
}

#[tokio::test]
async fn a_runner_that_the_server_has_released_waits_for_the_next_bot() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.script("release", 409, json!({"code": "stale_run", "detail": "so it is"}), None);
    let gate = Gate::new().await;
    let agent = start(for_runner(&server, folder.path()), &["--leave-grace", "50ms"], &gate.pass());
    server.claim(&server.bot());
    server.until_called("started").await;
    server.machine(|machine| machine.forget_run());
    // A heartbeat's answer says that the run no longer belongs to this runner. The server refuses to release such a
    // run.
    server.until_called("release").await;
    server.claim(&server.bot());
    server.until_called_times("started", 2).await;
    gate.open().await;
    server.until_called_times("release", 2).await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
}
