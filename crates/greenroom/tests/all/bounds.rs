//! A caller that does not read its answers, sends too much, or is refused too often costs the server little. Other
//! callers do not notice it.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::Connection;
use tokio::task::JoinSet;

use crate::support::{Backend, Client, Database, Process, Raw, found, meet_link, until};

const MIB: u64 = 1024 * 1024;
const POOL: &str = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 2000\n\
                    process = { command = [\"true\"] }\n";

fn get(path: &str, client: &Client) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n", client.token())
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_take_little_memory_and_do_not_delay_other_users() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (user, other) = (server.admin().user(400).await, server.admin().user(3).await);
    let large = json!({"text": "x".repeat(64 * 1024 - 100)});
    let mut requests = JoinSet::new();
    for number in 0..300 {
        let (user, large) = (user.clone(), large.clone());
        requests.spawn(async move {
            let bot_request = json!({"meeting_url": meet_link(number), "config": large, "metadata": large});
            user.ask(bot_request).await;
        });
        if number % 10 == 9 {
            while requests.join_next().await.is_some() {}
        }
    }
    let mut unread = Vec::new();
    for _ in 0..80 {
        unread.push(Raw::sending(&server, &get("/bots?limit=1000", &user)).await);
    }
    let begun = Instant::now();
    let mut most = 0;
    while begun.elapsed() < Duration::from_secs(4) {
        most = most.max(server.resident_bytes());
        other.get("/bots").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(most < 300 * MIB, "{} MiB", most / MIB);
    // While enough answers are unread, the server refuses one more request of this user.
    let refusal = found("it is refused", async || {
        unread.push(Raw::sending(&server, &get("/bots?limit=1000", &user)).await);
        let response = user.request(Method::GET, "/bots?limit=1000").send().await.unwrap();
        (response.status() != StatusCode::OK).then_some(response)
    })
    .await;
    assert_eq!(
        (refusal.status(), refusal.headers()["retry-after"].to_str().unwrap()),
        (StatusCode::SERVICE_UNAVAILABLE, "1")
    );
    assert_eq!(refusal.json::<serde_json::Value>().await.unwrap()["code"], "overloaded");
    drop(unread);
    until("the request is accepted again", async || {
        user.send(Method::GET, "/bots?limit=5", None).await.0 == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn an_unknown_key_is_refused_before_its_body_and_does_not_reach_placement() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let forged = "grk_AAAAAAAAAAAAAAAAAAAAAA_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";
    for token in [forged, "grb_nonsense", "nonsense"] {
        // The request announces a body and sends nothing of it. A server that waits for the body would wait for 30 s.
        let head = format!(
            "POST /bots HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: 1000000\r\n\r\n"
        );
        let answer = Raw::sending(&server, &head).await.read_all().await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    let (status, _) = server.client(forged).post("/bots", json!({"meeting_url": meet_link(1)})).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let metrics = server.client("").text("/metrics").await;
    assert!(!metrics.contains("call=\"bots.known\""), "the key reached placement's transaction");
    let series = "greenroom_database_call_duration_seconds_count{call=\"keys.read\",";
    let lookups = metrics.lines().find(|line| line.starts_with(series));
    assert!(lookups.unwrap().ends_with(" 1"), "the server looks up the same key once: {lookups:?}");
}

#[tokio::test]
async fn connections_past_the_limit_are_refused_at_once_and_those_that_are_open_are_served() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_configured(&database, &format!("[limits]\nconnections = 5\n{POOL}")).await;
    let mut open = Vec::new();
    for _ in 0..5 {
        open.push(Raw::sending(&server, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await);
    }
    for raw in &mut open {
        assert!(raw.read().await.starts_with("HTTP/1.1 200"));
    }
    let answer = Raw::connect(&server).await.read_all().await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"overloaded\""), "{answer}");
    assert!(answer.contains("retry-after: 1"), "{answer}");
    for raw in &mut open {
        raw.send("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(raw.read().await.starts_with("HTTP/1.1 200"));
    }
    open.pop();
    until("another one is accepted", async || {
        let mut raw = Raw::sending(&server, "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        raw.read_all().await.starts_with("HTTP/1.1 200")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_above_the_limit_of_placement_are_refused_and_waiting_ones_are_placed() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_configured(&database, &format!("[limits]\nwaiting_requests = 3\n{POOL}")).await;
    let user = server.admin().user(9).await;
    user.get("/bots").await;
    // Nothing can be placed while another connection holds the database.
    let mut holder = sqlx::SqliteConnection::connect(&database.url).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut holder).await.unwrap();
    let mut requests = JoinSet::new();
    for number in 0..8 {
        let user = user.clone();
        requests.spawn(async move {
            let request = user.request(Method::POST, "/bots").json(&json!({"meeting_url": meet_link(number)}));
            let answer = request.send().await.unwrap();
            let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
            (answer.status(), retry_after, answer.json::<Value>().await.unwrap())
        });
    }
    for _ in 0..5 {
        let (status, retry_after, answer) = requests.join_next().await.unwrap().unwrap();
        assert_eq!((status, &answer["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")), "{answer}");
        assert_eq!(retry_after.as_deref(), Some("1"), "the answer says when to retry");
    }
    sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
    for (status, retry_after, answer) in requests.join_all().await {
        assert_eq!((status, retry_after), (StatusCode::CREATED, None), "{answer}");
    }
}

#[tokio::test]
async fn a_request_head_that_does_not_end_is_not_kept() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let head = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: {}", "x".repeat(64 * 1024));
    let mut raw = Raw::connect(&server).await;
    // The server may close the connection before everything is sent.
    let _ = tokio::io::AsyncWriteExt::write_all(&mut raw.stream, head.as_bytes()).await;
    let answer = raw.read_all().await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}
