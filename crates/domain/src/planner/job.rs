//! What is asked of placement, and what it answers. Each job has its file in [`super::commands`].

use jiff::Timestamp;
use uuid::Uuid;

use crate::lifecycle::Overdue;
use crate::{
    Attributes, BotId, ConnectionId, KeyId, Platform, Reason, Requirements, SlotClaim, SlotName, Status, UserId,
};

#[derive(Clone, Debug)]
pub enum Job {
    Reserve(Box<ReserveRequest>),
    End(Box<EndBot>),
    Slot(SlotName, SlotEvent),
    /// Make slots that are missing, let go of those that are too many, and serve every queue.
    KeepWarm,
    /// A runner with these attributes came free: the first bot that it fits, of those that came back to the queue, is tried
    /// again.
    RetryWaiting(Attributes),
    /// Serve every queue: the batch before had to leave something for this one.
    ServeQueues,
}

/// A user asks for a bot.
#[derive(Clone, Debug)]
pub struct ReserveRequest {
    /// The bot's, if it is admitted: the same however often the request is planned.
    pub id: BotId,
    pub user: UserId,
    /// The API key that the user came with.
    pub key: KeyId,
    pub platform: Platform,
    pub native_meeting_id: String,
    /// Lower goes first.
    pub priority: i64,
    pub queue_timeout_ms: i64,
    pub requirements: Option<Requirements>,
    /// The caller's key, with a hash of all that was asked under it.
    pub idempotency: Option<(String, String)>,
}

#[derive(Clone, Debug)]
pub struct EndBot {
    pub bot: BotId,
    pub cause: EndCause,
}

#[derive(Clone, Debug)]
pub enum EndCause {
    /// The bot says that its process ended: under the connection of its token, and under the one that it names.
    Exited { token: ConnectionId, named: ConnectionId, exit_code: i64, reason: Option<Reason>, error: Option<String> },
    /// It waited too long, or could not be deployed.
    GivenUp { overdue: Overdue, error: Option<String> },
}

/// What happened to a slot. One that no longer fits the slot as it stands came too late and changes nothing.
#[derive(Clone, Debug)]
pub enum SlotEvent {
    /// Nothing of its bot is left in it.
    Cleared { bot: BotId },
    /// An agent process waits in it, under the slot's current token.
    AgentWaits { claim: SlotClaim, agent: String },
    /// It runs what it was started for, or was made for nobody yet, by this holder of its deployment.
    Started { bot: Option<BotId>, provider_ref: String, recipe: Option<String>, holder: Uuid },
    /// What was to be started in it, by this holder of its deployment, is no longer wanted and was not begun.
    NotBegun { bot: Option<BotId>, holder: Uuid },
    /// There is no room for its bot's requirements: what was to be started, by this holder of its deployment, was not begun,
    /// and the bot goes back to the queue. Only for a bot that nothing was heard of.
    NoCapacity { bot: BotId, holder: Uuid, message: String },
    /// Nobody may be in it any more although a bot was given to it: it is to be started, under a new connection. Only for a
    /// bot that nothing was heard of.
    Silent { bot: BotId, generation: i64 },
    /// Its bot's start or end went wrong, or a start for nobody.
    Broken { bot: Option<BotId>, message: String },
    /// It has been without a bot, as it is, since then, and something went wrong.
    Failed { since: Timestamp, message: String },
    /// It has been in error, or stuck, since then, and is about to be recovered: one attempt more.
    Recovering { since: Timestamp, message: String },
    /// What has been wrong with it since then is mended, and nothing is left in it.
    Recovered { since: Timestamp },
    /// It has been free, or started for nobody, since then, and the provider has nothing of it, or nothing that waits in it:
    /// it is made anew. When that counts, it is one attempt more to recover it.
    Lost { since: Timestamp, counts: bool },
    /// It has been free since then, and something runs in it that nobody knows of.
    Stray { since: Timestamp },
    /// It was to be stopped because nobody needed it, and nothing runs in it any more.
    Stopped,
    /// It is to take no more bots.
    Drain,
    /// Nothing is left of it at the provider.
    Gone,
}

/// What a job is answered, once its changes are written.
#[derive(Clone, Debug, PartialEq)]
pub enum JobAnswer {
    Reserve(Result<Reserved, Refusal>),
    End(Result<Status, EndRefusal>),
    /// Whether the event fitted the slot.
    Slot(bool),
    KeepWarm(WarmReport),
    Nothing,
}

/// A bot that was reserved, now or at an earlier asking.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserved {
    pub bot: BotId,
    pub is_new: bool,
    pub queue_position: Option<i64>,
    pub estimated_wait_ms: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the API key is not known, or no longer valid")]
    KeyExpired,
    #[error("the idempotency key was used before with another body")]
    IdempotencyMismatch,
    #[error("no pool serves {0}")]
    NoPool(Platform),
    #[error("no slot for {0} could ever meet them")]
    NothingFits(Platform),
    #[error("must be at least {min}, your min_priority")]
    PriorityTooLow { min: i64 },
    #[error("a bot of yours is already at this meeting")]
    DuplicateBot(BotId),
    #[error("{running} of {limit} bots are running")]
    LimitReached { running: i64, limit: i64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndRefusal {
    NoSuchBot,
    StaleConnection,
    InvalidTransition(Status),
    Ended { status: Status, reason: Option<String> },
}

/// What keeping pools warm came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmReport {
    /// Slots that were made, or started, to be kept ready.
    pub made: u64,
    /// Slots that are too many and are let go.
    pub let_go: u64,
    /// Slots that nobody needed for long, and that are stopped.
    pub stopped: u64,
    /// Slots that ran an old image, and are started with the new one.
    pub replaced: u64,
}
