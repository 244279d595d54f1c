//! Placement decides which bot gets which slot. Requests, ends of bots and slot events that arrive while a batch is
//! being written go into the next batch together (group commit); an idle server places at once. [`domain::planner`]
//! decides on a copy in memory of everything that it needs. The write of the decision checks that the copy was current.
//!
//! - this file: the calls of other modules
//! - [`message`]: messages to the task that places
//! - [`batch`]: jobs that are planned together
//! - [`placer`]: load, plan, apply
//! - [`snapshot_cache`]: the copy in memory, and how it stays current
//! - [`view`]: what the API shows of the copy
//! - [`answer`]: answers to the callers
//! - [`pool_size`]: changes of a pool's size by an operator
//! - [`probe`]: bots that prove that a pool works
//! - [`workload`]: whether work is under way, for keepers
//! - [`copy_check`]: comparison of the copy with the tables

mod answer;
mod batch;
pub mod copy_check;
mod message;
mod placer;
pub mod pool_size;
pub mod probe;
mod snapshot_cache;
pub mod view;
mod workload;

use std::sync::Arc;
use std::time::Duration;

use domain::planner::invariants::Scope;
use domain::planner::job::{EndBot, EndCause, ReserveRequest, WarmReport};
use domain::planner::{Job, QueueOrder, Settings, Snapshot};
use domain::{Attributes, BotId, Deadlines, KeyId, PROBE_USER, Platform, SlotName, Status, UserId};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::admission::api_keys::ApiKey;
use crate::admission::{Admission, AdmissionError, BotRequest};
use crate::context::Context;
use crate::lifecycle::ends::Ending;
use crate::lifecycle::{Lifecycle, LifecycleError};
use crate::random::NoRandomness;
use crate::signals::Signals;
use crate::store::{BotDetails, BotRow, Store, StoreError};
use copy_check::CopyDifference;
pub use domain::planner::job::SlotEvent;
use message::{Message, Reply, Submitted};
use placer::Placer;
use view::{PlacementView, ViewState};
use workload::KnownWorkload;
pub use workload::Workload;

/// How many requests may wait for placement, unless the configuration sets another limit.
const WAITING_REQUESTS: usize = 10_000;
/// How long a reader of the view waits for placement. Then it gets the view as it is.
const REFRESH_WITHIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Placement {
    inbox: mpsc::UnboundedSender<Message>,
    /// One permit for each request that may wait. Ends of bots and slot events need none: they are never refused.
    waiting: Arc<Semaphore>,
    context: Context,
    admission: Admission,
    view: PlacementView,
    workload: KnownWorkload,
}

/// A bot that is reserved, by this request or by an earlier one with the same idempotency key.
#[derive(Clone, Debug)]
pub struct Reserved {
    pub bot: BotRow,
    pub is_new: bool,
    /// Only for a new bot: an agent waits in its slot, so that its first callback is expected from now on.
    pub is_awaited: bool,
    pub queue_position: Option<i64>,
    pub estimated_wait_ms: Option<i64>,
}

/// Why a bot was not reserved.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    #[error("the API key is not known, or no longer valid")]
    Unauthorized,
    #[error("there is no such user")]
    NoSuchUser,
    #[error("the idempotency key was used before with another body")]
    IdempotencyMismatch,
    #[error("must be at least {min}, the lowest priority that you may use")]
    PriorityTooLow { min: i64 },
    #[error("you already have a bot at this meeting")]
    DuplicateBot(BotId),
    #[error("{running} of {limit} bots are running")]
    LimitReached { running: i64, limit: i64 },
    #[error(
        "no pool serves {0}: the operator must add a [[pool]] with platform = \"{0}\" to the configuration and restart \
         the server"
    )]
    NoPool(Platform),
    #[error("no slot for {0} can meet these requirements")]
    NoneFits(Platform),
    #[error("the server is stopping")]
    Stopping,
    #[error("too many requests wait for placement")]
    Overloaded,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Random(#[from] NoRandomness),
}

impl From<AdmissionError> for PlacementError {
    fn from(error: AdmissionError) -> Self {
        match error {
            AdmissionError::Unauthorized | AdmissionError::SessionEnded => PlacementError::Unauthorized,
            AdmissionError::Store(error) => PlacementError::Store(error),
            AdmissionError::Random(error) => PlacementError::Random(error),
        }
    }
}

impl Placement {
    /// Starts to place, until `ending`.
    pub fn begin(
        context: Context,
        signals: Signals,
        admission: Admission,
        lifecycle: Lifecycle,
        deadlines: Deadlines,
        queue_order: QueueOrder,
        ending: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (inbox, messages) = mpsc::unbounded_channel();
        let waiting = Arc::new(Semaphore::new(WAITING_REQUESTS));
        let expected_duration = deadlines.expected_duration;
        let settings = Settings { queue_order, deploy_timeout: deadlines.deploy, expected_duration };
        let (view, workload) = (PlacementView::new(expected_duration), KnownWorkload::default());
        let placer = Placer::new(context.clone(), signals, lifecycle, settings, view.clone(), workload.clone());
        (Self { inbox, waiting, context, admission, view, workload }, placer.run(messages, ending))
    }

    /// Sets another limit for waiting requests.
    pub fn with_waiting_requests(self, most: usize) -> Self {
        Self { waiting: Arc::new(Semaphore::new(most)), ..self }
    }

    /// Reserves a bot and gives it a slot or a queue position, or returns why not. The answer comes after the commit.
    pub async fn reserve(&self, key: ApiKey, request: BotRequest) -> Result<Reserved, PlacementError> {
        // The user is known before the request is queued.
        let user = self.admission.authenticate(&key).await?;
        self.reserve_for(user, key.id, request).await
    }

    /// The same for a user who is known already, by this key.
    pub async fn reserve_for(&self, user: UserId, key: KeyId, request: BotRequest) -> Result<Reserved, PlacementError> {
        self.reserve_with(user, Some(key), request, None).await
    }

    /// Does the same for an operator, who needs no key of the user. The user's limits hold.
    pub async fn reserve_by_operator(&self, user: UserId, request: BotRequest) -> Result<Reserved, PlacementError> {
        if user == PROBE_USER {
            return Err(PlacementError::NoSuchUser);
        }
        self.reserve_with(user, None, request, None).await.map_err(|error| match error {
            // Without a key, only the user can be unknown.
            PlacementError::Unauthorized => PlacementError::NoSuchUser,
            error => error,
        })
    }

    async fn reserve_with(
        &self,
        user: UserId,
        key: Option<KeyId>,
        request: BotRequest,
        pool: Option<String>,
    ) -> Result<Reserved, PlacementError> {
        // The permit belongs to the job: if the caller stops waiting, its job remains and still counts.
        let permit = self.waiting.clone().try_acquire_owned().map_err(|_| {
            metrics::counter!("greenroom_http_overloaded_total", "what" => "placement").increment(1);
            PlacementError::Overloaded
        })?;
        let job = ReserveRequest {
            id: BotId(self.context.random.id(self.context.clock.now())?),
            user,
            key,
            platform: request.meeting.platform,
            native_meeting_id: request.meeting.native_id,
            priority: request.priority,
            queue_timeout_ms: request.queue_timeout_ms,
            requirements: request.requirements,
            idempotency: request.idempotency,
            pool,
        };
        let details = BotDetails {
            meeting_url: request.meeting.url,
            bot_display_name: request.bot_display_name,
            requirements: request.given_requirements,
            config: request.config,
            metadata: request.metadata,
        };
        let (reply, answer) = oneshot::channel();
        let reply = Reply::Reserve(reply, permit);
        let submitted = Submitted { job: Job::Reserve(Box::new(job)), details: Some(details), reply };
        self.inbox.send(Message::Job(submitted.into())).map_err(|_| PlacementError::Stopping)?;
        answer.await.map_err(|_| PlacementError::Stopping)?
    }

    /// Ends a bot. If nothing of the bot is left in its slot, the next bot in the queue gets the slot in the same
    /// transaction. Returns the status that holds afterwards.
    pub async fn end(&self, ending: Ending) -> Result<Status, LifecycleError> {
        let bot = ending.bot();
        let cause = match ending {
            Ending::Exited { caller, exit_code, reason, error } => EndCause::Exited {
                token: caller.claim.connection,
                named: caller.connection_id,
                exit_code,
                reason,
                error,
            },
            Ending::GivenUp { overdue, error, .. } => EndCause::GivenUp { overdue, error },
        };
        let (reply, answer) = oneshot::channel();
        let job = Job::End(Box::new(EndBot { bot, cause }));
        self.submit(job, Reply::End(reply)).map_err(|_| LifecycleError::Stopping)?;
        answer.await.map_err(|_| LifecycleError::Stopping)?
    }

    /// Reports an event of a slot. If the slot becomes free, the next bot in the queue gets it in the same transaction.
    /// False when the event came too late: it does not match the slot's current state, and nothing changed.
    pub async fn report(&self, slot: SlotName, event: SlotEvent) -> Result<bool, StoreError> {
        let (reply, answer) = oneshot::channel();
        if self.submit(Job::Slot(slot, event), Reply::Slot(reply)).is_err() {
            return Ok(false);
        }
        answer.await.unwrap_or(Ok(false))
    }

    /// Creates the slots that pools keep ready, deletes surplus ones, and serves every queue. It is the safety net in
    /// case a signal was lost.
    pub async fn keep_warm(&self) -> Result<WarmReport, StoreError> {
        let (reply, answer) = oneshot::channel();
        if self.submit(Job::KeepWarm, Reply::KeepWarm(reply)).is_err() {
            return Ok(WarmReport::default());
        }
        answer.await.unwrap_or(Ok(WarmReport::default()))
    }

    /// A runner with these attributes became free. Among the bots that went back to the queue, the first one that it
    /// fits is tried again.
    pub fn retry_waiting(&self, attributes: Attributes) {
        let _ = self.submit(Job::RetryWaiting(attributes), Reply::None);
    }

    /// Whether work is under way. `None` if this is not known, as on a replica that does not run the keepers.
    pub fn workload(&self) -> Option<Workload> {
        self.workload.get()
    }

    /// Reads placement's copy in memory, after it was brought up to date, and its token.
    pub async fn read_snapshot<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Snapshot, Uuid) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let message = Message::ReadSnapshot(Box::new(move |found| {
            let _ = reply.send(found.map(|(snapshot, token)| read(snapshot, token)));
        }));
        self.inbox.send(message).map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Reads the view, which shows everything that was committed before this call. `store` is the caller's, so that the
    /// call uses the connections of its lane, and not those of placement.
    pub async fn read_view<T>(&self, store: &Store, read: impl FnOnce(&ViewState) -> T) -> Result<T, StoreError> {
        let token = store.placement_token().await?;
        if !self.view.is_at(token) {
            self.refresh_view(token).await;
        }
        if !self.view.is_known() {
            return Err(StoreError::timed_out("placement.view"));
        }
        Ok(read(&self.view.state()))
    }

    /// Waits until placement has brought the view up to date. If that takes long, a reader gets the view as it is, and
    /// waits only for the first one.
    async fn refresh_view(&self, token: Uuid) {
        let (reply, answer) = oneshot::channel();
        if self.inbox.send(Message::RefreshView(token, reply)).is_err() {
            return;
        }
        let refreshed = match self.view.is_known() {
            true => tokio::time::timeout(REFRESH_WITHIN, answer).await,
            false => Ok(answer.await),
        };
        match refreshed {
            Ok(Ok(Err(error))) => tracing::debug!(%error, "placement view not refreshed"),
            Ok(_) => {}
            Err(_) => tracing::debug!("placement view not refreshed in time"),
        }
    }

    /// Reads rows again while nothing can change them, and returns the differences from the copy. The copy then has the
    /// stored values.
    pub async fn verify(&self, scope: Scope) -> Result<Vec<CopyDifference>, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.inbox.send(Message::Verify(scope, reply)).map_err(|_| stopping())?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    fn submit(&self, job: Job, reply: Reply) -> Result<(), mpsc::error::SendError<Message>> {
        self.inbox.send(Message::Job(Submitted { job, details: None, reply }.into()))
    }
}

fn stopping() -> StoreError {
    StoreError::Stopping { call: "placement" }
}
