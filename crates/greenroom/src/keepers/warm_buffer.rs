//! The warm buffer. It acts when
//! - a pool has fewer than `min_idle` slots that are ready, or are being made ready, without a bot, and there is room below
//!   `max_slots`: slots are made, and hot ones are started through the gate, behind every bot that waits there. As many as
//!   are in error beyond `min_idle` count as being made ready, so that a pool that cannot start is not filled with them;
//! - a pool has more slots than `max_slots`, because it was made smaller: idle ones that are too many are let go;
//! - an idle slot is past its `threshold`, or has other attributes than new slots of its pool: it is let go, of the latter one at
//!   a time and only while no other slot of the pool is being made or on its way out;
//! - a slot of a hot pool has been idle for `idle_timeout`, and more than `min_idle` are ready: it is stopped, and started
//!   again when it is needed;
//! - a slot of a hot pool was started with another image or command than is configured by now: it is started anew, one after
//!   the other while none is being made ready or in error, and never so that fewer than `min_idle` are ready (one fewer
//!   where the pool cannot grow);
//! - a bot waits in the queue although a slot is free or could be made, because a word was lost: it gets it, before all of this.

use std::time::Duration;

use async_trait::async_trait;
use domain::planner::job::WarmReport;

use super::{Keeper, KeeperError, RunReport};
use crate::placement::Placement;
use crate::signals::Signals;

#[derive(Debug)]
pub struct WarmBuffer {
    signals: Signals,
    placement: Placement,
    every: Duration,
}

impl WarmBuffer {
    pub fn new(signals: Signals, placement: Placement, every: Duration) -> Self {
        Self { signals, placement, every }
    }
}

#[async_trait]
impl Keeper for WarmBuffer {
    fn name(&self) -> &'static str {
        "warm_buffer"
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        let warmed = self.placement.keep_warm().await?;
        let WarmReport { made, let_go, stopped, replaced } = warmed;
        Ok(RunReport::of([("made", made), ("let_go", let_go), ("stopped", stopped), ("replaced", replaced)]))
    }

    async fn woken(&self) {
        self.signals.pool_below_min_idle().await;
    }
}
