//! What a provider says of itself when a person has it examined.

use super::ProviderError;

/// How something was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// Good to know, and nothing to mend.
    Note,
    /// It works, but not as well as it could, or not for as many.
    Doubtful,
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub what: &'static str,
    pub verdict: Verdict,
    /// A sentence for a person; the provider's own words where something is wrong.
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

    /// Good with these words, or bad with the provider's.
    pub fn of(what: &'static str, found: Result<String, ProviderError>) -> Self {
        match found {
            Ok(found) => Self::good(what, found),
            Err(error) => Self::bad(what, error.message),
        }
    }
}
