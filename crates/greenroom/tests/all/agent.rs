//! The agent with the real server: a bot that only prints and reads lines goes through its whole life.

use std::process::Stdio;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::json;

use crate::support::{Backend, Client, Database, Process, meet_link};

/// The agent's binary is beside the server's binary if the whole workspace was built.
fn agent() -> tokio::process::Command {
    let path = std::path::Path::new(env!("CARGO_BIN_EXE_greenroom")).with_file_name("greenroom-agent");
    assert!(path.exists(), "greenroom-agent is not built; ./scripts/test builds the whole workspace");
    let mut command = tokio::process::Command::new(path);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn until(user: &Client, bot: &str, status: &str) {
    while user.get(&format!("/bots/{bot}")).await["bot"]["status"] != status {}
}

const BOT: &str = r#"
    echo '{"event": "status", "status": "awaiting_admission", "reason": "knocking"}'
    echo '{"event": "joined"}'
    echo '{"event": "transcript", "segments": [{"start_time": 0, "end_time": 1, "text": "Hello."}]}'
    while read line; do case "$line" in *leave*) exit 0;; esac; done
"#;

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_only_prints_and_reads_lines_goes_through_its_whole_life(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    let (status, data) = admin.post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;
    assert_eq!(status, StatusCode::CREATED);
    let mut running = agent().args(["--", "sh", "-c", BOT]).env("BOT_DATA", data.to_string()).spawn().unwrap();
    until(&user, &bot, "active").await;
    while user.get(&format!("/bots/{bot}/transcript")).await["segments"].as_array().unwrap().is_empty() {}
    let (status, _) = user.send(Method::DELETE, &format!("/bots/{bot}"), None).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    until(&user, &bot, "completed").await;
    assert_eq!(user.get(&format!("/bots/{bot}")).await["bot"]["reason"], "stopped");
    assert!(running.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_bot_lives_on_through_a_kill_9_of_the_server() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    let (_, data) = admin.post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;
    let mut running = agent().args(["--", "sh", "-c", BOT]).env("BOT_DATA", data.to_string()).spawn().unwrap();
    until(&user, &bot, "active").await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    server.kill().await;
    let server = Process::start_at(&database, &address).await;
    let user = user.on(&server.url);
    assert_eq!(user.get(&format!("/bots/{bot}")).await["bot"]["status"], "active");
    user.send(Method::DELETE, &format!("/bots/{bot}"), None).await;
    until(&user, &bot, "completed").await;
    assert!(running.wait().await.unwrap().success());
}
