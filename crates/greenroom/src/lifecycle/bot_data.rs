//! This module deletes the data of an ended bot on the request of its user. The bot itself stays, without the words of
//! the meeting and without anything that the user gave it.

use domain::{BotId, UserId};

use super::{Lifecycle, LifecycleError};

/// Where the bot's own output begins in an error: in a new line, or after these words.
const LAST_LINES: &str = "Last lines:";

/// How many segments of a transcript one transaction deletes.
const SEGMENTS_AT_ONCE: i64 = 500;

impl Lifecycle {
    /// Deletes the transcript, log, screenshot, commands, configuration and metadata of the user's bot. A repeated call
    /// changes nothing.
    pub async fn delete_data(&self, user: UserId, id: BotId) -> Result<(), LifecycleError> {
        let store = self.store.for_users();
        let bot = store.bot(id).await?.filter(|bot| bot.user_id == user).ok_or(LifecycleError::NotFound)?;
        if !bot.status.is_ended() {
            return Err(LifecycleError::InvalidTransition(bot.status));
        }
        // A long transcript must not stop the other writers for long.
        while store.prune_transcript_of(id, SEGMENTS_AT_ONCE).await? == SEGMENTS_AT_ONCE.unsigned_abs() {}
        let mut tx = store.begin().await?;
        let bot = tx.hold_bot(id).await?.ok_or(LifecycleError::NotFound)?;
        tx.delete_bot_data(id, bot.error.as_deref().map(without_output), self.clock.now()).await?;
        tx.commit().await?;
        tracing::info!(bot = %id, "bot data deleted");
        Ok(())
    }
}

/// An error without the lines that the bot printed. It is not empty, because a failed bot always has an error.
fn without_output(error: &str) -> &str {
    let first_line = error.lines().next().unwrap_or_default();
    let shortened = first_line.split(LAST_LINES).next().unwrap_or_default().trim_end();
    if shortened.is_empty() { "the data of the bot was deleted" } else { shortened }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_cause_and_loses_the_output_of_the_bot() {
        assert_eq!(without_output("exit code 3. Last lines:\nsecret"), "exit code 3.");
        assert_eq!(without_output("exit code 3"), "exit code 3");
        assert_eq!(without_output("Last lines:\nsecret"), "the data of the bot was deleted");
    }
}
