//! The warm buffer keeps enough slots of each pool ready. It acts when:
//! - a pool has fewer than `min_idle` slots without a bot that are ready or being made ready, and fewer than
//!   `max_slots` slots: slots are created. Hot ones are started through the gate, behind every bot that waits there.
//!   Slots in error beyond `min_idle` count as being made ready, so that a pool that cannot start is not filled with
//!   them;
//! - a pool has more slots than `max_slots`, because it was made smaller: surplus idle slots are deleted;
//! - an idle slot is past its `expires_at`, or has other attributes than new slots of its pool: it is deleted. For
//!   other attributes this is one slot at a time, and only while no other slot of the pool is being created or deleted;
//! - a slot of a hot pool has been idle for `idle_timeout`, and more than `min_idle` are ready: it is stopped, and
//!   started again when it is needed;
//! - a slot of a hot pool was started with another image or command than the configuration has now: it is started
//!   again. This is one slot at a time, while none is being made ready or in error, and at least `min_idle` stay ready
//!   (one fewer where the pool cannot grow);
//! - a bot waits in the queue although a slot is free or can be created, because a signal was lost: it gets the slot,
//!   before all other actions.

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
