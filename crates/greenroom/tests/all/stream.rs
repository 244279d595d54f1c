//! `GET /events`: no event is missing or repeated, through reconnects, replicas and stops.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Life, Process, meet_link};

/// A client of the stream that remembers its position.
struct Listener {
    body: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    buffer: String,
    last_id: Option<String>,
}

impl Listener {
    async fn connect(client: &Client, last_id: Option<&str>) -> Self {
        Self::connect_to(client, "/events", last_id).await
    }

    async fn connect_to(client: &Client, path: &str, last_id: Option<&str>) -> Self {
        let mut request = client.request(Method::GET, path);
        if let Some(id) = last_id {
            request = request.header("Last-Event-ID", id);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut listener =
            Self { body: response.bytes_stream().boxed(), buffer: String::new(), last_id: last_id.map(str::to_owned) };
        // The first block has the position of the stream, without data.
        assert_eq!(listener.block().await, Some(None));
        listener
    }

    /// The data of the next block, if it has any. `None` at the end of the stream.
    async fn block(&mut self) -> Option<Option<Value>> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                if block.starts_with(':') {
                    continue;
                }
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                self.last_id = field("id: ").or(self.last_id.take());
                return Some(field("data: ").map(|data| serde_json::from_str(&data).unwrap()));
            }
            let read = tokio::time::timeout(Duration::from_secs(30), self.body.next()).await;
            match read.expect("an event within 30 s") {
                Some(Ok(bytes)) => self.buffer.push_str(std::str::from_utf8(&bytes).unwrap()),
                Some(Err(_)) | None => return None,
            }
        }
    }

    async fn next(&mut self) -> Value {
        self.block().await.expect("the stream continues").expect("an event has data")
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_many_reconnects_has_every_event_once_and_in_order(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (user, other) = (server.admin().user(500).await, server.admin().user(500).await);
    let mut listener = Listener::connect(&user, None).await;
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (user, other, admin) = (user.clone(), other.clone(), server.admin());
            tokio::spawn(async move {
                for number in 0..8 {
                    let bot = user.bot(&meet_link(writer * 100 + number)).await;
                    let life = Life::assign(&admin, &bot).await;
                    other.bot(&meet_link(writer * 100 + number)).await;
                    life.report("started", json!({})).await;
                    life.report("exited", json!({"exit_code": 0, "reason": "done"})).await;
                }
            })
        })
        .collect();
    let mut heard = Vec::new();
    for count in 1..=4 * 8 * 4 {
        heard.push(listener.next().await);
        if count % 7 == 0 {
            let last = listener.last_id.clone();
            drop(listener);
            listener = Listener::connect(&user, last.as_deref()).await;
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let mut expected = Vec::new();
    for bot in user.get("/bots?limit=1000").await["bots"].as_array().unwrap() {
        let events = user.get(&format!("/bots/{}/events", bot["id"].as_str().unwrap())).await["events"].take();
        expected.extend(events.as_array().unwrap().clone());
    }
    expected.sort_by_key(|event| event["id"].as_i64());
    for event in &mut heard {
        let event = event.as_object_mut().unwrap();
        assert_eq!((event.remove("metadata"), event.remove("error")), (Some(json!({})), Some(Value::Null)));
    }
    assert_eq!(heard, expected);
}

#[tokio::test]
async fn a_client_that_lost_the_connection_before_its_first_event_can_resume() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(5).await;
    let before = user.bot(&meet_link(1)).await;
    let listener = Listener::connect(&user, None).await;
    let last = listener.last_id.clone().expect("the stream has a position");
    drop(listener);
    let missed = user.bot(&meet_link(2)).await;
    let mut listener = Listener::connect(&user, Some(&last)).await;
    // A new stream may begin a moment before the latest acknowledged request. A request makes two events: created and
    // assigned.
    let mut heard = Vec::new();
    while heard.last() != Some(&json!(missed)) {
        assert!(heard.len() <= 2 && heard.iter().all(|bot| *bot == json!(before)), "{heard:?}");
        heard.push(listener.next().await["bot_id"].take());
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_stream_of_one_bot_has_its_events_with_its_metadata_and_its_error(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (user, other) = (server.admin().user(9).await, server.admin().user(9).await);
    let bot = user.ask(json!({"meeting_url": meet_link(1), "metadata": {"ticket": 7}})).await["id"].take();
    let bot = bot.as_str().unwrap();
    let path = format!("/events?bot_id={bot}");
    let life = Life::assign(&server.admin(), bot).await;
    let mut listener = Listener::connect_to(&user, &path, Some("0")).await;
    user.bot(&meet_link(2)).await;
    life.report("started", json!({})).await;
    let mut heard = Vec::new();
    while heard.last().is_none_or(|event: &Value| event["to"] != "failed") {
        heard.push(listener.next().await);
        if heard.last().is_some_and(|event| event["to"] == "starting") {
            // By now the stream follows new events, of this bot and of others.
            for number in 3..=5 {
                user.bot(&meet_link(number)).await;
            }
            life.report("exited", json!({"exit_code": 3, "error": "no microphone"})).await;
        }
        if heard.len() == 2 {
            // After a reconnect, the events of a bot are as complete as without one.
            listener = Listener::connect_to(&user, &path, listener.last_id.as_deref()).await;
        }
    }
    let trail = user.get(&format!("/bots/{bot}/events")).await["events"].take();
    let ids = |events: &[Value]| events.iter().map(|event| event["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&heard), ids(trail.as_array().unwrap()));
    for event in &heard {
        assert_eq!((&event["bot_id"], &event["metadata"]), (&json!(bot), &json!({"ticket": 7})));
        let error = if event["to"] == "failed" { json!("no microphone") } else { Value::Null };
        assert_eq!(event["error"], error, "{event}");
    }
    assert_eq!(other.send(Method::GET, &path, None).await.0, 404);
    let (status, problem) = user.send(Method::GET, "/events?bot_id=x", None).await;
    assert_eq!((status.as_u16(), problem["detail"].as_str().unwrap().contains("bot_id")), (422, true));
}

#[tokio::test]
async fn events_of_one_replica_arrive_at_another_on_postgres() {
    let database = Database::new(Backend::Postgres).await;
    let (left, right) = tokio::join!(Process::start(&database), Process::start(&database));
    let user = left.admin().user(5).await;
    let mut listener = Listener::connect(&user.on(&right.url), None).await;
    let bot = user.bot(&meet_link(1)).await;
    assert_eq!(listener.next().await["bot_id"], json!(bot));
}

#[tokio::test]
async fn a_stream_resumes_over_a_restart_of_the_server() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(5).await;
    let mut listener = Listener::connect(&user, None).await;
    let first = user.bot(&meet_link(1)).await;
    let event = listener.next().await;
    assert_eq!((&event["bot_id"], &event["kind"]), (&json!(first), &json!("created")));
    assert_eq!(event["reason"], json!("pool-google-meet-001"), "the bot got its slot at once");
    server.terminate().await;
    assert_eq!(listener.block().await, None, "an orderly stop ends the stream");
    assert!(server.wait().await);
    let server = Process::start(&database).await;
    let user = user.on(&server.url);
    let second = user.bot(&meet_link(2)).await;
    let mut listener = Listener::connect(&user, listener.last_id.as_deref()).await;
    assert_eq!(listener.next().await["bot_id"], json!(second));
}

#[tokio::test]
async fn a_last_event_id_of_another_database_does_not_suppress_events() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(5).await;
    let mut listener = Listener::connect(&user, Some("999999")).await;
    let bot = user.bot(&meet_link(1)).await;
    assert_eq!(listener.next().await["bot_id"], json!(bot));
}

#[tokio::test]
async fn an_invalid_last_event_id_is_refused() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(5).await;
    let response = user.request(Method::GET, "/events").header("Last-Event-ID", "abc").send().await.unwrap();
    assert_eq!(response.status(), 422);
    assert!(response.text().await.unwrap().contains("`Last-Event-ID`"));
    // An anonymous caller gets no details.
    let stranger = server.client("grk_AAAAAAAAAAAAAAAAAAAAAA_B");
    let response = stranger.request(Method::GET, "/events").header("Last-Event-ID", "abc").send().await.unwrap();
    assert_eq!(response.status(), 401);
}

#[tokio::test]
async fn streams_above_the_limit_of_a_user_are_refused_until_one_ends() {
    let database = Database::new(Backend::Sqlite).await;
    let pool = "[limits]\nstreams_per_key = 2\n[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\n\
                provider = \"process\"\nprocess = { command = [\"true\"] }\n";
    let server = Process::start_configured(&database, pool).await;
    let (user, other) = (server.admin().user(5).await, server.admin().user(5).await);
    let (first, _second) = (Listener::connect(&user, None).await, Listener::connect(&user, None).await);
    let response = user.request(Method::GET, "/events").send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(response.json::<Value>().await.unwrap()["code"], "overloaded");
    Listener::connect(&other, None).await;
    drop(first);
    crate::support::until("another one is accepted", async || {
        user.request(Method::GET, "/events").send().await.unwrap().status() == 200
    })
    .await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn many_streams_with_a_long_history_are_complete_and_do_not_delay_another_user(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (user, other) = (server.admin().user(500).await, server.admin().user(500).await);
    for number in 0..260 {
        user.bot(&meet_link(number)).await;
    }
    let bot = other.bot(&meet_link(1)).await;
    let mut many = Vec::new();
    for _ in 0..20 {
        many.push(Listener::connect(&user, Some("0")).await);
    }
    assert_eq!(Listener::connect(&other, Some("0")).await.next().await["bot_id"], json!(bot));
    for mut listener in many {
        let mut last = 0;
        for _ in 0..260 {
            let id = listener.next().await["id"].as_i64().unwrap();
            assert!(id > last, "{id} after {last}");
            last = id;
        }
    }
}
