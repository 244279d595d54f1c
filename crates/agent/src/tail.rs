//! The last part of the bot's output, with the time of each line. People read it as the bot's log when its machine is
//! gone. The server keeps 64 KiB, so the agent keeps no more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde_json::{Value, json};

/// The limit on text. The limit on lines bounds the extra size of JSON.
const BYTES_MAX: usize = 64 * 1024;
const LINES_MAX: usize = 5_000;
/// A longer line is split.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// How much of a line a failure report shows.
const SHOWN_BYTES_MAX: usize = 500;
/// How many warnings are kept for a bot.
const WARNINGS_MAX: usize = 5;

/// The stream of some output.
#[derive(Clone, Copy, Debug)]
pub enum Stream {
    Output = 0,
    Errors = 1,
}

#[derive(Debug, Default)]
pub struct Tail(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<(Timestamp, String)>,
    bytes: usize,
    truncated: bool,
    /// For each stream, the text that has no line break yet.
    begun: [Vec<u8>; 2],
    warnings: Vec<String>,
    is_unsent: bool,
}

impl Tail {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output, in whole or partial lines.
    pub fn print(&self, stream: Stream, bytes: &[u8]) {
        let (mut state, now) = (self.state(), Timestamp::now());
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let begun = &mut state.begun[stream as usize];
            begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(begun);
                state.push(&line, now);
            } else if begun.len() > LINE_BYTES_MAX {
                let rest = begun.split_off(crate::lines::character_boundary(begun));
                let line = std::mem::replace(begun, rest);
                state.push(&line, now);
            }
        }
    }

    /// Adds a warning about bot output that had no effect. Returns false if it is known already, or there are too many.
    pub fn warn(&self, text: &str) -> bool {
        let mut state = self.state();
        if state.warnings.len() >= WARNINGS_MAX || state.warnings.iter().any(|known| known == text) {
            return false;
        }
        state.warnings.push(text.to_owned());
        state.push(format!("warning: {text}").as_bytes(), Timestamp::now());
        true
    }

    /// The last lines, for a failure report; empty if nothing was printed.
    pub fn last_lines(&self, count: usize) -> String {
        let state = self.state();
        let lines = state.lines.iter().skip(state.lines.len().saturating_sub(count));
        lines.map(|(_, text)| format!("\n{}", &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)])).collect()
    }

    pub fn is_unsent(&self) -> bool {
        self.state().is_unsent
    }

    /// The body to send, if there is new output.
    pub fn unsent(&self) -> Option<Value> {
        let mut state = self.state();
        std::mem::take(&mut state.is_unsent).then(|| state.body())
    }

    /// Marks the output as not sent, after a failed attempt.
    pub fn keep_unsent(&self) {
        self.state().is_unsent = true;
    }

    /// All of the output, including unfinished lines, after the process has ended.
    pub fn last(&self) -> Value {
        let (mut state, now) = (self.state(), Timestamp::now());
        for stream in 0..state.begun.len() {
            let line = std::mem::take(&mut state.begun[stream]);
            if !line.is_empty() {
                state.push(&line, now);
            }
        }
        state.is_unsent = false;
        state.body()
    }
}

impl State {
    fn push(&mut self, line: &[u8], now: Timestamp) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end_matches(['\n', '\r']);
        // One long line becomes several, so dropping the oldest line never drops everything.
        let mut rest = text;
        loop {
            let (part, after) = rest.split_at(rest.floor_char_boundary(LINE_BYTES_MAX));
            let part: String = part.chars().filter(|c| *c != '\0').collect();
            self.bytes += part.len();
            self.lines.push_back((now, part));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        while self.bytes > BYTES_MAX || self.lines.len() > LINES_MAX {
            let Some((_, dropped)) = self.lines.pop_front() else { break };
            self.bytes -= dropped.len();
            self.truncated = true;
        }
        self.is_unsent = true;
    }

    fn body(&self) -> Value {
        let lines: Vec<Value> =
            self.lines.iter().map(|(at, text)| json!({"at": format!("{at:.6}"), "text": text})).collect();
        json!({"lines": lines, "truncated": self.truncated, "warnings": self.warnings})
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn texts(body: &Value) -> Vec<&str> {
        body["lines"].as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap()).collect()
    }

    #[test]
    fn lines_of_both_streams_are_put_together_from_their_parts() {
        let tail = Tail::default();
        tail.print(Stream::Output, b"one\ntw");
        tail.print(Stream::Errors, b"err\0or\r\n");
        tail.print(Stream::Output, b"o\nthree");
        assert_eq!(texts(&tail.unsent().unwrap()), ["one", "error", "two"]);
        assert!(tail.unsent().is_none());
        assert_eq!(texts(&tail.last()), ["one", "error", "two", "three"]);
    }

    #[test]
    fn the_oldest_lines_are_dropped_past_64_kib_and_a_body_fits_a_request() {
        let tail = Tail::default();
        tail.print(Stream::Output, b"first\n");
        tail.print(Stream::Output, &b"\x01".repeat(3 * BYTES_MAX));
        for _ in 0..LINES_MAX {
            tail.print(Stream::Errors, b"\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\n");
        }
        let body = tail.last();
        assert_eq!(body["truncated"], true);
        assert!(!texts(&body).contains(&"first"));
        assert!(texts(&body).iter().map(|text| text.len()).sum::<usize>() <= BYTES_MAX);
        assert!(body.to_string().len() < 1024 * 1024, "{}", body.to_string().len());
    }

    #[test]
    fn a_warning_is_told_once_and_at_most_five_are() {
        let tail = Tail::default();
        assert!(tail.warn("one"));
        assert!(!tail.warn("one"));
        let reported = (0..10).filter(|number| tail.warn(&number.to_string())).count();
        assert_eq!(reported, WARNINGS_MAX - 1);
        assert_eq!(texts(&tail.last())[0], "warning: one");
    }
}
