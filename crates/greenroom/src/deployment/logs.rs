//! What a bot printed: asked of the provider while the bot has its slot, and kept before the slot is cleared.

use std::time::Duration;

use domain::BotId;

use super::{Deployment, verify};
use crate::store::{BotLog, BotRow, LogLine, PoolRow, SlotRow, StoreError};

/// How long a reader waits for the provider.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a slot is held up before it is cleared.
const KEEP_TIMEOUT: Duration = Duration::from_secs(3);
/// What the lines of the agent and of the launcher begin with: they are the operator's, not the bot's.
const NOT_THE_BOTS: [&str; 2] = ["greenroom-agent: ", "greenroom: "];

/// What stands before the last lines of a bot in its error.
const LAST_LINES: &str = "Last lines:";
const TOLD_LINES: usize = 5;

impl Deployment {
    /// The last lines of a bot: while it has a slot, what the provider has; otherwise what was kept.
    pub async fn log_of(&self, bot: &BotRow) -> Result<BotLog, StoreError> {
        let store = self.0.store.for_users();
        let kept = store.bot_log(bot.id).await?;
        if bot.status.is_ended() && kept.is_some() {
            return Ok(kept.unwrap_or_default());
        }
        if let Some(slot) = store.slot_of(bot.id).await?
            && let Some(pool) = self.pool(&slot.pool).await?
            && let Some(log) = self.provider_log(&slot, &pool, bot, READ_TIMEOUT).await
            && !log.lines.is_empty()
        {
            return Ok(log);
        }
        Ok(kept.unwrap_or_default())
    }

    /// Keeps what the provider has of a bot's log, if its agent has sent none: it was killed, or there is none.
    pub(super) async fn keep_log(&self, slot: &SlotRow, pool: &PoolRow, bot: BotId) {
        let store = &self.0.store;
        let kept = async {
            if store.has_bot_log(bot).await? {
                return Ok(());
            }
            let Some(row) = store.bot(bot).await? else { return Ok(()) };
            match self.provider_log(slot, pool, &row, KEEP_TIMEOUT).await {
                Some(log) if !log.lines.is_empty() => store.keep_provider_log(bot, &log, self.0.clock.now()).await,
                _ => Ok(()),
            }
        };
        if let Err(error) = kept.await {
            let error: StoreError = error;
            tracing::warn!(slot = %slot.name, %bot, %error, "bot log not kept");
        }
    }

    /// Adds the last lines of a bot that failed to its error, unless its agent did.
    pub(super) async fn tell_last_lines(&self, bot: &BotRow) -> Result<(), StoreError> {
        let error = bot.error.as_deref().unwrap_or_default();
        if error.contains(LAST_LINES) {
            return Ok(());
        }
        let Some(log) = self.0.store.bot_log(bot.id).await? else { return Ok(()) };
        let lines = log.last(TOLD_LINES).lines.into_iter();
        let lines: String =
            lines.map(|line| format!("\n{}", line.text.chars().take(500).collect::<String>())).collect();
        match lines.is_empty() {
            true => Ok(()),
            false => self.0.store.set_bot_error(bot.id, &format!("{error}. {LAST_LINES}{lines}")).await,
        }
    }

    /// What the provider has of this bot's lines; `None` when it does not answer.
    async fn provider_log(&self, slot: &SlotRow, pool: &PoolRow, bot: &BotRow, timeout: Duration) -> Option<BotLog> {
        // One that was assigned by hand has its own process elsewhere.
        let provider = self.provider(&slot.pool).filter(|_| bot.slot.as_ref() == Some(&slot.name))?;
        // Before the slot is started for it, what the provider has is an earlier bot's.
        let is_started = bot.has_session
            || self.0.store.clocks(bot.id).await.ok()?.is_some_and(|clocks| clocks.awaited_since.is_some());
        if !is_started {
            return None;
        }
        let lines = verify::within(timeout, "was asked for a log", provider.log(&slot.name)).await;
        let lines = lines.inspect_err(|error| tracing::debug!(slot = %slot.name, %error, "slot log not read")).ok()?;
        let connection = bot.connection_id.map(|connection| connection.to_string());
        Some(BotLog::bounded(lines_of_bot(lines, slot, pool, connection.as_deref()), false))
    }
}

/// The lines of the bot that has the slot. Those of an earlier one may be another user's: where a slot has served others
/// since its start, the line with which the agent begins a bot, or the lines' times, tell them apart. Lines that neither
/// tells apart are left out.
fn lines_of_bot(mut lines: Vec<LogLine>, slot: &SlotRow, pool: &PoolRow, connection: Option<&str>) -> Vec<LogLine> {
    let is_first = slot.token_number == 0;
    if !is_first || pool.recycle_after == 0 {
        let begins = |line: &LogLine| {
            line.text.starts_with(NOT_THE_BOTS[0])
                && connection.is_some_and(|connection| line.text.contains(connection))
        };
        if !is_first && let Some(begin) = lines.iter().position(begins) {
            lines.drain(..=begin);
        } else {
            lines.retain(|line| line.at.map_or(is_first, |at| at >= slot.status_since));
        }
    }
    lines.retain(|line| !NOT_THE_BOTS.iter().any(|prefix| line.text.starts_with(prefix)));
    lines
}
