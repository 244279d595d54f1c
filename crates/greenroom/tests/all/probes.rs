//! Probes: the demo bot runs through a real slot of one pool, and the bots of users are not concerned.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::pool_removal::{other_pool, start_again};
use crate::support::{
    Backend, Client, DockerFixture, Engine, Process, Recipe, ServerFixture, found, meet_link, process_pool, until,
};

/// Leaves the file `ran` in the test's folder, joins, and leaves when it gets a command.
const BOT: &str = r#"
    touch ../../../ran
    echo '{"event": "joined"}'
    read -r leave
"#;

/// Starts a probe that must be admitted.
async fn probe(admin: &Client, pool: &str) -> Value {
    let (status, mut body) = admin.send(Method::POST, &format!("/admin/pools/{pool}/probe"), None).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{body}");
    body["bot"].take()
}

fn id(bot: &Value) -> &str {
    bot["id"].as_str().unwrap()
}

async fn shown(admin: &Client, bot: &Value) -> Value {
    admin.get(&format!("/admin/bots/{}", id(bot))).await["bot"].take()
}

/// Waits for the end of a probe.
async fn ended(admin: &Client, bot: &Value) -> Value {
    found("the probe has ended", async || {
        let bot = shown(admin, bot).await;
        (bot["status"] == "completed" || bot["status"] == "failed").then_some(bot)
    })
    .await
}

/// The statuses that a probe came to, in order, from its events.
async fn steps(admin: &Client, bot: &Value) -> Vec<String> {
    let events = admin.get(&format!("/admin/bots/{}/events", id(bot))).await;
    events["events"].as_array().unwrap().iter().filter_map(|event| event["to"].as_str().map(str::to_owned)).collect()
}

fn finished(bot: &Value) {
    assert_eq!((&bot["status"], &bot["reason"]), (&json!("completed"), &json!("finished")), "{bot}");
}

fn has_run(fixture: &ServerFixture) -> bool {
    fixture.database.folder.path().join("ran").exists()
}

#[rstest]
#[case::sqlite_hot(Backend::Sqlite, "running")]
#[case::sqlite_stopped(Backend::Sqlite, "stopped")]
#[case::postgres_hot(Backend::Postgres, "running")]
#[case::postgres_stopped(Backend::Postgres, "stopped")]
#[tokio::test]
async fn a_probe_runs_the_demo_bot_step_by_step_and_never_the_command_of_its_slot(
    #[case] backend: Backend,
    #[case] standby: &str,
) {
    let settings = format!("max_slots = 1\nmin_idle = 1\nstandby = \"{standby}\"");
    let fixture = ServerFixture::open(backend, &process_pool("meet", &settings, BOT)).await;
    let admin = &fixture.admin;
    fixture.until_slots(1, 0).await;
    let started = probe(admin, "meet").await;
    let bot = ended(admin, &started).await;
    finished(&bot);
    assert_eq!((&bot["pool"], &bot["slot"]), (&json!("meet"), &json!("pool-meet-001")));
    assert_eq!(
        (&bot["metadata"], &bot["meeting_url"]),
        (&json!({"probe": true}), &json!("https://probe.invalid/meet"))
    );
    assert_eq!(steps(admin, &bot).await, ["deploying", "starting", "active", "completed"]);
    let events = admin.get(&format!("/admin/bots/{}/events", id(&bot))).await;
    assert_eq!(events["events"][0]["actor"], "operator");
    let transcript = admin.get(&format!("/admin/bots/{}/transcript", id(&bot))).await;
    assert!(transcript["segments"][0]["text"].as_str().unwrap().starts_with("This is a probe"), "{transcript}");
    let explained = admin.get(&format!("/admin/bots/{}/explain", id(&bot))).await;
    assert_eq!(explained["status"], "completed", "{explained}");
    let entry = admin.get("/admin/audit").await["entries"][0].take();
    assert_eq!((&entry["action"], &entry["subject"]), (&json!("pool_probed"), &json!("meet")));
    assert_eq!(entry["detail"], json!({"bot_id": id(&bot)}));
    // The slot is ready for the next bot, whose wait is not estimated from the short probe.
    fixture.until_slots(1, 0).await;
    assert_eq!(admin.get("/admin/pools/meet").await["pool"]["mean_hold_ms"], Value::Null);
    assert!(!has_run(&fixture));
    let bot = fixture.active(0).await;
    assert!(has_run(&fixture));
    fixture.leave(&bot).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn in_a_prewarmed_slot_the_command_that_waited_ends_and_the_next_one_waits_for_a_bot(#[case] backend: Backend) {
    // It runs only when it gets a meeting.
    let script = r#"echo '{"event": "ready"}'; read -r assignment; "#.to_owned() + BOT;
    let settings = "max_slots = 1\nmin_idle = 1\nstandby = \"running\"\nprewarm = true\nrecycle_after = 0";
    let fixture = ServerFixture::open(backend, &process_pool("meet", settings, &script)).await;
    fixture.until_slots(1, 0).await;
    let agent = fixture.agent("pool-meet-001").await;
    let bot = ended(&fixture.admin, &probe(&fixture.admin, "meet").await).await;
    finished(&bot);
    fixture.until_slots(1, 0).await;
    assert_eq!(fixture.agent("pool-meet-001").await, agent, "the slot was not started again");
    assert!(!has_run(&fixture));
    fixture.active(0).await;
    assert!(has_run(&fixture));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_waits_for_its_pool_although_another_has_room_also_after_a_restart(#[case] backend: Backend) {
    let pool = |name| process_pool(name, "max_slots = 1", BOT);
    let mut fixture = ServerFixture::open(backend, &(pool("first") + &pool("second"))).await;
    let admin = fixture.admin.clone();
    let [in_first, in_second] = [fixture.active(0).await, fixture.active(1).await];
    assert_eq!((&in_first["pool"], &in_second["pool"]), (&json!("first"), &json!("second")));
    let waiting = probe(&admin, "second").await;
    assert_eq!((&waiting["status"], &waiting["pool"]), (&json!("queued"), &json!("second")));
    assert_eq!(waiting["queue_position"], 1);
    fixture.leave(&in_first).await;
    let first_is_idle = async || {
        let slot = admin.get("/admin/slots/pool-first-001").await;
        slot["slot"]["status"] == "idle"
    };
    until("the other pool has room", first_is_idle).await;
    let address = fixture.server.url.strip_prefix("http://").unwrap().to_owned();
    fixture.server.kill().await;
    fixture.server = Process::start_at(&fixture.database, &address).await;
    // A bot that is requested later gets the room. So the server has served the queue, and the probe was before it.
    let later = fixture.active(2).await;
    assert_eq!(later["pool"], "first");
    assert_eq!(shown(&admin, &waiting).await["status"], "queued");
    fixture.leave(&in_second).await;
    let bot = ended(&admin, &waiting).await;
    finished(&bot);
    assert_eq!(bot["slot"], "pool-second-001");
    assert_eq!(steps(&admin, &bot).await[0], "queued");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_probe_of_a_broken_pool_fails_with_the_words_of_the_side_that_failed(#[case] backend: Backend) {
    let pool = |name: &str, command: &Value| {
        format!(
            "[[pool]]\nname = \"{name}\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
             process = {{ command = {command} }}\n"
        )
    };
    let agent = json!([env!("CARGO_BIN_EXE_greenroom"), "agent", "--", "/nowhere/bot"]);
    let config = pool("no-agent", &json!(["/nowhere/agent"])) + &pool("no-bot", &agent);
    let fixture = ServerFixture::open(backend, &config).await;
    let bot = ended(&fixture.admin, &probe(&fixture.admin, "no-agent").await).await;
    assert_eq!((&bot["status"], &bot["reason"]), (&json!("failed"), &json!("deploy_failed")), "{bot}");
    assert!(bot["error"].as_str().unwrap().contains("/nowhere/agent"), "{bot}");
    let bot = ended(&fixture.admin, &probe(&fixture.admin, "no-bot").await).await;
    assert_eq!(bot["status"], "failed", "{bot}");
    let error = bot["error"].as_str().unwrap();
    assert!(error.contains("/nowhere/bot cannot be run: there is no such program in this slot"), "{bot}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn users_see_nothing_of_a_probe_and_nobody_acts_as_its_user(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", BOT)).await;
    let (admin, user) = (&fixture.admin, &fixture.user);
    let (status, _) = user.send(Method::POST, "/admin/pools/meet/probe", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let bot = ended(admin, &probe(admin, "meet").await).await;
    finished(&bot);
    assert_eq!(user.get("/bots").await["bots"], json!([]));
    assert_eq!(user.get("/bots/status").await["running"], 0);
    let (status, _) = user.send(Method::GET, &format!("/bots/{}", id(&bot)), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // The user of probes is in no list, and cannot be read, changed, or used.
    let probes = bot["user_id"].as_str().unwrap();
    for query in ["", "?cursor=00000000-0000-0000-0000-000000000000"] {
        let users = admin.get(&format!("/admin/users{query}")).await;
        assert_eq!(users["users"].as_array().unwrap().len(), 1, "{users}");
        assert_ne!(users["users"][0]["id"], json!(probes));
    }
    let path = format!("/admin/users/{probes}");
    for (method, path, body) in [
        (Method::GET, path.clone(), None),
        (Method::PATCH, path.clone(), Some(json!({"max_concurrent_bots": 100}))),
        (Method::POST, format!("{path}/keys"), Some(json!({}))),
    ] {
        let (status, body) = admin.send(method.clone(), &path, body).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}: {body}");
    }
    let request = json!({"user_id": probes, "meeting_url": meet_link(1)});
    let (status, body) = admin.post("/admin/bots", request).await;
    assert_eq!((status, &body["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")), "{body}");
    // A probe of the same pool is possible again.
    finished(&ended(admin, &probe(admin, "meet").await).await);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_pool_has_one_probe_at_a_time_and_few_pools_are_probed_at_once(#[case] backend: Backend) {
    let names = ["a", "b", "c", "d", "e"];
    let pools: String = names.map(|name| process_pool(name, "max_slots = 1", BOT)).concat();
    let fixture = ServerFixture::open(backend, &pools).await;
    let admin = &fixture.admin;
    let refused = async |pool: &str| {
        let (status, body) = admin.send(Method::POST, &format!("/admin/pools/{pool}/probe"), None).await;
        (status.as_u16(), body)
    };
    assert_eq!(refused("nowhere").await.0, 404);
    // Every pool is full, so the probes wait.
    for number in 0..names.len() {
        fixture.active(number).await;
    }
    let mut waiting = Vec::new();
    for name in &names[..4] {
        waiting.push(probe(admin, name).await);
    }
    let (status, body) = refused("b").await;
    assert_eq!((status, &body["code"], &body["bot_id"]), (409, &json!("duplicate_bot"), &waiting[1]["id"]), "{body}");
    let response = admin.request(Method::POST, "/admin/pools/e/probe").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(response.headers().contains_key("retry-after"));
    let body: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(body["code"], "limit_reached", "{body}");
    let entries = admin.get("/admin/audit").await;
    let probed = entries["entries"].as_array().unwrap().iter().filter(|entry| entry["action"] == "pool_probed");
    assert_eq!(probed.count(), 4, "refused ones have no entry: {entries}");
    // An operator can stop a probe, and then there is room for another.
    let (status, body) = admin.send(Method::DELETE, &format!("/admin/bots/{}", id(&waiting[0])), None).await;
    assert!(status.is_success(), "{body}");
    assert_eq!(probe(admin, "e").await["status"], "queued");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_pool_that_left_the_configuration_is_not_probed(#[case] backend: Backend) {
    let config = process_pool("meet", "max_slots = 1", BOT) + &other_pool();
    let fixture = ServerFixture::open(backend, &config).await;
    let ServerFixture { server, database, .. } = fixture;
    let (server, _) = start_again(server, &database, &other_pool()).await;
    let (status, body) = server.admin().send(Method::POST, "/admin/pools/meet/probe", None).await;
    assert_eq!((status, &body["code"]), (StatusCode::CONFLICT, &json!("invalid_transition")), "{body}");
    assert!(body["detail"].as_str().unwrap().contains("is no longer in the configuration"), "{body}");
}

#[rstest]
#[case::hot("running")]
#[case::stopped("stopped")]
#[tokio::test]
async fn a_probe_runs_through_a_real_docker_slot_and_never_the_images_command(#[case] standby: &str) {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot("exit 7")).await;
    let settings = format!("max_slots = 1\nstandby = \"{standby}\"");
    let fixture = DockerFixture::start(&engine, "docker", &image, &settings, "").await;
    let admin = fixture.server.admin();
    let pool = admin.get("/admin/pools").await["pools"][0]["name"].take();
    let bot = ended(&admin, &probe(&admin, pool.as_str().unwrap()).await).await;
    finished(&bot);
    assert_eq!(bot["slot"], fixture.slot(1));
    assert_eq!(steps(&admin, &bot).await, ["deploying", "starting", "active", "completed"]);
    fixture.until_idle(1).await;
}
