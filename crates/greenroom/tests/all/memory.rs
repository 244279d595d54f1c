//! The memory of what stands warm: agents measure it, the server shows it, and the doctor compares it with the host's.

use domain::{BotId, SlotStatus};
use greenroom::store::{PoolRow, SlotMemoryRow, SlotRow};
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::placement_writes::write_slots;
use crate::support::{
    Backend, Client, CoreFixture, Database, DockerFixture, Engine, OBEDIENT, Plan, Process, Recipe, ServerFixture,
    found, pool, process_pool, until,
};

const MIB: i64 = 1024 * 1024;
const FIRST: &str = "pool-meet-001";
const SECOND: &str = "pool-meet-002";

/// A server with two hot slots, in which nothing waits: the test waits for them.
async fn two_slots(backend: Backend) -> ServerFixture {
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 2\n\
                min_idle = 2\nstandby = \"running\"\nprocess = { command = [\"sleep\", \"1000\"] }\n";
    ServerFixture::open(backend, pool).await
}

/// A client with the token that a slot was started with.
async fn agent_of(fixture: &ServerFixture, slot: &str) -> Client {
    let token = found("the slot is started", async || {
        let environment =
            std::fs::read_to_string(format!("/proc/{}/environ", fixture.database.agent(slot)?.pid)).ok()?;
        let token = environment.split('\0').find_map(|entry| entry.strip_prefix("GREENROOM_SLOT_TOKEN="));
        token.map(str::to_owned)
    })
    .await;
    fixture.admin.with(&token)
}

/// Waits for a bot once, with this figure, until the slot's agent is accepted.
async fn poll(fixture: &ServerFixture, slot: &str, agent: &Client, bytes: &str) {
    let request = || agent.request(Method::GET, "/agent/assignment?wait_ms=0").header("Greenroom-Memory-Bytes", bytes);
    until("its agent is accepted", async || {
        assert_eq!(request().send().await.unwrap().status(), StatusCode::NO_CONTENT);
        shown(fixture, slot).await["status"] == "idle"
    })
    .await;
}

async fn shown(fixture: &ServerFixture, slot: &str) -> Value {
    fixture.admin.get(&format!("/admin/slots/{slot}")).await["slot"].take()
}

async fn until_shown(fixture: &ServerFixture, slot: &str, bytes: i64) {
    until("its memory is shown", async || shown(fixture, slot).await["memory_bytes"] == bytes).await;
}

async fn of_pool(fixture: &ServerFixture) -> Value {
    let one = fixture.admin.get("/admin/pools/meet").await["pool"]["memory_bytes"].take();
    assert_eq!(fixture.admin.get("/admin/pools").await["pools"][0]["memory_bytes"], one);
    one
}

/// How often the server has written the memory of slots.
async fn writes(fixture: &ServerFixture) -> Option<String> {
    let metrics = fixture.admin.text("/metrics").await;
    let written = "greenroom_database_call_duration_seconds_count{call=\"slot_memory.write\",result=\"ok\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(written)).map(str::to_owned)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_memory_that_agents_send_is_shown_for_slots_and_pools(#[case] backend: Backend) {
    let fixture = two_slots(backend).await;
    let (first, second) = (agent_of(&fixture, FIRST).await, agent_of(&fixture, SECOND).await);
    assert_eq!(shown(&fixture, FIRST).await.get("memory_bytes"), Some(&Value::Null), "no agent waits in it");
    assert_eq!(of_pool(&fixture).await, Value::Null);
    let too_much = ((1_i64 << 45) + 1).to_string();
    for nonsense in ["", "-5", "+5", "1e3", "12 MiB", "0x10", "5.0", "99999999999999999999", &too_much, "\u{664}"] {
        poll(&fixture, FIRST, &first, nonsense).await;
    }
    assert_eq!(shown(&fixture, FIRST).await["hot"], true);
    assert_eq!(
        (shown(&fixture, FIRST).await["memory_bytes"].take(), of_pool(&fixture).await),
        (Value::Null, Value::Null)
    );
    // A figure that hardly changes is written once.
    for change in 0..50 {
        poll(&fixture, FIRST, &first, &(300 * MIB + change % 15 * MIB).to_string()).await;
    }
    until_shown(&fixture, FIRST, 300 * MIB).await;
    assert_eq!(writes(&fixture).await.as_deref(), Some("1"), "nonsense and small changes are not written");

    poll(&fixture, SECOND, &second, &(200 * MIB).to_string()).await;
    until_shown(&fixture, SECOND, 200 * MIB).await;
    assert_eq!(of_pool(&fixture).await, 500 * MIB);
    let listed: Vec<Value> = fixture.slots().await.into_iter().map(|mut slot| slot["memory_bytes"].take()).collect();
    assert_eq!(listed, [json!(300 * MIB), json!(200 * MIB)]);

    // The slot is made again under its name, and nobody waits in it.
    let (status, drained) = fixture.admin.send(Method::DELETE, &format!("/admin/slots/{FIRST}"), None).await;
    assert!(status.is_success() && drained["slot"]["memory_bytes"].is_null(), "{drained}");
    assert_eq!(of_pool(&fixture).await, 200 * MIB);
    until("the slot is made again", async || {
        let (status, answer) = fixture.admin.send(Method::GET, &format!("/admin/slots/{FIRST}"), None).await;
        status == StatusCode::OK && answer["slot"]["status"] == "creating"
    })
    .await;
    let before = first;
    let after = found("the slot has another token", async || {
        let agent = agent_of(&fixture, FIRST).await;
        (agent.token() != before.token()).then_some(agent)
    })
    .await;
    // An agent of the slot before is refused, and so is what it says.
    let late = before.request(Method::GET, "/agent/assignment?wait_ms=0").header("Greenroom-Memory-Bytes", "1");
    assert_eq!(late.send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    poll(&fixture, FIRST, &after, "").await;
    assert_eq!(
        (shown(&fixture, FIRST).await["memory_bytes"].take(), of_pool(&fixture).await),
        (Value::Null, json!(200 * MIB))
    );
    assert_eq!(writes(&fixture).await.as_deref(), Some("2"));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_agent_of_a_hot_slot_sends_what_it_uses(#[case] backend: Backend) {
    let settings = "standby = \"running\"\nmax_slots = 1\nmin_idle = 1";
    let fixture = ServerFixture::open(backend, &process_pool("meet", settings, "read leave")).await;
    let bytes = found("its memory is shown", async || fixture.slots().await.first()?["memory_bytes"].as_i64()).await;
    assert!((MIB / 2..500 * MIB).contains(&bytes), "{bytes}");
    assert_eq!(of_pool(&fixture).await, bytes);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn only_slots_in_which_an_agent_runs_count_for_their_pool(#[case] backend: Backend) {
    let hot = |name| PoolRow { hot: true, max_slots: 6, min_idle: 6, ..pool(name) };
    let stopped = PoolRow { hot: false, ..hot("stopped") };
    let plan = Plan::of([hot("meet"), stopped]);
    let core = CoreFixture::planned(Database::new(backend).await.into(), &plan).await;
    core.placement.keep_warm().await.unwrap();
    let mut slots = core.store.slots(None, None).await.unwrap();
    assert_eq!(slots.len(), 12);
    let with_bot = |slot: &mut SlotRow, agent: Option<&str>| {
        (slot.status, slot.bot_id, slot.agent) =
            (SlotStatus::Busy, Some(BotId(Uuid::new_v4())), agent.map(str::to_owned));
    };
    for of_pool in slots.chunks_mut(6) {
        let [idle, stopped, creating, busy, without_agent, error] = of_pool else { panic!("six of each pool") };
        idle.status = SlotStatus::Idle;
        (stopped.status, stopped.stopped) = (SlotStatus::Idle, true);
        creating.status = SlotStatus::Creating;
        with_bot(busy, Some("agent"));
        with_bot(without_agent, None);
        error.status = SlotStatus::Error;
    }
    write_slots(&core.store, slots.clone(), false, core.clock.now()).await;
    let row = |(slot, bytes): (&SlotRow, i64)| {
        let (slot, incarnation, measured_at) = (slot.name.clone(), slot.incarnation, core.clock.now());
        SlotMemoryRow { slot, incarnation, bytes, measured_at }
    };
    // Each has a figure by which it is known in the sum.
    let mut rows: Vec<SlotMemoryRow> = slots.iter().zip((0..12).map(|slot| 1 << slot)).map(row).collect();
    core.store.write_slot_memory(&rows).await.unwrap();

    let of_pools = core.store.memory_of_pools().await.unwrap();
    let counts = |slot: &SlotRow| plan.pools.iter().any(|pool| pool.name == slot.pool && pool.has_agent(slot));
    let expected: i64 = slots.iter().zip(&rows).filter(|(slot, _)| counts(slot)).map(|(_, row)| row.bytes).sum();
    assert_eq!(of_pools.keys().collect::<Vec<_>>(), ["meet"]);
    assert_eq!((of_pools["meet"].bytes, of_pools["meet"].largest), (expected, 1 << 3));
    assert_eq!(expected, 1 + (1 << 3));

    // Of an older slot with the same name, and of a slot that is gone, nothing counts, and nothing stays.
    rows.truncate(2);
    rows[0].incarnation = Uuid::new_v4();
    rows[1].slot = domain::SlotName::new("gone", 1);
    core.store.write_slot_memory(&rows).await.unwrap();
    assert_eq!(core.store.memory_of_pools().await.unwrap()["meet"].bytes, 1 << 3);
    let stored = async || {
        let mut reader = core.database.reader().await;
        reader.pairs("SELECT slot, slot FROM slot_memory ORDER BY slot").await
    };
    assert_eq!(stored().await.len(), 13);
    core.store.prune_slot_memory().await.unwrap();
    let left: Vec<String> = stored().await.into_iter().map(|(slot, _)| slot).collect();
    let expected: Vec<&str> = slots[1..].iter().map(|slot| slot.name.as_str()).collect();
    assert_eq!(left, expected);
}

async fn doctor(database: &Database) -> (bool, String) {
    let mut command = Process::command();
    command.args(["doctor", "--database", &database.url]).current_dir(database.folder.path());
    let output = command.output().await.unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), said)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_doctor_says_when_this_machine_has_no_room_for_the_hot_slots(#[case] backend: Backend) {
    let fixture = two_slots(backend).await;
    let agent = agent_of(&fixture, FIRST).await;
    poll(&fixture, FIRST, &agent, &(3 * MIB).to_string()).await;
    until_shown(&fixture, FIRST, 3 * MIB).await;
    let (_, said) = doctor(&fixture.database).await;
    assert!(said.contains("ok    memory      2 hot slots need 6.0 MiB, 3.0 MiB each; the host has "), "{said}");
    let much = 1_i64 << 44;
    poll(&fixture, FIRST, &agent, &much.to_string()).await;
    until_shown(&fixture, FIRST, much).await;
    let (in_order, said) = doctor(&fixture.database).await;
    assert!(!in_order, "{said}");
    let expected = "warn  memory      2 hot slots need 32768.0 GiB, 16384.0 GiB each, and the host has ";
    assert!(said.contains(expected) && said.contains("lower `min_idle` to at most 1, or use a larger host"), "{said}");
}

#[tokio::test]
async fn a_hot_container_sends_its_memory_and_the_doctor_compares_it_with_the_engines_on_docker() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let settings = "standby = \"running\"\nmax_slots = 2\nmin_idle = 1";
    let fixture = DockerFixture::start(&engine, "docker", &image, settings, "").await;
    let bytes = found("its memory is shown", async || fixture.slots().await.first()?["memory_bytes"].as_i64()).await;
    assert!((MIB / 2..500 * MIB).contains(&bytes), "{bytes}");
    let (in_order, said) = doctor(&fixture.database).await;
    assert!(in_order && said.contains("ok    memory      1 hot slot needs "), "{said}");
}
