//! The table as a page of the documentation. The page is generated, so it always matches the decisions.

use super::{Because, On, Overdue, Speaker, TABLE};
use crate::deadline;
use crate::status::Status;

/// The transitions and the deadlines as Markdown tables.
pub fn markdown() -> String {
    let mut page = String::from(
        "## Transitions\n\n\
         | when | who says so | from | to | reason | already holds in |\n\
         |---|---|---|---|---|---|\n",
    );
    for rule in TABLE {
        page.push_str(&format!(
            "| {} | {} | {} | `{}` | {} | {} |\n",
            when(rule.on),
            speaker(rule.speaker),
            states(rule.from),
            rule.to,
            because(rule.because),
            states(rule.holds_in),
        ));
    }
    page.push_str(
        "\nWhat is not in the table is refused: `invalid_transition` while the bot is open, `bot_ended` after its end. \
         A repeat of the `exited` call that ended it holds.\n\n\
         ## Deadlines\n\n\
         | while | stored as | clock starts | set by | default | who watches | then |\n\
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

fn when(on: On) -> &'static str {
    match on {
        On::Started => "`POST /callback/started`",
        On::Restarted => "`POST /callback/started` under a new connection",
        On::AwaitingAdmission => "`PATCH /callback/status` `awaiting_admission`",
        On::NeedsHelp => "`PATCH /callback/status` `needs_help`",
        On::Joined => "`POST /callback/joined`",
        On::Stopping => "`PATCH /callback/status` `stopping`",
        On::ExitedWell => "`POST /callback/exited` with code 0",
        On::ExitedUnjoined => "`POST /callback/exited` with code 0, without a reason, never joined nor asked to leave",
        On::ExitedBadly => "`POST /callback/exited` with another code",
        On::StopAskedUnassigned => "`DELETE /bots/{id}` before anything runs for it",
        On::StopAsked => "`DELETE /bots/{id}`",
        On::Passed(Overdue::QueueTimeout) => "no slot in time",
        On::Passed(Overdue::DeployTimeout) => "the deploy gate did not open in time",
        On::Passed(Overdue::DeployFailed) => "the provider could not start it",
        On::Passed(Overdue::NoStart) => "assigned, or assigned anew, and never heard of",
        On::Passed(Overdue::NoJoin) => "not in the meeting in time",
        On::Passed(Overdue::HeartbeatLost) => "no heartbeat",
        On::Passed(Overdue::Interrupted) => "the provider no longer runs its slot",
        On::Passed(Overdue::StopGrace) => "did not leave in time",
    }
}

fn speaker(speaker: Speaker) -> &'static str {
    match speaker {
        Speaker::Bot => "the bot",
        Speaker::User => "its user",
        Speaker::Keeper => "a keeper",
    }
}

fn because(because: Because) -> String {
    match because {
        Because::Nothing => "none".to_owned(),
        Because::Own => "the bot's own word, if any".to_owned(),
        Because::OwnUnlessStopAsked(reason) => {
            format!("`stopped` if its user asked, else the bot's own word or `{reason}`")
        }
        Because::OwnOr(reason) => format!("the bot's own word or `{reason}`"),
        Because::Always(reason) => format!("`{reason}`"),
    }
}
