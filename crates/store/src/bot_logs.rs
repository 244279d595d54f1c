//! The last part of each bot's output. Each bot has one row, which is always replaced as a whole. A bot whose data was
//! deleted gets none again.

use domain::{BotId, ConnectionId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::sql::{args, sql};
use super::{Kind, Run, Store, StoreError, Tx};

/// How much text of a bot's log is stored, without line breaks.
const BYTES_MAX: usize = 64 * 1024;
const LINES_MAX: usize = 5_000;

/// A line of a bot's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When the bot printed it. `None` if the source of the line does not know.
    pub at: Option<Timestamp>,
    pub text: String,
}

/// The last lines of a bot's output, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BotLog {
    pub lines: Vec<LogLine>,
    /// Whether there were lines before these.
    pub truncated: bool,
}

impl BotLog {
    /// The part of these lines that can be stored: the last 64 KiB, without NUL, which no database stores.
    pub fn bounded(lines: Vec<LogLine>, truncated: bool) -> Self {
        let (mut bytes, mut kept) = (0, Vec::new());
        let all = lines.len();
        for mut line in lines.into_iter().rev() {
            line.text.retain(|c| c != '\0');
            if line.text.len() > BYTES_MAX {
                let cut = line.text.ceil_char_boundary(line.text.len() - BYTES_MAX);
                line.text.drain(..cut);
            }
            bytes += line.text.len();
            if bytes > BYTES_MAX || kept.len() == LINES_MAX {
                break;
            }
            kept.push(line);
        }
        kept.reverse();
        Self { truncated: truncated || kept.len() < all, lines: kept }
    }

    /// The last lines, at most this number.
    pub fn last(mut self, lines: usize) -> Self {
        let dropped = self.lines.len().saturating_sub(lines);
        self.lines.drain(..dropped);
        Self { truncated: self.truncated || dropped > 0, lines: self.lines }
    }
}

impl Store {
    /// The stored log of a bot. `None` if none was ever stored.
    pub async fn bot_log(&self, bot: BotId) -> Result<Option<BotLog>, StoreError> {
        let mut reader = self.reader();
        let row =
            reader.first(sql!("bot_logs.read", "SELECT lines, truncated FROM bot_logs WHERE bot_id = $1"), args![bot]);
        row.await?
            .map(|row| Ok(BotLog { lines: row.json("lines")?, truncated: row.int("truncated")? == 1 }))
            .transpose()
    }

    pub async fn has_bot_log(&self, bot: BotId) -> Result<bool, StoreError> {
        let sql = sql!("bot_logs.exists", "SELECT 1 AS found FROM bot_logs WHERE bot_id = $1");
        Ok(self.reader().first(sql, args![bot]).await?.is_some())
    }

    /// Sets a more detailed error of a failed bot.
    pub async fn set_bot_error(&self, bot: BotId, error: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let sql = sql!(
            "bots.set_error",
            "UPDATE bots SET error = $2 WHERE id = $1 AND status = 'failed' AND data_deleted_at IS NULL"
        );
        tx.run(sql, args![bot, error]).await?;
        tx.commit().await
    }

    /// Stores a log from the provider, unless the bot's agent has sent one.
    pub async fn keep_provider_log(&self, bot: BotId, log: &BotLog, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql!(
                "bot_logs.insert",
                sqlite: "INSERT INTO bot_logs (bot_id, connection_id, lines, truncated, updated_at)
                         SELECT id, NULL, $2, $3, $4 FROM bots WHERE id = $1 AND data_deleted_at IS NULL
                         ON CONFLICT (bot_id) DO NOTHING",
                // It waits for a transaction that deletes the data, and reads its result.
                postgres: "INSERT INTO bot_logs (bot_id, connection_id, lines, truncated, updated_at)
                           SELECT id, CAST(NULL AS UUID), $2, $3, $4 FROM bots
                            WHERE id = $1 AND data_deleted_at IS NULL FOR SHARE
                           ON CONFLICT (bot_id) DO NOTHING",
            ),
            args![bot, &json!(log.lines), i64::from(log.truncated), now],
        )
        .await?;
        tx.commit().await
    }
}

impl Tx {
    /// Replaces a bot's log with the one that its agent has sent.
    pub async fn replace_bot_log(
        &mut self,
        bot: BotId,
        connection: ConnectionId,
        log: &BotLog,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.run(
            sql!(
                "bot_logs.replace",
                "INSERT INTO bot_logs (bot_id, connection_id, lines, truncated, updated_at)
                 SELECT id, $2, $3, $4, $5 FROM bots WHERE id = $1 AND data_deleted_at IS NULL
                 ON CONFLICT (bot_id) DO UPDATE
                     SET connection_id = excluded.connection_id, lines = excluded.lines,
                         truncated = excluded.truncated, updated_at = excluded.updated_at"
            ),
            args![bot, connection, &json!(log.lines), i64::from(log.truncated), now],
        )
        .await
    }

    /// The log that was sent under this connection.
    pub async fn log_of_connection(
        &mut self,
        bot: BotId,
        connection: ConnectionId,
    ) -> Result<Option<BotLog>, StoreError> {
        let sql = sql!(
            "bot_logs.of_connection",
            "SELECT lines, truncated FROM bot_logs WHERE bot_id = $1 AND connection_id = $2"
        );
        self.first(sql, args![bot, connection])
            .await?
            .map(|row| Ok(BotLog { lines: row.json("lines")?, truncated: row.int("truncated")? == 1 }))
            .transpose()
    }

    /// The warnings in a bot's events.
    pub async fn warnings_of(&mut self, bot: BotId) -> Result<Vec<String>, StoreError> {
        let sql = sql!("events.warnings", "SELECT reason FROM events WHERE bot_id = $1 AND kind = $2");
        let rows = self.all(sql, args![bot, Kind::Warning.as_str()]).await?;
        rows.iter().map(|row| Ok(row.maybe_text("reason")?.unwrap_or_default())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> LogLine {
        LogLine { at: None, text: text.to_owned() }
    }

    #[test]
    fn the_last_64_kib_are_kept_without_nul() {
        let log = BotLog::bounded(vec![line("dropped"), line(&"x".repeat(BYTES_MAX - 2)), line("a\0b")], false);
        assert_eq!(log.lines.len(), 2);
        assert_eq!(log.lines[1].text, "ab");
        assert!(log.truncated);
        let long = BotLog::bounded(vec![line(&"é".repeat(BYTES_MAX))], false);
        assert_eq!(long.lines[0].text.len(), BYTES_MAX);
        let many = BotLog::bounded(vec![line(""); LINES_MAX + 1], false);
        assert_eq!((many.lines.len(), many.truncated), (LINES_MAX, true));
    }

    #[test]
    fn fewer_lines_than_there_are_is_truncated() {
        let log = BotLog { lines: vec![line("a"), line("b")], truncated: false };
        assert_eq!(log.clone().last(2), log);
        assert_eq!(log.last(1), BotLog { lines: vec![line("b")], truncated: true });
    }
}
