//! What has to be known of requests for bots, for many of them in one statement.

use domain::{BotId, KeyId, Platform, UserId};
use serde_json::{Value, json};

use super::sql::{Sql, args, rows, sql};
use super::{KeyRow, KnownKey, Run, StoreError, Tx};

/// A request: under which key, for which meeting.
#[derive(Clone, Debug)]
pub struct Asking {
    pub key: KeyId,
    pub idempotency_key: Option<String>,
    pub platform: Platform,
    pub native_meeting_id: String,
}

/// What is known of a request.
#[derive(Clone, Debug)]
pub struct Known {
    pub key: KeyRow,
    pub max_concurrent_bots: i64,
    /// How many bots of the user count against its limit.
    pub running: i64,
    /// What was asked for under the same idempotency key.
    pub before: Option<KnownKey>,
    /// The bot of this user that is at the meeting already.
    pub there: Option<BotId>,
}

// Scalar subqueries, so that each is one look into an index, however large the tables are.
macro_rules! known {
    ($dialect:ident $key:literal) => {
        concat!(
            "SELECT r.i, k.id, k.user_id, k.hash, k.created_at, k.expires_at,
                    (SELECT u.max_concurrent_bots FROM users u WHERE u.id = k.user_id) AS max_concurrent_bots,
                    (SELECT count(*) FROM bots b WHERE b.user_id = k.user_id AND b.status IN
                        ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active')) AS running,
                    (SELECT y.body_hash FROM idempotency_keys y
                      WHERE y.user_id = k.user_id AND y.key = r.y) AS body_hash,
                    (SELECT y.bot_id FROM idempotency_keys y
                      WHERE y.user_id = k.user_id AND y.key = r.y) AS known_bot,
                    (SELECT b.id FROM bots b
                      WHERE b.user_id = k.user_id AND b.platform = r.p AND b.native_meeting_id = r.m AND b.status IN
                        ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active')) AS there
               FROM",
            rows!($dialect "$1" (i "BIGINT", k "UUID", y "TEXT", p "TEXT", m "TEXT")),
            $key
        )
    };
}

const KNOWN: &Sql = sql!(
    "bots.known",
    sqlite: known!(sqlite "JOIN api_keys k ON k.id = r.k"),
    postgres: known!(postgres "CROSS JOIN LATERAL (SELECT * FROM api_keys WHERE id = r.k OFFSET 0) AS k"),
);

impl Tx {
    /// What is known of each request, in their order; `None` where the key is not known.
    pub async fn known(&mut self, asking: &[Asking]) -> Result<Vec<Option<Known>>, StoreError> {
        let rows: Vec<Value> = asking
            .iter()
            .enumerate()
            .map(|(i, asking)| {
                json!({"i": i, "k": asking.key, "y": asking.idempotency_key, "p": asking.platform,
                       "m": asking.native_meeting_id})
            })
            .collect();
        let found = self.all(KNOWN, args![rows]).await?;
        let mut known: Vec<Option<Known>> = asking.iter().map(|_| None).collect();
        for row in &found {
            let key = KeyRow {
                id: KeyId(row.id("id")?),
                user_id: UserId(row.id("user_id")?),
                hash: row.text("hash")?,
                created_at: row.time("created_at")?,
                expires_at: row.maybe_time("expires_at")?,
            };
            let before = match (row.maybe_text("body_hash")?, row.maybe_id("known_bot")?) {
                (Some(body_hash), Some(bot)) => Some(KnownKey { body_hash, bot_id: BotId(bot) }),
                _ => None,
            };
            let of = usize::try_from(row.int("i")?).unwrap_or(usize::MAX);
            if let Some(known) = known.get_mut(of) {
                *known = Some(Known {
                    key,
                    max_concurrent_bots: row.int("max_concurrent_bots")?,
                    running: row.int("running")?,
                    before,
                    there: row.maybe_id("there")?.map(BotId),
                });
            }
        }
        Ok(known)
    }
}
