//! The last screenshot of each bot. Each bot has one row, which is always replaced as a whole. The row stays when the
//! bot has ended.

use domain::{BotId, ConnectionId, ImageKind};
use jiff::Timestamp;

use super::sql::{args, sql};
use super::{Run, Store, StoreError, Tx};

/// An image that a bot has sent as evidence.
#[derive(Clone, PartialEq, Eq)]
pub struct Screenshot {
    pub kind: ImageKind,
    pub image: Vec<u8>,
}

impl std::fmt::Debug for Screenshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Screenshot({}, {} bytes)", self.kind, self.image.len())
    }
}

impl Store {
    /// The stored screenshot of a bot. `None` if none was ever stored.
    pub async fn screenshot(&self, bot: BotId) -> Result<Option<Screenshot>, StoreError> {
        let sql = sql!("screenshots.read", "SELECT content_type, image FROM screenshots WHERE bot_id = $1");
        let row = self.reader().first(sql, args![bot]).await?;
        row.map(|row| Ok(Screenshot { kind: row.word("content_type")?, image: row.bytes("image")? })).transpose()
    }
}

impl Tx {
    /// Replaces a bot's screenshot.
    pub async fn replace_screenshot(
        &mut self,
        bot: BotId,
        connection: ConnectionId,
        screenshot: Screenshot,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.run(
            sql!(
                "screenshots.replace",
                "INSERT INTO screenshots (bot_id, connection_id, content_type, image, at)
                 VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT (bot_id) DO UPDATE
                     SET connection_id = excluded.connection_id, content_type = excluded.content_type,
                         image = excluded.image, at = excluded.at"
            ),
            args![bot, connection, screenshot.kind.as_str(), screenshot.image, now],
        )
        .await
    }

    /// Whether the stored screenshot is this one, sent under this connection.
    pub async fn has_screenshot(
        &mut self,
        bot: BotId,
        connection: ConnectionId,
        screenshot: Screenshot,
    ) -> Result<bool, StoreError> {
        let sql = sql!(
            "screenshots.exists",
            "SELECT 1 AS found
               FROM screenshots
              WHERE bot_id = $1 AND connection_id = $2 AND content_type = $3 AND image = $4"
        );
        let found = self.first(sql, args![bot, connection, screenshot.kind.as_str(), screenshot.image]).await?;
        Ok(found.is_some())
    }
}
