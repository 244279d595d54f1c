//! Which side caused the end of a bot.

use crate::reason::Reason;
use crate::status::Status;
use crate::text_enum::text_enum;

/// The side that caused the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The people in the meeting never let the bot in, or removed it.
    Host,
    /// The bot's own program.
    Bot,
    /// The provider, the machine, or an outside stop of the container.
    Provider,
    /// No slot became free in time.
    Capacity,
    /// The bot ended as intended.
    None,
}

/// A text that is not a fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a fault")]
pub struct UnknownFault(pub String);

text_enum!(Fault, UnknownFault {
    Host = "host",
    Bot = "bot",
    Provider = "provider",
    Capacity = "capacity",
    None = "none",
});

/// The reasons that bots give when the meeting did not admit them, or removed them.
const HOST_WORDS: [&str; 15] = [
    "admission_denied",
    "admission_timeout",
    "blocked_by_host",
    "denied",
    "denied_entry",
    "evicted",
    "host_removed",
    "kicked",
    "lobby_timeout",
    "never_admitted",
    "not_admitted",
    "rejected",
    "removed",
    "removed_by_host",
    "waiting_room_timeout",
];

impl Fault {
    /// The fault of a bot that ended: `from` is its last open status, `to` its final status.
    pub fn of_end(from: Status, to: Status, reason: Option<&Reason>) -> Self {
        match reason {
            Some(Reason::Own(word)) if HOST_WORDS.contains(&word.as_str()) => Self::Host,
            _ if to == Status::Completed => Self::None,
            Some(Reason::NoJoin) if from == Status::AwaitingAdmission => Self::Host,
            Some(Reason::QueueTimeout | Reason::DeployTimeout) => Self::Capacity,
            Some(Reason::DeployFailed | Reason::NoStart | Reason::HeartbeatLost | Reason::Interrupted) => {
                Self::Provider
            }
            _ => Self::Bot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bot_that_stood_in_the_lobby_to_the_end_is_the_hosts_fault() {
        let of = |from| Fault::of_end(from, Status::Failed, Some(&Reason::NoJoin));
        assert_eq!(of(Status::AwaitingAdmission), Fault::Host);
        assert_eq!(of(Status::Starting), Fault::Bot);
    }

    #[test]
    fn a_bot_that_was_removed_says_so_itself_however_it_ended() {
        for to in [Status::Completed, Status::Failed] {
            let removed = Reason::Own("removed_by_host".to_owned());
            assert_eq!(Fault::of_end(Status::Active, to, Some(&removed)), Fault::Host);
        }
    }

    #[test]
    fn an_end_from_outside_is_not_the_bots_fault_and_a_good_end_is_nobodys() {
        assert_eq!(Fault::of_end(Status::Active, Status::Failed, Some(&Reason::Interrupted)), Fault::Provider);
        assert_eq!(Fault::of_end(Status::Active, Status::Failed, Some(&Reason::Crashed)), Fault::Bot);
        assert_eq!(Fault::of_end(Status::Reserved, Status::Failed, Some(&Reason::QueueTimeout)), Fault::Capacity);
        assert_eq!(Fault::of_end(Status::Active, Status::Completed, Some(&Reason::Finished)), Fault::None);
    }
}
