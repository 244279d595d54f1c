//! This module starts a probe at an operator's request: a bot that proves that a pool works. The probe is placed like any
//! other bot, but only in a slot of that pool. There, the agent runs the demo bot instead of the slot's command.

use std::time::Duration;

use domain::{BotId, PROBE_MS, PROBE_USER, probe_meeting};
use serde_json::{Value, json};

use super::{Placement, PlacementError, Reserved};
use crate::admission::BotRequest;
use crate::store::StoreError;

/// The usual priority: bots that were requested before the probe, or are more urgent, go first.
const PRIORITY: i64 = 100;

/// Why a pool is not probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("there is no such pool")]
    NotFound,
    #[error("pool {0} is no longer in the configuration, so it gets no bots")]
    NotConfigured(String),
    #[error("pool {0} may have no slots: its max_slots is 0")]
    NoSlots(String),
    #[error("a probe of this pool has not ended yet")]
    Running(BotId),
    #[error("at most {limit} probes may run at once")]
    TooMany { running: i64, limit: i64 },
    #[error(transparent)]
    Placement(PlacementError),
}

impl From<StoreError> for ProbeError {
    fn from(error: StoreError) -> Self {
        Self::Placement(error.into())
    }
}

impl Placement {
    /// Starts a probe of a pool, or puts it into the queue.
    pub async fn probe(&self, name: &str, queue_timeout: Duration) -> Result<Reserved, ProbeError> {
        let pools = self.context.store.pools().await?;
        let pool = pools.into_iter().find(|pool| pool.name == name).ok_or(ProbeError::NotFound)?;
        if !pool.is_configured() {
            return Err(ProbeError::NotConfigured(pool.name));
        }
        if pool.max_slots == 0 {
            return Err(ProbeError::NoSlots(pool.name));
        }
        self.admission.ensure_probe_user().await.map_err(|error| ProbeError::Placement(error.into()))?;
        let object = |value: Value| value.as_object().cloned().unwrap_or_default();
        let request = BotRequest {
            meeting: probe_meeting(pool.platform, &pool.name),
            bot_display_name: Some("Greenroom probe".to_owned()),
            priority: PRIORITY,
            queue_timeout_ms: i64::try_from(queue_timeout.as_millis()).unwrap_or(i64::MAX),
            given_requirements: None,
            requirements: None,
            config: object(json!({ "demo_ms": PROBE_MS })),
            metadata: object(json!({ "probe": true })),
            idempotency: None,
        };
        self.reserve_with(PROBE_USER, None, request, Some(pool.name.clone())).await.map_err(|error| match error {
            PlacementError::DuplicateBot(bot) => ProbeError::Running(bot),
            PlacementError::LimitReached { running, limit } => ProbeError::TooMany { running, limit },
            // It has left the configuration meanwhile.
            PlacementError::NoPool(_) => ProbeError::NotConfigured(pool.name),
            error => ProbeError::Placement(error),
        })
    }
}
