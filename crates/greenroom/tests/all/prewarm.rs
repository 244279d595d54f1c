//! Prewarmed slots: the bot's command is started ahead, and a slot is idle only while its command is ready.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Process, Running, ServerFixture, found, meet_link, process_pool, until};

const SLOT: &str = "pool-meet-001";

/// Leaves a file and a process behind, and reports whether it found those of another bot. It is ready when the file
/// `hold` of the test's folder is gone, or at once if there is none.
const BOT: &str = r#"
    echo "command $$ prewarm [$GREENROOM_PREWARM] data [$BOT_DATA] tokens [$(env | grep -c TOKEN)]"
    [ -e trace ] && echo "found a trace"
    touch trace
    setsid sleep 1000 &
    while [ -e ../../../hold ]; do sleep 0.05; done
    echo '{"event": "ready"}'
    read -r assignment
    case $assignment in '{"action":"assignment","payload":{'*) echo '{"event": "joined"}';; esac
    read -r leave
"#;

async fn prewarmed(backend: Backend, settings: &str) -> ServerFixture {
    let settings = format!("standby = \"running\"\nprewarm = true\n{settings}");
    let intervals = "sync = { interval = \"1s\", grace = \"1s\" }\n";
    ServerFixture::open(backend, &format!("{intervals}{}", process_pool("meet", &settings, BOT))).await
}

/// The command in a slot, which its agent started.
async fn command(fixture: &ServerFixture, slot: &str) -> Running {
    let is_it = |process: &Running| process.slot == slot && !process.is_agent && process.command.starts_with("sh -c");
    found("a command is in the slot", async || fixture.database.running().into_iter().find(is_it)).await
}

/// The status of a slot; null if there is no such slot yet.
async fn status(fixture: &ServerFixture, slot: &str) -> Value {
    let slots = fixture.slots().await;
    slots.iter().find(|known| known["name"] == slot).map_or(Value::Null, |slot| slot["status"].clone())
}

fn hold(fixture: &ServerFixture) -> std::path::PathBuf {
    fixture.database.folder.path().join("hold")
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_gets_the_command_that_waited_and_nothing_of_it_is_left_for_the_next(#[case] backend: Backend) {
    let fixture = prewarmed(backend, "max_slots = 1\nmin_idle = 1").await;
    fixture.until_slots(1, 0).await;
    let mut commands = Vec::new();
    for number in 0..2 {
        let waiting = command(&fixture, SLOT).await;
        let bot = fixture.active(number).await;
        assert_eq!(bot["slot"], SLOT);
        assert_eq!(command(&fixture, SLOT).await, waiting, "the bot runs in the process that waited");
        assert!(!commands.contains(&waiting.pid));
        commands.push(waiting.pid);
        fixture.leave(&bot).await;
        fixture.until_slots(1, 0).await;
    }
    let log = fixture.database.log_of(SLOT);
    assert!(!log.contains("found a trace"), "{log}");
    let known = log.lines().filter(|line| line.starts_with("command ")).collect::<Vec<_>>();
    assert!(known.iter().all(|line| line.ends_with("prewarm [1] data [] tokens [0]")), "{known:?}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_is_not_recycled_gets_its_next_bot_only_with_a_new_command(#[case] backend: Backend) {
    let fixture = prewarmed(backend, "max_slots = 1\nmin_idle = 1\nrecycle_after = 0").await;
    fixture.until_slots(1, 0).await;
    let (agent, first) = (fixture.agent(SLOT).await, command(&fixture, SLOT).await);
    let bot = fixture.active(0).await;
    std::fs::write(hold(&fixture), "").unwrap();
    fixture.leave(&bot).await;
    let next = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    let next = next["id"].as_str().unwrap();
    let second = command(&fixture, SLOT).await;
    assert_eq!(fixture.user.show_bot(next).await["slot"], Value::Null);
    std::fs::remove_file(hold(&fixture)).unwrap();
    fixture.user.until(next, "active").await;
    assert_eq!(fixture.agent(SLOT).await, agent);
    assert_ne!(second.pid, first.pid);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_is_idle_only_when_its_command_is_ready(#[case] backend: Backend) {
    let fixture = prewarmed(backend, "max_slots = 1\nmin_idle = 0").await;
    std::fs::write(hold(&fixture), "").unwrap();
    let grown = fixture.admin.send(Method::PATCH, "/admin/pools/meet", Some(json!({"min_idle": 1}))).await;
    assert_eq!(grown.0, StatusCode::OK, "{}", grown.1);
    command(&fixture, SLOT).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(0)})).await;
    assert_eq!(status(&fixture, SLOT).await, "creating");
    assert_eq!(fixture.user.get(&format!("/bots/{}", bot["id"].as_str().unwrap())).await["bot"]["status"], "queued");
    std::fs::remove_file(hold(&fixture)).unwrap();
    fixture.user.until(bot["id"].as_str().unwrap(), "active").await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_whose_command_was_killed_is_given_out_only_with_a_new_command(#[case] backend: Backend) {
    let fixture = prewarmed(backend, "max_slots = 1\nmin_idle = 1").await;
    fixture.until_slots(1, 0).await;
    let (agent, killed) = (fixture.agent(SLOT).await, command(&fixture, SLOT).await);
    std::fs::write(hold(&fixture), "").unwrap();
    killed.kill();
    until("the slot is not idle", async || status(&fixture, SLOT).await == "creating").await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(0)})).await;
    let id = bot["id"].as_str().unwrap();
    assert_eq!(fixture.user.get(&format!("/bots/{id}")).await["bot"]["slot"], Value::Null);
    std::fs::remove_file(hold(&fixture)).unwrap();
    let bot = fixture.user.until(id, "active").await;
    assert_eq!(
        (bot["slot"].as_str(), fixture.agent(SLOT).await),
        (Some(SLOT), agent),
        "the slot was not started again"
    );
    assert_ne!(command(&fixture, SLOT).await, killed);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_whose_agent_was_killed_is_not_given_out_and_comes_back(#[case] backend: Backend) {
    let fixture = prewarmed(backend, "max_slots = 1\nmin_idle = 1").await;
    fixture.until_slots(1, 0).await;
    let killed = fixture.agent(SLOT).await;
    std::fs::write(hold(&fixture), "").unwrap();
    killed.kill();
    until("the slot is not idle", async || status(&fixture, SLOT).await != "idle").await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(0)})).await;
    let id = bot["id"].as_str().unwrap();
    assert_eq!(fixture.user.get(&format!("/bots/{id}")).await["bot"]["slot"], Value::Null);
    std::fs::remove_file(hold(&fixture)).unwrap();
    assert_eq!(fixture.user.until(id, "active").await["slot"], SLOT);
    assert_ne!(fixture.agent(SLOT).await, killed);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn prewarmed_commands_wait_for_a_server_that_was_killed(#[case] backend: Backend) {
    let mut fixture = prewarmed(backend, "max_slots = 2\nmin_idle = 2").await;
    fixture.until_slots(2, 0).await;
    let before = fixture.database.running();
    let address = fixture.server.url.strip_prefix("http://").unwrap().to_owned();
    fixture.server.kill().await;
    assert_eq!(fixture.database.running(), before);
    fixture.server = Process::start_at(&fixture.database, &address).await;
    let bots = [fixture.active(0).await, fixture.active(1).await];
    assert_ne!(bots[0]["slot"], bots[1]["slot"]);
    assert_eq!(fixture.database.running(), before, "the bots run in the processes that waited");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_whose_command_never_gets_ready_goes_to_error_with_its_last_lines(#[case] backend: Backend) {
    let settings = "standby = \"running\"\nprewarm = true\nmax_slots = 1\nmin_idle = 1";
    let config = process_pool("meet", settings, "echo 'no browser here'; exit 3");
    let fixture = ServerFixture::open(backend, &config).await;
    until("the slot is in error", async || status(&fixture, SLOT).await == "error").await;
    let shown = found("the failure is stored", async || {
        let shown = fixture.admin.get(&format!("/admin/slots/{SLOT}")).await;
        (shown["failures"] != json!([])).then_some(shown)
    });
    let shown = shown.await;
    let slot = &shown["slot"];
    let message = "the command was not ready after 3 starts: the command ended with code 3 before it was ready";
    assert_eq!(slot["error_message"], message);
    let failures = shown["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 1, "{slot}");
    assert!(failures[0].to_string().contains("no browser here"), "{slot}");
    let log = fixture.database.log_of(SLOT);
    assert_eq!(log.lines().filter(|line| *line == "no browser here").count(), 3, "{log}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn commands_that_waited_for_long_are_replaced_one_slot_at_a_time(#[case] backend: Backend) {
    let fixture = prewarmed(backend, "max_slots = 2\nmin_idle = 2\nmax_warm_age = \"4s\"").await;
    fixture.until_slots(2, 0).await;
    let before = [fixture.agent(SLOT).await, fixture.agent("pool-meet-002").await];
    let mut least = 2;
    until("both are replaced", async || {
        let slots = fixture.slots().await;
        least = least.min(slots.iter().filter(|slot| slot["status"] == "idle").count());
        let now = [fixture.database.agent(SLOT), fixture.database.agent("pool-meet-002")];
        now.iter().zip(&before).all(|(now, before)| now.as_ref().is_some_and(|now| now != before))
    })
    .await;
    assert!(least >= 1, "one fewer than `min_idle`, because the pool cannot grow");
    let bot = fixture.active(0).await;
    assert!(bot["slot"].is_string());
}

#[tokio::test]
async fn a_slot_that_is_prewarmed_by_a_new_configuration_is_started_again() {
    let database = crate::support::Database::new(Backend::Sqlite).await;
    let settings = "standby = \"running\"\nmax_slots = 1\nmin_idle = 1";
    let server = Process::start_configured(&database, &process_pool("meet", settings, BOT)).await;
    let log = async || database.log_of(SLOT);
    until("the slot is idle", async || server.admin().get("/admin/slots").await["slots"][0]["status"] == "idle").await;
    assert!(!log().await.contains("prewarm ["), "the command starts with its bot");
    server.kill().await;
    let settings = format!("{settings}\nprewarm = true");
    let _server = Process::start_configured(&database, &process_pool("meet", &settings, BOT)).await;
    until("the command is started ahead", async || log().await.contains("prewarm [1] data []")).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_an_agent_takes_to_its_grave_fails_in_time_and_its_slot_comes_back(#[case] backend: Backend) {
    let settings = "standby = \"running\"\nprewarm = true\nready_timeout = \"15s\"\nmax_slots = 1\nmin_idle = 1";
    let keepers = "sweeper = { interval = \"1s\", no_start = \"20s\" }\nrecovery = { interval = \"1s\" }";
    let config = format!("{keepers}\n{}", process_pool("meet", settings, BOT));
    let fixture = ServerFixture::open(backend, &config).await;
    fixture.until_slots(1, 0).await;
    let (agent, waiting) = (fixture.agent(SLOT).await, command(&fixture, SLOT).await);
    // Like an agent whose machine has lost its power, it does not close its connection, which gets the bot.
    agent.freeze();
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(0)})).await;
    assert_eq!(bot["slot"], SLOT, "nobody knows yet that the agent is silent");
    let failed = fixture.user.until(bot["id"].as_str().unwrap(), "failed").await;
    assert_eq!(failed["reason"], "no_start");
    assert_eq!(fixture.active(1).await["slot"], SLOT);
    assert_ne!(fixture.agent(SLOT).await, agent);
    assert_ne!(command(&fixture, SLOT).await, waiting);
}
