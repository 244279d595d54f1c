//! How long a state may last, which keeper watches it, and what follows. Every state of a bot has a deadline and an
//! owner. The clock of a deadline starts when its state starts, so time in the queue never counts against the start of
//! the bot.

use std::time::Duration;

use jiff::Timestamp;

use crate::status::Status;

/// A phase of a bot's life with its own clock. Several phases may share one stored status.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// The bot's activity in this phase.
    pub name: &'static str,
    /// The statuses that a bot may have in this phase.
    pub status: &'static [Status],
    /// When the clock starts.
    pub clock_starts: &'static str,
    /// The configuration key of the deadline.
    pub key: &'static str,
    /// Selects the deadline from the configured ones.
    pub of: fn(&Deadlines) -> Duration,
    /// The keeper that watches it.
    pub owner: &'static str,
    /// The effect of a passed deadline.
    pub then: &'static str,
}

/// Every phase, in the order of a bot's life.
pub const PHASES: &[Phase] = &[
    Phase {
        name: "waiting in the queue",
        status: &[Status::Reserved],
        clock_starts: "when it was queued",
        key: "queue.default_timeout",
        of: |all| all.queue_default,
        owner: "queue expiry",
        then: "`failed`, `queue_timeout`",
    },
    Phase {
        name: "waiting at the deploy gate",
        status: &[Status::Reserved],
        clock_starts: "when it began to wait at the gate",
        key: "deploy.timeout",
        of: |all| all.deploy,
        owner: "queue expiry",
        then: "`failed`, `deploy_timeout`; the slot becomes free",
    },
    Phase {
        name: "assigned, before the first callback",
        status: &[Status::Reserved, Status::Starting, Status::AwaitingAdmission, Status::NeedsHelp, Status::Active],
        clock_starts: "with the assignment, or when the provider's start call returned",
        key: "sweeper.no_start",
        of: |all| all.no_start,
        owner: "sweeper",
        then: "`failed`, `no_start`; the slot goes to error",
    },
    Phase {
        name: "joining, including the lobby",
        status: &[Status::Starting, Status::AwaitingAdmission, Status::NeedsHelp],
        clock_starts: "with `started`; for a bot that needs help in the meeting, with `needs_help`",
        key: "sweeper.no_join",
        of: |all| all.no_join,
        owner: "sweeper",
        then: "`failed`, `no_join`",
    },
    Phase {
        name: "in the meeting",
        status: &[Status::Active],
        clock_starts: "when it joined, and again with each heartbeat",
        key: "sweeper.heartbeat_lost",
        of: |all| all.heartbeat_lost,
        owner: "sweeper",
        then: "`failed`, `heartbeat_lost`",
    },
    Phase {
        name: "leaving",
        status: &[Status::Stopping],
        clock_starts: "when its user asked it to leave, or when it reported `stopping`",
        key: "sweeper.stop_grace",
        of: |all| all.stop_grace,
        owner: "sweeper",
        then: "the provider kills it; `completed`, `stopped`",
    },
];

/// The deadlines of one installation, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// How long a bot waits in the queue if its request gives no time.
    pub queue_default: Duration,
    /// The longest time that a request may ask to wait.
    pub queue_max: Duration,
    /// How often the keepers of the queue, of deployments and of the warm buffer run.
    pub queue_poll: Duration,
    /// How long a bot may wait at the deploy gate.
    pub deploy: Duration,
    /// How often the keeper looks for slots in error.
    pub recovery_interval: Duration,
    /// How often the keeper compares records with providers.
    pub sync_interval: Duration,
    /// How long an unknown object may exist at a provider before it is removed.
    pub sync_grace: Duration,
    /// How often the keeper looks for bots whose state has lasted too long.
    pub sweeper_interval: Duration,
    /// How long an assigned bot may stay without its first callback.
    pub no_start: Duration,
    /// How long a bot may take to join.
    pub no_join: Duration,
    /// How long a bot in the meeting may send nothing.
    pub heartbeat_lost: Duration,
    /// How long a bot may take to leave.
    pub stop_grace: Duration,
    /// How often a bot sends a heartbeat.
    pub heartbeat_interval: Duration,
    /// How long a bot is expected to hold its slot, for estimates before any bot has.
    pub expected_duration: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            queue_default: Duration::from_mins(5),
            queue_max: Duration::from_mins(10),
            queue_poll: Duration::from_secs(1),
            deploy: Duration::from_mins(30),
            recovery_interval: Duration::from_mins(5),
            sync_interval: Duration::from_mins(1),
            sync_grace: Duration::from_mins(2),
            sweeper_interval: Duration::from_mins(1),
            no_start: Duration::from_mins(5),
            no_join: Duration::from_mins(10),
            heartbeat_lost: Duration::from_mins(2),
            stop_grace: Duration::from_secs(90),
            heartbeat_interval: Duration::from_secs(30),
            expected_duration: Duration::from_mins(30),
        }
    }
}

/// The times from which the deadline of a bot follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BotClocks {
    /// The stored status.
    pub status: Status,
    /// Since when it has this status, as shown.
    pub status_since: Timestamp,
    /// While it waits in the queue: until when.
    pub queue_until: Option<Timestamp>,
    /// While its slot waits at the deploy gate or is being started: until when.
    pub deploy_until: Option<Timestamp>,
    /// Since when its first callback is awaited, if it is.
    pub awaited_since: Option<Timestamp>,
    /// The session of its current connection. `None` before its first callback.
    pub session: Option<SessionClocks>,
}

/// The times of a bot's current session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionClocks {
    /// When the bot reported `started`.
    pub started_at: Timestamp,
    /// When the bot joined the meeting.
    pub joined_at: Option<Timestamp>,
    /// When the bot was last heard.
    pub last_heartbeat_at: Option<Timestamp>,
}

/// What must happen before the deadline of a bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedStep {
    /// It gets a slot.
    Slot,
    /// Its slot is started.
    Deployment,
    /// It makes its first callback.
    FirstCallback,
    /// It joins the meeting, or gets the help that it needs.
    Join,
    /// It sends a heartbeat.
    Heartbeat,
    /// It leaves.
    End,
}

impl Deadlines {
    /// What a bot must do next, and when it is too late for it. `None` for a bot that has ended, and while nothing is
    /// awaited.
    pub fn of_bot(&self, clocks: &BotClocks) -> Option<(AwaitedStep, Timestamp)> {
        let BotClocks { status, status_since, queue_until, deploy_until, awaited_since, session } = *clocks;
        if status.is_ended() {
            return None;
        }
        if status == Status::Stopping {
            return Some((AwaitedStep::End, later(status_since, self.stop_grace)));
        }
        if let Some(until) = queue_until {
            return Some((AwaitedStep::Slot, until));
        }
        if let Some(until) = deploy_until {
            return Some((AwaitedStep::Deployment, until));
        }
        let Some(session) = session else {
            return awaited_since.map(|since| (AwaitedStep::FirstCallback, later(since, self.no_start)));
        };
        if status == Status::Active {
            let heard = session.last_heartbeat_at.map_or(status_since, |heard| heard.max(status_since));
            return Some((AwaitedStep::Heartbeat, later(heard, self.heartbeat_lost)));
        }
        // A bot that was in the meeting before has the whole time again.
        let since = if session.joined_at.is_none() { session.started_at } else { status_since };
        Some((AwaitedStep::Join, later(since, self.no_join)))
    }

    /// One sentence for each pair of deadlines that contradict each other. Empty if all agree.
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut refuse = |broken: bool, sentence: String| {
            if broken {
                found.push(sentence);
            }
        };
        refuse(
            self.queue_default > self.queue_max,
            format!(
                "queue.default_timeout ({}) is longer than queue.max_timeout ({}), so the server would refuse a bot \
                 whose request gives no timeout",
                duration_text(self.queue_default),
                duration_text(self.queue_max)
            ),
        );
        refuse(
            self.queue_poll > self.queue_default,
            format!(
                "queue.poll_interval ({}) is longer than queue.default_timeout ({}), so a bot could pass its timeout \
                 before the queue is checked",
                duration_text(self.queue_poll),
                duration_text(self.queue_default)
            ),
        );
        refuse(
            self.heartbeat_lost < self.heartbeat_interval * 2,
            format!(
                "sweeper.heartbeat_lost ({}) is shorter than two heartbeats (heartbeat.interval is {}), so one lost \
                 packet would end a healthy bot",
                duration_text(self.heartbeat_lost),
                duration_text(self.heartbeat_interval)
            ),
        );
        refuse(
            self.stop_grace < self.heartbeat_interval,
            format!(
                "sweeper.stop_grace ({}) is shorter than heartbeat.interval ({}), so a bot that gets its commands \
                 with its heartbeats would be killed before it got the command to leave",
                duration_text(self.stop_grace),
                duration_text(self.heartbeat_interval)
            ),
        );
        for (key, deadline) in [
            ("no_start", self.no_start),
            ("no_join", self.no_join),
            ("heartbeat_lost", self.heartbeat_lost),
            ("stop_grace", self.stop_grace),
        ] {
            refuse(
                self.sweeper_interval > deadline,
                format!(
                    "sweeper.interval ({}) is longer than sweeper.{key} ({}), so the sweeper would notice that deadline too late",
                    duration_text(self.sweeper_interval),
                    duration_text(deadline)
                ),
            );
        }
        found
    }
}

fn later(at: Timestamp, length: Duration) -> Timestamp {
    at.saturating_add(length).unwrap_or(Timestamp::MAX)
}

/// A duration as it is written in the configuration: `90s`, `5m`, `250ms`.
pub fn duration_text(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (size, unit) in [(3_600_000, "h"), (60_000, "m"), (1_000, "s")] {
        if millis >= size && millis.is_multiple_of(size) {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{millis}ms")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// When the deadline of a bot passes, and what it must do before, with a clock of its own for each deadline.
    fn deadline(clocks: BotClocks) -> Option<(AwaitedStep, i64)> {
        let deadlines = Deadlines {
            no_start: Duration::from_secs(1_000),
            no_join: Duration::from_secs(2_000),
            heartbeat_lost: Duration::from_secs(3_000),
            stop_grace: Duration::from_secs(4_000),
            ..Deadlines::default()
        };
        deadlines.of_bot(&clocks).map(|(step, until)| (step, until.as_second()))
    }

    #[test]
    fn every_state_of_a_bot_has_the_deadline_of_its_own_clock() {
        let clocks = |status| BotClocks {
            status,
            status_since: at(10),
            queue_until: None,
            deploy_until: None,
            awaited_since: None,
            session: None,
        };
        let reserved = clocks(Status::Reserved);
        assert_eq!(deadline(reserved), None, "its slot was not started yet");
        assert_eq!(deadline(BotClocks { queue_until: Some(at(7)), ..reserved }), Some((AwaitedStep::Slot, 7)));
        assert_eq!(deadline(BotClocks { deploy_until: Some(at(8)), ..reserved }), Some((AwaitedStep::Deployment, 8)));
        let awaited = BotClocks { awaited_since: Some(at(20)), ..reserved };
        assert_eq!(deadline(awaited), Some((AwaitedStep::FirstCallback, 1_020)));

        let session = SessionClocks { started_at: at(30), joined_at: None, last_heartbeat_at: None };
        let with_session = |status, session| BotClocks { session: Some(session), ..clocks(status) };
        for status in [Status::Starting, Status::AwaitingAdmission, Status::NeedsHelp] {
            assert_eq!(deadline(with_session(status, session)), Some((AwaitedStep::Join, 2_030)), "{status}");
        }
        let joined = SessionClocks { joined_at: Some(at(40)), ..session };
        assert_eq!(deadline(with_session(Status::NeedsHelp, joined)), Some((AwaitedStep::Join, 2_010)));
        assert_eq!(deadline(with_session(Status::Active, joined)), Some((AwaitedStep::Heartbeat, 3_010)));
        let heard = SessionClocks { last_heartbeat_at: Some(at(50)), ..joined };
        assert_eq!(deadline(with_session(Status::Active, heard)), Some((AwaitedStep::Heartbeat, 3_050)));
        let leaving = BotClocks { deploy_until: Some(at(8)), ..with_session(Status::Stopping, heard) };
        assert_eq!(deadline(leaving), Some((AwaitedStep::End, 4_010)));
        assert_eq!(deadline(with_session(Status::Completed, heard)), None);
        assert_eq!(deadline(BotClocks { queue_until: Some(at(7)), ..clocks(Status::Failed) }), None);
    }

    #[test]
    fn the_defaults_do_not_contradict_each_other() {
        assert_eq!(Deadlines::default().contradictions(), Vec::<String>::new());
    }

    #[test]
    fn every_contradiction_is_told_at_once() {
        let deadlines = Deadlines {
            queue_default: Duration::from_mins(20),
            heartbeat_interval: Duration::from_mins(3),
            ..Deadlines::default()
        };
        let contradictions = deadlines.contradictions();
        assert_eq!(contradictions.len(), 3, "{contradictions:#?}");
        assert!(contradictions[0].contains("queue.default_timeout (20m)"));
        assert!(contradictions[1].contains("sweeper.heartbeat_lost (2m)"));
        assert!(contradictions[2].contains("sweeper.stop_grace (90s)"));
    }

    #[test]
    fn a_sweeper_that_looks_too_seldom_is_told_for_each_deadline_it_would_miss() {
        let deadlines = Deadlines { sweeper_interval: Duration::from_mins(6), ..Deadlines::default() };
        assert_eq!(deadlines.contradictions().len(), 3);
    }

    #[test]
    fn every_open_state_has_a_deadline_and_an_owner() {
        for status in Status::OPEN {
            assert!(PHASES.iter().any(|phase| phase.status.contains(&status)), "{status} has no deadline");
        }
        assert!(PHASES.iter().all(|phase| !phase.owner.is_empty()));
    }

    #[test]
    fn a_duration_is_told_in_its_largest_whole_unit() {
        assert_eq!(duration_text(Duration::from_secs(90)), "90s");
        assert_eq!(duration_text(Duration::from_mins(5)), "5m");
        assert_eq!(duration_text(Duration::from_hours(2)), "2h");
        assert_eq!(duration_text(Duration::from_millis(1500)), "1500ms");
    }
}
