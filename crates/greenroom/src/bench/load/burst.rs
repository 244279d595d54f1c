//! Requests many bots at once, each by a client with its own connection. Most bots wait in the queue, and their clients
//! learn of the slot from the user's one event stream. Each bot ends as soon as it has a slot.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::shared::{AssignedEvents, Shared};
use super::{LoadReport, LoadSpec};
use crate::bench::Done;
use crate::bench::client::{Client, HttpResponse, Status};

pub async fn run(spec: &LoadSpec) -> Done<LoadReport> {
    let shared = Shared::new(spec, None);
    let address = *spec.addresses.first().ok_or("the settings have no address")?;
    let mut streams = Vec::with_capacity(spec.keys.len());
    for key in &spec.keys {
        streams.push(AssignedEvents::open(address, key).await?);
    }
    let (begin, begun) = watch::channel(None);
    let mut clients = JoinSet::new();
    for number in 0..spec.clients {
        let user = number % spec.keys.len();
        let client = BurstClient {
            shared: shared.clone(),
            events: streams[user].clone(),
            key: spec.keys[user].clone(),
            connection: Client::connect(address).await?,
        };
        let (mut begun, shared) = (begun.clone(), shared.clone());
        clients.spawn(async move {
            let Ok(begun) = begun.wait_for(Option::is_some).await.map(|begun| begun.unwrap_or_else(Instant::now))
            else {
                return;
            };
            if let Err(error) = client.work(begun).await {
                shared.failed(&error);
            }
        });
    }
    begin.send_replace(Some(shared.begin()));
    while let Some(done) = clients.join_next().await {
        done?;
    }
    Ok(shared.report())
}

struct BurstClient {
    shared: Arc<Shared>,
    events: AssignedEvents,
    key: String,
    connection: Client,
}

impl BurstClient {
    async fn work(mut self, begun: Instant) -> Done {
        let meeting = self.shared.next_meeting();
        let body = format!("{{\"meeting_url\": \"https://meet.google.com/{meeting}\"}}");
        let asked = self.connection.send("POST /bots", &self.key, Some(&meeting), &body, 201).await;
        let HttpResponse { mut bot } = asked?;
        self.shared.answered();
        if bot.slot.is_none() {
            self.shared.queued();
            self.events.until_assigned(bot.id).await?;
            let call = format!("GET /bots/{}", bot.id);
            bot = self.connection.send::<HttpResponse>(&call, &self.key, None, "", 200).await?.bot;
            self.shared.answered();
        }
        self.shared.latency(begun.elapsed());
        let slot = bot.slot.clone().ok_or("the bot has no slot")?;
        self.shared.hold(&slot, bot.id);
        let (token, body) = self.shared.end_of(&bot)?;
        tokio::task::yield_now().await;
        self.shared.let_go(&slot);
        let Status { status } = self.connection.send("POST /callback/exited", &token, None, &body, 200).await?;
        self.shared.answered();
        if status != "completed" {
            return Err(format!("a bot ended as {status}").into());
        }
        self.shared.finished_pair();
        Ok(())
    }
}
