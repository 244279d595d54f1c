//! The pipes of the bot's process: commands to it, and output from it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, stderr, stdout};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::mpsc;

use crate::assignment::BotText;
use crate::callbacks::{Message, Outbox};
use crate::commands::{Command, Commands};
use crate::lines::{self, Ending, Event, Lines, Printed};
use crate::log::log;
use crate::steps::{Step, Steps};
use crate::tail::{Stream, Tail};

/// How often the agent sends the bot's output, if the server cannot read it elsewhere.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Writes `first` and then commands to the bot, and acknowledges each command. A command is also acknowledged if the
/// bot does not read it.
pub async fn write(
    mut stdin: Option<ChildStdin>,
    first: Option<Vec<u8>>,
    mut lines: mpsc::UnboundedReceiver<Command>,
    heard: Arc<Commands>,
) {
    if let Some(first) = first {
        write_line(&mut stdin, first).await;
    }
    while let Some(command) = lines.recv().await {
        write_line(&mut stdin, serde_json::to_vec(&command).unwrap_or_default()).await;
        heard.heard(command.id);
    }
    // Stays open until the bot ends, because many programs end when their standard input closes.
    std::future::pending::<()>().await;
}

/// Writes a line, unless the bot has closed its standard input.
async fn write_line(stdin: &mut Option<ChildStdin>, mut line: Vec<u8>) {
    let Some(open) = stdin else { return };
    line.push(b'\n');
    if let Err(error) = open.write_all(&line).await {
        // The bot may have closed its standard input because it never reads it. Then nothing more can be delivered.
        log!("the command does not read its standard input ({error})");
        *stdin = None;
    }
}

/// The line that gives a bot to a command that was started ahead. A line break can only be white space between the
/// values, because JSON escapes it within a text.
pub fn assignment_line(data: &BotText) -> Vec<u8> {
    let data = data.0.trim().replace(['\n', '\r'], " ");
    format!("{{\"action\":\"assignment\",\"payload\":{data}}}").into_bytes()
}

/// Reads the output of a command that has no bot yet, until `is_last` returns true for an event. Returns when the
/// output ends, too; then `stdout` is `None`. It may be dropped at any time without losing output.
pub async fn read_ahead(stdout: &mut Option<Lines<ChildStdout>>, tail: &Tail, is_last: impl Fn(&Event) -> bool) {
    while let Some(lines) = stdout {
        let bytes = match lines.next().await {
            Ok(Some(Printed::Piece(bytes))) => bytes,
            Ok(Some(Printed::Line(bytes))) => match lines::event(&String::from_utf8_lossy(&bytes)) {
                Ok(Some(event)) if is_last(&event) => return,
                Ok(Some(Event::Ready)) => continue,
                Ok(Some(event)) => {
                    let why = format!("event {:?} ignored: the command has no meeting yet", event.name());
                    if tail.warn(&why) {
                        log!("{why}");
                    }
                    continue;
                }
                Ok(None) => bytes,
                Err(why) => {
                    if tail.warn(&why) {
                        log!("{why}");
                    }
                    bytes
                }
            },
            Ok(None) => {
                *stdout = None;
                return;
            }
            Err(error) => {
                log!("the command's output cannot be read: {error}");
                *stdout = None;
                return;
            }
        };
        copy_output(&bytes, tail).await;
    }
}

/// What notes the bot's output.
#[derive(Debug)]
pub struct Output {
    pub tail: Arc<Tail>,
    pub steps: Option<Arc<Steps>>,
}

/// Reads the bot's output: events go to the server, other lines to the agent's standard output.
pub async fn read(
    printed: Option<Lines<ChildStdout>>,
    outbox: Outbox,
    ending: Arc<Mutex<Ending>>,
    Output { tail, mut steps }: Output,
) {
    let Some(mut lines) = printed else { return };
    loop {
        let next = lines.next().await;
        if let Some(steps) = steps.take() {
            steps.note(Step::FirstLine);
        }
        let bytes = match next {
            Ok(Some(Printed::Piece(bytes))) => bytes,
            Ok(Some(Printed::Line(bytes))) => match lines::event(&String::from_utf8_lossy(&bytes)) {
                Ok(Some(event)) => {
                    take(event, &outbox, &ending, &tail).await;
                    continue;
                }
                Ok(None) => bytes,
                Err(why) => {
                    warn(&why, &outbox, &tail).await;
                    bytes
                }
            },
            Ok(None) => return,
            Err(error) => {
                log!("the command's output cannot be read: {error}");
                return;
            }
        };
        copy_output(&bytes, &tail).await;
    }
}

/// Copies log output of the bot to the agent's standard output.
async fn copy_output(bytes: &[u8], tail: &Tail) {
    tail.print(Stream::Output, bytes);
    let mut out = stdout();
    // A failed write must not stop the bot.
    let _ = out.write_all(String::from_utf8_lossy(bytes).as_bytes()).await;
    let _ = out.flush().await;
}

/// Copies the bot's standard error to the agent's standard error.
pub async fn copy_errors(printed: Option<ChildStderr>, tail: Arc<Tail>) {
    let Some(mut printed) = printed else { return };
    let mut bytes = vec![0; 8 * 1024];
    while let Ok(count @ 1..) = printed.read(&mut bytes).await {
        tail.print(Stream::Errors, &bytes[..count]);
        let mut errors = stderr();
        // A failed write must not stop the bot.
        let _ = errors.write_all(&bytes[..count]).await;
        let _ = errors.flush().await;
    }
}

/// Queues the log for sending at intervals.
pub async fn send_log(outbox: Outbox, tail: Arc<Tail>) {
    loop {
        tokio::time::sleep(LOG_EVERY).await;
        if tail.is_unsent() {
            outbox.put(Message::Log).await;
        }
    }
}

/// Warns about output that had no effect, once for each text.
async fn warn(why: &str, outbox: &Outbox, tail: &Tail) {
    if tail.warn(why) {
        log!("{why}");
        outbox.put(Message::Log).await;
    }
}

async fn take(event: Event, outbox: &Outbox, ending: &Mutex<Ending>, tail: &Tail) {
    match event {
        // A command that starts with its bot has nobody to be ready for.
        Event::Ready => {}
        Event::Joined => outbox.put(Message::Joined).await,
        Event::Status { status, reason } => outbox.put(Message::Status { status, reason }).await,
        Event::Transcript(segments) => {
            for segment in segments {
                outbox.put(Message::Segment(segment)).await;
            }
        }
        Event::Screenshot { path } => {
            if let Err(why) = outbox.screenshots.take(&path).await {
                warn(&why, outbox, tail).await;
            }
        }
        Event::Exited(own) => *ending.lock().unwrap_or_else(PoisonError::into_inner) = own,
    }
}
