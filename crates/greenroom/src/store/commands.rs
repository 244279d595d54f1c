//! Commands to running bots: rows until they are acknowledged, so that none is lost on the way.

use domain::{Action, BotId, CommandId};
use jiff::Timestamp;
use serde_json::Value;

use super::sql::{Row, args, sql};
use super::{Run, Store, StoreError, Tx};

#[derive(Clone, Debug, PartialEq)]
pub struct CommandRow {
    pub id: CommandId,
    pub action: Action,
    pub payload: Value,
}

fn command(row: &Row) -> Result<CommandRow, StoreError> {
    Ok(CommandRow { id: CommandId(row.id("id")?), action: row.word("action")?, payload: row.json("payload")? })
}

impl Store {
    /// What the bot has not acknowledged yet, oldest first.
    pub async fn open_commands(&self, bot: BotId) -> Result<Vec<CommandRow>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "commands.open",
                    "SELECT id, action, payload FROM commands WHERE bot_id = $1 AND acked_at IS NULL ORDER BY id"
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

    /// Marks a command of this bot as heard. Its action when it was open, `None` when there was nothing to do.
    pub async fn acknowledge(
        &mut self,
        bot: BotId,
        id: CommandId,
        now: Timestamp,
    ) -> Result<Option<Action>, StoreError> {
        self.first(
            sql!(
                "commands.acknowledge",
                "UPDATE commands SET acked_at = $3 WHERE id = $1 AND bot_id = $2 AND acked_at IS NULL RETURNING action"
            ),
            args![id, bot, now],
        )
        .await?
        .map(|row| row.word("action"))
        .transpose()
    }
}
