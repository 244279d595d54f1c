//! The sweeper. It acts on a bot when
//! - it was assigned longer than `no_start` ago and has not spoken under that connection: `failed`, `no_start`;
//! - it is `starting`, `awaiting_admission` or `needs_help` and its session began longer than `no_join` ago (or, if it
//!   had been in the meeting, it has been in `needs_help` for so long): `failed`, `no_join`;
//! - it is `active` and neither came in nor gave a heartbeat within `heartbeat_lost`: `failed`, `heartbeat_lost`;
//! - it is `stopping` for longer than `stop_grace`: `completed`, `stopped`.
//!
//! A bot that spoke between the look and the act lives. And silence counts only while somebody listened: after a start,
//! a pause, or a time without the database, bots first get the time to be heard again.

use std::time::Duration;

use domain::lifecycle::Overdue;
use domain::{BotId, Deadlines};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::lifecycle::Lifecycle;
use crate::store::StoreError;

/// Heartbeats are written once a second, by whichever replica heard them; so long one may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// So much later than it should a sweep may come on a busy machine.
const STOOD_STILL: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Sweeper {
    lifecycle: Lifecycle,
    deadlines: Deadlines,
    /// Since when bots could be heard without a break.
    listening_since: Timestamp,
    last_sweep: Timestamp,
}

impl Sweeper {
    pub fn new(lifecycle: Lifecycle, deadlines: Deadlines) -> Self {
        let now = lifecycle.clock.now();
        Self { lifecycle, deadlines, listening_since: now, last_sweep: now }
    }

    /// Sweeps once in an interval until `ending`.
    pub async fn keep_sweeping(mut self, ending: CancellationToken) {
        let mut tick = tokio::time::interval(self.deadlines.sweeper_interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = ending.cancelled() => return,
            }
            let swept = tokio::select! {
                swept = self.sweep() => swept,
                () = ending.cancelled() => return,
            };
            match swept {
                Ok(_) => failing = false,
                Err(error) => {
                    // Whoever could not be written down could not be heard either.
                    self.listening_since = self.lifecycle.clock.now();
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "bots cannot be swept");
                    }
                }
            }
        }
    }

    /// Sweeps once, and says how many bots it ended.
    pub async fn sweep(&mut self) -> Result<u64, StoreError> {
        let now = self.lifecycle.clock.now();
        let pause = Duration::try_from(now.duration_since(self.last_sweep)).unwrap_or_default();
        self.last_sweep = now;
        // The process stood still: whoever spoke meanwhile was not heard.
        if pause > self.deadlines.sweeper_interval + STOOD_STILL {
            self.listening_since = now;
        }
        let heard_for = Duration::try_from(now.duration_since(self.listening_since)).unwrap_or_default();
        let mut ended = 0;
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
            let since = now.saturating_sub(patience).unwrap_or(Timestamp::MIN);
            ended += self.sweep_one_way(overdue, since).await?;
        }
        Ok(ended)
    }

    async fn sweep_one_way(&self, overdue: Overdue, since: Timestamp) -> Result<u64, StoreError> {
        let (mut ended, mut last) = (0, None::<BotId>);
        loop {
            let page = self.lifecycle.store.overdue(overdue, since, last).await?;
            let Some(end) = page.last() else { return Ok(ended) };
            last = Some(*end);
            for bot in page {
                match self.lifecycle.pass(bot, overdue, since).await {
                    Ok(passed) => ended += u64::from(passed),
                    // One that cannot be ended must not be in the way of the others.
                    Err(error) => tracing::warn!(%bot, %error, "an overdue bot could not be ended"),
                }
            }
        }
    }
}
