//! This module holds the description of one thing: a title, and lines with a label and a text.

use std::time::Duration;

use jiff::Timestamp;

use crate::store::FailureRow;

#[derive(Debug, Default)]
pub struct Story {
    pub title: String,
    pub lines: Vec<(String, String)>,
}

impl Story {
    pub fn new(title: String) -> Self {
        Self { title, lines: Vec::new() }
    }

    pub fn add(&mut self, about: &str, text: impl Into<String>) {
        self.lines.push((about.to_owned(), text.into()));
    }

    /// Adds the failures, the latest first, each with the last lines of the log.
    pub fn tell_failures(&mut self, failures: &[FailureRow], now: Timestamp) {
        for failure in failures {
            let FailureRow { slot, at, message, log, .. } = failure;
            self.add("went wrong", format!("{} in {slot}: {message}", moment(*at, now)));
            if let Some(log) = log {
                self.add("its log", log.as_str());
            }
        }
    }
}

/// A time, and how far away it is.
pub fn moment(at: Timestamp, now: Timestamp) -> String {
    let apart = at.duration_since(now);
    let length = length(Duration::from_secs(apart.as_secs().unsigned_abs()));
    let shown = at.strftime("%Y-%m-%dT%H:%M:%SZ");
    if apart.is_negative() { format!("{shown} ({length} ago)") } else { format!("{shown} (in {length})") }
}

/// The time that is `length` after `at`.
pub fn after(at: Timestamp, length: Duration, now: Timestamp) -> String {
    moment(at.saturating_add(length).unwrap_or(Timestamp::MAX), now)
}

fn length(length: Duration) -> String {
    match length.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} min", seconds / 60),
        seconds @ 7_200..=172_799 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_says_how_far_it_is_away() {
        let now: Timestamp = "2026-11-16T12:00:00Z".parse().unwrap();
        assert_eq!(moment("2026-11-16T11:58:59Z".parse().unwrap(), now), "2026-11-16T11:58:59Z (61 s ago)");
        assert_eq!(after(now, Duration::from_secs(300), now), "2026-11-16T12:05:00Z (in 5 min)");
    }
}
