//! This module compares placement's copy in memory with the tables: slots, open bots with their queue positions, and
//! pools. A row that only one side has is a difference too. The check exists because placement decides on the copy.
//!
//! The first comparison takes no lock, so under load it also finds rows that changed between the two reads. Placement
//! then reads only those rows again while it holds the placement token. A difference that remains is a real one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::planner::Snapshot;
use domain::planner::bot::OpenBot;
use domain::planner::invariants::Scope;
use domain::{BotId, Pool, SlotName, UserId};
use tokio_util::sync::CancellationToken;

use super::Placement;
use crate::store::{Store, StoreError};

pub const INTERVAL: Duration = Duration::from_secs(10);
/// How many slots and bots one part compares, from each side.
const ROWS: usize = 1_000;
/// All rows are compared within this number of runs.
const RUNS: usize = 50;
/// How many rows are read at once while the token is held.
const ROWS_HELD: usize = 500;

/// A difference between the copy and the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyDifference {
    Slot(SlotName),
    Bot(BotId),
    Pool(String),
    /// The pool's row has a wrong count of slots.
    PoolCount(String),
}

impl CopyDifference {
    pub fn kind(&self) -> &'static str {
        match self {
            CopyDifference::PoolCount(_) => "pool_miscounted",
            _ => "copy",
        }
    }
}

impl fmt::Display for CopyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyDifference::Slot(slot) => write!(f, "slot {slot} differs between placement's memory and the table"),
            CopyDifference::Bot(bot) => write!(f, "bot {bot} differs between placement's memory and the tables"),
            CopyDifference::Pool(pool) => write!(f, "pool {pool} differs between placement's memory and the table"),
            CopyDifference::PoolCount(pool) => {
                write!(f, "pool {pool} has a different number of slots than its row counts")
            }
        }
    }
}

/// Compares the copy of one replica, one part at a time.
#[derive(Clone, Debug)]
pub struct CopyCheck {
    store: Store,
    placement: Placement,
    rows: usize,
    position: Arc<Mutex<Position>>,
}

/// Where the next part begins: in the tables, and in the copy.
#[derive(Clone, Debug, Default)]
struct Position {
    slot: Option<(String, i64)>,
    bot: Option<(UserId, BotId)>,
    skipped: usize,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct CopyReport {
    pub differences: Vec<CopyDifference>,
    /// Slots that have two rows. PostgreSQL has no unique index that prevents them.
    pub stored_twice: Vec<SlotName>,
}

impl CopyCheck {
    pub fn new(store: Store, placement: Placement) -> Self {
        Self { store, placement, rows: ROWS, position: Arc::default() }
    }

    /// Compares in parts of another size.
    pub fn in_parts_of(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Compares one part, or more parts if that is needed to compare everything in [`RUNS`] runs.
    pub async fn run(&self) -> Result<CopyReport, StoreError> {
        let size = self.placement.read_snapshot(|copy, _| copy.slots().len().max(copy.bots().count())).await?;
        let mut report = CopyReport::default();
        for _ in 0..(size / self.rows).div_ceil(RUNS).max(1) {
            self.compare_part(&mut report).await?;
        }
        Ok(report)
    }

    async fn compare_part(&self, report: &mut CopyReport) -> Result<(), StoreError> {
        let scope = self.next_part(report).await?;
        let stored = self.store.load_part(&scope).await?;
        let suspects = self.placement.read_snapshot(move |copy, _| differences(copy, &stored, &scope)).await?;
        for suspects in suspects.chunks(ROWS_HELD) {
            report.differences.extend(self.placement.verify(scope_of(suspects)).await?);
        }
        Ok(())
    }

    /// Returns the next rows of both sides.
    async fn next_part(&self, report: &mut CopyReport) -> Result<Scope, StoreError> {
        let Position { slot, bot, skipped } = self.position.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let rows = self.rows;
        let limit = i64::try_from(rows).unwrap_or(i64::MAX);
        let after = slot.as_ref().map(|(pool, number)| (pool.as_str(), *number));
        let slots = self.store.slots_after(after, limit).await?;
        for pair in slots.windows(2).filter(|pair| pair[0].name == pair[1].name) {
            report.stored_twice.push(pair[0].name.clone());
        }
        let bots = self.store.open_bots_after(bot, limit).await?;
        let copied = self.placement.read_snapshot(move |copy, _| Scope::part(copy, skipped, rows)).await?;
        let is_last = copied.slots.len() < rows && copied.bots.len() < rows;
        *self.position.lock().unwrap_or_else(PoisonError::into_inner) = Position {
            slot: slots.last().filter(|_| slots.len() == rows).map(|slot| (slot.pool.clone(), slot.number)),
            bot: bots.last().filter(|_| bots.len() == rows).copied(),
            skipped: if is_last { 0 } else { skipped + rows },
        };
        let names: BTreeSet<_> = slots.into_iter().map(|slot| slot.name).chain(copied.slots).collect();
        let ids: BTreeSet<_> = bots.into_iter().map(|(_, bot)| bot).chain(copied.bots).collect();
        Ok(Scope { slots: names.into_iter().collect(), bots: ids.into_iter().collect(), pools: copied.pools })
    }

    /// Compares until `ending`. It pauses while `is_done_elsewhere` is true: then the leader's keeper compares this
    /// copy.
    pub async fn keep_comparing(self, is_done_elsewhere: impl Fn() -> bool + Send, ending: CancellationToken) {
        loop {
            tokio::select! {
                () = ending.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            if is_done_elsewhere() {
                continue;
            }
            match self.run().await {
                Ok(report) => drop(report.log()),
                Err(error) => tracing::debug!(%error, "placement copy not compared"),
            }
        }
    }
}

impl CopyReport {
    /// Logs and counts the differences, and returns their number.
    pub fn log(&self) -> u64 {
        for difference in &self.differences {
            log_violation(difference.kind(), &difference.to_string());
        }
        for slot in &self.stored_twice {
            log_violation("slot_stored_twice", &format!("slot {slot} has two rows"));
        }
        (self.differences.len() + self.stored_twice.len()) as u64
    }
}

/// Every kind of violation.
const KINDS: [&str; 11] = [
    "copy",
    "pool_miscounted",
    "bot_lost",
    "queued_with_slot",
    "bot_in_two_slots",
    "slot_of_two_bots",
    "two_at_a_meeting",
    "wrong_platform",
    "limit_passed",
    "pool_overgrown",
    "slot_stored_twice",
];

/// So that the first violation of a kind counts as an increase.
pub fn begin_counting() {
    for kind in KINDS {
        metrics::counter!("greenroom_invariant_violations_total", "kind" => kind).increment(0);
    }
}

/// Logs and counts a violation as an error, because it must never happen.
pub fn log_violation(kind: &'static str, violation: &str) {
    tracing::error!(kind, violation, "invariant violated");
    metrics::counter!("greenroom_invariant_violations_total", "kind" => kind).increment(1);
}

pub(super) fn scope_of(differences: &[CopyDifference]) -> Scope {
    let mut scope = Scope::default();
    for difference in differences {
        match difference {
            CopyDifference::Slot(slot) => scope.slots.push(slot.clone()),
            CopyDifference::Bot(bot) => scope.bots.push(*bot),
            CopyDifference::Pool(pool) | CopyDifference::PoolCount(pool) => scope.pools.push(pool.clone()),
        }
    }
    scope
}

/// Returns the differences between the copy and the stored rows.
pub fn differences(copy: &Snapshot, stored: &Snapshot, scope: &Scope) -> Vec<CopyDifference> {
    let slots = scope.slots.iter().filter(|name| copy.slot(name) != stored.slot(name)).cloned();
    let bots = scope.bots.iter().copied().filter(|id| !is_same_bot(copy.bot(*id), stored.bot(*id)));
    let names: BTreeSet<&str> =
        (scope.pools.iter().map(String::as_str)).chain(stored.pools().map(|state| state.pool.name.as_str())).collect();
    let pools = names.into_iter().filter_map(|name| {
        let [known, found] = [copy.pool(name), stored.pool(name)].map(|state| state.map(|state| &state.pool));
        match known.zip(found) {
            Some((known, found)) if known == found => None,
            Some((known, found)) if *known == (Pool { slots: known.slots, ..found.clone() }) => {
                Some(CopyDifference::PoolCount(name.to_owned()))
            }
            _ => Some(CopyDifference::Pool(name.to_owned())),
        }
    });
    slots.map(CopyDifference::Slot).chain(bots.map(CopyDifference::Bot)).chain(pools).collect()
}

/// Compares two versions of a bot. Callbacks of a running bot are written without the token, so for running bots the
/// status and `has_joined` may differ.
fn is_same_bot(known: Option<&OpenBot>, stored: Option<&OpenBot>) -> bool {
    match known.zip(stored) {
        Some((known, stored)) if known.status.is_running() && stored.status.is_running() => {
            let OpenBot { status, has_joined, .. } = *stored;
            OpenBot { status, has_joined, ..known.clone() } == *stored
        }
        Some((known, stored)) => known == stored,
        None => known.is_none() && stored.is_none(),
    }
}

/// Copies the stored values into the copy where they differ.
pub fn correct(copy: &mut Snapshot, stored: &Snapshot, differences: &[CopyDifference]) {
    let counted = |copy: &Snapshot, name: &str| copy.pool(name).map_or(0, |state| state.numbers.taken());
    let mut recounted = BTreeSet::new();
    for difference in differences {
        match difference {
            CopyDifference::Pool(name) => {
                let found = stored.pool(name).map(|state| state.pool.clone());
                copy.set_pool(name, found);
                recounted.insert(name.clone());
            }
            CopyDifference::Slot(name) => {
                let both = [copy.slot(name), stored.slot(name)].into_iter().flatten();
                recounted.extend(both.map(|slot| slot.pool.clone()));
                copy.set_slot(name, stored.slot(name).cloned());
            }
            CopyDifference::Bot(id) => copy.set_bot(*id, stored.bot(*id).cloned()),
            CopyDifference::PoolCount(_) => {}
        }
    }
    for name in recounted {
        if let Some(pool) = copy.pool(&name).map(|state| state.pool.clone()) {
            let slots = counted(copy, &name);
            copy.set_pool(&name, Some(Pool { slots, ..pool }));
        }
    }
}
