//! Slots as jobs of Nomad, with the fake Nomad, which refuses every mistake.

mod concurrent_changes;
mod doctor;
mod life;
mod lost_nodes;
mod trouble;

use std::collections::BTreeMap;
use std::time::Duration;

use domain::SlotName;
use greenroom::config::provider::NomadConfig;
use greenroom::providers::nomad::{NomadProvider, Pace};
use greenroom::providers::{Found, Provider, ProviderError, Spec, Stopped};
use serde_json::{Value, json};

use crate::support::{NomadEvent, NomadFake, NomadNode, NomadOperation, NomadOptions, NomadTiming, until};

const SLOT: &str = "pool-meet-001";

pub fn config(nomad: &NomadFake) -> NomadConfig {
    NomadConfig {
        address: nomad.url().to_owned(),
        token: Some(nomad.token().to_owned().into()),
        region: None,
        namespace: "default".to_owned(),
        datacenters: vec!["*".to_owned()],
        image: "team/meet-bot:1.4".to_owned(),
        command: None,
        cpu: 1_000,
        memory: 2_000,
        env: BTreeMap::from([("LANG".to_owned(), "C.UTF-8".to_owned())]),
        ca_cert: None,
        client_cert: None,
        client_key: None,
        tls_server_name: None,
    }
}

/// A provider with a short polling interval.
pub fn with(config: NomadConfig, installation: &str) -> NomadProvider {
    let pace = Pace { first: Duration::from_millis(2), longest: Duration::from_millis(20) };
    NomadProvider::new(config, installation.to_owned()).paced(pace)
}

fn provider(nomad: &NomadFake) -> NomadProvider {
    with(config(nomad), "ours")
}

fn slot() -> SlotName {
    SlotName::stored(SLOT.to_owned())
}

/// The spec of a bot.
fn bot(connection: &str) -> Spec {
    let variables = [("GREENROOM_SLOT", SLOT), ("GREENROOM_URL", "http://greenroom.test"), ("BOT_DATA", "{}")];
    let environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Spec {
        slot: slot(),
        generation: 1,
        connection: Some(connection.to_owned()),
        environment,
        fresh: true,
        requirements: None,
    }
}

/// The spec of an agent that waits.
fn agent() -> Spec {
    let mut spec = Spec { connection: None, ..bot("") };
    spec.environment.remove("BOT_DATA");
    spec
}

fn count_of(nomad: &NomadFake) -> Value {
    nomad.jobs()[SLOT]["TaskGroups"][0]["Count"].clone()
}

/// The statuses of all allocations of the slot, the oldest first.
fn statuses(nomad: &NomadFake) -> Vec<String> {
    let of = |one: Value| one["ClientStatus"].as_str().unwrap().to_owned();
    nomad.allocations(SLOT).into_iter().map(of).collect()
}

async fn fails<T: std::fmt::Debug>(call: impl Future<Output = Result<T, ProviderError>>) -> ProviderError {
    call.await.unwrap_err()
}

fn expect_no_violations(nomad: &NomadFake) {
    assert_eq!(nomad.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_created_slot_is_a_job_without_allocations() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    for _ in 0..2 {
        assert_eq!(provider.create(&bot("a")).await.unwrap(), "default/pool-meet-001");
    }
    assert_eq!(nomad.count(NomadOperation::Register), 1, "an existing job is not changed");
    assert_eq!((count_of(&nomad), nomad.allocations(SLOT)), (json!(0), vec![]));
    let found = provider.inspect(&slot()).await.unwrap().unwrap();
    assert!(!found.running);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_bot_runs_with_the_variables_of_its_slot_and_of_its_pool() {
    let nomad = NomadFake::start().await;
    let command = ["run", "--fast"].map(str::to_owned).to_vec();
    let provider = with(NomadConfig { command: Some(command), ..config(&nomad) }, "ours");
    assert_eq!(provider.start(&bot("a")).await.unwrap(), "default/pool-meet-001");
    let Some(NomadEvent::Started { environment, .. }) = nomad.events().recv().await else { panic!("nothing runs") };
    assert_eq!(environment["GREENROOM_SLOT"], SLOT);
    assert_eq!((environment["BOT_DATA"].as_str(), environment["LANG"].as_str()), ("{}", "C.UTF-8"));
    let job = &nomad.jobs()[SLOT];
    let task = &job["TaskGroups"][0]["Tasks"][0];
    let docker = &task["Config"];
    assert_eq!((&docker["image"], &docker["entrypoint"]), (&json!("team/meet-bot:1.4"), &json!(["run", "--fast"])));
    // The driver passes these to the image's own entry point.
    assert_eq!((&docker["command"], &docker["args"]), (&Value::Null, &Value::Null));
    assert_eq!(docker["force_pull"], Value::Null, "an image on the node is not pulled again");
    assert_eq!((&task["Resources"]["CPU"], &task["Resources"]["MemoryMB"]), (&json!(1_000), &json!(2_000)));
    assert_eq!(job["Meta"]["greenroom.installation"], "ours");
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_stop_waits_until_the_allocation_has_ended_and_removes_the_bots_data() {
    let timing = NomadTiming { stop: Duration::from_millis(300), ..NomadTiming::default() };
    let nomad = NomadFake::start_with(NomadOptions { timing, ..NomadOptions::default() }).await;
    let provider = provider(&nomad);
    provider.start(&bot("a")).await.unwrap();
    assert!(provider.inspect(&slot()).await.unwrap().unwrap().running);
    assert_eq!(provider.stop(&slot(), true).await.unwrap(), Stopped::Seen);
    assert_eq!(statuses(&nomad), ["complete"]);
    let job = nomad.jobs()[SLOT].to_string();
    assert!(!job.contains("BOT_DATA") && !job.contains("GREENROOM_"), "{job}");
    assert!(!provider.inspect(&slot()).await.unwrap().unwrap().running);
    // A repeated call changes nothing.
    let changes = nomad.count(NomadOperation::Register);
    assert_eq!(provider.stop(&slot(), true).await.unwrap(), Stopped::Seen);
    assert_eq!(nomad.count(NomadOperation::Register), changes);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn an_allocation_for_another_connection_ends_before_the_next_begins() {
    let timing = NomadTiming { stop: Duration::from_millis(200), ..NomadTiming::default() };
    let nomad = NomadFake::start_with(NomadOptions { timing, ..NomadOptions::default() }).await;
    let provider = provider(&nomad);
    for connection in ["a", "a", "b"] {
        provider.start(&bot(connection)).await.unwrap();
    }
    assert_eq!(statuses(&nomad), ["complete", "running"]);
    let mut events = nomad.events();
    let happened: Vec<bool> = std::iter::from_fn(|| events.try_recv().ok())
        .map(|event| matches!(event, NomadEvent::Started { .. }))
        .collect();
    assert_eq!(happened, [true, false, true], "the second begins only after the first has ended");
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_waiting_agent_with_an_older_recipe_is_replaced() {
    let nomad = NomadFake::start().await;
    provider(&nomad).start(&agent()).await.unwrap();
    let newer = with(NomadConfig { image: "team/meet-bot:1.5".to_owned(), ..config(&nomad) }, "ours");
    newer.start(&agent()).await.unwrap();
    newer.start(&agent()).await.unwrap();
    assert_eq!(statuses(&nomad), ["complete", "running"]);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_deleted_slot_is_gone_when_its_allocation_has_ended() {
    let timing = NomadTiming { stop: Duration::from_millis(200), ..NomadTiming::default() };
    let nomad = NomadFake::start_with(NomadOptions { timing, ..NomadOptions::default() }).await;
    let provider = provider(&nomad);
    provider.start(&bot("a")).await.unwrap();
    provider.delete(&slot()).await.unwrap();
    assert!(nomad.jobs().is_empty());
    assert_eq!(statuses(&nomad), ["complete"]);
    assert_eq!(provider.inspect(&slot()).await.unwrap(), None);
    provider.delete(&slot()).await.unwrap();
    provider.start(&bot("b")).await.unwrap();
    assert!(nomad.running(SLOT).is_some());
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_job_of_somebody_else_is_neither_seen_nor_touched() {
    let nomad = NomadFake::start().await;
    let other = with(config(&nomad), "theirs");
    other.start(&bot("a")).await.unwrap();
    let (provider, before) = (provider(&nomad), nomad.jobs());
    assert_eq!(provider.list().await.unwrap(), []);
    assert_eq!(provider.inspect(&slot()).await.unwrap(), None);
    assert_eq!(provider.last_lines(&slot()).await.unwrap(), None);
    provider.stop(&slot(), true).await.unwrap();
    provider.delete(&slot()).await.unwrap();
    for error in [fails(provider.create(&bot("b"))).await, fails(provider.start(&bot("b"))).await] {
        assert!(!error.retryable && error.message.contains("the name pool-meet-001 belongs to a job"), "{error}");
    }
    assert_eq!(nomad.jobs(), before);
    assert!(nomad.running(SLOT).is_some());
    expect_no_violations(&nomad);
}

/// A job as another process of this installation would have made it.
fn made(name: &str, installation: &str) -> Value {
    json!({
        "ID": name, "Name": name, "Datacenters": ["*"],
        "Meta": {"greenroom.installation": installation, "greenroom.slot": name},
        "TaskGroups": [{"Name": "bot", "Count": 0, "Tasks": [{"Name": "bot", "Driver": "docker",
                        "Config": {"image": "team/meet-bot:1.4"}}]}],
    })
}

#[tokio::test]
async fn all_jobs_are_listed_page_by_page_and_a_page_that_is_missing_is_an_error() {
    let nomad = NomadFake::start().await;
    for number in 1..=120 {
        nomad.add_job("default", &made(&format!("pool-meet-{number:03}"), "ours"));
        nomad.add_job("default", &made(&format!("pool-other-{number:03}"), "theirs"));
    }
    let provider = provider(&nomad);
    let found = provider.list().await.unwrap();
    assert_eq!(found.len(), 120);
    assert_eq!(found[119].slot.as_str(), "pool-meet-120");
    assert_eq!(nomad.count(NomadOperation::List), 3);
    use crate::support::NomadFault::{NoLeader, Slow};
    nomad.break_next(NomadOperation::List, Slow(Duration::ZERO), 1);
    nomad.break_next(NomadOperation::List, NoLeader, 4);
    let error = fails(provider.list()).await;
    assert!(error.retryable && error.message.contains("No cluster leader"), "{error}");
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_list_shows_which_slots_run() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    provider.start(&bot("a")).await.unwrap();
    let running = |found: Vec<Found>| found.into_iter().map(|found| found.running).collect::<Vec<_>>();
    assert_eq!(running(provider.list().await.unwrap()), [true]);
    provider.stop(&slot(), true).await.unwrap();
    assert_eq!(running(provider.list().await.unwrap()), [false]);
    nomad.collect_garbage();
    assert_eq!(running(provider.list().await.unwrap()), [false], "a job of which nothing runs stays for ever");
    provider.start(&bot("b")).await.unwrap();
    assert_eq!(running(provider.list().await.unwrap()), [true]);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_bot_that_has_ended_is_not_started_again_and_an_agent_that_waits_is() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    provider.start(&bot("a")).await.unwrap();
    nomad.end_allocation(&nomad.running(SLOT).unwrap(), 0).await;
    let found = provider.inspect(&slot()).await.unwrap().unwrap();
    assert!(!found.running && found.state.contains("Exit Code: 0"), "{found:?}");
    assert_eq!(statuses(&nomad), ["failed"], "for a service, every end is a failure");
    provider.start(&agent()).await.unwrap();
    nomad.end_allocation(&nomad.running(SLOT).unwrap(), 1).await;
    until("the agent is up again where it was", async || nomad.running(SLOT).is_some()).await;
    assert_eq!(statuses(&nomad), ["failed", "running"]);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn the_last_lines_are_those_of_the_newest_allocation() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    assert_eq!(provider.last_lines(&slot()).await.unwrap(), None);
    provider.create(&bot("a")).await.unwrap();
    assert_eq!(provider.last_lines(&slot()).await.unwrap(), None);
    provider.start(&bot("a")).await.unwrap();
    let many: String = (0..2_000).map(|number| format!("line {number}\n")).collect();
    nomad.set_logs(SLOT, &many);
    nomad.set_error_logs(SLOT, "it broke");
    let lines = provider.last_lines(&slot()).await.unwrap().unwrap();
    assert!(lines.ends_with("line 1999\nit broke"), "{lines}");
    provider.stop(&slot(), true).await.unwrap();
    assert!(provider.last_lines(&slot()).await.unwrap().is_some(), "the log can be read after the end");
    nomad.collect_garbage();
    assert_eq!(provider.last_lines(&slot()).await.unwrap(), None);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn an_allocation_that_cannot_be_placed_fails_with_nomads_reasons_and_is_cancelled() {
    let small = NomadNode { memory: 1_000, ..NomadNode::new("small") };
    let bare = NomadNode { drivers: vec!["exec".to_owned()], ..NomadNode::new("bare") };
    let nodes = vec![small, bare];
    let nomad = NomadFake::start_with(NomadOptions { nodes, ..NomadOptions::default() }).await;
    let error = fails(provider(&nomad).start(&bot("a"))).await;
    assert!(error.retryable, "nodes may return");
    for message in ["memory exhausted on 1 node", "1 node filtered by the constraint \"missing drivers\""] {
        assert!(error.message.contains(message), "{error}");
    }
    let elsewhere = with(NomadConfig { datacenters: vec!["eu-*".to_owned()], ..config(&nomad) }, "ours");
    let error = fails(elsewhere.start(&bot("a"))).await;
    assert!(error.retryable && error.message.contains("no node in the datacenters eu-*"), "{error}");
    assert_eq!(count_of(&nomad), json!(0));
    nomad.add_node(NomadNode::new("large"));
    assert_eq!(statuses(&nomad), Vec::<String>::new(), "nothing unwanted starts");
    provider(&nomad).start(&bot("b")).await.unwrap();
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn an_allocation_that_cannot_start_fails_with_the_drivers_message_and_is_cancelled() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    let gone = "Failed to pull `team/meet-bot:1.4`: API error (404): manifest for team/meet-bot:1.4 not found";
    nomad.fail_next_allocation(gone);
    let error = fails(provider.start(&bot("a"))).await;
    assert!(!error.retryable && error.message.contains(gone) && error.message.contains("node-1"), "{error}");
    assert_eq!((count_of(&nomad), statuses(&nomad)), (json!(0), vec!["failed".to_owned()]));
    let away = "Failed to pull `team/meet-bot:1.4`: dial unix /var/run/docker.sock: connect: no such file or directory";
    nomad.fail_next_allocation(away);
    let error = fails(provider.start(&bot("a"))).await;
    assert!(error.retryable && error.message.contains(away), "{error}");
    provider.start(&bot("a")).await.unwrap();
    // A waiting agent is restarted on its node.
    nomad.fail_next_allocation("failed to create container: dial unix docker.sock: connect: connection refused");
    provider.start(&agent()).await.unwrap();
    expect_no_violations(&nomad);
}
