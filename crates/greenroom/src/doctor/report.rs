//! This module holds what the doctor says about one thing: a title, and lines with a label and a text.

use jiff::Timestamp;

use crate::explain::moment::{moment, short_length};
use crate::explain::steps::Step;
use crate::store::FailureRow;

#[derive(Debug, Default)]
pub struct Report {
    pub title: String,
    pub lines: Vec<(String, String)>,
}

impl Report {
    pub fn new(title: String) -> Self {
        Self { title, lines: Vec::new() }
    }

    pub fn add(&mut self, about: &str, text: impl Into<String>) {
        self.lines.push((about.to_owned(), text.into()));
    }

    /// Adds the steps of a bot, each with its duration beside the median of its pool.
    pub fn add_steps(&mut self, steps: &[Step], now: Timestamp) {
        for step in steps {
            let took = step.took_ms.map(|took| format!(", took {}", short_length(took))).unwrap_or_default();
            let median = step.median_ms.map(|median| format!(", median {}", short_length(median))).unwrap_or_default();
            let actor = step.actor.map(|actor| format!(", by {actor}")).unwrap_or_default();
            self.add("step", format!("{} {}{took}{median}{actor}", moment(step.at, now), step.what));
        }
    }

    /// Adds the failures, the latest first, each with the last lines of the log.
    pub fn add_failures(&mut self, failures: &[FailureRow], now: Timestamp) {
        for failure in failures {
            let FailureRow { slot, at, message, log, .. } = failure;
            self.add("failure", format!("{} in {slot}: {message}", moment(*at, now)));
            if let Some(log) = log {
                self.add("failure log", log.as_str());
            }
        }
    }
}
