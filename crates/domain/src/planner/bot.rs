//! Bots that have not ended, with the fields that placement needs.

use jiff::Timestamp;

use super::queue::Order;
use crate::lifecycle::LifecycleState;
use crate::{BotId, ConnectionId, PROBE_USER, Platform, Pool, Requirements, ShownStatus, SlotName, Status, UserId};

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
    /// The last known status. Only the write of the bot's end checks it against the store.
    pub status: Status,
    /// Whether its user has asked it to leave.
    pub stop_asked: bool,
    /// Whether it has ever joined the meeting.
    pub has_joined: bool,
    /// The current connection, which the bot's callbacks must name.
    pub connection: Option<ConnectionId>,
    /// The pool of its slot; while it waits, the first pool that could have a slot for it. A probe has no other pool.
    pub pool: Option<String>,
    /// The slot that it has.
    pub slot: Option<SlotName>,
    /// Its requirements for a slot.
    pub requirements: Option<Requirements>,
    /// Lower goes first.
    pub priority: i64,
    /// How long it may wait in the queue.
    pub queue_timeout_ms: i64,
    /// The order of its arrival.
    pub arrival: i64,
    /// With queue order `fair`: the round of its priority in which it is served.
    pub turn: i64,
    /// When its wait in the queue ends, or ended.
    pub wait_until: Option<Timestamp>,
    /// How often it had a slot and returned to the queue for lack of capacity.
    pub returns: i64,
    /// Set while it waits for a slot.
    pub queued: Option<Queued>,
}

/// A bot in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Queued {
    /// The first pool that could have a slot for it.
    pub pool: String,
    /// When its wait began.
    pub queued_at: Timestamp,
    /// When its wait ends.
    pub timeout_at: Timestamp,
    /// For a bot that returned: no new try before this time in pools that provision per bot.
    pub not_before: Option<Timestamp>,
}

/// The key that two running bots must not share.
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

    /// Whether it proves that a pool works.
    pub fn is_probe(&self) -> bool {
        self.user == PROBE_USER
    }

    /// The only pool whose slots it may have; `None` if it may have those of any pool.
    pub fn only_pool(&self) -> Option<&str> {
        self.pool.as_deref().filter(|_| self.is_probe())
    }

    /// Whether it may have a slot of this pool, if the slot meets its requirements.
    pub fn allows(&self, pool: &Pool) -> bool {
        self.only_pool().is_none_or(|name| name == pool.name)
    }

    /// The facts that the lifecycle needs.
    pub fn lifecycle_state(&self) -> LifecycleState {
        let Self { status, stop_asked, has_joined, .. } = *self;
        LifecycleState { status, stop_asked, has_joined, exit_code: None }
    }

    /// Its status as users see it.
    pub fn shown(&self) -> ShownStatus {
        ShownStatus::of(self.status, self.connection.is_some(), self.pool.is_some())
    }
}

/// A bot that has ended, for callbacks that arrive late.
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
    /// Its last connection.
    pub connection: Option<ConnectionId>,
}

impl EndedBot {
    /// The facts that the lifecycle needs.
    pub fn lifecycle_state(&self) -> LifecycleState {
        let Self { status, stop_asked, exit_code, .. } = *self;
        LifecycleState { status, stop_asked, has_joined: false, exit_code }
    }
}
