//! The failures in slots, with the provider's error and the last lines of output. With them an operator can explain a
//! failure a day later, when the slot is gone.

use domain::{BotId, SlotName};
use jiff::Timestamp;

use super::record::record;
use super::sql::{args, sql};
use super::{Run, Store, StoreError};

/// How many failures of each slot are stored.
const KEPT: i64 = 20;
/// A longer message is cut at its end.
const LONGEST_MESSAGE: usize = 4_000;

record! {
    /// A failure in a slot.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct FailureRow, columns failure_columns, read failure {
        pub slot: SlotName,
        /// The bot that was affected.
        pub bot_id: Option<BotId>,
        pub at: Timestamp,
        pub message: String,
        /// The last lines of the slot's output.
        pub log: Option<String>,
    }
}

impl Store {
    /// Stores a failure, and deletes old failures of the same slot.
    pub async fn keep_failure(&self, failure: &FailureRow) -> Result<(), StoreError> {
        let FailureRow { slot, bot_id, at, message, log } = failure;
        let message: String = message.chars().take(LONGEST_MESSAGE).collect();
        let mut tx = self.begin().await?;
        tx.run(
            sql!(
                "failures.keep",
                // The log is the output of the bot, and its user may have deleted that.
                "INSERT INTO failures (slot, bot_id, at, message, log)
                 VALUES ($1, $2, $3, $4,
                         CASE WHEN NOT EXISTS (SELECT 1 FROM bots WHERE id = $2 AND data_deleted_at IS NOT NULL)
                              THEN $5 END)
                 ON CONFLICT (slot, at) DO NOTHING"
            ),
            args![slot, *bot_id, *at, message, log.clone()],
        )
        .await?;
        tx.run(
            sql!(
                "failures.forget",
                "DELETE FROM failures WHERE slot = $1 AND at <
                     (SELECT at FROM failures WHERE slot = $1 ORDER BY at DESC LIMIT 1 OFFSET $2)"
            ),
            args![slot, KEPT - 1],
        )
        .await?;
        tx.commit().await
    }

    /// The failures in a slot, the latest first.
    pub async fn failures_in(&self, slot: &SlotName) -> Result<Vec<FailureRow>, StoreError> {
        let sql =
            sql!("failures.of_slot", "SELECT ", failure_columns!(), " FROM failures WHERE slot = $1 ORDER BY at DESC");
        self.reader().all(sql, args![slot]).await?.iter().map(failure).collect()
    }

    /// The failures of a bot, the latest first.
    pub async fn failures_of(&self, bot: BotId) -> Result<Vec<FailureRow>, StoreError> {
        let sql =
            sql!("failures.of_bot", "SELECT ", failure_columns!(), " FROM failures WHERE bot_id = $1 ORDER BY at DESC");
        self.reader().all(sql, args![bot]).await?.iter().map(failure).collect()
    }
}
