//! The requests of Coolify's HTTP API. Each request waits for its turn and has a time limit. Errors have Coolify's own
//! text, and never contain the token.

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
use crate::ProviderError;
use crate::budget::{Budget, Urgency};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The path of the API, below the address of Coolify.
const BASE: &str = "/api/v1";
/// How often a request is sent that is safe to repeat.
const TRIES: u32 = 3;
/// How much of a page that is not JSON is shown in an error.
const LONGEST_PAGE: usize = 200;

/// An answer of Coolify.
#[derive(Debug)]
pub struct CoolifyResponse {
    pub text: String,
    /// When the request was sent: the answer is no older than this.
    pub asked: Instant,
}

impl CoolifyResponse {
    pub fn json(&self) -> Result<Value, Failure> {
        serde_json::from_str(&self.text)
            .map_err(|_| Failure::Lost(format!("Coolify's answer is not JSON: {}", page(&self.text))))
    }
}

/// Why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// Whether it was done is unknown.
    Lost(String),
    /// The same, because Coolify cannot be reached.
    Away(String),
    /// Coolify itself refused the request and did not do it. A proxy may also refuse for a while: that counts as a lost
    /// answer.
    Refused { status: StatusCode, message: String, text: String, fields: Vec<String> },
    /// It was not done, because Coolify gets too many requests. All callers pause.
    TooMany,
    /// The request was not sent.
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

    /// Whether Coolify itself answers that there is no such object.
    pub fn is_absent(&self, what: &str) -> bool {
        self.says(StatusCode::NOT_FOUND, &format!("{what} not found"))
    }

    /// Whether Coolify has asked the server, and no container of the application runs there. A container that Docker is
    /// about to restart does not run either.
    pub fn is_not_running(&self) -> bool {
        self.says(StatusCode::BAD_REQUEST, "Application is not running")
    }

    /// The error of a request for all applications, for all callers that wait for it. Only a refused token is
    /// permanent.
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
            Failure::TooMany => ProviderError::transient("Coolify accepts no requests for a while: it got too many"),
            Failure::NotAsked(error) => error,
        }
    }
}

#[derive(Debug)]
pub struct Api {
    /// The HTTP client, or why this machine cannot have one.
    client: Result<Client, String>,
    base: String,
    token: SecretString,
    budget: Budget,
    /// The part of the budget for lists, which all replicas share.
    listing_budget: Budget,
    try_again: Duration,
    /// How long all requests pause if Coolify asks for a pause without a time.
    enough: Duration,
    /// Whether applications are started and stopped by POST, as since version 4.2, or by GET.
    posts: AtomicBool,
    /// When Coolify last answered correctly.
    heard: Mutex<Option<Instant>>,
}

impl Api {
    /// `url` is with or without the path of the API.
    pub fn new(url: &str, token: SecretString, budget: Budget, listing_budget: Budget, pace: &Pace) -> Self {
        let client = Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            // A redirect would turn the request into a GET, or send the token to another host.
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

    /// When Coolify last answered correctly.
    pub fn heard(&self) -> Option<Instant> {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one request may be sent.
    pub async fn turn(&self, urgency: Urgency) -> Result<(), Failure> {
        self.budget.turn(urgency).await.map_err(Failure::NotAsked)
    }

    /// Sends a request that must not be done twice.
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
                // The next turn comes when Coolify's pause is over.
                Err(Failure::TooMany) => {}
                answer => return answer,
            }
        }
    }

    /// Sends a request that is safe to repeat, and repeats it if the answer is lost.
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

    /// Checks that Coolify is reachable and accepts the token. A "too many requests" counts as reachable.
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

    /// Requests a list that all callers share. Its turn counts in the lists' own budget first. So replicas that all
    /// read lists leave the rest of the budget to actions.
    pub async fn list(&self, path: &str) -> Result<CoolifyResponse, ProviderError> {
        let mut tries = 1;
        loop {
            self.listing_budget.turn(Urgency::Free).await?;
            // A list always has the highest urgency, because callers that free slots wait for it.
            match self.ask(Urgency::Free, Method::GET, path, None).await {
                Err(Failure::Lost(_) | Failure::Away(_)) if tries < TRIES => {
                    tokio::time::sleep(self.try_again * tries).await
                }
                answer => return answer.map_err(Failure::of_all),
            }
            tries += 1;
        }
    }

    /// Starts or stops an application, by the HTTP method that this version accepts.
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

    /// Sends one request, in a turn that was already taken.
    pub async fn ask_now(&self, method: Method, path: &str, body: Option<&Value>) -> Result<CoolifyResponse, Failure> {
        let client = self.client.as_ref().map_err(|error| {
            Failure::NotAsked(ProviderError::permanent(format!("the HTTPS client cannot be set up: {error}")))
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
            let to = headers.get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("another address");
            return Failure::Lost(format!("{} is not the address of Coolify: it redirects to {to}", self.base));
        }
        let Some(message) = message.filter(|_| status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT)
        else {
            let text = format!("Coolify failed: {said}");
            return if matches!(status.as_u16(), 502..=504) { Failure::Away(text) } else { Failure::Lost(text) };
        };
        let text = match status {
            StatusCode::UNAUTHORIZED => format!("Coolify does not accept the token: {said}"),
            StatusCode::FORBIDDEN => format!("the token has no permission for this at Coolify: {said}"),
            _ => said,
        };
        Failure::Refused { status, message, text, fields }
    }

    /// The text without the token, which Coolify may repeat.
    fn hidden(&self, text: String) -> String {
        let token = self.token.expose_secret();
        if !token.is_empty() && text.contains(token) { text.replace(token, "…") } else { text }
    }
}

/// The address of a Coolify, from a URL with or without the path of the API.
pub fn address(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.strip_suffix(BASE).unwrap_or(url).trim_end_matches('/')
}

/// How long Coolify asks for a pause, in seconds or until a time, if it says so.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let header = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = header.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = DateTimeParser::new().parse_timestamp(header).ok()?;
    // A time that has passed, by our clock, counts as no time.
    Duration::try_from(until.duration_since(now)).ok().filter(|wait| !wait.is_zero())
}

/// The content of a refusal.
#[derive(Debug, Default)]
struct Refusal {
    /// Coolify's message. A proxy's answer has none.
    message: Option<String>,
    said: String,
    /// The invalid fields of the request, if any.
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

/// The beginning of a text that is not JSON, in one line.
fn page(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(LONGEST_PAGE).collect()
}

/// A connection error with all its causes.
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
    fn a_refusal_is_reported_with_its_fields() {
        let text = r#"{"message": "Validation failed.", "errors": {"name": ["Too long.", "Too odd."], "tag": "No."}}"#;
        let Refusal { message, said, fields } = Refusal::read(text);
        assert_eq!(said, "Validation failed. name: Too long. Too odd. tag: No.");
        assert_eq!((message.as_deref(), fields), (Some("Validation failed."), vec!["name".into(), "tag".into()]));
        let Refusal { message, said, .. } = Refusal::read("<html>\n Bad  Gateway");
        assert_eq!((message, said.as_str()), (None, "<html> Bad Gateway"));
    }

    #[test]
    fn the_time_to_wait_is_in_seconds_or_a_date_or_missing() {
        let now: Timestamp = "2026-10-21T07:28:00Z".parse().unwrap();
        let wait = |header: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, header.parse().unwrap())]), now);
        assert_eq!(wait(" 7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("Wed, 21 Oct 2026 07:29:30 GMT"), Some(Duration::from_secs(90)));
        assert_eq!(wait("Wed, 21 Oct 2026 07:27:00 GMT"), None);
        assert_eq!((wait("soon"), retry_after(&HeaderMap::new(), now)), (None, None));
    }
}
