//! The jobs of placement and their answers. Each job has its file in [`super::commands`].

use jiff::Timestamp;
use uuid::Uuid;

use crate::event::Actor;
use crate::lifecycle::Overdue;
use crate::{
    Attributes, BotId, ConnectionId, KeyId, PROBE_USER, Platform, Pool, Reason, Requirements, SlotClaim, SlotName,
    Status, UserId,
};

/// A job of placement.
#[derive(Clone, Debug)]
pub enum Job {
    /// A user requests a bot.
    Reserve(Box<ReserveRequest>),
    /// A bot ends.
    End(Box<EndBot>),
    /// An event of this slot.
    Slot(SlotName, SlotEvent),
    /// Make missing slots, remove excess ones, and serve every queue.
    KeepWarm,
    /// A runner with these attributes came free. Of the bots that returned to the queue, the first that it fits may try
    /// again.
    RetryWaiting(Attributes),
    /// Serve every queue, because the last batch stopped at its limit.
    ServeQueues,
}

/// A user's request for a bot.
#[derive(Clone, Debug)]
pub struct ReserveRequest {
    /// The id of the bot, if it is admitted. It stays the same if the request is planned again.
    pub id: BotId,
    /// The user who asks.
    pub user: UserId,
    /// The API key of the request; `None` if an operator asks for the user.
    pub key: Option<KeyId>,
    /// The platform of the meeting.
    pub platform: Platform,
    /// The platform's own id of the meeting.
    pub native_meeting_id: String,
    /// A lower number goes first.
    pub priority: i64,
    /// How long the bot may wait in the queue.
    pub queue_timeout_ms: i64,
    /// The bot's requirements for a slot.
    pub requirements: Option<Requirements>,
    /// The idempotency key, with a hash of the request.
    pub idempotency: Option<(String, String)>,
    /// Only for a probe: the pool whose slot it gets.
    pub pool: Option<String>,
}

impl ReserveRequest {
    /// Who asks.
    pub fn actor(&self) -> Actor {
        if self.key.is_some() { Actor::User } else { Actor::Operator }
    }

    /// Whether the bot may have a slot of this pool, if the slot meets its requirements.
    pub fn allows(&self, pool: &Pool) -> bool {
        let is_probe = self.user == PROBE_USER;
        !is_probe || self.pool.as_ref() == Some(&pool.name)
    }
}

/// The end of a bot.
#[derive(Clone, Debug)]
pub struct EndBot {
    /// The bot.
    pub bot: BotId,
    /// Why it ends.
    pub cause: EndCause,
}

/// Why a bot ends.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum EndCause {
    /// The bot reports that its process ended. `token` is the connection of its token, `named` the connection in the
    /// request.
    Exited { token: ConnectionId, named: ConnectionId, exit_code: i64, reason: Option<Reason>, error: Option<String> },
    /// It waited too long, or could not be deployed.
    GivenUp { overdue: Overdue, error: Option<String> },
}

/// An event of a slot. An event that does not fit the slot's current state came too late and changes nothing.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum SlotEvent {
    /// Nothing of its bot remains in it.
    Cleared { bot: BotId },
    /// An agent process waits in it with the slot's current token.
    AgentWaits { claim: SlotClaim, agent: String },
    /// The agent that waits in the slot has no command that is ready, so the slot may get no bot. With `left`, the agent
    /// has closed its connection without a report.
    NotReady { claim: SlotClaim, agent: String, left: bool },
    /// The slot was started for its bot, or made without a bot, by this holder of its deployment.
    Started { bot: Option<BotId>, provider_ref: String, recipe: Option<String>, holder: Uuid },
    /// This holder dropped the deployment before it started, because it is no longer needed.
    NotBegun { bot: Option<BotId>, holder: Uuid },
    /// There is no capacity for the bot's requirements. This holder of the deployment started nothing, and the bot
    /// returns to the queue. Only for a bot that has sent no callback.
    NoCapacity { bot: BotId, holder: Uuid, message: String },
    /// The slot has a bot, but perhaps no agent: it is started again with a new connection. Only for a bot that has
    /// sent no callback.
    Silent { bot: BotId, generation: i64 },
    /// The start or end of its bot failed, or a start without a bot failed.
    Broken { bot: Option<BotId>, message: String },
    /// The slot failed. It has had no bot, and the same status, since `since`.
    Failed { since: Timestamp, message: String },
    /// A recovery begins, which counts as one attempt. The slot has been in error, or stuck, since `since`.
    Recovering { since: Timestamp, message: String },
    /// The recovery succeeded, and nothing remains in the slot. It has been in error since `since`.
    Recovered { since: Timestamp },
    /// The slot is missing at the provider, or has no waiting agent, and is made again. It has been idle, or in a start
    /// without a bot, since `since`. If `counts` is true, this is one recovery attempt.
    Lost { since: Timestamp, counts: bool },
    /// An unknown process runs in the slot, which has been idle since `since`.
    UnknownProcess { since: Timestamp },
    /// The slot was to be stopped, and nothing runs in it any more.
    Stopped,
    /// It is to take no more bots.
    Drain,
    /// Nothing of the slot remains at the provider.
    Gone,
}

/// The answer to a job, after its changes are written.
#[derive(Clone, Debug, PartialEq)]
pub enum JobAnswer {
    /// The bot, or the refusal.
    Reserve(Result<Reserved, Refusal>),
    /// The final status of the bot, or why it did not end.
    End(Result<Status, EndRefusal>),
    /// Whether the event fitted the slot's state.
    Slot(bool),
    /// The result of keeping pools warm.
    KeepWarm(WarmReport),
    /// The job has no answer.
    Nothing,
}

/// A bot that was reserved by this request or by an earlier one.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserved {
    /// The bot.
    pub bot: BotId,
    /// Whether it was reserved by this request.
    pub is_new: bool,
    /// Its place in the queue, while it waits.
    pub queue_position: Option<i64>,
    /// An estimate of its wait.
    pub estimated_wait_ms: Option<i64>,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum Refusal {
    /// The API key is not known, or no longer valid.
    #[error("the API key is not known, or no longer valid")]
    KeyExpired,
    /// The idempotency key was used before with another body.
    #[error("the idempotency key was used before with another body")]
    IdempotencyMismatch,
    /// No pool serves this platform.
    #[error("no pool serves {0}")]
    NoPool(Platform),
    /// No slot for this platform could ever meet the requirements.
    #[error("no slot for {0} can meet these requirements")]
    NothingFits(Platform),
    /// The priority is below the least number that the user may give.
    #[error("must be at least {min}, the lowest priority that you may use")]
    PriorityTooLow { min: i64 },
    /// The user already has a bot at this meeting.
    #[error("you already have a bot at this meeting")]
    DuplicateBot(BotId),
    /// The user has reached the limit of running bots.
    #[error("{running} of {limit} bots are running")]
    LimitReached { running: i64, limit: i64 },
}

/// Why a bot does not end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum EndRefusal {
    /// The bot does not exist.
    NoSuchBot,
    /// The callback names a connection that is not the current one.
    StaleConnection,
    /// A bot in this status cannot end this way.
    InvalidTransition(Status),
    /// The bot has already ended, with this status and reason.
    Ended { status: Status, reason: Option<String> },
}

/// The result of keeping pools warm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmReport {
    /// Slots that were made or started to be ready.
    pub made: u64,
    /// Excess slots that are removed.
    pub let_go: u64,
    /// Slots that were not needed for long and are stopped.
    pub stopped: u64,
    /// Slots that ran an old image, or a command that was ready for too long, and restart.
    pub replaced: u64,
}
