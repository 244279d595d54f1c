//! This module ends a bot that had begun and whose process no longer runs. Its slot must have been stopped from
//! outside, because an agent reports the end of its bot before the agent itself ends.

use domain::lifecycle::Overdue;
use domain::{BotId, SlotName};

use super::{Deployment, verify};
use crate::providers::Provider;
use crate::store::StoreError;

impl Deployment {
    /// Ends the bot if nothing runs in its slot. False while something runs there, where the provider restarts slots by
    /// itself, and where the state is unknown.
    pub(crate) async fn end_if_interrupted(
        &self,
        slot: &SlotName,
        bot: BotId,
        provider: &dyn Provider,
    ) -> Result<bool, StoreError> {
        if provider.restarts_slots() {
            return Ok(false);
        }
        let state = match verify::within(self.0.timeouts.inspect, "the inspection", provider.inspect(slot)).await {
            Ok(Some(found)) if !found.running => found.state,
            Ok(None) => "the provider no longer has it".to_owned(),
            Ok(Some(_)) | Err(_) => return Ok(false),
        };
        let error = format!("slot {slot} no longer runs, and Greenroom did not stop it: {state}");
        let is_ended = self.give_up(bot, Overdue::Interrupted, Some(error)).await?;
        if is_ended {
            tracing::warn!(%bot, %slot, state, "bot interrupted");
        }
        Ok(is_ended)
    }
}
