//! The states of a bot. The store has only the states that the bot itself or a deadline decides. The states
//! `scheduled`, `queued` and `deploying` are only shown: they follow from the schedule, the queue and the slot.

use serde::{Deserialize, Serialize};

use crate::text_enum::text_enum;

/// A text that is not a status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a status; the statuses are {known}", known = ShownStatus::ALL.map(|s| s.as_str()).join(", "))]
pub struct UnknownStatus(pub String);

/// A bot's status as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Admitted under its user's limit; the bot itself has not sent a callback yet.
    Reserved,
    /// The bot's process runs and joins the meeting.
    Starting,
    /// The bot waits in the lobby.
    AwaitingAdmission,
    /// The bot cannot continue without a person.
    NeedsHelp,
    /// The bot is in the meeting.
    Active,
    /// The bot was asked to leave, or leaves on its own.
    Stopping,
    /// Ended as intended.
    Completed,
    /// Ended with a failure.
    Failed,
}

text_enum!(Status, UnknownStatus {
    Reserved = "reserved",
    Starting = "starting",
    AwaitingAdmission = "awaiting_admission",
    NeedsHelp = "needs_help",
    Active = "active",
    Stopping = "stopping",
    Completed = "completed",
    Failed = "failed",
});

impl Status {
    /// The states of a bot that has not ended.
    pub const OPEN: [Status; 6] = [
        Status::Reserved,
        Status::Starting,
        Status::AwaitingAdmission,
        Status::NeedsHelp,
        Status::Active,
        Status::Stopping,
    ];

    /// `completed` and `failed` are final.
    pub fn is_ended(self) -> bool {
        matches!(self, Status::Completed | Status::Failed)
    }

    /// Whether a bot in this state counts against its user's limit, and prevents other bots of its user from joining
    /// its meeting. A stopping bot does neither.
    pub fn is_running(self) -> bool {
        !self.is_ended() && self != Status::Stopping
    }
}

/// A bot's status as shown: the stored one, combined with the schedule, the queue and the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShownStatus {
    /// It starts later.
    Scheduled,
    /// It is admitted.
    Reserved,
    /// It waits for a slot.
    Queued,
    /// It has a slot, and has not sent a callback.
    Deploying,
    /// Its process runs.
    Starting,
    /// It is in the lobby.
    AwaitingAdmission,
    /// It needs a person.
    NeedsHelp,
    /// It is in the meeting.
    Active,
    /// It is leaving.
    Stopping,
    /// It ended as intended.
    Completed,
    /// It ended with a failure.
    Failed,
}

text_enum!(ShownStatus, UnknownStatus {
    Scheduled = "scheduled",
    Reserved = "reserved",
    Queued = "queued",
    Deploying = "deploying",
    Starting = "starting",
    AwaitingAdmission = "awaiting_admission",
    NeedsHelp = "needs_help",
    Active = "active",
    Stopping = "stopping",
    Completed = "completed",
    Failed = "failed",
});

impl ShownStatus {
    /// The shown status of a bot with this status. The bot may have a connection without a slot, because an operator
    /// may run it.
    pub fn of(status: Status, has_connection: bool, has_pool: bool) -> Self {
        match status {
            Status::Reserved if has_connection => Self::Deploying,
            Status::Reserved if has_pool => Self::Queued,
            status => Self::from(status),
        }
    }

    /// `completed` and `failed` are final.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }

    /// Whether a bot with this shown status counts against its user's limit, as in [`Status::is_running`].
    pub fn is_running(self) -> bool {
        use ShownStatus::{Completed, Failed, Scheduled, Stopping};
        !matches!(self, Scheduled | Stopping | Completed | Failed)
    }
}

impl From<Status> for ShownStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Reserved => ShownStatus::Reserved,
            Status::Starting => ShownStatus::Starting,
            Status::AwaitingAdmission => ShownStatus::AwaitingAdmission,
            Status::NeedsHelp => ShownStatus::NeedsHelp,
            Status::Active => ShownStatus::Active,
            Status::Stopping => ShownStatus::Stopping,
            Status::Completed => ShownStatus::Completed,
            Status::Failed => ShownStatus::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_parsed_from_its_own_text() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
            assert_eq!(ShownStatus::from(status).as_str(), status.as_str());
        }
        for status in ShownStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
    }

    #[test]
    fn an_unknown_status_is_refused_with_the_known_ones() {
        let message = "sleeping".parse::<ShownStatus>().map_err(|e| e.to_string());
        assert!(matches!(message, Err(text) if text.contains("`sleeping`") && text.contains("awaiting_admission")));
    }

    #[test]
    fn a_bot_on_its_way_out_is_open_but_not_running() {
        assert!(!Status::Stopping.is_running());
        assert!(!Status::Stopping.is_ended());
        assert!(Status::OPEN.iter().all(|status| !status.is_ended()));
    }
}
