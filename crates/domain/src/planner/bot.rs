//! Bots that are not at an end, as far as placement needs to know them.

use jiff::Timestamp;

use super::queue::Order;
use crate::lifecycle::Standing;
use crate::{BotId, ConnectionId, Platform, Requirements, ShownStatus, SlotName, Status, UserId};

#[derive(Clone, Debug, PartialEq)]
pub struct OpenBot {
    pub id: BotId,
    pub user: UserId,
    pub platform: Platform,
    pub native_meeting_id: String,
    /// As it was last heard of. Only what writes the bot's end is certain of it.
    pub status: Status,
    pub stop_asked: bool,
    /// Whether it was ever heard to be in the meeting.
    pub has_joined: bool,
    pub connection: Option<ConnectionId>,
    pub pool: Option<String>,
    pub slot: Option<SlotName>,
    pub requirements: Option<Requirements>,
    pub priority: i64,
    pub queue_timeout_ms: i64,
    /// In which order it came.
    pub arrival: i64,
    /// Under `fair`, in which round of its priority it is served.
    pub turn: i64,
    /// Until when it waits, or waited, in the queue.
    pub wait_until: Option<Timestamp>,
    /// How often it had a slot and came back to the queue, because there was no room for it.
    pub returns: i64,
    /// While it waits for a slot.
    pub queued: Option<Queued>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Queued {
    /// The first pool that could have a slot for it.
    pub pool: String,
    pub queued_at: Timestamp,
    pub timeout_at: Timestamp,
    /// Of one that came back: until when it is not tried again where there was no room for it.
    pub not_before: Option<Timestamp>,
}

/// What no two running bots may share.
pub type AtMeeting = (UserId, Platform, String);

impl OpenBot {
    pub fn meeting(&self) -> AtMeeting {
        (self.user, self.platform, self.native_meeting_id.clone())
    }

    /// Its position in the queue.
    pub fn order(&self) -> Order {
        Order { priority: self.priority, turn: self.turn, arrival: self.arrival, bot: self.id }
    }

    /// What the lifecycle needs to know of it.
    pub fn standing(&self) -> Standing {
        let Self { status, stop_asked, has_joined, .. } = *self;
        Standing { status, stop_asked, has_joined, exit_code: None }
    }

    /// Its status as users see it.
    pub fn shown(&self) -> ShownStatus {
        ShownStatus::of(self.status, self.connection.is_some(), self.pool.is_some())
    }
}

/// A bot that is at an end, for words that come late.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedBot {
    pub status: Status,
    pub reason: Option<String>,
    pub exit_code: Option<i64>,
    pub stop_asked: bool,
    pub connection: Option<ConnectionId>,
}

impl EndedBot {
    pub fn standing(&self) -> Standing {
        let Self { status, stop_asked, exit_code, .. } = *self;
        Standing { status, stop_asked, has_joined: false, exit_code }
    }
}
