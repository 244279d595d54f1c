//! The ids of rows. Each kind of row has its own type, so the compiler refuses a user's id where a bot's id is needed.
//! Ids are UUIDs of version 7: they sort by creation time, and one user's ids do not reveal how many bots another user
//! has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

id!(
    /// One attendance of one meeting.
    BotId
);
id!(
    /// The owner of bots.
    UserId
);
id!(
    /// One assignment of a bot. It is the fence: the server refuses callbacks with an older connection.
    ConnectionId
);
id!(
    /// A command to a running bot, before and after its acknowledgement.
    CommandId
);
id!(
    /// The public half of an API key.
    KeyId
);

/// The position of an event in the audit trail. Later events of one bot have greater ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub i64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
