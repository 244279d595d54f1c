//! Follows `GET /admin/live`: connects, reads messages, and connects again when the connection is lost. Every
//! connection begins with a snapshot, so nothing is missed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use eventsource_stream::{EventStream, Eventsource};
use futures_util::{Stream, StreamExt, stream};
use reqwest::Response;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::TopError;
use super::api::{Api, clock_difference, reason};
use super::message::Message;

/// The server sends a comment every 15 s. A connection that is silent for longer is lost.
const SILENCE: Duration = Duration::from_secs(40);
/// How long the server may take to send its snapshot.
const FIRST_MESSAGE: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A message with more bytes than this is not from a Greenroom server.
const LARGEST_MESSAGE: usize = 64 * 1024 * 1024;

/// What the stream reports.
#[derive(Debug)]
pub enum StreamEvent {
    Message(Message),
    /// Connected again, with the difference of the server's clock if it is known.
    Connected(Option<i64>),
    /// The connection is lost, and is tried again after the pause.
    Lost {
        problem: String,
        retry_in: Duration,
    },
    /// The server refuses the token, so that trying again does not help.
    Refused(TopError),
}

type Bytes = Pin<Box<dyn Stream<Item = Result<Vec<u8>, String>> + Send>>;

/// An open stream of messages.
pub struct Connection {
    events: EventStream<Bytes>,
    /// How many bytes came since the last message.
    unread: Arc<AtomicUsize>,
    pub clock_difference: Option<i64>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    pub async fn open(api: &Api) -> Result<Self, TopError> {
        let response = api.live().await?;
        let clock_difference = clock_difference(&response);
        let unread = Arc::new(AtomicUsize::new(0));
        let events = bytes(response, unread.clone()).eventsource();
        Ok(Self { events, unread, clock_difference })
    }

    /// Opens a stream and reads its first message.
    pub async fn open_with_snapshot(api: &Api) -> Result<(Self, Message), TopError> {
        let mut connection = Self::open(api).await?;
        match timeout(FIRST_MESSAGE, connection.next()).await {
            Ok(Ok(message)) => Ok((connection, message)),
            Ok(Err(problem)) => Err(api.unreachable(problem)),
            Err(_) => Err(api.unreachable("it sends no snapshot".to_owned())),
        }
    }

    /// The next message. The error says why the connection is lost.
    pub async fn next(&mut self) -> Result<Message, String> {
        loop {
            let event = match self.events.next().await {
                Some(Ok(event)) => event,
                Some(Err(error)) => return Err(reason_of(error)),
                None => return Err("the server closed the connection".to_owned()),
            };
            self.unread.store(0, Ordering::Relaxed);
            let build = match event.event.as_str() {
                "snapshot" => Message::Snapshot,
                "change" => Message::Change,
                // A newer server may send more.
                _ => continue,
            };
            return match serde_json::from_str(&event.data) {
                Ok(data) => Ok(build(data)),
                Err(error) => Err(format!("the server sent what cannot be read: {error}")),
            };
        }
    }
}

/// The bytes of an answer, which end with an error when they stop coming.
fn bytes(response: Response, unread: Arc<AtomicUsize>) -> Bytes {
    let parts = stream::unfold(Some(response), move |response| {
        let unread = unread.clone();
        async move {
            let mut response = response?;
            match timeout(SILENCE, response.chunk()).await {
                Ok(Ok(Some(part))) if unread.fetch_add(part.len(), Ordering::Relaxed) > LARGEST_MESSAGE => {
                    Some((Err("the server sent a message without an end".to_owned()), None))
                }
                Ok(Ok(Some(part))) => Some((Ok(part.to_vec()), Some(response))),
                Ok(Ok(None)) => None,
                Ok(Err(error)) => Some((Err(reason(&error)), None)),
                Err(_) => Some((Err("the server is silent".to_owned()), None)),
            }
        }
    });
    Box::pin(parts)
}

fn reason_of(error: eventsource_stream::EventStreamError<String>) -> String {
    match error {
        eventsource_stream::EventStreamError::Transport(reason) => reason,
        other => other.to_string(),
    }
}

/// Follows the stream until nobody listens any more, or the server refuses the token.
pub async fn follow(api: Api, connection: Connection, to: mpsc::Sender<StreamEvent>) {
    let mut connection = Some(connection);
    let mut pause = FIRST_PAUSE;
    loop {
        let problem = match connection.take() {
            Some(open) => match pass_on(open, &to).await {
                Some(problem) => problem,
                None => return,
            },
            None => match Connection::open(&api).await {
                Ok(mut open) => match timeout(FIRST_MESSAGE, open.next()).await {
                    Ok(Ok(message)) => {
                        let connected = StreamEvent::Connected(open.clock_difference);
                        if to.send(connected).await.is_err() || to.send(StreamEvent::Message(message)).await.is_err() {
                            return;
                        }
                        (connection, pause) = (Some(open), FIRST_PAUSE);
                        continue;
                    }
                    Ok(Err(problem)) => problem,
                    Err(_) => "it sends no snapshot".to_owned(),
                },
                Err(refused @ TopError::NotAllowed { .. }) => {
                    let _ = to.send(StreamEvent::Refused(refused)).await;
                    return;
                }
                Err(TopError::Unreachable { reason, .. }) => reason,
                Err(other) => other.to_string(),
            },
        };
        if to.send(StreamEvent::Lost { problem, retry_in: pause }).await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Passes messages on until the connection is lost, and returns why. `None` when nobody listens any more.
async fn pass_on(mut connection: Connection, to: &mpsc::Sender<StreamEvent>) -> Option<String> {
    loop {
        tokio::select! {
            () = to.closed() => return None,
            message = connection.next() => match message {
                Ok(message) => to.send(StreamEvent::Message(message)).await.ok()?,
                Err(problem) => return Some(problem),
            },
        }
    }
}
