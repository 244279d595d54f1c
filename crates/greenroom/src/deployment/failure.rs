//! This module records a slot's failure together with the last lines of the slot's log. It does so before the slot is
//! stopped or deleted, because both delete the log.

use std::time::Duration;

use domain::BotId;

use super::{Deployment, verify};
use crate::providers::ProviderError;
use crate::store::{FailureRow, SlotRow};

/// The longest wait for a log.
const LONGEST_INSPECT: Duration = Duration::from_secs(10);

impl Deployment {
    /// Records a failure of a slot, with or without a bot. If it cannot be stored, this process logs it.
    pub(crate) async fn keep_failure(&self, slot: &SlotRow, bot: Option<BotId>, message: &str) {
        if !self.is_kept(slot, bot, message).await {
            let log = self.slot_log(slot).await.ok().flatten();
            self.write_failure(slot, bot, message, log).await;
        }
    }

    /// Does the same, but records nothing and returns false while the provider is unavailable: it waits for the log.
    pub(super) async fn keep_failure_with_log(&self, slot: &SlotRow, bot: Option<BotId>, message: &str) -> bool {
        if self.is_kept(slot, bot, message).await {
            return true;
        }
        let log = match self.slot_log(slot).await {
            Err(error) if error.is_unavailable => {
                self.note_unavailable(&slot.pool, &error);
                return false;
            }
            log => log.ok().flatten(),
        };
        self.write_failure(slot, bot, message, log).await;
        true
    }

    /// Whether the latest failure of the slot is the same one. A failure that repeats is stored once.
    pub(super) async fn is_kept(&self, slot: &SlotRow, bot: Option<BotId>, message: &str) -> bool {
        let is_known = |known: &FailureRow| known.message == message && known.bot_id == bot;
        self.0.store.failures_in(&slot.name).await.is_ok_and(|known| known.first().is_some_and(is_known))
    }

    pub(super) async fn slot_log(&self, slot: &SlotRow) -> Result<Option<String>, ProviderError> {
        let Some(provider) = self.provider(&slot.pool) else { return Ok(None) };
        let timeout = self.0.timeouts.inspect.min(LONGEST_INSPECT);
        let log = verify::within(timeout, "the log request", provider.last_lines(&slot.name)).await;
        log.inspect_err(|error| tracing::warn!(slot = %slot.name, error = error.message, "slot log not read"))
    }

    pub(super) async fn write_failure(&self, slot: &SlotRow, bot: Option<BotId>, message: &str, log: Option<String>) {
        let at = self.0.clock.now();
        let failure = FailureRow { slot: slot.name.clone(), bot_id: bot, at, message: message.to_owned(), log };
        if let Err(error) = self.0.store.keep_failure(&failure).await {
            tracing::warn!(slot = %slot.name, %error, "slot failure not stored");
        }
    }
}
