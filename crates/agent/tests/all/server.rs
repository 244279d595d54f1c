//! A strict stand-in for the server. It knows each bot's token and connection, records every call in order, and records
//! a mistake for each call that the real server would refuse. A test can stop it, and set its answers.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::request::{Request, read};
use crate::runner::side::{self, Machine};

pub const SLOT_TOKEN: &str = "grs_the-token-of-the-slot";
pub const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Call {
    pub name: String,
    pub token: String,
    pub body: Value,
    /// The memory that it says it uses.
    pub memory_bytes: Option<u64>,
    /// The status of the answer.
    pub status: u16,
    pub at: Instant,
}

#[derive(Clone, Debug)]
struct Bot {
    connection_id: String,
    status: &'static str,
    commands: Vec<Value>,
}

#[derive(Debug, Default)]
pub struct State {
    bots: HashMap<String, Bot>,
    pub calls: Vec<Call>,
    pub mistakes: Vec<String>,
    /// The answers to the next calls of a name, instead of the correct ones.
    scripted: HashMap<&'static str, VecDeque<TestResponse>>,
    assignments: VecDeque<Value>,
    scripted_always: HashMap<&'static str, TestResponse>,
    /// How many commands were created.
    commands: usize,
    pub machine: Machine,
}

#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// The data of a bot.
#[derive(Clone, Debug)]
pub struct Data {
    pub json: Value,
}

impl Data {
    pub fn token(&self) -> &str {
        self.json["token"].as_str().unwrap()
    }
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { state: Mutex::default(), changed: watch::Sender::new(()) });
        let serving = Some(tokio::spawn(serve(listener, shared.clone())));
        Self { address, shared, serving }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Closes the listener and all connections.
    pub async fn go_away(&mut self) {
        let serving = self.serving.take().unwrap();
        serving.abort();
        let _ = serving.await;
    }

    pub async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.serving = Some(tokio::spawn(serve(listener, self.shared.clone())));
    }

    /// A known bot, with heartbeats so frequent that a test never waits for one.
    pub fn bot(&self) -> Data {
        self.bot_with_heartbeat(50)
    }

    pub fn bot_with_heartbeat(&self, heartbeat_interval_ms: u64) -> Data {
        let number = self.shared.state().bots.len() + 1;
        let connection_id = format!("00000000-0000-4000-8000-{number:012}");
        let token = format!("grb_secret-{number}");
        let bot = Bot { connection_id: connection_id.clone(), status: "reserved", commands: vec![] };
        self.shared.state().bots.insert(token.clone(), bot);
        Data {
            json: json!({
                "bot_id": format!("bot-{number}"), "connection_id": connection_id, "platform": "google_meet",
                "native_meeting_id": "abc-defg-hij", "meeting_url": "https://meet.google.com/abc-defg-hij",
                "bot_display_name": null, "config": {"language": "de"}, "callback_url": format!("{}/callback", self.url()),
                "token": token, "heartbeat_interval_ms": heartbeat_interval_ms,
                "commands": {"redis_url": null, "channel": format!("bot_commands:{connection_id}")},
            }),
        }
    }

    /// Gives the bot to the next agent that waits for one.
    pub fn assign(&self, data: &Data) {
        self.shared.state().assignments.push_back(data.json.clone());
        self.shared.changed.send_replace(());
    }

    /// Gives the bot a command, and returns the command's id.
    pub fn command(&self, data: &Data, action: &str, payload: Value) -> String {
        let mut state = self.shared.state();
        state.commands += 1;
        let id = format!("00000000-0000-4000-9000-{:012}", state.commands);
        let bot = state.bots.get_mut(data.token()).unwrap();
        bot.commands.push(json!({"id": id, "action": action, "payload": payload}));
        drop(state);
        self.shared.changed.send_replace(());
        id
    }

    pub fn set_status(&self, data: &Data, status: &'static str) {
        self.shared.state().bots.get_mut(data.token()).unwrap().status = status;
    }

    /// Sets the answer to the next call of this name.
    pub fn script(&self, name: &'static str, status: u16, body: Value, retry_after: Option<u32>) {
        self.shared.state().scripted.entry(name).or_default().push_back((status, body, retry_after));
    }

    /// Sets the answer to every call of this name, or removes it. With status 0, the connection closes without an
    /// answer.
    pub fn tell_always(&self, name: &'static str, answer: Option<(u16, Value)>) {
        let mut state = self.shared.state();
        match answer {
            Some((status, body)) => state.scripted_always.insert(name, (status, body, None)),
            None => state.scripted_always.remove(name),
        };
    }

    /// Changes the state of a runner's machine.
    pub fn machine(&self, change: impl FnOnce(&mut Machine)) {
        change(&mut self.shared.state().machine);
        self.shared.changed.send_replace(());
    }

    pub fn calls(&self) -> Vec<Call> {
        self.shared.state().calls.clone()
    }

    /// The accepted calls in order, without heartbeats and long polls.
    pub fn said(&self) -> Vec<(String, Value)> {
        let said = self.calls().into_iter().filter(|call| call.status == 200);
        let names = ["started", "joined", "status", "transcript", "exited"];
        said.filter(|call| names.contains(&call.name.as_str())).map(|call| (call.name, call.body)).collect()
    }

    pub fn said_names(&self) -> Vec<String> {
        self.said().into_iter().map(|(name, _)| name).collect()
    }

    /// The accepted screenshots, in order: their kinds and how they end.
    pub fn screenshots(&self) -> Vec<(String, String)> {
        let calls = self.calls().into_iter().filter(|call| call.name == "screenshot" && call.status == 200);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        calls.map(|call| (text(&call.body["kind"]), text(&call.body["image"]))).collect()
    }

    /// The segments of all transcripts, in order.
    pub fn segments(&self) -> Vec<Value> {
        let said = self.said().into_iter().filter(|(name, _)| name == "transcript");
        said.flat_map(|(_, body)| body["segments"].as_array().unwrap().clone()).collect()
    }

    pub fn exited(&self) -> Value {
        let (_, body) = self.said().into_iter().find(|(name, _)| name == "exited").expect("the agent reported the end");
        json!([body["exit_code"], body["reason"]])
    }

    pub fn no_mistakes(&self) {
        assert_eq!(self.shared.state().mistakes, Vec::<String>::new());
    }

    /// Waits until the state satisfies a condition.
    pub async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let waiting = async {
            while !condition(&self.shared.state()) {
                changed.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
            panic!("{what} did not happen; calls: {:#?}", self.shared.state());
        }
    }

    pub async fn until_called(&self, name: &str) {
        self.until(name, |state| state.calls.iter().any(|call| call.name == name)).await;
    }

    pub async fn until_acknowledged(&self, id: &str) {
        let acked = |call: &Call| call.body["acked"].as_array().is_some_and(|acked| acked.contains(&json!(id)));
        self.until("the acknowledgement", |state| state.calls.iter().any(acked)).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(connection(stream, shared.clone()));
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        let (status, body, retry_after) = answer(request, &shared).await;
        shared.changed.send_replace(());
        if status == 0 {
            return;
        }
        let text = match body {
            _ if status == 204 => String::new(),
            Value::String(text) => text,
            body => body.to_string(),
        };
        let retry_after = retry_after.map(|seconds| format!("retry-after: {seconds}\r\n")).unwrap_or_default();
        let length = text.len();
        let answer = format!("HTTP/1.1 {status} Said\r\ncontent-length: {length}\r\n{retry_after}\r\n{text}");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// One attempt to answer, while the caller waits.
#[derive(Clone, Copy, Debug)]
struct Poll {
    first: bool,
    last: bool,
}

/// Status, body, Retry-After.
pub type TestResponse = (u16, Value, Option<u32>);

async fn answer(request: Request, shared: &Shared) -> TestResponse {
    let (name, waits_ms) = match request.path.strip_prefix("/callback/") {
        Some("commands") => ("commands".to_owned(), request.query["wait_ms"].parse().unwrap()),
        Some(name) => (name.to_owned(), 0),
        None if request.path == "/agent/assignment" => {
            ("assignment".to_owned(), request.query["wait_ms"].parse().unwrap())
        }
        None if request.path == "/agent/not_ready" => ("not_ready".to_owned(), 0),
        None => (side::name(&request.method, &request.path).unwrap_or(&request.path).to_owned(), 0),
    };
    let deadline = tokio::time::Instant::now() + Duration::from_millis(waits_ms);
    let mut changed = shared.changed.subscribe();
    let mut first = true;
    loop {
        // Tries again after each change, for as long as the caller waits.
        let poll = Poll { first, last: tokio::time::Instant::now() >= deadline };
        if let Some(answer) = answer_now(&request, &name, &mut shared.state(), poll) {
            return answer;
        }
        first = false;
        let _ = tokio::time::timeout_at(deadline, changed.changed()).await;
    }
}

fn answer_now(request: &Request, name: &str, state: &mut State, poll: Poll) -> Option<TestResponse> {
    let body = match request.content_type.strip_prefix("image/") {
        Some(kind) => json!({"kind": kind, "image": shown(&request.body), "bytes": request.body.len()}),
        None if request.body.is_empty() => json!({}),
        None => serde_json::from_slice(&request.body).unwrap(),
    };
    let scripted = state.scripted.get_mut(name).and_then(VecDeque::pop_front);
    let scripted = scripted.or_else(|| state.scripted_always.get(name).cloned());
    let answer = match scripted {
        Some(scripted) => scripted,
        None if name == "assignment" && request.token == side::OWN_TOKEN => side::assignment(state, poll.last)?,
        None if name == "assignment" => assignment(request, state, poll)?,
        None if name == "not_ready" => not_ready(request, &body, state),
        None if side::name(&request.method, &request.path).is_some() => side::answer(request, name, &body, state),
        None => callback(request, name, &body, state, poll)?,
    };
    if matches!(name, "started" | "exited") {
        state.assignments.retain(|data| data["token"] != request.token.as_str());
    }
    let (token, memory_bytes) = (request.token.clone(), request.memory_bytes);
    state.calls.push(Call { name: name.to_owned(), token, body, memory_bytes, status: answer.0, at: Instant::now() });
    Some(answer)
}

/// The end of an image, by which a test tells images apart.
fn shown(image: &[u8]) -> String {
    String::from_utf8_lossy(&image[image.len().saturating_sub(20)..]).into_owned()
}

fn assignment(request: &Request, state: &mut State, poll: Poll) -> Option<TestResponse> {
    if request.token != SLOT_TOKEN {
        return Some((401, json!({"code": "unauthorized", "detail": "this is not a slot"}), None));
    }
    // As the real server does, it repeats an assignment until the bot has begun: a request that the agent has given up may
    // still wait here.
    match state.assignments.front().cloned() {
        Some(data) => Some((200, data, None)),
        None if !poll.last => None,
        None => Some((204, Value::Null, None)),
    }
}

fn not_ready(request: &Request, body: &Value, state: &mut State) -> TestResponse {
    let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
    if request.method != "POST" || fields != ["failed", "last_lines", "message"] {
        state.mistakes.push(format!("{} not_ready with {body}", request.method));
    }
    if request.token != SLOT_TOKEN {
        return (401, json!({"code": "unauthorized", "detail": "this is not a slot"}), None);
    }
    (200, json!({"assigned": !state.assignments.is_empty()}), None)
}

fn callback(request: &Request, name: &str, body: &Value, state: &mut State, poll: Poll) -> Option<TestResponse> {
    let problem = |status: u16, code: &str| Some((status, json!({"code": code, "detail": "no"}), None));
    let (method, fields): (&str, &[&str]) = match name {
        "started" => ("POST", &["connection_id", "container_id"]),
        "joined" => ("POST", &["connection_id"]),
        "status" => ("PATCH", &["connection_id", "status", "reason"]),
        "heartbeat" => ("POST", &["connection_id", "acked"]),
        "transcript" => ("POST", &["connection_id", "segments"]),
        "log" => ("POST", &["connection_id", "lines", "truncated", "warnings"]),
        "screenshot" => ("POST", &["kind", "image", "bytes"]),
        "exited" => ("POST", &["connection_id", "exit_code", "reason", "error"]),
        "commands" => ("GET", &[]),
        _ => {
            state.mistakes.push(format!("nothing is at {}", request.path));
            return problem(404, "not_found");
        }
    };
    if request.method != method {
        state.mistakes.push(format!("{name} with {}", request.method));
    }
    let content_type = match request.body.as_slice() {
        _ if name != "screenshot" => "application/json",
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        _ => "image/jpeg",
    };
    if method != "GET" && request.content_type != content_type {
        state.mistakes.push(format!("{name} as {}", request.content_type));
    }
    if let Some(field) = body.as_object().unwrap().keys().find(|key| !fields.contains(&key.as_str())) {
        state.mistakes.push(format!("{name} with a field {field}"));
    }
    let Some(bot) = state.bots.get_mut(&request.token) else {
        state.mistakes.push(format!("{name} with the token {:?}", request.token));
        return problem(401, "unauthorized");
    };
    let connection_id = match name {
        "commands" | "screenshot" => request.query.get("connection_id").map(String::as_str),
        _ => body["connection_id"].as_str(),
    };
    if connection_id != Some(bot.connection_id.as_str()) {
        state.mistakes.push(format!("{name} on {connection_id:?}"));
        return problem(409, "stale_connection");
    }
    if bot.status == "ended" {
        // A long poll that began before the end is no mistake.
        if poll.first {
            state.mistakes.push(format!("{name} after the end"));
        }
        return problem(410, "bot_ended");
    }
    if bot.status == "reserved" && !matches!(name, "started" | "log" | "exited") {
        state.mistakes.push(format!("{name} before the start"));
        return problem(409, "invalid_transition");
    }
    match name {
        "started" if bot.status == "reserved" => bot.status = "starting",
        "exited" => bot.status = "ended",
        "heartbeat" => {
            let acked = body["acked"].as_array().unwrap();
            bot.commands.retain(|command| !acked.contains(&command["id"]));
            return Some((200, json!({"status": bot.status, "commands": bot.commands}), None));
        }
        "screenshot" => return Some((200, json!({"stored": true}), None)),
        "commands" if bot.commands.is_empty() && !poll.last => return None,
        "commands" => return Some((200, json!({"commands": bot.commands}), None)),
        "transcript" => {
            let segments = body["segments"].as_array().unwrap();
            if segments.iter().any(|segment| segment["text"].as_str().is_none()) {
                return problem(422, "invalid");
            }
            return Some((200, json!({"stored": segments.len()}), None));
        }
        _ => {}
    }
    Some((200, json!({"status": bot.status}), None))
}
