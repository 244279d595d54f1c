//! Reads over HTTP: lists, pages, the formats for older clients, and permissions.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Database, Life, Process, meet_link};

fn ids(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|bot| bot["id"].as_str().unwrap().to_owned()).collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn pages_show_every_bot_once_while_others_arrive(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(99).await;
    let mut expected = Vec::new();
    for number in 0..7 {
        expected.push(user.bot(&meet_link(number)).await);
    }
    expected.reverse();
    for path in ["/bots", "/meetings"] {
        let name = &path[1..];
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = user.get(&format!("{path}?limit=2&cursor={cursor}")).await;
            seen.extend(ids(&page[name]));
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = next.to_owned();
            user.bot(&meet_link(10 + seen.len() + if name == "bots" { 0 } else { 50 })).await;
        }
        assert!(seen.ends_with(&expected), "{seen:?}");
        assert_eq!(seen.iter().collect::<std::collections::BTreeSet<_>>().len(), seen.len());
    }
}

#[tokio::test]
async fn lists_are_filtered_by_status_and_platform_and_errors_name_their_field() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(9).await;
    let meet = user.bot(&meet_link(1)).await;
    let zoom = user.bot("https://zoom.us/j/81234567890").await;
    // The bot gets the command to leave, in whatever slot it is now.
    Life::assign(&server.admin(), &zoom).await.report("started", json!({})).await;
    user.send(Method::DELETE, &format!("/bots/{zoom}"), None).await;
    for (question, expected) in [
        ("", vec![zoom.as_str(), meet.as_str()]),
        ("?status=deploying", vec![meet.as_str()]),
        ("?status=reserved", vec![]),
        ("?status=stopping", vec![zoom.as_str()]),
        ("?status=queued", vec![]),
        ("?platform=zoom", vec![zoom.as_str()]),
        ("?platform=zoom&status=deploying", vec![]),
    ] {
        assert_eq!(ids(&user.get(&format!("/bots{question}")).await["bots"]), *expected, "{question}");
        let admin = server.admin().get(&format!("/admin/bots{question}")).await;
        assert_eq!(ids(&admin["bots"]), *expected, "{question}");
    }
    assert_eq!(ids(&user.get("/bots/active").await["bots"]), [zoom, meet]);
    for (question, field) in [
        ("status=asleep", "`status`"),
        ("platform=skype", "`platform`"),
        ("limit=0", "`limit`"),
        ("limit=1001", "`limit`"),
        ("limit=many", "`limit`"),
        ("cursor=xyz", "`cursor`"),
    ] {
        let (status, answer) = user.send(Method::GET, &format!("/bots?{question}"), None).await;
        assert_eq!((status, &answer["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")), "{question}");
        assert!(answer["detail"].as_str().unwrap().contains(field), "{answer}");
    }
}

#[tokio::test]
async fn another_users_bot_looks_like_no_bot_at_all() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (owner, other) = (server.admin().user(3).await, server.admin().user(3).await);
    let there = owner.bot(&meet_link(1)).await;
    let nowhere = uuid::Uuid::now_v7().to_string();
    let config = Some(json!({"config": {}}));
    for (method, path, body) in [
        (Method::GET, "/bots/ID", None),
        (Method::GET, "/bots/ID/events", None),
        (Method::GET, "/bots/ID/transcript", None),
        (Method::DELETE, "/bots/ID", None),
        (Method::PUT, "/bots/ID/config", config),
        (Method::POST, "/bots/stop", Some(json!({"bot_id": "ID"}))),
        (Method::PUT, "/bots/config", Some(json!({"bot_id": "ID", "config": {}}))),
    ] {
        let ask = async |id: &str| {
            let body = body.as_ref().map(|body| serde_json::from_str(&body.to_string().replace("ID", id)).unwrap());
            let (status, mut answer) = other.send(method.clone(), &path.replace("ID", id), body).await;
            answer.as_object_mut().unwrap().remove("request_id");
            (status, answer)
        };
        let (theirs, none) = (ask(&there).await, ask(&nowhere).await);
        assert_eq!(theirs.0, StatusCode::NOT_FOUND, "{method} {path}");
        assert_eq!(theirs, none, "{method} {path}");
    }
    assert_eq!(other.send(Method::GET, "/bots/not-an-id", None).await.0, StatusCode::NOT_FOUND);
    other.bot(&meet_link(1)).await;
    assert_eq!(owner.get(&format!("/bots/{there}")).await["bot"]["status"], "deploying");
}

#[tokio::test]
async fn meetings_are_the_same_records_in_the_older_format() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({"container_id": "c-9"})).await;
    let meeting = user.get("/meetings").await["meetings"][0].take();
    let keys: Vec<_> = meeting.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "bot_container_id",
        "created_at",
        "data",
        "end_time",
        "id",
        "platform",
        "platform_specific_id",
        "start_time",
        "status",
        "updated_at",
        "user_id",
    ];
    assert_eq!(keys, expected);
    assert_eq!((&meeting["id"], &meeting["bot_container_id"]), (&json!(bot), &json!("c-9")));
    assert_eq!(meeting["status"], "starting");
}

#[tokio::test]
async fn operators_see_everyones_bots() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (one, two) = (server.admin().user(3).await, server.admin().user(3).await);
    let bots = [one.bot(&meet_link(1)).await, two.bot(&meet_link(1)).await];
    let admin = server.admin();
    assert_eq!(ids(&admin.get("/admin/bots").await["bots"]), [bots[1].as_str(), bots[0].as_str()]);
    assert_eq!(admin.get(&format!("/admin/bots/{}", bots[0])).await["bot"]["sessions"], json!([]));
    let (status, answer) = admin.send(Method::GET, &format!("/admin/bots/{}", uuid::Uuid::nil()), None).await;
    assert_eq!((status, &answer["code"]), (StatusCode::NOT_FOUND, &json!("not_found")));
}

#[tokio::test]
async fn health_readiness_and_metrics_need_no_token() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    user.bot(&meet_link(1)).await;
    let stranger = server.client("");
    assert_eq!(stranger.get("/healthz").await["status"], "ok");
    assert_eq!(stranger.get("/readyz").await["store"], "ok");
    let metrics = stranger.get("/metrics").await;
    for line in [
        "greenroom_bots{status=\"deploying\"} 1",
        "greenroom_http_requests_total{method=\"POST\",route=\"/bots\",status=\"201\"} 1",
        "greenroom_slots{pool=\"google-meet\",status=\"idle\"} 0",
        "greenroom_database_call_duration_seconds_count{call=\"users.insert\",result=\"ok\"} 1",
        "greenroom_http_request_duration_seconds_count{method=\"POST\",route=\"/bots\"} 1",
    ] {
        assert!(metrics.as_str().unwrap().contains(line), "`{line}` is not in\n{metrics}");
    }
}

#[tokio::test]
async fn a_new_bot_is_found_where_its_answer_says() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let request = user.request(reqwest::Method::POST, "/bots").json(&json!({"meeting_url": meet_link(1)}));
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 201);
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    let made: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(user.get(&location).await["bot"]["id"], made["bot"]["id"]);
}
