//! Heartbeats and waiting agents are answered from memory, and the answers are right on every replica, also without
//! Redis.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Life, Process, found, meet_link, until};

const SLOT: &str = "pool-meet-001";
/// A hot slot whose process does nothing: the test plays the agent.
const HOT_POOL: &str = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
                        min_idle = 1\nstandby = \"running\"\nrecycle_after = 0\n\
                        process = { command = [\"sleep\", \"1000\"] }\n";

/// How often a server has made these calls to its database.
async fn calls(server: &Process, names: &[&str]) -> f64 {
    let text = server.admin().text("/metrics").await;
    let counts = text.lines().filter_map(|line| {
        let (call, count) =
            line.strip_prefix("greenroom_database_call_duration_seconds_count{call=\"")?.split_once(' ')?;
        names.contains(&call.split('"').next()?).then(|| count.parse::<f64>().unwrap())
    });
    counts.sum()
}

/// A bot in its meeting, which the test plays.
async fn active(server: &Process, user: &Client, number: usize) -> (String, Life) {
    let bot = user.bot(&meet_link(number)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    (bot, life)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_heartbeat_costs_no_read_and_knows_of_every_change_at_once(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let (bot, life) = active(&server, &user, 0).await;
    let reads = ["bots.read", "commands.open"];
    // The feed may still drop the copy, for the events of the start.
    until("heartbeats read nothing", async || {
        life.report("heartbeat", json!({})).await;
        let before = calls(&server, &reads).await;
        for _ in 0..20 {
            assert_eq!(life.report("heartbeat", json!({})).await, json!({"status": "active", "commands": []}));
        }
        calls(&server, &reads).await <= before
    })
    .await;
    let body = json!({"config": {"language": "en"}});
    assert_eq!(user.send(Method::PUT, &format!("/bots/{bot}/config"), Some(body)).await.0, StatusCode::ACCEPTED);
    let answer = life.report("heartbeat", json!({})).await;
    assert_eq!(answer["commands"][0]["action"], "reconfigure", "{answer}");
    assert_eq!(life.report("heartbeat", json!({})).await, answer, "a command stays until it is acknowledged");
    user.stop(&bot).await;
    let answer = life.report("heartbeat", json!({"acked": [answer["commands"][0]["id"]]})).await;
    assert_eq!((&answer["status"], &answer["commands"][0]["action"]), (&json!("stopping"), &json!("leave")));
    assert_eq!(answer["commands"].as_array().unwrap().len(), 1, "{answer}");

    // Neither another token nor another connection gets the copy.
    let wrong = Life { client: life.client.with("grb_wrong"), ..life.clone() };
    assert_eq!(wrong.say("heartbeat", json!({})).await.0, StatusCode::UNAUTHORIZED);
    let (_, other) = active(&server, &user, 1).await;
    let swapped = Life { connection_id: other.connection_id.clone(), ..life.clone() };
    assert_eq!(swapped.say("heartbeat", json!({})).await.1["code"], "stale_connection");

    life.report("exited", json!({"exit_code": 0})).await;
    let (status, answer) = life.say("heartbeat", json!({})).await;
    assert_eq!((status, &answer["code"]), (StatusCode::GONE, &json!("bot_ended")));
}

#[tokio::test]
async fn heartbeats_at_two_replicas_tell_the_same_without_redis_on_postgres() {
    let database = Database::new(Backend::Postgres).await;
    let (first, second) = (Process::start(&database).await, Process::start(&database).await);
    let user = first.admin().user(3).await;
    let (bot, life) = active(&first, &user, 0).await;
    let [here, there] = [&first, &second].map(|server| life.on(&server.url));
    for _ in 0..3 {
        assert_eq!(there.report("heartbeat", json!({})).await["status"], "active");
        assert_eq!(here.report("heartbeat", json!({})).await["status"], "active");
    }
    // A command that the other replica has written.
    let body = json!({"config": {"language": "en"}});
    assert_eq!(user.send(Method::PUT, &format!("/bots/{bot}/config"), Some(body)).await.0, StatusCode::ACCEPTED);
    let command = here.report("heartbeat", json!({})).await["commands"][0]["id"].clone();
    // The bot may acknowledge it at a replica that does not know it yet: the acknowledgement is stored in any case.
    assert_eq!(there.report("heartbeat", json!({"acked": [command]})).await["commands"], json!([]));
    until("the first replica knows that it is acknowledged", async || {
        here.report("heartbeat", json!({})).await["commands"] == json!([])
    })
    .await;
    user.stop(&bot).await;
    until("the second replica knows that the bot leaves", async || {
        let answer = there.report("heartbeat", json!({})).await;
        answer["status"] == "stopping" && answer["commands"][0]["action"] == "leave"
    })
    .await;
    here.report("exited", json!({"exit_code": 0})).await;
    until("the second replica knows that the bot has ended", async || {
        let (status, answer) = there.say("heartbeat", json!({})).await;
        assert!(status == StatusCode::OK || answer["code"] == "bot_ended", "{status} {answer}");
        status == StatusCode::GONE
    })
    .await;
}

#[tokio::test]
async fn a_command_for_a_new_connection_never_goes_to_the_old_one_at_another_replica_on_postgres() {
    let database = Database::new(Backend::Postgres).await;
    let (first, second) = (Process::start(&database).await, Process::start(&database).await);
    let user = first.admin().user(3).await;
    for number in 0..5 {
        let (bot, old) = active(&first, &user, number).await;
        let old = old.on(&second.url);
        old.report("heartbeat", json!({})).await;
        let new = Life::assign(&first.admin(), &bot).await;
        let body = json!({"config": {"language": "en"}});
        assert_eq!(user.send(Method::PUT, &format!("/bots/{bot}/config"), Some(body)).await.0, StatusCode::ACCEPTED);
        until("the old connection is refused", async || {
            let (status, answer) = old.say("heartbeat", json!({})).await;
            if status == StatusCode::OK {
                assert_eq!(answer["commands"], json!([]), "it is meant for the new connection");
            } else {
                assert_eq!(answer["code"], "stale_connection", "{status} {answer}");
            }
            status == StatusCode::CONFLICT
        })
        .await;
        new.report("started", json!({})).await;
        assert_eq!(new.report("heartbeat", json!({})).await["commands"][0]["action"], "reconfigure");
        new.report("exited", json!({"exit_code": 0})).await;
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_goes_on_at_a_server_that_was_killed_and_started_again(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    let (bot, life) = active(&server, &user, 0).await;
    life.report("heartbeat", json!({})).await;
    user.stop(&bot).await;
    server.kill().await;
    let server = Process::start(&database).await;
    let life = life.on(&server.url);
    for _ in 0..2 {
        let answer = life.report("heartbeat", json!({})).await;
        assert_eq!((&answer["status"], &answer["commands"][0]["action"]), (&json!("stopping"), &json!("leave")));
    }
}

/// The token in the environment of the slot's process.
async fn slot_token(database: &Database) -> String {
    let process = found("the slot is started", async || database.agent(SLOT)).await;
    let environment = std::fs::read_to_string(format!("/proc/{}/environ", process.pid)).unwrap();
    let token = environment.split('\0').find_map(|entry| entry.strip_prefix("GREENROOM_SLOT_TOKEN="));
    token.unwrap().to_owned()
}

/// Waits for a bot as an agent does.
async fn wait(agent: &Client, wait_ms: u32) -> (StatusCode, Value) {
    let answer = agent.request(Method::GET, &format!("/agent/assignment?wait_ms={wait_ms}")).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap_or_default())
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_agent_that_waits_again_and_again_costs_no_query_and_gets_its_bot(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start_configured(&database, HOT_POOL).await;
    let agent = server.client(&slot_token(&database).await);
    let reads = ["slots.read", "deployments.at_gate", "bots.read", "pools.list"];
    until("the agent costs no query", async || {
        assert_eq!(wait(&agent, 1).await.0, StatusCode::NO_CONTENT);
        let before = calls(&server, &reads[..3]).await;
        for _ in 0..20 {
            assert_eq!(wait(&agent, 1).await.0, StatusCode::NO_CONTENT);
        }
        calls(&server, &reads[..3]).await <= before
    })
    .await;
    let waiting = {
        let agent = agent.clone();
        tokio::spawn(async move { wait(&agent, 60_000).await })
    };
    let user = server.admin().user(1).await;
    let bot = user.bot(&meet_link(0)).await;
    let (status, data) = waiting.await.unwrap();
    assert_eq!((status, &data["bot_id"]), (StatusCode::OK, &json!(bot)));
    // The token was for this assignment.
    Life::from_data(&server.admin(), &data).report("started", json!({})).await;
    assert_eq!(wait(&agent, 60_000).await.0, StatusCode::UNAUTHORIZED);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_agent_whose_slot_goes_away_is_refused_while_it_waits(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start_configured(&database, HOT_POOL).await;
    let agent = server.client(&slot_token(&database).await);
    assert_eq!(wait(&agent, 1).await.0, StatusCode::NO_CONTENT);
    assert_eq!(wait(&agent, 1).await.0, StatusCode::NO_CONTENT);
    let waiting = tokio::spawn(async move { wait(&agent, 60_000).await });
    let (status, _) = server.admin().send(Method::DELETE, &format!("/admin/slots/{SLOT}"), None).await;
    assert!(status.is_success(), "{status}");
    assert_eq!(waiting.await.unwrap().0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn an_agent_is_woken_by_another_replica_without_redis_on_postgres() {
    let database = Database::new(Backend::Postgres).await;
    let first = Process::start_configured(&database, HOT_POOL).await;
    let token = slot_token(&database).await;
    let agent = first.client(&token);
    assert_eq!(wait(&agent, 1).await.0, StatusCode::NO_CONTENT);
    // The second replica starts while the first one thinks that it is alone.
    let waiting = tokio::spawn(async move { wait(&agent, 60_000).await });
    let second = Process::start_configured(&database, HOT_POOL).await;
    let user = second.admin().user(1).await;
    let bot = user.bot(&meet_link(0)).await;
    let (status, data) = waiting.await.unwrap();
    assert_eq!((status, &data["bot_id"]), (StatusCode::OK, &json!(bot)), "{data}");
}

#[tokio::test]
async fn an_agent_that_no_signal_reached_is_found_by_the_comparison_with_the_database_on_postgres() {
    let database = Database::new(Backend::Postgres).await;
    let first = Process::start_configured(&database, HOT_POOL).await;
    // With another replica the comparison is frequent.
    let _second = Process::start_configured(&database, HOT_POOL).await;
    let agent = first.client(&slot_token(&database).await);
    for _ in 0..2 {
        assert_eq!(wait(&agent, 1).await.0, StatusCode::NO_CONTENT);
    }
    let waiting = tokio::spawn(async move { wait(&agent, 60_000).await });
    // Behind the back of all servers: neither the token nor the journal tells of it.
    database.execute("UPDATE slots SET generation = generation + 1").await;
    assert_eq!(waiting.await.unwrap().0, StatusCode::UNAUTHORIZED);
}
