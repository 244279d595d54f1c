//! A thousand bots send callbacks. The server is killed meanwhile and restarted. Everything that was acknowledged still
//! exists, and every bot reaches its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::support::{Backend, Client, Database, Life, Process, meet_link};

const BOTS: usize = 1_000;
const AT_ONCE: usize = 32;
/// The server is killed after this many of about eight thousand acknowledgements.
const KILLED_AFTER: usize = 3_500;

/// The callbacks of a bot, and its status after each.
const STEPS: [(&str, &str); 5] = [
    ("started", "starting"),
    ("status", "awaiting_admission"),
    ("joined", "active"),
    ("transcript", "active"),
    ("exited", "completed"),
];

fn callback_body(callback: &str, number: usize) -> Value {
    match callback {
        "status" => json!({"status": "awaiting_admission"}),
        "transcript" => json!({"segments": [
            {"start_time": 0, "end_time": 1, "text": format!("Bot {number} speaks.")},
            {"start_time": 1, "end_time": 2, "text": "Goodbye."},
        ]}),
        "exited" => json!({"exit_code": 0}),
        _ => json!({}),
    }
}

/// One bot, and what it knows about itself.
#[derive(Clone, Debug, Default)]
struct Known {
    id: Option<String>,
    life: Option<Life>,
    /// How many steps were acknowledged.
    steps: usize,
}

#[derive(Clone)]
struct World {
    admin: Client,
    user: Client,
    known: Arc<Mutex<HashMap<usize, Known>>>,
    acknowledged: Arc<AtomicUsize>,
}

impl World {
    /// Sends callbacks until the bot has ended, or until the server no longer answers.
    async fn live(self, number: usize) -> Result<(), reqwest::Error> {
        let mut known = self.known.lock().await.get(&number).cloned().unwrap_or_default();
        if known.id.is_none() {
            let request =
                self.user.request(reqwest::Method::POST, "/bots").header("Idempotency-Key", number.to_string());
            let response = request.json(&json!({"meeting_url": meet_link(number)})).send().await?;
            let status = response.status();
            let body: Value = response.json().await?;
            assert!(status == StatusCode::CREATED || status == StatusCode::OK, "{body}");
            known.id = Some(body["bot"]["id"].as_str().unwrap().to_owned());
            self.note(number, &known).await;
        }
        if known.life.is_none() {
            let path = format!("/admin/bots/{}/assignment", known.id.as_ref().unwrap());
            let (status, data) = self.admin.try_send(reqwest::Method::POST, &path, None).await?;
            assert_eq!(status, StatusCode::CREATED, "{data}");
            known.life = Some(Life::from_data(&self.admin, &data));
            self.note(number, &known).await;
        }
        let life = known.life.clone().unwrap();
        for (callback, expected) in &STEPS[known.steps..] {
            let (status, answer) = life.try_say(callback, callback_body(callback, number)).await?;
            assert_eq!(status, StatusCode::OK, "{callback}: {answer}");
            if *callback != "transcript" {
                assert_eq!(answer["status"], *expected);
            }
            known.steps += 1;
            self.note(number, &known).await;
        }
        Ok(())
    }

    async fn note(&self, number: usize, known: &Known) {
        self.known.lock().await.insert(number, known.clone());
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    /// Runs all bots, with a limited number at once. Returns how many reached their end.
    async fn all(&self) -> usize {
        let mut lives = tokio::task::JoinSet::<Result<(), reqwest::Error>>::new();
        let mut ended = 0;
        for number in 0..BOTS {
            if lives.len() == AT_ONCE {
                ended += usize::from(lives.join_next().await.unwrap().unwrap().is_ok());
            }
            lives.spawn(self.clone().live(number));
        }
        ended + lives.join_all().await.into_iter().filter(Result::is_ok).count()
    }

    fn on(&self, url: &str) -> Self {
        Self { admin: self.admin.on(url), user: self.user.on(url), ..self.clone() }
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_bots_continue_after_kill_9_and_nothing_acknowledged_is_lost(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let admin = server.admin();
    let world =
        World { user: admin.user(BOTS as i64).await, admin, known: Arc::default(), acknowledged: Arc::default() };
    let lives = tokio::spawn({
        let world = world.clone();
        async move { world.all().await }
    });
    while world.acknowledged.load(Ordering::SeqCst) < KILLED_AFTER {
        tokio::task::yield_now().await;
    }
    server.kill().await;
    let ended = lives.await.unwrap();
    assert!(ended < BOTS, "the server was killed meanwhile");

    let server = Process::start(&database).await;
    let world = world.on(&server.url);
    for known in world.known.lock().await.values_mut() {
        known.life = known.life.take().map(|life| life.on(&server.url));
        let id = known.id.as_ref().unwrap();
        let bot = world.user.get(&format!("/bots/{id}")).await["bot"].take();
        let status = bot["status"].as_str().unwrap();
        // The acknowledged step, or one more: a step may have been committed without its answer arriving.
        let status_after = |steps: usize| if steps == 0 { "deploying" } else { STEPS[steps - 1].1 };
        let possible = [status_after(known.steps), status_after((known.steps + 1).min(STEPS.len()))];
        assert!(possible.contains(&status), "{status} after {} steps", known.steps);
        if known.life.is_some() {
            assert!(bot["connection_id"].is_string());
        }
        if known.steps >= 4 {
            let transcript = world.user.get(&format!("/bots/{id}/transcript")).await;
            assert_eq!(transcript["segments"].as_array().unwrap().len(), 2);
        }
    }

    assert_eq!(world.all().await, BOTS);
    let usage = world.user.get("/bots/status").await;
    assert_eq!((&usage["running"], &usage["by_status"]["completed"]), (&json!(0), &json!(BOTS)));
    let ids: std::collections::HashSet<_> =
        world.known.lock().await.values().map(|known| known.id.clone().unwrap()).collect();
    assert_eq!(ids.len(), BOTS, "no request made two bots");
    for id in ids.iter().take(50) {
        let events = world.user.get(&format!("/bots/{id}/events")).await["events"].take();
        let moves: Vec<_> = events
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["kind"] == "status_changed")
            .map(|event| event["to"].as_str().unwrap())
            .collect();
        assert_eq!(
            moves,
            ["starting", "awaiting_admission", "active", "completed"],
            "there is one event for each change"
        );
    }
}
