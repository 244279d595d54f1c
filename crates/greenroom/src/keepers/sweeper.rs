//! The sweeper. It acts on a bot when
//! - it is `starting`, `awaiting_admission` or `needs_help` and its session began longer than `no_join` ago (or, if it
//!   had been in the meeting, it has been in `needs_help` for so long): `failed`, `no_join`;
//! - it is `active` and neither came in nor gave a heartbeat within `heartbeat_lost`: `failed`, `heartbeat_lost`;
//! - it is `stopping` for longer than `stop_grace`: `completed`, `stopped`.
//!
//! A bot that spoke between the look and the act lives.

use std::time::Duration;

use domain::Deadlines;
use domain::lifecycle::Overdue;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::lifecycle::{Lifecycle, LifecycleError};

/// Heartbeats are written once a second, by whichever replica heard them; so long one may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Sweeper {
    lifecycle: Lifecycle,
    deadlines: Deadlines,
}

impl Sweeper {
    pub fn new(lifecycle: Lifecycle, deadlines: Deadlines) -> Self {
        Self { lifecycle, deadlines }
    }

    /// Sweeps once in an interval until `ending`.
    pub async fn keep_sweeping(self, ending: CancellationToken) {
        let mut tick = tokio::time::interval(self.deadlines.sweeper_interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = ending.cancelled() => return,
            }
            match self.sweep().await {
                Ok(_) => failing = false,
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "bots cannot be swept");
                    }
                }
            }
        }
    }

    /// Sweeps once, and says how many bots it ended.
    pub async fn sweep(&self) -> Result<u64, LifecycleError> {
        let mut ended = 0;
        for (overdue, patience) in [
            (Overdue::NoJoin, self.deadlines.no_join),
            (Overdue::HeartbeatLost, self.deadlines.heartbeat_lost + ON_ITS_WAY),
            (Overdue::StopGrace, self.deadlines.stop_grace),
        ] {
            let since = self.lifecycle.clock.now().saturating_sub(patience).unwrap_or(Timestamp::MIN);
            for bot in self.lifecycle.store.overdue(overdue, since).await? {
                ended += u64::from(self.lifecycle.pass(bot, overdue, since).await?);
            }
        }
        Ok(ended)
    }
}
