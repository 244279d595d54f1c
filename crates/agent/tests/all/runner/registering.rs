//! A machine registers when the server and the group are ready for it.

use serde_json::json;

use super::side::{INSTANCE, OWN_TOKEN, POOL_TOKEN};
use super::{MACHINE_ENDS, for_runner, start};
use crate::server::Server;

fn problem(code: &str) -> serde_json::Value {
    json!({"code": code, "detail": "so it is"})
}

#[tokio::test]
async fn a_machine_registers_as_soon_as_the_server_and_its_group_know_it() {
    let mut server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.go_away().await;
    let agent = start(for_runner(&server, folder.path()), &[], "exit 0");
    agent.until_logged("registering: no connection").await;
    server.script("register", 503, json!({}), None);
    server.script("register", 404, problem("not_found"), None);
    server.script("register", 409, problem("already_registered"), None);
    server.script("register", 200, json!("a page of a proxy"), None);
    server.come_back().await;
    server.until_called("beat").await;
    let calls = server.calls();
    let registering: Vec<_> = calls.iter().filter(|call| call.name == "register").collect();
    assert_eq!(registering.iter().map(|call| call.status).collect::<Vec<_>>(), [503, 404, 409, 200, 200]);
    assert!(registering.iter().all(|call| call.token == POOL_TOKEN && call.body["instance_id"] == INSTANCE));
    // An answer may be lost, so each attempt has the same agent id.
    assert!(registering.iter().all(|call| call.body["agent"] == registering[0].body["agent"]));
    assert_ne!(registering[0].body["agent"], json!(null));
    agent.until_logged("registered").await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
    // Before it registers, it asks for the settings of its pool.
    let registered = calls.iter().rposition(|call| call.name == "register").unwrap();
    assert_eq!(calls[..=registered].iter().filter(|call| call.name == "pool_settings").count(), 1);
    let after = server.calls().into_iter().skip(registered + 1);
    assert!(after.into_iter().all(|call| call.token == OWN_TOKEN), "after the registration it uses its own token");
    server.no_mistakes();
}

#[tokio::test]
async fn a_refused_pool_token_is_a_final_error() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.script("register", 401, problem("unauthorized"), None);
    let ended = start(for_runner(&server, folder.path()), &[], "exit 0").end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("does not accept GREENROOM_RUNNER_TOKEN"), "{}", ended.stderr);
    assert_eq!(server.course(), ["register"]);
}

#[tokio::test]
async fn a_machine_that_the_server_has_ended_ends_itself() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.script("register", 410, problem("runner_ended"), None);
    let ended = start(for_runner(&server, folder.path()), &[], "exit 0").end().await;
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), MACHINE_ENDS));
    assert_eq!(server.course(), ["register"]);
}

#[tokio::test]
async fn a_machine_without_a_configured_identity_reads_its_instance_metadata() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.script("metadata-token", 503, json!(""), None);
    let mut command = for_runner(&server, folder.path());
    command.env_remove("GREENROOM_INSTANCE_ID");
    let agent = start(command, &[], "exit 0");
    server.until_called("beat").await;
    let registering = server.calls().into_iter().find(|call| call.name == "register").unwrap();
    assert_eq!(registering.body["instance_id"], INSTANCE);
    agent.signal("-TERM").await;
    agent.end().await;
    server.no_mistakes();
}

#[tokio::test]
async fn a_machine_without_any_identity_says_how_to_configure_it() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.tell_always("metadata-token", Some((403, json!(""))));
    let mut command = for_runner(&server, folder.path());
    command.env_remove("GREENROOM_INSTANCE_ID");
    let ended = start(command, &[], "exit 0").end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("403 Forbidden); set GREENROOM_INSTANCE_ID"), "{}", ended.stderr);
    assert_eq!(server.course(), [""; 0]);
}

#[tokio::test]
async fn missing_environment_variables_are_named() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    for name in ["GREENROOM_URL", "GREENROOM_RUNNER_TOKEN"] {
        let mut command = for_runner(&server, folder.path());
        command.env_remove(name);
        let ended = start(command, &[], "exit 0").end().await;
        assert_eq!(ended.code, Some(2));
        assert!(ended.stderr.contains(&format!("{name} is not set")), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn a_runner_that_the_server_has_forgotten_registers_again() {
    for forgotten in ["beat", "assignment"] {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        server.script(forgotten, 401, problem("unauthorized"), None);
        let agent = start(for_runner(&server, folder.path()), &[], "exit 0");
        server.until_called_times("register", 2).await;
        server.claim(&server.bot());
        server.until_called("release").await;
        agent.signal("-TERM").await;
        assert_eq!(agent.end().await.code, Some(0));
        assert_eq!(server.course()[2..], ["acknowledge", "started", "exited", "release", "end"]);
        server.no_mistakes();
    }
}

#[tokio::test]
async fn an_agent_that_is_registering_ends_at_once_when_asked() {
    let mut server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.go_away().await;
    let agent = start(for_runner(&server, folder.path()), &[], "exit 0");
    agent.until_logged("registering: no connection").await;
    agent.signal("-TERM").await;
    let ended = agent.end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
}
