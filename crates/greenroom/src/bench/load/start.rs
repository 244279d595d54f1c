//! Requests many bots at once. Each bot's command sends a datagram when it runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::shared::{Shared, meeting};
use super::{LoadReport, LoadSpec};
use crate::bench::Done;
use crate::bench::client::{Client, HttpResponse};

/// How long all of them may take.
const RUN_WITHIN: Duration = Duration::from_secs(120);

pub async fn run(spec: &LoadSpec, bots: usize) -> Done<LoadReport> {
    let shared = Shared::new(spec, None);
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    let report_to = socket.local_addr()?.to_string();
    let address = *spec.addresses.first().ok_or("the settings have no address")?;
    let mut connections = Vec::new();
    for _ in 0..spec.clients {
        connections.push(Client::connect(address).await?);
    }
    let (asked, mut sent) = mpsc::unbounded_channel();
    let (next, begun) = (Arc::new(AtomicUsize::new(0)), shared.begin());
    let mut clients = JoinSet::new();
    for (number, mut connection) in connections.into_iter().enumerate() {
        let (next, asked, report_to) = (next.clone(), asked.clone(), report_to.clone());
        let (key, first_meeting) = (spec.keys[number % spec.keys.len()].clone(), spec.first_meeting);
        clients.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= bots {
                    return Done::Ok(());
                }
                let url = format!("https://meet.google.com/{}", meeting(first_meeting + number as u64));
                let body = json!({"meeting_url": url, "config": {"report_to": report_to}}).to_string();
                let sent = Instant::now();
                let HttpResponse { bot } = connection.send("POST /bots", &key, None, &body, 201).await?;
                let _ = asked.send((bot.id, sent, bot.slot.is_some()));
            }
        });
    }
    drop(asked);
    let running = heard(&socket, bots);
    let running = tokio::time::timeout(RUN_WITHIN, running).await.map_err(|_| "not all commands ran in time")??;
    let last = running.values().max().copied().unwrap_or(begun);
    while let Some(done) = clients.join_next().await {
        done??;
    }
    while let Some((bot, sent, has_slot)) = sent.recv().await {
        let at = running.get(&bot).ok_or("another bot runs than the requested ones")?;
        shared.latency(at.duration_since(sent));
        if !has_slot {
            shared.queued();
        }
        shared.finished_pair();
    }
    Ok(LoadReport { seconds: last.duration_since(begun).as_secs_f64(), ..shared.report() })
}

/// Waits for the datagrams of this number of bots, and returns when each arrived.
pub async fn heard(socket: &UdpSocket, bots: usize) -> Done<HashMap<Uuid, Instant>> {
    let (mut running, mut word) = (HashMap::with_capacity(bots), [0; 64]);
    while running.len() < bots {
        let length = socket.recv(&mut word).await?;
        let bot: Uuid = std::str::from_utf8(&word[..length])?.parse()?;
        running.insert(bot, Instant::now());
    }
    Ok(running)
}
