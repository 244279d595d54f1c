//! Placement answers many requests after one commit. A crash of the database must take back
//! nothing that was answered.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::support::{ADMIN_TOKEN, Client, Database, PrivatePostgres, Process, meet_link, until};

const CLIENTS: usize = 16;
const REQUESTS: usize = 30;
const CRASHES: usize = 4;

/// Bots wait in the queue of one slot, so that nothing but requests happens.
const POOL: &str = "[[pool]]\nname = \"google-meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
                    process = { command = [\"sleep\", \"600\"] }\n";

/// Sends one request until it is answered, and returns the ids of all bots that were acknowledged for it.
async fn ask_until_answered(user: &Client, number: usize) -> HashSet<String> {
    let mut acknowledged = HashSet::new();
    let key = format!("request-{number}");
    until("the request is answered", async || {
        let request = user.request(Method::POST, "/bots").header("Idempotency-Key", &key);
        let Ok(response) = request.json(&json!({"meeting_url": meet_link(number)})).send().await else { return false };
        if ![StatusCode::CREATED, StatusCode::OK].contains(&response.status()) {
            return false;
        }
        let body: serde_json::Value = response.json().await.unwrap();
        acknowledged.insert(body["bot"]["id"].as_str().unwrap().to_owned())
    })
    .await;
    acknowledged
}

/// Sends the requests of one client, one after the other, and returns its bots.
async fn ask_all(user: &Client, client: usize, answered: &AtomicUsize) -> HashSet<String> {
    let mut bots = HashSet::new();
    for request in 0..REQUESTS {
        let acknowledged = ask_until_answered(user, client * REQUESTS + request).await;
        assert_eq!(acknowledged.len(), 1, "one key, one bot");
        bots.extend(acknowledged);
        answered.fetch_add(1, Ordering::SeqCst);
    }
    bots
}

#[tokio::test]
async fn a_crash_of_postgres_takes_back_nothing_that_was_answered() {
    let mut postgres = PrivatePostgres::start().await;
    let database = Database { url: postgres.url(), folder: tempfile::tempdir().unwrap() };
    let server = Process::start_configured(&database, POOL).await;
    let user = Client::new(&server.url, ADMIN_TOKEN).user(10_000).await;
    let answered = AtomicUsize::new(0);
    let clients = join_all((0..CLIENTS).map(|client| ask_all(&user, client, &answered)));
    let crashes = async {
        for crash in 1..=CRASHES {
            let then = crash * CLIENTS * REQUESTS / (CRASHES + 1);
            until("some requests are answered", async || answered.load(Ordering::SeqCst) >= then).await;
            postgres.crash().await;
            postgres.start_again().await;
        }
    };
    let (bots, ()) = tokio::join!(clients, crashes);
    let acknowledged: HashSet<String> = bots.into_iter().flatten().collect();
    assert_eq!(acknowledged.len(), CLIENTS * REQUESTS, "each request has a bot of its own");

    let mut stored = HashSet::new();
    let mut path = "/bots?limit=100".to_owned();
    loop {
        let page = user.get(&path).await;
        stored.extend(page["bots"].as_array().unwrap().iter().map(|bot| bot["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/bots?limit=100&cursor={cursor}");
    }
    let lost: Vec<_> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let doubled: Vec<_> = stored.difference(&acknowledged).collect();
    assert!(doubled.is_empty(), "bots that no request asked for: {doubled:?}");
}
