//! Hot slots: an agent waits in the slot, and a request immediately becomes a running command.

use greenroom::store::PoolRow;
use rstest::rstest;
use serde_json::Value;

use crate::support::{Backend, DeploymentFixture, Running, ServerFixture, pool, process_pool, until, waits};

const SLOT: &str = "pool-meet-001";

/// Leaves a file and a process behind, prints whether it found those of another bot, and stays until it gets the
/// command to leave.
const BOT: &str = r#"
    echo "the agent is $PPID"
    [ -e trace ] && echo "met a trace"
    touch trace
    setsid sleep 1000 &
    echo '{"event": "joined"}'
    read leave
"#;

async fn hot(backend: Backend, settings: &str) -> ServerFixture {
    ServerFixture::open(backend, &process_pool("meet", &format!("standby = \"running\"\n{settings}"), BOT)).await
}

fn slot_of(bot: &Value) -> &str {
    bot["slot"].as_str().unwrap()
}

fn sleepers(fixture: &ServerFixture) -> Vec<Running> {
    fixture.database.running().into_iter().filter(|process| process.command == "sleep 1000").collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_goes_to_an_agent_that_waits_without_a_deployment(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [PoolRow { hot: true, min_idle: 1, ..pool("meet") }]).await;
    let slot = async || fixture.slot(SLOT).await.unwrap();
    until("the slot is started", async || fixture.fake.starts().len() == 1).await;
    assert_eq!(slot().await.status.as_str(), "creating", "the slot is not ready before its agent says so");
    let early = fixture.core.reserved(0).await;
    assert_eq!(fixture.queue().await, [early]);
    fixture.core.placement.report(slot().await.name, waits(&slot().await)).await.unwrap();
    assert_eq!((slot().await.status.as_str(), slot().await.bot_id), ("busy", Some(early)));
    assert_eq!(fixture.at_gate().await, (0, 0));
    assert_eq!(fixture.fake.starts().len(), 1);
    assert!(fixture.bot(early).await.connection_id.is_some());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn one_agent_runs_bot_after_bot_without_recycling(#[case] backend: Backend) {
    let fixture = hot(backend, "max_slots = 1\nmin_idle = 1\nrecycle_after = 0").await;
    fixture.until_slots(1, 0).await;
    let agent = fixture.agent(SLOT).await;
    for number in 0..3 {
        let bot = fixture.active(number).await;
        assert_eq!(slot_of(&bot), SLOT);
        assert_eq!(fixture.agent(SLOT).await, agent);
        fixture.leave(&bot).await;
        fixture.until_slots(1, 0).await;
        assert_eq!(fixture.database.running(), std::slice::from_ref(&agent), "nothing of the bot itself is left");
    }
    let line = format!("the agent is {}", agent.pid);
    assert_eq!(fixture.database.log_of(SLOT).matches(&line).count(), 3);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn no_file_or_process_of_a_bot_is_left_for_the_next(#[case] backend: Backend) {
    let fixture = hot(backend, "max_slots = 1\nmin_idle = 1").await;
    fixture.until_slots(1, 0).await;
    let (mut agents, mut sleepers_before) = (Vec::new(), Vec::new());
    for number in 0..2 {
        let bot = fixture.active(number).await;
        assert_eq!(slot_of(&bot), SLOT);
        agents.push(fixture.agent(SLOT).await);
        let sleeping = sleepers(&fixture);
        assert_eq!(sleeping.len(), 1);
        assert!(!sleepers_before.contains(&sleeping[0]));
        sleepers_before.extend(sleeping);
        fixture.leave(&bot).await;
        fixture.until_slots(1, 0).await;
        assert_eq!(sleepers(&fixture), []);
    }
    assert_ne!(agents[0], agents[1], "the slot was recycled");
    let log = fixture.database.log_of(SLOT);
    assert_eq!(log.matches("the agent is").count(), 2, "{log}");
    assert!(!log.contains("met a trace"), "{log}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn as_many_agents_wait_as_the_pool_wants_to_keep_ready(#[case] backend: Backend) {
    let fixture = hot(backend, "max_slots = 3\nmin_idle = 2").await;
    fixture.until_slots(2, 0).await;
    let bot = fixture.active(0).await;
    fixture.until_slots(2, 1).await;
    let agents = fixture.database.running().into_iter().filter(|process| process.is_agent).count();
    assert_eq!(agents, 3);
    fixture.leave(&bot).await;
    fixture.until_slots(3, 0).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_agent_that_was_killed_while_it_waited_is_started_again_for_its_bot(#[case] backend: Backend) {
    let fixture = hot(backend, "max_slots = 1\nmin_idle = 1").await;
    fixture.until_slots(1, 0).await;
    let killed = fixture.agent(SLOT).await;
    killed.kill();
    until("the agent is gone", async || fixture.database.running().is_empty()).await;
    let bot = fixture.active(0).await;
    assert_eq!(slot_of(&bot), SLOT);
    assert_ne!(fixture.agent(SLOT).await, killed);
    fixture.leave(&bot).await;
}

#[tokio::test]
async fn processes_of_a_killed_agent_in_a_hot_slot_are_gone_before_the_next_bot() {
    let settings = "standby = \"running\"\nmax_slots = 1\nmin_idle = 1";
    let impatient = "heartbeat.interval = \"1s\"\nsweeper = { interval = \"1s\", heartbeat_lost = \"2s\" }\n";
    let fixture =
        ServerFixture::open(Backend::Sqlite, &format!("{impatient}{}", process_pool("meet", settings, BOT))).await;
    fixture.until_slots(1, 0).await;
    let bot = fixture.active(0).await;
    let killed = fixture.agent(SLOT).await;
    killed.kill();
    until("its bot runs without it", async || {
        !fixture.database.running().contains(&killed) && sleepers(&fixture).len() == 1
    })
    .await;
    let left = sleepers(&fixture);
    let ended = fixture.user.until(bot["id"].as_str().unwrap(), "failed").await;
    assert!(["heartbeat_lost", "interrupted"].contains(&ended["reason"].as_str().unwrap()), "{ended}");
    fixture.until_slots(1, 0).await;
    assert_eq!(sleepers(&fixture), []);
    let next = fixture.active(1).await;
    assert!(!sleepers(&fixture).contains(&left[0]));
    assert!(!fixture.database.log_of(SLOT).contains("met a trace"));
    fixture.leave(&next).await;
}
