//! The commands to running bots. A command stays a row until the bot acknowledges it, so that no command is lost.

use domain::{Action, BotId, CommandId};
use jiff::Timestamp;
use serde_json::Value;

use super::record::record;
use super::sql::{args, sql};
use super::{Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct CommandRow, columns command_columns, read command {
        pub id: CommandId,
        pub action: Action,
        pub payload: Value,
    }
}

impl Store {
    /// The commands that the bot has not acknowledged yet, oldest first.
    pub async fn open_commands(&self, bot: BotId) -> Result<Vec<CommandRow>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "commands.open",
                    "SELECT ",
                    command_columns!(),
                    " FROM commands WHERE bot_id = $1 AND acked_at IS NULL ORDER BY id"
                ),
                args![bot],
            )
            .await?
            .iter()
            .map(command)
            .collect()
    }
}

impl Tx {
    pub async fn insert_command(&mut self, bot: BotId, command: &CommandRow, now: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!(
                "commands.insert",
                "INSERT INTO commands (id, bot_id, action, payload, created_at) VALUES ($1, $2, $3, $4, $5)"
            ),
            args![command.id, bot, command.action.as_str(), &command.payload, now],
        )
        .await
    }

    /// Marks commands of this bot as acknowledged, and returns the actions of those that were open.
    pub async fn acknowledge(
        &mut self,
        bot: BotId,
        ids: &[CommandId],
        now: Timestamp,
    ) -> Result<Vec<Action>, StoreError> {
        let ids = serde_json::json!(ids);
        self.all(
            sql!(
                "commands.acknowledge",
                sqlite: "UPDATE commands SET acked_at = $2
                          WHERE bot_id = $1 AND acked_at IS NULL AND id IN (SELECT value FROM json_each($3))
                         RETURNING action",
                postgres: "UPDATE commands SET acked_at = $2
                            WHERE bot_id = $1 AND acked_at IS NULL
                              AND id IN (SELECT json_array_elements_text($3)::uuid)
                           RETURNING action",
            ),
            args![bot, now, &ids],
        )
        .await?
        .iter()
        .map(|row| row.word("action"))
        .collect()
    }

    /// Withdraws the open commands of one kind, because a newer command replaces them.
    pub async fn supersede(&mut self, bot: BotId, action: Action) -> Result<(), StoreError> {
        self.run(
            sql!("commands.supersede", "DELETE FROM commands WHERE bot_id = $1 AND action = $2 AND acked_at IS NULL"),
            args![bot, action.as_str()],
        )
        .await
    }
}
