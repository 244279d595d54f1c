//! The transition table of bots. Every change of a bot's status starts with a [`Trigger`], and [`decide`] applies the
//! table to it; no other code in Greenroom chooses a status. A repeated trigger changes nothing, a trigger after the
//! end gets the verdict `Ended`, and a trigger that is not in the table is refused.
//!
//! - this file: the triggers, the table, the decision
//! - [`render`]: the table as a page of the documentation

pub mod render;
#[cfg(test)]
mod tests;

use crate::reason::Reason;
use crate::status::Status::{self, *};

/// An event that may change a bot's status.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum Trigger {
    /// The bot reports that it runs. `new_session` is true for the first report under this connection.
    Started { new_session: bool },
    /// The bot waits in the lobby.
    AwaitingAdmission { reason: Option<Reason> },
    /// The bot cannot continue without a person.
    NeedsHelp { reason: Option<Reason> },
    /// The bot is in the meeting.
    Joined,
    /// The bot leaves, on its own or on request.
    Stopping { reason: Option<Reason> },
    /// The bot's process ended.
    Exited { exit_code: i64, reason: Option<Reason> },
    /// The user asks the bot to leave. `assigned` is true if something may already run for it.
    StopAsked { assigned: bool },
    /// A deadline passed.
    Passed(Overdue),
}

/// Which deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overdue {
    /// The bot waited too long in the queue.
    QueueTimeout,
    /// The bot waited too long at the deploy gate.
    DeployTimeout,
    /// The slot could not be started.
    DeployFailed,
    /// The bot never sent a callback.
    NoStart,
    /// The bot did not join in time.
    NoJoin,
    /// The bot was in the meeting and stopped sending heartbeats.
    HeartbeatLost,
    /// The bot's slot was ended from outside.
    Interrupted,
    /// The bot did not leave in time.
    StopGrace,
}

/// The facts about a bot that the decision needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifecycleState {
    /// The current status.
    pub status: Status,
    /// Whether its user has asked it to leave.
    pub stop_asked: bool,
    /// Whether it has ever been in the meeting.
    pub has_joined: bool,
    /// The exit code of its process, if it exited.
    pub exit_code: Option<i64>,
}

impl LifecycleState {
    /// A bot that is stopping, or was asked to stop, may end without having joined.
    fn left_without_joining(&self) -> bool {
        !self.has_joined && !self.stop_asked && !matches!(self.status, Active | Status::Stopping)
    }
}

/// The result of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum Verdict {
    /// The status changes.
    Move { to: Status, reason: Option<Reason> },
    /// The effect is already in place: nothing changes, and the answer is the same as the first time.
    Hold,
    /// The state does not allow the trigger.
    Refuse,
    /// The bot has ended, and this trigger does not repeat the one that ended it.
    Ended,
}

/// The kind of a trigger, which is the key of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TriggerKind {
    /// The bot reports for the first time that it runs.
    Started,
    /// The bot reports that it runs under a new connection.
    Restarted,
    /// The bot is in the lobby.
    AwaitingAdmission,
    /// The bot needs a person.
    NeedsHelp,
    /// The bot is in the meeting.
    Joined,
    /// The bot leaves.
    Stopping,
    /// The process exited with code 0.
    ExitedWell,
    /// The process exited with code 0 and without a reason, and was never in the meeting.
    ExitedUnjoined,
    /// The process exited with another code.
    ExitedBadly,
    /// The user asks a bot to leave, and nothing runs for it.
    StopAskedUnassigned,
    /// The user asks a bot to leave, and something may run for it.
    StopAsked,
    /// This deadline passed.
    Passed(Overdue),
}

/// The source of a rule's trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerSource {
    /// The bot, with a callback.
    Bot,
    /// The user, with the API.
    User,
    /// A keeper, when a deadline passes.
    Keeper,
}

/// The source of the reason for a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// No reason is recorded.
    Nothing,
    /// The bot's own reason, if it gave one.
    Own,
    /// The bot's own reason, or this one; but `stopped` if the user asked the bot to leave.
    OwnUnlessStopAsked(&'static Reason),
    /// The bot's own reason, or this one.
    OwnOr(&'static Reason),
    /// Always this one.
    Always(&'static Reason),
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The trigger.
    pub on: TriggerKind,
    /// The source of the trigger.
    pub source: TriggerSource,
    /// The statuses in which the rule applies.
    pub from: &'static [Status],
    /// The status that follows.
    pub to: Status,
    /// Where the reason comes from.
    pub because: Because,
    /// The statuses in which the effect is already in place.
    pub holds_in: &'static [Status],
}

const IN_SLOT: &[Status] = &[Starting, Status::AwaitingAdmission, Status::NeedsHelp, Active];
const OPEN: &[Status] = &Status::OPEN;

/// The table. Rows are in the order of a bot's life.
pub const TABLE: &[Rule] = &[
    Rule {
        on: TriggerKind::Started,
        source: TriggerSource::Bot,
        from: &[Reserved],
        to: Starting,
        because: Because::Nothing,
        holds_in: &[Starting, Status::AwaitingAdmission, Status::NeedsHelp, Active, Status::Stopping],
    },
    Rule {
        on: TriggerKind::Restarted,
        source: TriggerSource::Bot,
        from: IN_SLOT,
        to: Starting,
        because: Because::Always(&Reason::Restarted),
        holds_in: &[Status::Stopping],
    },
    Rule {
        on: TriggerKind::AwaitingAdmission,
        source: TriggerSource::Bot,
        from: &[Starting, Status::NeedsHelp],
        to: Status::AwaitingAdmission,
        because: Because::Own,
        holds_in: &[Status::AwaitingAdmission],
    },
    Rule {
        on: TriggerKind::NeedsHelp,
        source: TriggerSource::Bot,
        from: &[Starting, Status::AwaitingAdmission, Active],
        to: Status::NeedsHelp,
        because: Because::Own,
        holds_in: &[Status::NeedsHelp],
    },
    Rule {
        on: TriggerKind::Joined,
        source: TriggerSource::Bot,
        from: &[Starting, Status::AwaitingAdmission, Status::NeedsHelp],
        to: Active,
        because: Because::Nothing,
        holds_in: &[Active],
    },
    Rule {
        on: TriggerKind::Stopping,
        source: TriggerSource::Bot,
        from: IN_SLOT,
        to: Status::Stopping,
        because: Because::Own,
        holds_in: &[Status::Stopping],
    },
    Rule {
        on: TriggerKind::StopAskedUnassigned,
        source: TriggerSource::User,
        from: &[Reserved],
        to: Completed,
        because: Because::Always(&Reason::Stopped),
        holds_in: &[],
    },
    Rule {
        on: TriggerKind::StopAsked,
        source: TriggerSource::User,
        from: &[Reserved, Starting, Status::AwaitingAdmission, Status::NeedsHelp, Active],
        to: Status::Stopping,
        because: Because::Always(&Reason::Stopped),
        holds_in: &[Status::Stopping, Completed, Failed],
    },
    Rule {
        on: TriggerKind::ExitedWell,
        source: TriggerSource::Bot,
        from: OPEN,
        to: Completed,
        because: Because::OwnUnlessStopAsked(&Reason::Finished),
        holds_in: &[],
    },
    Rule {
        on: TriggerKind::ExitedUnjoined,
        source: TriggerSource::Bot,
        from: &[Reserved, Starting, Status::AwaitingAdmission, Status::NeedsHelp],
        to: Failed,
        because: Because::Always(&Reason::NeverJoined),
        holds_in: &[],
    },
    Rule {
        on: TriggerKind::ExitedBadly,
        source: TriggerSource::Bot,
        from: OPEN,
        to: Failed,
        because: Because::OwnOr(&Reason::Crashed),
        holds_in: &[],
    },
    overdue(Overdue::QueueTimeout, &[Reserved], Failed, &Reason::QueueTimeout),
    overdue(Overdue::DeployTimeout, &[Reserved], Failed, &Reason::DeployTimeout),
    overdue(Overdue::DeployFailed, &[Reserved], Failed, &Reason::DeployFailed),
    overdue(
        Overdue::NoStart,
        &[Reserved, Starting, Status::AwaitingAdmission, Status::NeedsHelp, Active],
        Failed,
        &Reason::NoStart,
    ),
    overdue(Overdue::NoJoin, &[Starting, Status::AwaitingAdmission, Status::NeedsHelp], Failed, &Reason::NoJoin),
    overdue(Overdue::HeartbeatLost, &[Active], Failed, &Reason::HeartbeatLost),
    overdue(
        Overdue::Interrupted,
        &[Starting, Status::AwaitingAdmission, Status::NeedsHelp, Active, Status::Stopping],
        Failed,
        &Reason::Interrupted,
    ),
    overdue(Overdue::StopGrace, &[Status::Stopping], Completed, &Reason::Stopped),
];

const fn overdue(which: Overdue, from: &'static [Status], to: Status, reason: &'static Reason) -> Rule {
    Rule {
        on: TriggerKind::Passed(which),
        source: TriggerSource::Keeper,
        from,
        to,
        because: Because::Always(reason),
        holds_in: &[],
    }
}

/// The verdict on `trigger` for a bot with this `state`.
pub fn decide(state: &LifecycleState, trigger: &Trigger) -> Verdict {
    let on = trigger.kind(state);
    let Some(rule) = TABLE.iter().find(|rule| rule.on == on) else {
        return Verdict::Refuse;
    };
    if rule.from.contains(&state.status) {
        return Verdict::Move { to: rule.to, reason: rule.because.reason(state, trigger) };
    }
    if rule.holds_in.contains(&state.status) {
        return Verdict::Hold;
    }
    if !state.status.is_ended() {
        return Verdict::Refuse;
    }
    match trigger {
        Trigger::Exited { exit_code, .. } if state.exit_code == Some(*exit_code) => Verdict::Hold,
        _ => Verdict::Ended,
    }
}

impl Trigger {
    fn kind(&self, state: &LifecycleState) -> TriggerKind {
        let status = state.status;
        match self {
            Trigger::Started { new_session: true } if status != Reserved => TriggerKind::Restarted,
            Trigger::Started { .. } => TriggerKind::Started,
            Trigger::AwaitingAdmission { .. } => TriggerKind::AwaitingAdmission,
            Trigger::NeedsHelp { .. } => TriggerKind::NeedsHelp,
            Trigger::Joined => TriggerKind::Joined,
            Trigger::Stopping { .. } => TriggerKind::Stopping,
            Trigger::Exited { exit_code: 0, reason: None } if state.left_without_joining() => {
                TriggerKind::ExitedUnjoined
            }
            Trigger::Exited { exit_code: 0, .. } => TriggerKind::ExitedWell,
            // The user asked the bot to leave, and the bot was ended while it was leaving.
            Trigger::Exited { reason: Some(Reason::Interrupted | Reason::Killed), .. } if state.stop_asked => {
                TriggerKind::ExitedWell
            }
            Trigger::Passed(Overdue::Interrupted) if state.stop_asked => TriggerKind::Passed(Overdue::StopGrace),
            Trigger::Exited { .. } => TriggerKind::ExitedBadly,
            Trigger::StopAsked { assigned: false } if status == Reserved => TriggerKind::StopAskedUnassigned,
            Trigger::StopAsked { .. } => TriggerKind::StopAsked,
            Trigger::Passed(which) => TriggerKind::Passed(*which),
        }
    }

    fn own_reason(&self) -> Option<Reason> {
        match self {
            Trigger::AwaitingAdmission { reason }
            | Trigger::NeedsHelp { reason }
            | Trigger::Stopping { reason }
            | Trigger::Exited { reason, .. } => reason.clone(),
            Trigger::Started { .. } | Trigger::Joined | Trigger::StopAsked { .. } | Trigger::Passed(_) => None,
        }
    }
}

impl Because {
    fn reason(self, state: &LifecycleState, trigger: &Trigger) -> Option<Reason> {
        match self {
            Because::Nothing => None,
            Because::Own => trigger.own_reason(),
            Because::OwnUnlessStopAsked(_) if state.stop_asked => Some(Reason::Stopped),
            Because::OwnUnlessStopAsked(otherwise) | Because::OwnOr(otherwise) => {
                Some(trigger.own_reason().unwrap_or_else(|| otherwise.clone()))
            }
            Because::Always(reason) => Some(reason.clone()),
        }
    }
}
