//! What the API shows of bots, slots, pools and the queue: since when, until when, and what ran where.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Life, ServerFixture, found, meet_link, process_pool, until};

/// Joins and stays until it is asked to leave.
const STAYS: &str = r#"echo '{"event": "joined"}'; read leave"#;

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap_or_else(|| panic!("no time: {value}")).parse().unwrap()
}

fn id(bot: &Value) -> &str {
    bot["id"].as_str().unwrap()
}

/// The time that is this many minutes after another.
fn minutes_after(at: &Value, minutes: i64) -> Timestamp {
    time(at) + SignedDuration::from_mins(minutes)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_shows_since_when_it_has_its_status_and_when_its_deadline_passes(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", STAYS)).await;
    fixture.active(1).await;
    fixture.database.execute("UPDATE pools SET mean_hold_ms = 120000").await;
    let (_, answer) =
        fixture.user.post("/bots", json!({"meeting_url": meet_link(2), "queue_timeout_ms": 60_000})).await;
    let queued = &answer["bot"];
    assert_eq!((&queued["status"], &queued["status_since"]), (&json!("queued"), &queued["created_at"]));
    assert_eq!(time(&queued["deadline_at"]), minutes_after(&queued["created_at"], 1));
    let (shown, explained) =
        (fixture.user.show_bot(id(queued)).await, fixture.user.get(&format!("/bots/{}/explain", id(queued))).await);
    let entries = fixture.admin.get("/admin/queue").await;
    let entry = &entries["entries"][0];
    for deadline in [&shown["deadline_at"], &explained["until"], &entry["timeout_at"]] {
        assert_eq!(time(deadline), time(&queued["deadline_at"]));
    }
    assert_eq!(time(&explained["since"]), time(&shown["status_since"]));
    assert_eq!((&entry["bot_id"], &entry["estimated_wait_ms"]), (&queued["id"], &json!(120_000)));
    assert_eq!(shown["estimated_wait_ms"], entry["estimated_wait_ms"]);

    // By hand it leaves the queue, and has five minutes for its first callback.
    let life = Life::assign(&fixture.admin, id(queued)).await;
    let shown = fixture.user.show_bot(id(queued)).await;
    assert_eq!(shown["status"], "deploying");
    assert!(time(&shown["status_since"]) > time(&shown["created_at"]), "{shown}");
    assert_eq!(time(&shown["deadline_at"]), minutes_after(&shown["status_since"], 5));
    life.report("started", json!({})).await;
    let shown = fixture.user.show_bot(id(queued)).await;
    assert_eq!(time(&shown["deadline_at"]), minutes_after(&shown["sessions"][0]["started_at"], 10));
    // The list shows the same, and for every bot.
    let listed = fixture.user.get("/bots").await;
    assert_eq!(listed["bots"][0]["deadline_at"], shown["deadline_at"]);
    let active = &listed["bots"][1];
    assert_eq!(active["status"], "active");
    assert!(time(&active["deadline_at"]) >= minutes_after(&active["status_since"], 2), "{active}");

    let (status, stopping) = fixture.user.send(Method::DELETE, &format!("/bots/{}", id(queued)), None).await;
    assert!(status.is_success(), "{stopping}");
    let stopping = &stopping["bot"];
    assert_eq!(stopping["status"], "stopping");
    assert_eq!(time(&stopping["deadline_at"]), time(&stopping["status_since"]) + SignedDuration::from_secs(90));
    life.report("exited", json!({"exit_code": 0})).await;
    let ended = fixture.user.show_bot(id(queued)).await;
    assert_eq!((&ended["status_since"], &ended["deadline_at"]), (&ended["end_time"], &Value::Null));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_and_its_slot_show_the_deadline_of_the_deployment(#[case] backend: Backend) {
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"docker\"\nmax_slots = 1\n\
                docker = { host = \"unix:///nowhere/docker.sock\", image = \"team/bot:7\" }\n";
    let fixture = ServerFixture::open(backend, pool).await;
    let first = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    assert_eq!(first["status"], "deploying");
    assert_eq!(time(&first["deadline_at"]), minutes_after(&first["created_at"], 30));
    let second = fixture.user.ask(json!({"meeting_url": meet_link(2)})).await;
    assert_eq!(second["status"], "queued");
    let deployments = fixture.admin.get("/admin/deployments").await;
    let slot = fixture.admin.get("/admin/slots/pool-meet-001").await;
    assert_eq!(slot["slot"]["status"], "creating");
    for shown in [&deployments["entries"][0]["timeout_at"], &slot["slot"]["deadline_at"]] {
        assert_eq!(time(shown), time(&first["deadline_at"]));
    }
    assert_eq!(fixture.slots().await[0]["deadline_at"], slot["slot"]["deadline_at"]);
    assert_eq!(slot["bots"][0]["id"], first["id"]);
    // The second bot gets a slot, and is deploying only since then.
    let larger = json!({"max_slots": 2});
    let (status, answer) = fixture.admin.send(Method::PATCH, "/admin/pools/meet", Some(larger)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let deploying = fixture.user.until(id(&second), "deploying").await;
    let events = fixture.user.get(&format!("/bots/{}/events", id(&second))).await;
    let assigned = events["events"].as_array().unwrap().iter().rfind(|event| event["kind"] == "assigned").unwrap();
    assert_eq!(time(&deploying["status_since"]), time(&assigned["at"]));
    assert!(time(&deploying["deadline_at"]) > minutes_after(&deploying["status_since"], 29), "{deploying}");

    let pool = fixture.admin.get("/admin/pools/meet").await["pool"].take();
    assert_eq!(
        (&pool["order"], &pool["image"], &pool["closed_until"]),
        (&json!(1), &json!("team/bot:7"), &Value::Null)
    );
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_in_error_shows_its_next_recovery_and_the_bots_that_ran_in_it(#[case] backend: Backend) {
    let pool = "[[pool]]\nname = \"zoom\"\nplatform = \"zoom\"\nprovider = \"process\"\nmax_slots = 2\n\
                process = { command = [\"/nowhere/agent\"] }\n";
    let fixture = ServerFixture::open(backend, pool).await;
    let link = |number: usize| json!({"meeting_url": format!("https://zoom.us/j/8123456789{number}")});
    let bot = fixture.user.ask(link(0)).await;
    let other = fixture.user.ask(link(1)).await;
    fixture.user.until(id(&bot), "failed").await;
    fixture.user.until(id(&other), "failed").await;
    let shown = found("the slot is in error", async || {
        let shown = fixture.admin.get("/admin/slots/pool-zoom-001").await;
        (shown["slot"]["status"] == "error").then_some(shown)
    })
    .await;
    let slot = &shown["slot"];
    assert!(time(&slot["status_since"]) >= time(&slot["created_at"]));
    assert!(slot.as_object().unwrap().contains_key("release") && slot["release"].is_null(), "{slot}");
    until("its deadline is the next run of recovery", async || {
        let keepers = fixture.admin.get("/admin/keepers").await;
        let keepers = keepers["keepers"].as_array().unwrap().clone();
        let recovery = keepers.into_iter().find(|keeper| keeper["name"] == "recovery").unwrap();
        let slot = fixture.admin.get("/admin/slots/pool-zoom-001").await["slot"].take();
        slot["deadline_at"].is_string() && slot["deadline_at"] == recovery["next_run"]
    })
    .await;
    let [ran] = &shown["bots"].as_array().unwrap()[..] else { panic!("{shown}") };
    let failed = fixture.user.show_bot(id(ran)).await;
    assert_eq!(failed["slot"], "pool-zoom-001");
    for field in ["user_id", "platform", "status", "status_since", "reason", "fault", "end_time", "created_at"] {
        assert_eq!(ran[field], failed[field], "{field}");
    }
    let store = fixture.database.open().await;
    until("both slots are in error, and one is read", async || {
        let (slots, all) = store.slots_in_error(1).await.unwrap();
        (slots.len(), all) == (1, 2)
    })
    .await;
    store.close().await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_last_bots_of_a_slot_are_found_among_the_newest_and_the_failed_ones(#[case] backend: Backend) {
    let script = r#"echo '{"event": "joined"}'; exit 3"#;
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", script)).await;
    let mut ran = Vec::new();
    for number in 0..3 {
        let bot = fixture.user.bot(&meet_link(number)).await;
        assert_eq!(fixture.user.until(&bot, "failed").await["slot"], "pool-meet-001");
        ran.insert(0, bot);
    }
    // The slot is cleared, so that no failure is stored later.
    fixture.until_slots(1, 0).await;
    let shown = fixture.admin.get("/admin/slots/pool-meet-001").await;
    let ids: Vec<&str> = shown["bots"].as_array().unwrap().iter().map(id).collect();
    assert_eq!(ids, ran);
    let store = fixture.database.open().await;
    let slot = domain::SlotName::new("meet", 1);
    let found = async |searched: i64, limit: i64| -> Vec<String> {
        let bots = store.bots_in_slot(&slot, searched, limit).await.unwrap();
        bots.into_iter().map(|bot| bot.id.to_string()).collect()
    };
    assert_eq!(found(1_000, 2).await, ran[..2]);
    fixture.database.execute("DELETE FROM failures").await;
    assert_eq!(found(1, 20).await, ran[..1], "only the newest bot is searched");
    let failure = greenroom::store::FailureRow {
        slot: slot.clone(),
        bot_id: Some(domain::BotId(ran[2].parse().unwrap())),
        at: Timestamp::now(),
        message: "it broke".to_owned(),
        log: None,
    };
    store.keep_failure(&failure).await.unwrap();
    assert_eq!(found(1, 20).await, [ran[0].clone(), ran[2].clone()], "a failed bot is found, however old");
    assert_eq!(found(1, 1).await, ran[..1]);
    store.close().await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_pool_shows_until_when_its_provider_refuses_requests(#[case] backend: Backend) {
    let pools = process_pool("meet", "max_slots = 1", STAYS)
        + "[[pool]]\nname = \"other\"\nplatform = \"zoom\"\nprovider = \"docker\"\n\
           docker = { host = \"unix:///nowhere/docker.sock\", image = \"bot\" }\n";
    let fixture = ServerFixture::open(backend, &pools).await;
    let store = fixture.database.open().await;
    let row = store.pools().await.unwrap().into_iter().find(|pool| pool.name == "other").unwrap();
    store.hold_back(&row.host, Duration::from_secs(300)).await.unwrap();
    let shown = fixture.admin.get("/admin/pools").await;
    let [open, closed] = &shown["pools"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert_eq!((&open["order"], &open["image"], &open["closed_until"]), (&json!(1), &Value::Null, &Value::Null));
    assert_eq!((&closed["order"], &closed["image"]), (&json!(2), &json!("bot")));
    let left = time(&closed["closed_until"]).duration_since(Timestamp::now());
    assert!(left > SignedDuration::ZERO && left <= SignedDuration::from_secs(301), "{left:?}");
    store.close().await;
}
