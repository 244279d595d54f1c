//! The events in a bot's audit trail: what happened, and which actor caused it.

use crate::status::ShownStatus;
use crate::text_enum::text_enum;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The bot was reserved.
    Created,
    /// The bot got a slot.
    Assigned,
    /// The bot lost its slot and is back in the queue.
    Requeued,
    /// The status of the bot changed.
    StatusChanged,
    /// The user sent a command.
    CommandSent,
    /// The bot acknowledged a command.
    CommandAcknowledged,
    /// The bot did something that had no effect, such as printing an unknown event.
    Warning,
}

impl Kind {
    /// The statuses before and after this kind of event, if they are always the same.
    pub fn statuses(self) -> (Option<ShownStatus>, Option<ShownStatus>) {
        match self {
            Kind::Assigned => (Some(ShownStatus::Queued), Some(ShownStatus::Deploying)),
            Kind::Requeued => (Some(ShownStatus::Deploying), Some(ShownStatus::Queued)),
            Kind::Created | Kind::StatusChanged | Kind::CommandSent | Kind::CommandAcknowledged | Kind::Warning => {
                (None, None)
            }
        }
    }
}

/// The actor that caused the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// The user of the bot.
    User,
    /// The bot itself.
    Bot,
    /// An operator.
    Operator,
    /// Placement and deployment.
    Greenroom,
    /// A keeper.
    Keeper,
}

/// What had to be done to start a bot in the slot that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartKind {
    /// An agent waited in the slot.
    Hot,
    /// The slot existed at the provider, and was started for the bot.
    Stopped,
    /// The slot was created for the bot.
    Cold,
}

/// A text that is not the name of an event's kind, its actor or a kind of start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of an event, an actor or a kind of start")]
pub struct UnknownWord(pub String);

text_enum!(Kind, UnknownWord {
    Created = "created",
    Assigned = "assigned",
    Requeued = "requeued",
    StatusChanged = "status_changed",
    CommandSent = "command_sent",
    CommandAcknowledged = "command_acknowledged",
    Warning = "warning",
});

text_enum!(StartKind, UnknownWord {
    Hot = "hot",
    Stopped = "stopped",
    Cold = "cold",
});

text_enum!(Actor, UnknownWord {
    User = "user",
    Bot = "bot",
    Operator = "operator",
    Greenroom = "greenroom",
    Keeper = "keeper",
});
