//! The table as a page of the documentation. The page is generated, so it always matches the decisions.

use super::{Because, Overdue, TABLE, TriggerKind, TriggerSource};
use crate::deadline;
use crate::status::Status;

/// The transitions and the deadlines as Markdown tables.
pub fn markdown() -> String {
    let mut page = String::from(
        "## Transitions\n\n\
         | when | caused by | from | to | reason | no change in |\n\
         |---|---|---|---|---|---|\n",
    );
    for rule in TABLE {
        page.push_str(&format!(
            "| {} | {} | {} | `{}` | {} | {} |\n",
            when(rule.on),
            source(rule.source),
            states(rule.from),
            rule.to,
            because(rule.because),
            states(rule.holds_in),
        ));
    }
    page.push_str(
        "\nThe server refuses every other transition: with `invalid_transition` while the bot is open, and with \
         `bot_ended` after the bot has ended. A repeat of the `exited` call that ended the bot succeeds and changes \
         nothing.\n\n\
         ## Deadlines\n\n\
         | while | stored as | clock starts | set by | default | keeper | then |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let defaults = deadline::Deadlines::default();
    for phase in deadline::PHASES {
        page.push_str(&format!(
            "| {} | {} | {} | `{}` | {} | {} | {} |\n",
            phase.name,
            states(phase.status),
            phase.clock_starts,
            phase.key,
            deadline::duration_text((phase.of)(&defaults)),
            phase.owner,
            phase.then,
        ));
    }
    page
}

fn states(states: &[Status]) -> String {
    states.iter().map(|status| format!("`{status}`")).collect::<Vec<_>>().join(", ")
}

fn when(on: TriggerKind) -> &'static str {
    match on {
        TriggerKind::Started => "`POST /callback/started`",
        TriggerKind::Restarted => "`POST /callback/started` under a new connection",
        TriggerKind::AwaitingAdmission => "`PATCH /callback/status` `awaiting_admission`",
        TriggerKind::NeedsHelp => "`PATCH /callback/status` `needs_help`",
        TriggerKind::Joined => "`POST /callback/joined`",
        TriggerKind::Stopping => "`PATCH /callback/status` `stopping`",
        TriggerKind::ExitedWell => "`POST /callback/exited` with code 0",
        TriggerKind::ExitedUnjoined => {
            "`POST /callback/exited` with code 0, without a reason; the bot never joined, and its user did not ask it to leave"
        }
        TriggerKind::ExitedBadly => "`POST /callback/exited` with another code",
        TriggerKind::StopAskedUnassigned => "`DELETE /bots/{id}` before anything runs for it",
        TriggerKind::StopAsked => "`DELETE /bots/{id}`",
        TriggerKind::Passed(Overdue::QueueTimeout) => "no slot in time",
        TriggerKind::Passed(Overdue::DeployTimeout) => "the deploy gate did not open in time",
        TriggerKind::Passed(Overdue::DeployFailed) => "the provider could not start it",
        TriggerKind::Passed(Overdue::NoStart) => "no callback in time after an assignment",
        TriggerKind::Passed(Overdue::NoJoin) => "not in the meeting in time",
        TriggerKind::Passed(Overdue::HeartbeatLost) => "no heartbeat",
        TriggerKind::Passed(Overdue::Interrupted) => "the provider no longer runs its slot",
        TriggerKind::Passed(Overdue::StopGrace) => "did not leave in time",
    }
}

fn source(source: TriggerSource) -> &'static str {
    match source {
        TriggerSource::Bot => "the bot",
        TriggerSource::User => "its user",
        TriggerSource::Keeper => "the server",
    }
}

fn because(because: Because) -> String {
    match because {
        Because::Nothing => "none".to_owned(),
        Because::Own => "the bot's own reason, if it gave one".to_owned(),
        Because::OwnUnlessStopAsked(reason) => {
            format!("`stopped` if its user asked it to leave, otherwise the bot's own reason or `{reason}`")
        }
        Because::OwnOr(reason) => format!("the bot's own reason or `{reason}`"),
        Because::Always(reason) => format!("`{reason}`"),
    }
}
