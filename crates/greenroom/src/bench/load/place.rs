//! Clients that place a bot and end it at once, again and again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::shared::{AssignedEvents, Shared};
use super::{LoadReport, LoadSpec};
use crate::bench::Done;
use crate::bench::client::{Bot, Client, HttpResponse, Status};

/// A request without an answer in this time is sent again, if the load repeats requests.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// A client returns to its own server after this time at another one.
const AWAY: Duration = Duration::from_secs(1);
/// One of this number of bots keeps its slot for a moment, in which no other bot may get it.
const HOLD_EVERY: u64 = 64;
const HOLD: Duration = Duration::from_millis(2);

pub async fn run(
    spec: &LoadSpec,
    time: Duration,
    interval: Option<Duration>,
    retry: bool,
    pairs_per_second: Option<u32>,
) -> Done<LoadReport> {
    let pace = pairs_per_second.map(|pairs| Duration::from_secs(spec.clients as u64) / pairs.max(1));
    let shared = Shared::new(spec, interval);
    let mut clients = Vec::with_capacity(spec.clients);
    for number in 0..spec.clients {
        let home = number % spec.addresses.len();
        clients.push(PlacingClient {
            shared: shared.clone(),
            addresses: spec.addresses.clone(),
            home,
            at: home,
            away_since: None,
            key: spec.keys[number % spec.keys.len()].clone(),
            connection: Some(Client::connect(spec.addresses[home]).await?),
            events: None,
            retry,
            pace,
        });
    }
    let until = shared.begin() + time;
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(client.work(until));
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(shared.report())
}

struct PlacingClient {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    home: usize,
    at: usize,
    away_since: Option<Instant>,
    key: String,
    connection: Option<Client>,
    /// Opened when the first bot has to wait for a slot.
    events: Option<AssignedEvents>,
    retry: bool,
    /// The time from the begin of one pair to the begin of the next.
    pace: Option<Duration>,
}

impl PlacingClient {
    async fn work(mut self, until: Instant) -> Done {
        let mut count = 0;
        let mut pace = self.pace.map(tokio::time::interval);
        while Instant::now() < until {
            if let Some(pace) = &mut pace {
                pace.tick().await;
            }
            count += 1;
            self.pair(count % HOLD_EVERY == 0).await?;
        }
        Ok(())
    }

    /// Places a bot and ends it.
    async fn pair(&mut self, is_held: bool) -> Done {
        let meeting = self.shared.next_meeting();
        let body = format!("{{\"meeting_url\": \"https://meet.google.com/{meeting}\"}}");
        let (key, begun) = (self.key.clone(), Instant::now());
        let HttpResponse { mut bot } = self.send("POST /bots", &key, Some(&meeting), &body, &[201, 200]).await?;
        self.shared.latency(begun.elapsed());
        if self.retry {
            self.shared.acknowledged(bot.id);
        }
        if bot.slot.is_none() {
            bot = self.wait_for_slot(bot).await?;
        }
        let slot = bot.slot.clone().ok_or("the bot has no slot")?;
        self.shared.hold(&slot, bot.id);
        let (token, body) = self.shared.end_of(&bot)?;
        if is_held {
            tokio::time::sleep(HOLD).await;
        }
        self.shared.let_go(&slot);
        let Status { status } = self.send("POST /callback/exited", &token, None, &body, &[200]).await?;
        if status != "completed" {
            return Err(format!("a bot ended as {status}").into());
        }
        self.shared.finished_pair();
        Ok(())
    }

    async fn wait_for_slot(&mut self, bot: Bot) -> Done<Bot> {
        self.shared.queued();
        let (call, key) = (format!("GET /bots/{}", bot.id), self.key.clone());
        if self.retry {
            // An event stream would break with its server, so the client polls.
            loop {
                let HttpResponse { bot } = self.send(&call, &key, None, "", &[200]).await?;
                if bot.slot.is_some() {
                    return Ok(bot);
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        if self.events.is_none() {
            self.events = Some(AssignedEvents::open(self.addresses[self.at], &key).await?);
            // The slot may have been assigned before the stream was open.
            let HttpResponse { bot } = self.send(&call, &key, None, "", &[200]).await?;
            if bot.slot.is_some() {
                return Ok(bot);
            }
        }
        let events = self.events.clone().ok_or("there is no event stream")?;
        events.until_assigned(bot.id).await?;
        let HttpResponse { bot } = self.send(&call, &key, None, "", &[200]).await?;
        Ok(bot)
    }

    async fn send<T: serde::de::DeserializeOwned>(
        &mut self,
        call: &str,
        token: &str,
        key: Option<&str>,
        body: &str,
        expected: &[u16],
    ) -> Done<T> {
        loop {
            let sent = self.send_once(call, token, key, body, expected);
            match tokio::time::timeout(ANSWERED_WITHIN, sent).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(Failed::HttpResponse(error))) => return Err(error),
                Ok(Err(Failed::Connection(error))) if !self.retry => return Err(error.into()),
                Err(_) if !self.retry => return Err(format!("{call} got no response").into()),
                Ok(Err(Failed::Connection(_))) | Err(_) => self.turn_to_another().await,
            }
        }
    }

    async fn turn_to_another(&mut self) {
        self.shared.retried();
        self.connection = None;
        self.at = (self.at + 1) % self.addresses.len();
        self.away_since = Some(Instant::now());
        tokio::time::sleep(PAUSE).await;
    }

    async fn send_once<T: serde::de::DeserializeOwned>(
        &mut self,
        call: &str,
        token: &str,
        key: Option<&str>,
        body: &str,
        expected: &[u16],
    ) -> Result<T, Failed> {
        if self.at != self.home && self.away_since.is_some_and(|since| since.elapsed() > AWAY) {
            (self.at, self.connection) = (self.home, None);
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Client::connect(self.addresses[self.at]).await.map_err(Failed::Connection)?),
        };
        let (status, answer) = connection.call(call, token, key, body).await.map_err(Failed::Connection)?;
        self.shared.answered();
        if !expected.contains(&status) {
            let error = format!("{call} returned {status}: {}", String::from_utf8_lossy(answer));
            // A server that stops, or has lost its database, answers 503.
            return Err(if self.retry && status == 503 {
                Failed::Connection(std::io::Error::other(error))
            } else {
                Failed::HttpResponse(error.into())
            });
        }
        serde_json::from_slice(answer).map_err(|error| Failed::HttpResponse(error.into()))
    }
}

enum Failed {
    /// The request may be sent again.
    Connection(std::io::Error),
    HttpResponse(Box<dyn std::error::Error + Send + Sync>),
}
