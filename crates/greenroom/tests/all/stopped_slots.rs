//! Stopped slots: each bot gets a new process and its own folder, and nothing of it stays after its end.

use std::collections::BTreeMap;

use domain::SlotName;
use greenroom::providers::{Provider, Spec};
use rstest::rstest;
use serde_json::json;

use crate::support::{Backend, Database, ServerFixture, meet_link, process_pool, process_provider, until};

const SLOT: &str = "pool-meet-001";

/// Leaves a file behind, and a daemon that ignores SIGTERM and has left its session.
const BOT: &str = r#"
    [ -e trace ] && echo "met a trace"
    touch trace
    setsid sh -c 'trap "" TERM; while :; do sleep 1; done' &
    echo "this is bot $$ in $PWD"
    echo '{"event": "joined"}'
    read leave
"#;

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn each_bot_has_a_new_folder_and_its_output_is_in_the_slots_log(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", BOT)).await;
    for number in 1..=3 {
        let bot = fixture.active(number).await;
        assert_eq!(bot["slot"], SLOT);
        assert!(fixture.database.in_slot(SLOT, "work/trace").exists());
        fixture.leave(&bot).await;
        fixture.until_slots(1, 0).await;
        assert_eq!(fixture.database.running(), [], "the waiting slot is stopped");
        assert!(!fixture.database.in_slot(SLOT, "work/trace").exists());
        let log = fixture.database.log_of(SLOT);
        assert_eq!(log.matches("this is bot").count(), number, "{log}");
        assert!(!log.contains("met a trace"), "{log}");
    }
    until("the slot is shown as idle", async || {
        let shown = std::fs::read_to_string(fixture.database.in_slot(SLOT, "description")).unwrap();
        shown.starts_with("[IDLE] Available - Last used: ")
    })
    .await;
}

/// Deadlines that are short enough for a test.
const IMPATIENT: &str = "
    heartbeat.interval = \"1s\"
    sweeper = { interval = \"1s\", heartbeat_lost = \"2s\" }
";

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_last_grandchild_is_ended_even_when_no_agent_is_left_to_do_it(#[case] backend: Backend) {
    let pool = process_pool("meet", "max_slots = 1", BOT);
    let fixture = ServerFixture::open(backend, &format!("{IMPATIENT}{pool}")).await;
    let bot = fixture.active(0).await;
    until("its daemon runs", async || fixture.database.running().iter().any(|one| one.command == "sleep 1")).await;
    fixture.agent(SLOT).await.kill();
    let ended = fixture.user.until(bot["id"].as_str().unwrap(), "failed").await;
    assert_eq!(ended["reason"], "heartbeat_lost");
    fixture.until_slots(1, 0).await;
    assert_eq!(fixture.database.running(), []);
    // The slot can be used again.
    let next = fixture.active(1).await;
    fixture.leave(&next).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_missing_command_fails_its_bot_with_a_clear_message(#[case] backend: Backend) {
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\n\
                process = { command = [\"no-such-bot\"] }\n";
    let fixture = ServerFixture::open(backend, pool).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    let bot = fixture.user.until(bot["id"].as_str().unwrap(), "failed").await;
    assert_eq!(bot["reason"], "deploy_failed");
    let message = bot["error"].as_str().unwrap();
    assert!(message.starts_with("cannot run no-such-bot: "), "{message}");
    assert_eq!(fixture.slots().await[0]["error_message"], message);
}

#[tokio::test]
async fn a_start_whose_answer_was_lost_is_not_made_twice() {
    let database = Database::new(Backend::Sqlite).await;
    // The process provider tells its processes by the installation, also from those of another test.
    let installation = uuid::Uuid::new_v4().to_string();
    // Two providers on the same folder, like one server after another.
    let folder = database.folder.path().join("greenroom-slots");
    let provider = || process_provider(&folder, &["sleep", "1000"], &installation);
    let mut spec = Spec {
        slot: SlotName::new("meet", 1),
        generation: 1,
        connection: Some("one".to_owned()),
        environment: BTreeMap::new(),
        fresh: true,
        requirements: None,
    };
    let named = provider().start(&spec).await.unwrap();
    let running = database.running();
    assert_eq!(running.len(), 1);
    assert_eq!(provider().start(&spec).await.unwrap(), named);
    assert_eq!(database.running(), running);
    // Another bot gets another process, and the earlier process is gone.
    spec.connection = Some("two".to_owned());
    provider().start(&spec).await.unwrap();
    assert_eq!(database.running().len(), 1);
    assert_ne!(database.running(), running);
    for _ in 0..2 {
        provider().stop(&spec.slot, true).await.unwrap();
        assert_eq!(database.running(), []);
    }
    assert!(database.in_slot(SLOT, "log").exists(), "the output is kept");
    for _ in 0..2 {
        provider().delete(&spec.slot).await.unwrap();
        assert!(!database.in_slot(SLOT, "").exists());
    }
}

#[tokio::test]
async fn a_slot_with_an_incomplete_folder_can_still_be_started() {
    let database = Database::new(Backend::Sqlite).await;
    let folder = database.folder.path().join("greenroom-slots");
    // The process that made the folder died before it wrote the name of its installation.
    std::fs::create_dir_all(folder.join(SLOT)).unwrap();
    std::fs::write(folder.join(SLOT).join("installation"), "").unwrap();
    let installation = uuid::Uuid::new_v4().to_string();
    let provider = process_provider(&folder, &["sleep", "1000"], &installation);
    let spec = Spec {
        slot: SlotName::stored(SLOT.to_owned()),
        generation: 1,
        connection: Some("one".to_owned()),
        environment: BTreeMap::new(),
        fresh: true,
        requirements: None,
    };
    provider.start(&spec).await.unwrap();
    assert_eq!(std::fs::read_to_string(folder.join(SLOT).join("installation")).unwrap(), installation);
    provider.delete(&spec.slot).await.unwrap();
    assert_eq!(database.running(), []);
}

#[tokio::test]
async fn a_start_of_a_hot_slot_ends_processes_that_a_killed_agent_left() {
    let database = Database::new(Backend::Sqlite).await;
    let installation = uuid::Uuid::new_v4().to_string();
    let folder = database.folder.path().join("greenroom-slots");
    // Like an agent: the children of its bot do not have the variable that marks a started process.
    let script = "env -u GREENROOM_PROCESS_START setsid sleep 1000 & exec sleep 2000";
    let provider = process_provider(&folder, &["sh", "-c", script], &installation);
    let mut spec = Spec {
        slot: SlotName::new("meet", 1),
        generation: 1,
        connection: None,
        environment: BTreeMap::new(),
        fresh: true,
        requirements: None,
    };
    let running = || database.running();
    // Each process has another command line until it has executed `sleep`, and has to be found by it.
    let commands = || {
        let mut commands: Vec<_> = running().into_iter().map(|process| process.command).collect();
        commands.sort();
        commands
    };
    let both = async || until("both run", async || commands() == ["sleep 1000", "sleep 2000"]).await;
    provider.start(&spec).await.unwrap();
    both().await;
    running().into_iter().find(|process| process.command == "sleep 2000").unwrap().kill();
    until("only the other is left", async || running().len() == 1).await;
    let left = running();
    // The same start again: the remaining child is not the started process.
    provider.start(&spec).await.unwrap();
    both().await;
    assert!(!running().contains(&left[0]), "{left:?}");
    spec.generation = 2;
    let before = running();
    provider.start(&spec).await.unwrap();
    both().await;
    assert!(!running().iter().any(|process| before.contains(process)));
    provider.delete(&spec.slot).await.unwrap();
    assert_eq!(running(), []);
}
