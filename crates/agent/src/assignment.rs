//! Finds the data of the next bot. An agent that is started for one bot finds it in the environment. The agent of a hot
//! slot starts before its bots, and asks the server for one bot after another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use reqwest::{Client, StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::http::{self, Backoff, Refusal, Reply};
use crate::log::log;
use crate::memory::MemoryMeter;
use crate::prewarm::GaveUp;
use crate::steps::Steps;

const WAIT_MS: u64 = 30_000;
/// How long a call may take that does not wait for a bot.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(10);

/// A secret. Its `Debug` output does not show it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The part of a bot's data that the agent uses, and the full text for the command.
#[derive(Clone, Debug)]
pub struct BotData {
    pub bot_id: String,
    pub connection_id: String,
    pub callback_url: String,
    pub token: Token,
    pub heartbeat_interval: Duration,
    /// Whether the demo bot runs instead of the command.
    pub is_probe: bool,
    /// Set if the server traces the bot.
    pub steps: Option<Arc<Steps>>,
    pub text: BotText,
}

/// The data as received. It contains the token.
#[derive(Clone)]
pub struct BotText(pub String);

impl std::fmt::Debug for BotText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BotText(…)")
    }
}

/// These errors never repeat a value, because any value could be the token.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("is not JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("is not a JSON object")]
    NotAnObject,
    #[error("has no `{0}`")]
    Missing(&'static str),
    #[error("has a `{field}` that is not {expected}")]
    Wrong { field: &'static str, expected: &'static str },
}

impl BotData {
    pub fn parse(text: String) -> Result<Self, DataError> {
        let value: Value = serde_json::from_str(&text).map_err(DataError::NotJson)?;
        let Value::Object(fields) = value else { return Err(DataError::NotAnObject) };
        let callback_url = string(&fields, "callback_url")?;
        if Url::parse(&callback_url).ok().is_none_or(|url| !matches!(url.scheme(), "http" | "https")) {
            return Err(DataError::Wrong { field: "callback_url", expected: "an http or https URL" });
        }
        let heartbeat = fields.get("heartbeat_interval_ms").ok_or(DataError::Missing("heartbeat_interval_ms"))?;
        let heartbeat = heartbeat.as_u64().filter(|ms| *ms > 0);
        let heartbeat =
            heartbeat.ok_or(DataError::Wrong { field: "heartbeat_interval_ms", expected: "a number above 0" })?;
        Ok(Self {
            bot_id: string(&fields, "bot_id")?,
            connection_id: string(&fields, "connection_id")?,
            callback_url: callback_url.trim_end_matches('/').to_owned(),
            token: Token(string(&fields, "token")?),
            heartbeat_interval: Duration::from_millis(heartbeat).max(SHORTEST_HEARTBEAT),
            is_probe: fields.get("probe") == Some(&Value::Bool(true)),
            steps: None,
            text: BotText(text),
        })
    }

    fn traced(self, traceparent: Option<String>) -> Self {
        Self { steps: traceparent.map(|traceparent| Arc::new(Steps::new(traceparent))), ..self }
    }

    fn traced_by(self, headers: &HeaderMap) -> Self {
        let traceparent = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        self.traced(traceparent.map(str::to_owned))
    }
}

fn string(fields: &Map<String, Value>, field: &'static str) -> Result<String, DataError> {
    match fields.get(field) {
        None => Err(DataError::Missing(field)),
        Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
        Some(_) => Err(DataError::Wrong { field, expected: "a text" }),
    }
}

/// Where the agent gets its bots.
#[derive(Debug)]
pub enum Source {
    /// The only bot of this agent, from the environment.
    Given(Box<BotData>),
    Server(AssignmentPoller),
}

/// Waits at the server with the token of the slot or of the runner.
#[derive(Debug)]
pub struct AssignmentPoller {
    server: String,
    url: Url,
    token: Token,
    /// Whether the slot is started again after the last bot that came.
    pub had_last_bot: bool,
    /// The secret name of this process. The server repeats an assignment only to the process that got it.
    name: String,
}

/// The header with the next token. It comes with an assignment, and replaces the token that ends with that assignment.
const NEXT_TOKEN: &str = "greenroom-slot-token";
/// The header that says that the slot is started again after this bot.
const LAST_BOT: &str = "greenroom-last-bot";
/// The header of a trace's parent.
pub const TRACEPARENT: &str = "traceparent";
const NAME: &str = "greenroom-agent";
/// A header and not a parameter, so that an older server ignores it.
const MEMORY: &str = "greenroom-memory-bytes";

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(
        "there is no bot to run: set BOT_DATA to a bot's data, or GREENROOM_URL and GREENROOM_SLOT_TOKEN to wait for bots"
    )]
    Nothing,
    #[error("{0} is not set, but is needed to wait for bots; or set BOT_DATA to a bot's data")]
    Half(&'static str),
    #[error("{0} is not set, but is needed on a runner")]
    Runner(&'static str),
    #[error("BOT_DATA {0}")]
    Data(#[from] DataError),
    #[error("{0} is not valid UTF-8")]
    NotText(&'static str),
    #[error("GREENROOM_URL is not an http or https URL")]
    Url,
}

/// Whether a text has the form of a W3C `traceparent`, version 00.
fn is_traceparent(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [2, 32, 16, 2] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

impl Source {
    pub fn from_environment() -> Result<Self, SourceError> {
        Self::from_variables(variable)
    }

    fn from_variables(
        variable: impl Fn(&'static str) -> Result<Option<String>, SourceError>,
    ) -> Result<Self, SourceError> {
        if let Some(text) = variable("BOT_DATA")? {
            // A value that cannot be a header must not stop the bot.
            let traceparent = variable("TRACEPARENT").ok().flatten().filter(|text| is_traceparent(text));
            return Ok(Source::Given(Box::new(BotData::parse(text)?.traced(traceparent))));
        }
        let (url, token) = match (variable("GREENROOM_URL")?, variable("GREENROOM_SLOT_TOKEN")?) {
            (Some(url), Some(token)) => (url, Token::new(&token)),
            (Some(_), None) => return Err(SourceError::Half("GREENROOM_SLOT_TOKEN")),
            (None, Some(_)) => return Err(SourceError::Half("GREENROOM_URL")),
            (None, None) => return Err(SourceError::Nothing),
        };
        Ok(Source::Server(AssignmentPoller::at(&server_url(&url)?, token)?))
    }
}

/// The value of an environment variable, if it is set.
pub fn variable(name: &'static str) -> Result<Option<String>, SourceError> {
    match std::env::var(name) {
        Err(std::env::VarError::NotUnicode(_)) => Err(SourceError::NotText(name)),
        // Many tools set an empty variable to mean that it is not set.
        other => Ok(other.ok().filter(|value| !value.trim().is_empty())),
    }
}

/// Checks the server's URL and removes the trailing slash, so that a path can follow.
pub fn server_url(text: &str) -> Result<String, SourceError> {
    let text = text.trim().trim_end_matches('/');
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.map(|_| text.to_owned()).ok_or(SourceError::Url)
}

/// The server does not accept the slot's token.
#[derive(Debug, thiserror::Error)]
#[error("the server does not accept GREENROOM_SLOT_TOKEN: {0}")]
pub struct UnknownSlot(String);

impl From<Refusal> for UnknownSlot {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Refused { detail, .. } if !detail.is_empty() => Self(detail),
            other => Self(other.to_string()),
        }
    }
}

impl Refusal {
    /// The refusal, unless it says that the server does not know this slot's token.
    fn unless_unknown_slot(self) -> Result<Self, UnknownSlot> {
        if self.status() == Some(StatusCode::UNAUTHORIZED) { Err(self.into()) } else { Ok(self) }
    }
}

/// The report that the slot has no command that is ready.
#[derive(Debug, Serialize)]
pub struct NotReady<'a> {
    pub message: String,
    /// The last output of the command.
    pub last_lines: Option<&'a str>,
    /// Whether no command will be ready without a person.
    pub failed: bool,
}

impl<'a> NotReady<'a> {
    /// The report of an agent that has given up.
    pub fn of(gave_up: &'a GaveUp) -> Self {
        Self { message: gave_up.message(), last_lines: gave_up.last_lines(), failed: true }
    }
}

#[derive(Deserialize)]
struct NotReadyAnswer {
    assigned: bool,
}

impl AssignmentPoller {
    pub fn at(server: &str, token: Token) -> Result<Self, SourceError> {
        let url = Url::parse(&format!("{server}/agent/assignment?wait_ms={WAIT_MS}"));
        // The name is a secret, so it comes from the randomness of the operating system.
        let name = uuid::Uuid::new_v4().simple().to_string();
        Ok(Self {
            server: server.to_owned(),
            url: url.map_err(|_| SourceError::Url)?,
            token,
            had_last_bot: false,
            name,
        })
    }

    /// Waits without a time limit for the next bot's data. If the answer has a new token, later calls use it.
    pub async fn next(&mut self, http: &Client) -> Result<BotData, UnknownSlot> {
        let next = self.until(http, BotData::parse, |status| status == StatusCode::UNAUTHORIZED).await;
        let (data, headers) = next.map_err(UnknownSlot::from)?;
        self.note(&headers);
        Ok(data.traced_by(&headers))
    }

    /// Notes what comes with an assignment for the time after it.
    fn note(&mut self, headers: &HeaderMap) {
        if let Some(token) = headers.get(NEXT_TOKEN).and_then(|token| token.to_str().ok()) {
            self.token = Token::new(token);
        }
        self.had_last_bot = headers.get(LAST_BOT).is_some_and(|value| value == "true");
    }

    /// The bot that the slot has now, if it has one that did not begin.
    pub async fn assigned(&mut self, http: &Client) -> Result<Option<BotData>, UnknownSlot> {
        let mut backoff = Backoff::default();
        loop {
            let request = http.get(format!("{}/agent/assignment?wait_ms=0", self.server)).header(NAME, &self.name);
            let request = request.bearer_auth(self.token.reveal()).timeout(REPORT_TIMEOUT);
            let refusal = match http::exchange(request).await {
                Ok(Reply { status: StatusCode::OK, headers, text }) => match BotData::parse(text) {
                    Ok(data) => {
                        self.note(&headers);
                        return Ok(Some(data.traced_by(&headers)));
                    }
                    Err(error) => Refusal::Away { why: format!("the bot's data {error}"), retry_after: None },
                },
                Ok(_) => return Ok(None),
                Err(refusal) => refusal.unless_unknown_slot()?,
            };
            backoff.wait("asking for the slot's bot", &refusal).await;
        }
    }

    /// Reports that the slot has no command that is ready. Returns whether the slot has a bot already.
    pub async fn report_not_ready(&self, http: &Client, report: &NotReady<'_>) -> Result<bool, UnknownSlot> {
        let mut backoff = Backoff::default();
        loop {
            let request = http.post(format!("{}/agent/not_ready", self.server)).header(NAME, &self.name).json(report);
            let request = request.bearer_auth(self.token.reveal()).timeout(REPORT_TIMEOUT);
            match http::read(http::send(request).await) {
                Ok(NotReadyAnswer { assigned }) => return Ok(assigned),
                Err(refusal) => match refusal.unless_unknown_slot()? {
                    // A server that does not know the call still repeats its bot to this agent's next request.
                    Refusal::Refused { .. } => return Ok(false),
                    away @ Refusal::Away { .. } => backoff.wait("reporting that nothing is ready", &away).await,
                },
            }
        }
    }

    /// Waits until the answer can be read, or the server gives a final refusal.
    pub async fn until<T>(
        &self,
        http: &Client,
        read: impl Fn(String) -> Result<T, DataError>,
        is_final: impl Fn(StatusCode) -> bool,
    ) -> Result<(T, HeaderMap), Refusal> {
        let what = "waiting for a bot";
        let mut backoff = Backoff::default();
        let mut early = Backoff::default();
        let mut meter = MemoryMeter::default();
        loop {
            let mut request = http.get(self.url.clone()).bearer_auth(self.token.reveal()).header(NAME, &self.name);
            if let Some(bytes) = meter.measure().await {
                request = request.header(MEMORY, bytes);
            }
            let begun = Instant::now();
            let refusal = match http::exchange(request.timeout(Duration::from_millis(WAIT_MS + 15_000))).await {
                Ok(Reply { status: StatusCode::OK, headers, text }) => match read(text) {
                    Ok(data) => return Ok((data, headers)),
                    Err(error) => Refusal::Away { why: format!("the bot's data {error}"), retry_after: None },
                },
                Ok(_) => {
                    backoff.succeeded(what);
                    // A server that is shutting down answers at once. The pause prevents a tight loop of requests.
                    if begun.elapsed() < Duration::from_secs(1) {
                        tokio::time::sleep(early.next(None)).await;
                    } else {
                        early = Backoff::default();
                    }
                    continue;
                }
                Err(refusal) if refusal.status().is_some_and(&is_final) => return Err(refusal),
                Err(refusal) => refusal,
            };
            backoff.wait(what, &refusal).await;
        }
    }
}

/// The id of the container: from the environment, or the host name, which in a container is its id or its pod's name.
pub fn container_id() -> Option<String> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let in_container = || {
        std::path::Path::new("/.dockerenv").exists()
            || std::path::Path::new("/run/.containerenv").exists()
            || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
    };
    variable("GREENROOM_CONTAINER_ID").or_else(|| variable("HOSTNAME").filter(|_| in_container())).map(|id| {
        if id.chars().count() > 255 {
            log!("the container's id is longer than 255 characters and is cut");
        }
        id.chars().take(255).collect()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TOKEN: &str = "grb_secret";

    fn data() -> Value {
        serde_json::json!({
            "bot_id": "b", "connection_id": "c", "callback_url": "http://127.0.0.1:1/callback/",
            "token": TOKEN, "heartbeat_interval_ms": 1000,
        })
    }

    #[test]
    fn the_text_of_the_data_reaches_the_command_as_it_came() {
        let text = format!(" {} ", data());
        let read = BotData::parse(text.clone()).unwrap();
        assert_eq!(read.text.0, text);
        assert_eq!(read.callback_url, "http://127.0.0.1:1/callback");
        assert!(!format!("{read:?}").contains(TOKEN));
    }

    #[test]
    fn wrong_data_is_refused_by_the_name_of_the_field_and_never_by_its_value() {
        let mut wrong = data();
        wrong["callback_url"] = TOKEN.into();
        let error = BotData::parse(wrong.to_string()).unwrap_err().to_string();
        assert!(error.contains("callback_url") && !error.contains(TOKEN), "{error}");
        let mut wrong = data();
        wrong["heartbeat_interval_ms"] = TOKEN.into();
        let error = BotData::parse(wrong.to_string()).unwrap_err().to_string();
        assert!(error.contains("heartbeat_interval_ms") && !error.contains(TOKEN), "{error}");
        let error = BotData::parse(format!("\"{TOKEN}\"")).unwrap_err().to_string();
        assert_eq!(error, "is not a JSON object");
    }

    #[test]
    fn a_traceparent_that_cannot_be_a_header_is_left_out() {
        let good = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
        assert!(is_traceparent(good));
        for wrong in ["", "00", "a\nb", &format!("{good}\n"), &good.replace('a', "ä"), &good[1..]] {
            assert!(!is_traceparent(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn an_incomplete_server_setting_is_named() {
        let with = |have: &'static str| {
            Source::from_variables(move |name| Ok((name == have).then(|| "http://127.0.0.1:1".to_owned())))
        };
        assert!(with("GREENROOM_URL").unwrap_err().to_string().starts_with("GREENROOM_SLOT_TOKEN"));
        assert!(with("GREENROOM_SLOT_TOKEN").unwrap_err().to_string().starts_with("GREENROOM_URL"));
        assert!(matches!(with("none"), Err(SourceError::Nothing)));
    }
}
