//! The events of one bot, from its first one, as they come. A lost connection loses none and repeats none.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::client::Client;
use crate::error::CliError;
use crate::pages;
use crate::stream::{EventStream, Reconnect};

/// Operators have no stream of events, so their commands ask again.
const POLL: Duration = Duration::from_millis(400);
/// So do the commands of a user who has as many streams as the server allows, but with less haste, because the server
/// has enough to do.
const SLOW_POLL: Duration = Duration::from_secs(2);
/// After so many questions, a stream may be free again.
const SLOW_POLLS: u32 = 15;

#[derive(Debug)]
pub enum Followed {
    Event(Value),
    /// The server does not answer. The command goes on trying.
    Lost(String),
    /// It gave up.
    Failed(CliError),
}

/// Whether a bot with this status stays in it.
pub fn is_ended(status: &str) -> bool {
    matches!(status, "completed" | "failed")
}

/// Follows a bot in a task of its own, until it has ended or nobody listens.
pub fn bot(client: &Client, bot: &str) -> Receiver<Followed> {
    let (sender, receiver) = mpsc::channel(64);
    let mut reader = Reader { client: client.clone(), bot: bot.to_owned(), last: 0, is_ended: false, sender };
    tokio::spawn(async move {
        if let Err(error) = reader.run().await {
            let _ = reader.sender.send(Followed::Failed(error)).await;
        }
    });
    receiver
}

struct Reader {
    client: Client,
    bot: String,
    /// The id of the last event.
    last: i64,
    is_ended: bool,
    sender: Sender<Followed>,
}

impl Reader {
    async fn run(&mut self) -> Result<(), CliError> {
        let mut reconnect = Reconnect::default();
        while !self.is_done() {
            let lost = self.read_and_listen(&mut reconnect).await.err();
            if self.is_done() {
                break;
            }
            if let (Some(error), true) = (&lost, reconnect.is_first()) {
                let _ = self.sender.send(Followed::Lost(error.message.clone())).await;
            }
            reconnect.wait(lost).await?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_ended || self.sender.is_closed()
    }

    /// Reads what happened meanwhile, then what happens, until the connection is lost.
    async fn read_and_listen(&mut self, reconnect: &mut Reconnect) -> Result<(), CliError> {
        self.read().await?;
        if self.client.is_operator() {
            reconnect.connected();
            while !self.is_done() {
                tokio::time::sleep(POLL).await;
                self.read().await?;
            }
            return Ok(());
        }
        let query = [("bot_id", self.bot.clone())];
        let mut last = (self.last > 0).then(|| self.last.to_string());
        let mut opened = EventStream::open(&self.client, &["events"], &query, last.as_deref()).await;
        // The server has deleted that event, because the bot has been in its status for so long.
        if last.is_some() && opened.as_ref().is_err_and(|error| error.code.as_deref() == Some("gone")) {
            last = None;
            opened = EventStream::open(&self.client, &["events"], &query, None).await;
        }
        let mut stream = match opened {
            Ok(stream) => stream,
            Err(error) if error.code.as_deref() == Some("overloaded") => {
                reconnect.connected();
                return self.poll_slowly().await;
            }
            Err(error) => return Err(error),
        };
        // Not before: where streams are refused and lists are not, the pauses must grow.
        reconnect.connected();
        // Without a last event, the stream begins now, and something may have happened since the list was read.
        if last.is_none() {
            self.read().await?;
        }
        while !self.is_done() {
            let Some(message) = stream.next().await else { break };
            if let Ok(event) = serde_json::from_str(&message.data) {
                self.pass_on(event).await;
            }
        }
        Ok(())
    }

    /// Asks again for a while, without a stream.
    async fn poll_slowly(&mut self) -> Result<(), CliError> {
        for _ in 0..SLOW_POLLS {
            if self.is_done() {
                break;
            }
            tokio::time::sleep(SLOW_POLL).await;
            self.read().await?;
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), CliError> {
        let path = self.client.bots(&[&self.bot, "events"]);
        let events = pages::read(&self.client, &path, "events", &[("cursor", self.last.to_string())], None).await?;
        for event in pages::rows(&events, "events").to_vec() {
            self.pass_on(event).await;
        }
        Ok(())
    }

    async fn pass_on(&mut self, event: Value) {
        let id = event["id"].as_i64().unwrap_or(0);
        if id <= self.last {
            return;
        }
        self.last = id;
        self.is_ended |= event["to"].as_str().is_some_and(is_ended);
        let _ = self.sender.send(Followed::Event(event)).await;
    }
}
