//! Checks the rules again and again while a test runs, in the store (a PostgreSQL) and at the provider. It also
//! measures how long no replica answers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use domain::{BotId, SlotName};
use greenroom::store::{EventRow, Kind};
use reqwest::Method;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Client, Database};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A shorter pause is normal on a busy machine and does not count as a gap.
const GAP: Duration = Duration::from_millis(250);

/// Every broken rule that one statement can find, as a text.
const BROKEN: &str = "
    SELECT 'a user runs ' || count(*) || ' bots of ' || users.max_concurrent_bots
      FROM users JOIN bots ON bots.user_id = users.id
     WHERE bots.status NOT IN ('completed', 'failed', 'stopping')
     GROUP BY users.id, users.max_concurrent_bots HAVING count(*) > users.max_concurrent_bots
    UNION ALL
    SELECT pools.name || ' has ' || count(*) || ' slots of ' || pools.max_slots
      FROM pools JOIN slots ON slots.pool = pools.name
     GROUP BY pools.name, pools.max_slots HAVING count(*) > pools.max_slots
    UNION ALL
    SELECT slot || ' has the bots ' || string_agg(CAST(id AS TEXT), ' and ')
      FROM bots WHERE slot IS NOT NULL AND status NOT IN ('completed', 'failed')
     GROUP BY slot HAVING count(*) > 1
    UNION ALL
    SELECT count(*) || ' are behind the gate of ' || $1 || ' of ' || host
      FROM deployments WHERE state = 'active' GROUP BY host HAVING count(*) > $1";

#[derive(Debug)]
pub struct Watch {
    /// Stops the watch also when the test fails.
    over: DropGuard,
    store: JoinHandle<(usize, Vec<String>)>,
    provider: JoinHandle<(usize, Vec<String>)>,
    answers: JoinHandle<(Duration, Duration)>,
}

#[derive(Debug)]
pub struct Seen {
    pub broken: Vec<String>,
    checks: [usize; 2],
    /// The sum of all gaps, and the longest gap.
    unanswered: (Duration, Duration),
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, longest) = (self.unanswered.0.as_secs_f64(), self.unanswered.1.as_secs_f64());
        let [store, provider] = self.checks;
        write!(
            f,
            "  without an answer for {all:.1} s in all, the longest time {longest:.1} s\n  looked {store} times at the \
             store and {provider} times at the provider"
        )
    }
}

impl Watch {
    pub fn begin(database: &Database, gate: i64, user: &Client) -> Self {
        let over = CancellationToken::new();
        let slots = database.folder.path().to_owned();
        Self {
            store: tokio::spawn(watch_store(database.url.clone(), gate, over.clone())),
            provider: tokio::task::spawn_blocking({
                let over = over.clone();
                move || watch_provider(&slots, &over)
            }),
            answers: tokio::spawn(ask(user.clone(), over.clone())),
            over: over.drop_guard(),
        }
    }

    pub async fn end(self) -> Seen {
        drop(self.over);
        let (at_store, mut broken) = self.store.await.unwrap();
        let (at_provider, more) = self.provider.await.unwrap();
        broken.extend(more);
        Seen { broken, checks: [at_store, at_provider], unanswered: self.answers.await.unwrap() }
    }
}

async fn watch_store(url: String, gate: i64, over: CancellationToken) -> (usize, Vec<String>) {
    let (mut checks, mut broken) = (0, Vec::new());
    let mut reader = None;
    while !over.is_cancelled() {
        tokio::time::sleep(POLL_INTERVAL).await;
        // The database is not available all the time.
        let Some(connection) = &mut reader else {
            reader = PgConnection::connect(&url).await.ok();
            continue;
        };
        match sqlx::query_as::<_, (String,)>(BROKEN).bind(gate).fetch_all(connection).await {
            Ok(found) => {
                checks += 1;
                broken.extend(found.into_iter().map(|(message,)| message));
            }
            Err(sqlx::Error::Database(error)) if error.code().is_none_or(|code| !code.starts_with("57")) => {
                panic!("{error}");
            }
            Err(_) => reader = None,
        }
    }
    broken.dedup();
    (checks, broken)
}

/// Checks that no slot has the processes of two bots.
fn watch_provider(folder: &std::path::Path, over: &CancellationToken) -> (usize, Vec<String>) {
    let (mut checks, mut broken) = (0, Vec::new());
    while !over.is_cancelled() {
        std::thread::sleep(POLL_INTERVAL);
        let mut in_slot: HashMap<String, Vec<Process>> = HashMap::new();
        for process in std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| Process::read(entry.path())) {
            if process.home.starts_with(folder) {
                in_slot.entry(process.slot.clone()).or_default().push(process);
            }
        }
        checks += 1;
        for (slot, found) in in_slot {
            let Some(other) = found.iter().find(|one| one.bot != found[0].bot) else { continue };
            // The two processes were not read at the same moment. If the first still exists, it existed when the second
            // was read.
            if Process::read(found[0].path.clone()).is_some_and(|reread| reread.bot == found[0].bot) {
                broken.push(format!("{slot} runs the bots {} and {}", found[0].bot, other.bot));
            }
        }
    }
    broken.dedup();
    (checks, broken)
}

/// A process of a bot.
struct Process {
    path: PathBuf,
    home: PathBuf,
    slot: String,
    bot: String,
}

impl Process {
    fn read(path: PathBuf) -> Option<Self> {
        let environment = String::from_utf8(std::fs::read(path.join("environ")).ok()?).ok()?;
        let value = |name: &str| environment.split('\0').find_map(|entry| entry.strip_prefix(name));
        let data: serde_json::Value = serde_json::from_str(value("BOT_DATA=")?).ok()?;
        Some(Self {
            path,
            home: value("HOME=")?.into(),
            slot: value("GREENROOM_SLOT=")?.to_owned(),
            bot: data["bot_id"].as_str()?.to_owned(),
        })
    }
}

/// Sends requests that need the store. Returns the sum of all gaps between answers, and the longest gap.
async fn ask(user: Client, over: CancellationToken) -> (Duration, Duration) {
    let (mut all, mut longest, mut last) = (Duration::ZERO, Duration::ZERO, Instant::now());
    while !over.is_cancelled() {
        tokio::time::sleep(POLL_INTERVAL).await;
        let call = user.request(Method::GET, "/bots/status").timeout(ANSWER_WITHIN).send().await;
        if call.is_ok_and(|answer| answer.status().is_success()) {
            let gap = last.elapsed();
            last = Instant::now();
            longest = longest.max(gap);
            all += if gap > GAP { gap } else { Duration::ZERO };
        }
    }
    (all, longest)
}

/// Asserts that no slot is assigned to a second bot before its first bot has ended, and that each bot ends once.
pub fn expect_no_two_at_once(events: &[EventRow]) {
    let mut holder: HashMap<SlotName, BotId> = HashMap::new();
    let mut ended = HashSet::new();
    for event in events {
        match (event.kind, event.to) {
            (Kind::Assigned | Kind::Created, _) => {
                // A bot that was created without a slot waits.
                let Some(slot) = event.reason.clone().map(SlotName::stored) else { continue };
                let before = holder.insert(slot.clone(), event.bot_id);
                assert!(before.is_none_or(|bot| ended.contains(&bot)), "{slot} still had the bot {before:?}");
            }
            (Kind::StatusChanged, Some(to)) if to.is_ended() => {
                assert!(ended.insert(event.bot_id), "each bot ends once")
            }
            _ => {}
        }
    }
}
