//! The transcript segments. Each has a digest of its content, so that a batch that is sent twice is stored once.

use domain::{BotId, ConnectionId};
use jiff::Timestamp;
use serde_json::json;

use super::record::record;
use super::sql::{args, rows, sql};
use super::{Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct SegmentRow, columns segment_columns, read segment {
        pub connection_id: ConnectionId,
        pub digest: String,
        pub start_time: f64,
        pub end_time: f64,
        pub text: String,
        pub speaker: Option<String>,
        pub language: Option<String>,
    }
}

record! {
    /// The position of a segment among those of its bot: by its times, then by its arrival.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct SegmentPosition, columns position_columns, read position {
        pub start_time: f64,
        pub end_time: f64,
        pub id: i64,
    }
}

impl SegmentPosition {
    /// Before all segments.
    pub const FIRST: Self = Self { start_time: f64::MIN, end_time: f64::MIN, id: i64::MIN };
}

impl Store {
    /// The size in bytes of each of a bot's segments after the given one, in the order of speech.
    pub async fn segment_sizes(
        &self,
        bot: BotId,
        after: SegmentPosition,
        limit: i64,
    ) -> Result<Vec<(SegmentPosition, i64)>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "transcript.sizes",
                    "SELECT ",
                    position_columns!(),
                    ", CAST(octet_length(text) + octet_length(coalesce(speaker, ''))
                                 + octet_length(coalesce(language, '')) AS BIGINT) AS bytes
                       FROM transcript_segments
                      WHERE bot_id = $1 AND (start_time, end_time, id) > ($2, $3, $4)
                      ORDER BY start_time, end_time, id LIMIT $5"
                ),
                args![bot, after.start_time, after.end_time, after.id, limit],
            )
            .await?
            .iter()
            .map(|row| Ok((position(row)?, row.int("bytes")?)))
            .collect()
    }

    /// A bot's segments after the given one, in the order of speech, at most this number.
    pub async fn transcript(
        &self,
        bot: BotId,
        after: SegmentPosition,
        limit: i64,
    ) -> Result<Vec<(SegmentPosition, SegmentRow)>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "transcript.list",
                    "SELECT id, ",
                    segment_columns!(),
                    " FROM transcript_segments
                      WHERE bot_id = $1 AND (start_time, end_time, id) > ($2, $3, $4)
                      ORDER BY start_time, end_time, id LIMIT $5"
                ),
                args![bot, after.start_time, after.end_time, after.id, limit],
            )
            .await?
            .iter()
            .map(|row| Ok((position(row)?, segment(row)?)))
            .collect()
    }
}

macro_rules! insert_segments {
    ($dialect:ident) => {
        concat!(
            "INSERT INTO transcript_segments
                    (bot_id, connection_id, created_at, digest, start_time, end_time, text, speaker, language)
             SELECT $1, $2, $3, digest, start_time, end_time, text, speaker, language
               FROM",
            rows!($dialect "$4" (
                digest "TEXT", start_time "DOUBLE PRECISION", end_time "DOUBLE PRECISION", text "TEXT", speaker "TEXT",
                language "TEXT"
            )),
            // Without it, SQLite would parse `ON` as a part of the select.
            "WHERE true
             ON CONFLICT (bot_id, digest) DO NOTHING RETURNING id"
        )
    };
}

impl Tx {
    /// Stores the new segments in one statement, and returns their number.
    pub async fn insert_segments(
        &mut self,
        bot: BotId,
        segments: &[SegmentRow],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let Some(first) = segments.first() else { return Ok(0) };
        let rows: Vec<_> = segments
            .iter()
            .map(|segment| {
                json!({"digest": segment.digest, "start_time": segment.start_time, "end_time": segment.end_time,
                       "text": segment.text, "speaker": segment.speaker, "language": segment.language})
            })
            .collect();
        let stored = self
            .all(
                sql!(
                    "transcript.insert",
                    sqlite: insert_segments!(sqlite),
                    postgres: insert_segments!(postgres),
                ),
                args![bot, first.connection_id, now, &serde_json::Value::Array(rows)],
            )
            .await?;
        Ok(stored.len() as u64)
    }

    /// How many of these digests are already stored.
    pub async fn known_segments(&mut self, bot: BotId, digests: &[String]) -> Result<u64, StoreError> {
        let known = self
            .first(
                sql!(
                    "transcript.known",
                    sqlite: "SELECT count(*) AS count FROM transcript_segments
                              WHERE bot_id = $1 AND digest IN (SELECT value FROM json_each($2))",
                    postgres: "SELECT count(*) AS count FROM transcript_segments
                                WHERE bot_id = $1 AND digest IN (SELECT json_array_elements_text($2))",
                ),
                args![bot, &json!(digests)],
            )
            .await?;
        known.map_or(Ok(0), |row| row.int("count")).map(i64::unsigned_abs)
    }
}
