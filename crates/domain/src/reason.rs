//! Why a bot has its state. Greenroom's own reasons are fixed; a bot may also give a reason of its own.

use std::fmt;

use serde::{Serialize, Serializer};

/// Why a bot has its state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The bot ended on its own without an error.
    Finished,
    /// Its user asked it to leave.
    Stopped,
    /// It started again under a new connection.
    Restarted,
    /// No slot became free in time.
    QueueTimeout,
    /// The deploy gate did not open in time.
    DeployTimeout,
    /// The provider could not start it.
    DeployFailed,
    /// It was deployed and never sent a callback.
    NoStart,
    /// It did not join the meeting in time.
    NoJoin,
    /// It was in the meeting and stopped sending heartbeats.
    HeartbeatLost,
    /// It ended with an error.
    Crashed,
    /// Its slot was ended from outside while it ran.
    Interrupted,
    /// It did not leave when it was asked to, and its agent killed it.
    Killed,
    /// It ended without an error, without ever joining the meeting.
    NeverJoined,
    /// The bot's own reason.
    Own(String),
}

impl Reason {
    /// The longest reason that a bot may give.
    pub const MAX_CHARS: usize = 200;

    /// A reason that a bot or its agent gave.
    pub fn given(word: String) -> Self {
        match [Reason::Interrupted, Reason::Killed].into_iter().find(|reason| reason.as_str() == word) {
            Some(agents_own) => agents_own,
            None => Reason::Own(word),
        }
    }

    /// The text of the reason in the store and the API.
    pub fn as_str(&self) -> &str {
        match self {
            Reason::Finished => "finished",
            Reason::Stopped => "stopped",
            Reason::Restarted => "restarted",
            Reason::QueueTimeout => "queue_timeout",
            Reason::DeployTimeout => "deploy_timeout",
            Reason::DeployFailed => "deploy_failed",
            Reason::NoStart => "no_start",
            Reason::NoJoin => "no_join",
            Reason::HeartbeatLost => "heartbeat_lost",
            Reason::Crashed => "crashed",
            Reason::Interrupted => "interrupted",
            Reason::Killed => "killed",
            Reason::NeverJoined => "never_joined",
            Reason::Own(word) => word,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
