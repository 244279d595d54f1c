//! What may end a bot. `domain::planner` decides on it, together with what becomes of the bot's slot.

use domain::lifecycle::Overdue;
use domain::{BotId, Reason};

use super::callbacks::Voice;

#[derive(Clone, Debug)]
pub enum Ending {
    /// The bot says that its process ended.
    Exited { voice: Voice, exit_code: i64, reason: Option<Reason>, error: Option<String> },
    /// It waited too long, or could not be deployed.
    GivenUp { bot: BotId, overdue: Overdue, error: Option<String> },
}

impl Ending {
    pub fn bot(&self) -> BotId {
        match self {
            Ending::Exited { voice, .. } => voice.claim.bot,
            Ending::GivenUp { bot, .. } => *bot,
        }
    }
}
