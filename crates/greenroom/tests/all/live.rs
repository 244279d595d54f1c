//! `GET /admin/live`: what operators see, and how it follows what happens.

use std::io::Write;
use std::time::Duration;

use flate2::write::GzDecoder;
use futures_util::StreamExt;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, COOKIE, ORIGIN, SET_COOKIE};
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{ADMIN_TOKEN, Backend, Client, Database, Life, Process, meet_link};

/// A reader that keeps the state up to date, as the page does.
struct Viewer {
    body: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    /// For a compressed stream.
    decoder: Option<GzDecoder<Vec<u8>>>,
    buffer: String,
    snapshot: Value,
}

impl Viewer {
    async fn open(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let decoder = response.headers().get(CONTENT_ENCODING).map(|_| GzDecoder::new(Vec::new()));
        let body = response.bytes_stream().boxed();
        let mut viewer = Self { body, decoder, buffer: String::new(), snapshot: Value::Null };
        let (kind, snapshot) = viewer.message().await.expect("a first message");
        assert_eq!(kind, "snapshot");
        viewer.snapshot = snapshot;
        viewer
    }

    async fn connect(admin: &Client) -> Self {
        Self::open(admin.request(Method::GET, "/admin/live")).await
    }

    /// The next message. `None` at the end of the stream.
    async fn message(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let Some(kind) = field("event: ") else { continue };
                return Some((kind, serde_json::from_str(&field("data: ").unwrap()).unwrap()));
            }
            let read = tokio::time::timeout(Duration::from_secs(30), self.body.next()).await;
            match read.expect("a message within 30 s") {
                Some(Ok(bytes)) => self.push(&bytes),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// Takes what has arrived. Of a compressed stream everything must be readable at once.
    fn push(&mut self, bytes: &[u8]) {
        let read = match &mut self.decoder {
            Some(decoder) => {
                decoder.write_all(bytes).unwrap();
                decoder.flush().unwrap();
                std::mem::take(decoder.get_mut())
            }
            None => bytes.to_vec(),
        };
        self.buffer.push_str(std::str::from_utf8(&read).unwrap());
    }

    /// The next changes, until one has what is looked for.
    async fn until<T>(&mut self, mut find: impl FnMut(&Value) -> Option<T>) -> T {
        loop {
            let (kind, change) = self.message().await.expect("the stream continues");
            assert_eq!(kind, "change");
            if let Some(found) = find(&change) {
                return found;
            }
        }
    }

    /// Waits until a bot is shown with a status, and returns its entry.
    async fn until_bot(&mut self, bot: &str, status: &str) -> Value {
        let statuses = self.snapshot["bot_statuses"].as_array().unwrap().clone();
        let index = statuses.iter().position(|known| known == status).unwrap();
        self.until(|change| {
            let entry = entries(change, "bots").find(|entry| entry[0] == bot && entry[1] == index);
            entry.cloned()
        })
        .await
    }
}

fn entries<'a>(message: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    message[name].as_array().into_iter().flatten()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_reader_gets_a_snapshot_and_then_sees_the_life_of_a_bot(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(10).await);
    let mut viewer = Viewer::connect(&admin).await;
    let snapshot = viewer.snapshot.clone();
    assert_eq!(snapshot["pools"], json!([["google-meet", "google_meet"], ["teams", "teams"], ["zoom", "zoom"]]));
    assert_eq!((&snapshot["slots"], &snapshot["bots"]), (&json!([[], [], []]), &json!([])));
    assert_eq!(snapshot["slot_statuses"], json!(["creating", "idle", "busy", "error", "draining"]));
    assert!(entries(&snapshot, "gates").all(|gate| gate[1] == 0 && gate[2] == 0), "{snapshot}");
    let keepers: Vec<&Value> = entries(&snapshot, "keepers").map(|keeper| &keeper[0]).collect();
    assert!(keepers.contains(&&json!("queue_expiry")), "{keepers:?}");

    let bot = user.bot(&meet_link(0)).await;
    let life = Life::assign(&admin, &bot).await;
    life.report("started", json!({})).await;
    viewer.until_bot(&bot, "starting").await;
    life.report("joined", json!({})).await;
    let entry = viewer.until_bot(&bot, "active").await;
    assert!(entry[2].as_i64().unwrap() > 1_700_000_000);
    // Somebody who comes now sees the same at once.
    let late = Viewer::connect(&admin).await;
    let shown = entries(&late.snapshot, "bots").find(|entry| entry[0] == bot.as_str()).cloned();
    assert_eq!(shown.unwrap()[1], entry[1]);

    life.report("exited", json!({"exit_code": 0, "reason": "done"})).await;
    viewer.until(|change| entries(change, "bots_gone").any(|gone| *gone == bot.as_str()).then_some(())).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn slots_and_the_queue_are_followed(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let pool = crate::support::process_pool("meet", "max_slots = 1", "echo '{\"event\": \"joined\"}'\nread leave\n");
    let server = Process::start_configured(&database, &pool).await;
    let (admin, user) = (server.admin(), server.admin().user(10).await);
    let mut viewer = Viewer::connect(&admin).await;
    let first = user.bot(&meet_link(0)).await;
    let second = user.bot(&meet_link(1)).await;
    // The messages may come together or one after the other.
    let (mut is_active, mut is_busy, mut is_queued) = (false, false, false);
    let active = entries(&viewer.snapshot, "bot_statuses").position(|status| status == "active").unwrap();
    viewer
        .until(|change| {
            is_busy |= entries(change, "slots").any(|slot| slot[0] == 0 && slot[1] == 1 && slot[2] == 2);
            is_active |= entries(change, "bots").any(|bot| {
                *bot.as_array().unwrap().first().unwrap() == first.as_str()
                    && bot[1] == active
                    && bot[3] == 0
                    && bot[4] == 1
            });
            let waiting = entries(change, "queue").find(|entry| entry[0] == second.as_str());
            is_queued |= waiting.is_some_and(|entry| entry[1] == "google_meet" && entry[5] == "meet");
            (is_active && is_busy && is_queued).then_some(())
        })
        .await;
    user.stop(&second).await;
    viewer.until(|change| entries(change, "queue_gone").any(|gone| *gone == second.as_str()).then_some(())).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_reader_that_accepts_gzip_gets_each_message_while_the_stream_stays_open(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(10).await);
    let request = admin.request(Method::GET, "/admin/live").header(ACCEPT_ENCODING, "gzip");
    let mut viewer = Viewer::open(request).await;
    assert!(viewer.decoder.is_some(), "the stream is compressed");
    // Nothing else happens until this bot is seen, so nothing pushes its message out.
    let bot = user.bot(&meet_link(0)).await;
    let life = Life::assign(&admin, &bot).await;
    life.report("started", json!({})).await;
    viewer.until_bot(&bot, "starting").await;
    life.report("joined", json!({})).await;
    viewer.until_bot(&bot, "active").await;
    // When the server stops, the compressed stream has its end.
    server.terminate().await;
    while viewer.message().await.is_some() {}
    viewer.decoder.take().unwrap().finish().unwrap();
}

#[tokio::test]
async fn a_reader_sees_what_another_replica_changes_on_postgres() {
    let database = Database::new(Backend::Postgres).await;
    let (one, two) = (Process::start(&database).await, Process::start(&database).await);
    let user = one.admin().user(10).await;
    let mut viewer = Viewer::connect(&two.admin()).await;
    let bot = user.bot(&meet_link(0)).await;
    let life = Life::assign(&one.admin(), &bot).await;
    life.report("started", json!({})).await;
    viewer.until_bot(&bot, "starting").await;
    life.report("joined", json!({})).await;
    viewer.until_bot(&bot, "active").await;
    life.report("exited", json!({"exit_code": 0, "reason": "done"})).await;
    viewer.until(|change| entries(change, "bots_gone").any(|gone| *gone == bot.as_str()).then_some(())).await;
}

#[tokio::test]
async fn only_operators_may_look_and_a_session_looks_until_it_ends() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_with(
        &database,
        &["--set", &format!("admin_token={ADMIN_TOKEN}"), "--set", "limits.streams_per_key=2"],
    )
    .await;
    let user = server.admin().user(1).await;
    assert_eq!(user.send(Method::GET, "/admin/live", None).await.0, StatusCode::UNAUTHORIZED);
    let http = reqwest::Client::new();
    let url = |path: &str| format!("{}{path}", server.url);
    let signed_in = http.post(url("/session")).json(&json!({ "token": ADMIN_TOKEN })).send().await.unwrap();
    let cookie = signed_in.headers()[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let mut viewer = Viewer::open(http.get(url("/admin/live")).header(COOKIE, &cookie)).await;
    let other = Viewer::connect(&server.admin()).await;
    // The operators share the number of streams.
    let (status, refusal) = server.admin().send(Method::GET, "/admin/live", None).await;
    assert_eq!((status, &refusal["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")));
    drop(other);
    let ended = http.delete(url("/session")).header(COOKIE, &cookie).header(ORIGIN, &server.url).send().await.unwrap();
    assert_eq!(ended.status(), StatusCode::NO_CONTENT);
    while viewer.message().await.is_some() {}
}
