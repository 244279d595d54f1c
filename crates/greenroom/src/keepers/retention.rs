//! The keeper `retention` deletes old data, so that nothing grows for ever. It acts when:
//! - a user was deleted: it deletes the user's bots and idempotency keys;
//! - a bot ended longer ago than `retention.bots`: it deletes the bot with everything that belongs to it. The bot's slot
//!   must be cleared, and its events must be in the figures of the keeper `stats`;
//! - a bot ended longer ago than `retention.transcripts`: it deletes the transcript;
//! - an idempotency key is older than `retention.idempotency_keys`, a failure older than `retention.failures`, or an
//!   entry of the audit log older than [`AUDIT_KEPT`];
//! - a heartbeat, a command, an API key, a browser session, a lease or a lock has been useless for an hour or more.
//!
//! A bot that has not ended is never deleted. The keeper deletes the oldest rows first, in small transactions, and rests
//! longer than it works, so that placement keeps its speed. It may stop after every transaction, and continues with
//! the next run. An age is a matter of the database's clock: a server whose clock is wrong deletes nothing too early.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::{BotId, ConnectionId, UserId};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use super::stats::StatsKeeper;
use super::{Keeper, KeeperError, RunReport, ago, count};
use crate::clock::Clock;
use crate::context::Context;
use crate::store::{KeyOfRequest, PrunedRows, Store, StoreError};

/// How long the audit log is kept.
pub const AUDIT_KEPT: Duration = Duration::from_hours(400 * 24);
/// How long rows are kept that nobody needs: a person who looks for the cause of an error may still want them.
const USELESS_KEPT: Duration = Duration::from_hours(1);
/// The same for an API key that has expired.
const EXPIRED_KEY_KEPT: Duration = Duration::from_hours(24);
const LONGEST_INTERVAL: Duration = Duration::from_mins(10);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(10);
/// All idempotency keys are read this often in the time that they are kept, and at least once an hour.
const KEY_SCANS: u32 = 24;
const LONGEST_KEY_INTERVAL: Duration = Duration::from_hours(1);
/// How many bots one transaction deletes. Each has several rows in other tables.
const BOTS_AT_ONCE: i64 = 100;
/// How many small rows one transaction deletes.
const ROWS_AT_ONCE: i64 = 500;
/// Bots with more rows than this are deleted in several transactions.
const MANY_ROWS: i64 = 2_000;
/// If the deletion of bots takes longer than this, the next transaction deletes fewer of them.
const LONG_DELETION: Duration = Duration::from_millis(50);
const FEWEST_BOTS: i64 = 5;
/// How many deleted users a run looks at.
const USERS_AT_ONCE: i64 = 100;
/// Between two transactions, the keeper rests this many times as long as the last one took.
const REST_FACTOR: u32 = 19;
const LONGEST_REST: Duration = Duration::from_secs(5);
/// A run ends after this time. If old data is left, the next run follows at once.
const LONGEST_RUN: Duration = Duration::from_secs(45);

/// How long data is kept. `None` means for ever. What belongs to a bot is kept no longer than the bot.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub bots: Option<Duration>,
    pub transcripts: Option<Duration>,
    pub idempotency_keys: Option<Duration>,
    pub failures: Option<Duration>,
}

/// Where the last run stopped, if it was not finished.
#[derive(Debug, Default)]
struct Positions {
    keys: Option<(Timestamp, KeyOfRequest)>,
    /// The beginning of the last scan of all idempotency keys that was finished.
    keys_scanned: Option<Timestamp>,
    bots: Option<BotId>,
}

#[derive(Debug)]
pub struct RetentionKeeper {
    store: Store,
    clock: Clock,
    kept: Retention,
    /// Events are deleted only when they are in the figures.
    stats: Arc<StatsKeeper>,
    positions: Mutex<Positions>,
    /// A caller asked for a run that leaves nothing out.
    full_run: AtomicBool,
    /// Old data is left for another run.
    unfinished: Notify,
    rest_factor: u32,
}

/// The report of a run, and when it must end.
struct Run {
    report: RunReport,
    begun: Instant,
}

impl Run {
    fn add(&mut self, table: &'static str, rows: u64) {
        metrics::counter!("greenroom_pruned_rows_total", "table" => table).increment(rows);
        self.report.add(table, rows);
    }

    fn add_all(&mut self, pruned: PrunedRows) {
        for (table, rows) in pruned {
            self.add(table, rows);
        }
    }

    fn is_over(&self) -> bool {
        self.begun.elapsed() > LONGEST_RUN
    }
}

impl RetentionKeeper {
    pub fn new(context: &Context, kept: Retention, stats: Arc<StatsKeeper>) -> Self {
        let (store, clock) = (context.store.clone(), context.clock.clone());
        let (positions, full_run, unfinished) = Default::default();
        Self { store, clock, kept, stats, positions, full_run, unfinished, rest_factor: REST_FACTOR }
    }

    /// Without rests, for a database on which nothing else runs.
    pub fn without_rests(self) -> Self {
        Self { rest_factor: 0, ..self }
    }

    fn positions(&self) -> MutexGuard<'_, Positions> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of the database. A test sets its own.
    async fn now(&self) -> Result<Timestamp, StoreError> {
        match &self.clock {
            Clock::System => self.store.database_time().await,
            manual => Ok(manual.now()),
        }
    }

    async fn rest(&self, begun: Instant) {
        let rest = (begun.elapsed() * self.rest_factor).min(LONGEST_REST);
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
    }

    async fn erase_deleted_users(&self, run: &mut Run, now: Timestamp) -> Result<(), StoreError> {
        for user in self.store.deleted_users(USERS_AT_ONCE).await? {
            if self.erase_user(run, user, now).await? {
                self.store.forget_deleted_user(user).await?;
                run.add("deleted_users", 1);
                tracing::info!(%user, "data of deleted user deleted");
            }
        }
        Ok(())
    }

    /// Deletes rows of bots until one transaction can delete the rest. False if the run is over before that.
    /// `is_erased` if their user is deleted.
    async fn delete_many_rows(&self, run: &mut Run, bots: &[BotId], is_erased: bool) -> Result<bool, StoreError> {
        while self.store.have_many_rows(bots, MANY_ROWS).await? {
            let begun = Instant::now();
            run.add_all(self.store.prune_rows_of_bots(bots, ROWS_AT_ONCE, is_erased).await?);
            self.rest(begun).await;
            if run.is_over() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether nothing of the user is left.
    async fn erase_user(&self, run: &mut Run, user: UserId, now: Timestamp) -> Result<bool, StoreError> {
        let (mut after, mut is_complete) = (BotId(Uuid::nil()), true);
        loop {
            let begun = Instant::now();
            let scan = self.store.scan_bots_of(user, after, BOTS_AT_ONCE).await?;
            let Some(last) = scan.last else { break };
            if !scan.prunable.is_empty() {
                if !self.delete_many_rows(run, &scan.prunable, true).await? {
                    return Ok(false);
                }
                let pruned = self.store.erase_bots(&scan.prunable).await?;
                let bots = pruned.iter().find(|(table, _)| *table == "bots").map_or(0, |(_, rows)| *rows);
                is_complete &= bots == count(scan.prunable.len());
                run.add_all(pruned);
            }
            // A bot whose slot is not cleared yet is left for a later run.
            is_complete &= scan.is_all_prunable;
            after = last;
            self.rest(begun).await;
            if run.is_over() {
                return Ok(false);
            }
        }
        loop {
            let begun = Instant::now();
            let keys = self.store.erase_idempotency_keys(user, ROWS_AT_ONCE, now).await?;
            run.add("idempotency_keys", keys);
            if keys == 0 {
                return Ok(is_complete);
            }
            self.rest(begun).await;
            if run.is_over() {
                return Ok(false);
            }
        }
    }

    /// Deletes what has been useless for a while, and old failures and audit entries.
    async fn prune_leftovers(&self, run: &mut Run, now: Timestamp) -> Result<(), StoreError> {
        let useless = ago(now, USELESS_KEPT);
        run.add_all(self.store.prune_expired(useless).await?);
        let (store, expired) = (&self.store, ago(now, EXPIRED_KEY_KEPT));
        self.repeat(run, "api_keys", || store.prune_api_keys(expired, ROWS_AT_ONCE, now)).await?;
        let audit = ago(now, AUDIT_KEPT);
        self.repeat(run, "audit", || store.prune_audit(audit, ROWS_AT_ONCE)).await?;
        if let Some(kept) = self.kept.failures {
            let before = ago(now, kept);
            self.repeat(run, "failures", || store.prune_failures(before, ROWS_AT_ONCE)).await?;
        }
        let mut command = Uuid::nil();
        while let scan = store.scan_commands(command, useless, ROWS_AT_ONCE).await?
            && let Some(last) = scan.last
        {
            let begun = Instant::now();
            if !scan.prunable.is_empty() {
                run.add("commands", store.prune_commands(&scan.prunable).await?);
            }
            command = last;
            self.rest(begun).await;
            if run.is_over() {
                return Ok(());
            }
        }
        let mut connection = ConnectionId(Uuid::nil());
        while let scan = store.scan_heartbeats(connection, useless, ROWS_AT_ONCE).await?
            && let Some(last) = scan.last
        {
            let begun = Instant::now();
            if !scan.prunable.is_empty() {
                run.add("heartbeats", store.prune_heartbeats(&scan.prunable).await?);
            }
            connection = last;
            self.rest(begun).await;
            if run.is_over() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Deletes some rows of a table again and again, until fewer are found.
    async fn repeat<F>(&self, run: &mut Run, table: &'static str, prune: impl Fn() -> F) -> Result<(), StoreError>
    where
        F: Future<Output = Result<u64, StoreError>>,
    {
        loop {
            let begun = Instant::now();
            let rows = prune().await?;
            run.add(table, rows);
            if i64::try_from(rows).is_ok_and(|rows| rows < ROWS_AT_ONCE) || run.is_over() {
                return Ok(());
            }
            self.rest(begun).await;
        }
    }

    /// Reads all idempotency keys, if it is time, and deletes the old ones. There is no index by age, because every
    /// request would pay for it.
    async fn prune_idempotency_keys(&self, run: &mut Run, now: Timestamp, is_full: bool) -> Result<(), StoreError> {
        let Some(kept) = self.kept.idempotency_keys else { return Ok(()) };
        let interval = (kept / KEY_SCANS).min(LONGEST_KEY_INTERVAL);
        let unfinished = self.positions().keys.take();
        let is_due = self.positions().keys_scanned.is_none_or(|last| ago(now, interval) >= last);
        let (scan_begun, mut after) = match unfinished {
            Some(position) => position,
            None if is_full || is_due => (now, (UserId(Uuid::nil()), String::new())),
            None => return Ok(()),
        };
        let before = ago(scan_begun, kept);
        loop {
            let begun = Instant::now();
            let scan = self.store.scan_idempotency_keys(&after, before, ROWS_AT_ONCE).await?;
            let Some(last) = scan.last else { break };
            if !scan.prunable.is_empty() {
                run.add("idempotency_keys", self.store.prune_idempotency_keys(&scan.prunable, now).await?);
            }
            after = last;
            if run.is_over() {
                self.positions().keys = Some((scan_begun, after));
                return Ok(());
            }
            self.rest(begun).await;
        }
        self.positions().keys_scanned = Some(scan_begun);
        Ok(())
    }

    async fn prune_transcripts(&self, run: &mut Run, now: Timestamp) -> Result<(), StoreError> {
        let Some(kept) = self.kept.transcripts else { return Ok(()) };
        if self.kept.bots.is_some_and(|bots| bots <= kept) {
            // They are deleted with their bots.
            return Ok(());
        }
        let (before, mut after) = (ago(now, kept), 0);
        loop {
            let begun = Instant::now();
            let scan = self.store.scan_transcripts(after, before, ROWS_AT_ONCE).await?;
            let Some(last) = scan.last else { return Ok(()) };
            if !scan.prunable.is_empty() {
                run.add("transcript_segments", self.store.prune_transcripts(&scan.prunable).await?);
            }
            after = last;
            self.rest(begun).await;
            if run.is_over() {
                return Ok(());
            }
        }
    }

    async fn prune_bots(&self, run: &mut Run, now: Timestamp) -> Result<(), StoreError> {
        let Some(kept) = self.kept.bots else { return Ok(()) };
        // An idempotency key must not outlive its bot. So a bot is deleted only if all keys of its age are gone.
        let keys_scanned = self.positions().keys_scanned;
        let now = if self.kept.idempotency_keys.is_some() { keys_scanned } else { Some(now) };
        let Some(before) = now.map(|now| ago(now, kept)) else { return Ok(()) };
        let mut after = self.positions().bots.take().unwrap_or(BotId(Uuid::nil()));
        let mut at_once = BOTS_AT_ONCE;
        loop {
            let scan = self.store.scan_old_bots(after, before, at_once).await?;
            let Some(last) = scan.last else { return Ok(()) };
            let is_small = scan.prunable.is_empty() || self.delete_many_rows(run, &scan.prunable, false).await?;
            let begun = Instant::now();
            if is_small {
                if !scan.prunable.is_empty() {
                    run.add_all(self.store.prune_bots(&scan.prunable).await?);
                }
                after = last;
            }
            if run.is_over() {
                self.positions().bots = Some(after);
                return Ok(());
            }
            // Large logs and screenshots take longer.
            at_once = if begun.elapsed() > LONG_DELETION { at_once / 2 } else { at_once * 2 };
            at_once = at_once.clamp(FEWEST_BOTS, BOTS_AT_ONCE);
            self.rest(begun).await;
        }
    }
}

#[async_trait]
impl Keeper for RetentionKeeper {
    fn name(&self) -> &'static str {
        "retention"
    }

    /// A short retention needs frequent runs.
    fn every(&self) -> Duration {
        let Retention { bots, transcripts, idempotency_keys, failures } = self.kept;
        let shortest = [bots, transcripts, idempotency_keys, failures].into_iter().flatten().min();
        shortest.map_or(LONGEST_INTERVAL, |kept| (kept / 10).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL))
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        let is_full = self.full_run.swap(false, Ordering::SeqCst);
        let mut run = Run { report: RunReport::default(), begun: Instant::now() };
        let now = self.now().await?;
        // Otherwise the keeper `stats` does so often enough. Under load it needs a while.
        if is_full {
            self.stats.count_events().await?;
        }
        self.erase_deleted_users(&mut run, now).await?;
        self.prune_idempotency_keys(&mut run, now, is_full).await?;
        self.prune_bots(&mut run, now).await?;
        self.prune_transcripts(&mut run, now).await?;
        self.prune_leftovers(&mut run, now).await?;
        if run.is_over() {
            self.unfinished.notify_one();
        }
        Ok(run.report)
    }

    async fn woken(&self) {
        self.unfinished.notified().await;
    }

    fn request_full_run(&self) {
        self.full_run.store(true, Ordering::SeqCst);
    }
}
