//! This module ends bots whose slot was stopped from outside: an operator stopped or removed the container, or the
//! machine restarted. The agent reports this if it gets a signal and enough time. If it does not, the provider shows a
//! busy slot in which nothing runs.

use std::collections::HashMap;

use domain::{SlotName, SlotStatus};
use jiff::Timestamp;

use crate::deployment::Deployment;
use crate::providers::{Found, Provider};
use crate::store::{SlotRow, StoreError};

/// Ends the bots of a pool whose slots have not run for some time, and returns their number. `rows` must be read after
/// the listing.
pub async fn end_interrupted(
    deployment: &Deployment,
    provider: &dyn Provider,
    rows: &[SlotRow],
    listed: &HashMap<&SlotName, &Found>,
    settled: Timestamp,
) -> Result<u64, StoreError> {
    let mut ended = 0;
    for row in rows.iter().filter(|row| row.status == SlotStatus::Busy && row.status_since <= settled) {
        let Some(bot) = row.bot_id.filter(|_| !listed.get(&row.name).is_some_and(|found| found.running)) else {
            continue;
        };
        // A listing may be incomplete; a query for this one slot is not.
        ended += u64::from(deployment.end_if_interrupted(&row.name, bot, provider).await?);
    }
    Ok(ended)
}
