//! Registers the machine with the server. The Auto Scaling group may not list the machine yet, or an earlier agent of
//! the machine may still look alive. Both are temporary, so the agent retries.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::assignment::{SourceError, Token, server_url, variable};
use crate::http::{self, Backoff, Refusal};
use crate::options::Prewarm;

/// The server asks AWS about the machine before it answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const METADATA: &str = "http://169.254.169.254";
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(10);
const LONGEST_ORPHANHOOD: Duration = Duration::from_secs(30 * 24 * 3600);

/// The settings from the environment.
#[derive(Debug)]
pub struct Settings {
    /// Without a trailing slash.
    pub url: String,
    /// The pool's token, with which a machine may register.
    pub token: Token,
    pub instance: Option<String>,
    pub folder: PathBuf,
    pub metadata: String,
}

impl Settings {
    pub fn from_environment() -> Result<Self, SourceError> {
        let needed = |name| variable(name)?.ok_or(SourceError::Runner(name));
        let metadata = variable("GREENROOM_METADATA_URL")?.unwrap_or_else(|| METADATA.to_owned());
        Ok(Self {
            url: server_url(&needed("GREENROOM_URL")?)?,
            token: Token::new(&needed("GREENROOM_RUNNER_TOKEN")?),
            instance: variable("GREENROOM_INSTANCE_ID")?.map(|id| id.trim().to_owned()),
            folder: std::env::var_os("GREENROOM_RUNNER_DIR")
                .filter(|folder| !folder.is_empty())
                .map_or_else(std::env::temp_dir, PathBuf::from),
            metadata: metadata.trim().trim_end_matches('/').to_owned(),
        })
    }
}

/// The server's answer to the registration.
#[derive(Debug)]
pub struct Registration {
    /// The runner's own token.
    pub token: Token,
    pub pool: String,
    pub is_spot: bool,
    pub heartbeat_interval: Duration,
    /// How long an idle runner waits for a server that is down.
    pub orphaned_after: Duration,
}

#[derive(Deserialize)]
struct RegisterResponse {
    token: String,
    pool: String,
    usage_class: String,
    heartbeat_interval_ms: u64,
    orphaned_after_ms: u64,
}

impl From<RegisterResponse> for Registration {
    fn from(answer: RegisterResponse) -> Self {
        Self {
            token: Token::new(&answer.token),
            pool: answer.pool,
            is_spot: answer.usage_class == "spot",
            heartbeat_interval: Duration::from_millis(answer.heartbeat_interval_ms).max(SHORTEST_HEARTBEAT),
            orphaned_after: Duration::from_millis(answer.orphaned_after_ms).min(LONGEST_ORPHANHOOD),
        }
    }
}

/// The registration failed, and a retry would not help.
#[derive(Debug, thiserror::Error)]
pub enum Unregistered {
    #[error("the server does not accept GREENROOM_RUNNER_TOKEN: {0}")]
    Token(Refusal),
    #[error("{0}")]
    Ended(Refusal),
    #[error("registering was refused: {0}")]
    Refused(Refusal),
}

/// Registers, and retries without a time limit.
pub async fn register(http: &Client, settings: &Settings, instance: &str) -> Result<Registration, Unregistered> {
    let what = "registering";
    let mut backoff = Backoff::default();
    // The server repeats a lost answer to an agent that sends the same name.
    let agent = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
    loop {
        let request = http.post(format!("{}/agent/runner", settings.url)).bearer_auth(settings.token.reveal());
        let request = request.json(&json!({"instance_id": instance, "agent": agent})).timeout(ANSWER_TIMEOUT);
        let refusal = match http::read(http::send(request).await) {
            Ok::<RegisterResponse, _>(answer) => return Ok(answer.into()),
            Err(refusal) => refusal,
        };
        match refusal.status() {
            None | Some(StatusCode::NOT_FOUND | StatusCode::CONFLICT) => backoff.wait(what, &refusal).await,
            Some(StatusCode::UNAUTHORIZED) => return Err(Unregistered::Token(refusal)),
            Some(StatusCode::GONE) => return Err(Unregistered::Ended(refusal)),
            Some(_) => return Err(Unregistered::Refused(refusal)),
        }
    }
}

/// Asks whether the pool's runners start commands ahead, and how, until the server answers. A server that does not know
/// the call has no such pools.
pub async fn prewarm(http: &Client, settings: &Settings) -> Option<Prewarm> {
    let mut backoff = Backoff::default();
    loop {
        match pool_settings(http, &settings.url, &settings.token, ANSWER_TIMEOUT).await {
            Ok(prewarm) => return prewarm,
            Err(away @ Refusal::Away { .. }) => backoff.wait("registering", &away).await,
            Err(Refusal::Refused { .. }) => return None,
        }
    }
}

/// Asks once whether the pool's runners start commands ahead, and how.
pub async fn pool_settings(
    http: &Client,
    url: &str,
    token: &Token,
    timeout: Duration,
) -> Result<Option<Prewarm>, Refusal> {
    #[derive(Deserialize)]
    struct PoolSettings {
        prewarm: Option<PrewarmSettings>,
    }
    #[derive(Deserialize)]
    struct PrewarmSettings {
        ready_timeout_ms: u64,
        max_warm_age_ms: u64,
    }
    let request = http.get(format!("{url}/agent/runner")).bearer_auth(token.reveal()).timeout(timeout);
    let settings: PoolSettings = http::read(http::send(request).await)?;
    let of =
        |settings: PrewarmSettings| Prewarm::from_millis(settings.ready_timeout_ms.max(1), settings.max_warm_age_ms);
    Ok(settings.prewarm.map(of))
}
