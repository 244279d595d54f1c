//! Reads the command's output. Each line is an event or log. A bot may print anything, so lines of any length and any
//! bytes must pass without being held in memory whole.

use serde::Deserialize;
use serde_json::value::RawValue;
use strsim::levenshtein;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// The longest line that can be an event.
const LONGEST: usize = 1024 * 1024;

/// A part of the output, with its line break if it has one.
#[derive(Debug, PartialEq, Eq)]
pub enum Printed {
    Line(Vec<u8>),
    /// A piece of a line that is too long to be an event.
    Piece(Vec<u8>),
}

#[derive(Debug)]
pub struct Lines<R> {
    reader: BufReader<R>,
    held: Vec<u8>,
    in_long_line: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub fn new(reader: R) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, reader), held: Vec::new(), in_long_line: false }
    }

    pub async fn next(&mut self) -> std::io::Result<Option<Printed>> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                let rest = std::mem::take(&mut self.held);
                return Ok((!rest.is_empty()).then(|| self.printed(rest)));
            }
            let ends = available.iter().position(|byte| *byte == b'\n');
            let taken = ends.map_or(available.len(), |at| at + 1);
            self.held.extend_from_slice(&available[..taken]);
            self.reader.consume(taken);
            if ends.is_some() {
                let line = std::mem::take(&mut self.held);
                let printed = self.printed(line);
                self.in_long_line = false;
                return Ok(Some(printed));
            }
            if self.held.len() > LONGEST {
                self.in_long_line = true;
                let rest = self.held.split_off(character_boundary(&self.held));
                return Ok(Some(Printed::Piece(std::mem::replace(&mut self.held, rest))));
            }
        }
    }

    fn printed(&self, bytes: Vec<u8>) -> Printed {
        if self.in_long_line || bytes.len() > LONGEST + 1 { Printed::Piece(bytes) } else { Printed::Line(bytes) }
    }
}

/// The last position to cut without splitting a UTF-8 character.
pub fn character_boundary(bytes: &[u8]) -> usize {
    let starts = bytes.iter().rev().take(4).position(|byte| byte & 0xC0 != 0x80);
    match starts {
        Some(back) if bytes[bytes.len() - 1 - back] >= 0xC0 => bytes.len() - 1 - back,
        _ => bytes.len(),
    }
}

/// An event that the bot reports about itself.
#[derive(Debug)]
pub enum Event {
    /// A command that was started ahead can take a meeting.
    Ready,
    Joined,
    Status {
        status: String,
        reason: Option<String>,
    },
    Transcript(Vec<Box<RawValue>>),
    Screenshot {
        path: String,
    },
    Exited(Ending),
}

impl Event {
    pub fn name(&self) -> &'static str {
        match self {
            Event::Ready => "ready",
            Event::Joined => "joined",
            Event::Status { .. } => "status",
            Event::Transcript(_) => "transcript",
            Event::Screenshot { .. } => "screenshot",
            Event::Exited(_) => "exited",
        }
    }
}

/// The bot's own reason for its end, used when the process ends.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Ending {
    pub reason: Option<String>,
    pub error: Option<String>,
}

#[derive(Deserialize)]
struct Named {
    event: String,
}

#[derive(Deserialize)]
struct StatusLine {
    status: String,
    reason: Option<String>,
}

#[derive(Deserialize)]
struct TranscriptLine {
    segments: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct ScreenshotLine {
    path: String,
}

/// The events that a bot can report.
const KNOWN: [&str; 6] = ["ready", "joined", "status", "transcript", "screenshot", "exited"];
/// Fields that loggers write next to their own `event` field. A line with such a field is log output.
const FIELDS_OF_LOGGERS: [&str; 8] = ["level", "timestamp", "time", "ts", "logger", "msg", "message", "severity"];

/// Reads a line. `None` means log. An error means log that looks like an event, and says what is wrong with it.
pub fn event(line: &str) -> Result<Option<Event>, String> {
    if !line.trim_start().starts_with('{') {
        return Ok(None);
    }
    let Ok(Named { event }) = serde_json::from_str(line) else { return Ok(None) };
    let read = match event.as_str() {
        "ready" => Ok(Event::Ready),
        "joined" => Ok(Event::Joined),
        "status" => serde_json::from_str(line)
            .map(|StatusLine { status, reason }| Event::Status { status, reason: reason.map(|text| fit(&text, 200)) }),
        "transcript" => serde_json::from_str(line).map(|TranscriptLine { segments }| Event::Transcript(segments)),
        "screenshot" => serde_json::from_str(line).map(|ScreenshotLine { path }| Event::Screenshot { path }),
        "exited" => serde_json::from_str(line).map(|Ending { reason, error }| {
            let reason = reason.map(|text| fit(&text, 200));
            Event::Exited(Ending { reason, error: error.map(|text| fit(&text, 10_000)) })
        }),
        unknown => return unknown_event(unknown, line).map_or(Ok(None), Err),
    };
    read.map(Some).map_err(|error| format!("event {event:?} not understood: {error}"))
}

/// The warning for an unknown event; `None` if the line probably comes from a logger.
fn unknown_event(name: &str, line: &str) -> Option<String> {
    let shown = fit(name, 40);
    let spelt = shown.to_lowercase();
    let nearest = KNOWN.into_iter().min_by_key(|known| levenshtein(&spelt, known)).unwrap_or_default();
    let begins = spelt.len() >= 4 && (nearest.starts_with(&spelt) || spelt.starts_with(nearest));
    if levenshtein(&spelt, nearest) <= 2 || begins {
        return Some(format!("unknown event {shown:?}, did you mean {nearest:?}?"));
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).ok()?;
    let is_ours = name == shown && !name.is_empty() && name.chars().all(is_name);
    let is_logger = fields.keys().any(|field| FIELDS_OF_LOGGERS.contains(&field.as_str()));
    (is_ours && !is_logger).then(|| format!("unknown event {shown:?}; the known ones are {}", KNOWN.join(", ")))
}

/// Makes text acceptable to the server. A reason that is too long or has invalid characters must not make the server
/// refuse the event.
fn fit(text: &str, most: usize) -> String {
    text.trim().chars().filter(|c| *c != '\0').take(most).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn all(bytes: &[u8]) -> Vec<Printed> {
        let mut lines = Lines::new(bytes);
        let mut all = Vec::new();
        while let Some(printed) = lines.next().await.unwrap() {
            all.push(printed);
        }
        all
    }

    #[tokio::test]
    async fn lines_come_with_their_breaks_and_the_last_may_have_none() {
        let printed = all(b"one\n\ntwo\r\nthree").await;
        let lines = [&b"one\n"[..], b"\n", b"two\r\n", b"three"].map(|line| Printed::Line(line.to_vec()));
        assert_eq!(printed, lines);
    }

    #[tokio::test]
    async fn a_line_of_a_mebibyte_is_whole_and_a_longer_one_comes_in_pieces_with_nothing_lost() {
        let mut whole = vec![b'x'; LONGEST];
        whole.push(b'\n');
        assert_eq!(all(&whole).await, [Printed::Line(whole)]);

        let mut long = "é".repeat(LONGEST + 7).into_bytes();
        long.insert(0, b'x');
        long.extend(b"\nnext\n");
        let printed = all(&long).await;
        let mut together: Vec<u8> = Vec::new();
        for (index, one) in printed.iter().enumerate() {
            match one {
                Printed::Piece(bytes) => {
                    assert!(std::str::from_utf8(bytes).is_ok(), "piece {index} tears a character");
                    assert!(bytes.len() <= LONGEST + 64 * 1024);
                    together.extend(bytes);
                }
                Printed::Line(line) => {
                    assert_eq!((index, line.as_slice()), (printed.len() - 1, &b"next\n"[..]));
                    together.extend(line);
                }
            }
        }
        assert!(together == long);
    }

    #[test]
    fn only_known_events_are_events() {
        for log in ["", "joined", "[1]", "{", "{\"event\":7}", "{\"msg\":\"joined\"}"] {
            assert!(event(log).unwrap().is_none(), "{log}");
        }
        assert!(matches!(event(" {\"event\":\"joined\",\"more\":1}\r\n"), Ok(Some(Event::Joined))));
        assert!(event("{\"event\":\"status\"}").unwrap_err().contains("missing field `status`"));
        assert!(event("{\"event\":\"screenshot\"}").unwrap_err().contains("missing field `path`"));
    }

    #[test]
    fn a_misspelt_event_is_told_with_the_nearest_one() {
        let error_of = |name: &str| event(&serde_json::json!({"event": name}).to_string()).unwrap_err();
        assert_eq!(error_of("join"), "unknown event \"join\", did you mean \"joined\"?");
        for (misspelt, meant) in
            [("Joined", "joined"), ("exit", "exited"), ("state", "status"), ("transcription", "transcript")]
        {
            assert!(error_of(misspelt).ends_with(&format!("did you mean \"{meant}\"?")), "{}", error_of(misspelt));
        }
        assert!(error_of("sneezed").contains("the known ones are ready, joined"));
        let logged = serde_json::json!({"event": "page_loaded", "level": "info", "timestamp": "…"}).to_string();
        assert!(event(&logged).unwrap().is_none(), "a logger's line is log");
        assert!(event("{\"event\":\"the page has loaded\"}").unwrap().is_none());
    }

    #[test]
    fn a_word_that_is_too_long_or_cannot_be_stored_is_cut_to_fit() {
        let line = serde_json::json!({"event": "exited", "reason": "r".repeat(300), "error": "a\0b"}).to_string();
        let Some(Event::Exited(ending)) = event(&line).unwrap() else { panic!("it is an event") };
        assert_eq!(ending, Ending { reason: Some("r".repeat(200)), error: Some("ab".to_owned()) });
    }
}
