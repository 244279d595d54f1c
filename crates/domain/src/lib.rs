//! The vocabulary of Greenroom and every rule that needs no I/O: what a bot is, which states it passes through,
//! what may move it, and how long each state may last. Nothing here reads a clock, a file or a socket, so that all
//! of it can be tested by itself and rendered into the documentation.
//!
//! In reading order:
//! - [`ids`]: the names of things
//! - [`meeting`]: links as people paste them, to a platform and a native id
//! - [`status`]: the states of a bot, as stored and as shown
//! - [`reason`]: why a bot is where it is
//! - [`fault`]: whose fault its end was
//! - [`lifecycle`]: the one transition table
//! - [`slot`], [`pool`], [`provider`]: where a bot runs
//! - [`requirements`]: what a bot asks of it, and whether it has that
//! - [`deadline`]: how long a state may last, who watches it, what follows
//! - [`command`]: what a caller may ask of a running bot
//! - [`event`]: what is told of it
//! - [`planner`]: who gets which slot
//! - [`backoff`]: how long to wait before the next try

#![warn(missing_docs)]

pub mod backoff;
pub mod command;
pub mod deadline;
pub mod event;
pub mod fault;
pub mod ids;
pub mod lifecycle;
pub mod meeting;
pub mod planner;
pub mod pool;
pub mod provider;
pub mod reason;
pub mod requirements;
pub mod slot;
pub mod status;
mod text_enum;

pub use backoff::Backoff;
pub use command::Action;
pub use deadline::Deadlines;
pub use fault::Fault;
pub use ids::{BotId, CommandId, ConnectionId, EventId, KeyId, UserId};
pub use meeting::{Meeting, MeetingError, Platform};
pub use pool::Pool;
pub use provider::ProviderKind;
pub use reason::Reason;
pub use requirements::{Attributes, Requirements, UsageClass};
pub use slot::{Slot, SlotClaim, SlotName, SlotStatus};
pub use status::{ShownStatus, Status};
