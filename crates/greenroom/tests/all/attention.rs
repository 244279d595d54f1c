//! What needs a person, as operators see it.

use std::time::Duration;

use greenroom::store::ServerFacts;
use jiff::{SignedDuration, Timestamp};
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Life, ServerFixture, found, meet_link, process_pool, until};

/// Joins and stays until it is ended.
const STAYS: &str = r#"echo '{"event": "joined"}'; sleep 1000"#;

async fn items(fixture: &ServerFixture) -> Vec<Value> {
    fixture.admin.get("/admin/attention").await["items"].as_array_mut().map(std::mem::take).unwrap()
}

async fn item(fixture: &ServerFixture, kind: &str) -> Value {
    found(kind, async || items(fixture).await.into_iter().find(|item| item["kind"] == kind)).await
}

/// This many seconds ago, as both databases read it.
fn ago(seconds: i64) -> String {
    let at = Timestamp::now() - SignedDuration::from_secs(seconds);
    at.strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn bots_that_need_a_person_are_listed_the_most_urgent_first(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", STAYS)).await;
    assert_eq!(items(&fixture).await, [Value::Null; 0], "nothing needs a person at first");
    let mut bots = Vec::new();
    for (number, status) in [(1, "awaiting_admission"), (2, "needs_help")] {
        let bot = fixture.user.bot(&meet_link(number)).await;
        let life = Life::assign(&fixture.admin, &bot).await;
        life.report("started", json!({})).await;
        life.report("status", json!({"status": status, "reason": "captcha"})).await;
        bots.push(bot);
    }
    let [lobby, help] = &bots[..] else { panic!("two bots") };
    let needs_help = item(&fixture, "needs_help").await;
    assert_eq!((&needs_help["subject"], &needs_help["severity"]), (&json!(help), &json!("critical")));
    assert_eq!(needs_help["message"], "The bot needs help: captcha");
    let stop = |bot: &str| json!({"label": "Stop the bot", "method": "DELETE", "path": format!("/admin/bots/{bot}"), "body": null});
    assert_eq!(needs_help["action"], stop(help));
    let shown = fixture.user.show_bot(help).await;
    assert_eq!((&needs_help["since"], &needs_help["deadline_at"]), (&shown["status_since"], &shown["deadline_at"]));
    assert!(items(&fixture).await.iter().all(|item| item["subject"] != json!(lobby)), "it has most of its time left");

    // Nine of its ten minutes are over.
    let mut database = fixture.database.reader().await;
    database.execute(format!("UPDATE sessions SET started_at = '{}' WHERE bot_id = '{lobby}';", ago(540))).await;
    let found = items(&fixture).await;
    let kinds: Vec<&Value> = found.iter().map(|item| &item["kind"]).collect();
    assert_eq!(kinds, ["awaiting_admission", "needs_help"], "the nearest deadline is first");
    assert_eq!((&found[0]["subject"], &found[0]["severity"]), (&json!(lobby), &json!("critical")));
    let explanation = fixture.user.get(&format!("/bots/{lobby}/explain")).await;
    assert_eq!(explanation["advice"], "Ask the host of the meeting to admit the bot.");
    assert_eq!(explanation["until"], found[0]["deadline_at"]);
    assert_eq!(fixture.user.show_bot(lobby).await["deadline_at"], found[0]["deadline_at"]);
    assert_eq!(found[0]["action"], stop(lobby));
    let store = fixture.database.open().await;
    let (read, all) = store.bots_waiting_for_person(Timestamp::now(), 1).await.unwrap();
    assert_eq!((read.len(), all), (1, 2), "the number of all is known, however few are read");
    store.close().await;
    // The action is a call that works.
    let (status, answer) = fixture.admin.send(Method::DELETE, found[0]["action"]["path"].as_str().unwrap(), None).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    assert!(items(&fixture).await.iter().all(|item| item["subject"] != json!(lobby)), "it leaves");
    assert_eq!(fixture.admin.get("/admin/attention").await["more"], 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_queue_that_is_longer_than_its_bots_may_wait_is_listed(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", STAYS)).await;
    fixture.active(1).await;
    fixture.database.execute("UPDATE pools SET mean_hold_ms = 120000").await;
    let waiting = fixture.user.bot(&meet_link(2)).await;
    assert_eq!(items(&fixture).await, [Value::Null; 0], "two minutes are less than five");
    fixture.database.execute("UPDATE pools SET mean_hold_ms = 3600000").await;
    let late = item(&fixture, "queue_too_long").await;
    assert_eq!((&late["subject"], &late["severity"]), (&json!("meet"), &json!("warning")));
    let action = json!({"label": "Raise `max_slots` to 2", "method": "PATCH", "path": "/admin/pools/meet",
                        "body": {"max_slots": 2}});
    assert_eq!(late["action"], action);
    assert!(late["message"].as_str().unwrap().starts_with("1 bot waits"), "{late}");
    let explanation = fixture.user.get(&format!("/bots/{waiting}/explain")).await;
    assert!(explanation["advice"].as_str().unwrap().contains("queue_timeout_ms"), "{explanation}");
    assert_eq!(explanation["until"], late["deadline_at"]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_provider_that_does_not_answer_is_listed_for_its_pool(#[case] backend: Backend) {
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"docker\"\n\
                docker = { host = \"unix:///nowhere/docker.sock\", image = \"bot\" }\n";
    let fixture = ServerFixture::open(backend, pool).await;
    let away = item(&fixture, "provider_unavailable").await;
    assert_eq!((&away["subject"], &away["severity"]), (&json!("meet"), &json!("critical")));
    assert!(away["message"].as_str().unwrap().contains("/nowhere/docker.sock"), "{away}");
    until("it was pinged again", async || item(&fixture, "provider_unavailable").await == away).await;
    assert!(away["since"].is_string(), "{away}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_silent_server_and_a_closed_provider_are_listed(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", STAYS)).await;
    let store = fixture.database.open().await;
    let facts = ServerFacts { url: "http://10.0.0.9:7700".to_owned(), host: "host-b".to_owned(), ..Default::default() };
    let id = uuid::Uuid::new_v4();
    store.record_server(id, &facts).await.unwrap();
    assert_eq!(items(&fixture).await, [Value::Null; 0], "both servers live");
    let mut database = fixture.database.reader().await;
    database.execute(format!("UPDATE servers SET seen_at = '{}' WHERE id = '{id}';", ago(60))).await;
    let missing = item(&fixture, "replica_missing").await;
    assert_eq!((&missing["subject"], &missing["action"]), (&json!("http://10.0.0.9:7700"), &Value::Null));
    assert!(missing["message"].as_str().unwrap().contains("host-b"), "{missing}");

    store.hold_back("coolify", Duration::from_secs(300)).await.unwrap();
    let closed = item(&fixture, "provider_closed").await;
    assert_eq!((&closed["subject"], &closed["severity"]), (&json!("coolify"), &json!("warning")));
    assert!(closed["deadline_at"].is_string(), "{closed}");
    store.close().await;
}
