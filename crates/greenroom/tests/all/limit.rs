//! The limit holds, however many requests arrive at once and through however many processes.

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::json;

use crate::support::{Backend, Client, Database, Process, meet_link};

/// Sends a hundred requests at once, and returns the answers.
async fn hundred(clients: &[Client], link: impl Fn(usize) -> String) -> Vec<(StatusCode, serde_json::Value)> {
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..100 {
        let client = clients[number % clients.len()].clone();
        let body = json!({"meeting_url": link(number)});
        requests.spawn(async move { client.post("/bots", body).await });
    }
    requests.join_all().await
}

fn expect_three_and_97_clean_refusals(answers: &[(StatusCode, serde_json::Value)]) {
    let made = answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).count();
    let refused = answers
        .iter()
        .filter(|(status, body)| *status == StatusCode::TOO_MANY_REQUESTS && body["code"] == "limit_reached")
        .count();
    assert_eq!((made, refused), (3, 97), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_parallel_requests_over_two_processes_on_one_postgres_make_exactly_three_bots() {
    let database = Database::new(Backend::Postgres).await;
    let (left, right) = tokio::join!(Process::start(&database), Process::start(&database));
    let user = left.admin().user(3).await;
    let clients = [user.clone(), user.on(&right.url)];
    expect_three_and_97_clean_refusals(&hundred(&clients, meet_link).await);
    assert_eq!(user.get("/bots").await["bots"].as_array().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_parallel_requests_to_one_process_on_sqlite_make_exactly_three_bots() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    expect_three_and_97_clean_refusals(&hundred(std::slice::from_ref(&user), meet_link).await);
    assert_eq!(user.get("/bots").await["bots"].as_array().unwrap().len(), 3);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_parallel_requests_for_one_meeting_put_one_bot_in_it(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(50).await;
    let answers = hundred(std::slice::from_ref(&user), |_| meet_link(1)).await;
    let made: Vec<_> = answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).collect();
    assert_eq!(made.len(), 1);
    let id = &made[0].1["bot"]["id"];
    let refused = answers
        .iter()
        .filter(|(status, body)| {
            *status == StatusCode::CONFLICT && body["code"] == "duplicate_bot" && body["bot_id"] == *id
        })
        .count();
    assert_eq!(refused, 99);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_parallel_requests_under_one_idempotency_key_make_one_bot(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(50).await;
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let request = user.request(reqwest::Method::POST, "/bots").header("Idempotency-Key", "one");
        let request = request.json(&json!({"meeting_url": meet_link(1)}));
        requests.spawn(async move {
            let response = request.send().await.unwrap();
            (response.status(), response.json::<serde_json::Value>().await.unwrap()["bot"]["id"].clone())
        });
    }
    let answers = requests.join_all().await;
    assert_eq!(answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).count(), 1);
    assert_eq!(answers.iter().filter(|(status, _)| *status == StatusCode::OK).count(), 99);
    assert!(answers.iter().all(|(_, id)| *id == answers[0].1));
}

#[tokio::test]
async fn a_limit_of_zero_means_none() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(0).await;
    let request = user.request(reqwest::Method::POST, "/bots").json(&json!({"meeting_url": meet_link(1)}));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(response.headers()["retry-after"].to_str().unwrap().parse::<u32>().unwrap() > 0);
    assert_eq!(response.json::<serde_json::Value>().await.unwrap()["code"], "limit_reached");
}

#[tokio::test]
async fn ended_and_stopping_bots_make_room() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(1).await;
    let first = user.bot(&meet_link(1)).await;
    let (status, _) = user.post("/bots", json!({"meeting_url": meet_link(2)})).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let life = crate::support::Life::assign(&server.admin(), &first).await;
    life.report("started", json!({})).await;
    let (status, stopped) = user.send(reqwest::Method::DELETE, &format!("/bots/{first}"), None).await;
    assert_eq!((status, &stopped["bot"]["status"]), (StatusCode::ACCEPTED, &json!("stopping")));
    let second = user.bot(&meet_link(1)).await;
    let usage = user.get("/bots/status").await;
    assert_eq!((&usage["running"], &usage["max_concurrent_bots"]), (&json!(1), &json!(1)));
    assert_eq!((&usage["by_status"]["stopping"], &usage["by_status"]["deploying"]), (&json!(1), &json!(1)));
    assert_eq!(usage["bots"].as_array().unwrap().len(), 2);
    // Leaving and running bots together never exceed twice the limit.
    user.send(reqwest::Method::DELETE, &format!("/bots/{second}"), None).await;
    let (status, refused) = user.post("/bots", json!({"meeting_url": meet_link(3)})).await;
    assert_eq!((status, &refused["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("limit_reached")));
    assert!(refused["detail"].as_str().unwrap().contains("still stopping"), "{refused}");
    life.report("exited", json!({"exit_code": 0})).await;
    user.bot(&meet_link(3)).await;
}
