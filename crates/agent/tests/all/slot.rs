//! A hot slot: the agent starts before its bots and stays after them.

use serde_json::json;

use crate::agent::{Agent, for_slot, lives};
use crate::server::{SLOT_TOKEN, Server};

#[tokio::test]
async fn a_slot_runs_one_bot_after_the_other_without_traces_of_the_one_before() {
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
        .until("the second bot's `joined`", |state| {
            state.calls.iter().filter(|call| call.name == "joined").count() == 2
        })
        .await;
    assert_eq!(of_first.iter().filter(|id| lives(id)).count(), 0, "files and processes of the first bot are gone");

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
async fn a_slot_continues_after_a_crash_and_after_an_assignment_that_has_ended() {
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
    server.until("the third bot's `joined`", |state| state.calls.iter().any(third_joined)).await;
    agent.signal("-TERM").await;
    assert_eq!(agent.end().await.code, Some(0));
}

#[tokio::test]
async fn a_slot_waits_for_a_server_that_is_down() {
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
async fn a_waiting_agent_ends_at_once_when_asked() {
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

const MIB: u64 = 1024 * 1024;

/// The figures that came with the polls of an agent, in their order.
fn figures(state: &crate::server::State) -> Vec<Option<u64>> {
    state.calls.iter().filter(|call| call.name == "assignment").map(|call| call.memory_bytes).collect()
}

#[tokio::test]
async fn each_poll_says_how_much_memory_the_agent_and_its_descendants_use() {
    let alone = Server::start().await;
    alone.tell_always("assignment", Some((204, json!(null))));
    let agent = Agent::start(for_slot(&alone), &[], "exit 0");
    alone.until("two polls", |state| figures(state).len() >= 2).await;
    drop(agent);
    let of_agent = alone.calls().iter().map(|call| call.memory_bytes.expect("each poll has a figure")).max().unwrap();
    assert!((MIB / 4..200 * MIB).contains(&of_agent), "{of_agent}");

    // A process becomes an agent after it has started a child, whose child in turn keeps 64 MiB.
    let server = Server::start().await;
    server.tell_always("assignment", Some((204, json!(null))));
    let script = r#"sh -c '{ head -c 67108864 /dev/zero; sleep 1000; } | tail -n 1; true' & exec "$0" -- true"#;
    let mut command = tokio::process::Command::new("sh");
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).kill_on_drop(true);
    command.env("GREENROOM_URL", server.url()).env("GREENROOM_SLOT_TOKEN", SLOT_TOKEN);
    // Its own group, so that the test can end all of it.
    command.process_group(0).stdin(std::process::Stdio::null());
    let child = command.args(["-c", script, env!("CARGO_BIN_EXE_greenroom-agent")]).spawn().unwrap();
    let expected = of_agent + 60 * MIB..of_agent + 90 * MIB;
    let is_expected = |bytes: &Option<u64>| bytes.is_some_and(|bytes| expected.contains(&bytes));
    server.until("a figure with those 64 MiB", |state| figures(state).iter().any(is_expected)).await;
    let group = format!("-{}", child.id().unwrap());
    assert!(tokio::process::Command::new("kill").args(["-KILL", "--", &group]).status().await.unwrap().success());
}
