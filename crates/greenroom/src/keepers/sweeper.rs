//! The sweeper ends bots whose state has lasted too long. It acts on a bot when:
//! - the bot was assigned longer than `no_start` ago and has not called under that connection: `failed`, `no_start`;
//! - the bot is `starting`, `awaiting_admission` or `needs_help`, and its session began longer than `no_join` ago. For
//!   a bot that had been in the meeting, the time in `needs_help` counts instead: `failed`, `no_join`;
//! - the bot is `active`, and neither joined nor sent a heartbeat within `heartbeat_lost`: `failed`, `heartbeat_lost`;
//! - the bot has been `stopping` for longer than `stop_grace`: `completed`, `stopped`.
//!
//! A bot that calls between the check and the action stays alive. Silence counts only if the server has listened for
//! two heartbeat intervals in total ([`super::listening`]); `stop_grace` does not depend on listening.

use std::time::Duration;

use async_trait::async_trait;
use domain::Deadlines;
use domain::lifecycle::Overdue;

use super::listening::ListeningWindow;
use super::{Keeper, KeeperError, RunReport, ago};
use crate::context::Context;
use crate::lifecycle::Lifecycle;
use crate::store::{Store, StoreError};

/// How long a heartbeat may take to reach the database: each replica writes its heartbeats once a second.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// How long a living bot may be silent while the server listens. The bot calls in every interval, and one of its
/// heartbeats may have been lost with a stopped server.
pub fn needed_listening(deadlines: &Deadlines) -> Duration {
    deadlines.heartbeat_interval * 2 + ON_ITS_WAY
}

#[derive(Clone, Debug)]
pub struct Sweeper {
    store: Store,
    lifecycle: Lifecycle,
    deadlines: Deadlines,
    listening: ListeningWindow,
}

impl Sweeper {
    pub fn new(context: &Context, lifecycle: Lifecycle, deadlines: Deadlines, listening: ListeningWindow) -> Self {
        Self { store: context.store.clone(), lifecycle, deadlines, listening }
    }

    async fn sweep(&self) -> Result<RunReport, StoreError> {
        let now = self.listening.now();
        let mut report = RunReport::of([("failed", 0), ("stopped", 0)]);
        for (overdue, timeout) in [
            (Overdue::NoStart, self.deadlines.no_start),
            (Overdue::NoJoin, self.deadlines.no_join),
            (Overdue::HeartbeatLost, self.deadlines.heartbeat_lost + ON_ITS_WAY),
            (Overdue::StopGrace, self.deadlines.stop_grace),
        ] {
            let since = ago(now, timeout);
            if overdue == Overdue::StopGrace {
                let ended = self.sweep_one_way(overdue, since, &mut report).await?;
                report.add("stopped", ended);
                continue;
            }
            // A bot without a call since then has been silent for long enough while the server listened.
            let needed = timeout.min(needed_listening(&self.deadlines));
            let Some(heard_since) = self.listening.heard_since(needed) else { continue };
            let ended = self.sweep_one_way(overdue, since.min(heard_since), &mut report).await?;
            report.add("failed", ended);
        }
        Ok(report)
    }

    async fn sweep_one_way(
        &self,
        overdue: Overdue,
        since: jiff::Timestamp,
        report: &mut RunReport,
    ) -> Result<u64, StoreError> {
        let (mut ended, mut last) = (0, None);
        loop {
            let page = self.store.overdue(overdue, since, last).await?;
            let Some(end) = page.last() else { return Ok(ended) };
            last = Some(*end);
            for (_, bot) in page {
                match self.lifecycle.end_overdue(bot, overdue, since).await {
                    Ok(passed) => ended += u64::from(passed),
                    // One bot that cannot be ended must not block the others.
                    Err(error) => report.complaints.push(format!("the bot {bot} could not be ended: {error}")),
                }
            }
        }
    }
}

#[async_trait]
impl Keeper for Sweeper {
    fn name(&self) -> &'static str {
        "sweeper"
    }

    fn every(&self) -> Duration {
        self.deadlines.sweeper_interval
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        let swept = self.sweep().await;
        if swept.is_err() {
            self.listening.reset();
        }
        Ok(swept?)
    }
}
