//! Operators act for users: the same answers as for the user, and events that name the operator.

use reqwest::header::{LOCATION, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Life, Process, meet_link};

/// A user with a limit: its id and a client with its key.
async fn new_user(admin: &Client, limit: i64) -> (String, Client) {
    let user = json!({"email": "ada@example.com", "name": "Ada", "max_concurrent_bots": limit});
    let (status, answer) = admin.post("/admin/users", user).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    (answer["user"]["id"].as_str().unwrap().to_owned(), admin.with(answer["api_key"].as_str().unwrap()))
}

/// The kind, the new status, the reason and the actor of each event of a bot.
fn told(events: &Value) -> Vec<[String; 4]> {
    let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let events = events["events"].as_array().unwrap().iter();
    events.map(|event| ["kind", "to", "reason", "actor"].map(|field| text(event, field))).collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_operator_requests_a_bot_for_a_user_with_the_answers_that_the_user_gets(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let admin = server.admin();
    let (user_id, user) = new_user(&admin, 1).await;
    let ask = async |link: &str, key: &str| {
        let body = json!({"user_id": user_id, "meeting_url": link, "metadata": {"room": 4}});
        let request = admin.request(Method::POST, "/admin/bots").header("Idempotency-Key", key).json(&body);
        request.send().await.unwrap()
    };
    let made = ask(&meet_link(1), "one").await;
    assert_eq!(made.status(), StatusCode::CREATED);
    let location = made.headers()[LOCATION].to_str().unwrap().to_owned();
    let made: Value = made.json().await.unwrap();
    let bot = made["bot"]["id"].as_str().unwrap();
    assert_eq!(location, format!("/admin/bots/{bot}"));
    assert_eq!((&made["bot"]["user_id"], &made["bot"]["metadata"]), (&json!(user_id), &json!({"room": 4})));
    assert_eq!(user.show_bot(bot).await["id"], bot, "it is the user's");
    let events = told(&user.get(&format!("/bots/{bot}/events")).await);
    assert_eq!((events[0][0].as_str(), events[0][3].as_str()), ("created", "operator"), "{events:?}");

    // The idempotency key belongs to the user, also when an operator sends it.
    let again = ask(&meet_link(1), "one").await;
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(again.json::<Value>().await.unwrap()["bot"]["id"], bot);
    let body = json!({"meeting_url": meet_link(1), "metadata": {"room": 4}});
    let own = user.request(Method::POST, "/bots").header("Idempotency-Key", "one").json(&body).send().await.unwrap();
    assert_eq!(own.status(), StatusCode::OK);
    assert_eq!(own.json::<Value>().await.unwrap()["bot"]["id"], bot);
    let mismatch = ask(&meet_link(2), "one").await;
    assert_eq!(mismatch.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(mismatch.json::<Value>().await.unwrap()["code"], "idempotency_mismatch");

    let twice = ask(&meet_link(1), "two").await;
    assert_eq!(twice.status(), StatusCode::CONFLICT);
    let twice: Value = twice.json().await.unwrap();
    assert_eq!((&twice["code"], &twice["bot_id"]), (&json!("duplicate_bot"), &json!(bot)));
    let too_many = ask(&meet_link(3), "three").await;
    assert_eq!(too_many.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(too_many.headers().contains_key(RETRY_AFTER));
    assert_eq!(too_many.json::<Value>().await.unwrap()["code"], "limit_reached");
}

#[tokio::test]
async fn a_wrong_request_for_a_user_is_refused_by_the_name_of_its_field() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let admin = server.admin();
    let (user_id, user) = new_user(&admin, 1).await;
    let (link, nobody) = (meet_link(1), uuid::Uuid::new_v4());
    for (body, field) in [
        (json!({"meeting_url": link}), "`user_id`: is missing"),
        (json!({"meeting_url": link, "user_id": 7}), "`user_id`: is not the id of a user"),
        (json!({"meeting_url": link, "user_id": "ada"}), "`user_id`: is not the id of a user"),
        (json!({"meeting_url": link, "user_id": nobody}), "`user_id`: there is no such user"),
        (json!({"meeting_url": link, "user_id": user_id, "prio": 1}), "`prio`"),
        (json!({"meeting_url": link, "user_id": user_id, "priority": "high"}), "`priority`"),
        (json!({"meeting_url": link, "user_id": user_id, "priority": -1}), "`priority`"),
        (json!({"meeting_url": link, "user_id": user_id, "join_at": "2027-01-01T00:00:00Z"}), "`join_at`"),
        (json!({"user_id": user_id}), "`meeting_url`"),
    ] {
        let (status, answer) = admin.post("/admin/bots", body.clone()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{body}: {answer}");
        assert!(answer["detail"].as_str().unwrap().starts_with(field), "{body}: {answer}");
    }
    let body = json!({"meeting_url": link, "user_id": user_id});
    assert_eq!(user.post("/admin/bots", body.clone()).await.0, StatusCode::UNAUTHORIZED);
    let (status, answer) = user.post("/bots", body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "a user asks only for itself");
    assert!(answer["detail"].as_str().unwrap().contains("`user_id`"), "{answer}");
    assert_eq!(admin.get("/admin/bots").await["bots"], json!([]));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_operator_reads_reconfigures_and_stops_a_bot_and_the_user_sees_who_did_it(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let admin = server.admin();
    let (_, user) = new_user(&admin, 1).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&admin, &bot).await;
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    let segment =
        |at: u32| json!({"start_time": at, "end_time": at + 1, "text": format!("word {at}"), "speaker": "Ada"});
    life.report("transcript", json!({"segments": [segment(1), segment(2), segment(3)]})).await;

    let config = json!({"language": "fr"});
    let path = format!("/admin/bots/{bot}/config");
    let (status, answer) = admin.send(Method::PUT, &path, Some(json!({"config": config}))).await;
    assert_eq!((status, &answer["bot"]["config"]), (StatusCode::ACCEPTED, &config), "{answer}");
    let commands = life.report("heartbeat", json!({})).await["commands"].take();
    assert_eq!((&commands[0]["action"], &commands[0]["payload"]), (&json!("reconfigure"), &config));
    let large = json!({"config": {"text": "x".repeat(70_000)}});
    let (status, answer) = admin.send(Method::PUT, &path, Some(large)).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer["detail"].as_str().unwrap().starts_with("`config`"), "{answer}");

    let (status, answer) = admin.send(Method::DELETE, &format!("/admin/bots/{bot}"), None).await;
    assert_eq!((status, &answer["bot"]["status"]), (StatusCode::ACCEPTED, &json!("stopping")), "{answer}");
    let events = told(&user.get(&format!("/bots/{bot}/events")).await);
    let tail = |from: usize| events[events.len() - from].each_ref().map(String::as_str);
    assert_eq!(tail(3), ["command_sent", "", "reconfigure", "operator"]);
    assert_eq!(tail(2), ["status_changed", "stopping", "stopped", "operator"]);
    assert_eq!(tail(1), ["command_sent", "", "leave", "operator"]);

    life.report("exited", json!({"exit_code": 0})).await;
    let ended = user.until(&bot, "completed").await;
    assert_eq!(ended["reason"], "stopped");
    let (status, answer) = admin.send(Method::DELETE, &format!("/admin/bots/{bot}"), None).await;
    assert_eq!((status, &answer["bot"]["status"]), (StatusCode::OK, &json!("completed")));
    let (status, answer) = admin.send(Method::PUT, &path, Some(json!({"config": {}}))).await;
    assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("bot_ended")));

    // What the operator reads is what the user reads, page by page.
    for what in ["events", "transcript"] {
        assert_eq!(
            admin.get(&format!("/admin/bots/{bot}/{what}")).await,
            user.get(&format!("/bots/{bot}/{what}")).await
        );
        let first = admin.get(&format!("/admin/bots/{bot}/{what}?limit=2")).await;
        assert_eq!(first, user.get(&format!("/bots/{bot}/{what}?limit=2")).await);
        let next = format!("{what}?limit=2&cursor={}", first["next_cursor"].as_str().unwrap());
        assert_eq!(
            admin.get(&format!("/admin/bots/{bot}/{next}")).await,
            user.get(&format!("/bots/{bot}/{next}")).await
        );
        assert_eq!(
            user.send(Method::GET, &format!("/admin/bots/{bot}/{what}"), None).await.0,
            StatusCode::UNAUTHORIZED
        );
    }
    let nobody = uuid::Uuid::new_v4();
    for (method, path, body) in [
        (Method::DELETE, "", None),
        (Method::PUT, "/config", Some(json!({"config": {}}))),
        (Method::GET, "/events", None),
        (Method::GET, "/transcript", None),
    ] {
        let (status, answer) = admin.send(method, &format!("/admin/bots/{nobody}{path}"), body).await;
        assert_eq!((status, &answer["code"]), (StatusCode::NOT_FOUND, &json!("not_found")), "{path}");
    }
}
