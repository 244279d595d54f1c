//! Bots whose slot was ended from outside: somebody stopped or removed the container, the machine was restarted. The agent
//! tells of it where it gets a signal and the time; where it does not, the provider shows a busy slot in which nothing runs.

use std::collections::HashMap;

use domain::{SlotName, SlotStatus};
use jiff::Timestamp;

use crate::deployment::Deployment;
use crate::providers::{Found, Provider};
use crate::store::{SlotRow, StoreError};

/// Ends the bots of a pool whose slots have not run for some time, and says how many. `rows` were read after the listing.
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
        // A listing may be incomplete; an answer about this one slot is not.
        ended += u64::from(deployment.end_if_interrupted(&row.name, bot, provider).await?);
    }
    Ok(ended)
}
