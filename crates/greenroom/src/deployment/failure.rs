//! What went wrong in a slot, kept with the last lines of what ran there, before anything is done about it: stopping or
//! deleting a slot takes its log along.

use std::time::Duration;

use domain::BotId;

use super::{Deployment, verify};
use crate::providers::ProviderError;
use crate::store::{FailureRow, SlotRow};

/// Nobody waits longer for a log.
const LONGEST_INSPECT: Duration = Duration::from_secs(10);

impl Deployment {
    /// Keeps what went wrong in a slot, for this bot or for none. What cannot be kept is in the log of this process.
    pub(crate) async fn keep_failure(&self, slot: &SlotRow, bot: Option<BotId>, message: &str) {
        if !self.is_kept(slot, bot, message).await {
            let log = self.slot_log(slot).await.ok().flatten();
            self.write_failure(slot, bot, message, log).await;
        }
    }

    /// The same, but nothing is kept while the provider is away: its log is worth waiting for. False then.
    pub(super) async fn keep_failure_with_log(&self, slot: &SlotRow, bot: Option<BotId>, message: &str) -> bool {
        if self.is_kept(slot, bot, message).await {
            return true;
        }
        let log = match self.slot_log(slot).await {
            Err(error) if error.is_unavailable => {
                self.note_away(&slot.pool, &error);
                return false;
            }
            log => log.ok().flatten(),
        };
        self.write_failure(slot, bot, message, log).await;
        true
    }

    /// What goes wrong again and again in the same way is kept once.
    pub(super) async fn is_kept(&self, slot: &SlotRow, bot: Option<BotId>, message: &str) -> bool {
        let is_known = |known: &FailureRow| known.message == message && known.bot_id == bot;
        self.0.store.failures_in(&slot.name).await.is_ok_and(|known| known.first().is_some_and(is_known))
    }

    pub(super) async fn slot_log(&self, slot: &SlotRow) -> Result<Option<String>, ProviderError> {
        let Some(provider) = self.provider(&slot.pool) else { return Ok(None) };
        let patience = self.0.patience.inspect.min(LONGEST_INSPECT);
        let log = verify::within(patience, "was asked for a log", provider.last_lines(&slot.name)).await;
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
