//! The only server on an SQLite file is killed again and again, while its gate is full and users request bots. After
//! each start the gate opens at once, and no acknowledged bot is lost.
//! `GREENROOM_KILLED_SECONDS=120` runs this for two minutes, with a kill every 8 seconds, and prints the figures.

use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Process, ServerFixture, meet_link, process_pool, until};

const BOT: &str = r#"
    echo '{"event": "joined"}'
    sleep 0.2
"#;
const SLOTS: usize = 6;
const GATE: usize = 2;
/// A few more than there are slots.
const BOTS: usize = 8;
const ROUNDS: usize = 2;
const EVERY: Duration = Duration::from_secs(8);
/// After a start. Without a release at the start, it would take as long as a lease.
const OPENS_WITHIN: Duration = Duration::from_secs(2);

fn slot(number: usize) -> String {
    format!("pool-meet-{number:03}")
}

/// Makes every start hang, or not: to open such a log waits for a reader.
fn make_hang(database: &Database, hangs: bool) {
    for number in 1..=SLOTS {
        let log = database.in_slot(&slot(number), "log");
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&log);
        if hangs {
            assert!(Command::new("mkfifo").arg(log).status().unwrap().success());
        }
    }
}

/// Repeats a request for a bot until there is an answer, through any kill.
async fn acknowledged(user: Client, number: usize) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let request = user.request(Method::POST, "/bots").header("Idempotency-Key", number.to_string());
        if let Ok(response) = request.json(&json!({"meeting_url": meet_link(number)})).send().await {
            assert!([StatusCode::CREATED, StatusCode::OK].contains(&response.status()), "{}", response.status());
            if let Ok(body) = response.json::<Value>().await {
                return body["bot"]["id"].as_str().unwrap().to_owned();
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timeout: the bot was never acknowledged");
}

async fn active(fixture: &ServerFixture) -> Value {
    fixture.admin.get("/admin/deployments").await["active"].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_opens_at_once_after_each_kill_9_and_nothing_acknowledged_is_lost() {
    let lasts = std::env::var("GREENROOM_KILLED_SECONDS").ok().map(|text| Duration::from_secs(text.parse().unwrap()));
    let pool = process_pool("meet", &format!("max_slots = {SLOTS}"), BOT);
    let mut fixture = ServerFixture::open(Backend::Sqlite, &format!("[deploy]\nmax_concurrent = {GATE}\n{pool}")).await;
    let address = fixture.server.url.strip_prefix("http://").unwrap().to_owned();
    let (begun, mut rounds, mut asked, mut all, mut opened) = (Instant::now(), 0, 0, Vec::new(), Vec::new());
    while lasts.map_or(rounds < ROUNDS, |lasts| begun.elapsed() < lasts) {
        rounds += 1;
        make_hang(&fixture.database, true);
        let mut requests = tokio::task::JoinSet::new();
        for number in asked..asked + BOTS {
            requests.spawn(acknowledged(fixture.user.clone(), number));
        }
        asked += BOTS;
        until("the gate is full", async || active(&fixture).await == json!(GATE)).await;
        let held = fixture.admin.get("/admin/deployments").await;
        fixture.server.kill().await;
        make_hang(&fixture.database, false);
        // Some bots are requested while no server runs.
        requests.spawn(acknowledged(fixture.user.clone(), asked));
        asked += 1;
        fixture.server = Process::start_at(&fixture.database, &address).await;
        let started = Instant::now();
        until("the deployments inside the gate at the kill have passed it again", async || {
            let gate = fixture.admin.get("/admin/deployments").await;
            let is_there =
                |entry: &Value| gate["entries"].as_array().unwrap().iter().any(|now| now["bot_id"] == entry["bot_id"]);
            !held["entries"].as_array().unwrap().iter().filter(|entry| entry["state"] == "active").any(is_there)
        })
        .await;
        opened.push(started.elapsed());
        let bots = requests.join_all().await;
        for bot in &bots {
            assert_eq!(fixture.user.until(bot, "completed").await["reason"], "finished");
        }
        all.extend(bots);
        fixture.until_slots(SLOTS, 0).await;
        if lasts.is_some() {
            tokio::time::sleep((EVERY * rounds as u32).saturating_sub(begun.elapsed())).await;
        }
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), asked, "every request made one bot");
    let longest = opened.iter().max().unwrap();
    println!("{rounds} kills, {asked} bots, the gate was open again after {opened:?}; the longest {longest:?}");
    assert!(*longest < OPENS_WITHIN, "{opened:?}");
}
