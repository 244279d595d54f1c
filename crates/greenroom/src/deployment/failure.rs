//! What went wrong in a slot, kept with the last lines of what ran there, before anything is done about it: stopping or
//! deleting a slot takes its log along.

use std::time::Duration;

use domain::BotId;

use super::{Deployment, prove};
use crate::store::{FailureRow, SlotRow};

/// Nobody waits longer for a log.
const LONGEST_LOOK: Duration = Duration::from_secs(10);

impl Deployment {
    /// Keeps what went wrong in a slot, for this bot or for none. What cannot be kept is in the log of this process.
    pub(crate) async fn keep_failure(&self, slot: &SlotRow, bot: Option<BotId>, words: &str) {
        let Self(inner) = self;
        let is_known = |known: &FailureRow| known.words == words && known.bot_id == bot;
        // What goes wrong again and again in the same way is kept once.
        if inner.store.failures_in(&slot.name).await.is_ok_and(|known| known.first().is_some_and(is_known)) {
            return;
        }
        let log = match self.provider(&slot.pool) {
            Some(provider) => {
                let patience = inner.patience.look.min(LONGEST_LOOK);
                prove::within(patience, "was asked for a log", provider.last_lines(&slot.name)).await
            }
            None => Ok(None),
        };
        let log = log.unwrap_or_else(|words| {
            tracing::warn!(slot = %slot.name, error = words, "the log of a slot in which something went wrong cannot be had");
            None
        });
        let at = inner.lifecycle.clock.now();
        let failure = FailureRow { slot: slot.name.clone(), bot_id: bot, at, words: words.to_owned(), log };
        if let Err(error) = inner.store.keep_failure(&failure).await {
            tracing::warn!(slot = %slot.name, %error, "what went wrong in a slot could not be kept");
        }
    }
}
