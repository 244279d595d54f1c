//! Connections to the database: reads of users never delay the callbacks of bots.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use domain::ConnectionId;
use greenroom::store::{Beat, Store};
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::json;
use sqlx::Connection;

use domain::planner::Changes;

use crate::support::{Backend, Client, Database, Life, Process, meet_link, until};

/// More reads than there are connections of any kind, spread over enough users that no user reaches its own limit.
const READERS: usize = 20;
const READS_EACH: usize = 3;
/// Shorter than the time for which a call waits for a connection, so that such a wait fails the test.
const SOON: Duration = Duration::from_secs(20);

/// Makes reads of transcripts block while the server lives, or until the returned connection is dropped.
async fn hold_transcripts(database: &Database, backend: Backend) -> Option<sqlx::PgConnection> {
    if backend == Backend::Sqlite {
        let endless = "DROP TABLE transcript_segments;
            CREATE VIEW transcript_segments AS
            WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000000000000)
            SELECT n AS id, 'nobody' || n AS bot_id, '' AS connection_id, '' AS digest, 0.0 AS start_time,
                   0.0 AS end_time, '' AS text, NULL AS speaker, NULL AS language FROM numbers";
        database.execute(endless).await;
        return None;
    }
    let mut connection = sqlx::PgConnection::connect(&database.url).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE transcript_segments IN ACCESS EXCLUSIVE MODE")
        .execute(&mut connection)
        .await
        .unwrap();
    Some(connection)
}

async fn soon<T>(what: &str, call: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, call).await.unwrap_or_else(|_| panic!("{what} waits for a connection"))
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn callbacks_and_placement_work_while_reads_hold_every_connection_of_users(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(10).await);
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&admin, &bot).await;
    life.report("started", json!({})).await;

    let mut readers: Vec<(Client, String)> = Vec::new();
    for number in 0..READERS {
        let reader = admin.user(1).await;
        let path = format!("/bots/{}/transcript", reader.bot(&meet_link(100 + number)).await);
        readers.push((reader, path));
    }
    let held = hold_transcripts(&database, backend).await;
    let mut reads = tokio::task::JoinSet::new();
    for number in 0..READERS * READS_EACH {
        let (reader, path) = readers[number % READERS].clone();
        reads.spawn(async move { reader.try_send(Method::GET, &path, None).await });
    }
    until("a user's read finds no connection", async || {
        tokio::time::timeout(Duration::from_millis(500), user.show_bot(&bot)).await.is_err()
    })
    .await;

    for _ in 0..20 {
        soon("a heartbeat", life.report("heartbeat", json!({}))).await;
    }
    soon("a callback", life.report("joined", json!({}))).await;
    let (status, answer) = soon("placement", user.post("/bots", json!({"meeting_url": meet_link(2)}))).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let ready = soon("readiness", server.client("").get("/readyz")).await;
    assert_eq!(ready["store"], "ok");
    assert!(reads.try_join_next().is_none(), "the reads were blocked all the time");
    reads.abort_all();
    drop(held);
}

#[tokio::test]
async fn on_sqlite_a_heartbeat_and_a_placement_wait_behind_one_write_of_a_user_and_not_behind_a_hundred() {
    let database = Database::new(Backend::Sqlite).await;
    let store = database.open().await;
    let held = store.for_users().begin().await.unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let mut writes = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (users, written) = (store.for_users(), written.clone());
        writes.spawn(async move {
            let tx = users.begin().await.unwrap();
            written.fetch_add(1, Ordering::SeqCst);
            tx.commit().await.unwrap();
        });
    }
    // The tasks run on this thread, and are in the queue after they have run once.
    tokio::task::yield_now().await;
    let token = store.placement_position().await.unwrap().token;
    let after = |store: Store, placement: bool| {
        let written = written.clone();
        async move {
            if placement {
                let tokens = (token, uuid::Uuid::new_v4());
                let (nothing, details) = (Changes::default(), Default::default());
                let write = store.prepare(&nothing, &details, tokens, None, jiff::Timestamp::now()).unwrap();
                store.write(write, None).await.unwrap();
            } else {
                let beat = Beat { connection_id: ConnectionId(uuid::Uuid::new_v4()), at: jiff::Timestamp::now() };
                store.write_heartbeats(&[beat]).await.unwrap();
            }
            written.load(Ordering::SeqCst)
        }
    };
    let [heartbeat, placement] = [false, true].map(|placement| tokio::spawn(after(store.clone(), placement)));
    tokio::task::yield_now().await;
    drop(held);
    let (heartbeat, placement) = (heartbeat.await.unwrap(), placement.await.unwrap());
    assert!(heartbeat <= 3 && placement <= 3, "they waited behind {heartbeat} and {placement} of 100 writes");
    writes.join_all().await;
    assert_eq!(written.load(Ordering::SeqCst), 100, "no write waits for ever");
}

#[tokio::test]
async fn one_process_has_at_most_8_connections_to_postgres() {
    let database = Database::new(Backend::Postgres).await;
    let store = database.open().await;
    let mut holding = tokio::task::JoinSet::new();
    for number in 0..60 {
        let store = if number % 2 == 0 { store.clone() } else { store.for_users() };
        holding.spawn(async move {
            let _held = store.begin().await;
            std::future::pending::<()>().await
        });
    }
    let mut reader = sqlx::PgConnection::connect(&database.url).await.unwrap();
    let mut count = async || {
        let count = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND application_name = 'greenroom'";
        sqlx::query_scalar::<_, i64>(count).fetch_one(&mut reader).await.unwrap()
    };
    until("every connection is open", async || count().await >= 5).await;
    assert!(count().await <= 8);
    holding.abort_all();
}
