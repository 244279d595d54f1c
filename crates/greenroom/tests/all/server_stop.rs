//! An orderly stop finishes the requests that have arrived, and no others.

use std::time::Duration;

use serde_json::json;
use sqlx::Connection;

use crate::support::{Backend, Client, Database, Process, Raw, meet_link, until};

/// Open requests have 5 s. The rest of the stop takes a moment, also on a busy machine.
const STOPS_WITHIN: Duration = Duration::from_secs(9);

async fn expect_stop(server: Process) {
    server.terminate().await;
    assert!(tokio::time::timeout(STOPS_WITHIN, server.wait()).await.expect("the server stops in time"));
}

fn get(path: &str, client: &Client) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n", client.token())
}

/// A user whose list of bots is larger than the kernel's buffers.
async fn with_large_bots(server: &Process) -> Client {
    let user = server.admin().user(20).await;
    let large = json!({"text": "x".repeat(60 * 1024)});
    for number in 0..10 {
        user.ask(json!({"meeting_url": meet_link(number), "config": large, "metadata": large})).await;
    }
    user
}

/// Waits until the server no longer accepts connections.
async fn has_heard_to_stop(server: &Process) {
    let address = server.url.strip_prefix("http://").unwrap();
    until("the server accepts no connections", async || tokio::net::TcpStream::connect(address).await.is_err()).await;
}

#[tokio::test]
async fn incomplete_heads_and_idle_connections_do_not_delay_a_stop() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let mut half = Raw::sending(&server, "G").await;
    let mut silent = Raw::connect(&server).await;
    let mut idle = Raw::sending(&server, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(idle.read().await.starts_with("HTTP/1.1 200"));
    idle.send("GET /healthz HTTP/1.1\r\nhost:").await;
    expect_stop(server).await;
    for raw in [&mut half, &mut silent, &mut idle] {
        assert_eq!(raw.read_all().await, "");
    }
}

#[tokio::test]
async fn unread_answers_do_not_delay_a_stop() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = with_large_bots(&server).await;
    let unread = Raw::sending(&server, &get("/bots?limit=1000", &user)).await;
    unread.stream.readable().await.unwrap();
    expect_stop(server).await;
}

#[tokio::test]
async fn pipelined_requests_behind_the_first_do_not_delay_a_stop() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = with_large_bots(&server).await;
    let unread = Raw::sending(&server, &get("/bots?limit=1000", &user).repeat(50)).await;
    unread.stream.readable().await.unwrap();
    let mut read = Raw::sending(&server, &get("/bots?limit=1", &user).repeat(50)).await;
    assert!(read.read().await.starts_with("HTTP/1.1 200"));
    expect_stop(server).await;
}

#[tokio::test]
async fn a_missing_body_delays_a_stop_for_a_moment_and_is_answered() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(1).await;
    let head = format!(
        "POST /bots HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 100\r\n\r\n{{",
        user.token()
    );
    let mut half = Raw::sending(&server, &head).await;
    until("it has arrived", async || {
        server.client("").text("/metrics").await.contains("greenroom_http_requests_under_way 2")
    })
    .await;
    expect_stop(server).await;
    let answer = half.read_all().await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn a_stop_finishes_a_slow_request() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(1).await;
    user.get("/bots").await;
    let mut holder = sqlx::SqliteConnection::connect(&database.url).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut holder).await.unwrap();
    let requests = tokio::spawn({
        let user = user.clone();
        async move { user.ask(json!({"meeting_url": meet_link(1)})).await }
    });
    until("it has arrived", async || {
        server.client("").text("/metrics").await.contains("greenroom_http_requests_under_way 2")
    })
    .await;
    server.terminate().await;
    has_heard_to_stop(&server).await;
    sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
    let bot = requests.await.unwrap();
    assert!(tokio::time::timeout(STOPS_WITHIN, server.wait()).await.expect("the server stops in time"));
    let server = Process::start(&database).await;
    user.on(&server.url).show_bot(bot["id"].as_str().unwrap()).await;
}
