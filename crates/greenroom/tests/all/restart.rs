//! The server is killed while bots run, wait in the queue and are being deployed. It restarts on the same address.
//! Running bots continue, the queue keeps its order, the gate holds, and nothing is lost.

use std::collections::BTreeMap;
use std::process::Command;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Process, Running, ServerFixture, meet_link, process_pool, until};

const BOT: &str = r#"
    echo '{"event": "joined"}'
    read leave
"#;
const GATE: usize = 2;

fn slot(number: usize) -> String {
    format!("pool-meet-{number:03}")
}

/// Makes the start of a slot hang: to open this log waits for a reader.
fn make_hang(fixture: &ServerFixture, slot: &str) {
    std::fs::create_dir_all(fixture.database.in_slot(slot, "")).unwrap();
    assert!(Command::new("mkfifo").arg(fixture.database.in_slot(slot, "log")).status().unwrap().success());
}

fn id(bot: &Value) -> &str {
    bot["id"].as_str().unwrap()
}

async fn ask(fixture: &ServerFixture, number: usize, priority: i64) -> Value {
    let bot_request = json!({"meeting_url": meet_link(number), "priority": priority, "queue_timeout_ms": 600_000});
    fixture.user.ask(bot_request).await
}

/// The bots in the queue, in order.
async fn queue(fixture: &ServerFixture) -> Vec<String> {
    let queue = fixture.admin.get("/admin/queue").await;
    queue["entries"].as_array().unwrap().iter().map(|entry| entry["bot_id"].as_str().unwrap().to_owned()).collect()
}

/// How many deployments are inside the gate, which are never too many, and how many wait for it.
async fn at_gate(fixture: &ServerFixture) -> (usize, usize) {
    let gate = fixture.admin.get("/admin/deployments").await;
    let count = |state: &str| gate["entries"].as_array().unwrap().iter().filter(|one| one["state"] == state).count();
    let (active, waiting) = (count("active"), count("waiting"));
    assert_eq!((&gate["active"], &gate["queued"]), (&json!(active), &json!(waiting)));
    assert_eq!(gate["max_concurrent"], json!(GATE));
    assert!(active <= GATE, "{gate}");
    (active, waiting)
}

/// Whether an event says that a bot got its slot: at once, or after a wait.
fn names_slot(event: &Value) -> bool {
    event["kind"] == "assigned" || (event["kind"] == "created" && !event["reason"].is_null())
}

/// The order in which bots got a slot.
async fn assigned(fixture: &ServerFixture, bots: &[Value]) -> Vec<String> {
    let mut assigned = BTreeMap::new();
    for bot in bots {
        let events = fixture.user.get(&format!("/bots/{}/events", id(bot))).await;
        for event in events["events"].as_array().unwrap().iter().filter(|event| names_slot(event)) {
            let before = assigned.insert(event["id"].as_i64().unwrap(), id(bot).to_owned());
            assert_eq!(before, None);
        }
    }
    assigned.into_values().collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn everything_continues_after_kill_9_while_bots_run_wait_and_are_deployed(#[case] backend: Backend) {
    let pool = process_pool("meet", "max_slots = 6", BOT);
    let mut fixture = ServerFixture::open(backend, &format!("[deploy]\nmax_concurrent = {GATE}\n{pool}")).await;
    // Two bots run.
    let mut running = Vec::new();
    for number in 1..=2 {
        running.push(fixture.active(number).await);
    }
    // Two hang inside the gate, two wait for it, and four are in the queue.
    for number in 3..=4 {
        make_hang(&fixture, &slot(number));
    }
    let mut deploying = Vec::new();
    for number in 3..=6 {
        deploying.push(ask(&fixture, number, 100).await);
    }
    let mut waiting = Vec::new();
    for (number, priority) in [(7, 100), (8, 100), (9, 5), (10, 50)] {
        waiting.push(ask(&fixture, number, priority).await);
    }
    until("two are inside the gate and two wait for it", async || at_gate(&fixture).await == (2, 2)).await;
    let queue_before = queue(&fixture).await;
    assert_eq!(queue_before, [2, 3, 0, 1].map(|at: usize| id(&waiting[at])));
    let processes = fixture.database.running();
    assert_eq!(processes.iter().filter(|process| process.is_agent).count(), 2);

    let address = fixture.server.url.strip_prefix("http://").unwrap().to_owned();
    fixture.server.kill().await;
    assert_eq!(fixture.database.running(), processes, "running bots do not need the server");
    for number in 3..=4 {
        std::fs::remove_file(fixture.database.in_slot(&slot(number), "log")).unwrap();
    }
    fixture.server = Process::start_at(&fixture.database, &address).await;

    assert_eq!(queue(&fixture).await, queue_before);
    for bot in &running {
        let now = fixture.user.show_bot(id(bot)).await;
        assert_eq!((&now["status"], &now["connection_id"]), (&json!("active"), &bot["connection_id"]));
    }
    // The bots that were being deployed are found when the lease of the killed server expires.
    for bot in &deploying {
        until("it is in its meeting", async || {
            at_gate(&fixture).await;
            fixture.user.show_bot(id(bot)).await["status"] == "active"
        })
        .await;
    }
    assert!(processes.iter().all(|process| fixture.database.running().contains(process)), "the same processes");
    for bot in running.iter().chain(&deploying) {
        fixture.leave(bot).await;
    }
    for bot in &waiting {
        fixture.user.until(id(bot), "active").await;
        at_gate(&fixture).await;
    }
    assert_eq!(assigned(&fixture, &waiting).await, queue_before);
    for bot in &waiting {
        fixture.leave(bot).await;
    }
    expect_nothing_left(&fixture).await;
}

/// Deletes every slot. After that, nothing of them is on the machine.
async fn expect_nothing_left(fixture: &ServerFixture) {
    fixture.until_slots(6, 0).await;
    assert_eq!(fixture.database.running(), [] as [Running; 0]);
    for slot in fixture.slots().await {
        let path = format!("/admin/slots/{}", slot["name"].as_str().unwrap());
        let (status, answer) = fixture.admin.send(Method::DELETE, &path, None).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    }
    fixture.until_slots(0, 0).await;
    let folders = std::fs::read_dir(fixture.database.folder.path().join("greenroom-slots")).unwrap();
    assert_eq!(folders.count(), 0);
    assert_eq!(fixture.database.running(), []);
}
