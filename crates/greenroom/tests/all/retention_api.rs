//! The deletion of data over HTTP: of a bot, of a user, and of old bots while streams resume.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Life, Process, meet_link, until};

/// A bot that has ended, with a transcript, a log, a configuration and metadata.
async fn ended_bot(admin: &Client, user: &Client, number: usize) -> String {
    let request = json!({
        "meeting_url": meet_link(number), "config": {"password": "swordfish"}, "metadata": {"team": "sales"},
    });
    let bot = user.ask(request).await["id"].as_str().unwrap().to_owned();
    let life = Life::assign(admin, &bot).await;
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    let segments = json!({"segments": [{"start_time": 0, "end_time": 1, "text": "a secret"}]});
    life.report("transcript", segments).await;
    life.report("log", json!({"lines": [{"at": null, "text": "a secret line"}], "truncated": false})).await;
    life.report("exited", json!({"exit_code": 3, "error": "broken. Last lines:\na secret line"})).await;
    bot
}

async fn delete(client: &Client, path: &str) -> (StatusCode, String) {
    let answer = client.request(Method::DELETE, path).send().await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}

fn code(body: &str) -> Value {
    serde_json::from_str::<Value>(body).unwrap()["code"].take()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_user_deletes_the_data_of_its_ended_bot_and_the_bot_stays(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(5).await);
    let bot = ended_bot(&admin, &user, 1).await;
    let path = format!("/bots/{bot}/data");

    let other = admin.user(1).await;
    assert_eq!(delete(&other, &path).await.0, StatusCode::NOT_FOUND);
    let open = user.bot(&meet_link(2)).await;
    let (status, body) = delete(&user, &format!("/bots/{open}/data")).await;
    assert_eq!((status, code(&body)), (StatusCode::CONFLICT, json!("invalid_transition")));
    assert_ne!(user.get(&format!("/bots/{bot}/transcript")).await["segments"], json!([]));
    assert!(user.show_bot(&bot).await.to_string().contains("swordfish"));

    for _ in 0..2 {
        assert_eq!(delete(&user, &path).await, (StatusCode::NO_CONTENT, String::new()));
    }
    let shown = user.show_bot(&bot).await;
    assert_eq!((&shown["config"], &shown["metadata"]), (&json!({}), &json!({})));
    assert_eq!((&shown["status"], &shown["error"]), (&json!("failed"), &json!("broken.")), "{shown}");
    assert_eq!(user.get(&format!("/bots/{bot}/transcript")).await["segments"], json!([]));
    assert_eq!(user.get(&format!("/bots/{bot}/logs")).await["lines"], json!([]));
    assert_ne!(user.get(&format!("/bots/{bot}/events")).await["events"], json!([]));
    for table in ["bots", "transcript_segments", "bot_logs", "commands", "failures"] {
        let text = rows(&database, table).await;
        assert!(!text.contains("secret") && !text.contains("swordfish"), "{table}: {text}");
    }
}

/// All rows of a table, as text.
async fn rows(database: &Database, table: &str) -> String {
    let sql = |columns: &str| sqlx::AssertSqlSafe(format!("SELECT {columns} FROM {table}"));
    match database.reader().await {
        crate::support::Reader::Postgres(mut connection) => {
            let whole = sql(&format!("coalesce(json_agg({table})::text, '')"));
            sqlx::query_scalar(whole).fetch_one(&mut connection).await.unwrap()
        }
        crate::support::Reader::Sqlite(mut connection) => {
            let columns = sqlx::AssertSqlSafe(format!(
                "SELECT group_concat('coalesce(' || name || ', '''')', ' || ''|'' || ') FROM pragma_table_info('{table}')"
            ));
            let columns: String = sqlx::query_scalar(columns).fetch_one(&mut connection).await.unwrap();
            let rows: Vec<String> = sqlx::query_scalar(sql(&columns)).fetch_all(&mut connection).await.unwrap();
            rows.join("\n")
        }
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_user_is_deleted_with_all_data_once_its_bots_have_ended(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let admin = server.admin();
    let created = json!({"email": "eve@example.com", "name": "Eve", "max_concurrent_bots": 5});
    let (_, created) = admin.post("/admin/users", created).await;
    let (id, key) = (created["user"]["id"].as_str().unwrap(), created["api_key"].as_str().unwrap());
    let (user, path) = (admin.with(key), format!("/admin/users/{id}"));
    let ended = ended_bot(&admin, &user, 1).await;
    let keyed = user.request(Method::POST, "/bots").header("Idempotency-Key", "k");
    let open = keyed.json(&json!({"meeting_url": meet_link(2)})).send().await.unwrap().json::<Value>().await.unwrap();
    let open = open["bot"]["id"].as_str().unwrap().to_owned();
    let bystander = admin.user(5).await;
    let kept = ended_bot(&admin, &bystander, 1).await;
    let signed_in = admin.request(Method::POST, "/session").header("Origin", &server.url);
    let signed_in = signed_in.json(&json!({"token": key})).send().await.unwrap();
    let cookie = signed_in.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let by_cookie = async || {
        let request = reqwest::Client::new().get(format!("{}/bots", server.url)).header("Cookie", &cookie);
        request.send().await.unwrap().status()
    };
    assert_eq!(by_cookie().await, StatusCode::OK);

    let (status, body) = delete(&admin, &path).await;
    assert_eq!((status, code(&body)), (StatusCode::CONFLICT, json!("invalid_transition")));
    assert!(body.contains("1 bots that have not ended"), "{body}");
    user.get("/bots").await;

    let life = Life::assign(&admin, &open).await;
    life.report("started", json!({})).await;
    life.report("exited", json!({"exit_code": 0})).await;
    assert_eq!(delete(&admin, &path).await.0, StatusCode::NO_CONTENT);
    assert_eq!(user.send(Method::GET, "/bots", None).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(user.post("/bots", json!({"meeting_url": meet_link(3)})).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(by_cookie().await, StatusCode::UNAUTHORIZED);
    assert_eq!(delete(&admin, &path).await.0, StatusCode::NOT_FOUND);
    until("the data is deleted", async || {
        admin.post("/admin/retention/run", json!({})).await;
        rows(&database, "deleted_users").await.is_empty()
    })
    .await;
    for bot in [&ended, &open] {
        assert_eq!(admin.send(Method::GET, &format!("/admin/bots/{bot}"), None).await.0, StatusCode::NOT_FOUND);
    }
    let tables = [
        "users",
        "api_keys",
        "browser_sessions",
        "bots",
        "sessions",
        "events",
        "transcript_segments",
        "commands",
        "idempotency_keys",
        "bot_logs",
    ];
    for table in tables {
        let text = rows(&database, table).await;
        assert!([id, &ended, &open].iter().all(|word| !text.contains(*word)), "{table}: {text}");
    }
    assert!(bystander.show_bot(&kept).await.to_string().contains("swordfish"));
    let entries = admin.get("/admin/audit").await["entries"].take();
    let entry = entries.as_array().unwrap().iter().find(|entry| entry["action"] == "user_deleted").unwrap();
    assert_eq!(entry["subject"], id);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_stream_that_resumes_before_deleted_events_is_told_so(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start_configured(&database, "[retention]\nbots = \"1s\"\n").await;
    let (admin, user) = (server.admin(), server.admin().user(5).await);
    let bot = ended_bot(&admin, &user, 1).await;
    let events = user.get(&format!("/bots/{bot}/events")).await["events"].take();
    let last = events.as_array().unwrap().last().unwrap()["id"].as_i64().unwrap();
    until("the bot is deleted", async || {
        admin.post("/admin/retention/run", json!({})).await;
        user.send(Method::GET, &format!("/bots/{bot}"), None).await.0 == StatusCode::NOT_FOUND
    })
    .await;
    let resume = async |id: i64| {
        let request = user.request(Method::GET, "/events").header("Last-Event-ID", id.to_string());
        let answer = request.send().await.unwrap();
        let status = answer.status();
        (status, if status == StatusCode::OK { Value::Null } else { code(&answer.text().await.unwrap()) })
    };
    for id in [0, 1, last] {
        assert_eq!(resume(id).await, (StatusCode::GONE, json!("gone")), "{id}");
    }
    assert_eq!(user.request(Method::GET, "/events").send().await.unwrap().status(), StatusCode::OK);
    // Later events are all there.
    let open = user.bot(&meet_link(2)).await;
    let events = user.get(&format!("/bots/{open}/events")).await["events"].take();
    let first = events[0]["id"].as_i64().unwrap();
    assert!(first > last);
    assert_eq!(resume(first).await.0, StatusCode::OK);
}
