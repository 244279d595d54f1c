//! The full path of a bot over HTTP: key, idempotency, dedupe, limit, bot, slot, event; then its end and the slot's
//! release. Beside it, pgbench with the two bare statements of the simplest pool there is, on one table in the same
//! PostgreSQL. In alternating rounds, so that whatever else the machine does meets both. Every answer is checked: no
//! slot is given to two bots, and nothing is lost.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::{Attributes, BotId, ConnectionId, Platform, SlotStatus, UserId};
use serde::Deserialize;
use tokio::process::Command;
use uuid::Uuid;

use super::Done;
use super::client::{Answer, Client};
use super::figures::median;
use super::house::{Database, House, Nothing, providers};
use crate::config::pool::{PoolConfig, Standby};
use crate::config::provider::{ProcessConfig, ProviderConfig};
use crate::lifecycle::tokens::Claim;
use crate::store::Kind;

const POOL: &str = "bench";

/// The statements of a bare pool: take the least recently used idle slot, give it back.
const ACQUIRE_AND_RELEASE: &str = "\
\\set bot random(1, 2000000000)
\\set id 0
UPDATE bot_pool_slots SET status = 'busy', assigned_bot_id = :bot, last_used_at = NOW() WHERE id = (\
SELECT id FROM bot_pool_slots WHERE status = 'idle' ORDER BY last_used_at ASC NULLS FIRST LIMIT 1 \
FOR UPDATE SKIP LOCKED) RETURNING id \\aset
UPDATE bot_pool_slots SET status = 'idle', assigned_bot_id = NULL WHERE id = :id;
";

#[derive(Clone, Debug)]
pub struct Options {
    /// A database of a PostgreSQL on which another may be made.
    pub database: String,
    pub pgbench: String,
    pub clients: Vec<usize>,
    pub slots: Vec<i64>,
    pub rounds: usize,
    pub time: Duration,
}

#[derive(Deserialize)]
struct Status {
    status: String,
}

/// Which slots have a bot now, and what went wrong.
#[derive(Debug, Default)]
struct Book {
    taken: Mutex<BTreeMap<String, Uuid>>,
    doubles: AtomicU64,
    meetings: AtomicU64,
}

impl Book {
    fn take(&self, slot: &str, bot: Uuid) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.insert(slot.to_owned(), bot).is_some() {
            self.doubles.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn give_back(&self, slot: &str) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(slot);
    }

    /// A meeting that nobody is at.
    fn meeting(&self) -> String {
        let mut number = self.meetings.fetch_add(1, Ordering::Relaxed);
        let mut letters = [b'a'; 10];
        for letter in letters.iter_mut().rev() {
            *letter = b'a' + u8::try_from(number % 26).unwrap_or(0);
            number /= 26;
        }
        let letters: String = letters.map(char::from).iter().collect();
        format!("{}-{}-{}", &letters[..3], &letters[3..7], &letters[7..])
    }
}

pub async fn run(options: &Options) -> Done {
    println!("bots placed and released in a second, beside acquire and release by pgbench; medians of rounds");
    println!("{:>8} {:>8} {:>12} {:>12} {:>8}", "slots", "clients", "greenroom", "pgbench", "ratio");
    for slots in &options.slots {
        let database = Database::make(Some(&options.database)).await?;
        let measured = on(&database, options, *slots).await;
        database.remove().await?;
        measured?;
    }
    Ok(())
}

async fn on(database: &Database, options: &Options, slots: i64) -> Done {
    let pool = PoolConfig {
        name: POOL.to_owned(),
        platform: Platform::GoogleMeet,
        provider: ProviderConfig::Process(ProcessConfig::default()),
        max_slots: u32::try_from(slots)?,
        min_idle: 0,
        standby: Standby::Running,
        recycle_after: 0,
        attributes: Default::default(),
        expire_after: None,
    };
    let house = Arc::new(House::start(database, vec![pool], Some(providers(POOL, Nothing))).await?);
    house.furnish(POOL, slots, &[Attributes::default()]).await?;
    database
        .execute(format!(
            "CREATE TABLE bot_pool_slots (id SERIAL PRIMARY KEY, status VARCHAR(50) NOT NULL DEFAULT 'idle',
                                          assigned_bot_id INTEGER, last_used_at TIMESTAMP);
             CREATE INDEX idx_bot_pool_slots_status ON bot_pool_slots (status);
             INSERT INTO bot_pool_slots (status) SELECT 'idle' FROM generate_series(1, {slots});
             ANALYZE bot_pool_slots; ANALYZE slots"
        ))
        .await?;
    let script = std::env::temp_dir().join(format!("greenroom-bench-{}.sql", Uuid::new_v4().simple()));
    std::fs::write(&script, ACQUIRE_AND_RELEASE)?;
    let book = Arc::new(Book::default());
    for clients in &options.clients {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        // The first round warms both up.
        for round in 0..=options.rounds {
            let placed = placed(&house, &book, *clients, options.time).await?;
            let acquired = pgbench(options, database, &script, *clients).await?;
            if round > 0 {
                ours.push(placed);
                theirs.push(acquired);
            }
        }
        let (ours, theirs) = (median(&ours), median(&theirs));
        println!("{slots:>8} {clients:>8} {ours:>12.0} {theirs:>12.0} {:>8.2}", ours / theirs);
    }
    let _ = std::fs::remove_file(script);
    let house = Arc::into_inner(house).ok_or("a client still runs")?;
    check(&house, &book, slots).await?;
    house.stop().await
}

/// Places and releases bots for a while, and says how many in a second.
async fn placed(house: &Arc<House>, book: &Arc<Book>, clients: usize, time: Duration) -> Done<f64> {
    let begun = Instant::now();
    let mut running = Vec::new();
    for _ in 0..clients {
        // Each has a user of its own, so that limits are counted and keys are looked up.
        let (user, key) = house.user(5).await?;
        running.push((user, key));
    }
    let begun = begun.max(Instant::now());
    let tasks: Vec<_> = running
        .into_iter()
        .map(|(user, key)| {
            let (house, book) = (house.clone(), book.clone());
            tokio::spawn(async move { one_client(&house, &book, user, &key, begun + time).await })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

async fn one_client(house: &House, book: &Book, user: UserId, key: &str, until: Instant) -> Done<u64> {
    let mut events = house.app.lifecycle.feed.listen_to_user(user);
    let mut client = Client::connect(house.address).await?;
    let mut count = 0;
    while Instant::now() < until {
        let meeting = book.meeting();
        let body = format!("{{\"meeting_url\": \"https://meet.google.com/{meeting}\"}}");
        let Answer { mut bot } = client.send("POST /bots", key, Some(&meeting), &body, 201).await?;
        if bot.slot.is_none() {
            // It waits in line, and hears of its slot like any other listener.
            loop {
                let event = events.live.recv().await?;
                if event.bot_id.0 == bot.id && event.kind == Kind::Assigned {
                    break;
                }
            }
            let call = format!("GET /bots/{}", bot.id);
            bot = client.send::<Answer>(&call, key, None, "", 200).await?.bot;
        }
        let (slot, connection) = bot.slot.zip(bot.connection_id).ok_or("a slot without a connection")?;
        book.take(&slot, bot.id);
        let claim = Claim { bot: BotId(bot.id), connection: ConnectionId(connection) };
        let token = house.app.lifecycle.tokens.make(claim);
        let body = format!("{{\"connection_id\": \"{connection}\", \"exit_code\": 0}}");
        // Before the call: from its commit on, another may have the slot.
        book.give_back(&slot);
        let Status { status } = client.send("POST /callback/exited", &token, None, &body, 200).await?;
        if status != "completed" {
            return Err(format!("a bot ended {status}").into());
        }
        count += 1;
    }
    Ok(count)
}

/// Nothing was given twice, nothing is lost.
async fn check(house: &House, book: &Book, slots: i64) -> Done {
    let doubles = book.doubles.load(Ordering::Relaxed);
    let idle = house.app.store.slots(Some(POOL), Some(SlotStatus::Idle)).await?.len();
    let open = house.app.store.open_bots_by_status().await?;
    if doubles > 0 || i64::try_from(idle)? != slots || !open.is_empty() {
        return Err(format!("{doubles} doubles, {idle} of {slots} slots idle, bots left: {open:?}").into());
    }
    Ok(())
}

/// Transactions in a second, as pgbench says.
async fn pgbench(options: &Options, database: &Database, script: &std::path::Path, clients: usize) -> Done<f64> {
    let output = Command::new(&options.pgbench)
        .args(["--no-vacuum", "--protocol", "prepared", "--jobs", "2"])
        .args(["--client", &clients.to_string(), "--time", &options.time.as_secs().to_string(), "--file"])
        .arg(script)
        .arg(&database.url)
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| format!("{} cannot be run: {error}", options.pgbench))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figure = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    figure.ok_or_else(|| format!("pgbench failed: {}", String::from_utf8_lossy(&output.stderr)).into())
}
