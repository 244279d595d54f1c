//! The results of a provider's checks, which the operator reads.

use super::ProviderError;

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// Useful to know. The operator need not act.
    Note,
    /// It works, but not as well as it could, or not for all slots.
    Doubtful,
    Bad,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub what: &'static str,
    pub verdict: Verdict,
    /// A sentence for a person. For a problem, the provider's own error text.
    pub found: String,
}

impl Check {
    pub fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Good, found: found.into() }
    }

    pub fn note(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Note, found: found.into() }
    }

    pub fn doubtful(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Doubtful, found: found.into() }
    }

    pub fn bad(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Bad, found: found.into() }
    }

    /// Good with this text, or bad with the provider's error.
    pub fn of(what: &'static str, found: Result<String, ProviderError>) -> Self {
        match found {
            Ok(found) => Self::good(what, found),
            Err(error) => Self::bad(what, error.message),
        }
    }
}
