//! The calls of Nomad's HTTP API: the requests, the answers, and which errors are permanent. An answer counts only if
//! Nomad itself gave it: a proxy's "not found" never means that a job does not exist.

use std::time::Duration;

use domain::Backoff;
use reqwest::{Client, Method, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::allocation::Allocation;
use super::capacity::Node;
use super::client::client;
use super::follow::{Evaluation, Pace};
use super::job::{Job, Listed, Meta};
use crate::ProviderError;
use crate::error_text::with_causes;
use config::provider::NomadConfig;

/// How often a request is sent in all while Nomad has trouble.
const ASKED_AT_MOST: usize = 4;
/// How many pauses of a check pass before the second attempt. Each later pause is three times as long.
const PAUSES: u32 = 4;
/// How much longer each pause is than the one before.
const GROWTH: f32 = 3.0;
/// How many jobs one page of the list has.
const PAGE: &str = "100";
/// Every slot's name begins with it.
pub const PREFIX: &str = "pool-";
/// How many characters of an answer that is not Nomad's are shown.
const SHOWN: usize = 300;

/// Nomad's text when a change names an old version of the job.
const RACED: &str = "Enforcing job modify index";
/// The text for a certificate that is not trusted, or not valid for the server's name.
const UNVERIFIED: &str = "invalid peer certificate";
/// While the servers elect a leader, no job can be read or changed.
const NO_LEADER: &str = "No cluster leader";
/// Texts in answers with a server error for which a retry does not help.
const REFUSED: [&str; 4] = ["nonexistent namespace", "nonexistent node pool", "validation failed", "error occurred:"];

#[derive(Debug)]
pub struct Api {
    /// The client, or why there is none: every call reports a file that cannot be read.
    client: Result<(Client, Url), String>,
    address: String,
    token: Option<SecretString>,
    region: Option<String>,
    pub namespace: String,
    /// The pause before a request is repeated.
    first_pause: Duration,
}

/// An answer with any status.
struct NomadResponse {
    status: StatusCode,
    next_token: Option<String>,
    text: String,
}

impl NomadResponse {
    /// Whether the answer only means that Nomad has trouble at this moment.
    fn is_transient(&self) -> bool {
        let is_own = !self.text.contains(RACED) && !REFUSED.iter().any(|refused| self.text.contains(refused));
        self.status == StatusCode::TOO_MANY_REQUESTS || (self.status.is_server_error() && is_own)
    }
}

/// Why there was no answer.
enum Silence {
    /// The connection failed or broke.
    Broken(ProviderError),
    Final(ProviderError),
}

/// The result of a registration.
#[derive(Debug, PartialEq, Eq)]
pub enum Registered {
    Done,
    /// Another process changed the job first.
    Raced,
}

impl Api {
    pub fn new(config: &NomadConfig) -> Self {
        Self {
            client: client(config),
            address: config.address.clone(),
            token: config.token.clone(),
            region: config.region.clone(),
            namespace: config.namespace.clone(),
            first_pause: Pace::default().first * PAUSES,
        }
    }

    pub fn set_pace(&mut self, pace: Pace) {
        self.first_pause = pace.first * PAUSES;
    }

    /// The job with this name. `None` only if Nomad itself answers that it does not exist.
    pub async fn job(&self, name: &str) -> Result<Option<Job>, ProviderError> {
        let answer = self.ask(Method::GET, &["job", name], &[], None).await?;
        if answer.status == StatusCode::NOT_FOUND && answer.text.trim() == "job not found" {
            return Ok(None);
        }
        self.read(answer).map(Some)
    }

    /// Registers a job if the current one still has this index. An index of 0 means that there is no job.
    pub async fn register(&self, job: Value, index: u64) -> Result<Registered, ProviderError> {
        let body = json!({"Job": job, "EnforceIndex": true, "JobModifyIndex": index});
        let answer = self.ask(Method::POST, &["jobs"], &[], Some(body)).await?;
        if answer.status.is_server_error() && answer.text.contains(RACED) {
            return Ok(Registered::Raced);
        }
        self.read::<Done>(answer).map(|_| Registered::Done)
    }

    /// Removes a job with everything that Nomad stores about it. Succeeds if there is no such job.
    pub async fn purge(&self, name: &str) -> Result<(), ProviderError> {
        let answer = self.ask(Method::DELETE, &["job", name], &[("purge", "true")], None).await?;
        self.read::<Done>(answer).map(drop)
    }

    /// All allocations for this job name, including those of an earlier job with the same name.
    pub async fn allocations(&self, name: &str) -> Result<Vec<Allocation>, ProviderError> {
        let answer = self.ask(Method::GET, &["job", name, "allocations"], &[("all", "true")], None).await?;
        self.read(answer)
    }

    pub async fn evaluations(&self, name: &str) -> Result<Vec<Evaluation>, ProviderError> {
        let answer = self.ask(Method::GET, &["job", name, "evaluations"], &[], None).await?;
        self.read(answer)
    }

    /// All jobs whose names begin like those of slots, of any owner. If one page fails, the whole call fails.
    pub async fn jobs(&self) -> Result<Vec<Listed>, ProviderError> {
        let (mut all, mut from) = (Vec::new(), String::new());
        loop {
            let mut query = vec![("meta", "true"), ("prefix", PREFIX), ("per_page", PAGE)];
            if !from.is_empty() {
                query.push(("next_token", &from));
            }
            let answer = self.ask(Method::GET, &["jobs"], &query, None).await?;
            let next = answer.next_token.clone();
            all.extend(self.read::<Vec<Listed>>(answer)?);
            match next {
                Some(next) if next == from => {
                    return Err(ProviderError::transient("Nomad returned the same page of jobs twice"));
                }
                Some(next) => from = next,
                None => return Ok(all),
            }
        }
    }

    /// Whether the token may list jobs in the namespace.
    pub async fn may_list(&self) -> Result<(), ProviderError> {
        let answer = self.ask(Method::GET, &["jobs"], &[("prefix", PREFIX), ("per_page", "1")], None).await?;
        self.read::<Vec<Value>>(answer).map(drop)
    }

    /// Whether the namespace exists.
    pub async fn has_namespace(&self) -> Result<(), ProviderError> {
        let answer = self.ask(Method::GET, &["namespace", &self.namespace], &[], None).await?;
        if answer.status == StatusCode::NOT_FOUND && answer.text.trim() == "Namespace not found" {
            let text = format!("Nomad has no namespace {}: {}", self.namespace, answer.text.trim());
            return Err(ProviderError::permanent(text));
        }
        self.read::<Named>(answer).map(drop)
    }

    pub async fn leader(&self) -> Result<String, ProviderError> {
        let answer = self.ask(Method::GET, &["status", "leader"], &[], None).await?;
        self.read(answer)
    }

    pub async fn nodes(&self) -> Result<Vec<Node>, ProviderError> {
        let answer = self.ask(Method::GET, &["nodes"], &[("resources", "true")], None).await?;
        self.read(answer)
    }

    /// The status of a node. `None` if the node does not exist any more.
    pub async fn node_status(&self, node: &str) -> Result<Option<String>, ProviderError> {
        let answer = self.ask(Method::GET, &["node", node], &[], None).await?;
        if answer.status == StatusCode::NOT_FOUND && answer.text.trim() == "node not found" {
            return Ok(None);
        }
        self.read::<Reported>(answer).map(|node| Some(node.status))
    }

    /// The meta that the allocation's job had when it was placed. `None` if the allocation is gone.
    pub async fn meta_of(&self, allocation: &str) -> Result<Option<Meta>, ProviderError> {
        let answer = self.ask(Method::GET, &["allocation", allocation], &[], None).await?;
        if answer.status == StatusCode::NOT_FOUND && answer.text.trim() == "alloc not found" {
            return Ok(None);
        }
        self.read::<Placed>(answer).map(|placed| Some(placed.job.meta.unwrap_or_default()))
    }

    /// The end of one of a task's streams. `None` if the stream does not exist.
    pub async fn log(
        &self,
        allocation: &str,
        task: &str,
        stream: &str,
        bytes: usize,
    ) -> Result<Option<String>, ProviderError> {
        let bytes = bytes.to_string();
        let query = [("task", task), ("type", stream), ("origin", "end"), ("offset", &bytes), ("plain", "true")];
        let answer = self.ask(Method::GET, &["client", "fs", "logs", allocation], &query, None).await?;
        match answer.status {
            StatusCode::OK => Ok(Some(answer.text)),
            // Nomad has deleted it, or it never started.
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.refusal(answer.status, &answer.text)),
        }
    }

    /// Repeats a request while Nomad has trouble, such as a moment without a leader: every request is safe to repeat.
    /// After a timeout the caller decides.
    async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<Value>,
    ) -> Result<NomadResponse, ProviderError> {
        let mut delays = Backoff::growing(self.first_pause, Duration::MAX, GROWTH);
        for _ in 1..ASKED_AT_MOST {
            match self.ask_once(method.clone(), path, query, body.as_ref()).await {
                Ok(answer) if !answer.is_transient() => return Ok(answer),
                Ok(_) | Err(Silence::Broken(_)) => tokio::time::sleep(delays.next_delay()).await,
                Err(Silence::Final(error)) => return Err(error),
            }
        }
        match self.ask_once(method, path, query, body.as_ref()).await {
            Ok(answer) => Ok(answer),
            Err(Silence::Broken(error) | Silence::Final(error)) => Err(error),
        }
    }

    async fn ask_once(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<NomadResponse, Silence> {
        let permanent = |message: String| Silence::Final(ProviderError::permanent(message));
        let (client, url) = self.client.as_ref().map_err(|message| permanent(message.clone()))?;
        let mut url = url.clone();
        if let Ok(mut parts) = url.path_segments_mut() {
            parts.pop_if_empty().push("v1").extend(path);
        }
        let mut request = client.request(method, url).query(&[("namespace", self.namespace.as_str())]).query(query);
        if let Some(region) = &self.region {
            request = request.query(&[("region", region)]);
        }
        if let Some(token) = &self.token {
            request = request.header("X-Nomad-Token", token.expose_secret());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable = |error: reqwest::Error| self.unreachable(error);
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let header = response.headers().get("X-Nomad-NextToken").and_then(|token| token.to_str().ok());
        let next_token = header.filter(|token| !token.is_empty()).map(str::to_owned);
        let bytes = response.bytes().await.map_err(unreachable)?;
        Ok(NomadResponse { status, next_token, text: String::from_utf8_lossy(&bytes).into_owned() })
    }

    fn read<T: DeserializeOwned>(&self, answer: NomadResponse) -> Result<T, ProviderError> {
        if answer.status != StatusCode::OK {
            return Err(self.refusal(answer.status, &answer.text));
        }
        serde_json::from_str(&answer.text).map_err(|error| {
            let text = self.scrubbed(&answer.text);
            ProviderError::transient(format!("the answer of {} is not one of Nomad ({error}): {text}", self.shown()))
        })
    }

    /// The error for an answer with a failure status. A refusal of Nomad is permanent. A failure of Nomad, or an answer
    /// of a proxy, is transient.
    fn refusal(&self, status: StatusCode, text: &str) -> ProviderError {
        let mut message = self.scrubbed(text);
        if message.is_empty() {
            message = status.canonical_reason().unwrap_or("no message").to_owned();
        }
        let message = format!("Nomad answered with status {}: {message}", status.as_u16());
        let is_refused = match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::NOT_FOUND => false,
            status if status.is_client_error() => true,
            status if status.is_server_error() => REFUSED.iter().any(|refused| text.contains(refused)),
            _ => false,
        };
        let is_unavailable = matches!(status.as_u16(), 502..=504) || text.contains(NO_LEADER);
        match (is_refused, is_unavailable) {
            (true, _) => ProviderError::permanent(message),
            (false, true) => ProviderError::unavailable(message),
            (false, false) => ProviderError::transient(message),
        }
    }

    fn unreachable(&self, error: reqwest::Error) -> Silence {
        if error.is_timeout() {
            let text = format!("Nomad at {} did not answer in time", self.shown());
            return Silence::Final(ProviderError::unavailable(text));
        }
        // The error names the address once, without secrets.
        let causes = with_causes(&error.without_url());
        let text = format!("Nomad at {} does not answer: {}", self.shown(), self.scrubbed(&causes));
        // Permanent: a retry would send the token to an unknown server.
        if causes.contains(UNVERIFIED) {
            return Silence::Final(ProviderError::permanent(text));
        }
        Silence::Broken(ProviderError::unavailable(text))
    }

    /// The address for messages, without a user name and password.
    pub fn shown(&self) -> String {
        match (self.address.split_once("://"), self.address.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
            _ => self.address.clone(),
        }
    }

    /// A text, cut to a readable length and without the token.
    fn scrubbed(&self, text: &str) -> String {
        let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(token) = self.token.as_ref().map(|token| token.expose_secret()).filter(|token| !token.is_empty()) {
            text = text.replace(token, "…");
        }
        if text.chars().count() > SHOWN { text.chars().take(SHOWN).chain(['…']).collect() } else { text }
    }
}

/// Nomad's answer to every change.
#[derive(Deserialize)]
struct Done {
    #[serde(rename = "EvalID")]
    _evaluation: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reported {
    status: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Placed {
    job: PlacedFor,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PlacedFor {
    meta: Option<Meta>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(rename = "Name")]
    _name: String,
}
