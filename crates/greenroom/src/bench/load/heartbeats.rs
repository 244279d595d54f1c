//! Bots that send heartbeats as fast as they are answered, each on its own connection.

use std::time::{Duration, Instant};

use domain::{BotId, ConnectionId};
use serde::Deserialize;
use tokio::task::JoinSet;

use super::shared::Shared;
use super::{LoadReport, LoadSpec, RunningBot};
use crate::bench::Done;
use crate::bench::client::Client;
use crate::lifecycle::tokens::{Claim, Tokens};

/// The answer to a heartbeat.
#[derive(Debug, Deserialize)]
struct HeartbeatAnswer {
    status: String,
}

pub async fn run(spec: &LoadSpec, bots: &[RunningBot], time: Duration) -> Done<LoadReport> {
    let tokens = Tokens::new(&spec.signing_secret);
    let shared = Shared::new(spec, None);
    let mut clients = Vec::with_capacity(bots.len());
    for (number, bot) in bots.iter().enumerate() {
        let token = tokens.make(Claim { bot: BotId(bot.id), connection: ConnectionId(bot.connection_id) });
        let body = format!("{{\"connection_id\": \"{}\"}}", bot.connection_id);
        clients.push((Client::connect(spec.addresses[number % spec.addresses.len()]).await?, token, body));
    }
    let until = shared.begin() + time;
    let mut running = JoinSet::new();
    for (mut client, token, body) in clients {
        let shared = shared.clone();
        running.spawn(async move {
            while Instant::now() < until {
                let answer: HeartbeatAnswer = client.send("POST /callback/heartbeat", &token, None, &body, 200).await?;
                if answer.status != "active" {
                    return Err(format!("a running bot is {}", answer.status).into());
                }
                shared.finished_pair();
            }
            Done::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(shared.report())
}
