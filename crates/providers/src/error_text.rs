//! Writes errors as text for operators. Libraries name their own parts in their errors, which does not help an
//! operator.

/// Pairs of a library's text for a failed connection and a plain text for it.
const PLAIN: [(&str, &str); 3] = [
    ("Error in the hyper legacy client: ", ""),
    ("client error (Connect)", "cannot connect"),
    ("client error (SendRequest)", "the connection broke"),
];

/// The text of an error with all its causes. "client error" or "error sending request" alone explains nothing.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    // Names of libraries and of their parts do not help an operator.
    for (theirs, ours) in PLAIN {
        text = text.replace(theirs, ours);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct TestError {
        message: &'static str,
        source: Option<Box<TestError>>,
    }

    #[test]
    fn an_error_text_has_every_cause_once() {
        let first = TestError { message: "connection refused", source: None };
        let second = TestError { message: "cannot connect: connection refused", source: Some(Box::new(first)) };
        let third = TestError { message: "error sending request", source: Some(Box::new(second)) };
        assert_eq!(with_causes(&third), "error sending request: cannot connect: connection refused");
        let nested = TestError {
            message: "Error in the hyper legacy client: client error (Connect): No such file",
            source: None,
        };
        assert_eq!(with_causes(&nested), "cannot connect: No such file");
    }
}
