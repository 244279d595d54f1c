//! HTTP requests to the server. The main question about a failure is whether to retry: a server that is down or
//! overloaded has not decided, but a refusal is a decision.

use std::error::Error;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Certificate, Client, ClientBuilder, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::log::log;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// The longest `Retry-After` that the agent follows. A longer pause would miss the server's return.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(120);

/// A request that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The server did not decide; a retry may succeed.
    #[error("{why}")]
    Away { why: String, retry_after: Option<Duration> },
    /// The server refused; a retry gives the same answer.
    #[error("{}", refused(*.status, .code, .detail))]
    Refused { status: StatusCode, code: String, detail: String },
}

fn refused(status: StatusCode, code: &str, detail: &str) -> String {
    // An answer may come from a proxy, without Greenroom's code and detail.
    let mut message = status.to_string();
    for (gap, more) in [(" ", code), (": ", detail)].into_iter().filter(|(_, more)| !more.is_empty()) {
        message.push_str(gap);
        message.push_str(more);
    }
    message
}

impl Refusal {
    /// The HTTP status of the refusal, if the server decided.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Refusal::Away { .. } => None,
            Refusal::Refused { status, .. } => Some(*status),
        }
    }

    /// Whether the server said when to retry.
    pub fn asks_for_patience(&self) -> bool {
        matches!(self, Refusal::Away { retry_after: Some(_), .. })
    }

    /// Whether the server does not accept this assignment any more.
    pub fn ends_assignment(&self) -> bool {
        match self {
            Refusal::Away { .. } => false,
            Refusal::Refused { status, code, .. } => match *status {
                StatusCode::UNAUTHORIZED | StatusCode::GONE => true,
                StatusCode::CONFLICT => code == "stale_connection" || code == "bot_ended",
                _ => false,
            },
        }
    }

    /// Whether the refusal is about the content of the request: other content may be accepted.
    pub fn is_about_content(&self) -> bool {
        let about = [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNPROCESSABLE_ENTITY];
        matches!(self, Refusal::Refused { status, .. } if about.contains(status))
    }
}

#[derive(Debug, Default, Deserialize)]
struct Problem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    detail: String,
}

/// Uses the certificate roots of the machine. A minimal container has none; there the client uses its built-in roots,
/// so that plain HTTP still works.
pub fn client() -> Result<Client, reqwest::Error> {
    build(Client::builder)
}

/// For addresses on the machine's own link, which a proxy cannot reach.
pub fn direct_client() -> Result<Client, reqwest::Error> {
    build(|| Client::builder().no_proxy())
}

fn build(begin: impl Fn() -> ClientBuilder) -> Result<Client, reqwest::Error> {
    let builder = || {
        begin()
            .connect_timeout(CONNECT_TIMEOUT)
            // A redirected POST would arrive as a GET.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("greenroom-agent/", env!("CARGO_PKG_VERSION")))
    };
    builder().build().or_else(|_| {
        let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS;
        let roots = roots.iter().map(|root| Certificate::from_der(root)).collect::<Result<Vec<_>, _>>()?;
        builder().tls_certs_only(roots).build()
    })
}

/// A successful answer.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

/// Sends a request. Returns the status and the text of a success.
pub async fn send(request: RequestBuilder) -> Result<(StatusCode, String), Refusal> {
    exchange(request).await.map(|reply| (reply.status, reply.text))
}

/// Sends a request. Returns status, headers and text of a success.
pub async fn exchange(request: RequestBuilder) -> Result<Reply, Refusal> {
    let away = |error: reqwest::Error| Refusal::Away { why: why(&error), retry_after: None };
    let response = request.send().await.map_err(away)?;
    let status = response.status();
    let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let headers = response.headers().clone();
    let text = response.text().await.map_err(away)?;
    if status.is_success() {
        return Ok(Reply { status, headers, text });
    }
    let decided =
        status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT && status != StatusCode::TOO_MANY_REQUESTS;
    if !decided {
        let retry_after = retry_after.map(Duration::from_secs);
        return Err(Refusal::Away { why: format!("the server answers {status}"), retry_after });
    }
    let problem: Problem = serde_json::from_str(&text).unwrap_or_default();
    Err(Refusal::Refused { status, code: problem.code, detail: problem.detail })
}

/// Reads the text of a success. Text that cannot be read comes from a proxy, so it counts as no decision.
pub fn read<T: DeserializeOwned>(answer: Result<(StatusCode, String), Refusal>) -> Result<T, Refusal> {
    let (_, text) = answer?;
    serde_json::from_str(&text)
        .map_err(|_| Refusal::Away { why: "the answer was not understood".to_owned(), retry_after: None })
}

/// The root cause of an error. Leaves out the URL, which does not belong in a log.
fn why(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if error.is_connect() {
        format!("no connection: {cause}")
    } else if error.is_timeout() {
        "no answer in time".to_owned()
    } else if error.source().is_some() {
        format!("the connection broke: {cause}")
    } else {
        "the connection broke".to_owned()
    }
}

/// The delay between retries. It doubles and has jitter, so the agents of a fleet do not all return at the same moment
/// after a restart of the server.
#[derive(Debug)]
pub struct Backoff {
    tries: u32,
    delays: domain::Backoff,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { tries: 0, delays: domain::Backoff::new(FIRST_DELAY, LONGEST_DELAY) }
    }
}

impl Backoff {
    pub fn next(&mut self, refusal: Option<&Refusal>) -> Duration {
        self.tries = self.tries.saturating_add(1);
        let delay = self.delays.next_delay().mul_f64(0.75 + fastrand::f64() * 0.25);
        match refusal {
            Some(Refusal::Away { retry_after: Some(after), .. }) => delay.max((*after).min(LONGEST_RETRY_AFTER)),
            _ => delay,
        }
    }

    /// Like `next`, and sometimes logs the reason: the first time, and then less and less often.
    pub fn after(&mut self, what: &str, refusal: &Refusal) -> Duration {
        let delay = self.next(Some(refusal));
        if self.tries.is_power_of_two() {
            log!("{what}: {refusal}; trying again");
        }
        delay
    }

    pub async fn wait(&mut self, what: &str, refusal: &Refusal) {
        tokio::time::sleep(self.after(what, refusal)).await;
    }

    pub fn succeeded(&mut self, what: &str) {
        if self.tries > 0 {
            log!("{what}: the server is back");
        }
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_from_a_tenth_of_a_second_to_five_seconds_and_stay_there() {
        let mut backoff = Backoff::default();
        let delays: Vec<u128> = (0..40).map(|_| backoff.next(None).as_millis()).collect();
        assert!((75..=100).contains(&delays[0]), "{delays:?}");
        assert!((150..=200).contains(&delays[1]), "{delays:?}");
        assert!(delays[6..].iter().all(|delay| (3750..=5000).contains(delay)), "{delays:?}");
    }

    #[test]
    fn a_server_that_asks_for_patience_gets_it_within_reason() {
        let asks = |seconds| Refusal::Away { why: String::new(), retry_after: Some(Duration::from_secs(seconds)) };
        assert_eq!(Backoff::default().next(Some(&asks(7))), Duration::from_secs(7));
        assert_eq!(Backoff::default().next(Some(&asks(86_400))), LONGEST_RETRY_AFTER);
    }
}
