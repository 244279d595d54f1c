//! Agents that wait in hot slots, each on its own connection, until the process is ended.

use std::time::Duration;

use domain::{SlotClaim, SlotName};
use tokio::task::JoinSet;

use super::{LoadReport, LoadSpec, WaitingSlot};
use crate::bench::Done;
use crate::bench::client::Client;
use crate::lifecycle::tokens::Tokens;

/// The pause after the first poll of each agent, so that they do not poll at the same moment for ever.
const SPREAD: Duration = Duration::from_secs(30);

pub async fn run(spec: &LoadSpec, slots: &[WaitingSlot]) -> Done<LoadReport> {
    let tokens = Tokens::new(&spec.signing_secret);
    let mut agents = JoinSet::new();
    for (number, slot) in slots.iter().enumerate() {
        let claim = SlotClaim {
            slot: SlotName::stored(slot.name.clone()),
            incarnation: slot.incarnation,
            generation: Some(1),
            number: 0,
        };
        let token = tokens.make_slot(&claim);
        let mut client = Client::connect(spec.addresses[number % spec.addresses.len()]).await?;
        let first = SPREAD * u32::try_from(number)? / u32::try_from(slots.len())?;
        agents.spawn(async move {
            let mut wait = first.as_millis().max(1);
            loop {
                let call = format!("GET /agent/assignment?wait_ms={wait}");
                let (status, body) = client.call(&call, &token, None, "").await?;
                if status != 204 {
                    return Done::<()>::Err(
                        format!("{call} returned {status}: {}", String::from_utf8_lossy(body)).into(),
                    );
                }
                wait = 30_000;
            }
        });
    }
    while let Some(ended) = agents.join_next().await {
        ended??;
    }
    Ok(LoadReport::default())
}
