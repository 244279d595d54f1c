//! Sends the bot's callbacks to the server in order, and retries until the server decides. If the server is down for
//! minutes, nothing is lost: callbacks wait in memory, up to a limit. Beyond the limit the bot's output blocks.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, RequestBuilder};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::assignment::{BotData, TRACEPARENT};
use crate::bot_run::News;
use crate::http::{self, Backoff, Refusal};
use crate::log::log;
use crate::screenshots::{Screenshot, ScreenshotSender, Screenshots};
use crate::tail::Tail;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The shortest timeout of a heartbeat. Normally a heartbeat without an answer within its interval is sent again on a
/// new connection, perhaps to another replica.
const SHORTEST_BEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one attempt to send the log may delay other callbacks.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last screenshot may delay the report of the bot's end.
const LAST_SCREENSHOT: Duration = Duration::from_secs(3);
/// How many times the agent tries to send the last log before it also sends the bot's end.
const LOG_TRIES_BEFORE_END: u32 = 3;
const MOST_SEGMENTS: usize = 500;
const MOST_BYTES: usize = 512 * 1024;
/// How many bytes of transcript may wait for the server: hours of speech.
const ROOM: usize = 64 * 1024 * 1024;

/// The client for the callbacks of one bot.
#[derive(Clone, Debug)]
pub struct CallbackClient {
    http: Client,
    data: Arc<BotData>,
}

impl CallbackClient {
    pub fn new(http: Client, data: Arc<BotData>) -> Self {
        Self { http, data }
    }

    pub fn connection_id(&self) -> &str {
        &self.data.connection_id
    }

    pub fn heartbeat_interval(&self) -> Duration {
        self.data.heartbeat_interval
    }

    pub async fn send(&self, method: &Method, callback: &str, body: &impl Serialize) -> Result<Value, Refusal> {
        let url = format!("{}/{callback}", self.data.callback_url);
        let request = self.http.request(method.clone(), url).bearer_auth(self.data.token.reveal()).json(body);
        let timeout = match callback {
            "heartbeat" => self.heartbeat_interval().clamp(SHORTEST_BEAT_TIMEOUT, ANSWER_TIMEOUT),
            "log" => LOG_TIMEOUT,
            _ => ANSWER_TIMEOUT,
        };
        let (_, text) = http::send(self.traced(request, callback).timeout(timeout)).await?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Names the trace of the bot, and with its end what the agent did.
    fn traced(&self, request: RequestBuilder, callback: &str) -> RequestBuilder {
        let Some(steps) = &self.data.steps else { return request };
        let request = request.header(TRACEPARENT, &steps.traceparent);
        if callback == "exited" { request.header("greenroom-agent-steps", steps.header()) } else { request }
    }

    pub async fn send_screenshot(&self, screenshot: &Screenshot) -> Result<(), Refusal> {
        let url = format!("{}/screenshot", self.data.callback_url);
        let request = self.http.post(url).query(&[("connection_id", self.connection_id())]);
        let request = request.bearer_auth(self.data.token.reveal()).header(CONTENT_TYPE, screenshot.kind.as_str());
        http::send(request.body(screenshot.image.clone()).timeout(ANSWER_TIMEOUT)).await.map(drop)
    }

    /// Requests commands. The server answers when it has a command, or after `wait`.
    pub async fn await_commands(&self, wait: Duration) -> Result<Value, Refusal> {
        let url = format!("{}/commands", self.data.callback_url);
        let asked = [("connection_id", self.connection_id()), ("wait_ms", &wait.as_millis().to_string())];
        let request = self.http.get(url).query(&asked).bearer_auth(self.data.token.reveal());
        let (_, text) = http::send(request.timeout(wait + Duration::from_secs(15))).await?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }
}

/// One callback to send.
#[derive(Debug)]
pub enum Message {
    Started {
        container_id: Option<String>,
    },
    Joined,
    Status {
        status: String,
        reason: Option<String>,
    },
    /// A transcript segment, exactly as the bot wrote it. Segments that wait together are sent together.
    Segment(Box<RawValue>),
    /// The bot's output at the time of sending, if there is new output.
    Log,
    /// The end of the bot. All of its output is sent before it.
    Exited(Exit),
    /// Sends nothing. Signals that the server has all earlier callbacks.
    Mark(oneshot::Sender<()>),
}

/// How the bot ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: i32,
    pub reason: Option<String>,
    pub error: Option<String>,
}

#[derive(Debug)]
struct QueuedMessage {
    message: Message,
    /// The space that it takes until it is sent.
    _room: Option<OwnedSemaphorePermit>,
}

/// The sending half of the queue of callbacks.
#[derive(Clone, Debug)]
pub struct Outbox {
    waiting: mpsc::UnboundedSender<QueuedMessage>,
    room: Arc<Semaphore>,
    /// The newest screenshot, which does not wait in the queue.
    pub screenshots: Arc<Screenshots>,
}

/// The receiving half: sends the queued callbacks to the server.
#[derive(Debug)]
pub struct Delivery {
    callbacks: CallbackClient,
    tail: Arc<Tail>,
    waiting: mpsc::UnboundedReceiver<QueuedMessage>,
    /// A message that was taken from `waiting` during the search for more segments.
    next: Option<QueuedMessage>,
    news: mpsc::UnboundedSender<News>,
    screenshots: ScreenshotSender,
    /// The task that sends screenshots beside the other callbacks, from `started` on.
    sending_screenshots: JoinSet<()>,
}

/// The server does not accept this assignment any more.
#[derive(Debug)]
pub struct Over;

pub fn outbox(
    callbacks: CallbackClient,
    tail: Arc<Tail>,
    screenshots: Screenshots,
    news: mpsc::UnboundedSender<News>,
) -> (Outbox, Delivery) {
    let (sender, waiting) = mpsc::unbounded_channel();
    let screenshots = Arc::new(screenshots);
    let outbox = Outbox { waiting: sender, room: Arc::new(Semaphore::new(ROOM)), screenshots: screenshots.clone() };
    let screenshots = ScreenshotSender::new(callbacks.clone(), screenshots, tail.clone(), news.clone());
    let sending_screenshots = JoinSet::new();
    (outbox, Delivery { callbacks, tail, waiting, next: None, news, screenshots, sending_screenshots })
}

impl Outbox {
    /// Queues a message, and waits for space if needed. After the end of the assignment, the message is dropped.
    pub async fn put(&self, message: Message) {
        let room = match &message {
            Message::Segment(segment) => {
                let bytes = u32::try_from(segment.get().len()).unwrap_or(u32::MAX);
                self.room.clone().acquire_many_owned(bytes).await.ok()
            }
            _ => None,
        };
        let _ = self.waiting.send(QueuedMessage { message, _room: room });
    }

    /// Removes the limit. From now on no more can arrive than a pipe holds.
    pub fn open_wide(&self) {
        self.room.close();
    }
}

impl Delivery {
    /// Sends all messages until the queue is closed.
    pub async fn run(mut self) -> Result<(), Over> {
        loop {
            let next = match self.next.take() {
                Some(next) => Some(next),
                None => self.waiting.recv().await,
            };
            let Some(QueuedMessage { message, _room }) = next else { return Ok(()) };
            match message {
                Message::Started { container_id } => self.started(container_id).await?,
                Message::Joined => self.send(&Method::POST, "joined", json!({})).await?,
                Message::Status { status, reason } => {
                    self.send(&Method::PATCH, "status", json!({"status": status, "reason": reason})).await?;
                }
                Message::Segment(segment) => self.segments(segment, _room).await?,
                Message::Log => self.log().await?,
                Message::Exited(exit) => self.exited(exit).await?,
                Message::Mark(reached) => {
                    let _ = reached.send(());
                }
            }
        }
    }

    async fn started(&mut self, container_id: Option<String>) -> Result<(), Over> {
        let body = match container_id {
            Some(id) => json!({"connection_id": self.callbacks.connection_id(), "container_id": id}),
            None => json!({"connection_id": self.callbacks.connection_id()}),
        };
        let answer = self.until_heard(&Method::POST, "started", &body).await;
        let status = answer.as_ref().ok().and_then(|answer| answer["status"].as_str());
        let stopping = status == Some("stopping");
        self.settle("started", answer.map(drop))?;
        self.sending_screenshots.spawn(self.screenshots.clone().run());
        let _ = self.news.send(News::Started { stopping });
        Ok(())
    }

    /// Tries once to send the log. Later callbacks do not wait for a log that fails, because the next log contains all
    /// of it.
    async fn log(&self) -> Result<(), Over> {
        let Some(body) = self.tail.unsent() else { return Ok(()) };
        match self.callbacks.send(&Method::POST, "log", &self.on_connection(body)).await {
            Err(refusal @ Refusal::Away { .. }) => {
                log!("log not sent: {refusal}");
                self.tail.keep_unsent();
                Ok(())
            }
            answer => self.settle("log", answer.map(drop)),
        }
    }

    /// Sends the log and the last screenshot first, because the server accepts neither for a bot that has ended. If the
    /// server accepts only the end, the agent sends the end alone. If the server is down, the agent retries log and end.
    async fn exited(&mut self, Exit { code, reason, error }: Exit) -> Result<(), Over> {
        let log = self.on_connection(self.tail.last());
        let exited = self.on_connection(json!({"exit_code": code, "reason": reason, "error": error}));
        let mut backoff = Backoff::default();
        for attempt in 1.. {
            let mut refusal = match self.callbacks.send(&Method::POST, "log", &log).await {
                Err(refusal @ Refusal::Away { .. }) => refusal,
                answer => {
                    backoff.succeeded("log");
                    self.settle("log", answer.map(drop))?;
                    break;
                }
            };
            if attempt >= LOG_TRIES_BEFORE_END || refusal.asks_for_patience() {
                match self.callbacks.send(&Method::POST, "exited", &exited).await {
                    Err(of_end @ Refusal::Away { .. }) => refusal = of_end,
                    answer => {
                        log!("log not sent: {refusal}");
                        return self.settle("exited", answer.map(drop));
                    }
                }
            }
            backoff.wait("log", &refusal).await;
        }
        self.screenshots.end();
        if tokio::time::timeout(LAST_SCREENSHOT, self.sending_screenshots.join_next()).await.is_err() {
            log!("the last screenshot was not sent within {} s", LAST_SCREENSHOT.as_secs());
            self.sending_screenshots.abort_all();
        }
        self.send(&Method::POST, "exited", exited).await
    }

    fn on_connection(&self, mut body: Value) -> Value {
        body["connection_id"] = json!(self.callbacks.connection_id());
        body
    }

    async fn send(&mut self, method: &Method, callback: &str, body: Value) -> Result<(), Over> {
        let body = self.on_connection(body);
        let answer = self.until_heard(method, callback, &body).await;
        self.settle(callback, answer.map(drop))
    }

    /// Sends a segment together with the segments directly behind it.
    async fn segments(&mut self, first: Box<RawValue>, room: Option<OwnedSemaphorePermit>) -> Result<(), Over> {
        let mut rooms = vec![room];
        let mut bytes = first.get().len();
        let mut batch = vec![first];
        while batch.len() < MOST_SEGMENTS {
            match self.waiting.try_recv() {
                Ok(QueuedMessage { message: Message::Segment(segment), _room })
                    if bytes + segment.get().len() < MOST_BYTES =>
                {
                    bytes += segment.get().len() + 1;
                    batch.push(segment);
                    rooms.push(_room);
                }
                Ok(other) => {
                    self.next = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        // One invalid segment must not block the others: a refused batch is halved until the segment is alone.
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            let body = Transcript { connection_id: self.callbacks.connection_id(), segments: &part };
            match self.until_heard(&Method::POST, "transcript", &body).await {
                Err(refusal) if refusal.is_about_content() && part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.push(second);
                    parts.push(part);
                }
                answer => self.settle("transcript", answer.map(drop))?,
            }
        }
        Ok(())
    }

    /// Retries until the server accepts or refuses.
    async fn until_heard(&self, method: &Method, callback: &str, body: &impl Serialize) -> Result<Value, Refusal> {
        let mut backoff = Backoff::default();
        loop {
            match self.callbacks.send(method, callback, body).await {
                Err(refusal @ Refusal::Away { .. }) => backoff.wait(callback, &refusal).await,
                decided => {
                    backoff.succeeded(callback);
                    return decided;
                }
            }
        }
    }

    fn settle(&self, callback: &str, answer: Result<(), Refusal>) -> Result<(), Over> {
        match answer {
            Ok(()) => Ok(()),
            Err(refusal) if refusal.ends_assignment() => {
                let _ = self.news.send(News::Over(format!("{callback}: {refusal}")));
                Err(Over)
            }
            Err(refusal) => {
                log!("{callback} was refused: {refusal}");
                Ok(())
            }
        }
    }
}

#[derive(Serialize)]
struct Transcript<'a> {
    connection_id: &'a str,
    segments: &'a [Box<RawValue>],
}
