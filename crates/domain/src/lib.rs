//! The vocabulary of Greenroom, and every rule that needs no I/O: the states of a bot, the triggers that change them,
//! and how long each state may last. This crate reads no clock, file or socket. So tests can check every rule alone,
//! and the documentation can be generated from the rules.
//!
//! In reading order:
//! - [`ids`]: the ids of rows
//! - [`meeting`]: reads pasted links into a platform and a native id
//! - [`status`]: the states of a bot, as stored and as shown
//! - [`reason`]: why a bot has its state
//! - [`fault`]: which side caused its end
//! - [`lifecycle`]: the transition table
//! - [`slot`], [`pool`], [`provider`]: where a bot runs
//! - [`requirements`]: what a bot requires of a slot, and whether a slot has it
//! - [`deadline`]: how long a state may last, which keeper watches it, and what follows
//! - [`command`]: commands to a running bot
//! - [`event`]: the audit trail of a bot
//! - [`stats`]: figures that can be added up, such as the requests of a minute
//! - [`audit`]: the actions of operators
//! - [`probe`]: bots that prove that a pool works
//! - [`screenshot`]: how large a screenshot may be, and of which kind
//! - [`planner`]: which bot gets which slot
//! - [`backoff`]: how long to wait before the next try
//! - [`mod@hex`]: digests as text

#![warn(missing_docs)]

pub mod audit;
pub mod backoff;
pub mod command;
pub mod deadline;
pub mod event;
pub mod fault;
pub mod hex;
pub mod ids;
pub mod lifecycle;
pub mod meeting;
pub mod planner;
pub mod pool;
pub mod probe;
pub mod provider;
pub mod reason;
pub mod requirements;
pub mod screenshot;
pub mod slot;
pub mod stats;
pub mod status;
mod text_enum;
pub mod wait_estimate;

pub use audit::AuditAction;
pub use backoff::Backoff;
pub use command::Action;
pub use deadline::Deadlines;
pub use fault::Fault;
pub use hex::hex;
pub use ids::{BotId, CommandId, ConnectionId, EventId, KeyId, UserId};
pub use meeting::{Meeting, MeetingError, Platform};
pub use pool::Pool;
pub use probe::{PROBE_MS, PROBE_USER, PROBES_MAX, probe_meeting};
pub use provider::ProviderKind;
pub use reason::Reason;
pub use requirements::{Attributes, Requirements, UsageClass};
pub use screenshot::{ImageKind, SCREENSHOT_BYTES_MAX};
pub use slot::{Slot, SlotClaim, SlotName, SlotStatus};
pub use status::{ShownStatus, Status};
