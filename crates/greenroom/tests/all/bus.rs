//! The delivery of commands: over Redis if it is available, and otherwise by the bot's own requests. A bot that gets
//! the command to leave always leaves.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Client, Life, PrivateRedis, Replicas, Subscriber, found, meet_link, process_pool, until};

/// A pool whose slots run nothing: the test sends the callbacks of the bots.
const SILENT: &str = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 9\n\
                      process = { command = [\"true\"] }\n";
/// How often a bot asks for commands by itself.
const HEARTBEAT: &str = "[heartbeat]\ninterval = \"1s\"\n";
/// Stays in its meeting until it gets the command to leave.
const BOT: &str = r#"
    echo '{"event": "joined"}'
    read leave
"#;

async fn reconfigure(user: &Client, bot: &str, round: usize) {
    let body = json!({"config": {"round": round}});
    let (status, answer) = user.send(Method::PUT, &format!("/bots/{bot}/config"), Some(body)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
}

/// A bot in its meeting whose callbacks the test sends, and its data.
async fn silent_bot(replicas: &Replicas, user: &Client, number: usize) -> (String, Life, Value) {
    let bot = user.bot(&meet_link(number)).await;
    let (status, data) = replicas.admin.post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;
    assert_eq!(status, StatusCode::CREATED, "{data}");
    let life = Life::from_data(&replicas.admin, &data);
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    (bot, life, data)
}

#[tokio::test]
async fn a_command_is_published_on_redis_as_heartbeats_repeat_it_from_postgres() {
    let redis = PrivateRedis::start().await;
    let replicas = Replicas::three(&redis, SILENT).await;
    let user = replicas.admin.user(1).await;
    let (bot, life, data) = silent_bot(&replicas, &user, 0).await;
    let channel = format!("bot_commands:{}", life.connection_id);
    assert_eq!(data["commands"], json!({"redis_url": redis.url_for_bots(), "channel": channel}));

    let mut subscriber = Subscriber::to(&redis.address(), &channel).await;
    let mut published = Vec::new();
    for number in 0..replicas.len() {
        reconfigure(&user.on(&replicas.url(number)), &bot, number).await;
        published.push(subscriber.next().await);
        assert_eq!(published[number]["action"], "reconfigure");
        assert_eq!(published[number]["payload"], json!({"round": number}));
    }
    user.stop(&bot).await;
    published.push(subscriber.next().await);
    assert_eq!(published[3]["action"], "leave");
    // The newest command replaces those before it.
    let open = published.split_off(2);
    for number in 0..replicas.len() {
        let answer = life.on(&replicas.url(number)).report("heartbeat", json!({})).await;
        assert_eq!(answer["commands"], json!(open), "the same ids, actions and payloads, and no other fields");
    }

    let ids: Vec<&Value> = published.iter().chain(&open).map(|command| &command["id"]).collect();
    assert_eq!(life.report("heartbeat", json!({"acked": ids})).await["commands"], json!([]));
    life.report("exited", json!({"exit_code": 0})).await;
    assert_eq!(user.until(&bot, "completed").await["reason"], "stopped");
}

#[tokio::test]
async fn commands_arrive_by_heartbeat_while_redis_is_down_and_are_published_again_afterwards_on_postgres() {
    let mut redis = PrivateRedis::start().await;
    let replicas = Replicas::three(&redis, SILENT).await;
    let user = replicas.admin.user(1).await;
    let (bot, life, data) = silent_bot(&replicas, &user, 0).await;
    redis.kill();
    for number in 0..replicas.len() {
        reconfigure(&user.on(&replicas.url(number)), &bot, number).await;
        // Another replica wrote the command. The one with the heartbeats learns of it within a second.
        found("the command arrives by heartbeat", async || {
            let answer = life.report("heartbeat", json!({})).await;
            assert_eq!(answer["commands"].as_array().unwrap().len(), 1, "{answer}");
            (answer["commands"][0]["payload"] == json!({"round": number})).then_some(())
        })
        .await;
    }
    redis.start_again().await;
    for number in 0..replicas.len() {
        let user = user.on(&replicas.url(number));
        let mut subscriber = Subscriber::to(&redis.address(), data["commands"]["channel"].as_str().unwrap()).await;
        // The time until the server notices the connection is not fixed. Until then, commands arrive by heartbeat.
        found("commands are published again", async || {
            reconfigure(&user, &bot, 100 + number).await;
            let heard = tokio::time::timeout(Duration::from_millis(300), subscriber.next()).await.ok()?;
            (heard["payload"] == json!({"round": 100 + number})).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_leave_that_was_published_before_its_bot_subscribed_to_redis_is_in_its_first_heartbeat_from_postgres() {
    let redis = PrivateRedis::start().await;
    let replicas = Replicas::three(&redis, SILENT).await;
    let user = replicas.admin.user(9).await;
    for number in 0..replicas.len() {
        let bot = user.bot(&meet_link(number)).await;
        let life = Life::assign(&replicas.admin, &bot).await;
        let mut before = Subscriber::to(&redis.address(), &format!("bot_commands:{}", life.connection_id)).await;
        user.on(&replicas.url(number)).stop(&bot).await;
        // The command was published while the bot was not connected. Now the bot connects to another replica.
        let published = before.next().await;
        let life = life.on(&replicas.url((number + 1) % replicas.len()));
        assert_eq!(life.report("started", json!({})).await["status"], "stopping");
        let answer = life.report("heartbeat", json!({})).await;
        assert_eq!(answer["commands"], json!([published]));
        life.report("heartbeat", json!({"acked": [published["id"]]})).await;
        life.report("exited", json!({"exit_code": 0})).await;
        assert_eq!(user.until(&bot, "completed").await["reason"], "stopped");
    }
}

/// A pool whose agents wait until the test lets them begin.
fn held_pool(folder: &std::path::Path) -> String {
    let held = folder.join("held").display().to_string();
    let script = format!(
        "while [ -e {held} ]; do sleep 0.02; done; exec {} agent -- sh -c '{}'",
        env!("CARGO_BIN_EXE_greenroom"),
        BOT.trim().replace('\'', "'\\''")
    );
    let command = serde_json::to_string(&["sh", "-c", &script]).unwrap();
    format!(
        "{HEARTBEAT}\n[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 9\n\
         process = {{ command = {command} }}\n"
    )
}

async fn expect_left(user: &Client, bot: &str) {
    assert_eq!(user.until(bot, "completed").await["reason"], "stopped");
}

#[tokio::test]
async fn a_bot_that_is_stopped_during_its_start_leaves_on_postgres_and_redis() {
    let redis = PrivateRedis::start().await;
    let folder = tempfile::tempdir().unwrap();
    let replicas = Replicas::three(&redis, &held_pool(folder.path())).await;
    let user = replicas.admin.user(9).await;
    let hold = || std::fs::write(folder.path().join("held"), "").unwrap();
    let release = || std::fs::remove_file(folder.path().join("held")).unwrap();

    hold();
    let mut bots = Vec::new();
    for number in 0..3 {
        bots.push(user.bot(&meet_link(number)).await);
    }
    // Stops one bot perhaps before anything was started for it. The others are stopped when their process runs and has
    // no data yet.
    user.stop(&bots[0]).await;
    until("two are being started", async || {
        let agents = replicas.database.running().into_iter().filter(|process| process.is_agent);
        agents.count() >= 2
    })
    .await;
    user.stop(&bots[1]).await;
    user.on(&replicas.url(2)).stop(&bots[2]).await;
    release();
    for bot in &bots {
        expect_left(&user, bot).await;
    }
    until("nothing of the bots is left", async || replicas.database.running().is_empty()).await;
}

#[tokio::test]
async fn a_bot_that_is_stopped_while_redis_is_down_leaves_on_postgres() {
    let mut redis = PrivateRedis::start().await;
    let config = format!("{HEARTBEAT}{}", process_pool("meet", "max_slots = 9", BOT));
    let replicas = Replicas::three(&redis, &config).await;
    let user = replicas.admin.user(9).await;
    let before = replicas.active(&user, 0).await;
    redis.kill();
    let meanwhile = replicas.active(&user, 1).await;
    for bot in [&before, &meanwhile] {
        let id = bot["id"].as_str().unwrap();
        user.stop(id).await;
        expect_left(&user, id).await;
    }
    let across = replicas.active(&user, 2).await;
    redis.start_again().await;
    let id = across["id"].as_str().unwrap();
    user.stop(id).await;
    expect_left(&user, id).await;
    until("nothing of the bots is left", async || replicas.database.running().is_empty()).await;
}

#[tokio::test]
async fn a_server_stays_ready_without_redis_and_says_what_is_missing_on_postgres() {
    let mut redis = PrivateRedis::start().await;
    let replicas = Replicas::three(&redis, SILENT).await;
    let well = json!({"status": "ready", "store": "ok", "bus": "ok", "providers": {"meet": "ok"}, "missing": []});
    let until_each = async |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        for number in 0..replicas.len() {
            until(what, async || is_so(&replicas.admin_at(number).get("/readyz").await)).await;
        }
    };
    until_each("it is well", &|ready| *ready == well).await;
    redis.kill();
    until_each("it says that the bus is missing", &|ready| {
        let says = ready["bus"] == "away";
        let rest = ready["status"] == "ready" && ready["store"] == "ok" && ready["providers"] == well["providers"];
        assert!(rest, "{ready}");
        says && ready["missing"] == json!(["bus"])
    })
    .await;
    redis.start_again().await;
    until_each("it is well again", &|ready| *ready == well).await;
}
