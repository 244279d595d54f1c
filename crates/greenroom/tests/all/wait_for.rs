//! `GET /bots/{id}?wait_for=…` answers when the bot has the status, when the bot has ended, or after the given time.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::json;

use crate::support::{Backend, Client, Database, Life, Process, Raw, meet_link, until};

/// Longer than any expected event takes.
const PATIENCE: Duration = Duration::from_secs(55);

fn wait(user: &Client, bot: &str, query: &str) -> tokio::task::JoinHandle<serde_json::Value> {
    let (user, path) = (user.clone(), format!("/bots/{bot}?{query}"));
    tokio::spawn(async move { user.get(&path).await["bot"].take() })
}

async fn answered(waiting: tokio::task::JoinHandle<serde_json::Value>) -> serde_json::Value {
    tokio::time::timeout(PATIENCE, waiting).await.expect("the answer comes before the time is over").unwrap()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn wait_for_answers_when_the_bot_has_the_status(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    // The time is over at once, and the answer has the bot's current status.
    assert_ne!(answered(wait(&user, &bot, "wait_for=active&wait_ms=0")).await["status"], "active");
    let [active, ended] =
        ["active", "ended"].map(|state| wait(&user, &bot, &format!("wait_for={state}&wait_ms=60000")));
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    assert_eq!(answered(active).await["status"], "active");
    assert!(!ended.is_finished());
    life.report("exited", json!({"exit_code": 3})).await;
    let ended = answered(ended).await;
    assert_eq!((&ended["status"], &ended["reason"]), (&json!("failed"), &json!("crashed")));
    assert!(ended["sessions"].is_array(), "the same answer as without waiting");
    // The bot can never become active.
    assert_eq!(answered(wait(&user, &bot, "wait_for=active&wait_ms=60000")).await["status"], "failed");
}

#[tokio::test]
async fn wait_for_answers_when_the_server_stops() {
    let database = Database::new(Backend::Sqlite).await;
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\n\
                process = { command = [\"sleep\", \"1000\"] }\n";
    let server = Process::start_configured(&database, pool).await;
    let user = server.admin().user(3).await;
    let bot = user.bot(&meet_link(1)).await;
    let request = format!(
        "GET /bots/{bot}?wait_for=ended&wait_ms=60000 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        user.token()
    );
    let mut waiting = Raw::sending(&server, &request).await;
    until("it has arrived", async || {
        server.client("").text("/metrics").await.contains("greenroom_http_requests_under_way 2")
    })
    .await;
    server.terminate().await;
    assert!(tokio::time::timeout(PATIENCE, server.wait()).await.unwrap());
    assert!(waiting.read_all().await.starts_with("HTTP/1.1 200"), "the answer has the current status");
}

#[tokio::test]
async fn wait_for_is_checked_and_another_users_bot_is_not_found() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (user, other) = (server.admin().user(3).await, server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    for query in
        ["wait_for=there", "wait_for=active&wait_ms=60001", "wait_ms=10", "wait=active", "wait_for=active&wait_ms=x"]
    {
        let (status, problem) = user.send(Method::GET, &format!("/bots/{bot}?{query}"), None).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{query}: {problem}");
    }
    let (status, _) = other.send(Method::GET, &format!("/bots/{bot}?wait_for=ended"), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_answer_for_a_new_bot_has_its_location() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    for path in ["/bots", "/bots/start"] {
        let request = user.request(Method::POST, path).json(&json!({"meeting_url": meet_link(path.len())}));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        let location = response.headers()["location"].to_str().unwrap().to_owned();
        let bot = response.json::<serde_json::Value>().await.unwrap()["bot"]["id"].take();
        assert_eq!(location, format!("/bots/{}", bot.as_str().unwrap()));
    }
}
