//! What went wrong, in the words of the person at the terminal: what happened, what to do next, and the exit code.

use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

use reqwest::StatusCode;
use serde_json::Value;

use crate::show::clean;

/// The exit codes. Scripts depend on them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    /// The reader of standard output has gone, as with `| head`.
    NoReader = 0,
    Failed = 1,
    Usage = 2,
    BotFailed = 3,
    NotAllowed = 4,
    NotFound = 5,
    LimitReached = 6,
    Unreachable = 7,
    TimedOut = 8,
    /// Ctrl-C, as shells count it.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    pub exit: Exit,
    pub message: String,
    /// What the person can do.
    pub next: Option<String>,
    pub request_id: Option<String>,
    /// The code of the server's refusal.
    pub code: Option<String>,
}

pub type Done = Result<(), CliError>;

impl CliError {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), next: None, request_id: None, code: None }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, message)
    }

    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// The server answered with an error.
    pub fn refused(status: StatusCode, body: &str, retry_after: Option<&str>, request_id: Option<&str>) -> Self {
        let problem: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        let text = |field: &str| problem[field].as_str().map(str::to_owned);
        let code = text("code");
        let exit = match status {
            // A proxy answers in place of a server that is being started again.
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
                if code.is_none() =>
            {
                Exit::Unreachable
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::NotAllowed,
            StatusCode::NOT_FOUND => Exit::NotFound,
            StatusCode::TOO_MANY_REQUESTS => Exit::LimitReached,
            _ => Exit::Failed,
        };
        let message = text("detail").unwrap_or_else(|| format!("the server answered {status}"));
        let next = next_step(status, code.as_deref(), &problem, retry_after);
        Self { exit, message, next, request_id: text("request_id").or(request_id.map(str::to_owned)), code }
    }

    /// The server did not answer.
    pub fn unreachable(server: &str, error: &reqwest::Error) -> Self {
        let why = if error.is_timeout() { "it did not answer in time".to_owned() } else { root_cause(error) };
        Self::new(Exit::Unreachable, format!("cannot reach the server {server}: {why}"))
            .next("Start the server with `greenroom`, or name another one with --server or GREENROOM_SERVER.")
    }

    /// The server took the connection, and sent nothing.
    pub fn silent(server: &str) -> Self {
        Self::new(Exit::Unreachable, format!("cannot reach the server {server}: it did not answer in time"))
    }

    /// No Greenroom server answers so.
    pub fn foreign(server: &str, why: &str) -> Self {
        Self::failed(format!("the answer of {server} cannot be read: {why}"))
            .next("This may be another server than Greenroom. Check --server and GREENROOM_SERVER.")
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        self.exit == Exit::Unreachable || matches!(self.code.as_deref(), Some("unavailable" | "overloaded"))
    }

    /// The text for standard error.
    pub fn report(&self) -> String {
        let mut text = format!("greenroom: {}\n", clean(&self.message));
        if let Some(next) = &self.next {
            let _ = writeln!(text, "  {}", clean(next));
        }
        if let Some(id) = &self.request_id {
            let _ = writeln!(text, "  request id: {}", clean(id));
        }
        text
    }
}

/// The error at the bottom, which says what really happened. It never contains a header, so no token either.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    cause.to_string()
}

fn next_step(status: StatusCode, code: Option<&str>, problem: &Value, retry_after: Option<&str>) -> Option<String> {
    let next = match (code, status) {
        (_, StatusCode::UNAUTHORIZED) => {
            "Sign in with `greenroom login`, or set GREENROOM_TOKEN to the admin token or an API key.".to_owned()
        }
        (Some("duplicate_bot"), _) => match problem["bot_id"].as_str() {
            Some(bot) => {
                format!("See it with `greenroom bots show {bot}`, or stop it with `greenroom bots stop {bot}`.")
            }
            None => "See your bots with `greenroom bots list --open`.".to_owned(),
        },
        (Some("limit_reached"), _) => match (&problem["running"], &problem["max_concurrent_bots"]) {
            (Value::Number(running), Value::Number(limit)) => format!(
                "{running} of {limit} bots run. Wait until one ends, or stop one: `greenroom bots list --open`."
            ),
            _ => "Wait until a bot ends, or stop one: `greenroom bots list --open`.".to_owned(),
        },
        (Some("idempotency_mismatch"), _) => "Use another --idempotency-key for another request.".to_owned(),
        (Some("bot_ended"), _) => "A bot that has ended cannot be changed. Start a new one.".to_owned(),
        (Some("not_found"), _) | (None, StatusCode::NOT_FOUND) => return None,
        (_, status) if status.is_redirection() => "Name the final address of the server with --server.".to_owned(),
        (None, status) if !status.is_server_error() => {
            "This may be another server than Greenroom. Check --server and GREENROOM_SERVER.".to_owned()
        }
        _ => format!("Try again in {} s.", retry_after?),
    };
    Some(next)
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::NoReader, String::new()),
            _ => Self::failed(format!("cannot write: {error}")),
        }
    }
}

/// Prints an error and returns its exit code.
pub fn report(error: &CliError) -> ExitCode {
    if error.exit != Exit::NoReader {
        use io::Write as _;
        // Standard error may be closed too; then nobody can be told.
        let _ = io::stderr().write_all(error.report().as_bytes());
    }
    error.exit.into()
}

#[cfg(test)]
mod tests {
    use super::{CliError, Exit};
    use reqwest::StatusCode;

    #[test]
    fn an_answer_of_a_proxy_may_pass_and_a_refusal_of_the_server_keeps_its_meaning() {
        for status in [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT] {
            let error = CliError::refused(status, "<h1>nginx</h1>", None, None);
            assert!(error.exit == Exit::Unreachable && error.is_transient(), "{error:?}");
        }
        let refused = |status, body| CliError::refused(status, body, None, None);
        let timeout = refused(StatusCode::GATEWAY_TIMEOUT, r#"{"code": "timeout"}"#);
        assert!(timeout.exit == Exit::Failed && !timeout.is_transient(), "{timeout:?}");
        assert!(refused(StatusCode::SERVICE_UNAVAILABLE, r#"{"code": "overloaded"}"#).is_transient());
        assert!(!refused(StatusCode::INTERNAL_SERVER_ERROR, "").is_transient());
    }
}
