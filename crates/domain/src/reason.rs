//! Why a bot is where it is. The words that Greenroom itself gives are fixed; a bot may end with a word of its own.

use std::fmt;

use serde::{Serialize, Serializer};

/// Why a bot is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The bot went by itself and said that all was well.
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
    /// Deployed, and never heard of.
    NoStart,
    /// It never came into the meeting.
    NoJoin,
    /// It was in the meeting and fell silent.
    HeartbeatLost,
    /// It ended with an error.
    Crashed,
    /// Its slot was ended from outside while it ran.
    Interrupted,
    /// It did not leave when it was asked to, and its agent killed it.
    Killed,
    /// It ended without an error and had never come into the meeting.
    NeverJoined,
    /// The bot's own word.
    Own(String),
}

impl Reason {
    /// The longest word a bot may give.
    pub const MAX_CHARS: usize = 200;

    /// As a bot or its agent gives it.
    pub fn given(word: String) -> Self {
        match [Reason::Interrupted, Reason::Killed].into_iter().find(|reason| reason.as_str() == word) {
            Some(agents_own) => agents_own,
            None => Reason::Own(word),
        }
    }

    /// The word, as the store and the API write it.
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
