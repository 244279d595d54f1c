//! The normal user, which reads its bot, and the bot, which sends heartbeats. Each sends one request after the other,
//! with a pause between them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::server::Prepared;
use crate::bench::client::{Client, HttpResponse};
use crate::bench::figures::milliseconds;

const READERS: usize = 2;
const REST: Duration = Duration::from_millis(5);
/// A request that takes longer counts as an error, with this time as its latency.
const TIMEOUT: Duration = Duration::from_secs(5);

/// In milliseconds.
#[derive(Debug, Default)]
pub struct Latencies {
    pub gets: Vec<f64>,
    pub beats: Vec<f64>,
    pub errors: usize,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Get,
    Beat,
}

/// Measures both for this time.
pub async fn measure(address: SocketAddr, prepared: &Prepared, time: Duration) -> Latencies {
    let until = Instant::now() + time;
    let mut probes = tokio::task::JoinSet::new();
    for call in std::iter::repeat_n(Call::Get, READERS).chain([Call::Beat]) {
        let prepared = prepared.clone();
        probes.spawn(async move { (call, probe(address, &prepared, call, until).await) });
    }
    let mut measured = Latencies::default();
    for (call, (times, errors)) in probes.join_all().await {
        measured.errors += errors;
        match call {
            Call::Get => measured.gets.extend(times),
            Call::Beat => measured.beats.extend(times),
        }
    }
    measured
}

/// Whether both get an answer within this time.
pub async fn answers(address: SocketAddr, prepared: &Prepared, within: Duration) -> bool {
    for call in [Call::Get, Call::Beat] {
        let begun = Instant::now();
        let done = tokio::time::timeout(TIMEOUT, async {
            let mut client = Client::connect(address).await.ok()?;
            send(&mut client, prepared, call).await
        });
        if done.await.ok().flatten().is_none() || begun.elapsed() > within {
            return false;
        }
    }
    true
}

async fn probe(address: SocketAddr, prepared: &Prepared, call: Call, until: Instant) -> (Vec<f64>, usize) {
    let (mut times, mut errors, mut client) = (Vec::new(), 0, None::<Client>);
    while Instant::now() < until {
        let begun = Instant::now();
        let sent = tokio::time::timeout(TIMEOUT, async {
            let mut connected = match client.take() {
                Some(client) => client,
                None => Client::connect(address).await.ok()?,
            };
            send(&mut connected, prepared, call).await?;
            Some(connected)
        });
        match sent.await {
            Ok(Some(connected)) => {
                client = Some(connected);
                times.push(milliseconds(begun.elapsed()));
            }
            // Refused, broken, or too late: the next request uses another connection.
            Ok(None) | Err(_) => {
                errors += 1;
                times.push(milliseconds(TIMEOUT));
            }
        }
        tokio::time::sleep(REST).await;
    }
    (times, errors)
}

async fn send(client: &mut Client, prepared: &Prepared, call: Call) -> Option<()> {
    match call {
        Call::Get => {
            let path = format!("GET /bots/{}", prepared.bot);
            let answer: HttpResponse = client.send(&path, &prepared.user_key, None, "", 200).await.ok()?;
            (answer.bot.status == "active").then_some(())
        }
        Call::Beat => {
            let body = json!({"connection_id": prepared.connection_id}).to_string();
            let sent = client.send::<Value>("POST /callback/heartbeat", &prepared.bot_token, None, &body, 200);
            sent.await.ok().map(drop)
        }
    }
}
