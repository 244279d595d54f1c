//! The sessions of bots, and their heartbeats. A session is one connection of a running bot.

use domain::{BotId, ConnectionId};
use jiff::Timestamp;

use super::record::record;
use super::sql::{args, sortable, sql, sql_over};
use super::{Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct SessionRow, columns session_columns, read session {
        pub connection_id: ConnectionId = connection_id "sessions.connection_id",
        pub container_id: Option<String>,
        pub started_at: Timestamp,
        pub joined_at: Option<Timestamp>,
        pub ended_at: Option<Timestamp>,
        pub last_heartbeat_at: Option<Timestamp> = last_heartbeat_at "heartbeats.at",
    }
}

/// The last heartbeat or callback under a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    pub connection_id: ConnectionId,
    pub at: Timestamp,
}

impl Store {
    /// A bot's sessions, oldest first.
    pub async fn sessions(&self, bot: BotId) -> Result<Vec<SessionRow>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "sessions.list",
                    "SELECT ",
                    session_columns!(),
                    " FROM sessions
                       LEFT JOIN heartbeats ON heartbeats.connection_id = sessions.connection_id
                      WHERE sessions.bot_id = $1 ORDER BY started_at, sessions.connection_id"
                ),
                args![bot],
            )
            .await?
            .iter()
            .map(session)
            .collect()
    }

    /// Writes the collected heartbeats in one statement. An older one never replaces a newer one.
    pub async fn write_heartbeats(&self, beats: &[Beat]) -> Result<(), StoreError> {
        if beats.is_empty() {
            return Ok(());
        }
        // In the order of the ids, so that two processes lock the rows in the same order.
        let mut beats = beats.to_vec();
        beats.sort_by_key(|beat| beat.connection_id);
        let rows: Vec<_> = beats
            .iter()
            .map(|beat| serde_json::json!({"connection_id": beat.connection_id, "at": sortable(beat.at)}))
            .collect();
        self.write_in_time(
            sql_over!(
                "heartbeats.write",
                "INSERT INTO heartbeats (connection_id, at) SELECT connection_id, at FROM",
                (connection_id "UUID", at "TIMESTAMPTZ"),
                // Without it, SQLite would parse `ON` as a part of the select.
                "WHERE true
                 ON CONFLICT (connection_id) DO UPDATE SET at = excluded.at WHERE excluded.at > heartbeats.at"
            ),
            args![rows],
        )
        .await
        .map(drop)
    }
}

impl Tx {
    /// Makes the session of a connection. True if there was none.
    pub async fn make_session(
        &mut self,
        bot: BotId,
        connection: ConnectionId,
        container: Option<&str>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let made = self
            .first(
                sql!(
                    "sessions.make",
                    "INSERT INTO sessions (connection_id, bot_id, container_id, started_at) VALUES ($1, $2, $3, $4)
                     ON CONFLICT (connection_id) DO NOTHING RETURNING connection_id"
                ),
                args![connection, bot, container, now],
            )
            .await?;
        Ok(made.is_some())
    }

    pub async fn note_joined(&mut self, connection: ConnectionId, now: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!("sessions.joined", "UPDATE sessions SET joined_at = coalesce(joined_at, $2) WHERE connection_id = $1"),
            args![connection, now],
        )
        .await
    }

    /// Ends the open sessions of a bot: all of them, or all except one.
    pub async fn end_sessions(
        &mut self,
        bot: BotId,
        but: Option<ConnectionId>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.run(
            sql!(
                "sessions.end",
                "UPDATE sessions SET ended_at = $3
                  WHERE bot_id = $1 AND ended_at IS NULL AND ($2 IS NULL OR connection_id <> $2)"
            ),
            args![bot, but, now],
        )
        .await
    }
}
