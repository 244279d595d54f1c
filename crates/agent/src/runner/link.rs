//! The calls of a registered runner to the server, with its own token. Each call has its own time limit.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Over, register};
use crate::assignment::{AssignmentPoller, BotData, DataError, SourceError, Token};
use crate::http::{self, Backoff, Refusal};
use crate::log::log;
use crate::options::Prewarm;

/// The server terminates a runner that does not acknowledge its bot within 10 s, and gives the bot to another runner.
const ACKNOWLEDGING: Duration = Duration::from_secs(8);
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(3);
const ACKNOWLEDGE_AGAIN: Duration = Duration::from_millis(500);
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);
/// A runner that does not get new settings in time keeps the ones that it has.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(3);
const SHORTEST_BEAT_TIMEOUT: Duration = Duration::from_secs(3);
const LONGEST_BEAT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Link {
    http: Client,
    url: String,
    token: Token,
}

/// A bot that this runner is to run, as one run of the runner.
#[derive(Debug)]
pub struct Run {
    pub id: String,
    pub data: BotData,
}

impl Run {
    fn parse(text: String) -> Result<Self, DataError> {
        #[derive(Deserialize)]
        struct Named {
            run_id: String,
        }
        let named = serde_json::from_str(&text);
        let data = BotData::parse(text)?;
        let Named { run_id: id } = named.map_err(|_| DataError::Missing("run_id"))?;
        Ok(Self { id, data })
    }
}

/// The server's answer to a heartbeat.
#[derive(Debug, Deserialize)]
pub struct Standing {
    #[serde(default)]
    pub state: String,
    pub stop: bool,
    pub end: bool,
}

/// Whether the runner may run the bot.
#[derive(Debug)]
pub enum Acknowledged {
    Yes,
    No(String),
}

/// The server's answer to the report that no command is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// The runner gets no bot until it registers again.
    Unregistered,
    /// The runner has a bot already.
    Assigned,
    /// Another runner replaces its command at the moment.
    Later,
    /// The server does not know the call. It gives bots also to a runner without a ready command.
    Unsupported,
}

/// The reason to take no more bots, if the refusal is about the runner itself.
fn over(refusal: &Refusal) -> Option<Over> {
    match refusal.status()? {
        StatusCode::GONE => Some(Over::Machine(refusal.to_string())),
        StatusCode::UNAUTHORIZED => Some(Over::Unknown(refusal.to_string())),
        _ => None,
    }
}

fn yes() -> bool {
    true
}

impl Link {
    pub fn new(http: Client, url: String, token: Token) -> Self {
        Self { http, url, token }
    }

    async fn call<T: DeserializeOwned>(&self, path: &str, body: &Value, timeout: Duration) -> Result<T, Refusal> {
        let request = self.http.post(format!("{}/agent/runner/{path}", self.url)).bearer_auth(self.token.reveal());
        http::read(http::send(request.json(body).timeout(timeout)).await)
    }

    pub async fn heartbeat(&self, run: Option<&str>, interval: Duration) -> Result<Standing, Refusal> {
        let timeout = interval.clamp(SHORTEST_BEAT_TIMEOUT, LONGEST_BEAT_TIMEOUT);
        self.call("heartbeat", &json!({"run_id": run}), timeout).await
    }

    /// Waits for the next bot.
    pub async fn next(&self) -> Result<Run, Over> {
        let unusable = |error: SourceError| Over::Machine(error.to_string());
        let waiting = AssignmentPoller::at(&self.url, self.token.clone()).map_err(unusable)?;
        let is_final = |status| status == StatusCode::GONE || status == StatusCode::UNAUTHORIZED;
        let next = waiting.until(&self.http, Run::parse, is_final).await;
        next.map(|(run, _)| run).map_err(|refusal| over(&refusal).unwrap_or_else(|| Over::Unknown(refusal.to_string())))
    }

    /// Accepts the bot, if it still belongs to this runner. Without an answer the runner must not run it, because the
    /// server may have given it to another runner.
    pub async fn acknowledge(&self, run: &str) -> Result<Acknowledged, Over> {
        let body = json!({"run_id": run});
        let mut backoff = Backoff::default();
        let trying = async {
            loop {
                match self.call("acknowledge", &body, ACKNOWLEDGE_TIMEOUT).await {
                    Err(refusal @ Refusal::Away { .. }) => {
                        tokio::time::sleep(backoff.after("acknowledging", &refusal).min(ACKNOWLEDGE_AGAIN)).await;
                    }
                    decided => return decided.map(|_: Value| ()),
                }
            }
        };
        match tokio::time::timeout(ACKNOWLEDGING, trying).await {
            Ok(Ok(())) => Ok(Acknowledged::Yes),
            Ok(Err(refusal)) => over(&refusal).map_or_else(|| Ok(Acknowledged::No(refusal.to_string())), Err),
            Err(_) => Ok(Acknowledged::No("no answer in time".to_owned())),
        }
    }

    /// Releases the runner, and retries without a time limit. Returns whether the runner can get a bot now, without a
    /// new registration. An older server gives bots also to a runner without a ready command.
    pub async fn release(&self, run: &str, is_ready: bool) -> Result<bool, Over> {
        #[derive(Deserialize)]
        struct Released {
            #[serde(default = "yes")]
            registered: bool,
        }
        let what = "giving back";
        let mut backoff = Backoff::default();
        let body = if is_ready { json!({"run_id": run}) } else { json!({"run_id": run, "ready": false}) };
        loop {
            let refusal = match self.call::<Released>("release", &body, RELEASE_TIMEOUT).await {
                Ok(Released { registered }) => {
                    backoff.succeeded(what);
                    return Ok(registered);
                }
                Err(refusal) => refusal,
            };
            // The answer to an earlier attempt may be lost. Then the next heartbeat says whether to register again.
            if refusal.status() == Some(StatusCode::CONFLICT) {
                log!("run {run} is not this runner's any more: {refusal}");
                return Ok(true);
            }
            if let Some(over) = over(&refusal) {
                return Err(over);
            }
            // The runner must not wait for a new run before this release: the server would return the same run again.
            backoff.wait(what, &refusal).await;
        }
    }

    /// Reports that no command is ready, or asks whether to replace one that is too old. Retries without a time limit.
    pub async fn not_ready(&self, message: &str, is_renewal: bool) -> Result<NotReady, Over> {
        #[derive(Deserialize)]
        struct Answer {
            registered: bool,
            assigned: bool,
        }
        let what = "reporting that nothing is ready";
        let body = json!({"message": message, "renewal": is_renewal});
        let mut backoff = Backoff::default();
        loop {
            let refusal = match self.call::<Answer>("not_ready", &body, RELEASE_TIMEOUT).await {
                Ok(Answer { registered: false, .. }) => return Ok(NotReady::Unregistered),
                Ok(Answer { assigned: true, .. }) => return Ok(NotReady::Assigned),
                Ok(_) => return Ok(NotReady::Later),
                Err(refusal) => refusal,
            };
            if let Some(over) = over(&refusal) {
                return Err(over);
            }
            if refusal.status().is_some() {
                return Ok(NotReady::Unsupported);
            }
            backoff.wait(what, &refusal).await;
        }
    }

    /// How the pool's runners start commands ahead, by its configuration of this moment. `Err` if the server does not
    /// say.
    pub async fn prewarm(&self) -> Result<Option<Prewarm>, Refusal> {
        register::pool_settings(&self.http, &self.url, &self.token, SETTINGS_TIMEOUT).await
    }

    /// Reports to the server that this runner ends, within a time limit.
    pub async fn end(&self, reason: &str, patience: Duration) {
        let body = json!({"reason": reason});
        let mut backoff = Backoff::default();
        let trying = async {
            while let Err(refusal) = self.call::<Value>("end", &body, patience).await {
                if refusal.status().is_some() {
                    return;
                }
                backoff.wait("saying the end", &refusal).await;
            }
        };
        if tokio::time::timeout(patience, trying).await.is_err() {
            log!("the server did not hear of the end");
        }
    }
}
