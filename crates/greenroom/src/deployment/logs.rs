//! This module reads a bot's log. While the bot has its slot, the log comes from the provider. Before the slot is
//! cleared, the log is stored, because clearing may delete it.

use std::time::Duration;

use domain::BotId;

use super::{Deployment, verify};
use crate::store::{BotLog, BotRow, LogLine, PoolRow, SlotRow, StoreError};

/// How long a reader waits for the provider.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long clearing a slot may wait for the log.
const KEEP_TIMEOUT: Duration = Duration::from_secs(3);
/// Prefixes of the lines that the agent and the launcher print. These lines are for the operator and are not part of
/// the bot's log.
const NOT_THE_BOTS: [&str; 2] = ["greenroom-agent: ", "greenroom: "];

/// The heading above a bot's last lines in its error.
pub const LAST_LINES: &str = "Last lines:";
const APPENDED_LINES: usize = 5;

impl Deployment {
    /// Returns the last lines of a bot: from the provider while the bot has a slot, otherwise from the store.
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

    /// Stores the provider's log of a bot if its agent has sent none: the agent was killed, or the slot has no agent.
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
            tracing::warn!(slot = %slot.name, %bot, %error, "bot log not stored");
        }
    }

    /// Adds the last lines of a failed bot to its error, unless its agent has done so.
    pub(super) async fn append_last_lines(&self, bot: &BotRow) -> Result<(), StoreError> {
        let error = bot.error.as_deref().unwrap_or_default();
        if error.contains(LAST_LINES) {
            return Ok(());
        }
        let Some(log) = self.0.store.bot_log(bot.id).await? else { return Ok(()) };
        let lines = log.last(APPENDED_LINES).lines.into_iter();
        let lines: String =
            lines.map(|line| format!("\n{}", line.text.chars().take(500).collect::<String>())).collect();
        match lines.is_empty() {
            true => Ok(()),
            false => self.0.store.set_bot_error(bot.id, &format!("{error}. {LAST_LINES}{lines}")).await,
        }
    }

    /// Returns this bot's lines from the provider; `None` when the provider does not answer.
    async fn provider_log(&self, slot: &SlotRow, pool: &PoolRow, bot: &BotRow, timeout: Duration) -> Option<BotLog> {
        // A bot that was assigned by hand runs its process elsewhere.
        let provider = self.provider(&slot.pool).filter(|_| bot.slot.as_ref() == Some(&slot.name))?;
        // Before the slot is started for this bot, the provider's log belongs to an earlier bot.
        let is_started = bot.has_session || {
            let clocks = self.0.store.bot_clocks(&[bot.id]).await.ok()?;
            clocks.iter().any(|(_, clocks)| clocks.awaited_since.is_some())
        };
        if !is_started {
            return None;
        }
        let lines = verify::within(timeout, "the log request", provider.log(&slot.name)).await;
        let lines = lines.inspect_err(|error| tracing::debug!(slot = %slot.name, %error, "slot log not read")).ok()?;
        let connection = bot.connection_id.map(|connection| connection.to_string());
        Some(BotLog::bounded(lines_of_bot(lines, slot, pool, connection.as_deref()), false))
    }
}

/// Returns the lines of the bot that has the slot. Lines of an earlier bot may belong to another user. Where a slot has
/// served other bots since its start, the agent's first line for a bot, or the times of the lines, separate the bots.
/// Lines that neither of these separates are left out.
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
