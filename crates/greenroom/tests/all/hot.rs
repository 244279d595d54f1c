//! Hot slots: an agent waits inside, and a request is at once a command that runs.

use greenroom::store::PoolRow;
use rstest::rstest;
use serde_json::Value;

use crate::support::{Backend, Running, Stage, Venue, pool, process_pool, until, waits};

const SLOT: &str = "pool-meet-001";

/// Leaves a file and a process behind, tells whether it met those of another, and stays until it is told to leave.
const BOT: &str = r#"
    echo "the agent is $PPID"
    [ -e trace ] && echo "met a trace"
    touch trace
    setsid sleep 1000 &
    echo '{"event": "joined"}'
    read leave
"#;

async fn hot(backend: Backend, settings: &str) -> Venue {
    Venue::open(backend, &process_pool("meet", &format!("standby = \"running\"\n{settings}"), BOT)).await
}

fn slot_of(bot: &Value) -> &str {
    bot["slot"].as_str().unwrap()
}

fn sleepers(venue: &Venue) -> Vec<Running> {
    venue.database.running().into_iter().filter(|process| process.command == "sleep 1000").collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_goes_to_an_agent_that_waits_without_a_deployment(#[case] backend: Backend) {
    let stage = Stage::new(backend, [PoolRow { hot: true, min_idle: 1, ..pool("meet") }]).await;
    let slot = async || stage.slot(SLOT).await.unwrap();
    until("the slot is started", async || stage.fake.starts().len() == 1).await;
    assert_eq!(slot().await.status.as_str(), "creating", "it is not ready before its agent says so");
    let early = stage.house.reserved(0).await;
    assert_eq!(stage.line().await, [early]);
    stage.house.placement.report(slot().await.name, waits(&slot().await)).await.unwrap();
    assert_eq!((slot().await.status.as_str(), slot().await.bot_id), ("busy", Some(early)));
    assert_eq!(stage.at_gate().await, (0, 0));
    assert_eq!(stage.fake.starts().len(), 1);
    assert!(stage.bot(early).await.connection_id.is_some());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn one_agent_runs_bot_after_bot_where_nothing_is_recycled(#[case] backend: Backend) {
    let venue = hot(backend, "max_slots = 1\nmin_idle = 1\nrecycle_after = 0").await;
    venue.until_slots(1, 0).await;
    let agent = venue.agent(SLOT).await;
    for number in 0..3 {
        let bot = venue.active(number).await;
        assert_eq!(slot_of(&bot), SLOT);
        assert_eq!(venue.agent(SLOT).await, agent);
        venue.leave(&bot).await;
        venue.until_slots(1, 0).await;
        assert_eq!(venue.database.running(), std::slice::from_ref(&agent), "of the bot itself nothing is left");
    }
    let told = format!("the agent is {}", agent.pid);
    assert_eq!(venue.database.log_of(SLOT).matches(&told).count(), 3);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn no_file_and_no_process_of_a_meeting_is_met_in_the_next(#[case] backend: Backend) {
    let venue = hot(backend, "max_slots = 1\nmin_idle = 1").await;
    venue.until_slots(1, 0).await;
    let (mut agents, mut sleepers_before) = (Vec::new(), Vec::new());
    for number in 0..2 {
        let bot = venue.active(number).await;
        assert_eq!(slot_of(&bot), SLOT);
        agents.push(venue.agent(SLOT).await);
        let sleeping = sleepers(&venue);
        assert_eq!(sleeping.len(), 1);
        assert!(!sleepers_before.contains(&sleeping[0]));
        sleepers_before.extend(sleeping);
        venue.leave(&bot).await;
        venue.until_slots(1, 0).await;
        assert_eq!(sleepers(&venue), []);
    }
    assert_ne!(agents[0], agents[1], "the slot was made fresh");
    let log = venue.database.log_of(SLOT);
    assert_eq!(log.matches("the agent is").count(), 2, "{log}");
    assert!(!log.contains("met a trace"), "{log}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn as_many_agents_wait_as_the_pool_wants_to_keep_ready(#[case] backend: Backend) {
    let venue = hot(backend, "max_slots = 3\nmin_idle = 2").await;
    venue.until_slots(2, 0).await;
    let bot = venue.active(0).await;
    venue.until_slots(2, 1).await;
    let agents = venue.database.running().into_iter().filter(|process| process.is_agent).count();
    assert_eq!(agents, 3);
    venue.leave(&bot).await;
    venue.until_slots(3, 0).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_agent_that_was_killed_while_it_waited_is_started_again_for_its_bot(#[case] backend: Backend) {
    let venue = hot(backend, "max_slots = 1\nmin_idle = 1").await;
    venue.until_slots(1, 0).await;
    let killed = venue.agent(SLOT).await;
    killed.kill();
    until("the agent is gone", async || venue.database.running().is_empty()).await;
    let bot = venue.active(0).await;
    assert_eq!(slot_of(&bot), SLOT);
    assert_ne!(venue.agent(SLOT).await, killed);
    venue.leave(&bot).await;
}

#[tokio::test]
async fn what_a_killed_agent_left_running_in_a_hot_slot_is_gone_before_the_next_bot_comes() {
    let settings = "standby = \"running\"\nmax_slots = 1\nmin_idle = 1";
    let impatient = "heartbeat.interval = \"1s\"\nsweeper = { interval = \"1s\", heartbeat_lost = \"2s\" }\n";
    let venue = Venue::open(Backend::Sqlite, &format!("{impatient}{}", process_pool("meet", settings, BOT))).await;
    venue.until_slots(1, 0).await;
    let bot = venue.active(0).await;
    let killed = venue.agent(SLOT).await;
    killed.kill();
    until("its bot runs without it", async || {
        !venue.database.running().contains(&killed) && sleepers(&venue).len() == 1
    })
    .await;
    let left = sleepers(&venue);
    let ended = venue.user.until(bot["id"].as_str().unwrap(), "failed").await;
    assert!(["heartbeat_lost", "interrupted"].contains(&ended["reason"].as_str().unwrap()), "{ended}");
    venue.until_slots(1, 0).await;
    assert_eq!(sleepers(&venue), []);
    let next = venue.active(1).await;
    assert!(!sleepers(&venue).contains(&left[0]));
    assert!(!venue.database.log_of(SLOT).contains("met a trace"));
    venue.leave(&next).await;
}
