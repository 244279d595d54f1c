//! This module lists what may end a bot. `domain::planner` decides about it, together with the state of the bot's slot.

use domain::lifecycle::Overdue;
use domain::{BotId, Reason};
use jiff::Timestamp;

use super::callbacks::Caller;
use crate::store::{BotRow, SessionRow};

#[derive(Clone, Debug)]
pub enum Ending {
    /// The bot reports that its process ended.
    Exited { caller: Caller, exit_code: i64, reason: Option<Reason>, error: Option<String> },
    /// The bot waited too long, or could not be deployed.
    GivenUp { bot: BotId, overdue: Overdue, error: Option<String> },
}

impl Ending {
    pub fn bot(&self) -> BotId {
        match self {
            Ending::Exited { caller, .. } => caller.claim.bot,
            Ending::GivenUp { bot, .. } => *bot,
        }
    }
}

/// The error of a bot whose deadline passed: its last sign of life, and when that was. `heard` is a heartbeat that is
/// not stored yet.
pub(super) fn overdue_error(
    bot: &BotRow,
    overdue: Overdue,
    session: Option<&SessionRow>,
    heard: Option<Timestamp>,
) -> String {
    let slot = bot.slot.as_ref().map_or_else(String::new, |slot| format!(" in {slot}"));
    let Some(session) = session else {
        return format!("the bot was started{slot} and never called back");
    };
    let last = session.last_heartbeat_at.max(heard).map_or_else(
        || format!("the bot started at {:.0} and has sent no heartbeat", session.started_at),
        |at| format!("last heartbeat at {at:.0}"),
    );
    let status = bot.shown();
    match overdue {
        Overdue::NoJoin => {
            format!("the bot started{slot} at {:.0} and was still {status}; {last}", session.started_at)
        }
        Overdue::Interrupted => format!("the agent{slot} got a signal to stop, and then sent nothing more; {last}"),
        Overdue::NoStart => format!("the bot was restarted{slot} and has not called back; {last}"),
        _ => format!("the bot was {status}{slot} and sent nothing more; {last}"),
    }
}
