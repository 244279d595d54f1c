//! What a caller may ask of a running bot. A command is a row until the bot acknowledges it.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Leave the meeting and end.
    Leave,
    /// Go on with the configuration in the payload.
    Reconfigure,
}

impl Action {
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Leave => "leave",
            Action::Reconfigure => "reconfigure",
        }
    }
}

/// A word that is not an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an action; known are leave, reconfigure")]
pub struct UnknownAction(String);

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "leave" => Ok(Action::Leave),
            "reconfigure" => Ok(Action::Reconfigure),
            _ => Err(UnknownAction(word.to_owned())),
        }
    }
}
