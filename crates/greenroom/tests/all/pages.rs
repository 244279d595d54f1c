//! Pages of lists are limited in bytes. The next page continues where the last one ended: no row is repeated or
//! missing.

use std::collections::BTreeSet;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{
    Backend, Client, Database, Life, Process, ServerFixture, in_repository, meet_link, process_pool, until,
};

/// The largest page: about 1 MiB, and the row that exceeded it.
const LARGEST: usize = 1024 * 1024 + 200 * 1024;

fn large(letter: &str) -> Value {
    json!({"text": letter.repeat(60 * 1024)})
}

/// Every page from the first to the last, each within the limit.
async fn pages(client: &Client, path: &str, name: &str) -> Vec<Vec<Value>> {
    let (mut pages, mut cursor) = (Vec::new(), String::new());
    loop {
        let mark = if path.contains('?') { '&' } else { '?' };
        let response = client.request(Method::GET, &format!("{path}{mark}cursor={cursor}")).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let text = response.text().await.unwrap();
        assert!(text.len() < LARGEST, "{path}: {}", text.len());
        let mut page: Value = serde_json::from_str(&text).unwrap();
        pages.push(page[name].as_array_mut().map(std::mem::take).unwrap());
        let Some(next) = page["next_cursor"].as_str() else { return pages };
        next.clone_into(&mut cursor);
    }
}

fn ids(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["id"].as_str().unwrap()).collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn lists_of_large_bots_have_short_pages_without_missing_bots(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(99).await);
    let mut expected = Vec::new();
    for number in 0..20 {
        let bot_request = json!({"meeting_url": meet_link(number), "config": large("c"), "metadata": large("m")});
        expected.push(user.ask(bot_request).await["id"].as_str().unwrap().to_owned());
    }
    expected.reverse();
    for (client, path, name) in [
        (&user, "/bots?limit=1000", "bots"),
        (&user, "/bots/active", "bots"),
        (&user, "/meetings?limit=1000", "meetings"),
        (&admin, "/admin/bots?limit=1000", "bots"),
    ] {
        let pages = pages(client, path, name).await;
        assert!(pages.len() > 1 && pages.iter().all(|page| !page.is_empty()), "{path}: {}", pages.len());
        let rows: Vec<Value> = pages.into_iter().flatten().collect();
        assert_eq!(ids(&rows), expected, "{path}");
        for row in &rows {
            let row = if name == "bots" { row } else { &row["data"] };
            assert_eq!((&row["config"], &row["metadata"]), (&large("c"), &large("m")), "{path}");
        }
    }
    // The usage counts all bots, and says where to find the rest.
    let usage = user.get("/bots/status").await;
    assert_eq!((&usage["running"], &usage["max_concurrent_bots"]), (&json!(20), &json!(99)));
    let shown = usage["bots"].as_array().unwrap();
    assert!(shown.len() < 20 && usage.to_string().len() < LARGEST);
    let cursor = usage["next_cursor"].as_str().unwrap();
    let rest = user.get(&format!("/bots/active?limit=3&cursor={cursor}")).await;
    assert_eq!(ids(rest["bots"].as_array().unwrap()), expected[shown.len()..shown.len() + 3]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_transcript_and_an_audit_trail_come_in_pages(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(9).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({})).await;
    // Large segments among small ones, several with the same time, and not in order.
    let segment = |number: usize| {
        let start = (number / 2) as f64 + 0.1;
        let text =
            if number.is_multiple_of(5) { format!("{number} {}", "x".repeat(300_000)) } else { format!("{number}") };
        json!({"start_time": start, "end_time": start, "text": text})
    };
    for number in (0..30).rev() {
        life.report("transcript", json!({"segments": [segment(number)]})).await;
    }
    let path = format!("/bots/{bot}/transcript");
    let mut texts = Vec::new();
    for limit in ["", "?limit=1", "?limit=7"] {
        let pages = pages(&user, &format!("{path}{limit}"), "segments").await;
        assert!(pages.len() > 1 && pages.iter().all(|page| !page.is_empty()), "{limit}: {}", pages.len());
        let rows: Vec<Value> = pages.into_iter().flatten().collect();
        assert!(rows.is_sorted_by_key(|row| row["start_time"].as_f64().unwrap()), "{limit}");
        let all: Vec<String> = rows.iter().map(|row| row["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 30, "{limit}");
        assert_eq!(all.len(), 30, "{limit}");
        texts.push(all);
    }
    assert!(texts.iter().all(|one| *one == texts[0]), "every page size has the same order");
    for cursor in ["x", "1-2", "7ff8000000000000-0-1", "0-0-x"] {
        let (status, answer) = user.send(Method::GET, &format!("{path}?cursor={cursor}"), None).await;
        assert_eq!((status, &answer["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")), "{cursor}");
    }

    let all = user.get(&format!("/bots/{bot}/events")).await;
    assert_eq!(all["next_cursor"], Value::Null);
    let one_by_one = pages(&user, &format!("/bots/{bot}/events?limit=1"), "events").await;
    assert!(one_by_one.len() >= 3);
    assert_eq!(json!(one_by_one.concat()), all["events"]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn slots_the_queue_and_users_come_in_pages(#[case] backend: Backend) {
    let pool = process_pool("meet", "max_slots = 3", "read leave");
    let fixture = ServerFixture::open(backend, &pool).await;
    let mut bots = Vec::new();
    for number in 0..8 {
        let priority = if number == 7 { 1 } else { 100 };
        let bot_request = json!({"meeting_url": meet_link(number), "priority": priority});
        bots.push(fixture.user.ask(bot_request).await["id"].as_str().unwrap().to_owned());
    }
    let waiting: Vec<&str> = [7, 3, 4, 5, 6].map(|at: usize| bots[at].as_str()).to_vec();
    let queue = pages(&fixture.admin, "/admin/queue?limit=2", "entries").await;
    assert_eq!(queue.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    let queue = queue.concat();
    assert_eq!(queue.iter().map(|entry| entry["bot_id"].as_str().unwrap()).collect::<Vec<_>>(), waiting);
    assert!(queue.iter().map(|entry| entry["position"].as_u64().unwrap()).eq(1..=5));
    let slots = pages(&fixture.admin, "/admin/slots?limit=1&pool=meet", "slots").await.concat();
    let names: Vec<&str> = slots.iter().map(|slot| slot["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["pool-meet-001", "pool-meet-002", "pool-meet-003"]);
    fixture.admin.user(1).await;
    let users = pages(&fixture.admin, "/admin/users?limit=1", "users").await;
    assert_eq!(users.len(), 2);
    for (path, cursor) in [("/admin/queue", "zoom.1"), ("/admin/slots", "x-meet"), ("/admin/users", "1")] {
        let (status, _) = fixture.admin.send(Method::GET, &format!("{path}?cursor={cursor}"), None).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}");
    }
    for bot in &bots {
        fixture.user.stop(bot).await;
    }
    until("nothing runs any more", async || fixture.database.running().is_empty()).await;
}

#[tokio::test]
async fn a_query_parameter_that_a_call_does_not_know_is_refused_by_every_call() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(1).await);
    let document = std::fs::read_to_string(in_repository("docs/openapi.json")).unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    let mut asked = 0;
    for (path, calls) in document["paths"].as_object().unwrap() {
        let client = match path.split('/').nth(1).unwrap() {
            "bots" | "meetings" | "events" => &user,
            "admin" => &admin,
            "callback" | "agent" => continue,
            _ => &user,
        };
        let id = uuid::Uuid::nil().to_string();
        let real = path.replace("{id}", &id).replace("{name}", "x").replace("{keeper}", "x");
        for method in calls.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let (status, answer) = client.send(method.clone(), &format!("{real}?limmit=3"), None).await;
            assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{method} {path}: {answer}");
            assert_eq!(answer["code"], "invalid");
            assert!(answer["detail"].as_str().unwrap().starts_with("`limmit`"), "{answer}");
            asked += 1;
        }
    }
    assert!(asked > 25, "{asked}");
    // An anonymous caller gets no details.
    let (status, _) = server.client("wrong").send(Method::GET, "/bots?limmit=3", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}
