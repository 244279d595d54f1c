//! A stop in every state. The user sees `stopping` and then the end, and nothing of the bot is left.

use domain::SlotStatus;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, ServerFixture, meet_link, process_pool, until};

/// Reports what its configuration says, and leaves when it gets the command.
const OBEYS: &str = r#"
    case $BOT_DATA in
        *'"say":"lobby"'*) echo '{"event": "status", "status": "awaiting_admission"}' ;;
        *'"say":"joined"'*) echo '{"event": "joined"}' ;;
    esac
    read leave
    exit 0
"#;

/// Ignores commands and every signal that can be ignored, and has a child that does the same.
const DEAF: &str = r#"
    trap '' TERM
    echo '{"event": "joined"}'
    (trap '' TERM; while :; do sleep 1; done) &
    while :; do sleep 1; done
"#;

const FAST: &str = "[sweeper]\ninterval = \"1s\"\nstop_grace = \"2s\"\n[heartbeat]\ninterval = \"1s\"\n";

async fn fixture(backend: Backend, settings: &str, script: &str) -> ServerFixture {
    ServerFixture::open(backend, &format!("{FAST}{}", process_pool("meet", settings, script))).await
}

async fn ask(fixture: &ServerFixture, number: usize, say: &str) -> Value {
    fixture.user.ask(json!({"meeting_url": meet_link(number), "config": {"say": say}})).await
}

fn id(bot: &Value) -> &str {
    bot["id"].as_str().unwrap()
}

/// The statuses of a bot in order, from its events.
async fn states(fixture: &ServerFixture, bot: &Value) -> Vec<(String, String)> {
    let events = fixture.user.get(&format!("/bots/{}/events", id(bot))).await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let events = events["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "status_changed");
    events.map(|event| (text(&event["to"]), text(&event["reason"]))).collect()
}

async fn expect_stopped(fixture: &ServerFixture, bot: &Value) {
    let ended = fixture.user.until(id(bot), "completed").await;
    assert_eq!(ended["reason"], "stopped");
    let states = states(fixture, bot).await;
    let own = |state: &str| (state.to_owned(), "stopped".to_owned());
    assert_eq!(states[states.len() - 2..], [own("stopping"), own("completed")], "{states:?}");
    until("nothing of the bot is left", async || fixture.database.running().is_empty()).await;
    until("its slot is free", async || fixture.slots().await.iter().all(|slot| slot["status"] == "idle")).await;
}

#[rstest]
#[case::starting("nothing", "starting", Backend::Sqlite)]
#[case::in_the_lobby("lobby", "awaiting_admission", Backend::Sqlite)]
#[case::active("joined", "active", Backend::Sqlite)]
#[case::starting_on_postgres("nothing", "starting", Backend::Postgres)]
#[case::in_the_lobby_on_postgres("lobby", "awaiting_admission", Backend::Postgres)]
#[case::active_on_postgres("joined", "active", Backend::Postgres)]
#[tokio::test]
async fn a_running_bot_leaves_when_it_is_stopped(#[case] say: &str, #[case] state: &str, #[case] backend: Backend) {
    let fixture = fixture(backend, "max_slots = 1", OBEYS).await;
    let bot = ask(&fixture, 1, say).await;
    fixture.user.until(id(&bot), state).await;
    fixture.user.stop(id(&bot)).await;
    expect_stopped(&fixture, &bot).await;
}

#[tokio::test]
async fn a_bot_that_ignores_everything_is_killed_with_its_children_at_the_deadline() {
    let fixture = fixture(Backend::Sqlite, "max_slots = 1", DEAF).await;
    let bot = ask(&fixture, 1, "").await;
    fixture.user.until(id(&bot), "active").await;
    fixture.user.stop(id(&bot)).await;
    assert_eq!(fixture.user.show_bot(id(&bot)).await["status"], "stopping");
    expect_stopped(&fixture, &bot).await;
}

#[tokio::test]
async fn a_bot_that_is_stopped_while_its_start_hangs_ends_at_the_deadline() {
    let fixture = fixture(Backend::Sqlite, "max_slots = 1", OBEYS).await;
    // To open this log waits for a reader.
    std::fs::create_dir_all(fixture.database.in_slot("pool-meet-001", "")).unwrap();
    let log = fixture.database.in_slot("pool-meet-001", "log");
    assert!(std::process::Command::new("mkfifo").arg(&log).status().unwrap().success());
    let bot = ask(&fixture, 1, "joined").await;
    until("it is being started", async || {
        let gate = fixture.admin.get("/admin/deployments").await;
        gate["active"] == 1
    })
    .await;
    assert_eq!(fixture.user.show_bot(id(&bot)).await["status"], "deploying");
    fixture.user.stop(id(&bot)).await;
    assert_eq!(fixture.user.show_bot(id(&bot)).await["status"], "stopping");
    let ended = fixture.user.until(id(&bot), "completed").await;
    assert_eq!(ended["reason"], "stopped");
    // The stop does not wait for the start: the slot is free again although the start still hangs.
    std::fs::remove_file(&log).unwrap();
    until("its slot is free", async || {
        fixture.slots().await.iter().all(|slot| slot["status"] == SlotStatus::Idle.as_str())
    })
    .await;
    let next = ask(&fixture, 2, "joined").await;
    fixture.user.until(id(&next), "active").await;
}

#[tokio::test]
async fn a_bot_that_is_stopped_during_its_start_leaves_as_soon_as_it_runs() {
    // The agent takes a while to start.
    let script = "sleep 1; exec \"$@\"";
    let command = ["sh", "-c", script, "sh", env!("CARGO_BIN_EXE_greenroom"), "agent", "--", "sh", "-c", OBEYS];
    let pool = format!(
        "{FAST}[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
         process = {{ command = {} }}\n",
        serde_json::to_string(&command).unwrap()
    )
    .replace("stop_grace = \"2s\"", "stop_grace = \"30s\"");
    let fixture = ServerFixture::open(Backend::Sqlite, &pool).await;
    let bot = ask(&fixture, 1, "joined").await;
    until("it is started, and has sent no callback", async || fixture.database.agent("pool-meet-001").is_some()).await;
    fixture.user.stop(id(&bot)).await;
    expect_stopped(&fixture, &bot).await;
}
