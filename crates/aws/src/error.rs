//! Errors of AWS: the operation, the code, the message, and whether a retry may help. Errors never contain a
//! credential, although some messages of AWS quote the request.

use std::error::Error;

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};

/// The longest part of a message that an error keeps, in characters.
const SHOWN: usize = 500;

/// Codes that mean that AWS cannot answer now, whatever the HTTP status.
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
    // Returned while credentials are being renewed.
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "RequestTimeTooSkewed",
];

/// Codes that mean that a queue, a table or a group does not exist.
const MISSING: [&str; 4] = [
    "ResourceNotFoundException",
    "QueueDoesNotExist",
    "AWS.SimpleQueueService.NonExistentQueue",
    "com.amazonaws.sqs#QueueDoesNotExist",
];

/// Codes whose messages quote the request, which contains a session token.
const QUOTING: [&str; 3] = ["SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature"];

/// The result of a failed call to AWS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AwsError {
    /// AWS has a fault, or throttles the caller.
    #[error("{operation}: {message}")]
    Busy { operation: &'static str, message: String },
    /// AWS did not answer.
    #[error("{operation}: AWS cannot be reached: {message}")]
    Unreachable { operation: &'static str, message: String },
    /// The queue, table or group does not exist.
    #[error("{operation}: {message}; `greenroom aws init` makes the table, the queues and the groups")]
    Missing { operation: &'static str, message: String },
    /// AWS does not allow the call, or it is not possible.
    #[error("{operation}: {message}")]
    Refused { operation: &'static str, message: String },
    /// An answer or an item that cannot be read.
    #[error("{operation}: {message}")]
    Malformed { operation: &'static str, message: String },
    /// The slot already has a runner.
    #[error("the slot {slot} already has a runner")]
    Taken { slot: String },
}

impl AwsError {
    /// The error of a failed AWS call. `operation` is the name of the AWS operation.
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
            // Missing credentials count as unreachable too: their source may be down only for a moment.
            _ => Self::Unreachable { operation, message: shown(&DisplayErrorContext(&error).to_string()) },
        }
    }

    fn answered(operation: &'static str, status: u16, code: &str, message: &str) -> Self {
        let message = match (code, message) {
            (code, _) if QUOTING.contains(&code) => format!("{code}: AWS does not accept the request's signature"),
            ("", "") => format!("status {status} without a message"),
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

    /// Whether a retry may help.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Unreachable { .. } | Self::Taken { .. } => true,
            Self::Missing { .. } | Self::Refused { .. } | Self::Malformed { .. } => false,
        }
    }
}

/// The beginning of a message, on one line.
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
