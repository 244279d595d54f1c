//! The sweeper. It acts on a bot when
//! - it was assigned longer than `no_start` ago and has not spoken under that connection: `failed`, `no_start`;
//! - it is `starting`, `awaiting_admission` or `needs_help` and its session began longer than `no_join` ago (or, if it
//!   had been in the meeting, it has been in `needs_help` for so long): `failed`, `no_join`;
//! - it is `active` and neither came in nor gave a heartbeat within `heartbeat_lost`: `failed`, `heartbeat_lost`;
//! - it is `stopping` for longer than `stop_grace`: `completed`, `stopped`.
//!
//! A bot that spoke between the look and the act lives. And silence counts only while somebody listened ([`super::ears`]).

use std::time::Duration;

use async_trait::async_trait;
use domain::lifecycle::Overdue;
use domain::{BotId, Deadlines};

use super::ears::Ears;
use super::{Did, Keeper, ago};
use crate::lifecycle::Lifecycle;
use crate::store::StoreError;

/// Heartbeats are written once a second, by whichever replica heard them; so long one may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Sweeper {
    lifecycle: Lifecycle,
    deadlines: Deadlines,
    ears: Ears,
}

impl Sweeper {
    pub fn new(lifecycle: Lifecycle, deadlines: Deadlines, ears: Ears) -> Self {
        Self { lifecycle, deadlines, ears }
    }

    async fn sweep(&self) -> Result<Did, StoreError> {
        let (now, heard_for) = (self.lifecycle.clock.now(), self.ears.heard_for());
        let mut did = Did::of([("failed", 0), ("stopped", 0)]);
        for (overdue, patience) in [
            (Overdue::NoStart, self.deadlines.no_start),
            (Overdue::NoJoin, self.deadlines.no_join),
            (Overdue::HeartbeatLost, self.deadlines.heartbeat_lost + ON_ITS_WAY),
            (Overdue::StopGrace, self.deadlines.stop_grace),
        ] {
            // Whoever lives is heard within the patience for a heartbeat.
            if heard_for < patience.min(self.deadlines.heartbeat_lost + ON_ITS_WAY) {
                continue;
            }
            let what = if overdue == Overdue::StopGrace { "stopped" } else { "failed" };
            let ended = self.sweep_one_way(overdue, patience, now, &mut did).await?;
            did.add(what, ended);
        }
        Ok(did)
    }

    async fn sweep_one_way(
        &self,
        overdue: Overdue,
        patience: Duration,
        now: jiff::Timestamp,
        did: &mut Did,
    ) -> Result<u64, StoreError> {
        let since = ago(now, patience);
        let (mut ended, mut last) = (0, None::<BotId>);
        loop {
            let page = self.lifecycle.store.overdue(overdue, since, last).await?;
            let Some(end) = page.last() else { return Ok(ended) };
            last = Some(*end);
            for bot in page {
                match self.lifecycle.pass(bot, overdue, since).await {
                    Ok(passed) => ended += u64::from(passed),
                    // One that cannot be ended must not be in the way of the others.
                    Err(error) => did.complaints.push(format!("the bot {bot} could not be ended: {error}")),
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

    async fn run(&self) -> Result<Did, StoreError> {
        let swept = self.sweep().await;
        if swept.is_err() {
            self.ears.were_deaf();
        }
        swept
    }
}
