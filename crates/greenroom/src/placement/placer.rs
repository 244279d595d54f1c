//! This module is the one task that places. It collects jobs, brings its copy up to date, plans, and writes the plan.
//! If the write finds that the copy was not current, the task updates the copy and plans again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::UserId;
use domain::planner::changes::Changes;
use domain::planner::invariants::{BatchCheck, Scope};
use domain::planner::job::{JobAnswer, Refusal};
use domain::planner::{Ids, Job, Settings, Snapshot, plan};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::answer;
use super::batch::{Batch, Written};
use super::copy_check::CopyDifference;
use super::message::{Message, Reply, SnapshotReader, Submitted};
use super::snapshot_cache::SnapshotCache;
use super::view::PlacementView;
use super::workload::{KnownWorkload, Workload};
use crate::clock::Clock;
use crate::context::Context;
use crate::lifecycle::Lifecycle;
use crate::random::Random;
use crate::signals::Signals;
use crate::store::{Applied, Changed, PlacementTurn, Store, StoreError};

/// The largest batch, so that its first job does not wait for too many others.
const LARGEST_BATCH: usize = 256;
/// How often jobs are planned together before each is planned separately.
const ATTEMPTS_TOGETHER: u32 = 4;
/// How often a job is planned separately before it fails.
const ATTEMPTS_ALONE: u32 = 20;
/// How long a replica places before other replicas have their turn.
const LONGEST_TURN: Duration = Duration::from_millis(20);
/// After another replica has changed something during a plan, this replica takes the token before it plans, for this
/// long. So the conflict cannot repeat.
const CONTENDED: Duration = Duration::from_millis(50);
/// How long this replica places without turns after it waited for one without success.
const WITHOUT_TURNS: Duration = Duration::from_secs(10);
/// How often a replica that has nothing to place reads the changes of others, if the bus does not announce them.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);
/// How often upkeep that finds nothing to do checks that the copy is current.
const PROVE_UPKEEP: Duration = Duration::from_secs(30);
const PRUNE_EVERY: Duration = Duration::from_secs(10);

pub struct Placer {
    store: Store,
    clock: Clock,
    random: Random,
    signals: Signals,
    lifecycle: Lifecycle,
    settings: Settings,
    /// The runtime for work that no batch has to wait for.
    elsewhere: tokio::runtime::Handle,
    cache: SnapshotCache,
    /// This replica's turn, and since when.
    turn: Option<(PlacementTurn, Instant)>,
    /// Until then, the token is taken before planning.
    contended: Option<Instant>,
    /// Until then, this replica does not wait for turns.
    without_turns: Option<Instant>,
    /// When the journal was last pruned, and how far it was read then.
    pruned: (Instant, Option<i64>),
    workload: KnownWorkload,
    /// When it was last checked for a plan without changes that the copy was current.
    proved: Instant,
}

impl Placer {
    pub fn new(
        context: Context,
        signals: Signals,
        lifecycle: Lifecycle,
        settings: Settings,
        view: PlacementView,
        workload: KnownWorkload,
    ) -> Self {
        let Context { store, clock, random } = context;
        let cache = SnapshotCache::new(store.clone(), signals.clone(), lifecycle.feed.clone(), view);
        Self {
            store,
            clock,
            random,
            signals,
            lifecycle,
            settings,
            elsewhere: tokio::runtime::Handle::current(),
            cache,
            turn: None,
            contended: None,
            without_turns: None,
            pruned: (Instant::now(), None),
            workload,
            proved: Instant::now(),
        }
    }

    pub async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>, ending: CancellationToken) {
        let mut inbox = Vec::with_capacity(LARGEST_BATCH);
        let (mut others, mut other_replicas) = (self.lifecycle.bus.listen(), self.store.watch_other_replicas());
        loop {
            let is_only = self.store.is_only_replica();
            tokio::select! {
                biased;
                count = messages.recv_many(&mut inbox, LARGEST_BATCH) => if count == 0 { return },
                () = ending.cancelled() => {
                    // Jobs that were submitted before the end are still done.
                    messages.close();
                    if messages.recv_many(&mut inbox, LARGEST_BATCH).await == 0 {
                        return;
                    }
                }
                () = others.events_written(), if !is_only => self.follow_others().await,
                () = tokio::time::sleep(FOLLOW_EVERY), if !is_only => self.follow_others().await,
                Ok(()) = other_replicas.changed() => self.follow_others().await,
            }
            let mut submitted = Vec::with_capacity(inbox.len());
            for message in inbox.drain(..) {
                match message {
                    Message::Job(job) => submitted.push(*job),
                    Message::ReadSnapshot(read) => self.answer_read(read).await,
                    Message::RefreshView(token, reply) => drop(reply.send(self.cache.reach(token).await)),
                    Message::Verify(scope, reply) => drop(reply.send(self.verify(&scope).await)),
                }
            }
            if !submitted.is_empty() {
                metrics::histogram!("greenroom_placement_batch_jobs").record(submitted.len() as f64);
                let is_upkeep = submitted.iter().any(|submitted| matches!(submitted.job, Job::KeepWarm));
                self.take_turn().await;
                self.place(Batch::new(submitted)).await;
                if is_upkeep {
                    let workload = self.cache.get().map(|(snapshot, position)| Workload::of(snapshot, position.token));
                    self.workload.set(workload);
                }
            }
            self.end_turn(messages.is_empty()).await;
            self.prune().await;
        }
    }

    async fn answer_read(&mut self, reader: SnapshotReader) {
        match self.cache.follow().await {
            Ok(_) => {
                let found = self.cache.get().map(|(snapshot, position)| (snapshot, position.token));
                reader(found.ok_or_else(nothing_read));
            }
            Err(error) => reader(Err(error)),
        }
    }

    /// Compares rows with the copy under the token, so that neither can change in the meantime, and corrects the copy.
    async fn verify(&mut self, scope: &Scope) -> Result<Vec<CopyDifference>, StoreError> {
        self.cache.bring_up_to_date().await?;
        self.end_turn(true).await;
        let _held = self.store.hold_token().await?;
        self.cache.follow().await?;
        self.cache.verify(scope).await
    }

    /// Does all jobs in one write. If that fails, each job is done separately, so that one failing job does not fail
    /// the others.
    async fn place(&mut self, batch: Batch) {
        match self.attempt(&batch, ATTEMPTS_TOGETHER).await {
            Ok(written) => self.finish(batch, written).await,
            Err(error) if batch.jobs.len() == 1 || matches!(error, StoreError::Unavailable { .. }) => {
                batch.refuse(&error)
            }
            Err(error) => {
                tracing::warn!(%error, jobs = batch.jobs.len(), "placement batch failed; jobs are retried one by one");
                for alone in batch.split() {
                    match self.attempt(&alone, ATTEMPTS_ALONE).await {
                        Ok(written) => self.finish(alone, written).await,
                        Err(error) => alone.refuse(&error),
                    }
                }
            }
        }
    }

    /// Plans and writes until the write succeeds, and returns what was written.
    async fn attempt(&mut self, batch: &Batch, attempts: u32) -> Result<Written, StoreError> {
        let mut may_be_committed = true;
        let mut conflicts = 0;
        let mut last = "the batch was never written";
        for attempt in 0..attempts {
            match self.plan_and_write(batch, attempt > 0).await {
                Ok((Applied::Committed, written)) => return Ok(written),
                Ok((failed, _)) => {
                    last = match failed {
                        Applied::Stale => "other changes made each plan out of date",
                        _ => "a bot, a deployment or a key kept changing",
                    };
                    self.note_lost(failed);
                    conflicts += u32::from(failed == Applied::Conflict);
                    // After the first conflict, the rows that the jobs name were read again. So the copy differs
                    // elsewhere: in a slot.
                    if conflicts > 1 {
                        tracing::warn!(jobs = batch.jobs.len(), "placement copy dropped after repeated conflicts");
                        self.cache.forget();
                    }
                }
                // The write may be committed in spite of the error: everything is read again, including what these jobs
                // may have created.
                Err(error @ StoreError::Unavailable { .. }) if may_be_committed => {
                    tracing::warn!(%error, "placement write failed; the snapshot is read again");
                    may_be_committed = false;
                    self.cache.forget();
                }
                Err(error) => {
                    self.cache.forget();
                    return Err(error);
                }
            }
        }
        Err(StoreError::Conflict { call: "placement.apply", why: last.to_owned() })
    }

    fn note_lost(&mut self, failed: Applied) {
        let what = if failed == Applied::Stale { "token" } else { "row" };
        metrics::counter!("greenroom_placement_conflicts_total", "what" => what).increment(1);
        if failed == Applied::Stale {
            self.contended = Some(Instant::now() + CONTENDED);
        }
    }

    /// Whether another replica has recently changed something during a plan.
    fn is_contended(&self) -> bool {
        self.contended.is_some_and(|until| Instant::now() < until)
    }

    /// Plans and writes once. Usually nothing else changes in the meantime, and the write detects it if something does.
    /// A retry takes the token first, so that other replicas wait until it has written.
    async fn plan_and_write(&mut self, batch: &Batch, is_retry: bool) -> Result<(Applied, Written), StoreError> {
        // This comes before taking the token: reading everything may take longer than the token may be held.
        self.cache.bring_up_to_date().await?;
        let held = if is_retry || self.is_contended() {
            // The token already excludes all others. Keeping the turn would only occupy a second connection.
            self.end_turn(true).await;
            Some(self.store.hold_token().await?)
        } else {
            None
        };
        if held.is_some() {
            self.cache.follow().await?;
        }
        self.cache.look_up(&batch.jobs).await?;
        if is_retry {
            self.cache.refresh_jobs(&batch.jobs).await?;
        }
        let Some((snapshot, position)) = self.cache.get() else { return Err(nothing_read()) };
        let (now, seed) = (self.clock.now(), u64::from_le_bytes(self.random_bytes()?));
        let mut changes = plan(snapshot, &batch.jobs, now, Ids::new(now, seed), &self.settings);
        // For a request that would be refused, another replica, or this one before a restart, may know the idempotency
        // key.
        let unknown = unknown_keys(&batch.jobs, &changes, snapshot);
        if !unknown.is_empty() && self.cache.look_up_keys(&unknown).await? {
            let Some((snapshot, _)) = self.cache.get() else { return Err(nothing_read()) };
            changes = plan(snapshot, &batch.jobs, now, Ids::new(now, seed), &self.settings);
        }
        if changes.is_empty() {
            // No write checks here that the copy is current. The held token guarantees it, or the journal shows it.
            // Upkeep that found nothing to do runs again in a second, so it rarely needs a proof.
            let is_upkeep = batch.jobs.iter().all(|job| matches!(job, Job::KeepWarm));
            let needs_proof = held.is_none() && (!is_upkeep || self.proved.elapsed() > PROVE_UPKEEP);
            if needs_proof {
                self.proved = Instant::now();
            }
            let is_stale = needs_proof && self.cache.follow().await?;
            let applied = if is_stale { Applied::Stale } else { Applied::Committed };
            return Ok((applied, Written { changes, new: HashMap::new(), now }));
        }
        let token = Uuid::from_bytes(self.random_bytes()?);
        let changed = (!self.store.is_only_replica()).then(|| Changed::of(&changes));
        let write = self.store.prepare(&changes, &batch.details, (position.token, token), changed.as_ref(), now)?;
        let applied = self.store.write(write, held).await?;
        let mut new = HashMap::new();
        if applied == Applied::Committed {
            answer::log(&changes);
            new = changes.new_open_bots();
            let check =
                cfg!(debug_assertions).then(|| self.cache.get().map(|(copy, _)| BatchCheck::new(copy, &changes)));
            self.cache.apply(&mut changes, token);
            self.check(check.flatten());
        }
        Ok((applied, Written { changes, new, now }))
    }

    fn random_bytes<const N: usize>(&self) -> Result<[u8; N], StoreError> {
        self.random.bytes().map_err(|error| StoreError::internal("placement", error))
    }

    /// If there are other replicas: waits for the turn, and reads their changes.
    async fn take_turn(&mut self) {
        if self.store.is_only_replica()
            || self.turn.is_some()
            || self.without_turns.is_some_and(|until| Instant::now() < until)
        {
            return;
        }
        match self.store.take_placement_turn().await {
            Ok(Some(turn)) => {
                self.turn = Some((turn, Instant::now()));
                // If the changes cannot be read now, the write detects that the copy is not current.
                if let Err(error) = self.cache.follow().await {
                    tracing::warn!(%error, "placement journal not read");
                }
            }
            Ok(None) if self.store.is_shared() => {
                tracing::warn!("placement turn not received; placing without turns for a while");
                self.without_turns = Some(Instant::now() + WITHOUT_TURNS);
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "placement turn not taken"),
        }
    }

    /// Gives the turn back when there is nothing more to do, or when it has lasted long enough.
    async fn end_turn(&mut self, is_idle: bool) {
        if let Some((turn, _)) = self.turn.take_if(|(_, since)| is_idle || since.elapsed() >= LONGEST_TURN) {
            turn.give_back().await;
        }
    }

    /// Reads the changes of other replicas while there is nothing to place. So the next turn is fast, and agents that
    /// wait here are woken. If the read fails, the next batch repeats it.
    async fn follow_others(&mut self) {
        if let Err(error) = self.cache.follow().await {
            tracing::debug!(%error, "placement journal not read");
        }
    }

    /// In debug builds, checks after every batch that the invariants hold, including limits and pool sizes. It checks
    /// only what the batch changed.
    fn check(&self, check: Option<BatchCheck>) {
        if let Some((check, (snapshot, _))) = check.zip(self.cache.get()) {
            let complaints = check.complaints(snapshot);
            assert!(complaints.is_empty(), "a batch violated invariants: {complaints:?}");
        }
    }

    async fn finish(&mut self, batch: Batch, Written { mut changes, new, now }: Written) {
        let actions = std::mem::take(&mut changes.actions);
        self.signals.carry_out(actions);
        let unfinished = changes.unfinished;
        // Many answers wake many tasks, so the next batch does not wait for them.
        self.elsewhere.spawn(answer::answer(self.store.clone(), batch.replies, batch.details, changes, new, now));
        if unfinished {
            let rest = Submitted { job: Job::ServeQueues, details: None, reply: Reply::None };
            Box::pin(self.place(Batch::new(vec![rest]))).await;
        }
    }

    async fn prune(&mut self) {
        let position = self.cache.get().map(|(_, position)| position.journal);
        if self.pruned.0.elapsed() < PRUNE_EVERY || self.pruned.1 == position {
            return;
        }
        self.pruned = (Instant::now(), position);
        if let Err(error) = self.store.prune_placement_journal().await {
            tracing::warn!(%error, "placement journal not pruned");
        }
    }
}

/// Returns the idempotency keys of refused requests for which the copy does not know whether they were granted before.
fn unknown_keys(jobs: &[Job], changes: &Changes, snapshot: &Snapshot) -> Vec<(UserId, String)> {
    let refused = jobs.iter().zip(&changes.answers).filter_map(|(job, answer)| match (job, answer) {
        (Job::Reserve(request), JobAnswer::Reserve(Err(refusal))) if *refusal != Refusal::KeyExpired => Some(request),
        _ => None,
    });
    let keys = refused.filter_map(|request| Some((request.user, request.idempotency.as_ref()?.0.clone())));
    keys.filter(|(user, key)| snapshot.key(*user, key).is_none()).collect()
}

fn nothing_read() -> StoreError {
    StoreError::internal("placement", "the copy in memory is missing after it was brought up to date")
}
