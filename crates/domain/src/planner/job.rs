//! What is asked of placement, and what it answers. Each job has its file in [`super::commands`].

use jiff::Timestamp;
use uuid::Uuid;

use crate::lifecycle::Overdue;
use crate::{
    Attributes, BotId, ConnectionId, KeyId, Platform, Reason, Requirements, SlotClaim, SlotName, Status, UserId,
};

/// What is asked of placement.
#[derive(Clone, Debug)]
pub enum Job {
    /// A user asks for a bot.
    Reserve(Box<ReserveRequest>),
    /// A bot ends.
    End(Box<EndBot>),
    /// Something happened to this slot.
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
    /// The user who asks.
    pub user: UserId,
    /// The API key that the user came with.
    pub key: KeyId,
    /// The platform of the meeting.
    pub platform: Platform,
    /// The platform's own id of the meeting.
    pub native_meeting_id: String,
    /// Lower goes first.
    pub priority: i64,
    /// How long the bot waits in the queue.
    pub queue_timeout_ms: i64,
    /// What the bot asks of a slot.
    pub requirements: Option<Requirements>,
    /// The caller's key, with a hash of all that was asked under it.
    pub idempotency: Option<(String, String)>,
}

/// A bot is to end.
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
    /// The bot says that its process ended: under the connection of its token, and under the one that it names.
    Exited { token: ConnectionId, named: ConnectionId, exit_code: i64, reason: Option<Reason>, error: Option<String> },
    /// It waited too long, or could not be deployed.
    GivenUp { overdue: Overdue, error: Option<String> },
}

/// What happened to a slot. One that no longer fits the slot as it stands came too late and changes nothing.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
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
    /// The bot, or why there is none.
    Reserve(Result<Reserved, Refusal>),
    /// The status that the bot ended with, or why it did not end.
    End(Result<Status, EndRefusal>),
    /// Whether the event fitted the slot.
    Slot(bool),
    /// What was done to keep pools warm.
    KeepWarm(WarmReport),
    /// There is nothing to answer.
    Nothing,
}

/// A bot that was reserved, now or at an earlier asking.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserved {
    /// The bot.
    pub bot: BotId,
    /// Whether it was reserved by this request.
    pub is_new: bool,
    /// Its place in the queue, while it waits.
    pub queue_position: Option<i64>,
    /// How long it will probably wait.
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
    #[error("no slot for {0} could ever meet them")]
    NothingFits(Platform),
    /// The priority is below the least number that the user may give.
    #[error("must be at least {min}, your min_priority")]
    PriorityTooLow { min: i64 },
    /// The user already has this bot at the meeting.
    #[error("a bot of yours is already at this meeting")]
    DuplicateBot(BotId),
    /// So many bots of the user are running, and no more may.
    #[error("{running} of {limit} bots are running")]
    LimitReached { running: i64, limit: i64 },
}

/// Why a bot does not end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum EndRefusal {
    /// Nobody knows the bot.
    NoSuchBot,
    /// The callback came under a connection that is not the current one.
    StaleConnection,
    /// A bot in this status cannot end so.
    InvalidTransition(Status),
    /// The bot has ended before, with this status and reason.
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
