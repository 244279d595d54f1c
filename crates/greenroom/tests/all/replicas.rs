//! Three servers on one PostgreSQL and one Redis. Every call may go to any of them, one of them leads, and a dead or
//! suspended one does no harm.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{
    Backend, Database, Life, PrivateRedis, Replicas, Running, Watch, found, meet_link, process_pool, until,
};

/// Stays until it gets the command to leave, or for the time in its configuration.
const BOT: &str = r#"
    life=${BOT_DATA#*\"life\":\"}; life=${life%%\"*}
    echo '{"event": "joined"}'
    case $life in stays) read leave; exit 0;; esac
    sleep $life
"#;
const KEEPERS: [&str; 9] =
    ["deployment", "invariants", "queue_expiry", "recovery", "retention", "stats", "sweeper", "sync", "warm_buffer"];
/// The limit for "within seconds".
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(15);

/// The length of a lease plus the interval of its renewals.
const HELD_AFTER_DEATH: Duration = Duration::from_secs(5);

/// A variable in the environment of a slot's process.
fn variable(process: &Running, name: &str) -> String {
    let environment = std::fs::read_to_string(format!("/proc/{}/environ", process.pid)).unwrap();
    let value = environment.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
    value.unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bot_its_user_and_its_agent_may_use_three_different_replicas_on_postgres_and_redis() {
    let redis = PrivateRedis::start().await;
    // The process in the slot does nothing: the test plays the agent and the bot.
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
                min_idle = 1\nstandby = \"running\"\nrecycle_after = 0\nprocess = { command = [\"sleep\", \"1000\"] }\n";
    let replicas = Replicas::three(&redis, pool).await;
    let user = replicas.admin.user(1).await;
    let process = found("the slot is started", async || replicas.database.agent("pool-meet-001")).await;
    let mut token = variable(&process, "GREENROOM_SLOT_TOKEN");
    for round in 0..3 {
        let [speaks, commands, waits] = [0, 1, 2].map(|offset| replicas.url((round + offset) % 3));
        // The agent waits at one replica, and the user requests the bot at another.
        let waiting = {
            let agent = replicas.admin.with(&token).on(&waits);
            let request = agent.request(Method::GET, "/agent/assignment?wait_ms=60000");
            tokio::spawn(async move {
                let answer = request.send().await.unwrap();
                let next = answer.headers().get("greenroom-slot-token").map(|next| next.to_str().unwrap().to_owned());
                (answer.status(), next, answer.json::<Value>().await.unwrap())
            })
        };
        until("the slot is hot", async || {
            replicas.admin.get("/admin/slots/pool-meet-001").await["slot"]["status"] == "idle"
        })
        .await;
        let bot = user.on(&commands).bot(&meet_link(round)).await;
        let (status, next, data) = waiting.await.unwrap();
        assert_eq!((status, &data["bot_id"]), (StatusCode::OK, &json!(bot)), "{data}");
        // For the next bot, the agent waits with the next token.
        token = next.unwrap();
        // The bot sends its callbacks to the first replica, and waits for its command at the third.
        let life = Life::from_data(&replicas.admin, &data).on(&speaks);
        life.report("started", json!({})).await;
        life.report("joined", json!({})).await;
        let path = format!("/callback/commands?connection_id={}&wait_ms=60000", life.connection_id);
        let waiting = {
            let client = life.client.on(&waits);
            tokio::spawn(async move { client.get(&path).await })
        };
        assert_eq!(user.on(&waits).show_bot(&bot).await["status"], "active");
        user.on(&commands).stop(&bot).await;
        let answer = waiting.await.unwrap();
        assert_eq!(answer["commands"][0]["action"], "leave", "{answer}");
        let heard = life.report("heartbeat", json!({"acked": [answer["commands"][0]["id"]]})).await;
        assert_eq!((&heard["status"], &heard["commands"]), (&json!("stopping"), &json!([])));
        life.report("exited", json!({"exit_code": 0})).await;
        assert_eq!(user.on(&waits).until(&bot, "completed").await["reason"], "stopped");
    }
}

fn pools() -> String {
    let hot = "max_slots = 3\nmin_idle = 2\nstandby = \"running\"\nrecycle_after = 2";
    [process_pool("hot", hot, BOT), process_pool("meet", "max_slots = 4", BOT)].concat()
}

/// The leader, if all of these replicas name the same one for every keeper.
async fn leader(replicas: &Replicas, of: &[usize]) -> Option<String> {
    let mut leaders = HashSet::new();
    for number in of {
        let keepers = replicas.admin_at(*number).get("/admin/keepers").await;
        let keepers = keepers["keepers"].as_array().unwrap();
        let names: HashSet<&str> = keepers.iter().map(|keeper| keeper["name"].as_str().unwrap()).collect();
        assert!(KEEPERS.iter().all(|name| names.contains(name)), "{names:?}");
        leaders.extend(keepers.iter().map(|keeper| keeper["leader"].as_str().map(str::to_owned)));
    }
    let mut leaders = leaders.into_iter();
    leaders.next().flatten().filter(|_| leaders.next().is_none())
}

/// When the sweeper ran last.
async fn last_run(replicas: &Replicas) -> Option<jiff::Timestamp> {
    let keepers = replicas.admin.get("/admin/keepers").await;
    let sweeper = keepers["keepers"].as_array().unwrap().iter().find(|keeper| keeper["name"] == "sweeper").cloned();
    sweeper.unwrap()["last_run"].as_str().map(|time| time.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_replica_leads_within_seconds_after_the_leader_was_killed_on_postgres_and_redis() {
    let redis = PrivateRedis::start().await;
    let mut replicas = Replicas::three(&redis, &format!("[sweeper]\ninterval = \"1s\"\n{}", pools())).await;
    let mut living: Vec<usize> = vec![0, 1, 2];
    for _ in 0..2 {
        let leads = found("all replicas name the leader", async || leader(&replicas, &living).await).await;
        let dead = replicas.named(&leads);
        assert!(living.contains(&dead), "{leads} was killed before");
        replicas.kill(dead).await;
        let killed = (Instant::now(), jiff::Timestamp::now());
        living.retain(|number| *number != dead);
        let next =
            found("another leads", async || leader(&replicas, &living).await.filter(|name| *name != leads)).await;
        until("its keepers run", async || last_run(&replicas).await.is_some_and(|time| time > killed.1)).await;
        assert!(killed.0.elapsed() < TAKEN_OVER_WITHIN, "{next} took over from {leads} after {:?}", killed.0.elapsed());
    }
    // A replica that restarts finds the leader, and changes nothing.
    let leads = leader(&replicas, &living).await.unwrap();
    let back = (0..3).find(|number| !living.contains(number)).unwrap();
    assert!(replicas.try_start(back).await);
    living.push(back);
    let all = found("all replicas agree", async || leader(&replicas, &living).await).await;
    assert_eq!(all, leads);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_suspended_for_ten_seconds_does_no_harm_on_postgres_and_redis() {
    let redis = PrivateRedis::start().await;
    let config = format!(
        "[heartbeat]\ninterval = \"1s\"\n[sweeper]\ninterval = \"1s\"\n[recovery]\ninterval = \"2s\"\n{}",
        pools()
    );
    let replicas = Replicas::three(&redis, &config).await;
    let user = replicas.admin.user(100).await;
    let ask = async |number: usize, life: &str| {
        user.ask(json!({"meeting_url": meet_link(number), "config": {"life": life}})).await["id"].take()
    };
    let mut staying = Vec::new();
    for number in 0..3 {
        let bot = ask(number, "stays").await;
        staying.push(user.until(bot.as_str().unwrap(), "active").await);
    }
    let watch = Watch::begin(&replicas.database, 4, &user);
    let leads = found("all replicas name the leader", async || leader(&replicas, &[0, 1, 2]).await).await;
    let frozen = replicas.named(&leads);
    replicas.freeze(frozen);
    let begun = Instant::now();
    let mut passing = Vec::new();
    while begun.elapsed() < Duration::from_secs(10) {
        passing.push(ask(3 + passing.len(), "0.3").await);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let others: Vec<usize> = (0..3).filter(|number| *number != frozen).collect();
    let next = found("another leads", async || leader(&replicas, &others).await).await;
    assert_ne!(next, leads);
    replicas.thaw(frozen);

    found("all replicas name the leader", async || leader(&replicas, &[0, 1, 2]).await).await;
    for bot in &passing {
        assert_eq!(user.until(bot.as_str().unwrap(), "completed").await["reason"], "finished");
    }
    for bot in &staying {
        let now = user.show_bot(bot["id"].as_str().unwrap()).await;
        assert_eq!((&now["status"], &now["connection_id"]), (&json!("active"), &bot["connection_id"]), "{now}");
        user.stop(bot["id"].as_str().unwrap()).await;
        assert_eq!(user.until(bot["id"].as_str().unwrap(), "completed").await["reason"], "stopped");
    }
    until("every slot is idle, with only a waiting agent in it", async || {
        let slots = replicas.admin.get("/admin/slots").await;
        let idle = |slot: &Value| slot["status"] == "idle";
        let left = replicas.database.running();
        slots["slots"].as_array().unwrap().iter().all(idle) && left.iter().all(|process| process.is_agent)
    })
    .await;
    assert_eq!(watch.end().await.broken, [] as [String; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_suspended_while_it_clears_a_slot_does_not_end_the_next_bot_on_postgres_and_redis() {
    let redis = PrivateRedis::start().await;
    // Notes a SIGTERM and keeps running. The test sends its callbacks.
    let script = "trap 'touch asked' TERM; while :; do sleep 0.02; done";
    let command = serde_json::to_string(&["sh", "-c", script]).unwrap();
    let pool = format!(
        "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
         process = {{ command = {command} }}\n"
    );
    let replicas = Replicas::three(&redis, &pool).await;
    let user = replicas.admin.user(2).await;
    let (slot, clears) = ("pool-meet-001", 0);
    let begins = async |bot: &str, at: usize| {
        let process = found("it runs in the slot", async || {
            let process = replicas.database.agent(slot)?;
            let data = std::fs::read_to_string(format!("/proc/{}/environ", process.pid)).ok()?;
            data.contains(bot).then_some(process)
        })
        .await;
        let data = serde_json::from_str(&variable(&process, "BOT_DATA")).unwrap();
        let life = Life::from_data(&replicas.admin, &data).on(&replicas.url(at));
        life.report("started", json!({})).await;
        life.report("joined", json!({})).await;
        (process, life)
    };
    let first = user.bot(&meet_link(0)).await;
    let (_, life) = begins(&first, clears).await;
    life.report("exited", json!({"exit_code": 0})).await;
    until("the process got SIGTERM", async || replicas.database.in_slot(slot, "work/asked").exists()).await;
    replicas.freeze(clears);
    // Its lock expires, another replica clears the slot, and the next bot gets it.
    let next = user.bot(&meet_link(1)).await;
    let (process, life) = begins(&next, 1).await;
    replicas.thaw(clears);
    let thawed = Instant::now();
    while thawed.elapsed() < Duration::from_secs(2) {
        replicas.admin_at(clears).get("/readyz").await;
        let running = replicas.database.running();
        assert!(running.iter().any(|running| running.pid == process.pid), "the next bot was ended");
    }
    life.report("exited", json!({"exit_code": 0})).await;
    assert_eq!(user.until(&next, "completed").await["reason"], "finished");
}

/// The leases, and which replica holds each.
async fn holders(replicas: &Replicas) -> Vec<(String, String)> {
    let held = "SELECT deployments.slot, replicas.name FROM deployments
                  JOIN replicas ON replicas.id = deployments.replica WHERE deployments.state = 'active'";
    replicas.database.reader().await.pairs(held).await
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_dead_replica_are_taken_over_within_five_seconds_on_postgres_and_redis() {
    let redis = PrivateRedis::start().await;
    let database = Database::new(Backend::Postgres).await;
    let config = format!("[deploy]\nmax_concurrent = 1\n{}", process_pool("meet", "max_slots = 2", BOT));
    let mut replicas = Replicas::new(database, &redis, &config).await;
    for _ in 0..2 {
        replicas.add().await;
    }
    let user = replicas.admin.user(10).await;
    // The start of the first slot hangs: to open this log waits for a reader.
    let log = replicas.database.in_slot("pool-meet-001", "log");
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&log).status().unwrap().success());
    let ask = async |number| {
        user.ask(json!({"meeting_url": meet_link(number), "config": {"life": "0.1"}})).await["id"].take()
    };
    let first = ask(0).await;
    let holder = found("a replica is starting it", async || holders(&replicas).await.pop()).await;
    let next = ask(1).await;
    let dead = replicas.named(&holder.1);
    replicas.kill(dead).await;
    let killed = Instant::now();
    std::fs::remove_file(&log).unwrap();
    let user = user.on(&replicas.url(1 - dead));
    until("another replica has it, or has finished it", async || !holders(&replicas).await.contains(&holder)).await;
    let taken_over = killed.elapsed();
    println!("what a dead replica held was taken over after {taken_over:?}");
    assert!(taken_over < HELD_AFTER_DEATH, "{taken_over:?}");
    for bot in [first, next] {
        assert_eq!(user.until(bot.as_str().unwrap(), "completed").await["reason"], "finished");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_stop_of_a_replica_releases_its_leases_at_once_on_postgres_and_redis() {
    let redis = PrivateRedis::start().await;
    let database = Database::new(Backend::Postgres).await;
    let mut replicas = Replicas::new(database, &redis, &process_pool("meet", "max_slots = 1", BOT)).await;
    for _ in 0..2 {
        replicas.add().await;
    }
    let known = async || {
        let all = replicas.database.reader().await.pairs("SELECT name, name FROM replicas").await;
        all.into_iter().map(|(name, _)| replicas.named(&name)).collect::<HashSet<_>>()
    };
    until("both are known", async || known().await == HashSet::from([0, 1])).await;
    replicas.terminate(0).await;
    until("only one is left", async || known().await == HashSet::from([1])).await;
}
