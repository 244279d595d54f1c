//! What AWS refuses, in its own words: the operation, the code and the message, and whether asking again may help. No
//! credential gets into it, though some of AWS's messages quote the request.

use std::error::Error;

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};

/// How much of a message is kept.
const SHOWN: usize = 500;

/// Codes that say only that AWS cannot answer just now, whatever the status.
const BUSY: [&str; 22] = [
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "LimitExceededException",
    "BandwidthLimitExceeded",
    "SlowDown",
    "PriorRequestNotComplete",
    "TransactionInProgressException",
    "TransactionConflictException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ScalingActivityInProgress",
    "ResourceContention",
    // Credentials that are being renewed.
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "RequestTimeTooSkewed",
];

/// Codes that say that a queue, a table or a group was never made.
const MISSING: [&str; 4] = [
    "ResourceNotFoundException",
    "QueueDoesNotExist",
    "AWS.SimpleQueueService.NonExistentQueue",
    "com.amazonaws.sqs#QueueDoesNotExist",
];

/// Codes whose messages quote the request, and with it a session's token.
const QUOTING: [&str; 3] = ["SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature"];

/// What came of asking AWS, in the caller's terms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AwsError {
    /// AWS has trouble, or is asked too often.
    #[error("{operation}: {message}")]
    Busy { operation: &'static str, message: String },
    /// There was no answer.
    #[error("{operation}: AWS cannot be reached: {message}")]
    Unreachable { operation: &'static str, message: String },
    /// What is asked for was never made.
    #[error("{operation}: {message}; `greenroom aws init` makes the table, the queues and the groups")]
    Missing { operation: &'static str, message: String },
    /// It is not allowed, or not possible.
    #[error("{operation}: {message}")]
    Refused { operation: &'static str, message: String },
    /// An answer or an item that is none.
    #[error("{operation}: {message}")]
    Malformed { operation: &'static str, message: String },
    /// The slot has a runner already.
    #[error("the slot {slot} has a runner already")]
    Taken { slot: String },
}

impl AwsError {
    /// What an operation of AWS came to; `operation` is its name.
    pub(crate) fn new<E>(operation: &'static str, error: SdkError<E, HttpResponse>) -> Self
    where
        E: Error + ProvideErrorMetadata + Send + Sync + 'static,
    {
        match &error {
            SdkError::ServiceError(refused) => {
                let status = refused.raw().status().as_u16();
                Self::answered(operation, status, error.code().unwrap_or_default(), error.message().unwrap_or_default())
            }
            SdkError::ConstructionFailure(_) => {
                Self::Refused { operation, message: shown(&DisplayErrorContext(&error).to_string()) }
            }
            // Also when there are no credentials: whoever gives them may be away for a moment.
            _ => Self::Unreachable { operation, message: shown(&DisplayErrorContext(&error).to_string()) },
        }
    }

    fn answered(operation: &'static str, status: u16, code: &str, message: &str) -> Self {
        let message = match (code, message) {
            (code, _) if QUOTING.contains(&code) => format!("{code}: the request's signature is not accepted"),
            ("", "") => format!("status {status} without words"),
            ("", message) => shown(message),
            (code, "") => format!("{code} (status {status})"),
            (code, message) => shown(&format!("{code}: {message}")),
        };
        if MISSING.contains(&code) {
            return Self::Missing { operation, message };
        }
        if status >= 500 || status == 429 || BUSY.contains(&code) {
            return Self::Busy { operation, message };
        }
        Self::Refused { operation, message }
    }

    pub(crate) fn malformed(operation: &'static str, message: impl Into<String>) -> Self {
        Self::Malformed { operation, message: message.into() }
    }

    /// Whether asking again may help.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Unreachable { .. } | Self::Taken { .. } => true,
            Self::Missing { .. } | Self::Refused { .. } | Self::Malformed { .. } => false,
        }
    }
}

/// The beginning of what AWS says, on one line.
fn shown(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_of_aws_may_pass_and_a_refusal_stays() {
        let of = |status, code| AwsError::answered("GetItem", status, code, "words");
        assert!(of(400, "ProvisionedThroughputExceededException").retryable());
        assert!(of(503, "ServiceUnavailable").retryable());
        assert!(!of(400, "ValidationException").retryable());
        assert!(!of(400, "AccessDeniedException").retryable());
    }

    #[test]
    fn what_was_never_made_is_told_with_the_command_that_makes_it() {
        let error = AwsError::answered("ReceiveMessage", 400, "QueueDoesNotExist", "no such queue");
        assert!(!error.retryable());
        assert_eq!(
            error.to_string(),
            "ReceiveMessage: QueueDoesNotExist: no such queue; `greenroom aws init` makes the table, the queues and the groups"
        );
    }

    #[test]
    fn a_message_that_quotes_the_request_is_not_repeated() {
        let quoting = "The Canonical String should have been 'x-amz-security-token:verysecret'";
        let error = AwsError::answered("PutItem", 403, "InvalidSignatureException", quoting);
        assert!(!error.to_string().contains("verysecret"));
    }
}
