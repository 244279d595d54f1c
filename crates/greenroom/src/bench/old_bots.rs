//! Fills a database with bots that ended long ago, each with its events, session, heartbeat, log and transcript.

use jiff::Timestamp;

use super::Done;
use super::database::Database;

/// Some bots that were created and ended one after the other, a millisecond apart.
#[derive(Clone, Copy, Debug)]
pub struct OldBots {
    /// When the first one was created.
    pub begin: Timestamp,
    pub count: i64,
    /// How many segments of a transcript each has.
    pub segments: i64,
    /// Whether each has a log.
    pub has_log: bool,
}

const USER: &str = "00000000-0000-7000-8000-000000000001";
/// How many bots one statement inserts.
const AT_ONCE: i64 = 100_000;

/// The texts that differ between the databases.
struct Dialect {
    numbers: String,
    /// The first 13 characters of an id: the time.
    time_of_id: String,
    tail_of_id: &'static str,
    id: &'static str,
    at: String,
}

impl Dialect {
    /// For the bots with these numbers.
    fn new(is_postgres: bool, bots: &OldBots, first: i64, last: i64) -> Self {
        let begin = bots.begin.as_millisecond();
        if is_postgres {
            let hex = format!("lpad(to_hex({begin} + number), 12, '0')");
            Self {
                numbers: format!("generate_series({first}::bigint, {last}::bigint) AS numbers (number)"),
                time_of_id: format!("substr({hex}, 1, 8) || '-' || substr({hex}, 9, 4)"),
                tail_of_id: "lpad(to_hex(number), 12, '0')",
                id: "::uuid",
                at: format!("to_timestamp(({begin} + number) / 1000.0)"),
            }
        } else {
            let hex = format!("printf('%012x', {begin} + number)");
            Self {
                numbers: format!(
                    "(WITH RECURSIVE counted (number) AS
                          (SELECT {first} UNION ALL SELECT number + 1 FROM counted WHERE number < {last})
                      SELECT number FROM counted) AS numbers"
                ),
                time_of_id: format!("substr({hex}, 1, 8) || '-' || substr({hex}, 9, 4)"),
                tail_of_id: "printf('%012x', number)",
                id: "",
                at: format!("strftime('%Y-%m-%dT%H:%M:%f000Z', ({begin} + number) / 1000.0, 'unixepoch')"),
            }
        }
    }

    fn bot_id(&self) -> String {
        format!("({} || '-7000-8000-' || {}){}", self.time_of_id, self.tail_of_id, self.id)
    }

    fn connection_id(&self) -> String {
        format!("({} || '-7000-9000-' || {}){}", self.time_of_id, self.tail_of_id, self.id)
    }
}

impl OldBots {
    /// Inserts them. The keeper `stats` has counted their events.
    pub async fn insert(&self, database: &Database) -> Done {
        let mut first = 1;
        while first <= self.count {
            let last = (first + AT_ONCE - 1).min(self.count);
            let dialect = Dialect::new(database.is_postgres(), self, first, last);
            database.execute(self.statements(&dialect)).await?;
            first = last + 1;
        }
        for table in ["stats_position", "ended_counts_position"] {
            database.execute(format!("UPDATE {table} SET last_event = (SELECT max(id) FROM events)")).await?;
        }
        Ok(())
    }

    fn statements(&self, dialect: &Dialect) -> String {
        let Dialect { numbers, at, id, .. } = dialect;
        let (bot, connection, user) = (dialect.bot_id(), dialect.connection_id(), format!("'{USER}'{id}"));
        let event = |kind: &str, to: &str| {
            format!(
                "INSERT INTO events (bot_id, user_id, at, kind, to_status, actor)
                 SELECT {bot}, {user}, {at}, '{kind}', {to}, 'bot' FROM {numbers};"
            )
        };
        let mut sql = format!(
            "INSERT INTO bots
                 (id, user_id, platform, native_meeting_id, meeting_url, status, status_since, connection_id, priority,
                  queue_timeout_ms, config, metadata, start_time, end_time, created_at, updated_at)
             SELECT {bot}, {user}, 'google_meet', 'abc-defg-hij', 'https://meet.google.com/abc-defg-hij', 'completed',
                    {at}, {connection}, 100, 300000, '{{\"language\": \"en\"}}', '{{\"team\": \"sales\"}}', {at}, {at},
                    {at}, {at}
               FROM {numbers};
             INSERT INTO sessions (connection_id, bot_id, started_at, joined_at, ended_at)
             SELECT {connection}, {bot}, {at}, {at}, {at} FROM {numbers};
             INSERT INTO heartbeats (connection_id, at) SELECT {connection}, {at} FROM {numbers};"
        );
        sql.push_str(&event("created", "NULL"));
        for status in ["'starting'", "'active'", "'completed'"] {
            sql.push_str(&event("status_changed", status));
        }
        for segment in 0..self.segments {
            sql.push_str(&format!(
                "INSERT INTO transcript_segments
                     (bot_id, connection_id, digest, start_time, end_time, text, created_at)
                 SELECT {bot}, {connection}, 'digest-{segment}', {segment}, {segment} + 1,
                        'A sentence that somebody said in the meeting, as long as most of them are.', {at}
                   FROM {numbers};"
            ));
        }
        if self.has_log {
            let lines = format!("[{{\"at\": null, \"text\": \"{}\"}}]", "a line of the log ".repeat(30));
            sql.push_str(&format!(
                "INSERT INTO bot_logs (bot_id, connection_id, lines, truncated, updated_at)
                 SELECT {bot}, {connection}, '{lines}', 0, {at} FROM {numbers};"
            ));
        }
        sql
    }

    /// Inserts an idempotency key for each of them.
    pub async fn insert_keys(&self, database: &Database) -> Done {
        let mut first = 1;
        while first <= self.count {
            let last = (first + AT_ONCE - 1).min(self.count);
            let dialect = Dialect::new(database.is_postgres(), self, first, last);
            let (bot, Dialect { numbers, at, id, tail_of_id, .. }) = (dialect.bot_id(), &dialect);
            let sql = format!(
                "INSERT INTO idempotency_keys (user_id, key, body_hash, bot_id, created_at)
                 SELECT '{USER}'{id}, {at_text} || '-' || {tail_of_id}, 'hash', {bot}, {at} FROM {numbers}",
                at_text = dialect.time_of_id,
            );
            database.execute(sql).await?;
            first = last + 1;
        }
        Ok(())
    }
}
