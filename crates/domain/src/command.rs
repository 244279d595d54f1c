//! Commands to a running bot. A command is a row in the store, and the bot acknowledges it.

use serde::{Deserialize, Serialize};

use crate::text_enum::text_enum;

/// The action of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Leave the meeting and end.
    Leave,
    /// Continue with the configuration in the payload.
    Reconfigure,
}

/// A text that is not an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an action; the actions are leave, reconfigure")]
pub struct UnknownAction(pub String);

text_enum!(Action, UnknownAction {
    Leave = "leave",
    Reconfigure = "reconfigure",
});
