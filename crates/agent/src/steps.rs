//! The steps of a bot that the server traces. The agent has no exporter: it tells the server with the bot's end how
//! long ago each step was, and the server adds the steps to the trace.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What was reached, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The agent got the bot.
    Assigned,
    /// The bot's command runs.
    Command,
    /// The command printed its first line.
    FirstLine,
    /// The command ended.
    Exited,
}

impl Step {
    fn as_str(self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Command => "command",
            Self::FirstLine => "first_line",
            Self::Exited => "exited",
        }
    }
}

/// The trace of one bot.
#[derive(Debug)]
pub struct Steps {
    /// The header `traceparent` of the bot's trace.
    pub traceparent: String,
    reached: Mutex<Vec<(Step, Instant)>>,
}

impl Steps {
    /// Begins with [`Step::Assigned`].
    pub fn new(traceparent: String) -> Self {
        Self { traceparent, reached: Mutex::new(vec![(Step::Assigned, Instant::now())]) }
    }

    /// Notes the first time that a step is reached.
    pub fn note(&self, step: Step) {
        let mut reached = self.reached();
        if reached.iter().all(|(known, _)| *known != step) {
            reached.push((step, Instant::now()));
        }
    }

    /// How many milliseconds ago each step was reached.
    pub fn header(&self) -> String {
        let pair = |(step, at): &(Step, Instant)| format!("{}={}", step.as_str(), at.elapsed().as_millis());
        self.reached().iter().map(pair).collect::<Vec<_>>().join(",")
    }

    fn reached(&self) -> MutexGuard<'_, Vec<(Step, Instant)>> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
