//! This module stores the last screenshot of a bot, as evidence of what the bot saw. Each call replaces the screenshot
//! that was sent before.

use super::callbacks::{Caller, has_started};
use super::{Lifecycle, LifecycleError, refuse_ended};
use crate::store::Screenshot;

impl Lifecycle {
    /// Stores the screenshot of a bot.
    pub async fn keep_screenshot(&self, caller: Caller, screenshot: Screenshot) -> Result<(), LifecycleError> {
        let mut tx = self.store.begin().await?;
        let bot = self.held(&mut tx, caller).await?;
        if bot.status.is_ended() {
            // The same screenshot is a repeat; another one is too late and is refused.
            let is_repeat = tx.has_screenshot(bot.id, caller.connection_id, screenshot).await?;
            return if is_repeat { Ok(()) } else { refuse_ended(&bot) };
        }
        has_started(&bot)?;
        tx.replace_screenshot(bot.id, caller.connection_id, screenshot, self.clock.now()).await?;
        Ok(tx.commit().await?)
    }
}
