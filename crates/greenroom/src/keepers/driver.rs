//! This module runs the keepers: each one by time and by signal, one run of each at a time, on the leading replica. The
//! store keeps the result of each run, so that every replica can show it. If another replica asks for a run, the
//! request is stored as a row until the leader has done it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::leader::Leadership;
use super::{Keeper, KeeperError, KeeperList, RunReport};
use crate::clock::Clock;
use crate::context::Context;
use crate::store::{KeeperRow, Store, StoreError};

/// How often the leader checks for runs that other replicas ask for.
const REQUEST_POLL_INTERVAL: Duration = Duration::from_millis(300);
/// The shortest pause between two runs of a keeper, however often it is woken.
const REST: Duration = Duration::from_millis(100);
/// A run that did nothing is stored at most this often.
const WRITE_IDLE_RUNS: Duration = Duration::from_secs(30);
/// How long a caller waits for the run that it asked for. The run continues after that.
const LONGEST_WAIT: Duration = Duration::from_secs(55);
/// A process that begins to lead this soon after its start runs all keepers at once.
const AT_START: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("there is no such keeper")]
    Unknown,
    #[error("the run takes longer than {} s and continues; GET /admin/keepers shows its result", LONGEST_WAIT.as_secs())]
    TakesLong,
    /// The leader's error.
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}

impl From<StoreError> for RunError {
    fn from(error: StoreError) -> Self {
        RunError::Keeper(error.into())
    }
}

#[derive(Clone, Debug)]
pub struct Keepers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    clock: Clock,
    leadership: Leadership,
    posts: Vec<Post>,
    begun: Instant,
}

/// A keeper and the state of its runs.
#[derive(Debug)]
struct Post {
    keeper: Arc<dyn Keeper>,
    /// Allows one run at a time.
    turn: AsyncMutex<()>,
    /// Another replica asks for a run. `asked_number` is the number of its latest request.
    asked: Notify,
    asked_number: AtomicI64,
    last: Mutex<Last>,
}

/// The last run, as this process knows it.
#[derive(Debug, Default)]
struct Last {
    row: KeeperRow,
    written: Option<Instant>,
    failing: bool,
    /// Whether the metric of the last success has a value.
    has_success_time: bool,
}

impl Post {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keepers {
    pub fn new(context: &Context, leadership: Leadership, keeper_list: KeeperList) -> Self {
        let (store, clock) = (context.store.clone(), context.clock.clone());
        let post = |keeper| Post {
            keeper,
            turn: AsyncMutex::default(),
            asked: Notify::new(),
            asked_number: AtomicI64::new(0),
            last: Mutex::default(),
        };
        for keeper in &keeper_list {
            let name = keeper.name();
            metrics::gauge!("greenroom_keeper_interval_seconds", "keeper" => name).set(keeper.every().as_secs_f64());
            // So that the first failure counts as an increase.
            metrics::counter!("greenroom_keeper_failures_total", "keeper" => name).increment(0);
        }
        let posts = keeper_list.into_iter().map(post).collect();
        Self(Arc::new(Inner { store, clock, leadership, posts, begun: Instant::now() }))
    }

    /// Runs all keepers until `ending`.
    pub async fn keep(self, ending: CancellationToken) {
        let drives = (0..self.0.posts.len()).map(|index| self.drive(index));
        tokio::select! {
            _ = futures_util::future::join_all(drives) => {}
            () = self.poll_requests() => {}
            () = ending.cancelled() => {}
        }
    }

    async fn drive(&self, index: usize) {
        let Self(inner) = self;
        let post = &inner.posts[index];
        let (mut next, mut rested) = (Instant::now(), Instant::now());
        loop {
            if !inner.leadership.is_held() {
                inner.leadership.until_leading().await;
                // The signal may be older than the lease.
                if !inner.leadership.is_held() {
                    tokio::time::sleep(REQUEST_POLL_INTERVAL).await;
                    continue;
                }
                next = self.due(post).await;
            }
            let is_due = tokio::select! {
                () = tokio::time::sleep_until(next) => true,
                () = post.asked.notified() => {
                    post.keeper.request_full_run();
                    false
                }
                () = async { tokio::time::sleep_until(rested).await; post.keeper.woken().await } => false,
                () = inner.leadership.lost() => continue,
            };
            if inner.leadership.is_held() {
                let _ = self.run_at(index, is_due).await;
                rested = Instant::now() + REST;
                next = Instant::now() + post.keeper.every();
            } else {
                // The request is found again, by this replica or by the one that leads.
                post.asked_number.store(0, Ordering::SeqCst);
            }
        }
    }

    /// When a replica that has just begun to lead first runs a keeper. Soon after the start of the process this is at
    /// once; later it is when the previous leader would have run it.
    async fn due(&self, post: &Post) -> Instant {
        let Self(inner) = self;
        let now = Instant::now();
        if now < inner.begun + AT_START {
            return now;
        }
        let rows = inner.store.keepers().await.unwrap_or_default();
        let last_run = rows.into_iter().find(|row| row.name == post.keeper.name()).and_then(|row| row.last_run);
        let since = last_run.map(|at| Duration::try_from(inner.clock.now().duration_since(at)).unwrap_or_default());
        now + since.map_or(Duration::ZERO, |since| post.keeper.every().saturating_sub(since))
    }

    /// Runs a keeper once and stores the result. A run that is only due by time is left out if there is nothing to do.
    async fn run_at(&self, index: usize, is_due: bool) -> Result<RunReport, KeeperError> {
        let Self(inner) = self;
        let post = &inner.posts[index];
        let _turn = post.turn.lock().await;
        let asked = post.asked_number.load(Ordering::SeqCst);
        let (at, begun, keeper) = (inner.clock.now(), Instant::now(), post.keeper.clone());
        // A panic in a keeper counts as a failed run. If this replica loses the lead, it cancels the run, and the next
        // leader continues.
        let may_skip = is_due && asked <= post.last().row.answered;
        let run = AbortOnDropHandle::new(tokio::spawn(async move {
            let skipped = if may_skip { keeper.skipped_run().await } else { None };
            match skipped {
                Some(report) => Ok(report),
                None => keeper.run().await,
            }
        }));
        let done = tokio::select! {
            done = run => done.unwrap_or_else(|error| Err(error.into())),
            () = inner.leadership.lost() => {
                post.asked_number.store(0, Ordering::SeqCst);
                return Err(KeeperError::LeadershipLost);
            }
        };
        let took = begun.elapsed();
        self.report_run(post, took, &done);

        let every = post.keeper.every();
        let answer = match &done {
            Ok(report) => serde_json::json!({ "did": report.counts }),
            Err(error) => serde_json::json!({ "error": error.to_string() }),
        };
        let row = KeeperRow {
            name: post.keeper.name().to_owned(),
            last_run: Some(at),
            took_ms: i64::try_from(took.as_millis()).ok(),
            did: serde_json::json!(done.as_ref().map(|report| report.counts.clone()).unwrap_or_default()).to_string(),
            error: match &done {
                Ok(report) if report.complaints.is_empty() => None,
                Ok(report) => Some(report.complaints.join("; ")),
                Err(error) => Some(error.to_string()),
            },
            next_run: inner.clock.now().checked_add(every).ok(),
            asked,
            answered: asked,
            answer: Some(answer.to_string()),
        };
        self.write(post, row, done.as_ref().is_ok_and(RunReport::is_nothing)).await;
        done
    }

    /// Stores the result of a run: at once if the run did something, or if a caller waits for it.
    async fn write(&self, post: &Post, row: KeeperRow, idle: bool) {
        {
            let mut last = post.last();
            let waited_for = row.answered > last.row.answered;
            let lately = last.written.is_some_and(|at| at.elapsed() < WRITE_IDLE_RUNS);
            last.row = row.clone();
            if idle && lately && !waited_for && post.keeper.every() < WRITE_IDLE_RUNS {
                return;
            }
            last.written = Some(Instant::now());
        }
        if let Err(error) = self.0.store.keep_run(&row).await {
            tracing::warn!(keeper = row.name, %error, "keeper result not stored");
            post.last().written = None;
            // The request of the waiting caller is found again.
            post.asked_number.store(0, Ordering::SeqCst);
        }
    }

    fn report_run(&self, post: &Post, took: Duration, done: &Result<RunReport, KeeperError>) {
        let keeper = post.keeper.name();
        metrics::counter!("greenroom_keeper_runs_total", "keeper" => keeper).increment(1);
        metrics::histogram!("greenroom_keeper_run_duration_seconds", "keeper" => keeper).record(took);
        #[allow(clippy::cast_precision_loss)]
        let now = self.0.clock.now().as_millisecond() as f64 / 1_000.0;
        metrics::gauge!("greenroom_keeper_last_run_timestamp_seconds", "keeper" => keeper).set(now);
        let trouble = match done {
            Ok(report) => {
                for (what, count) in &report.counts {
                    metrics::counter!("greenroom_keeper_did_total", "keeper" => keeper, "what" => *what)
                        .increment(*count);
                }
                if report.counts.values().any(|count| *count > 0) && !post.keeper.is_routine() {
                    tracing::info!(keeper, did = ?report.counts, took_ms = took.as_millis(), "keeper run finished");
                }
                (!report.complaints.is_empty()).then(|| report.complaints.join("; "))
            }
            Err(error) => Some(error.to_string()),
        };
        // This logs the first failure, and not each run while the trouble lasts.
        let failed_before = std::mem::replace(&mut post.last().failing, trouble.is_some());
        // For a keeper that never succeeds, the time of its first run stands there. So it is late one day, too.
        let has_success_time = std::mem::replace(&mut post.last().has_success_time, true);
        if trouble.is_none() || !has_success_time {
            metrics::gauge!("greenroom_keeper_last_success_timestamp_seconds", "keeper" => keeper).set(now);
        }
        if let Some(trouble) = trouble {
            metrics::counter!("greenroom_keeper_failures_total", "keeper" => keeper).increment(1);
            if !failed_before {
                tracing::warn!(keeper, error = trouble, "keeper run incomplete");
            }
        }
    }

    /// Runs a keeper now, on the replica that leads, and returns what it did.
    pub async fn run(&self, name: &str) -> Result<Vec<(String, u64)>, RunError> {
        let Self(inner) = self;
        let name = name.replace('-', "_");
        let index = inner.posts.iter().position(|post| post.keeper.name() == name).ok_or(RunError::Unknown)?;
        let this = self.clone();
        // A run that has begun is finished, even if the caller stops waiting.
        let run = tokio::spawn(async move {
            if this.0.leadership.is_held() {
                this.0.posts[index].keeper.request_full_run();
                match this.run_at(index, false).await {
                    Ok(report) => {
                        return Ok(report.counts.into_iter().map(|(what, count)| (what.to_owned(), count)).collect());
                    }
                    Err(error) if this.0.leadership.is_held() => return Err(error.into()),
                    Err(_) => {}
                }
            }
            this.ask_leader(index).await
        });
        match tokio::time::timeout(LONGEST_WAIT, run).await {
            Ok(done) => done.unwrap_or_else(|error| Err(KeeperError::from(error).into())),
            Err(_) => Err(RunError::TakesLong),
        }
    }

    /// Asks the leader for a run, and waits until the leader has done it.
    async fn ask_leader(&self, index: usize) -> Result<Vec<(String, u64)>, RunError> {
        let Self(inner) = self;
        let name = inner.posts[index].keeper.name();
        let number = inner.store.ask_keeper(name).await?;
        let deadline = Instant::now() + LONGEST_WAIT;
        while Instant::now() < deadline {
            let row = inner.store.keepers().await?.into_iter().find(|row| row.name == name).unwrap_or_default();
            if row.answered >= number {
                return answer(row.answer.as_deref().unwrap_or_default());
            }
            tokio::time::sleep(REQUEST_POLL_INTERVAL / 3).await;
        }
        Err(RunError::TakesLong)
    }

    /// On the leader: wakes the keepers that other replicas ask for.
    async fn poll_requests(&self) {
        let Self(inner) = self;
        if !inner.store.is_shared() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(REQUEST_POLL_INTERVAL).await;
            // Without other replicas, nobody asks this one.
            if !inner.leadership.is_held() || inner.store.is_only_replica() {
                continue;
            }
            // If the database is unavailable, no replica can have asked.
            let rows = inner.store.keepers().await.unwrap_or_default();
            for row in rows.into_iter().filter(|row| row.asked > row.answered) {
                let Some(post) = inner.posts.iter().find(|post| post.keeper.name() == row.name) else { continue };
                if post.asked_number.swap(row.asked, Ordering::SeqCst) != row.asked {
                    post.asked.notify_one();
                }
            }
        }
    }

    /// Returns what each keeper did last, and which replica leads. This process may know a newer run than the store.
    pub async fn shown(&self) -> Result<(Vec<KeeperRow>, Option<String>), StoreError> {
        Ok((self.rows().await?, self.0.leadership.leader().await?))
    }

    /// Every keeper, with the newest facts about its runs.
    pub async fn rows(&self) -> Result<Vec<KeeperRow>, StoreError> {
        let Self(inner) = self;
        let written = inner.store.keepers().await?;
        let shown = inner.posts.iter().map(|post| {
            let name = post.keeper.name();
            let mut row = written.iter().find(|row| row.name == name).cloned().unwrap_or_default();
            let own = post.last().row.clone();
            if own.last_run > row.last_run {
                row = own;
            }
            KeeperRow { name: name.to_owned(), ..row }
        });
        Ok(shown.collect())
    }
}

/// Reads the result that the leader stored for a requested run.
fn answer(text: &str) -> Result<Vec<(String, u64)>, RunError> {
    #[derive(serde::Deserialize)]
    struct StoredAnswer {
        did: Option<std::collections::BTreeMap<String, u64>>,
        error: Option<String>,
    }
    let lost = || RunError::Failed("the run has finished, but its result cannot be read".to_owned());
    let StoredAnswer { did, error } = serde_json::from_str(text).map_err(|_| lost())?;
    match error {
        Some(error) => Err(RunError::Failed(error)),
        None => Ok(did.ok_or_else(lost)?.into_iter().collect()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::store::Holder;

    /// A keeper that panics, or reports that the database is unavailable.
    #[derive(Debug)]
    struct Failing {
        panics: bool,
    }

    #[async_trait::async_trait]
    impl Keeper for Failing {
        fn name(&self) -> &'static str {
            if self.panics { "panicking" } else { "away" }
        }

        fn every(&self) -> Duration {
            Duration::from_hours(1)
        }

        async fn run(&self) -> Result<RunReport, KeeperError> {
            assert!(!self.panics, "index out of bounds");
            Err(StoreError::timed_out("slots.list").into())
        }
    }

    #[tokio::test]
    async fn a_panic_of_a_keeper_is_not_reported_as_an_unavailable_database() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}", folder.path().join("x.db").display())).await.unwrap();
        let leadership = Leadership::new(store.clone(), Holder { id: uuid::Uuid::nil(), name: "here".to_owned() });
        let keeper_list: KeeperList = vec![Arc::new(Failing { panics: true }), Arc::new(Failing { panics: false })];
        let keepers = Keepers::new(&Context::new(store, Clock::System, Random::System), leadership, keeper_list);

        let error = keepers.run("panicking").await.unwrap_err();
        assert!(matches!(error, RunError::Keeper(KeeperError::Panicked(_))), "{error:?}");
        assert_eq!(error.to_string(), "internal fault: the run panicked: index out of bounds");
        let (shown, _) = keepers.shown().await.unwrap();
        assert!(shown[0].error.as_deref().is_some_and(|error| !error.contains("database")), "{shown:?}");

        let error = keepers.run("away").await.unwrap_err();
        assert!(matches!(error, RunError::Keeper(KeeperError::Store(StoreError::Unavailable { .. }))), "{error:?}");
        assert!(error.to_string().contains("the database is unavailable"), "{error}");
    }
}
