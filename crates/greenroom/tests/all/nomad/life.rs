//! The whole life of bots in slots of Nomad: a server as its users run it, and real agents instead of containers.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rstest::rstest;
use serde_json::json;
use tokio::process::Command;
use tokio::sync::oneshot;

use super::{SLOT, expect_no_violations, statuses};
use crate::support::{
    Backend, NomadEvent, NomadFake, NomadFault, NomadNode, NomadOperation, NomadOptions, PREWARMED_POOL, PrewarmedBot,
    ServerFixture, meet_link, until,
};

/// Joins, and stays until it gets the command to leave.
const BOT: &str = "echo '{\"event\": \"joined\"}'; read leave";

/// Acts as the nodes: runs an agent in its own process for each allocation.
fn run_agents(nomad: &Arc<NomadFake>, bot: &str) {
    let (nomad, mut events, bot) = (nomad.clone(), nomad.events(), bot.to_owned());
    tokio::spawn(async move {
        let mut running: BTreeMap<String, oneshot::Sender<()>> = BTreeMap::new();
        while let Some(event) = events.recv().await {
            match event {
                NomadEvent::Started { allocation, environment, .. } => {
                    let (end, ended) = oneshot::channel();
                    running.insert(allocation.clone(), end);
                    tokio::spawn(run_agent(nomad.clone(), allocation, environment, bot.clone(), ended));
                }
                NomadEvent::Stopped { allocation, .. } => drop(running.remove(&allocation)),
            }
        }
    });
}

/// Runs an agent until it ends, or is stopped.
async fn run_agent(
    nomad: Arc<NomadFake>,
    allocation: String,
    environment: BTreeMap<String, String>,
    bot: String,
    ended: oneshot::Receiver<()>,
) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_greenroom"))
        .args(["agent", "--", "sh", "-c", &bot])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .envs(environment)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let group = Pid::from_raw(-i32::try_from(child.id().unwrap()).unwrap());
    tokio::select! {
        status = child.wait() => {
            let code = status.unwrap().code().unwrap_or(137);
            nomad.end_allocation(&allocation, code.into()).await;
        }
        _ = ended => {}
    }
    let _ = kill(group, Signal::SIGKILL);
}

/// The configuration of a pool at this Nomad. `settings` are lines of TOML.
fn nomad_pool(nomad: &NomadFake, settings: &str) -> String {
    let (url, token) = (nomad.url(), nomad.token());
    format!(
        "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"nomad\"\n{settings}\n\
         nomad = {{ address = \"{url}\", token = \"{token}\", image = \"team/meet-bot:1.4\" }}\n"
    )
}

async fn fixture(nomad: &Arc<NomadFake>, backend: Backend, settings: &str) -> ServerFixture {
    run_agents(nomad, BOT);
    ServerFixture::open(backend, &nomad_pool(nomad, settings)).await
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn bots_of_a_stopped_pool_run_one_after_the_other_in_its_slot(#[case] backend: Backend) {
    let nomad = Arc::new(NomadFake::start().await);
    let fixture = fixture(&nomad, backend, "max_slots = 1").await;
    for number in 0..3 {
        let bot = fixture.active(number).await;
        assert_eq!(bot["slot"], SLOT);
        let next = fixture.user.bot(&meet_link(number + 100)).await;
        fixture.leave(&bot).await;
        let next = fixture.user.until(&next, "active").await;
        assert_eq!(next["slot"], SLOT, "the bot in the queue gets it next");
        fixture.leave(&next).await;
    }
    fixture.until_slots(1, 0).await;
    until("nothing runs", async || nomad.running(SLOT).is_none()).await;
    assert_eq!(nomad.allocations(SLOT).len(), 6, "one allocation for each bot, and none twice");
    expect_no_violations(&nomad);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_hot_pool_keeps_agents_waiting_and_a_new_one_after_each_bot(#[case] backend: Backend) {
    let nomad = Arc::new(NomadFake::start().await);
    let fixture = fixture(&nomad, backend, "standby = \"running\"\nmax_slots = 1\nmin_idle = 1").await;
    fixture.until_slots(1, 0).await;
    for number in 0..3 {
        let waiting = nomad.running(SLOT).unwrap();
        let bot = fixture.active(number).await;
        assert_eq!(nomad.running(SLOT).as_deref(), Some(waiting.as_str()), "the waiting agent gets the bot");
        fixture.leave(&bot).await;
        fixture.until_slots(1, 0).await;
        until("another waits", async || nomad.running(SLOT).is_some_and(|now| now != waiting)).await;
    }
    expect_no_violations(&nomad);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_prewarmed_slot_of_nomad_is_idle_only_while_its_command_is_ready(#[case] backend: Backend) {
    let (nomad, folder) = (Arc::new(NomadFake::start().await), tempfile::tempdir().unwrap());
    // Each allocation has files of its own, and here they have none.
    let prewarmed = PrewarmedBot::new(folder.path().to_str().unwrap(), "/proc/self/environ", "/dev/null");
    run_agents(&nomad, &prewarmed.script);
    let settings = format!("standby = \"running\"\n{PREWARMED_POOL}");
    let fixture = ServerFixture::open(backend, &nomad_pool(&nomad, &settings)).await;
    prewarmed.lives_in_its_slot(&fixture.admin, &fixture.user).await;
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_bot_survives_lost_answers_and_errors_of_nomad() {
    let nomad = Arc::new(NomadFake::start().await);
    let fixture = fixture(&nomad, Backend::Sqlite, "max_slots = 1").await;
    use NomadOperation::{Allocations, Evaluations, Read, Register};
    for number in 0..2 {
        for operation in [Register, Read, Allocations] {
            for fault in [NomadFault::Lost, NomadFault::NoLeader] {
                nomad.break_next(operation, fault, 1);
            }
        }
        // The provider does not always read evaluations. Unused faults of one round must not be too many together with
        // the next.
        nomad.break_next(Evaluations, NomadFault::NoLeader, 1);
        let bot = fixture.active(number).await;
        assert_eq!(nomad.allocations(SLOT).iter().filter(|one| one["ClientStatus"] == "running").count(), 1);
        fixture.leave(&bot).await;
    }
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_bot_without_capacity_on_any_node_fails_with_nomads_reason() {
    let nodes = vec![NomadNode { memory: 200, ..NomadNode::new("small") }];
    let nomad = Arc::new(NomadFake::start_with(NomadOptions { nodes, ..NomadOptions::default() }).await);
    let config = nomad_pool(&nomad, "max_slots = 1") + "[deploy]\ntimeout = \"2s\"\n";
    let fixture = ServerFixture::open(Backend::Sqlite, &config).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(0)})).await;
    let failed = fixture.user.until(bot["id"].as_str().unwrap(), "failed").await;
    let error = failed["error"].as_str().unwrap_or_default();
    assert!(error.contains("memory exhausted on 1 node"), "{failed}");
    assert_eq!(statuses(&nomad), Vec::<String>::new());
    expect_no_violations(&nomad);
}

/// A hot pool of one slot on the first of two nodes. Sync runs only on request, and has no grace period.
async fn hot_on_two_nodes() -> (Arc<NomadFake>, ServerFixture) {
    let nodes = vec![NomadNode::new("one"), NomadNode { memory: 30_000, ..NomadNode::new("two") }];
    let nomad = Arc::new(NomadFake::start_with(NomadOptions { nodes, ..NomadOptions::default() }).await);
    run_agents(&nomad, BOT);
    let pool = nomad_pool(&nomad, "standby = \"running\"\nmax_slots = 1\nmin_idle = 1");
    let config = format!("[sync]\ninterval = \"1h\"\ngrace = \"1ms\"\n{pool}");
    let fixture = ServerFixture::open(Backend::Sqlite, &config).await;
    fixture.until_slots(1, 0).await;
    (nomad, fixture)
}

async fn sync(fixture: &ServerFixture) {
    let (status, did) = fixture.admin.post("/admin/sync/run", json!({})).await;
    assert!(status.is_success(), "{did}");
}

#[tokio::test]
async fn a_hot_pool_is_warm_again_after_its_node_died() {
    let (nomad, fixture) = hot_on_two_nodes().await;
    nomad.lose_node("one");
    until("an agent waits elsewhere", async || {
        sync(&fixture).await;
        statuses(&nomad) == ["unknown", "running"]
    })
    .await;
    fixture.until_slots(1, 0).await;
    let bot = fixture.active(0).await;
    assert_eq!(bot["slot"], SLOT);
    assert_eq!(statuses(&nomad), ["unknown", "running"]);
    fixture.leave(&bot).await;
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_bot_of_a_hot_pool_survives_a_node_that_only_nomad_cannot_reach() {
    let (nomad, fixture) = hot_on_two_nodes().await;
    let bot = fixture.active(0).await;
    nomad.lose_node("one");
    until("its state is unknown at Nomad", async || statuses(&nomad) == ["unknown"]).await;
    for _ in 0..3 {
        sync(&fixture).await;
    }
    nomad.bring_back_node("one");
    until("it continues", async || statuses(&nomad) == ["running"]).await;
    let bot = fixture.user.show_bot(bot["id"].as_str().unwrap()).await;
    assert_eq!(bot["status"], "active");
    fixture.leave(&bot).await;
    expect_no_violations(&nomad);
}
