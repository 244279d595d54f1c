//! Stopped slots: each bot is started for itself, in a folder of its own, and nothing of it stays.

use std::collections::BTreeMap;

use domain::SlotName;
use greenroom::providers::{Provider, Spec};
use rstest::rstest;
use serde_json::json;

use crate::support::{Backend, Database, ServerFixture, meet_link, process_pool, process_provider, until};

const SLOT: &str = "pool-meet-001";

/// Leaves a file behind, and a daemon that does not listen to SIGTERM and has left its session.
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
async fn each_bot_has_a_fresh_folder_and_its_words_are_in_the_slots_log(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", BOT)).await;
    for number in 1..=3 {
        let bot = fixture.active(number).await;
        assert_eq!(bot["slot"], SLOT);
        assert!(fixture.database.in_slot(SLOT, "work/trace").exists());
        fixture.leave(&bot).await;
        fixture.until_slots(1, 0).await;
        assert_eq!(fixture.database.running(), [], "a slot that waits is stopped");
        assert!(!fixture.database.in_slot(SLOT, "work/trace").exists());
        let log = fixture.database.log_of(SLOT);
        assert_eq!(log.matches("this is bot").count(), number, "{log}");
        assert!(!log.contains("met a trace"), "{log}");
    }
    until("it is shown to be idle", async || {
        let shown = std::fs::read_to_string(fixture.database.in_slot(SLOT, "description")).unwrap();
        shown.starts_with("[IDLE] Available - Last used: ")
    })
    .await;
}

/// So that silence is noticed within a test's patience.
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
    // And the slot is as good as before.
    let next = fixture.active(1).await;
    fixture.leave(&next).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_command_that_is_not_there_fails_its_bot_in_plain_words(#[case] backend: Backend) {
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
    // Processes of the machine are told apart by it, also from those of another test.
    let installation = uuid::Uuid::new_v4().to_string();
    // As one server after the other would.
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
    // For another bot it is another process, and the one before is gone.
    spec.connection = Some("two".to_owned());
    provider().start(&spec).await.unwrap();
    assert_eq!(database.running().len(), 1);
    assert_ne!(database.running(), running);
    for _ in 0..2 {
        provider().stop(&spec.slot, true).await.unwrap();
        assert_eq!(database.running(), []);
    }
    assert!(database.in_slot(SLOT, "log").exists(), "what it printed is kept");
    for _ in 0..2 {
        provider().delete(&spec.slot).await.unwrap();
        assert!(!database.in_slot(SLOT, "").exists());
    }
}

#[tokio::test]
async fn a_slot_whose_folder_was_only_half_made_is_started_all_the_same() {
    let database = Database::new(Backend::Sqlite).await;
    let folder = database.folder.path().join("greenroom-slots");
    // Whoever made it died before it had written whose it is.
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
async fn a_start_of_a_hot_slot_ends_what_a_killed_agent_left_there() {
    let database = Database::new(Backend::Sqlite).await;
    let installation = uuid::Uuid::new_v4().to_string();
    let folder = database.folder.path().join("greenroom-slots");
    // As an agent does: what its bot starts does not say that it is what was started.
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
    let both = async || until("both run", async || running().len() == 2).await;
    provider.start(&spec).await.unwrap();
    both().await;
    running().into_iter().find(|process| process.command == "sleep 2000").unwrap().kill();
    until("only the other is left", async || running().len() == 1).await;
    let left = running();
    // The same start again: what is left is not what was started.
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
