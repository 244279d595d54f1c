//! The audit trail. Each event is written in the transaction of its change, so that neither exists without the other.

use std::collections::{HashMap, HashSet};

use domain::event::{Actor, Kind, StartKind};
use domain::{BotId, EventId, ShownStatus, UserId};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::bots::ENDED;
use super::record::record;
use super::sql::{Row, args, sql};
use super::{NewEvent, Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct EventRow, columns event_columns, read event {
        pub id: EventId,
        pub bot_id: BotId,
        pub user_id: UserId,
        pub at: Timestamp,
        pub kind: Kind,
        pub from: Option<ShownStatus> = from_status,
        pub to: Option<ShownStatus> = to_status,
        pub reason: Option<String>,
        pub actor: Actor,
        /// How the bot starts, if it got a slot with this event.
        pub start_kind: Option<StartKind>,
    }
}

/// When a bot came to a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusTime {
    pub bot: BotId,
    pub at: Timestamp,
    pub status: ShownStatus,
}

/// The facts about a bot that its events include.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BotOfEvent {
    pub metadata: Map<String, Value>,
    pub error: Option<String>,
}

impl Store {
    /// A bot's events, oldest first.
    pub async fn events_of_bot(&self, bot: BotId) -> Result<Vec<EventRow>, StoreError> {
        self.reader()
            .all(
                sql!("events.of_bot", "SELECT ", event_columns!(), " FROM events WHERE bot_id = $1 ORDER BY id"),
                args![bot],
            )
            .await?
            .iter()
            .map(event)
            .collect()
    }

    /// Some of a bot's events after the given one, oldest first.
    pub async fn events_of_bot_after(
        &self,
        bot: BotId,
        after: EventId,
        limit: i64,
    ) -> Result<Vec<EventRow>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "events.of_bot_after",
                    "SELECT ",
                    event_columns!(),
                    " FROM events WHERE bot_id = $1 AND id > $2 ORDER BY id LIMIT $3"
                ),
                args![bot, after.0, limit],
            )
            .await?
            .iter()
            .map(event)
            .collect()
    }

    /// The last events of a bot, oldest first.
    pub async fn last_events_of_bot(&self, bot: BotId, limit: i64) -> Result<Vec<EventRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql!(
                    "events.last_of_bot",
                    "SELECT ",
                    event_columns!(),
                    " FROM events WHERE bot_id = $1 ORDER BY id DESC LIMIT $2"
                ),
                args![bot, limit],
            )
            .await?;
        rows.iter().rev().map(event).collect()
    }

    /// When the last ended bots of a pool came to each of their statuses, without one bot. It reads only the newest
    /// bots of all pools, because an index by pool would cost every bot, so a pool without recent bots has none here.
    pub async fn status_times_of_pool(&self, pool: &str, without: BotId) -> Result<Vec<StatusTime>, StoreError> {
        const NEWEST_BOTS: i64 = 1_000;
        const BOTS_OF_POOL: i64 = 100;
        const EVENTS: i64 = 2_000;
        self.reader()
            .all(
                sql!(
                    "events.status_times_of_pool",
                    "SELECT bot_id, at, to_status FROM events
                      WHERE to_status IS NOT NULL AND bot_id IN (
                          SELECT id FROM (SELECT id, pool, status FROM bots ORDER BY id DESC LIMIT $3) AS newest_bots
                           WHERE pool = $1 AND id <> $2 AND status IN (",
                    ENDED,
                    ") ORDER BY id DESC LIMIT $4)
                      ORDER BY bot_id, id LIMIT $5"
                ),
                args![pool, without, NEWEST_BOTS, BOTS_OF_POOL, EVENTS],
            )
            .await?
            .iter()
            .map(|row| {
                Ok(StatusTime { bot: BotId(row.id("bot_id")?), at: row.time("at")?, status: row.word("to_status")? })
            })
            .collect()
    }

    /// A user's events after one and up to another, oldest first. It has no index, because every event would pay for
    /// it. It reads the trail in pages, and a client that resumes has usually missed few events.
    pub async fn events_of_user(
        &self,
        user: UserId,
        after: EventId,
        up_to: EventId,
        limit: i64,
    ) -> Result<Vec<EventRow>, StoreError> {
        const STRETCH: i64 = 20_000;
        let (mut from, mut found) = (after.0, Vec::<EventRow>::new());
        while from < up_to.0 && (found.len() as i64) < limit {
            let to = from.saturating_add(STRETCH).min(up_to.0);
            let rows = self
                .reader()
                .all(
                    sql!(
                        "events.of_user",
                        "SELECT ",
                        event_columns!(),
                        " FROM events WHERE user_id = $1 AND id > $2 AND id <= $3 ORDER BY id LIMIT $4"
                    ),
                    args![user, from, to, limit - found.len() as i64],
                )
                .await?;
            for row in &rows {
                found.push(event(row)?);
            }
            from = to;
        }
        Ok(found)
    }

    /// The facts that the events of these bots include: their metadata and their error.
    pub async fn bots_of_events(
        &self,
        events: impl Iterator<Item = &EventRow>,
    ) -> Result<HashMap<BotId, BotOfEvent>, StoreError> {
        let ids: HashSet<BotId> = events.map(|event| event.bot_id).collect();
        let ids: Vec<Value> = ids.into_iter().map(|id| json!(id.0)).collect();
        let sql = sql!(
            "events.bots",
            sqlite: "SELECT id, metadata, error FROM bots WHERE id IN (SELECT value FROM json_each($1))",
            postgres: "SELECT id, metadata, error FROM bots
                        WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1)::uuid))",
        );
        let rows = self.reader().all(sql, args![ids]).await?;
        let bot = |row: &Row| {
            let bot = BotOfEvent { metadata: row.json("metadata")?, error: row.maybe_text("error")? };
            Ok((BotId(row.id("id")?), bot))
        };
        rows.iter().map(bot).collect()
    }

    /// The events of all users after the given one, oldest first. On a shared database an earlier event may not be
    /// committed yet.
    pub async fn events_after(&self, after: EventId, limit: i64) -> Result<Vec<EventRow>, StoreError> {
        self.reader()
            .all(
                sql!("events.after", "SELECT ", event_columns!(), " FROM events WHERE id > $1 ORDER BY id LIMIT $2"),
                args![after.0, limit],
            )
            .await?
            .iter()
            .map(event)
            .collect()
    }

    /// The last event that was written, also if it was deleted since.
    pub async fn last_event(&self) -> Result<EventId, StoreError> {
        self.reader()
            .first(
                sql!(
                    "events.last",
                    sqlite: "SELECT max(coalesce((SELECT max(id) FROM events), 0), last_event) AS id FROM pruned_events",
                    postgres: "SELECT greatest((SELECT max(id) FROM events), last_event) AS id FROM pruned_events",
                ),
                vec![],
            )
            .await?
            .map_or(Ok(EventId(0)), |row| row.int("id").map(EventId))
    }

    /// The open transactions that have written an event or are about to. Only they can add an event with an id below a
    /// visible one: a transaction locks the table before it takes an id.
    pub async fn event_writers(&self) -> Result<HashSet<String>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "events.writers",
                    sqlite: "SELECT '' AS writer WHERE false",
                    postgres: "SELECT virtualtransaction AS writer FROM pg_locks
                                WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
                                  AND relation = 'events'::regclass
                                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                ),
                vec![],
            )
            .await?
            .iter()
            .map(|row| row.text("writer"))
            .collect()
    }
}

impl Tx {
    pub async fn record(&mut self, event: &NewEvent, now: Timestamp) -> Result<(), StoreError> {
        self.has_events = true;
        self.run(
            sql!(
                "events.insert",
                "INSERT INTO events (bot_id, user_id, at, kind, from_status, to_status, reason, actor, start_kind)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
            ),
            args![
                event.bot_id,
                event.user_id,
                now,
                event.kind.as_str(),
                event.from.map(ShownStatus::as_str),
                event.to.map(ShownStatus::as_str),
                event.reason.as_deref(),
                event.actor.as_str(),
                event.start_kind.map(StartKind::as_str)
            ],
        )
        .await
    }
}
