//! What operators see live: slots, bots, queue, gates and keepers. One task of the replica reads them from the database
//! and sends the differences to all readers, so that the changes of other replicas are seen as well. It works only while
//! there is a reader, and uses neither placement's connections nor its thread.
//!
//! - this file: readers, and the task
//! - [`state`]: what is shown, and its encoding
//! - [`coalescer`]: at most ten messages a second
//! - [`message`]: the text of a message, and its compressed form

pub mod coalescer;
pub mod message;
pub mod state;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use crate::keepers::driver::Keepers;
use crate::store::{DeploymentRow, LivePosition, Store, StoreError};
use coalescer::{Coalescer, SHORTEST_PAUSE};
use message::LiveMessage;
use state::{BotCell, GateCell, KeeperCell, LiveState, QueueCell, SlotCell, seconds};

/// A reader that is further behind is dropped. It gets a new snapshot when it comes back.
const BACKLOG: usize = 16;
/// After this time everything is read even if nothing seems to have changed. On PostgreSQL an event may become visible
/// after one with a greater id.
const READ_AT_LEAST_EVERY: Duration = Duration::from_millis(700);
/// The task rests this many times as long as a read took, so that a large installation is not busy with its readers.
const REST: u32 = 4;
const AFTER_ERROR: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct Live(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    keepers: Keepers,
    max_concurrent: i64,
    messages: broadcast::Sender<LiveMessage>,
    coalescer: Mutex<Coalescer>,
    /// A reader has come.
    wanted: Notify,
}

/// One reader of the stream.
#[derive(Debug)]
pub struct LiveReader {
    /// The snapshot that it begins with, if the task has one already.
    first: Option<LiveMessage>,
    messages: broadcast::Receiver<LiveMessage>,
}

impl Drop for LiveReader {
    fn drop(&mut self) {
        metrics::gauge!("greenroom_stream_readers", "stream" => "live").decrement(1.0);
    }
}

impl LiveReader {
    /// The next message. `None` when the reader was too slow and is dropped, or the server stops.
    pub async fn next(&mut self) -> Option<LiveMessage> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        match self.messages.recv().await {
            Ok(message) => Some(message),
            Err(RecvError::Lagged(_)) => {
                metrics::counter!("greenroom_live_readers_dropped_total").increment(1);
                None
            }
            Err(RecvError::Closed) => None,
        }
    }
}

impl Live {
    /// `store` must be the one for users.
    pub fn new(store: Store, keepers: Keepers, max_concurrent: i64) -> Self {
        let (messages, wanted, coalescer) = (broadcast::Sender::new(BACKLOG), Notify::new(), Mutex::default());
        Self(Arc::new(Inner { store, keepers, max_concurrent, messages, coalescer, wanted }))
    }

    /// A new reader. Its first message is a snapshot.
    pub fn read(&self) -> LiveReader {
        // The lock is held: the snapshot is the one before the first message that this reader gets.
        let mut coalescer = self.coalescer();
        let messages = self.0.messages.subscribe();
        let first = coalescer.snapshot();
        drop(coalescer);
        self.0.wanted.notify_one();
        metrics::gauge!("greenroom_stream_readers", "stream" => "live").increment(1.0);
        LiveReader { first, messages }
    }

    fn coalescer(&self) -> MutexGuard<'_, Coalescer> {
        self.0.coalescer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything when there is no reader. The next reader gets a state that is read then.
    fn rests(&self) -> bool {
        let mut coalescer = self.coalescer();
        let rests = self.0.messages.receiver_count() == 0;
        if rests {
            *coalescer = Coalescer::default();
        }
        rests
    }

    fn publish(&self, state: LiveState, now: Instant) {
        let mut coalescer = self.coalescer();
        coalescer.update(state);
        if let Some(message) = coalescer.take(now) {
            let _ = self.0.messages.send(message);
        }
    }

    /// Reads and sends until `ending`, while there are readers.
    pub async fn follow(self, ending: CancellationToken) {
        let mut failing = false;
        let mut last: Option<(LivePosition, Instant)> = None;
        loop {
            if self.rests() {
                last = None;
                tokio::select! {
                    () = self.0.wanted.notified() => continue,
                    () = ending.cancelled() => return,
                }
            }
            let begun = Instant::now();
            let read = tokio::select! {
                read = self.read_changed(last) => read,
                () = ending.cancelled() => return,
            };
            let pause = match read {
                Ok(read) => {
                    failing = false;
                    if let Some((position, state)) = read {
                        last = Some((position, begun));
                        self.publish(state, Instant::now());
                    }
                    (begun.elapsed() * REST).clamp(SHORTEST_PAUSE, READ_AT_LEAST_EVERY)
                }
                Err(error) => {
                    // This logs the first failure only, and not each retry while the database is unavailable.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "live state not read");
                    }
                    AFTER_ERROR
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = ending.cancelled() => return,
            }
        }
    }

    /// Reads everything if something may have changed since the last read.
    async fn read_changed(
        &self,
        last: Option<(LivePosition, Instant)>,
    ) -> Result<Option<(LivePosition, LiveState)>, StoreError> {
        // The position is read first: what changes during the read is read again.
        let position = self.0.store.live_position().await?;
        match last {
            Some((known, at)) if known == position && at.elapsed() < READ_AT_LEAST_EVERY => Ok(None),
            _ => Ok(Some((position, self.read_all().await?))),
        }
    }

    async fn read_all(&self) -> Result<LiveState, StoreError> {
        let Inner { store, keepers, max_concurrent, .. } = &*self.0;
        let pools = store.pools().await?;
        let mut state = LiveState {
            pools: pools.iter().map(|pool| (pool.name.clone(), pool.platform)).collect(),
            ..LiveState::default()
        };
        let indexes: BTreeMap<&str, usize> =
            pools.iter().enumerate().map(|(index, pool)| (pool.name.as_str(), index)).collect();
        for slot in store.live_slots().await? {
            // A pool that was added meanwhile is in the next read.
            let Some(pool) = indexes.get(slot.pool.as_str()) else { continue };
            let cell = SlotCell { status: slot.status, since: seconds(slot.status_since), hot: slot.hot };
            state.slots.insert((*pool, slot.number), cell);
        }
        for bot in store.live_bots().await? {
            let slot = bot.slot.as_ref().and_then(|name| state.slot_key(name));
            state.bots.insert(bot.id.0, BotCell { status: bot.status, since: seconds(bot.status_since), slot });
        }
        for (position, row) in store.queue_after(None, i64::MAX).await? {
            let cell = QueueCell {
                platform: position.platform,
                priority: position.priority,
                turn: position.turn,
                arrival: position.arrival,
                pool: row.pool,
                queued_at: seconds(row.queued_at),
                timeout_at: seconds(row.timeout_at),
            };
            state.queue.insert(row.bot_id.0, cell);
        }
        let hosts = pools.into_iter().filter(|pool| pool.fill_order.is_some()).map(|pool| pool.host);
        state.gates = gates(hosts, &store.deployments().await?, *max_concurrent);
        let (rows, leader) = keepers.shown().await?;
        let keeper_cells = rows.into_iter().map(|row| KeeperCell {
            name: row.name,
            last_run: row.last_run.map(seconds),
            took_ms: row.took_ms,
            error: row.error,
            next_run: row.next_run.map(seconds),
            leader: leader.clone(),
        });
        state.keepers = keeper_cells.collect();
        Ok(state)
    }
}

/// The gates of these hosts, and of other hosts with deployments.
pub fn gates(
    hosts: impl IntoIterator<Item = String>,
    deployments: &[DeploymentRow],
    max_concurrent: i64,
) -> Vec<GateCell> {
    let mut counts: BTreeMap<String, (usize, usize)> = hosts.into_iter().map(|host| (host, (0, 0))).collect();
    for row in deployments {
        let (active, queued) = counts.entry(row.host.clone()).or_default();
        *if row.active { active } else { queued } += 1;
    }
    let cell = |(host, (active, queued))| GateCell { host, active, queued, max_concurrent };
    counts.into_iter().map(cell).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use domain::Platform;

    use super::*;
    use crate::clock::Clock;
    use crate::context::Context;
    use crate::keepers::leader::Leadership;
    use crate::random::Random;
    use crate::store::Holder;

    async fn live() -> (Live, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}", folder.path().join("g.db").display())).await.unwrap();
        let context = Context::new(store.clone(), Clock::System, Random::seeded(1));
        let replica = Holder { id: uuid::Uuid::nil(), name: "here".to_owned() };
        let keepers = Keepers::new(&context, Leadership::new(store.clone(), replica), Vec::new());
        (Live::new(store.for_users(), keepers, 4), folder)
    }

    /// States that each differ from the one before.
    fn state(number: usize) -> LiveState {
        LiveState { pools: vec![(format!("pool-{number}"), Platform::Zoom)], ..LiveState::default() }
    }

    #[tokio::test]
    async fn a_reader_that_does_not_read_is_dropped_and_others_are_not() {
        let (live, _folder) = live().await;
        let (mut slow, mut quick) = (live.read(), live.read());
        let begun = Instant::now();
        for number in 0..3 * BACKLOG {
            live.publish(state(number), begun + SHORTEST_PAUSE * u32::try_from(number).unwrap());
            assert!(quick.next().await.is_some());
        }
        assert_eq!(slow.next().await, None);
        // It comes back, and begins with the current state.
        let LiveMessage::Snapshot(first) = live.read().next().await.unwrap() else { panic!("no snapshot") };
        let first = String::from_utf8_lossy(first.plain()).into_owned();
        assert!(first.contains(&format!("pool-{}", 3 * BACKLOG - 1)), "{first}");
    }

    #[tokio::test]
    async fn nothing_is_read_without_a_reader_and_the_first_message_is_a_snapshot() {
        let (live, _folder) = live().await;
        assert!(live.rests());
        let ending = CancellationToken::new();
        let task = tokio::spawn(live.clone().follow(ending.clone()));
        let mut reader = live.read();
        assert!(matches!(reader.next().await, Some(LiveMessage::Snapshot(_))));
        drop(reader);
        assert!(live.rests() && live.coalescer().snapshot().is_none());
        ending.cancel();
        task.await.unwrap();
    }
}
