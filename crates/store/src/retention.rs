//! Deletes old bots with everything that belongs to them. Old bots are found by their ids, which sort by the time of
//! their creation, so that the end of a bot costs no index. A reader looks for them outside of the transaction that
//! deletes them: an end is final, so what it found stays true.

use domain::{BotId, EventId, UserId};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::bots::ENDED;
use super::sql::{Sql, args, database_time, sql};
use super::{Run, Store, StoreError, Tx};

/// How many rows of each table were deleted.
pub type PrunedRows = Vec<(&'static str, u64)>;

/// Some bots in the order of their ids, and those of them that can be deleted.
#[derive(Clone, Debug)]
pub struct BotScan {
    /// The last bot that was read. `None` if there was none.
    pub last: Option<BotId>,
    pub prunable: Vec<BotId>,
    pub is_all_prunable: bool,
}

/// Some rows of a table in the order of its key, and the keys of those that can be deleted.
#[derive(Clone, Debug)]
pub struct Scan<K> {
    /// The last row that was read. `None` if there was none.
    pub last: Option<K>,
    pub prunable: Vec<K>,
}

/// Deletes the rows of a table whose column is in the array `$1` of ids.
macro_rules! delete_by_ids {
    ($name:literal, $table:literal, $column:literal) => {
        sql!(
            $name,
            sqlite: concat!("DELETE FROM ", $table, " WHERE ", $column, " IN (SELECT value FROM json_each($1))"),
            postgres: concat!(
                "DELETE FROM ", $table, " WHERE ", $column, " = ANY (ARRAY(SELECT json_array_elements_text($1)::uuid))"
            ),
        )
    };
}

pub(super) use delete_by_ids;

/// The rows of a bot, table by table. The bot itself is last, because the others refer to it.
static OF_BOTS: [(&str, &Sql); 8] = [
    (
        "heartbeats",
        sql!(
            "retention.heartbeats_of_bots",
            sqlite: "DELETE FROM heartbeats
                      WHERE connection_id IN (SELECT connection_id FROM sessions
                                               WHERE bot_id IN (SELECT value FROM json_each($1)))",
            postgres: "DELETE FROM heartbeats
                        WHERE connection_id = ANY (ARRAY(
                            SELECT connection_id FROM sessions
                             WHERE bot_id = ANY (ARRAY(SELECT json_array_elements_text($1)::uuid))))",
        ),
    ),
    ("sessions", delete_by_ids!("retention.sessions", "sessions", "bot_id")),
    ("commands", delete_by_ids!("retention.commands_of_bots", "commands", "bot_id")),
    ("transcript_segments", delete_by_ids!("retention.transcripts_of_bots", "transcript_segments", "bot_id")),
    ("bot_logs", delete_by_ids!("retention.bot_logs", "bot_logs", "bot_id")),
    ("screenshots", delete_by_ids!("retention.screenshots", "screenshots", "bot_id")),
    ("events", delete_by_ids!("retention.events", "events", "bot_id")),
    ("bots", delete_by_ids!("retention.bots", "bots", "id")),
];

/// Deletes at most `$2` rows of the bots in the array `$1`.
macro_rules! delete_some_of_bots {
    ($name:literal, $table:literal) => {
        sql!(
            $name,
            sqlite: concat!(
                "DELETE FROM ", $table, " WHERE id IN (SELECT id FROM ", $table, "
                  WHERE bot_id IN (SELECT value FROM json_each($1)) LIMIT $2)"
            ),
            postgres: concat!(
                "DELETE FROM ", $table, " WHERE id = ANY (ARRAY(SELECT id FROM ", $table, "
                  WHERE bot_id = ANY (ARRAY(SELECT json_array_elements_text($1)::uuid)) LIMIT $2))"
            ),
        )
    };
}

/// The tables of which one bot can have many rows.
static MANY_OF_BOTS: [(&str, &Sql); 3] = [
    ("transcript_segments", delete_some_of_bots!("retention.some_transcripts", "transcript_segments")),
    ("events", delete_some_of_bots!("retention.some_events", "events")),
    ("commands", delete_some_of_bots!("retention.some_commands", "commands")),
];

/// What a user can ask to delete while the bot itself stays. The commands contain configurations.
static DATA_OF_BOT: [&Sql; 5] = [
    delete_by_ids!("bot_data.transcript", "transcript_segments", "bot_id"),
    delete_by_ids!("bot_data.log", "bot_logs", "bot_id"),
    delete_by_ids!("bot_data.screenshot", "screenshots", "bot_id"),
    delete_by_ids!("bot_data.commands", "commands", "bot_id"),
    FAILURE_LOGS,
];

/// A failure is about a slot and stays, but its log is the output of the bot.
const FAILURE_LOGS: &Sql = sql!(
    "bot_data.failure_logs",
    sqlite: "UPDATE failures SET log = NULL
              WHERE bot_id IS NOT NULL AND bot_id IN (SELECT value FROM json_each($1))",
    postgres: "UPDATE failures SET log = NULL
                WHERE bot_id IS NOT NULL AND bot_id = ANY (ARRAY(SELECT json_array_elements_text($1)::uuid))",
);

/// Whether a bot can be deleted: its slot is cleared, so that nothing is written for it any more, and the keeper
/// `stats` has counted its events.
const IS_UNUSED: &str = "NOT EXISTS (SELECT 1 FROM slots WHERE slots.name = bots.slot AND slots.bot_id = bots.id)
     AND NOT EXISTS (SELECT 1 FROM events
                      WHERE events.bot_id = bots.id
                        AND (events.id > (SELECT last_event FROM stats_position)
                             OR events.id > (SELECT last_event FROM ended_counts_position)))";

pub(super) fn id_list<T: serde::Serialize>(ids: &[T]) -> Vec<Value> {
    ids.iter().map(|id| json!(id)).collect()
}

impl BotScan {
    fn read(rows: &[super::sql::Row]) -> Result<Self, StoreError> {
        let mut scan = Self { last: None, prunable: Vec::new(), is_all_prunable: true };
        for row in rows {
            let id = BotId(row.id("id")?);
            scan.last = Some(id);
            if row.int("is_prunable")? == 1 {
                scan.prunable.push(id);
            } else {
                scan.is_all_prunable = false;
            }
        }
        Ok(scan)
    }
}

/// The lowest id that a bot can have which was created at this time.
pub fn first_id_at(time: Timestamp) -> BotId {
    let milliseconds = u128::try_from(time.as_millisecond()).unwrap_or(0);
    BotId(Uuid::from_u128(milliseconds << 80))
}

impl Store {
    /// The time of the database's clock.
    pub async fn database_time(&self) -> Result<Timestamp, StoreError> {
        let sql = sql!(
            "retention.time",
            sqlite: concat!("SELECT ", database_time!(sqlite), " AS now"),
            postgres: concat!("SELECT ", database_time!(postgres), " AS now"),
        );
        let row = self.reader().first(sql, vec![]).await?;
        row.ok_or_else(|| StoreError::internal("retention.time", "the database returned no time"))?.time("now")
    }

    /// Bots after the given one that were created before a time, the oldest first. Those that ended before this time
    /// can be deleted.
    pub async fn scan_old_bots(&self, after: BotId, before: Timestamp, limit: i64) -> Result<BotScan, StoreError> {
        let scan = sql!(
            "retention.scan_bots",
            "SELECT id,
                    CAST(CASE WHEN status IN (",
            ENDED,
            ") AND end_time < $3 AND ",
            IS_UNUSED,
            " THEN 1 ELSE 0 END AS BIGINT) AS is_prunable
               FROM bots WHERE id > $1 AND id < $2 ORDER BY id LIMIT $4"
        );
        BotScan::read(&self.reader().all(scan, args![after, first_id_at(before), before, limit]).await?)
    }

    /// Bots of a user after the given one, the oldest first. Those that have ended can be deleted.
    pub async fn scan_bots_of(&self, user: UserId, after: BotId, limit: i64) -> Result<BotScan, StoreError> {
        let scan = sql!(
            "retention.scan_bots_of_user",
            "SELECT id,
                    CAST(CASE WHEN status IN (",
            ENDED,
            ") AND ",
            IS_UNUSED,
            " THEN 1 ELSE 0 END AS BIGINT) AS is_prunable
               FROM bots WHERE user_id = $1 AND id > $2 ORDER BY id LIMIT $3"
        );
        BotScan::read(&self.reader().all(scan, args![user, after, limit]).await?)
    }

    /// Whether ended bots have more rows than one transaction is to delete, in the tables of which a bot can have many.
    pub async fn have_many_rows(&self, bots: &[BotId], most: i64) -> Result<bool, StoreError> {
        macro_rules! count {
            ($list:literal) => {
                concat!(
                    "SELECT (SELECT count(*) FROM (SELECT 1 FROM transcript_segments WHERE bot_id ",
                    $list,
                    " LIMIT $2) AS a)
                          + (SELECT count(*) FROM (SELECT 1 FROM events WHERE bot_id ",
                    $list,
                    " LIMIT $2) AS b)
                          + (SELECT count(*) FROM (SELECT 1 FROM commands WHERE bot_id ",
                    $list,
                    " LIMIT $2) AS c) AS count"
                )
            };
        }
        let count = sql!(
            "retention.count_rows",
            sqlite: count!("IN (SELECT value FROM json_each($1))"),
            postgres: count!("= ANY (ARRAY(SELECT json_array_elements_text($1)::uuid))"),
        );
        let row = self.reader().first(count, args![id_list(bots), most]).await?;
        Ok(row.map_or(Ok(0), |row| row.int("count"))? >= most)
    }

    /// Deletes some rows of ended bots from the tables of which a bot can have many. The bots are to be deleted too.
    /// `is_erased` as for [`Store::erase_bots`].
    pub async fn prune_rows_of_bots(
        &self,
        bots: &[BotId],
        limit: i64,
        is_erased: bool,
    ) -> Result<PrunedRows, StoreError> {
        let mut tx = self.begin().await?;
        if !is_erased {
            tx.note_pruned_events(bots).await?;
        }
        let mut pruned = Vec::with_capacity(MANY_OF_BOTS.len());
        for (table, sql) in MANY_OF_BOTS {
            pruned.push((table, tx.count(sql, args![id_list(bots), limit]).await?));
        }
        tx.commit().await?;
        Ok(pruned)
    }

    /// Deletes some segments of an ended bot. Returns how many.
    pub async fn prune_transcript_of(&self, bot: BotId, limit: i64) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let (_, delete) = MANY_OF_BOTS[0];
        let deleted = tx.count(delete, args![id_list(&[bot]), limit]).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    /// Deletes ended bots with everything that belongs to them. A stream of their user cannot resume before their
    /// events any more.
    pub async fn prune_bots(&self, bots: &[BotId]) -> Result<PrunedRows, StoreError> {
        let mut tx = self.begin().await?;
        tx.note_pruned_events(bots).await?;
        let pruned = tx.delete_bots(bots).await?;
        tx.commit().await?;
        Ok(pruned)
    }

    /// Deletes ended bots of a deleted user, who has no streams any more. The output of the bots in failures is
    /// deleted too.
    pub async fn erase_bots(&self, bots: &[BotId]) -> Result<PrunedRows, StoreError> {
        let mut tx = self.begin().await?;
        tx.run(FAILURE_LOGS, args![id_list(bots)]).await?;
        let pruned = tx.delete_bots(bots).await?;
        tx.commit().await?;
        Ok(pruned)
    }

    /// The last event that was deleted. A stream that continues before it would miss events.
    pub async fn pruned_events(&self) -> Result<EventId, StoreError> {
        let row = self.reader().first(sql!("retention.pruned", "SELECT last_event FROM pruned_events"), vec![]).await?;
        row.map_or(Ok(EventId(0)), |row| row.int("last_event").map(EventId))
    }

    /// Segments after the given one that arrived before a time. Those whose bot ended before this time can be deleted.
    pub async fn scan_transcripts(&self, after: i64, before: Timestamp, limit: i64) -> Result<Scan<i64>, StoreError> {
        let scan = sql!(
            "retention.scan_transcripts",
            "SELECT id, created_at,
                    CAST(CASE WHEN EXISTS (SELECT 1 FROM bots
                                            WHERE bots.id = transcript_segments.bot_id
                                              AND (bots.status NOT IN (",
            ENDED,
            ") OR bots.end_time >= $2)) THEN 0 ELSE 1 END AS BIGINT) AS is_prunable
               FROM transcript_segments WHERE id > $1 ORDER BY id LIMIT $3"
        );
        let mut scan_of = Scan { last: None, prunable: Vec::new() };
        for row in &self.reader().all(scan, args![after, before, limit]).await? {
            // A later segment belongs to a bot that ended later.
            if row.time("created_at")? >= before {
                break;
            }
            let id = row.int("id")?;
            scan_of.last = Some(id);
            if row.int("is_prunable")? == 1 {
                scan_of.prunable.push(id);
            }
        }
        Ok(scan_of)
    }

    pub async fn prune_transcripts(&self, segments: &[i64]) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let delete = sql!(
            "retention.transcripts",
            sqlite: "DELETE FROM transcript_segments WHERE id IN (SELECT value FROM json_each($1))",
            postgres: "DELETE FROM transcript_segments
                        WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1)::bigint))",
        );
        let deleted = tx.count(delete, args![id_list(segments)]).await?;
        tx.commit().await?;
        Ok(deleted)
    }
}

impl Tx {
    /// Deletes the transcript, log, screenshot, commands, configuration and metadata of an ended bot, which the caller
    /// has locked. The error of the bot keeps its first line: the others may be its output.
    pub async fn delete_bot_data(&mut self, bot: BotId, error: Option<&str>, now: Timestamp) -> Result<(), StoreError> {
        for sql in DATA_OF_BOT {
            self.run(sql, args![id_list(&[bot])]).await?;
        }
        self.run(
            sql!(
                "bot_data.delete",
                sqlite: "UPDATE bots SET config = '{}', metadata = '{}', error = $2, data_deleted_at = $3, updated_at = $3
                          WHERE id = $1",
                postgres: "UPDATE bots SET config = '{}', metadata = '{}', error = $2, data_deleted_at = $3,
                                  updated_at = $3
                            WHERE id = $1",
            ),
            args![bot, error, now],
        )
        .await
    }

    async fn delete_bots(&mut self, bots: &[BotId]) -> Result<PrunedRows, StoreError> {
        let mut pruned = Vec::with_capacity(OF_BOTS.len());
        for (table, sql) in OF_BOTS {
            pruned.push((table, self.count(sql, args![id_list(bots)]).await?));
        }
        Ok(pruned)
    }

    async fn note_pruned_events(&mut self, bots: &[BotId]) -> Result<(), StoreError> {
        let newest = self
            .first(
                sql!(
                    "retention.newest_event",
                    sqlite: "SELECT coalesce(max(id), 0) AS id FROM events
                              WHERE bot_id IN (SELECT value FROM json_each($1))",
                    postgres: "SELECT coalesce(max(id), 0) AS id FROM events
                                WHERE bot_id = ANY (ARRAY(SELECT json_array_elements_text($1)::uuid))",
                ),
                args![id_list(bots)],
            )
            .await?
            .map_or(Ok(0), |row| row.int("id"))?;
        self.run(
            sql!("retention.note_pruned", "UPDATE pruned_events SET last_event = $1 WHERE last_event < $1"),
            args![newest],
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_bots_sort_by_the_time_of_their_creation() {
        let time = |second| Timestamp::from_second(second).unwrap_or_default();
        let id = |second: u64| BotId(Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, second, 0)));
        assert!(id(1_000) < first_id_at(time(1_001)) && first_id_at(time(1_001)) < id(1_001));
    }
}
