//! Traces of bots, as a collector gets them. The collector reads them with the official definitions of OTLP.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use crate::support::{ADMIN_TOKEN, Backend, Client, Database, Process, found, meet_link, until};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Takes,
    Fails,
    Hangs,
}

/// A collector of the test's own.
#[derive(Clone, Debug)]
struct Collector {
    url: String,
    state: Arc<Mutex<Collected>>,
}

#[derive(Debug)]
struct Collected {
    mood: Mood,
    /// The requests as they came, and their spans with the replica that sent each.
    bodies: Vec<Bytes>,
    spans: Vec<(String, Span)>,
}

impl Collector {
    async fn start(mood: Mood) -> Self {
        let state = Arc::new(Mutex::new(Collected { mood, bodies: Vec::new(), spans: Vec::new() }));
        let router = Router::new().route("/v1/traces", post(take)).with_state(state.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, state }
    }

    fn set(&self, mood: Mood) {
        self.state.lock().unwrap().mood = mood;
    }

    /// The spans of a bot, each once, by its id.
    fn of_bot(&self, bot: &str) -> BTreeMap<Vec<u8>, (String, Span)> {
        let id = uuid::Uuid::parse_str(bot).unwrap();
        let state = self.state.lock().unwrap();
        let own = state.spans.iter().filter(|(_, span)| span.trace_id == id.as_bytes());
        own.map(|(replica, span)| (span.span_id.clone(), (replica.clone(), span.clone()))).collect()
    }

    /// Waits for a bot's trace to have spans with all these names.
    async fn trace(&self, bot: &str, names: &[&str]) -> BTreeMap<Vec<u8>, (String, Span)> {
        found(&format!("the trace has {names:?}"), async || {
            let spans = self.of_bot(bot);
            let has = |name: &&str| spans.values().any(|(_, span)| span.name == **name);
            names.iter().all(has).then_some(spans)
        })
        .await
    }
}

async fn take(State(state): State<Arc<Mutex<Collected>>>, body: Bytes) -> StatusCode {
    let mood = state.lock().unwrap().mood;
    match mood {
        Mood::Takes => {}
        Mood::Fails => return StatusCode::INTERNAL_SERVER_ERROR,
        Mood::Hangs => std::future::pending().await,
    }
    let request = ExportTraceServiceRequest::decode(body.clone()).unwrap();
    let mut state = state.lock().unwrap();
    state.bodies.push(body);
    for of_resource in request.resource_spans {
        let attributes = of_resource.resource.unwrap().attributes;
        let text = |key: &str| {
            let value = &attributes.iter().find(|pair| pair.key == key).unwrap().value;
            format!("{value:?}")
        };
        assert!(text("service.name").contains("greenroom"));
        let replica = text("service.instance.id");
        let spans = of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans);
        state.spans.extend(spans.map(|span| (replica.clone(), span)));
    }
    StatusCode::OK
}

fn config(collector: &Collector, standby: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_greenroom");
    let script = "echo trace $TRACEPARENT; echo '{\\\"event\\\": \\\"joined\\\"}'; read leave";
    format!(
        "[telemetry]\notlp_endpoint = \"{}\"\n[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\n\
         provider = \"process\"\nmax_slots = 4\n{standby}\n\
         process = {{ command = [\"{binary}\", \"agent\", \"--\", \"sh\", \"-c\", \"{script}\"] }}\n",
        collector.url
    )
}

const CALLER: &str = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

/// Requests a bot within the trace of the caller, and returns its id.
async fn ask(user: &Client, number: usize) -> String {
    let request = user.request(Method::POST, "/bots").header("traceparent", format!("00-{CALLER}-01"));
    let answer = request.json(&json!({"meeting_url": meet_link(number)})).send().await.unwrap();
    assert_eq!(answer.status(), 201);
    answer.json::<serde_json::Value>().await.unwrap()["bot"]["id"].as_str().unwrap().to_owned()
}

async fn live(user: &Client, bot: &str) {
    user.until(bot, "active").await;
    user.stop(bot).await;
    user.until(bot, "completed").await;
}

/// Checks what holds for every trace, and returns its spans by name.
fn checked(bot: &str, spans: &BTreeMap<Vec<u8>, (String, Span)>) -> BTreeMap<String, Span> {
    let id = uuid::Uuid::parse_str(bot).unwrap();
    let root = id.as_bytes()[8..].to_vec();
    let mut by_name = BTreeMap::new();
    for (_, span) in spans.values() {
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
        let is_root = span.name == "bot";
        assert_eq!(span.parent_span_id.is_empty(), is_root, "{span:?}");
        assert_eq!(span.span_id == root, is_root, "{span:?}");
        assert!(is_root || spans.contains_key(&span.parent_span_id), "the parent is missing: {span:?}");
        by_name.insert(span.name.clone(), span.clone());
    }
    let parent = |name: &str| &by_name[name].parent_span_id;
    assert_eq!(*parent("command start"), by_name["agent"].span_id);
    assert_eq!(*parent("first line"), by_name["agent"].span_id);
    for name in ["POST /bots", "placement", "deploying", "starting", "active", "stopping", "agent", "clearing"] {
        assert_eq!(*parent(name), root, "{name}");
    }
    // Each status begins when the one before ends, and the bot lasts from the first to the last.
    let statuses = ["placement", "deploying", "starting", "active", "stopping"].map(|name| &by_name[name]);
    for pair in statuses.windows(2) {
        assert_eq!(pair[0].end_time_unix_nano, pair[1].start_time_unix_nano, "{pair:?}");
    }
    assert_eq!(by_name["bot"].start_time_unix_nano, statuses[0].start_time_unix_nano);
    assert_eq!(by_name["bot"].end_time_unix_nano, statuses[4].end_time_unix_nano);
    let [agent, command] = ["agent", "command start"].map(|name| &by_name[name]);
    assert_eq!(agent.start_time_unix_nano, command.start_time_unix_nano);
    assert!(command.end_time_unix_nano <= agent.end_time_unix_nano);
    let link = &by_name["POST /bots"].links[0];
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(format!("{}-{}", hex(&link.trace_id), hex(&link.span_id)), CALLER);
    by_name
}

const ALL: [&str; 11] = [
    "bot",
    "POST /bots",
    "placement",
    "deploying",
    "starting",
    "active",
    "stopping",
    "agent",
    "command start",
    "first line",
    "clearing",
];

#[tokio::test]
async fn a_bot_has_one_trace_from_its_request_to_its_end_across_two_replicas_on_postgres() {
    let collector = Collector::start(Mood::Takes).await;
    let database = Database::new(Backend::Postgres).await;
    let config = config(&collector, "");
    let first = Process::start_configured(&database, &config).await;
    let second = Process::start_configured(&database, &config).await;
    let user = first.admin().user(4).await;
    let mut replicas = BTreeSet::new();
    for (number, url) in [(1, &first.url), (2, &second.url)] {
        let bot = ask(&user.on(url), number).await;
        live(&user, &bot).await;
        let (status, answer) = second.admin().post("/admin/stats/run", json!({})).await;
        assert!(status.is_success(), "{answer}");
        let names: Vec<&str> = ALL.into_iter().chain(["gate wait", "slot start", "provider start"]).collect();
        let spans = collector.trace(&bot, &names).await;
        let by_name = checked(&bot, &spans);
        assert_eq!(by_name["provider start"].parent_span_id, by_name["slot start"].span_id);
        replicas.extend(spans.values().map(|(replica, _)| replica.clone()));
        let log = user.get(&format!("/bots/{bot}/logs")).await.to_string();
        assert!(log.contains(&format!("trace 00-{}-", bot.replace('-', ""))), "{log}");
    }
    assert_eq!(replicas.len(), 2, "both replicas write into the same traces");
    let state = collector.state.lock().unwrap();
    for secret in ["meet.google.com", ADMIN_TOKEN, user.token()] {
        let has = |body: &Bytes| body.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(!state.bodies.iter().any(has), "a span has {secret}");
    }
}

#[rstest]
#[case::stopped("")]
#[case::hot("standby = \"running\"\nmin_idle = 1")]
#[tokio::test]
async fn an_agent_adds_its_steps_to_the_trace_of_its_bot(#[case] standby: &str) {
    let collector = Collector::start(Mood::Takes).await;
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_configured(&database, &config(&collector, standby)).await;
    let user = server.admin().user(4).await;
    if !standby.is_empty() {
        until("a slot is hot", async || {
            server.admin().get("/admin/slots?status=idle").await["slots"].as_array().is_some_and(|all| !all.is_empty())
        })
        .await;
    }
    let bot = ask(&user, 1).await;
    live(&user, &bot).await;
    server.admin().post("/admin/stats/run", json!({})).await;
    checked(&bot, &collector.trace(&bot, &ALL).await);
}

/// How many spans had this result.
async fn spans(admin: &Client, result: &str) -> u64 {
    let text = admin.text("/metrics").await;
    let name = format!("greenroom_trace_spans_total{{result=\"{result}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

#[rstest]
#[case::hangs(Mood::Hangs)]
#[case::fails(Mood::Fails)]
#[tokio::test]
async fn a_collector_that_does_not_take_spans_costs_bots_nothing(#[case] mood: Mood) {
    let collector = Collector::start(mood).await;
    let database = Database::new(Backend::Sqlite).await;
    let mut server = Process::start_configured(&database, &config(&collector, "")).await;
    let (admin, user) = (server.admin(), server.admin().user(4).await);
    live(&user, &ask(&user, 1).await).await;
    admin.post("/admin/stats/run", json!({})).await;
    until("spans are given up", async || spans(&admin, "failed").await > 0).await;
    assert_eq!(spans(&admin, "sent").await, 0);
    // The next bot is traced again as soon as the collector answers.
    collector.set(Mood::Takes);
    let bot = ask(&user, 2).await;
    live(&user, &bot).await;
    admin.post("/admin/stats/run", json!({})).await;
    collector.trace(&bot, &["bot", "active"]).await;
    assert!(spans(&admin, "sent").await > 0);
    collector.set(mood);
    server.terminate().await;
    until("the server stops", async || server.has_ended()).await;
}
