//! Requests for bots over HTTP: which are accepted, which are refused, and how a repeated request finds its bot.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Database, Process, meet_link};

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_is_reserved_with_all_requested_fields_and_read_back(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let ask = json!({
        "meetingUrl": "us02web.zoom.us/j/81234567890?pwd=s3cret",
        "botDisplayName": "Note taker",
        "priority": 5,
        "queueTimeoutMs": 600000,
        "config": {"language": "de", "z": 1, "a": [null]},
        "metadata": {"ticket": 7},
    });
    let (status, body) = user.post("/bots", ask).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    let bot = &body["bot"];
    assert_eq!(bot["platform"], "zoom");
    assert_eq!(bot["native_meeting_id"], "81234567890");
    assert_eq!(bot["meeting_url"], "https://us02web.zoom.us/j/81234567890?pwd=s3cret");
    assert_eq!(bot["bot_display_name"], "Note taker");
    assert_eq!((&bot["status"], &bot["priority"]), (&json!("deploying"), &json!(5)));
    assert_eq!(bot["config"], json!({"language": "de", "z": 1, "a": [null]}));
    assert_eq!(bot["metadata"], json!({"ticket": 7}));
    assert_eq!((&bot["pool"], &bot["slot"]), (&json!("zoom"), &json!("pool-zoom-001")));
    for field in ["reason", "container_id", "requirements", "join_at", "start_time"] {
        assert_eq!(bot.get(field), Some(&Value::Null), "{field} must be present and null");
    }
    assert_eq!((&body["queue_position"], &body["estimated_wait_ms"]), (&Value::Null, &Value::Null));
    let mut read = user.get(&format!("/bots/{}", bot["id"].as_str().unwrap())).await;
    assert_eq!(read["bot"]["sessions"], json!([]));
    read["bot"].as_object_mut().unwrap().remove("sessions");
    // The deployment of the bot continues meanwhile.
    read["bot"]["updated_at"] = bot["updated_at"].clone();
    assert_eq!(&read["bot"], bot);
    let (status, body) =
        user.post("/bots/start", json!({"platform": "teams", "native_meeting_id": "9312345678"})).await;
    assert_eq!((status, &body["bot"]["platform"]), (StatusCode::CREATED, &json!("teams")), "{body}");
}

#[tokio::test]
async fn a_refusal_names_the_field_and_reserves_nothing() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let link = meet_link(1);
    let cases = [
        (json!({}), "invalid", "`meeting_url`"),
        (json!([]), "invalid", "must be a JSON object"),
        (json!([link]), "invalid", "must be a JSON object"),
        (json!({"meeting_url": link, "config": {"x": "y".repeat(70_000)}}), "invalid", "`config`"),
        (json!({"meeting_url": "https://example.com/room"}), "invalid", "Google Meet"),
        (json!({"meeting_url": 5}), "invalid", "`meeting_url`"),
        (json!({"meeting_url": link, "colour": "red"}), "invalid", "unknown field `colour`"),
        (json!({"meeting_url": link, "priority": "high"}), "invalid", "`priority`"),
        (json!({"meeting_url": link, "priority": 4_000_000_000_u64}), "invalid", "`priority`"),
        (json!({"meeting_url": link, "queue_timeout_ms": 600_001}), "invalid", "`queue_timeout_ms`"),
        (json!({"meeting_url": link, "queue_timeout_ms": 0}), "invalid", "`queue_timeout_ms`"),
        (json!({"meeting_url": link, "config": []}), "invalid", "`config`"),
        (json!({"meeting_url": link, "bot_display_name": " "}), "invalid", "`bot_display_name`"),
        (json!({"meeting_url": link, "metadata": {"a": {"b": "x\u{0}"}}}), "invalid", "`metadata.a.b`"),
        (json!({"meeting_url": link, "platform": "zoom"}), "invalid", "`platform`"),
        (json!({"meeting_url": link, "native_meeting_id": "xyz-abcd-efg"}), "invalid", "`native_meeting_id`"),
        (json!({"platform": "zoom"}), "invalid", "`native_meeting_id`"),
        (json!({"native_meeting_id": "812345678"}), "invalid", "`platform`"),
        (json!({"platform": "skype", "native_meeting_id": "1"}), "invalid", "`platform`"),
        (json!({"platform": "zoom", "native_meeting_id": "12"}), "invalid", "`native_meeting_id`"),
        (json!({"meeting_url": link, "join_at": "2030-01-01T00:00:00Z"}), "unsupported", "`join_at`"),
        (json!({"meeting_url": link, "webhook_url": "https://example.com"}), "unsupported", "`webhook_url`"),
    ];
    for (ask, code, expected) in cases {
        let (status, body) = user.post("/bots", ask.clone()).await;
        assert_eq!((status, &body["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!(code)), "{ask}: {body}");
        assert!(body["detail"].as_str().unwrap().contains(expected), "{ask}: {body}");
        assert_eq!((&body["type"], &body["title"]), (&json!("about:blank"), &json!("Unprocessable Entity")));
    }
    assert_eq!(user.get("/bots").await["bots"], json!([]));
}

#[tokio::test]
async fn a_null_in_an_unsupported_field_is_accepted() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let ask = json!({"meeting_url": meet_link(1), "join_at": null, "webhook_url": null, "requirements": null});
    assert_eq!(user.post("/bots", ask).await.0, StatusCode::CREATED);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_same_idempotency_key_finds_the_same_bot_and_another_body_is_refused(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (user, other) = (server.admin().user(1).await, server.admin().user(1).await);
    let ask = async |client: &crate::support::Client, body: Value| {
        let request = client.request(Method::POST, "/bots").header("Idempotency-Key", "order 7");
        let response = request.json(&body).send().await.unwrap();
        (response.status(), response.json::<Value>().await.unwrap())
    };
    let (status, first) = ask(&user, json!({"meeting_url": meet_link(1), "priority": 5})).await;
    assert_eq!(status, StatusCode::CREATED);
    // The limit is reached, and the user already has a bot in the meeting. Neither prevents that the repeated request
    // finds its bot.
    let (status, repeated) = ask(&user, json!({"priority": 5, "meetingUrl": meet_link(1)})).await;
    assert_eq!((status, &repeated["bot"]["id"]), (StatusCode::OK, &first["bot"]["id"]));
    let (status, refused) = ask(&user, json!({"meeting_url": meet_link(2)})).await;
    assert_eq!((status, &refused["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("idempotency_mismatch")));
    let (status, theirs) = ask(&other, json!({"meeting_url": meet_link(1), "priority": 5})).await;
    assert_eq!(status, StatusCode::CREATED, "the same key of another user is a different key: {theirs}");
}

#[tokio::test]
async fn a_request_that_was_refused_may_be_repeated_under_its_idempotency_key() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(1).await;
    let first = user.bot(&meet_link(1)).await;
    let ask = async || {
        let request = user.request(Method::POST, "/bots").header("Idempotency-Key", "k");
        request.json(&json!({"meeting_url": meet_link(2)})).send().await.unwrap().status()
    };
    assert_eq!(ask().await, StatusCode::TOO_MANY_REQUESTS);
    user.send(Method::DELETE, &format!("/bots/{first}"), None).await;
    assert_eq!(ask().await, StatusCode::CREATED);
    assert_eq!(ask().await, StatusCode::OK);
}

#[tokio::test]
async fn without_a_valid_key_the_answer_reveals_nothing() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(1).await;
    user.bot(&meet_link(1)).await;
    let forged = "grk_AAAAAAAAAAAAAAAAAAAAAA_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";
    for token in ["", "nonsense", forged, crate::support::ADMIN_TOKEN] {
        let stranger = server.client(token);
        for (method, path, body) in [
            (Method::POST, "/bots", Some(json!({"meeting_url": meet_link(1)}))),
            (Method::POST, "/bots", Some(json!({"priority": "bad"}))),
            (Method::GET, "/bots", None),
            (Method::GET, "/events", None),
            (Method::POST, "/callback/started", Some(json!({"connection_id": uuid::Uuid::nil()}))),
        ] {
            let (status, answer) = stranger.send(method, path, body).await;
            assert_eq!((status, &answer["code"]), (StatusCode::UNAUTHORIZED, &json!("unauthorized")), "{path}");
        }
    }
    let (status, _) = server.client("wrong").send(Method::GET, "/admin/users", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (status, _) = user.send(Method::GET, "/admin/users", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_key_is_accepted_in_either_header() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let body = json!({"email": "a@b", "name": "A", "max_concurrent_bots": 1});
    let (_, made) = server.admin().post("/admin/users", body).await;
    let key = made["api_key"].as_str().unwrap();
    let http = reqwest::Client::new();
    for request in [
        http.get(format!("{}/bots", server.url)).header("X-API-Key", key),
        http.get(format!("{}/bots", server.url)).header("Authorization", format!("bearer {key}")),
    ] {
        assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn rotation_ends_the_old_key_at_once_or_after_a_grace(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let admin = server.admin();
    let body = json!({"email": "a@b.example", "name": "A", "max_concurrent_bots": 1});
    let (_, made) = admin.post("/admin/users", body).await;
    let keys = format!("/admin/users/{}/keys", made["user"]["id"].as_str().unwrap());
    let works = async |key: &Value| {
        server.client(key.as_str().unwrap()).send(Method::GET, "/bots", None).await.0 == StatusCode::OK
    };
    let (status, second) = admin.post(&keys, json!({"old_keys_valid_for_ms": 600_000})).await;
    assert_eq!(status, StatusCode::CREATED);
    assert!(works(&made["api_key"]).await && works(&second["api_key"]).await);
    let (_, third) = admin.send(Method::POST, &keys, None).await;
    assert!(!works(&made["api_key"]).await && !works(&second["api_key"]).await && works(&third["api_key"]).await);
}

#[tokio::test]
async fn operators_make_read_and_change_users() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let admin = server.admin();
    for (body, field) in [
        (json!({"name": "A", "max_concurrent_bots": 1}), "missing field `email`"),
        (json!({"email": "nobody", "name": "A"}), "`email`"),
        (json!({"email": "a@b.example", "name": ""}), "`name`"),
        (json!({"email": "a@b.example", "name": "A", "max_concurrent_bots": -1}), "`max_concurrent_bots`"),
        (json!({"email": "a@b.example", "name": "A", "limit": 3}), "unknown field `limit`"),
    ] {
        let (status, answer) = admin.post("/admin/users", body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(field), "{answer}");
    }
    let body = json!({"email": "a@b.example", "name": "A", "image_url": "https://x/y.png", "data": {"plan": 1}});
    let (status, made) = admin.post("/admin/users", body).await;
    assert_eq!((status, &made["user"]["max_concurrent_bots"]), (StatusCode::CREATED, &json!(1)), "{made}");
    let path = format!("/admin/users/{}", made["user"]["id"].as_str().unwrap());
    assert_eq!(admin.get(&path).await["user"], made["user"]);
    let change = json!({"max_concurrent_bots": 9, "image_url": null});
    let (status, changed) = admin.send(Method::PATCH, &path, Some(change)).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!((&changed["user"]["max_concurrent_bots"], &changed["user"]["name"]), (&json!(9), &json!("A")));
    assert_eq!(changed["user"]["image_url"], Value::Null);
    admin.user(1).await;
    let first = admin.get("/admin/users?limit=1").await;
    assert_eq!(first["users"][0]["id"], made["user"]["id"]);
    let next = admin.get(&format!("/admin/users?limit=1&cursor={}", first["next_cursor"].as_str().unwrap())).await;
    assert_eq!((next["users"].as_array().unwrap().len(), &next["next_cursor"]), (1, &Value::Null));
    for (method, path) in [(Method::GET, "/admin/users/nobody"), (Method::PATCH, "/admin/users/nobody")] {
        assert_eq!(admin.send(method, path, Some(json!({}))).await.0, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn a_priority_below_what_the_operator_set_for_the_user_is_refused() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let body = json!({"email": "eve@example.com", "name": "Eve", "max_concurrent_bots": 9, "min_priority": 20});
    let (status, created) = server.admin().post("/admin/users", body).await;
    assert_eq!((status, &created["user"]["min_priority"]), (StatusCode::CREATED, &json!(20)), "{created}");
    let user = server.admin().with(created["api_key"].as_str().unwrap());
    let ask = async |number, priority: i64| {
        let (status, body) = user.post("/bots", json!({"meeting_url": meet_link(number), "priority": priority})).await;
        (status, body["detail"].as_str().unwrap_or_default().to_owned())
    };
    let (status, detail) = ask(1, 19).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(detail.contains("20"), "{detail}");
    assert_eq!(ask(1, 20).await.0, StatusCode::CREATED);
    let path = format!("/admin/users/{}", created["user"]["id"].as_str().unwrap());
    let (status, changed) = server.admin().send(Method::PATCH, &path, Some(json!({"min_priority": -5}))).await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    assert_eq!(ask(2, -5).await.0, StatusCode::CREATED);
    assert_eq!(ask(3, -6).await.0, StatusCode::UNPROCESSABLE_ENTITY);
}
