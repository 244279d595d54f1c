//! This module stores the log of a bot, as its agent sends it. Each call replaces the log that was sent before.

use super::callbacks::Caller;
use super::{Lifecycle, LifecycleError, refuse_ended};
use crate::store::{Actor, BotLog, Kind, NewEvent};

/// The largest number of warnings in a bot's events.
const WARNINGS_MAX: usize = 5;

impl Lifecycle {
    /// Stores the last lines of a bot's log, and adds new warnings to its events.
    pub async fn keep_log(&self, caller: Caller, log: BotLog, warnings: Vec<String>) -> Result<(), LifecycleError> {
        let mut tx = self.store.begin().await?;
        let bot = self.held(&mut tx, caller).await?;
        if bot.status.is_ended() {
            // The same log is a repeat; another log is too late and is refused.
            let stored = tx.log_of_connection(bot.id, caller.connection_id).await?;
            return if stored.as_ref() == Some(&log) { Ok(()) } else { refuse_ended(&bot) };
        }
        let now = self.clock.now();
        tx.replace_bot_log(bot.id, caller.connection_id, &log, now).await?;
        if !warnings.is_empty() {
            let mut known = tx.warnings_of(bot.id).await?;
            for warning in warnings {
                if known.len() >= WARNINGS_MAX || known.contains(&warning) {
                    continue;
                }
                let event = NewEvent {
                    bot_id: bot.id,
                    user_id: bot.user_id,
                    kind: Kind::Warning,
                    from: None,
                    to: None,
                    reason: Some(warning.clone()),
                    actor: Actor::Bot,
                    start_kind: None,
                };
                tx.record(&event, now).await?;
                known.push(warning);
            }
        }
        Ok(tx.commit().await?)
    }
}
