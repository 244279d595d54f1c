//! Sync with real processes: it removes unknown slots of this installation, keeps those of another installation, and
//! restores lost ones.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, ServerFixture, found, process_pool, until};

const BOT: &str = r#"
    echo '{"event": "joined"}'
    read leave
"#;
/// Sync runs only on request, and has no grace period.
const BY_HAND: &str = "[sync]\ninterval = \"1h\"\ngrace = \"1ms\"\n";
const HOT: &str = "standby = \"running\"\nmin_idle = 2\nmax_slots = 2";

async fn fixture(backend: Backend, settings: &str) -> ServerFixture {
    let fixture = ServerFixture::open(backend, &format!("{BY_HAND}{}", process_pool("meet", settings, BOT))).await;
    // After the run at the start, which would count.
    until("sync has run", async || {
        let keepers = fixture.admin.get("/admin/keepers").await;
        keepers["keepers"]
            .as_array()
            .unwrap()
            .iter()
            .any(|keeper| keeper["name"] == "sync" && keeper["last_run"].is_string())
    })
    .await;
    fixture
}

async fn sync(fixture: &ServerFixture) -> Value {
    let (status, did) = fixture.admin.post("/admin/sync/run", json!({})).await;
    assert!(status.is_success(), "{did}");
    did
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn unknown_processes_are_removed_and_those_of_another_installation_are_not(#[case] backend: Backend) {
    let (ours, theirs) = (fixture(backend, HOT).await, fixture(backend, HOT).await);
    for fixture in [&ours, &theirs] {
        fixture.until_slots(2, 0).await;
    }
    let agent = ours.agent("pool-meet-002").await;
    // A row is lost, as with a backup that is older than the slot.
    ours.database.execute("DELETE FROM slots WHERE number = 2").await;
    ours.database.execute("UPDATE pools SET slots = 1, min_idle = 0").await;
    found("it is removed", async || (sync(&ours).await["removed"] == 1).then_some(())).await;
    assert!(!ours.database.running().iter().any(|process| process.pid == agent.pid));
    assert!(!ours.database.in_slot("pool-meet-002", "").exists());
    assert!(ours.database.agent("pool-meet-001").is_some());
    assert_eq!(theirs.database.running().len(), 2, "the same names, of another installation");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_dead_agent_of_an_idle_hot_slot_is_replaced_before_a_bot_comes(#[case] backend: Backend) {
    let fixture = fixture(backend, HOT).await;
    fixture.until_slots(2, 0).await;
    let before = fixture.agent("pool-meet-001").await;
    before.kill();
    until("sync has noticed that it is missing", async || {
        sync(&fixture).await;
        fixture.database.agent("pool-meet-001").is_some_and(|agent| agent.pid != before.pid)
    })
    .await;
    fixture.until_slots(2, 0).await;
    let bot = fixture.active(1).await;
    fixture.leave(&bot).await;
}

#[tokio::test]
async fn a_process_in_a_stopped_slot_is_ended_and_a_living_bot_is_not() {
    let fixture = fixture(Backend::Sqlite, "max_slots = 2").await;
    let (first, second) = (fixture.active(1).await, fixture.active(2).await);
    let slot = first["slot"].as_str().unwrap();
    // In the store, the slot has no bot and is free since long ago.
    fixture.database.execute("UPDATE slots SET status = 'idle', bot_id = NULL, status_since = '2020-01-01T00:00:00.000000Z' WHERE number = 1").await;
    assert_eq!(slot, "pool-meet-001");
    assert_eq!(sync(&fixture).await["waiting"], 1, "half of a pool is not stopped at once");
    assert_eq!(sync(&fixture).await["stopped"], 1);
    assert!(!fixture.database.running().iter().any(|process| process.slot == slot));
    let second = fixture.user.show_bot(second["id"].as_str().unwrap()).await;
    assert_eq!(second["status"], "active");
    fixture.leave(&second).await;
}
