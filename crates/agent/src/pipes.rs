//! The pipes of the bot's process: commands to it, and output from it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, stderr, stdout};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::mpsc;

use crate::callbacks::{Message, Outbox};
use crate::commands::{Command, Commands};
use crate::lines::{self, Ending, Event, Lines, Printed};
use crate::log::log;
use crate::tail::{Stream, Tail};

/// How often the agent sends the bot's output, if the server cannot read it elsewhere.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Writes commands to the bot, and acknowledges each one. A command is also acknowledged if the bot does not read it.
pub async fn write(stdin: Option<ChildStdin>, mut lines: mpsc::UnboundedReceiver<Command>, heard: Arc<Commands>) {
    let mut stdin = stdin;
    while let Some(command) = lines.recv().await {
        if let Some(open) = &mut stdin {
            let mut line = serde_json::to_vec(&command).unwrap_or_default();
            line.push(b'\n');
            if let Err(error) = open.write_all(&line).await {
                // The bot may have closed its standard input because it never reads it. Then no more commands can be
                // delivered.
                log!("the command does not read its standard input ({error})");
                stdin = None;
            }
        }
        heard.heard(command.id);
    }
    // Stays open until the bot ends, because many programs end when their standard input closes.
    std::future::pending::<()>().await;
}

/// Reads the bot's output: events go to the server, other lines to the agent's standard output.
pub async fn read(printed: Option<ChildStdout>, outbox: Outbox, ending: Arc<Mutex<Ending>>, tail: Arc<Tail>) {
    let Some(printed) = printed else { return };
    let mut lines = Lines::new(printed);
    loop {
        let bytes = match lines.next().await {
            Ok(Some(Printed::Piece(bytes))) => bytes,
            Ok(Some(Printed::Line(bytes))) => match lines::event(&String::from_utf8_lossy(&bytes)) {
                Ok(Some(event)) => {
                    take(event, &outbox, &ending).await;
                    continue;
                }
                Ok(None) => bytes,
                Err(why) => {
                    if tail.warn(&why) {
                        log!("{why}");
                        outbox.put(Message::Log).await;
                    }
                    bytes
                }
            },
            Ok(None) => return,
            Err(error) => {
                log!("the command's output cannot be read: {error}");
                return;
            }
        };
        tail.print(Stream::Output, &bytes);
        let mut out = stdout();
        // A failed write must not stop the bot.
        let _ = out.write_all(String::from_utf8_lossy(&bytes).as_bytes()).await;
        let _ = out.flush().await;
    }
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

async fn take(event: Event, outbox: &Outbox, ending: &Mutex<Ending>) {
    match event {
        Event::Joined => outbox.put(Message::Joined).await,
        Event::Status { status, reason } => outbox.put(Message::Status { status, reason }).await,
        Event::Transcript(segments) => {
            for segment in segments {
                outbox.put(Message::Segment(segment)).await;
            }
        }
        Event::Exited(own) => *ending.lock().unwrap_or_else(PoisonError::into_inner) = own,
    }
}
