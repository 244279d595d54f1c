//! Patterns for names of instance types, such as `c* m5.large`.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// More patterns are a mistake, and each one is compared with every slot.
const MOST_PATTERNS: usize = 64;
const LONGEST_PATTERN: usize = 64;
/// The limit on all patterns together, because a bot's requirements are a key of an index.
const LONGEST: usize = 512;

/// Patterns for instance types; a name must match one of them. `*` matches any number of any characters. A pattern must
/// match the whole name, and ignores case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Patterns(Vec<String>);

/// Why a text is not a list of patterns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternsError {
    /// The list is empty.
    #[error("has no pattern; write patterns with spaces between them, such as `c* m5.large`, or leave the field out")]
    Empty,
    /// The list is too long.
    #[error("has more than {MOST_PATTERNS} patterns, or more than {LONGEST} characters")]
    TooMany,
    /// No name can match this pattern.
    #[error(
        "has the pattern `{0}`, which matches no instance type: use letters, digits, `.`, `_`, `-`, and * for any text"
    )]
    Impossible(String),
}

impl Patterns {
    /// The default patterns: general purpose types, and types with more processors or more memory.
    pub fn usual() -> &'static Self {
        static USUAL: OnceLock<Patterns> = OnceLock::new();
        USUAL.get_or_init(|| Patterns(["c*", "m*", "r*"].map(str::to_owned).to_vec()))
    }

    /// Whether the whole name matches one of the patterns.
    pub fn allow(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.0.iter().any(|pattern| matches_wildcard(&name, pattern))
    }
}

/// Whether the whole name matches a pattern, in which `*` matches any number of any characters. The time is at most the
/// length of the name times the length of the pattern.
pub fn matches_wildcard(name: &str, pattern: &str) -> bool {
    matches_by_steps(name.as_bytes(), pattern.as_bytes(), || {})
}

/// Reads the name once: after a mismatch, the last `*` takes one more character. Calls `step` for each comparison.
fn matches_by_steps(name: &[u8], pattern: &[u8], mut step: impl FnMut()) -> bool {
    let (mut at, mut of) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        step();
        if pattern.get(of) == Some(&b'*') {
            star = Some((at, of));
            of += 1;
        } else if pattern.get(of) == Some(&name[at]) {
            at += 1;
            of += 1;
        } else if let Some((from, back)) = star {
            star = Some((from + 1, back));
            at = from + 1;
            of = back + 1;
        } else {
            return false;
        }
    }
    pattern[of..].iter().all(|byte| *byte == b'*')
}

impl TryFrom<String> for Patterns {
    type Error = PatternsError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let patterns: Vec<String> = text.split_ascii_whitespace().map(str::to_ascii_lowercase).collect();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'*');
        let impossible = |pattern: &&String| pattern.len() > LONGEST_PATTERN || !pattern.bytes().all(fits);
        if patterns.is_empty() {
            return Err(PatternsError::Empty);
        }
        if patterns.len() > MOST_PATTERNS || patterns.join(" ").len() > LONGEST {
            return Err(PatternsError::TooMany);
        }
        match patterns.iter().find(impossible) {
            Some(pattern) => Err(PatternsError::Impossible(pattern.clone())),
            None => Ok(Self(patterns)),
        }
    }
}

impl From<Patterns> for String {
    fn from(patterns: Patterns) -> Self {
        patterns.0.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts comparisons, so that the test does not depend on the speed of the machine.
    fn steps(name: &str, pattern: &str) -> (bool, usize) {
        let mut steps = 0;
        let matched = matches_by_steps(name.as_bytes(), pattern.as_bytes(), || steps += 1);
        (matched, steps)
    }

    #[test]
    fn a_hostile_pattern_takes_no_more_steps_than_name_times_pattern() {
        let name = "a".repeat(500);
        for pattern in ["*a".repeat(100) + "b", "*".repeat(500) + "b", "a*".repeat(200) + "b", "*ab".repeat(100)] {
            let (matched, steps) = steps(&name, &pattern);
            assert!(!matched, "{pattern}");
            assert!(steps <= (name.len() + 1) * (pattern.len() + 1), "{steps} steps for {pattern}");
        }
        assert!(steps(&name, &("*a".repeat(100) + "*")).0);
    }

    #[test]
    fn a_star_stands_for_whole_characters_of_any_alphabet_and_case_counts() {
        assert!(matches_wildcard("zürich-1", "z*rich-*"));
        assert!(matches_wildcard("東京-west", "東*-west"));
        assert!(!matches_wildcard("東京-west", "京*"));
        assert!(!matches_wildcard("DC1", "dc*"));
    }
}
