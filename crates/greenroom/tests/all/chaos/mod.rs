//! Three replicas under load. One of them is killed every few seconds, and PostgreSQL and Redis are restarted. Every
//! acknowledged bot ends with a reason, no slot has two bots, no limit is exceeded, and nothing is left running.
//! `scripts/chaos` does this for longer, and prints the figures.
//! - `load`: users who request bots, and repeat a request without an answer
//! - `disasters`: kills, suspends and restarts the servers

mod disasters;
mod load;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use domain::EventId;
use greenroom::random::Random;
use sqlx::{Connection, PgConnection};
use tokio_util::sync::CancellationToken;

use crate::support::{
    Database, PrivatePostgres, PrivateRedis, Replicas, Watch, expect_no_two_at_once, process_pool, until,
};

/// The limit of each user.
const USERS: [i64; 5] = [2, 3, 4, 5, 6];
const REPLICAS: usize = 3;
const GATE: i64 = 4;
const SECONDS: u64 = 25;
/// Longer than the longest time in the queue, plus a start without a callback, plus the time after which the keepers
/// find a stuck slot.
const SETTLED_WITHIN: Duration = Duration::from_secs(150);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Deadlines that are short enough to end broken bots within the test.
const DEADLINES: &str = r#"
    [sweeper]
    interval = "1s"
    no_start = "10s"
    no_join = "15s"
    heartbeat_lost = "10s"
    stop_grace = "6s"
    [heartbeat]
    interval = "2s"
    [recovery]
    interval = "5s"
"#;

/// Stays until it gets the command to leave, or for the time in its configuration, and ends as the configuration says.
const BOT: &str = r#"
    life=${BOT_DATA#*\"life\":\"}; life=${life%%\"*}
    code=${BOT_DATA#*\"code\":\"}; code=${code%%\"*}
    echo '{"event": "joined"}'
    case $life in stays) read leave; exit 0;; esac
    sleep $life
    exit $code
"#;

/// A number below `sides`, from a sequence that the seed determines.
fn dice(random: &Random, sides: u64) -> u64 {
    u64::from_le_bytes(random.bytes().unwrap()) % sides
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

fn config() -> String {
    let hot = "max_slots = 3\nmin_idle = 1\nstandby = \"running\"\nrecycle_after = 3";
    let pools = [process_pool("hot", hot, BOT), process_pool("meet", "max_slots = 5", BOT)].concat();
    format!("[deploy]\nmax_concurrent = {GATE}\n{DEADLINES}\n{pools}")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bot_ends_with_a_reason_whatever_dies_among_replicas_postgres_and_redis() {
    let seed = setting("GREENROOM_CHAOS_SEED").unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    let lasts = Duration::from_secs(setting("GREENROOM_CHAOS_SECONDS").unwrap_or(SECONDS));
    println!("GREENROOM_CHAOS_SEED={seed}");
    let (postgres, redis) = (PrivatePostgres::start().await, PrivateRedis::start().await);
    let database = Database { url: postgres.url(), folder: tempfile::tempdir().unwrap() };
    let mut replicas = Replicas::new(database, &redis, &config()).await;
    replicas.logs = std::env::var_os("GREENROOM_CHAOS_LOGS").map(Into::into);
    for _ in 0..REPLICAS {
        replicas.add().await;
    }
    let mut users = Vec::new();
    for limit in USERS {
        users.push(replicas.admin.user(limit).await);
    }

    let over = CancellationToken::new();
    let watch = Watch::begin(&replicas.database, GATE, &users[0]);
    let load = load::begin(&users, seed, &over);
    let mut disasters = disasters::Disasters::new(replicas, postgres, redis, Random::seeded(seed));
    disasters.happen(lasts).await;
    over.cancel();
    let mut done = load::Done::default();
    for requests in load {
        done.add(requests.await.unwrap());
    }
    let quiet = Instant::now();
    settle(&disasters.replicas.database.url).await;
    let settled = quiet.elapsed();
    disasters.replicas.expect_alive();
    let seen = watch.end().await;

    let ends = expect_ends(&disasters.replicas.database.url, &done.acknowledged).await;
    expect_no_two_at_once(
        &disasters.replicas.database.open().await.events_after(EventId(0), 10_000_000).await.unwrap(),
    );
    expect_nothing_left(&disasters.replicas.database).await;
    println!("{done}\n{disasters}\n{seen}\n  settled {:.1} s after the last of it", settled.as_secs_f64());
    println!("  ends: {ends:?}");
    assert_eq!(seen.broken, [] as [String; 0]);
    assert_eq!(done.strange, [] as [String; 0]);
}

/// Waits until every bot has ended, the queue and the gate are empty, and every slot is free.
async fn settle(url: &str) {
    let mut reader = PgConnection::connect(url).await.unwrap();
    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        let open = "SELECT 'bot ' || id || ' is ' || status || ' in ' || coalesce(slot, 'no slot') FROM bots
                     WHERE status NOT IN ('completed', 'failed')
                    UNION ALL SELECT 'the deployment of ' || slot || ' is ' || state FROM deployments
                    UNION ALL SELECT 'in the queue is ' || bot_id FROM queue
                    UNION ALL SELECT name || ' is ' || status || ': ' || description FROM slots WHERE status <> 'idle'";
        let open: Vec<(String,)> = sqlx::query_as(open).fetch_all(&mut reader).await.unwrap();
        if open.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "still open: {open:#?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Asserts that exactly the acknowledged bots exist, and that each ended with a reason. Returns how many ended in which
/// way.
async fn expect_ends(url: &str, acknowledged: &HashMap<String, load::Wanted>) -> BTreeMap<String, usize> {
    let mut reader = PgConnection::connect(url).await.unwrap();
    let sql = "SELECT CAST(id AS TEXT), status, reason FROM bots";
    let bots: Vec<(String, String, Option<String>)> = sqlx::query_as(sql).fetch_all(&mut reader).await.unwrap();
    let mut ends = BTreeMap::new();
    for (id, status, reason) in &bots {
        let reason = reason.as_ref().unwrap_or_else(|| panic!("{id} is {status} without a reason"));
        let wanted =
            acknowledged.get(id).unwrap_or_else(|| panic!("{id} exists, but was not acknowledged to its user"));
        let is_own = match (status.as_str(), reason.as_str()) {
            ("completed", "finished") => wanted.code == 0,
            ("completed", "stopped") => wanted.leaves,
            ("failed", "crashed") => wanted.code != 0,
            // It waited too long, or its callbacks did not arrive for too long.
            ("failed", "queue_timeout" | "no_start" | "no_join" | "heartbeat_lost") => true,
            _ => false,
        };
        assert!(is_own, "{id} is {status}, {reason}, but should be {wanted:?}");
        *ends.entry(format!("{status}, {reason}")).or_default() += 1;
    }
    assert_eq!(bots.len(), acknowledged.len(), "some acknowledged bots do not exist");
    ends
}

/// Asserts that only agents still run, one waiting in each slot.
async fn expect_nothing_left(database: &Database) {
    let mut left = Vec::new();
    until("only agents that wait are left", async || {
        let mut waiting = HashSet::new();
        left = database.running();
        left.iter().all(|one| one.is_agent && one.slot.starts_with("pool-hot-") && waiting.insert(one.slot.clone()))
    })
    .await;
}
