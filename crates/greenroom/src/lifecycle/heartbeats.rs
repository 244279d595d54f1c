//! This module collects heartbeats and writes them once a second, in one statement. A heartbeat is only a time, so the
//! last one of each connection is enough. An orderly stop writes the rest, and heartbeats stay in memory while the
//! database is unavailable.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ConnectionId;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::store::{Beat, Store};

const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default)]
pub struct Heartbeats {
    gathered: Arc<Mutex<HashMap<ConnectionId, Timestamp>>>,
}

impl Heartbeats {
    pub fn note(&self, beat: Beat) {
        let mut gathered = self.gathered();
        let last = gathered.entry(beat.connection_id).or_insert(beat.at);
        *last = beat.at.max(*last);
    }

    /// Returns the last heartbeat of a connection, if it is not stored yet.
    pub fn unwritten(&self, connection: ConnectionId) -> Option<Timestamp> {
        self.gathered().get(&connection).copied()
    }

    /// Writes once a second until `stopping`, and then writes the rest.
    pub async fn keep_writing(self, store: Store, stopping: CancellationToken) {
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            let last = tokio::select! {
                _ = tick.tick() => false,
                () = stopping.cancelled() => true,
            };
            self.write(&store, &mut failing).await;
            if last {
                return;
            }
        }
    }

    async fn write(&self, store: &Store, failing: &mut bool) {
        let beats: Vec<Beat> =
            self.gathered().iter().map(|(connection, at)| Beat { connection_id: *connection, at: *at }).collect();
        if beats.is_empty() {
            return;
        }
        if let Err(error) = store.write_heartbeats(&beats).await {
            if !std::mem::replace(failing, true) {
                tracing::warn!(%error, beats = beats.len(), "heartbeats not written; retried later");
            }
            return;
        }
        *failing = false;
        // Heartbeats stay readable in memory until here. Now they are in the database, so all but the newer ones are
        // removed.
        let mut gathered = self.gathered();
        for beat in &beats {
            if gathered.get(&beat.connection_id) == Some(&beat.at) {
                gathered.remove(&beat.connection_id);
            }
        }
        metrics::counter!("greenroom_heartbeats_written_total").increment(beats.len() as u64);
    }

    fn gathered(&self) -> MutexGuard<'_, HashMap<ConnectionId, Timestamp>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
