//! Lists of bots with filters. A filter cannot use an index of what a start or an end of a bot changes, because there is
//! none. So candidates are read in small chunks, newest first, with the few columns that filters test. The caller limits
//! how many candidates it reads for one page, and the next page continues behind the last candidate.

use domain::{BotId, Platform, ShownStatus, Status, UserId};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::bots::shown;
use super::record::record;
use super::sql::{args, rows, sql, text, words};
use super::{Run, Store, StoreError};

/// The bots that a list shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BotFilter {
    pub status: Option<ShownStatus>,
    pub platform: Option<Platform>,
    /// The id that the platform gave the meeting.
    pub native_meeting_id: Option<String>,
    /// Values of the bot's metadata, by key.
    pub metadata: Vec<(String, String)>,
}

/// Where candidates come from.
#[derive(Clone, Debug)]
pub enum BotSource<'a> {
    OfUser(UserId),
    Everyones,
    /// The bots of one meeting, of all users.
    AtMeeting(&'a str),
    /// These bots, which the caller knows.
    Known(&'a [BotId]),
}

record! {
    /// The part of a bot that filters test.
    #[derive(Clone, Debug, PartialEq)]
    pub struct BotCandidate, columns candidate_columns, read candidate {
        pub id: BotId,
        pub user_id: UserId,
        pub platform: Platform,
        pub native_meeting_id: String,
        pub status: ShownStatus = shown,
        /// Only if a filter tests it.
        pub metadata: Option<Map<String, Value>>,
    }
}

/// `$1` says whether metadata is read, `$2` is the id before which the candidates are, `$3` their number.
macro_rules! candidates {
    ($($which:expr),+ $(,)?) => {
        text!(
            "SELECT ", candidate_columns!(),
            " FROM (SELECT id, user_id, platform, native_meeting_id, ", shown!(), " AS shown,
                           CASE WHEN $1 = 1 THEN metadata END AS metadata
                      FROM bots WHERE id < $2 AND ", $($which,)+ " ORDER BY id DESC LIMIT $3) AS candidates
              ORDER BY id DESC"
        )
    };
}

/// One text for both databases, or one for each.
macro_rules! sql_of_candidates {
    ($name:literal, $which:literal) => {
        sql!($name, sqlite: candidates!($which), postgres: candidates!($which))
    };
    ($name:literal, sqlite: $sqlite:expr, postgres: $postgres:expr $(,)?) => {
        sql!($name, sqlite: candidates!($sqlite), postgres: candidates!($postgres))
    };
}

impl BotFilter {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a bot is one of those that the list shows.
    pub fn matches(&self, bot: &BotCandidate) -> bool {
        let has = |key: &str, value: &str| {
            bot.metadata.as_ref().and_then(|metadata| metadata.get(key)).is_some_and(|found| match found {
                Value::String(text) => text == value,
                other => {
                    let json = other.to_string();
                    json == value
                }
            })
        };
        self.status.is_none_or(|status| status == bot.status)
            && self.platform.is_none_or(|platform| platform == bot.platform)
            && self.native_meeting_id.as_ref().is_none_or(|meeting| *meeting == bot.native_meeting_id)
            && self.metadata.iter().all(|(key, value)| has(key, value))
    }
}

impl Store {
    /// The next candidates, newest first, older than `before`.
    pub async fn bot_candidates(
        &self,
        source: &BotSource<'_>,
        filter: &BotFilter,
        before: Option<BotId>,
        limit: i64,
    ) -> Result<Vec<BotCandidate>, StoreError> {
        let with_metadata = i64::from(!filter.metadata.is_empty());
        // An id above all others means "from the newest on", so that one index range serves both cases.
        let before = before.unwrap_or(BotId(Uuid::max()));
        let mut args = args![with_metadata, before, limit];
        let sql = match source {
            BotSource::OfUser(user) => {
                args.push((*user).into());
                sql_of_candidates!("bots.candidates_of_user", "user_id = $4")
            }
            BotSource::Everyones => sql_of_candidates!("bots.candidates", "true"),
            BotSource::AtMeeting(meeting) => {
                args.push((*meeting).into());
                sql_of_candidates!(
                    "bots.candidates_at_meeting",
                    sqlite: "native_meeting_id = $4",
                    postgres: "native_meeting_id COLLATE \"C\" = $4",
                )
            }
            BotSource::Known(ids) => {
                args.push(ids.iter().map(|id| json!({ "id": id })).collect::<Vec<Value>>().into());
                sql_of_candidates!(
                    "bots.known_candidates",
                    sqlite: concat!("id IN (SELECT id FROM", rows!(sqlite "$4" (id "UUID")), ")"),
                    postgres: concat!("id IN (SELECT id FROM", rows!(postgres "$4" (id "UUID")), ")"),
                )
            }
        };
        let rows = self.reader().all(sql, args).await?;
        rows.iter().map(candidate).collect()
    }
}
