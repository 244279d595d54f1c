//! What operators see and do: pools, slots, the queue, the gate.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, ServerFixture, meet_link, process_pool, until};

const BOT: &str = r#"
    echo '{"event": "joined"}'
    read leave
"#;

async fn fixture(backend: Backend, settings: &str) -> ServerFixture {
    ServerFixture::open(backend, &process_pool("meet", settings, BOT)).await
}

async fn patch(fixture: &ServerFixture, change: Value) -> (StatusCode, Value) {
    fixture.admin.send(Method::PATCH, "/admin/pools/meet", Some(change)).await
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_pool_is_shown_and_resized_and_keeps_its_size_over_a_restart(#[case] backend: Backend) {
    let fixture = fixture(backend, "max_slots = 1").await;
    let busy = fixture.active(0).await;
    let waiting = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    let pools = fixture.admin.get("/admin/pools").await;
    let expected = json!({
        "name": "meet", "platform": "google_meet", "provider": "process", "max_slots": 1, "min_idle": 0,
        "standby": "stopped", "slots": {"creating": 0, "idle": 0, "busy": 1, "error": 0, "draining": 0},
        "queued": 1, "mean_hold_ms": null, "memory_bytes": null, "order": 1, "image": null, "closed_until": null,
    });
    assert_eq!(pools, json!({ "pools": [expected], "next_cursor": null }));
    assert_eq!(fixture.admin.get("/admin/pools/meet").await["pool"], expected);

    // The larger size is used at once.
    let (status, answer) = patch(&fixture, json!({"max_slots": 3, "min_idle": 1})).await;
    assert_eq!((status, &answer["pool"]["max_slots"]), (StatusCode::OK, &json!(3)), "{answer}");
    assert_eq!(answer["pool"]["queued"], 0);
    fixture.user.until(waiting["id"].as_str().unwrap(), "active").await;
    fixture.until_slots(1, 2).await;
    fixture.leave(&busy).await;

    let address = fixture.server.url.strip_prefix("http://").unwrap().to_owned();
    let ServerFixture { server, database, admin, .. } = fixture;
    server.kill().await;
    let _server = crate::support::Process::start_at(&database, &address).await;
    assert_eq!(admin.get("/admin/pools/meet").await["pool"]["max_slots"], 3);
}

#[tokio::test]
async fn an_invalid_pool_size_is_refused_by_the_name_of_its_field() {
    let fixture = fixture(Backend::Sqlite, "max_slots = 4\nmin_idle = 2").await;
    for (change, field) in [
        (json!({"max_slots": 0}), "`max_slots`"),
        (json!({"max_slots": 100_001}), "`max_slots`"),
        (json!({"max_slots": 1}), "`min_idle`"),
        (json!({"min_idle": 5}), "`min_idle`"),
        (json!({"min_idle": -1}), "`min_idle`"),
        (json!({"maxslots": 1}), "`maxslots`"),
    ] {
        let (status, answer) = patch(&fixture, change.clone()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{change}: {answer}");
        assert!(answer["detail"].as_str().unwrap().contains(field), "{change}: {answer}");
    }
    let (status, _) = fixture.admin.send(Method::PATCH, "/admin/pools/zoom", Some(json!({"max_slots": 1}))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = fixture.user.send(Method::GET, "/admin/pools", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "only operators may see pools");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn slots_are_filtered_by_pool_and_status_and_an_invalid_status_is_named(#[case] backend: Backend) {
    let fixture = fixture(backend, "max_slots = 3\nmin_idle = 1").await;
    let bot = fixture.active(0).await;
    fixture.until_slots(1, 1).await;
    let names = async |filter: &str| -> Vec<String> {
        let slots = fixture.admin.get(&format!("/admin/slots{filter}")).await;
        slots["slots"].as_array().unwrap().iter().map(|slot| slot["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("").await, ["pool-meet-001", "pool-meet-002"]);
    assert_eq!(names("?status=busy").await, [bot["slot"].as_str().unwrap()]);
    assert_eq!(names("?pool=meet&status=idle").await.len(), 1);
    assert_eq!(names("?pool=zoom").await, [""; 0]);
    let (status, answer) = fixture.admin.send(Method::GET, "/admin/slots?status=bored", None).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let message = answer["detail"].as_str().unwrap();
    assert!(message.contains("`status`") && message.contains("`bored`") && message.contains("draining"), "{message}");

    let slot = fixture.admin.get(&format!("/admin/slots/{}", bot["slot"].as_str().unwrap())).await["slot"].take();
    assert_eq!((&slot["bot_id"], &slot["status"]), (&bot["id"], &json!("busy")));
    let description = slot["description"].as_str().unwrap();
    assert!(description.starts_with(&format!("[BUSY] Bot #{} - ", bot["id"].as_str().unwrap())), "{description}");
    let (status, _) = fixture.admin.send(Method::GET, "/admin/slots/pool-meet-009", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[rstest]
#[case::delete(Method::DELETE, "")]
#[case::drain(Method::POST, "/drain")]
#[tokio::test]
async fn a_busy_slot_is_deleted_after_its_bot_has_ended(#[case] method: Method, #[case] path: &str) {
    let fixture = fixture(Backend::Sqlite, "max_slots = 2").await;
    let bot = fixture.active(0).await;
    let name = bot["slot"].as_str().unwrap();
    let (status, answer) = fixture.admin.send(method, &format!("/admin/slots/{name}{path}"), None).await;
    assert_eq!((status, &answer["slot"]["status"]), (StatusCode::ACCEPTED, &json!("draining")));
    // The bot stays, and the slot gets no other bot after it.
    let next = fixture.active(1).await;
    assert_ne!(next["slot"], name);
    assert_eq!(fixture.user.show_bot(bot["id"].as_str().unwrap()).await["status"], "active");
    fixture.leave(&bot).await;
    until("the slot is gone", async || fixture.slots().await.iter().all(|slot| slot["name"] != name)).await;
    assert!(!fixture.database.in_slot(name, "").exists(), "its folder is gone too");
    assert!(fixture.database.running().iter().all(|process| process.slot != name));
    fixture.until_slots(0, 1).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_queue_is_shown_in_the_order_in_which_it_will_be_served(#[case] backend: Backend) {
    let fixture = fixture(backend, "max_slots = 1").await;
    fixture.active(0).await;
    let mut asked = Vec::new();
    for (number, priority) in [(1, 100), (2, 5), (3, 100)] {
        let bot_request = json!({"meeting_url": meet_link(number), "priority": priority, "queue_timeout_ms": 60_000});
        asked.push(fixture.user.ask(bot_request).await);
    }
    let queue = fixture.admin.get("/admin/queue").await["entries"].take();
    let shown: Vec<_> = queue.as_array().unwrap().iter().map(|entry| entry["bot_id"].clone()).collect();
    assert_eq!(shown, [&asked[1], &asked[0], &asked[2]].map(|bot| bot["id"].clone()));
    for (entry, position) in queue.as_array().unwrap().iter().zip(1..) {
        assert_eq!((&entry["position"], &entry["pool"]), (&json!(position), &json!("meet")));
        let times = ["queued_at", "timeout_at"].map(|key| entry[key].as_str().unwrap().parse::<jiff::Timestamp>());
        let [queued_at, timeout_at] = times.map(Result::unwrap);
        assert_eq!(timeout_at.duration_since(queued_at).as_secs(), 60);
        let bot = fixture.user.show_bot(entry["bot_id"].as_str().unwrap()).await;
        assert_eq!((&bot["status"], &bot["queue_position"]), (&json!("queued"), &json!(position)));
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_in_error_is_recovered_by_hand_and_no_other(#[case] backend: Backend) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("bot");
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n";
    let fixture = ServerFixture::open(backend, &format!("{pool}process = {{ command = [{:?}] }}\n", program)).await;
    let recover = async || fixture.admin.send(Method::POST, "/admin/slots/pool-meet-001/recover", None).await;
    let failing = fixture.user.ask(json!({"meeting_url": meet_link(0)})).await;
    fixture.user.until(failing["id"].as_str().unwrap(), "failed").await;
    let waiting = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    assert_eq!(waiting["status"], "queued", "a slot in error has no bot");

    // The operator corrects the error.
    let agent = env!("CARGO_BIN_EXE_greenroom");
    std::fs::write(&program, format!("#!/bin/sh\nexec {agent} agent -- sh -c '{}'\n", BOT.replace('\'', "'\\''")))
        .unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (status, answer) = recover().await;
    assert_eq!((status, &answer["slot"]["error_message"]), (StatusCode::OK, &Value::Null), "{answer}");
    let running = fixture.user.until(waiting["id"].as_str().unwrap(), "active").await;
    assert_eq!(running["slot"], "pool-meet-001");
    let (status, answer) = recover().await;
    assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("invalid_transition")), "{answer}");
}

#[tokio::test]
async fn a_platform_that_no_pool_serves_is_refused_by_the_name_of_its_field() {
    let fixture = fixture(Backend::Sqlite, "max_slots = 1").await;
    let (status, answer) = fixture.user.post("/bots", json!({"meeting_url": "https://zoom.us/j/81234567890"})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
    let message = answer["detail"].as_str().unwrap();
    assert!(message.contains("`platform`") && message.contains("zoom"), "{message}");
    assert_eq!(fixture.user.get("/bots").await["bots"], json!([]), "nothing is left of it");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_gate_of_each_configured_host_is_shown_also_when_it_is_empty(#[case] backend: Backend) {
    let far = "[[pool]]\nname = \"far\"\nplatform = \"zoom\"\nprovider = \"docker\"\n\
               docker = { host = \"tcp://10.255.255.1:2375\", image = \"bot\" }\n";
    let config = format!("[deploy]\nmax_concurrent = 3\n{}{far}", process_pool("meet", "max_slots = 1", BOT));
    let fixture = ServerFixture::open(backend, &config).await;
    let here = format!("process {}", nix::unistd::gethostname().unwrap().into_string().unwrap());
    let gates = fixture.admin.get("/admin/deployments").await["gates"].take();
    let gate = |host: &str| json!({"host": host, "active": 0, "queued": 0, "max_concurrent": 3});
    assert_eq!(gates, json!([gate("docker tcp://10.255.255.1:2375"), gate(&here)]));
}

/// The fields of a slot of the pool `meet`.
async fn shown(fixture: &ServerFixture) -> (String, String, bool) {
    let slot = fixture.admin.get("/admin/slots/pool-meet-001").await["slot"].take();
    let text = |field: &str| slot[field].as_str().unwrap().to_owned();
    (text("status"), text("description"), slot["hot"].as_bool().unwrap())
}

#[tokio::test]
async fn a_slot_whose_agent_does_not_wait_yet_is_neither_shown_as_idle_nor_as_hot() {
    // The process in the slot is no agent, so no agent ever waits.
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
                min_idle = 1\nstandby = \"running\"\nprocess = { command = [\"sleep\", \"1000\"] }\n";
    let fixture = ServerFixture::open(Backend::Sqlite, pool).await;
    until("it was started", async || fixture.database.agent("pool-meet-001").is_some()).await;
    let (status, description, hot) = shown(&fixture).await;
    assert!(status == "creating" && description.starts_with("[CREATING] Not ready yet - ") && !hot, "{description}");
    until("the provider shows the same", async || {
        std::fs::read_to_string(fixture.database.in_slot("pool-meet-001", "description")).ok()
            == Some(description.clone())
    })
    .await;
    let mut doctor = crate::support::Process::command();
    doctor.args(["doctor", "slot", "pool-meet-001", "--database", &fixture.database.url]);
    let said = doctor.current_dir(fixture.database.folder.path()).output().await.unwrap().stdout;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("is being created") && said.contains(&description), "{said}");
    assert!(!said.contains("[IDLE]"), "{said}");
}

#[rstest]
#[case::running("standby = \"running\"", true)]
#[case::stopped("standby = \"stopped\"", false)]
#[tokio::test]
async fn a_slot_is_hot_where_an_agent_waits_or_has_a_bot(#[case] standby: &str, #[case] is_hot: bool) {
    let fixture = fixture(Backend::Sqlite, &format!("max_slots = 1\nmin_idle = 1\n{standby}")).await;
    fixture.until_slots(1, 0).await;
    let (_, description, hot) = shown(&fixture).await;
    assert!(description.starts_with("[IDLE] Available") && hot == is_hot, "{description} {hot}");
    assert_eq!(fixture.slots().await[0]["hot"], is_hot);
    let bot = fixture.active(0).await;
    let (_, description, hot) = shown(&fixture).await;
    assert!(description.starts_with("[BUSY] Bot #") && hot == is_hot, "{description} {hot}");
    fixture.leave(&bot).await;
}
