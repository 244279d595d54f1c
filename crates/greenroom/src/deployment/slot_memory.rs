//! This module collects the memory that agents measure in their slots, and writes it at most every 10 seconds, in one
//! statement. A figure that has hardly changed is not written. An agent sends one with each poll, so a figure that is
//! lost with the process comes again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::SlotName;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::store::{SlotMemoryRow, Store, StoreError};

/// The pause after a write.
const PAUSE: Duration = Duration::from_secs(10);
/// How often the figures of slots that are gone are deleted.
const PRUNE_EVERY: Duration = Duration::from_mins(1);
/// After this time a figure is written although it has not changed: the agent may have polled another replica in the
/// meantime, which wrote another figure. An agent that has not polled for so long has a bot, or is gone.
const KNOWN_FOR: Duration = Duration::from_mins(10);
/// A figure is written if it differs by more than this part from the one that was written last: one twentieth.
const CHANGED_PART: u64 = 20;

#[derive(Clone, Debug, Default)]
pub struct SlotMemory {
    gathered: Arc<Mutex<HashMap<SlotName, Figure>>>,
    /// A figure waits to be written.
    noted: Arc<Notify>,
}

/// The memory of one slot.
#[derive(Debug)]
struct Figure {
    /// The last measurement, if it has to be written.
    unwritten: Option<SlotMemoryRow>,
    /// The last one that was written, and when.
    written: Option<(SlotMemoryRow, Instant)>,
}

impl SlotMemory {
    pub fn note(&self, row: SlotMemoryRow) {
        let mut gathered = self.gathered();
        let figure = gathered.entry(row.slot.clone()).or_insert(Figure { unwritten: None, written: None });
        let is_known = figure.written.as_ref().is_some_and(|(written, at)| {
            at.elapsed() < KNOWN_FOR && written.incarnation == row.incarnation && is_near(written.bytes, row.bytes)
        });
        figure.unwritten = (!is_known).then_some(row);
        if figure.unwritten.is_some() {
            self.noted.notify_one();
        }
    }

    /// Writes what is noted until `stopping`.
    pub async fn keep_writing(&self, store: &Store, stopping: &CancellationToken) {
        let mut prune = tokio::time::interval(PRUNE_EVERY);
        prune.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut failing, mut has_work, mut next_write) = (false, false, Instant::now());
        loop {
            // The other branch may end this one at any point, so `has_work` keeps the notification.
            let write_due = async {
                if !has_work {
                    self.noted.notified().await;
                    has_work = true;
                }
                tokio::time::sleep_until(next_write).await;
            };
            let result = tokio::select! {
                () = write_due => {
                    let written = self.write(store).await;
                    (has_work, next_write) = (written.is_err(), Instant::now() + PAUSE);
                    written
                }
                _ = prune.tick() => {
                    self.forget_old();
                    store.prune_slot_memory().await
                }
                () = stopping.cancelled() => return,
            };
            if let Err(error) = &result
                && !failing
            {
                tracing::warn!(%error, "slot memory not written; kept for the next try");
            }
            failing = result.is_err();
        }
    }

    async fn write(&self, store: &Store) -> Result<(), StoreError> {
        let rows: Vec<SlotMemoryRow> = self.gathered().values().filter_map(|figure| figure.unwritten.clone()).collect();
        if rows.is_empty() {
            return Ok(());
        }
        store.write_slot_memory(&rows).await?;
        let mut gathered = self.gathered();
        for row in rows {
            let Some(figure) = gathered.get_mut(&row.slot) else { continue };
            // A newer measurement stays for the next write.
            if figure.unwritten.as_ref() == Some(&row) {
                figure.unwritten = None;
            }
            figure.written = Some((row, Instant::now()));
        }
        Ok(())
    }

    /// Forgets slots whose agents do not poll here any more.
    fn forget_old(&self) {
        self.gathered().retain(|_, figure| {
            figure.unwritten.is_some() || figure.written.as_ref().is_some_and(|(_, at)| at.elapsed() < KNOWN_FOR)
        });
    }

    fn gathered(&self) -> MutexGuard<'_, HashMap<SlotName, Figure>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_near(written: i64, measured: i64) -> bool {
    written.abs_diff(measured) <= written.unsigned_abs() / CHANGED_PART
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn row(incarnation: u128, bytes: i64) -> SlotMemoryRow {
        let (slot, incarnation) = (SlotName::new("meet", 1), Uuid::from_u128(incarnation));
        SlotMemoryRow { slot, incarnation, bytes, measured_at: Timestamp::UNIX_EPOCH }
    }

    /// Whether the next figure has to be written after one of 1000 bytes was.
    fn is_written(next: SlotMemoryRow, age: Duration) -> bool {
        let memory = SlotMemory::default();
        let written = Instant::now().checked_sub(age).map(|at| (row(1, 1000), at));
        memory.gathered().insert(next.slot.clone(), Figure { unwritten: None, written });
        memory.note(next);
        memory.gathered().values().any(|figure| figure.unwritten.is_some())
    }

    #[test]
    fn a_figure_is_written_if_it_is_new_or_has_changed_by_more_than_a_twentieth() {
        for near in [950, 1000, 1050] {
            assert!(!is_written(row(1, near), Duration::ZERO), "{near}");
        }
        for other in [0, 949, 1051, i64::MAX] {
            assert!(is_written(row(1, other), Duration::ZERO), "{other}");
        }
        assert!(is_written(row(2, 1000), Duration::ZERO), "of another slot with the same name");
        assert!(is_written(row(1, 1000), KNOWN_FOR), "another replica may have written since");
    }

    #[test]
    fn a_figure_that_comes_back_before_it_is_written_is_not_written() {
        let memory = SlotMemory::default();
        let written = Some((row(1, 1000), Instant::now()));
        memory.gathered().insert(row(1, 0).slot, Figure { unwritten: None, written });
        memory.note(row(1, 2000));
        memory.note(row(1, 1000));
        assert!(memory.gathered().values().all(|figure| figure.unwritten.is_none()));
    }
}
