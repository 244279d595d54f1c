//! The figures of minutes and hours, and the events that they are made from. The position says which events are in the
//! figures. It changes in the transaction that adds them, so that each event counts once, also
//! when two replicas write.

use std::collections::BTreeMap;

use domain::event::{Kind, StartKind};
use domain::stats::Figures;
use domain::{BotId, EventId, Fault, ShownStatus, SlotName};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::bots::ENDED;
use super::record::record;
use super::sql::{args, sortable, sql, sql_over, words};
use super::{Run, Store, StoreError, Tx};

/// The time that one row of figures is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    Minute,
    Hour,
}

impl Resolution {
    pub const ALL: [Self; 2] = [Self::Minute, Self::Hour];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
        }
    }

    pub const fn seconds(self) -> i64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }

    /// The beginning of the minute or hour that a time belongs to.
    pub fn begin(self, time: Timestamp) -> Timestamp {
        let second = time.as_second();
        Timestamp::from_second(second - second.rem_euclid(self.seconds())).unwrap_or(Timestamp::MIN)
    }
}

record! {
    /// An event that counts: a bot was requested, got a slot, changed its status, or ended.
    #[derive(Clone, Debug, PartialEq)]
    pub struct CountedEvent, columns event_columns, read counted_event {
        pub bot: BotId = bot_id "events.bot_id",
        pub at: Timestamp = at "events.at",
        pub kind: Kind = kind "events.kind",
        pub to: Option<ShownStatus> = to_status "events.to_status",
        pub reason: Option<String> = reason "events.reason",
        pub start_kind: Option<StartKind> = start_kind "events.start_kind",
        /// Whether the bot had a slot before.
        pub had_slot: bool = had_slot "CAST(CASE WHEN events.kind = 'assigned'
                                                  AND EXISTS (SELECT 1 FROM events AS earlier
                                                               WHERE earlier.bot_id = events.bot_id
                                                                 AND earlier.id < events.id
                                                                 AND earlier.kind IN ('created', 'assigned')
                                                                 AND earlier.reason IS NOT NULL)
                                                 THEN 1 ELSE 0 END AS BIGINT)",
        /// The pool and the fault of the bot, where the event does not say which slot it is about.
        pub pool: Option<String> = pool "bots.pool",
        pub fault: Option<Fault> = fault "bots.fault",
    }
}

impl CountedEvent {
    /// The slot that the bot gets with this event.
    pub fn slot(&self) -> Option<SlotName> {
        self.reason.clone().filter(|_| matches!(self.kind, Kind::Created | Kind::Assigned)).map(SlotName::stored)
    }

    /// The pool of the slot that the bot gets, or has.
    pub fn pool(&self) -> Option<String> {
        self.slot().as_ref().and_then(SlotName::pool).map(str::to_owned).or_else(|| self.pool.clone())
    }
}

/// Figures to add, by the pool and the beginning of the minute. An empty name of a pool means all pools together.
pub type NewFigures = BTreeMap<(String, Timestamp), Figures>;

impl Store {
    /// The last event that is in the figures.
    pub async fn stats_position(&self) -> Result<EventId, StoreError> {
        let row = self.reader().first(sql!("stats.position", "SELECT last_event FROM stats_position"), vec![]).await?;
        row.ok_or_else(|| StoreError::internal("stats.position", "the table has no row"))?
            .int("last_event")
            .map(EventId)
    }

    /// The events that count, after one and up to another. They are read by their ids.
    pub async fn counted_events(&self, after: EventId, up_to: EventId) -> Result<Vec<CountedEvent>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "stats.events",
                    "SELECT ",
                    event_columns!(),
                    // A bot is looked up only for its end, and for an event that names no slot.
                    " FROM events LEFT JOIN bots
                           ON bots.id = CASE WHEN events.to_status IN (",
                    ENDED,
                    ") OR (events.kind <> ",
                    words!(Kind::StatusChanged),
                    " AND events.reason IS NULL) THEN events.bot_id END
                     WHERE events.id > $1 AND events.id <= $2
                       AND (events.to_status IS NOT NULL OR events.kind IN (",
                    words!(Kind::Created, Kind::Assigned),
                    "))
                     ORDER BY events.id"
                ),
                args![after.0, up_to.0],
            )
            .await?
            .iter()
            .map(counted_event)
            .collect()
    }

    /// The events that count of these bots, up to one, oldest first.
    pub async fn status_events_up_to(&self, bots: &[BotId], up_to: EventId) -> Result<Vec<CountedEvent>, StoreError> {
        let ids: Vec<Value> = bots.iter().map(|id| json!({ "id": id })).collect();
        self.reader()
            .all(
                sql_over!(
                    "stats.events_of_bots",
                    concat!(
                        "SELECT ",
                        event_columns!(),
                        " FROM events LEFT JOIN bots ON bots.id = events.bot_id JOIN"
                    ),
                    (id "UUID"),
                    "ON events.bot_id = input.id
                      WHERE events.id <= $2 AND events.to_status IS NOT NULL ORDER BY events.id"
                ),
                args![ids, up_to.0],
            )
            .await?
            .iter()
            .map(counted_event)
            .collect()
    }

    /// Adds the figures of the events after one and up to another. False if another process has done so.
    pub async fn add_event_figures(
        &self,
        (after, up_to): (EventId, EventId),
        figures: &NewFigures,
    ) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let moved = tx
            .first(
                sql!(
                    "stats.move_position",
                    "UPDATE stats_position SET last_event = $2 WHERE last_event = $1 RETURNING last_event"
                ),
                args![after.0, up_to.0],
            )
            .await?;
        if moved.is_none() {
            return Ok(false);
        }
        tx.add_figures(figures).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Adds the number of slots in a minute. False if the slots were counted in this minute before.
    pub async fn add_slot_sample(&self, minute: Timestamp, figures: &NewFigures) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        // A clock that is set back must not end the samples: any other minute than the last one counts.
        let is_new = tx
            .first(
                sql!(
                    "stats.note_sample",
                    "UPDATE stats_position SET sampled_at = $1
                      WHERE sampled_at IS NULL OR sampled_at <> $1 RETURNING last_event"
                ),
                args![minute],
            )
            .await?;
        if is_new.is_none() {
            return Ok(false);
        }
        tx.add_figures(figures).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The last minute in which the slots were counted.
    pub async fn last_slot_sample(&self) -> Result<Option<Timestamp>, StoreError> {
        let row =
            self.reader().first(sql!("stats.last_sample", "SELECT sampled_at FROM stats_position"), vec![]).await?;
        row.map_or(Ok(None), |row| row.maybe_time("sampled_at"))
    }

    /// Some figures of a pool from one time on and before another, oldest first.
    pub async fn figures(
        &self,
        resolution: Resolution,
        pool: &str,
        (from, to): (Timestamp, Timestamp),
        limit: i64,
    ) -> Result<Vec<(Timestamp, Figures)>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "stats.read",
                    "SELECT at, figures FROM stats
                      WHERE resolution = $1 AND pool = $2 AND at >= $3 AND at < $4 ORDER BY at LIMIT $5"
                ),
                args![resolution.as_str(), pool, from, to, limit],
            )
            .await?
            .iter()
            .map(|row| Ok((row.time("at")?, row.json("figures")?)))
            .collect()
    }

    /// Deletes some figures from before a time, the oldest first. Returns how many.
    pub async fn prune_figures(
        &self,
        resolution: Resolution,
        before: Timestamp,
        limit: i64,
    ) -> Result<usize, StoreError> {
        let mut tx = self.begin().await?;
        let deleted = tx
            .all(
                sql!(
                    "stats.prune",
                    "DELETE FROM stats
                      WHERE resolution = $1
                        AND (pool, at) IN (SELECT pool, at FROM stats
                                            WHERE resolution = $1 AND at < $2 ORDER BY at LIMIT $3)
                     RETURNING pool"
                ),
                args![resolution.as_str(), before, limit],
            )
            .await?;
        tx.commit().await?;
        Ok(deleted.len())
    }
}

impl Tx {
    /// Adds figures to those of their minutes and hours. The caller holds the row of the position, so that nobody else
    /// does so at the same time.
    async fn add_figures(&mut self, figures: &NewFigures) -> Result<(), StoreError> {
        let mut added = BTreeMap::<(Resolution, String, Timestamp), Figures>::new();
        for ((pool, at), figures) in figures {
            for resolution in Resolution::ALL {
                added.entry((resolution, pool.clone(), resolution.begin(*at))).or_default().add(figures);
            }
        }
        if added.is_empty() {
            return Ok(());
        }
        let keys: Vec<Value> = added.keys().map(key_columns).collect();
        let stored = self
            .all(
                sql_over!(
                    "stats.of_keys",
                    "SELECT stats.resolution, stats.pool, stats.at, stats.figures FROM",
                    (resolution "TEXT", pool "TEXT", at "TIMESTAMPTZ"),
                    "JOIN stats ON stats.resolution = input.resolution AND stats.pool = input.pool
                               AND stats.at = input.at"
                ),
                args![keys],
            )
            .await?;
        for row in &stored {
            let (resolution, pool, at) = (row.text("resolution")?, row.text("pool")?, row.time("at")?);
            let Some(resolution) = Resolution::ALL.into_iter().find(|known| known.as_str() == resolution) else {
                continue;
            };
            if let Some(sum) = added.get_mut(&(resolution, pool, at)) {
                sum.add(&row.json("figures")?);
            }
        }
        let rows: Vec<Value> = (added.into_iter())
            .map(|(row, figures)| {
                let mut row = key_columns(&row);
                row["figures"] = json!(figures);
                row
            })
            .collect();
        self.run(
            sql_over!(
                "stats.write",
                "INSERT INTO stats (resolution, pool, at, figures)
                 SELECT resolution, pool, at, figures FROM",
                (resolution "TEXT", pool "TEXT", at "TIMESTAMPTZ", figures "JSON"),
                // Without it, SQLite would parse `ON` as a part of the select.
                "WHERE true
                 ON CONFLICT (resolution, pool, at) DO UPDATE SET figures = excluded.figures"
            ),
            args![rows],
        )
        .await
    }
}

/// The columns that find a row.
fn key_columns((resolution, pool, at): &(Resolution, String, Timestamp)) -> Value {
    json!({"resolution": resolution.as_str(), "pool": pool, "at": sortable(*at)})
}
