//! `GET /readyz`: whether the store accepts writes. The server finds out by writing itself.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Backend, Database, PrivatePostgres, Process, meet_link, until};

async fn ready(server: &Process) -> (StatusCode, Value) {
    server.client("").send(Method::GET, "/readyz", None).await
}

async fn until_ready(server: &Process) {
    until("it is ready", async || ready(server).await.0 == StatusCode::OK).await;
}

async fn until_not_ready(server: &Process) {
    until("it is not ready", async || {
        let (status, answer) = ready(server).await;
        if status == StatusCode::OK {
            return false;
        }
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!((&answer["store"], &answer["code"]), (&json!("away"), &json!("unavailable")));
        assert_eq!(
            answer["detail"], "the database does not accept writes",
            "the answer has no message of the database"
        );
        true
    })
    .await;
}

#[tokio::test]
async fn on_a_full_disk_the_server_is_not_ready_until_it_can_write_again() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_on_small_disk(&database).await;
    let user = server.admin().user(500).await;
    user.bot(&meet_link(1)).await;
    assert_eq!(ready(&server).await.1["store"], "ok");
    server.limit_files(Some(database.largest_file() + 3_000)).await;
    // Only the server itself writes.
    until_not_ready(&server).await;
    let (status, _) = user.post("/bots", json!({"meeting_url": meet_link(2)})).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "the answer names the cause");
    server.limit_files(None).await;
    until_ready(&server).await;
    user.bot(&meet_link(3)).await;
}

#[tokio::test]
async fn without_postgres_the_server_is_not_ready_until_it_is_back() {
    let mut postgres = PrivatePostgres::start().await;
    let database = Database { url: postgres.url(), folder: tempfile::tempdir().unwrap() };
    let server = Process::start(&database).await;
    until_ready(&server).await;
    postgres.stop().await;
    until_not_ready(&server).await;
    // The answer is in memory: no caller waits for the database.
    for _ in 0..100 {
        assert_eq!(ready(&server).await.0, StatusCode::SERVICE_UNAVAILABLE);
    }
    postgres.start_again().await;
    until_ready(&server).await;
}
