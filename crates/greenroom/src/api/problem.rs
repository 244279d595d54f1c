//! Refusals: RFC 9457 problem documents. The one place that turns the errors of every module into what a caller sees.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use domain::MeetingError;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::admission::AdmissionError;
use crate::deployment::ManualRecoveryError;
use crate::keepers::KeeperError;
use crate::lifecycle::LifecycleError;
use crate::placement::PlacementError;
use crate::placement::pool_size::ResizeError;
use crate::placement::probe::ProbeError;
use crate::random::NoRandomness;
use crate::runners::RunnerError;
use crate::store::StoreError;

use super::middleware::request_id;

/// How long a user at its limit is asked to wait before it tries again: bots end when they end.
const RETRY_AFTER_LIMIT: u32 = 10;
/// How long to wait for a database that does not answer.
const RETRY_AFTER_UNAVAILABLE: u32 = 2;
/// How long to wait for a server that has too much to do.
const RETRY_AFTER_OVERLOADED: u32 = 1;

/// Why a request was refused. `code` is what a program looks at, `detail` what a person reads.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    more: Map<String, Value>,
    retry_after: Option<u32>,
}

/// An error, as a problem document of RFC 9457.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDto {
    /// `about:blank`; `code` identifies the kind of error.
    #[serde(rename = "type")]
    #[schema(example = "about:blank")]
    pub kind: String,
    /// The name of the HTTP status.
    #[schema(example = "Unprocessable Entity")]
    pub title: String,
    /// The HTTP status.
    #[schema(example = 422)]
    pub status: u16,
    /// The code of the error, for programs.
    #[schema(example = "invalid")]
    pub code: String,
    /// The explanation of the error, for people. It starts with the name of the wrong field, if there is one.
    #[schema(example = "`priority`: invalid type: string \"high\", expected i32")]
    pub detail: String,
    /// The id of the request, the same as in the header `X-Request-Id`. The log of the server contains it.
    pub request_id: String,
    /// With `duplicate_bot`: the other bot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub bot_id: Option<uuid::Uuid>,
    /// With `invalid_transition`: the status of the bot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<super::dto::StatusWord>, nullable = false)]
    pub bot_status: Option<&'static str>,
    /// With `limit_reached`: how many bots count against the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub running: Option<i64>,
    /// With `limit_reached`: how many bots the user may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_concurrent_bots: Option<i64>,
}

/// The errors of callbacks.
#[derive(Debug, utoipa::IntoResponses)]
pub enum CallbackRefusals {
    /// `stale_connection`: this is not the current connection of the bot; `invalid_transition`: the status of the bot
    /// does not allow this call
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(#[allow(dead_code)] ProblemDto),
    /// `bot_ended`: the bot has ended, and this call does not repeat an earlier one
    #[response(status = 410, content_type = "application/problem+json")]
    Ended(#[allow(dead_code)] ProblemDto),
}

impl Problem {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), more: Map::new(), retry_after: None }
    }

    /// The code for programs and the text for people.
    pub fn into_parts(self) -> (&'static str, String) {
        (self.code, self.detail)
    }

    /// A field that is there and cannot be taken.
    pub fn invalid(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("`{field}`: {why}"))
    }

    /// A field of the contract whose part is not built yet: never ignored.
    pub fn unsupported(field: &str) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "unsupported",
            format!("`{field}`: this version of Greenroom does not support this field, so it refused the request"),
        )
    }

    pub fn malformed(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", why.to_string())
    }

    pub fn unauthorized(why: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", why)
    }

    pub fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no such {what}"))
    }

    /// Something is wrong here, not there. What it is goes to the log; the caller gets the id to ask with.
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the server failed; its log has the cause under the request id",
        )
    }

    pub fn unavailable(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail);
        problem.retry_after = Some(RETRY_AFTER_UNAVAILABLE);
        problem
    }

    /// More is under way than the server takes on at once.
    pub fn overloaded(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail);
        problem.retry_after = Some(RETRY_AFTER_OVERLOADED);
        problem
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = self.more;
        for (key, value) in [
            ("type", json!("about:blank")),
            ("title", json!(self.status.canonical_reason().unwrap_or("Error"))),
            ("status", json!(self.status.as_u16())),
            ("code", json!(self.code)),
            ("detail", json!(self.detail)),
            ("request_id", json!(request_id())),
        ] {
            body.insert(key.to_owned(), value);
        }
        let mut response = (self.status, Value::Object(body).to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable { .. } => {
                tracing::error!(%error, "database unavailable");
                Problem::unavailable("the database does not answer; try again")
            }
            StoreError::Stopping { .. } => Problem::unavailable("the server is stopping"),
            StoreError::Internal { .. } => {
                tracing::error!(%error, "internal fault found");
                Problem::internal()
            }
            _ => {
                tracing::error!(%error, "database call failed");
                Problem::internal()
            }
        }
    }
}

impl From<RunnerError> for Problem {
    fn from(error: RunnerError) -> Self {
        let refused = |status, code| Problem::new(status, code, error.to_string());
        match error {
            RunnerError::OtherMachine | RunnerError::NoRunners(_) => Problem::unauthorized(error.to_string()),
            RunnerError::NotInGroup => refused(StatusCode::NOT_FOUND, "not_found"),
            RunnerError::AlreadyRegistered => refused(StatusCode::CONFLICT, "already_registered"),
            RunnerError::Ended => refused(StatusCode::GONE, "runner_ended"),
            RunnerError::StaleRun => refused(StatusCode::CONFLICT, "stale_run"),
            RunnerError::Aws { retryable, .. } => {
                tracing::error!(%error, "AWS call failed");
                if retryable { Problem::unavailable("a call to AWS failed; try again") } else { Problem::internal() }
            }
            RunnerError::Store(error) => error.into(),
        }
    }
}

impl From<KeeperError> for Problem {
    fn from(error: KeeperError) -> Self {
        match error {
            KeeperError::Store(error) => error.into(),
            KeeperError::LeadershipLost => Problem::unavailable(error.to_string()),
            KeeperError::Panicked(_) => {
                tracing::error!(%error, "internal fault found");
                Problem::internal()
            }
        }
    }
}

impl From<NoRandomness> for Problem {
    fn from(error: NoRandomness) -> Self {
        tracing::error!(%error, "random source failed");
        Problem::internal()
    }
}

impl From<AdmissionError> for Problem {
    fn from(error: AdmissionError) -> Self {
        match error {
            AdmissionError::Unauthorized | AdmissionError::SessionEnded => Problem::unauthorized(error.to_string()),
            AdmissionError::Store(error) => error.into(),
            AdmissionError::Random(error) => error.into(),
        }
    }
}

impl From<PlacementError> for Problem {
    fn from(error: PlacementError) -> Self {
        match error {
            PlacementError::Unauthorized => Problem::unauthorized(error.to_string()),
            PlacementError::NoSuchUser => Problem::invalid("user_id", error),
            PlacementError::PriorityTooLow { .. } => Problem::invalid("priority", error),
            PlacementError::IdempotencyMismatch => {
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_mismatch", error.to_string())
            }
            PlacementError::DuplicateBot(bot) => {
                Problem::new(StatusCode::CONFLICT, "duplicate_bot", format!("{error}: {bot}"))
                    .with("bot_id", bot.to_string())
            }
            PlacementError::LimitReached { running, limit } => {
                let detail = if limit == 0 {
                    "your limit of running bots is 0".to_owned()
                } else if running < limit {
                    format!(
                        "you have too many bots that are still stopping: running and stopping bots together may be at \
                         most {}",
                        limit.saturating_mul(2)
                    )
                } else {
                    format!("you have {running} running bots, and your limit is {limit}")
                };
                let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", detail)
                    .with("running", running)
                    .with("max_concurrent_bots", limit);
                problem.retry_after = Some(RETRY_AFTER_LIMIT);
                problem
            }
            PlacementError::NoPool(_) => Problem::invalid("platform", error),
            PlacementError::NoneFits(_) => Problem::invalid("requirements", error),
            PlacementError::Stopping => Problem::unavailable(error.to_string()),
            PlacementError::Overloaded => Problem::overloaded(error.to_string()),
            PlacementError::Store(error) => error.into(),
            PlacementError::Random(error) => error.into(),
        }
    }
}

impl From<ProbeError> for Problem {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::NotFound => Problem::not_found("pool"),
            ProbeError::NotConfigured(_) | ProbeError::NoSlots(_) => {
                Problem::new(StatusCode::CONFLICT, "invalid_transition", error.to_string())
            }
            ProbeError::Running(bot) => Problem::new(StatusCode::CONFLICT, "duplicate_bot", format!("{error}: {bot}"))
                .with("bot_id", bot.to_string()),
            ProbeError::TooMany { running, limit } => {
                let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", error.to_string())
                    .with("running", running)
                    .with("max_concurrent_bots", limit);
                problem.retry_after = Some(RETRY_AFTER_LIMIT);
                problem
            }
            ProbeError::Placement(error) => error.into(),
        }
    }
}

impl From<ResizeError> for Problem {
    fn from(error: ResizeError) -> Self {
        match error {
            ResizeError::NotFound => Problem::not_found("pool"),
            ResizeError::MaxSlots => Problem::invalid("max_slots", error),
            ResizeError::MinIdle { .. } => Problem::invalid("min_idle", error),
            ResizeError::Store(error) => error.into(),
        }
    }
}

impl From<ManualRecoveryError> for Problem {
    fn from(error: ManualRecoveryError) -> Self {
        match error {
            ManualRecoveryError::NotFound => Problem::not_found("slot"),
            ManualRecoveryError::NotInError(_) | ManualRecoveryError::InProgress => {
                Problem::new(StatusCode::CONFLICT, "invalid_transition", error.to_string())
            }
            ManualRecoveryError::Store(error) => error.into(),
        }
    }
}

impl From<LifecycleError> for Problem {
    fn from(error: LifecycleError) -> Self {
        match error {
            LifecycleError::Stopping => Problem::unavailable(error.to_string()),
            LifecycleError::NotFound => Problem::not_found("bot"),
            LifecycleError::Unauthorized => Problem::unauthorized(error.to_string()),
            LifecycleError::StaleConnection => {
                Problem::new(StatusCode::CONFLICT, "stale_connection", error.to_string())
            }
            LifecycleError::InvalidTransition(status) => {
                Problem::new(StatusCode::CONFLICT, "invalid_transition", error.to_string())
                    .with("bot_status", status.as_str())
            }
            LifecycleError::BotEnded { status, ref reason } => {
                let reason = reason.clone();
                Problem::new(StatusCode::GONE, "bot_ended", error.to_string())
                    .with("bot_status", status.as_str())
                    .with("reason", reason)
            }
            LifecycleError::Store(error) => error.into(),
            LifecycleError::Random(error) => error.into(),
        }
    }
}

impl Problem {
    /// For users and operators a bot's end is a conflict with what they ask; for the bot itself it is gone.
    pub fn ended_is_conflict(mut self) -> Self {
        if self.code == "bot_ended" {
            self.status = StatusCode::CONFLICT;
        }
        self
    }

    /// A meeting that was not understood, under the field that named it.
    pub fn meeting(field: &str, error: MeetingError) -> Self {
        Problem::invalid(field, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_internal_fault_is_not_reported_as_an_unavailable_database() {
        let faults = [
            Problem::from(StoreError::internal("placement", "no copy")),
            Problem::from(KeeperError::Panicked("index out of bounds".to_owned())),
            Problem::from(PlacementError::Store(StoreError::internal("budgets.hold", "no row"))),
            Problem::from(StoreError::Inconsistent {
                call: "bots.by_id",
                table: "bots".to_owned(),
                column: "status",
                row: "id 1".to_owned(),
                found: "`dancing`".to_owned(),
            }),
        ];
        for problem in faults {
            assert_eq!((problem.status, problem.code), (StatusCode::INTERNAL_SERVER_ERROR, "internal"), "{problem:?}");
            assert!(!problem.detail.contains("database"), "{problem:?}");
        }
    }

    #[test]
    fn a_temporary_error_is_unavailable_and_names_its_cause() {
        for (problem, detail) in [
            (Problem::from(StoreError::timed_out("bots.list")), "the database does not answer; try again"),
            (Problem::from(StoreError::Stopping { call: "placement" }), "the server is stopping"),
            (Problem::from(PlacementError::Stopping), "the server is stopping"),
            (Problem::from(KeeperError::LeadershipLost), "another replica leads now; try again"),
        ] {
            assert_eq!((problem.status, problem.code), (StatusCode::SERVICE_UNAVAILABLE, "unavailable"), "{problem:?}");
            assert_eq!(problem.detail, detail);
        }
    }
}
