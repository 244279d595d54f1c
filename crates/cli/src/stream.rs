//! Server-sent events: the connection, and the text format. Who reads decides how to come back after a lost connection.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::Response;

use crate::client::{Client, Path, Query};
use crate::error::{CliError, Exit};

/// The server sends a comment every 15 s. After so much silence the connection is lost.
const SILENCE: Duration = Duration::from_secs(45);
/// A client that cannot connect for so long gives up.
const GIVE_UP: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// A message with more bytes than this is not from a Greenroom server.
const LARGEST_MESSAGE: usize = 64 * 1024 * 1024;

/// One message. The first of `GET /events` has an id and no data.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Message {
    pub id: Option<String>,
    pub event: String,
    pub data: String,
}

#[derive(Debug)]
pub struct EventStream {
    answer: Response,
    parser: Parser,
}

impl EventStream {
    pub async fn open(
        client: &Client,
        path: Path<'_>,
        query: Query<'_>,
        last_event_id: Option<&str>,
    ) -> Result<Self, CliError> {
        Ok(Self { answer: client.open(path, query, last_event_id).await?, parser: Parser::default() })
    }

    /// The next message; `None` when the connection is lost.
    pub async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.parser.ready.pop_front() {
                return Some(message);
            }
            let chunk = tokio::time::timeout(SILENCE, self.answer.chunk()).await.ok()?.ok()??;
            if !self.parser.read(&chunk) {
                return None;
            }
        }
    }
}

/// Pauses between attempts to connect, each longer than the one before, until it is time to give up.
#[derive(Debug, Default)]
pub struct Reconnect {
    pause: Option<Duration>,
    lost_since: Option<std::time::Instant>,
}

impl Reconnect {
    /// It works again.
    pub fn connected(&mut self) {
        *self = Self::default();
    }

    /// Whether this is the first failure of several.
    pub fn is_first(&self) -> bool {
        self.lost_since.is_none()
    }

    /// Waits before the next attempt. An error that will not pass, or has lasted too long, is returned.
    pub async fn wait(&mut self, error: Option<CliError>) -> Result<(), CliError> {
        let since = *self.lost_since.get_or_insert_with(std::time::Instant::now);
        if let Some(error) = error {
            let passes = error.is_transient() || error.exit == Exit::Failed && error.code.as_deref() == Some("gone");
            if !passes || since.elapsed() > GIVE_UP {
                return Err(error);
            }
        }
        let pause = self.pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE));
        self.pause = Some(pause);
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Parser {
    /// The beginning of a line.
    line: Vec<u8>,
    message: Message,
    has_data: bool,
    ready: VecDeque<Message>,
}

impl Parser {
    /// `false` when there is too much of a message without an end.
    fn read(&mut self, bytes: &[u8]) -> bool {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        self.line.extend_from_slice(lines.next().unwrap_or_default());
        for beginning in lines {
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line)).into_owned();
            self.take(&line);
            self.line.extend_from_slice(beginning);
        }
        self.line.len() + self.message.data.len() <= LARGEST_MESSAGE
    }

    fn take(&mut self, line: &str) {
        if line.is_empty() {
            let message = std::mem::take(&mut self.message);
            let has_data = std::mem::take(&mut self.has_data);
            if has_data || message.id.is_some() {
                self.ready.push_back(message);
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.message.id = Some(value.to_owned()),
            "event" => self.message.event = value.to_owned(),
            "data" => {
                if self.has_data {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
                self.has_data = true;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGEST_MESSAGE, Parser};

    #[test]
    fn messages_come_out_whole_however_the_bytes_arrive() {
        let text = "id: 7\nretry: 1000\n\n: comment\n\nevent: change\nid: 8\ndata: {\"a\":\r\ndata: 1}\n\ndata: half";
        for size in 1..text.len() {
            let mut parser = Parser::default();
            assert!(text.as_bytes().chunks(size).all(|chunk| parser.read(chunk)));
            let messages: Vec<_> = parser.ready.iter().map(|m| (m.id.as_deref(), m.data.as_str())).collect();
            assert_eq!(messages, [(Some("7"), ""), (Some("8"), "{\"a\":\n1}")]);
        }
    }

    #[test]
    fn a_message_without_an_end_is_not_kept() {
        let chunk = vec![b'x'; LARGEST_MESSAGE / 2];
        let mut line = Parser::default();
        assert!(line.read(&chunk) && line.read(&chunk) && !line.read(b"x"));
        let mut message = Parser::default();
        let data = [b"data: ", chunk.as_slice(), b"\n"].concat();
        assert!(message.read(&data) && !message.read(&data));
    }
}
