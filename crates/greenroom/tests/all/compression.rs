//! Answers as gzip: which of them, and for whom. `live.rs` has the compressed stream.

use std::io::Read;

use flate2::read::GzDecoder;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Process, meet_link, process_pool};

async fn server() -> (Process, Database) {
    let database = Database::new(Backend::Sqlite).await;
    let pool = process_pool("meet", "max_slots = 1", "sleep 1000");
    (Process::start_configured(&database, &pool).await, database)
}

/// The answer to a request that accepts gzip: whether it is compressed, and its JSON.
async fn answer(client: &Client, method: Method, path: &str, body: Option<Value>) -> (bool, Value) {
    let mut request = client.request(method, path).header(ACCEPT_ENCODING, "gzip, br");
    if let Some(body) = body {
        request = request.json(&body);
    }
    let response = request.send().await.unwrap();
    assert!(response.status().is_success(), "{path}: {}", response.status());
    let is_compressed = response.headers().get(CONTENT_ENCODING).is_some_and(|coding| coding == "gzip");
    let bytes = response.bytes().await.unwrap();
    let mut text = String::new();
    match is_compressed {
        true => GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap(),
        false => (&bytes[..]).read_to_string(&mut text).unwrap(),
    };
    (is_compressed, serde_json::from_str(&text).unwrap())
}

#[tokio::test]
async fn a_list_and_a_page_are_compressed_for_clients_that_accept_it() {
    let (server, _database) = server().await;
    let (admin, user) = (server.admin(), server.admin().user(100).await);
    for number in 0..20 {
        user.bot(&meet_link(number)).await;
    }
    let (is_compressed, bots) = answer(&user, Method::GET, "/bots", None).await;
    assert!(is_compressed);
    assert_eq!(bots["bots"].as_array().unwrap().len(), 20);
    let (is_compressed, document) = answer(&admin, Method::GET, "/openapi.json", None).await;
    assert!(is_compressed && document["openapi"].is_string());
    let (is_compressed, _) = answer(&admin, Method::GET, "/admin/keepers", None).await;
    assert!(is_compressed);
    let (is_compressed, _) = answer(&admin, Method::GET, "/admin/pools/meet", None).await;
    assert!(!is_compressed, "it is small");

    let plain = admin.request(Method::GET, "/openapi.json").send().await.unwrap();
    assert!(!plain.headers().contains_key(CONTENT_ENCODING));
    assert_eq!(plain.headers()[VARY], "accept-encoding");
    let length: u64 = plain.headers()[CONTENT_LENGTH].to_str().unwrap().parse().unwrap();
    assert_eq!(length, plain.bytes().await.unwrap().len() as u64);
    let refused = admin.request(Method::GET, "/openapi.json").header(ACCEPT_ENCODING, "gzip;q=0").send().await.unwrap();
    assert!(!refused.headers().contains_key(CONTENT_ENCODING));
}

#[tokio::test]
async fn an_answer_with_a_key_or_a_token_is_never_compressed() {
    let (server, _database) = server().await;
    let admin = server.admin();
    // Large enough to be compressed otherwise.
    let long = json!({ "text": "x".repeat(4_000) });
    let body = json!({"email": "a@example.com", "name": "A", "max_concurrent_bots": 1, "data": long});
    let (is_compressed, user) = answer(&admin, Method::POST, "/admin/users", Some(body)).await;
    assert!(!is_compressed && user["api_key"].is_string());
    let owner = admin.with(user["api_key"].as_str().unwrap());
    let (status, made) = owner.post("/bots", json!({"meeting_url": meet_link(0), "config": long})).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let bot = made["bot"]["id"].as_str().unwrap();
    let assignment = format!("/admin/bots/{bot}/assignment");
    let (is_compressed, data) = answer(&admin, Method::POST, &assignment, Some(json!({}))).await;
    assert!(!is_compressed && data["token"].is_string());
    // The same bot without its token.
    let (is_compressed, shown) = answer(&owner, Method::GET, &format!("/bots/{bot}"), None).await;
    assert!(is_compressed);
    assert_eq!(shown["bot"]["config"], long);
}
