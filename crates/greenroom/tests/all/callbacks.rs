//! Callbacks of bots over HTTP: repeated and late ones, old connections, commands and heartbeats.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Life, Process, meet_link};

async fn status_of(user: &Client, bot: &str) -> (String, Value) {
    let bot = user.get(&format!("/bots/{bot}")).await["bot"].take();
    (bot["status"].as_str().unwrap().to_owned(), bot["reason"].clone())
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_goes_through_its_whole_life_and_every_repeat_changes_nothing(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    let segments = json!({"segments": [{"start_time": 0, "end_time": 1.5, "text": "Hello.", "speaker": "Ada"}]});
    for (callback, body, status) in [
        ("started", json!({"container_id": "c-1"}), "starting"),
        ("status", json!({"status": "awaiting_admission", "reason": "lobby"}), "awaiting_admission"),
        ("status", json!({"status": "needs_help"}), "needs_help"),
        ("joined", json!({}), "active"),
        ("heartbeat", json!({}), "active"),
        ("transcript", segments.clone(), "active"),
        ("status", json!({"status": "stopping"}), "stopping"),
        ("exited", json!({"exit_code": 0}), "completed"),
    ] {
        let first = life.report(callback, body.clone()).await;
        let events = user.get(&format!("/bots/{bot}/events")).await;
        let repeated = life.report(callback, body).await;
        if callback == "transcript" {
            assert_eq!((&first["stored"], &repeated["stored"]), (&json!(1), &json!(0)));
        } else {
            assert_eq!(first["status"], status, "{callback}");
            assert_eq!(first, repeated, "{callback}");
        }
        assert_eq!(user.get(&format!("/bots/{bot}/events")).await, events, "a repeated {callback} made an event");
    }
    let read = user.get(&format!("/bots/{bot}")).await["bot"].take();
    assert_eq!((&read["status"], &read["reason"]), (&json!("completed"), &json!("finished")));
    assert_eq!(read["container_id"], "c-1");
    assert!(read["start_time"].is_string() && read["end_time"].is_string());
    let session = &read["sessions"][0];
    assert_eq!(session["connection_id"], json!(life.connection_id));
    assert!(["started_at", "joined_at", "ended_at", "last_heartbeat_at"].iter().all(|time| session[time].is_string()));
    let moves: Vec<_> = user.get(&format!("/bots/{bot}/events")).await["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| format!("{} {}", event["kind"].as_str().unwrap(), event["to"].as_str().unwrap_or("-")))
        .collect();
    assert_eq!(
        moves,
        [
            "created deploying",
            "assigned deploying",
            "status_changed starting",
            "status_changed awaiting_admission",
            "status_changed needs_help",
            "status_changed active",
            "status_changed stopping",
            "status_changed completed",
        ]
    );
    let transcript = user.get(&format!("/bots/{bot}/transcript")).await;
    assert_eq!(transcript["segments"].as_array().unwrap().len(), 1);
    assert_eq!(transcript["segments"][0]["session_uid"], json!(life.connection_id));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_older_connection_gets_the_error_stale_connection_and_changes_nothing(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    let old = Life::assign(&admin, &bot).await;
    old.report("started", json!({})).await;
    old.report("joined", json!({})).await;
    let new = Life::assign(&admin, &bot).await;
    let mixed = Life { connection_id: old.connection_id.clone(), ..new.clone() };
    let swapped = Life { connection_id: new.connection_id.clone(), ..old.clone() };
    for life in [&old, &mixed, &swapped] {
        for (callback, body) in [
            ("started", json!({})),
            ("joined", json!({})),
            ("status", json!({"status": "stopping"})),
            ("heartbeat", json!({})),
            ("transcript", json!({"segments": []})),
            ("exited", json!({"exit_code": 0})),
        ] {
            let (status, answer) = life.say(callback, body).await;
            assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("stale_connection")), "{callback}");
        }
        let path = format!("/callback/commands?wait_ms=0&connection_id={}", life.connection_id);
        assert_eq!(life.client.send(Method::GET, &path, None).await.0, StatusCode::CONFLICT);
    }
    assert_eq!(status_of(&user, &bot).await.0, "active");
    // A new connection means a restart: the bot is not in the meeting until it reports `joined` again.
    assert_eq!(new.report("started", json!({})).await["status"], "starting");
    assert_eq!(new.report("joined", json!({})).await["status"], "active");
    let read = user.get(&format!("/bots/{bot}")).await;
    assert_eq!(read["bot"]["sessions"].as_array().unwrap().len(), 2);
    new.report("exited", json!({"exit_code": 0})).await;
    assert_eq!(old.say("heartbeat", json!({})).await.0, StatusCode::CONFLICT);
}

#[tokio::test]
async fn callbacks_that_the_state_does_not_allow_are_refused_and_after_the_end_all_get_410() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    let segments = |text: &str| json!({"segments": [{"start_time": 0, "end_time": 1, "text": text}]});
    for (callback, body) in [
        ("joined", json!({})),
        ("heartbeat", json!({})),
        ("transcript", segments("early")),
        ("status", json!({"status": "awaiting_admission"})),
        ("status", json!({"status": "stopping"})),
    ] {
        let (status, answer) = life.say(callback, body).await;
        assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("invalid_transition")), "{callback}");
    }
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    life.report("transcript", segments("in time")).await;
    let (status, _) = life.say("status", json!({"status": "awaiting_admission"})).await;
    assert_eq!(status, StatusCode::CONFLICT, "a bot in the meeting is not in the lobby");
    life.report("exited", json!({"exit_code": 3, "reason": "kicked", "error": "Traceback…"})).await;
    assert_eq!(status_of(&user, &bot).await, ("failed".to_owned(), json!("kicked")));
    assert_eq!(user.get(&format!("/bots/{bot}")).await["bot"]["error"], "Traceback…");
    for (callback, body) in [
        ("started", json!({})),
        ("joined", json!({})),
        ("heartbeat", json!({})),
        ("transcript", segments("late")),
        ("status", json!({"status": "stopping"})),
        ("exited", json!({"exit_code": 0})),
    ] {
        let (status, answer) = life.say(callback, body).await;
        assert_eq!((status, &answer["code"]), (StatusCode::GONE, &json!("bot_ended")), "{callback}");
    }
    assert_eq!(life.report("exited", json!({"exit_code": 3})).await["status"], "failed");
    assert_eq!(life.report("transcript", segments("in time")).await["stored"], 0);
    assert_eq!(status_of(&user, &bot).await, ("failed".to_owned(), json!("kicked")));
    let (status, answer) = user.send(Method::DELETE, &format!("/bots/{bot}"), None).await;
    assert_eq!((status, &answer["bot"]["status"]), (StatusCode::OK, &json!("failed")));
    let config = json!({"config": {}});
    let (status, answer) = user.send(Method::PUT, &format!("/bots/{bot}/config"), Some(config)).await;
    assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("bot_ended")));
    let (status, _) = server.admin().post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_stop_works_in_every_state_and_ends_stopped_unless_the_bot_crashes() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(99).await;
    let steps: [&[(&str, Value)]; 5] = [
        &[],
        &[("started", json!({}))],
        &[("started", json!({})), ("status", json!({"status": "awaiting_admission"}))],
        &[("started", json!({})), ("status", json!({"status": "needs_help"}))],
        &[("started", json!({})), ("joined", json!({}))],
    ];
    for (number, steps) in steps.into_iter().enumerate() {
        let bot = user.bot(&meet_link(number)).await;
        let life = Life::assign(&server.admin(), &bot).await;
        for (callback, body) in steps {
            life.report(callback, body.clone()).await;
        }
        for _ in 0..2 {
            let (status, answer) = user.post("/bots/stop", json!({"bot_id": bot})).await;
            assert_eq!((status, &answer["bot"]["status"]), (StatusCode::ACCEPTED, &json!("stopping")), "{answer}");
        }
        // A bot that had not started yet gets the command after its start.
        life.report("started", json!({})).await;
        let commands = life.report("heartbeat", json!({})).await["commands"].take();
        assert_eq!(commands.as_array().unwrap().len(), 1, "two stops make one command: {commands}");
        assert_eq!(commands[0]["action"], "leave");
        let code = i32::from(number == 4);
        life.report("exited", json!({"exit_code": code, "reason": if code == 0 { json!("bye") } else { json!(null) }}))
            .await;
        let expected = if code == 0 { ("completed", "stopped") } else { ("failed", "crashed") };
        assert_eq!(status_of(&user, &bot).await, (expected.0.to_owned(), json!(expected.1)));
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_command_is_repeated_until_it_is_acknowledged(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let bot = user.bot(&meet_link(1)).await;
    let path = format!("/bots/{bot}/config");
    let (status, _) = user.send(Method::PUT, &path, Some(json!({"config": {"language": "en"}}))).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let (_, data) = server.admin().post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;
    assert_eq!(
        data["config"],
        json!({"language": "en"}),
        "a bot that has not started gets the new configuration in its data"
    );
    let life = Life::from_data(&server.admin(), &data);
    life.report("started", json!({})).await;
    // The process in its slot may have started with the older data, so it gets the command as well.
    let commands = life.report("heartbeat", json!({})).await["commands"].take();
    assert_eq!(commands[0]["payload"], json!({"language": "en"}));
    life.report("heartbeat", json!({"acked": [commands[0]["id"]]})).await;
    user.send(Method::PUT, &path, Some(json!({"config": {"language": "it"}}))).await;
    let body = json!({"bot_id": bot, "config": {"language": "fr"}});
    let (status, answer) = user.send(Method::PUT, "/bots/config", Some(body)).await;
    assert_eq!((status, &answer["bot"]["config"]), (StatusCode::ACCEPTED, &json!({"language": "fr"})));
    for _ in 0..2 {
        let commands = life.report("heartbeat", json!({})).await["commands"].take();
        assert_eq!(commands.as_array().unwrap().len(), 1, "the newer command replaces the older: {commands}");
        assert_eq!(commands[0]["action"], "reconfigure");
        assert_eq!(commands[0]["payload"], json!({"language": "fr"}));
    }
    let id = life.report("heartbeat", json!({})).await["commands"][0]["id"].take();
    for _ in 0..2 {
        assert_eq!(life.report("heartbeat", json!({"acked": [id]})).await["commands"], json!([]));
    }
    let events = user.get(&format!("/bots/{bot}/events")).await["events"].take();
    let acknowledged = events.as_array().unwrap().iter().filter(|event| event["kind"] == "command_acknowledged");
    assert_eq!(acknowledged.count(), 2);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_long_poll_for_commands_answers_as_soon_as_one_is_sent(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({})).await;
    let waiting = |wait: u32| format!("/callback/commands?connection_id={}&wait_ms={wait}", life.connection_id);
    let path = waiting(60_000);
    let listener = tokio::spawn({
        let client = life.client.clone();
        async move { client.get(&path).await }
    });
    // The long poll is open, and so is this request itself.
    while !server.client("").get("/metrics").await.as_str().unwrap().contains("greenroom_http_requests_under_way 2") {}
    assert_eq!(life.client.get(&waiting(10)).await["commands"], json!([]), "the long poll answers after its time");
    user.send(Method::DELETE, &format!("/bots/{bot}"), None).await;
    // Sooner than the next poll of the listener.
    let heard = tokio::time::timeout(Duration::from_secs(10), listener).await.unwrap().unwrap();
    assert_eq!(heard["commands"][0]["action"], "leave");
    let (status, answer) = life.client.send(Method::GET, &waiting(60_001), None).await;
    assert_eq!((status, &answer["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")));
    let path = "/callback/commands?connection_id=nonsense";
    let (status, answer) = life.client.send(Method::GET, path, None).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer["detail"].as_str().unwrap().contains("`connection_id`"), "{answer}");
}

#[tokio::test]
async fn invalid_callbacks_are_refused_by_their_field_and_unknown_fields_are_accepted() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({"meeting_id": 17, "host": "worker-3"})).await;
    for (callback, body, field) in [
        ("status", json!({"status": "sleeping"}), "`status`"),
        ("status", json!({}), "missing field `status`"),
        ("exited", json!({}), "missing field `exit_code`"),
        ("exited", json!({"exit_code": "0"}), "`exit_code`"),
        ("heartbeat", json!({"acked": ["x"]}), "`acked[0]`"),
        ("transcript", json!({}), "missing field `segments`"),
        ("transcript", json!({"segments": [{"start_time": 2, "end_time": 1, "text": ""}]}), "`segments[0].end_time`"),
        (
            "transcript",
            json!({"segments": [{"start_time": "a", "end_time": 1, "text": ""}]}),
            "`segments[0].start_time`",
        ),
        ("heartbeat", json!({"acked": vec![uuid::Uuid::nil(); 1001]}), "`acked`"),
    ] {
        let (status, answer) = life.say(callback, body).await;
        assert_eq!((status, &answer["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(field), "{answer}");
    }
    assert_eq!(status_of(&user, &bot).await.0, "starting");
}

#[tokio::test]
async fn the_end_of_a_bot_is_accepted_even_with_invalid_details() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(9).await;
    for (number, body, reason) in [
        (1, json!({"exit_code": null}), "crashed".to_owned()),
        (2, json!({"exit_code": 3_221_225_477_u32}), "crashed".to_owned()),
        (3, json!({"exit_code": 1, "reason": "x".repeat(5_000), "error": "y".repeat(50_000)}), "x".repeat(200)),
        (4, json!({"exit_code": 1, "reason": "  "}), "crashed".to_owned()),
    ] {
        let bot = user.bot(&meet_link(number)).await;
        let life = Life::assign(&server.admin(), &bot).await;
        for _ in 0..2 {
            assert_eq!(life.report("exited", body.clone()).await["status"], "failed");
        }
        assert_eq!(status_of(&user, &bot).await, ("failed".to_owned(), json!(reason)));
    }
}

#[tokio::test]
async fn under_a_new_connection_started_comes_first_and_the_older_session_ends_with_its_last_heartbeat() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    let old = Life::assign(&admin, &bot).await;
    old.report("started", json!({})).await;
    old.report("joined", json!({})).await;
    old.report("heartbeat", json!({})).await;
    let new = Life::assign(&admin, &bot).await;
    for (callback, body) in [("joined", json!({})), ("heartbeat", json!({})), ("transcript", json!({"segments": []}))] {
        let (status, answer) = new.say(callback, body).await;
        assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("invalid_transition")), "{callback}");
    }
    new.report("started", json!({})).await;
    new.report("heartbeat", json!({})).await;
    let sessions = user.get(&format!("/bots/{bot}")).await["bot"]["sessions"].take();
    assert!(sessions[0]["ended_at"].is_string() && sessions[0]["last_heartbeat_at"].is_string(), "{sessions}");
    assert!(sessions[1]["ended_at"].is_null() && sessions[1]["last_heartbeat_at"].is_string(), "{sessions}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn heartbeats_that_were_gathered_are_written_on_an_orderly_stop(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(30).await;
    let mut bots = Vec::new();
    for number in 0..20 {
        let bot = user.bot(&meet_link(number)).await;
        let life = Life::assign(&server.admin(), &bot).await;
        life.report("started", json!({})).await;
        bots.push((bot, life));
    }
    for (_, life) in &bots {
        life.report("heartbeat", json!({})).await;
    }
    server.terminate().await;
    assert!(server.wait().await);
    let server = Process::start(&database).await;
    let user = user.on(&server.url);
    for (bot, _) in &bots {
        let read = user.get(&format!("/bots/{bot}")).await;
        assert!(read["bot"]["sessions"][0]["last_heartbeat_at"].is_string(), "{read}");
    }
}
