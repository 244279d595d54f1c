//! Coolify's interface over HTTP: each request takes its turn, has a time by which it is answered, and says in Coolify's
//! own words what went wrong. The token is in none of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{ACCEPT, HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Client, Method, StatusCode, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use tokio::time::Instant;

use super::Pace;
use crate::providers::ProviderError;
use crate::providers::budget::{Budget, Urgency};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Where the interface is, below the address of Coolify.
const BASE: &str = "/api/v1";
/// How often something is asked that can be asked twice.
const TRIES: u32 = 3;
/// As much of a page that is no JSON as tells what it is.
const LONGEST_PAGE: usize = 200;

/// What Coolify answered.
#[derive(Debug)]
pub struct CoolifyResponse {
    pub text: String,
    /// When it was asked: the answer is no older than this.
    pub asked: Instant,
}

impl CoolifyResponse {
    pub fn json(&self) -> Result<Value, Failure> {
        serde_json::from_str(&self.text)
            .map_err(|_| Failure::Lost(format!("Coolify answered something that is no JSON: {}", page(&self.text))))
    }
}

/// Why there is no such answer.
#[derive(Debug)]
pub enum Failure {
    /// Nobody knows whether it was done.
    Lost(String),
    /// The same, because Coolify cannot be reached.
    Away(String),
    /// Coolify itself refused it, and did not do it. What stands between us and Coolify may refuse as well, for a while:
    /// that is not told from a lost answer.
    Refused { status: StatusCode, message: String, text: String, fields: Vec<String> },
    /// It was not done, because Coolify has had enough: everybody holds back.
    TooMany,
    /// It was not even asked.
    NotAsked(ProviderError),
}

impl Failure {
    pub fn is(&self, wanted: StatusCode) -> bool {
        matches!(self, Failure::Refused { status, .. } if *status == wanted)
    }

    fn says(&self, wanted: StatusCode, text: &str) -> bool {
        matches!(self, Failure::Refused { status, message, .. }
            if *status == wanted && message.trim_end_matches('.') == text)
    }

    /// Whether Coolify says, in its own words, that there is no such application, deployment or whatever.
    pub fn is_absent(&self, what: &str) -> bool {
        self.says(StatusCode::NOT_FOUND, &format!("{what} not found"))
    }

    /// Whether Coolify has asked the server, and no container of the application runs there. One that Docker is about to
    /// start again does not run either.
    pub fn is_not_running(&self) -> bool {
        self.says(StatusCode::BAD_REQUEST, "Application is not running")
    }

    /// The same where it is about all applications, and all who wait for it: only a token that is not accepted stays wrong.
    pub fn of_all(self) -> ProviderError {
        let is_final = self.is(StatusCode::UNAUTHORIZED);
        let error = ProviderError::from(self);
        if is_final { error } else { ProviderError { retryable: true, ..error } }
    }
}

impl From<Failure> for ProviderError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Lost(text) => ProviderError::transient(text),
            Failure::Away(text) => ProviderError::unavailable(text),
            Failure::Refused { text, .. } => ProviderError::permanent(text),
            Failure::TooMany => ProviderError::transient("Coolify takes no more requests for a while"),
            Failure::NotAsked(error) => error,
        }
    }
}

#[derive(Debug)]
pub struct Api {
    /// An error where this machine cannot have one.
    client: Result<Client, String>,
    base: String,
    token: SecretString,
    budget: Budget,
    /// The part of it that looks may use, which all replicas share.
    listing_budget: Budget,
    try_again: Duration,
    /// How long nobody asks when Coolify has had enough and does not say for how long.
    enough: Duration,
    /// Whether applications are started and stopped by POST, as since 4.2, or by GET.
    posts: AtomicBool,
    /// When it last answered as it should.
    heard: Mutex<Option<Instant>>,
}

impl Api {
    /// `url` with or without the path of the interface.
    pub fn new(url: &str, token: SecretString, budget: Budget, listing_budget: Budget, pace: &Pace) -> Self {
        let client = Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            // What is sent on elsewhere would be a GET there, or would take the token along.
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| with_causes(&error));
        let base = format!("{}{BASE}", address(url));
        let (posts, heard) = (AtomicBool::new(true), Mutex::default());
        let (try_again, enough) = (pace.try_again, pace.enough);
        Self { client, base, token, budget, listing_budget, try_again, enough, posts, heard }
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// When it last answered as it should.
    pub fn heard(&self) -> Option<Instant> {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one request may be made.
    pub async fn turn(&self, urgency: Urgency) -> Result<(), Failure> {
        self.budget.turn(urgency).await.map_err(Failure::NotAsked)
    }

    /// Asks for something that must not be done twice.
    pub async fn ask(
        &self,
        urgency: Urgency,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<CoolifyResponse, Failure> {
        loop {
            self.turn(urgency).await?;
            match self.ask_now(method.clone(), path, body).await {
                // A turn comes again when Coolify has said that it may.
                Err(Failure::TooMany) => {}
                answer => return answer,
            }
        }
    }

    /// Asks for something that can be asked twice: again, where the answer is lost.
    pub async fn ask_again(
        &self,
        urgency: Urgency,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<CoolifyResponse, Failure> {
        let mut tries = 1;
        loop {
            match self.ask(urgency, method.clone(), path, body).await {
                Err(Failure::Lost(_) | Failure::Away(_)) if tries < TRIES => {
                    tokio::time::sleep(self.try_again * tries).await
                }
                answer => return answer,
            }
            tries += 1;
        }
    }

    pub async fn get(&self, urgency: Urgency, path: &str) -> Result<CoolifyResponse, Failure> {
        self.ask_again(urgency, Method::GET, path, None).await
    }

    /// Asks whether it is there and takes the token. That it has had enough is an answer too.
    pub async fn is_there(&self) -> Result<(), Failure> {
        let mut tries = 1;
        loop {
            self.turn(Urgency::Wanted).await?;
            match self.ask_now(Method::GET, "version", None).await {
                Ok(_) | Err(Failure::TooMany) => return Ok(()),
                Err(Failure::Lost(_) | Failure::Away(_)) if tries < TRIES => {
                    tokio::time::sleep(self.try_again * tries).await
                }
                Err(failure) => return Err(failure),
            }
            tries += 1;
        }
    }

    /// Asks for something that everyone shares. Its turn is one of the looks' own first, so that replicas that all look
    /// leave the rest of the budget to what was looked for.
    pub async fn list(&self, path: &str) -> Result<CoolifyResponse, ProviderError> {
        let mut tries = 1;
        loop {
            self.listing_budget.turn(Urgency::Free).await?;
            // What frees slots waits for nothing more urgent than this, and a look is never for one alone.
            match self.ask(Urgency::Free, Method::GET, path, None).await {
                Err(Failure::Lost(_) | Failure::Away(_)) if tries < TRIES => {
                    tokio::time::sleep(self.try_again * tries).await
                }
                answer => return answer.map_err(Failure::of_all),
            }
            tries += 1;
        }
    }

    /// Starts or stops something, by the method that this Coolify takes.
    pub async fn act(&self, urgency: Urgency, path: &str) -> Result<CoolifyResponse, Failure> {
        let posts = self.posts.load(Ordering::Relaxed);
        let method = |posts| if posts { Method::POST } else { Method::GET };
        match self.ask(urgency, method(posts), path, None).await {
            Err(refused) if refused.is(StatusCode::METHOD_NOT_ALLOWED) => {
                let answer = self.ask(urgency, method(!posts), path, None).await;
                if !matches!(&answer, Err(other) if other.is(StatusCode::METHOD_NOT_ALLOWED)) {
                    self.posts.store(!posts, Ordering::Relaxed);
                }
                answer
            }
            answer => answer,
        }
    }

    /// Asks once, in a turn that was taken.
    pub async fn ask_now(&self, method: Method, path: &str, body: Option<&Value>) -> Result<CoolifyResponse, Failure> {
        let client = self.client.as_ref().map_err(|error| {
            Failure::NotAsked(ProviderError::permanent(format!("this machine cannot speak HTTPS: {error}")))
        })?;
        let mut request = client
            .request(method, format!("{}/{path}", self.base))
            .bearer_auth(self.token.expose_secret())
            .header(ACCEPT, "application/json");
        if let Some(body) = body {
            request = request.json(body);
        }
        let asked = Instant::now();
        let lost = |error: reqwest::Error| {
            Failure::Away(self.hidden(format!("Coolify does not answer: {}", with_causes(&error.without_url()))))
        };
        let response = request.send().await.map_err(lost)?;
        let (status, headers) = (response.status(), response.headers().clone());
        if status == StatusCode::TOO_MANY_REQUESTS {
            self.budget.hold_back(retry_after(&headers, Timestamp::now()).unwrap_or(self.enough)).await;
            return Err(Failure::TooMany);
        }
        let text = response.text().await.map_err(lost)?;
        if status.is_success() {
            *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            return Ok(CoolifyResponse { text, asked });
        }
        Err(self.refusal(status, &headers, &text))
    }

    fn refusal(&self, status: StatusCode, headers: &HeaderMap, text: &str) -> Failure {
        let Refusal { message, said, fields } = Refusal::read(text);
        let said = self.hidden(if said.is_empty() { status.to_string() } else { said });
        if status.is_redirection() {
            let to = headers.get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("somewhere else");
            return Failure::Lost(format!("Coolify is not at {}: it points to {to}", self.base));
        }
        let Some(message) = message.filter(|_| status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT)
        else {
            let text = format!("Coolify failed: {said}");
            return if matches!(status.as_u16(), 502..=504) { Failure::Away(text) } else { Failure::Lost(text) };
        };
        let text = match status {
            StatusCode::UNAUTHORIZED => format!("Coolify does not accept the token: {said}"),
            StatusCode::FORBIDDEN => format!("Coolify does not let this token do that: {said}"),
            _ => said,
        };
        Failure::Refused { status, message, text, fields }
    }

    /// Words that may be kept, whatever Coolify repeats in them.
    fn hidden(&self, text: String) -> String {
        let token = self.token.expose_secret();
        if !token.is_empty() && text.contains(token) { text.replace(token, "…") } else { text }
    }
}

/// Where a Coolify is, whether or not the path of its interface was written with it.
pub fn address(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.strip_suffix(BASE).unwrap_or(url).trim_end_matches('/')
}

/// For how long nobody is to ask, in seconds or until a moment, if that is said.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let said = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = said.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = DateTimeParser::new().parse_timestamp(said).ok()?;
    // A moment that has passed, by our clock, is no answer to the question.
    Duration::try_from(until.duration_since(now)).ok().filter(|wait| !wait.is_zero())
}

/// What is said of a refusal.
#[derive(Debug, Default)]
struct Refusal {
    /// As Coolify says it; a proxy has no such thing.
    message: Option<String>,
    said: String,
    /// What it is about, where something that was sent is wrong.
    fields: Vec<String>,
}

impl Refusal {
    fn read(text: &str) -> Self {
        let Ok(body) = serde_json::from_str::<Value>(text) else { return Self { said: page(text), ..Self::default() } };
        let message = body["message"].as_str().map(str::to_owned);
        let said = ["message", "error"].into_iter().filter_map(|key| body[key].as_str());
        let mut said = said.collect::<Vec<_>>().join(" ");
        let mut fields = Vec::new();
        for (field, errors) in body["errors"].as_object().into_iter().flatten() {
            let errors: Vec<&str> = match errors {
                Value::String(error) => vec![error],
                Value::Array(errors) => errors.iter().filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            };
            said.push_str(&format!(" {field}: {}", errors.join(" ")));
            fields.push(field.clone());
        }
        Self { message, said: said.trim().to_owned(), fields }
    }
}

/// The beginning of what is no JSON, in one line.
fn page(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(LONGEST_PAGE).collect()
}

/// An error of the way there, down to its first cause.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_with_its_fields() {
        let text = r#"{"message": "Validation failed.", "errors": {"name": ["Too long.", "Too odd."], "tag": "No."}}"#;
        let Refusal { message, said, fields } = Refusal::read(text);
        assert_eq!(said, "Validation failed. name: Too long. Too odd. tag: No.");
        assert_eq!((message.as_deref(), fields), (Some("Validation failed."), vec!["name".into(), "tag".into()]));
        let Refusal { message, said, .. } = Refusal::read("<html>\n Bad  Gateway");
        assert_eq!((message, said.as_str()), (None, "<html> Bad Gateway"));
    }

    #[test]
    fn how_long_to_wait_is_said_in_seconds_or_as_a_moment_or_not_at_all() {
        let now: Timestamp = "2026-10-21T07:28:00Z".parse().unwrap();
        let wait = |said: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, said.parse().unwrap())]), now);
        assert_eq!(wait(" 7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("Wed, 21 Oct 2026 07:29:30 GMT"), Some(Duration::from_secs(90)));
        assert_eq!(wait("Wed, 21 Oct 2026 07:27:00 GMT"), None);
        assert_eq!((wait("soon"), retry_after(&HeaderMap::new(), now)), (None, None));
    }
}
