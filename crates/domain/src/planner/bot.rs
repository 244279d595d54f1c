//! Bots that are not at an end, as far as placement needs to know them.

use jiff::Timestamp;

use super::queue::Order;
use crate::lifecycle::Standing;
use crate::{BotId, ConnectionId, Platform, Requirements, ShownStatus, SlotName, Status, UserId};

/// A bot that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenBot {
    /// Its id.
    pub id: BotId,
    /// The user who asked for it.
    pub user: UserId,
    /// The platform of its meeting.
    pub platform: Platform,
    /// The platform's own id of the meeting.
    pub native_meeting_id: String,
    /// As it was last heard of. Only what writes the bot's end is certain of it.
    pub status: Status,
    /// Whether its user has asked it to leave.
    pub stop_asked: bool,
    /// Whether it was ever heard to be in the meeting.
    pub has_joined: bool,
    /// The connection under which it may speak.
    pub connection: Option<ConnectionId>,
    /// The pool of its slot; while it waits, the first pool that could have one for it.
    pub pool: Option<String>,
    /// The slot that it has.
    pub slot: Option<SlotName>,
    /// What it asks of a slot.
    pub requirements: Option<Requirements>,
    /// Lower goes first.
    pub priority: i64,
    /// How long it waits in the queue.
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

/// A bot in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Queued {
    /// The first pool that could have a slot for it.
    pub pool: String,
    /// Since when it waits.
    pub queued_at: Timestamp,
    /// Until when it waits.
    pub timeout_at: Timestamp,
    /// Of one that came back: until when it is not tried again where there was no room for it.
    pub not_before: Option<Timestamp>,
}

/// What no two running bots may share.
pub type AtMeeting = (UserId, Platform, String);

impl OpenBot {
    /// Its user and its meeting.
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
    /// The status that it ended with.
    pub status: Status,
    /// Why it ended.
    pub reason: Option<String>,
    /// The code that its process exited with.
    pub exit_code: Option<i64>,
    /// Whether its user had asked it to leave.
    pub stop_asked: bool,
    /// The last connection under which it could speak.
    pub connection: Option<ConnectionId>,
}

impl EndedBot {
    /// What the lifecycle needs to know of it.
    pub fn standing(&self) -> Standing {
        let Self { status, stop_asked, exit_code, .. } = *self;
        Standing { status, stop_asked, has_joined: false, exit_code }
    }
}
