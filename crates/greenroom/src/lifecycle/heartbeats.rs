//! Heartbeats, gathered and written once a second in one statement. A heartbeat is a time and nothing else, so the
//! last one of each bot is enough; what is gathered is written on an orderly stop, and kept while the database is away.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::BotId;
use tokio_util::sync::CancellationToken;

use crate::store::{Beat, Store};

const EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default)]
pub struct Heartbeats {
    gathered: Arc<Mutex<HashMap<BotId, Beat>>>,
}

impl Heartbeats {
    pub fn note(&self, beat: Beat) {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        match gathered.entry(beat.bot_id) {
            Entry::Vacant(place) => {
                place.insert(beat);
            }
            Entry::Occupied(mut place) if place.get().at <= beat.at => {
                place.insert(beat);
            }
            Entry::Occupied(_) => {}
        }
    }

    /// The last sign of life of a bot that is not written yet.
    pub fn unwritten(&self, bot: BotId) -> Option<Beat> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner).get(&bot).copied()
    }

    /// Writes once a second until `stopping`, and then what is left.
    pub async fn keep_writing(self, store: Store, stopping: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let last = tokio::select! {
                _ = tick.tick() => false,
                () = stopping.cancelled() => true,
            };
            self.write(&store).await;
            if last {
                return;
            }
        }
    }

    async fn write(&self, store: &Store) {
        let beats: Vec<Beat> = {
            let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
            gathered.drain().map(|(_, beat)| beat).collect()
        };
        if beats.is_empty() {
            return;
        }
        if let Err(error) = store.write_heartbeats(&beats).await {
            tracing::warn!(%error, beats = beats.len(), "heartbeats not written, they are kept for the next second");
            for beat in beats {
                self.note(beat);
            }
            return;
        }
        metrics::counter!("greenroom_heartbeats_written_total").increment(beats.len() as u64);
    }
}
