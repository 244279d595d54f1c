//! The names of things. Each kind of thing has a type of its own, so that a user's id can never be passed where a
//! bot's is meant. Ids of rows are UUIDs of version 7: they sort by the time they were made, and one user's ids tell
//! nothing about how many bots another user has.

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
    /// Who owns bots.
    UserId
);
id!(
    /// One assignment of a bot. It fences: what speaks under an older one is refused.
    ConnectionId
);
id!(
    /// A request to a running bot, until it is acknowledged and after.
    CommandId
);
id!(
    /// The public half of an API key.
    KeyId
);

/// The place of an event in the audit trail; later events of one bot have greater ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub i64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
