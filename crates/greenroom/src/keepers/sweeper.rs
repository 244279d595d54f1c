//! The sweeper. It acts on a bot when
//! - it was assigned longer than `no_start` ago and has not spoken under that connection: `failed`, `no_start`;
//! - it is `starting`, `awaiting_admission` or `needs_help` and its session began longer than `no_join` ago (or, if it
//!   had been in the meeting, it has been in `needs_help` for so long): `failed`, `no_join`;
//! - it is `active` and neither came in nor gave a heartbeat within `heartbeat_lost`: `failed`, `heartbeat_lost`;
//! - it is `stopping` for longer than `stop_grace`: `completed`, `stopped`.
//!
//! A bot that spoke between the look and the act lives. And silence counts only while somebody listened, for two heartbeat
//! intervals in all ([`super::listening`]); the grace of a stop is over when it is over.

use std::time::Duration;

use async_trait::async_trait;
use domain::Deadlines;
use domain::lifecycle::Overdue;

use super::listening::ListeningWindow;
use super::{Keeper, KeeperError, RunReport, ago};
use crate::context::Context;
use crate::lifecycle::Lifecycle;
use crate::store::{Store, StoreError};

/// Heartbeats are written once a second, by whichever replica heard them; so long one may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// How long a bot that lives may go unheard while somebody listens: it speaks in every interval, and one of its
/// heartbeats may have been lost with the server before.
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
        for (overdue, patience) in [
            (Overdue::NoStart, self.deadlines.no_start),
            (Overdue::NoJoin, self.deadlines.no_join),
            (Overdue::HeartbeatLost, self.deadlines.heartbeat_lost + ON_ITS_WAY),
            (Overdue::StopGrace, self.deadlines.stop_grace),
        ] {
            let since = ago(now, patience);
            if overdue == Overdue::StopGrace {
                let ended = self.sweep_one_way(overdue, since, &mut report).await?;
                report.add("stopped", ended);
                continue;
            }
            // Whoever has said nothing since then has said nothing for so long while somebody listened.
            let needed = patience.min(needed_listening(&self.deadlines));
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
                match self.lifecycle.pass(bot, overdue, since).await {
                    Ok(passed) => ended += u64::from(passed),
                    // One that cannot be ended must not be in the way of the others.
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
