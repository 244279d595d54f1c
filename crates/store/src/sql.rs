//! The only module with the technical differences between SQLite and PostgreSQL: how a value is bound, how a column is
//! read, and the few statements with different texts. All other statements of the store are written once.

use domain::{BotId, CommandId, ConnectionId, KeyId, UserId};
use jiff::Timestamp;
use sqlx::postgres::{PgArguments, PgRow, PgTypeInfo, PgValueRef};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, Decode, Encode, Postgres, Row as _, Type};
use uuid::Uuid;

use super::StoreError;
use super::guarded::writes_guarded_table;
use super::source_table::source_table;

/// A statement, with the name under which it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sql {
    pub name: &'static str,
    pub sqlite: &'static str,
    pub postgres: &'static str,
    pub writes_guarded_table: bool,
}

impl Sql {
    pub const fn new(name: &'static str, sqlite: &'static str, postgres: &'static str) -> Self {
        let writes_guarded_table = writes_guarded_table(sqlite) || writes_guarded_table(postgres);
        Self { name, sqlite, postgres, writes_guarded_table }
    }
}

/// The total length of some texts.
pub(super) const fn length(texts: &[&str]) -> usize {
    let (mut length, mut text) = (0, 0);
    while text < texts.len() {
        length += texts[text].len();
        text += 1;
    }
    length
}

/// Joins texts, as bytes.
pub(super) const fn joined<const LENGTH: usize>(texts: &[&str]) -> [u8; LENGTH] {
    let (mut bytes, mut at, mut text) = ([0; LENGTH], 0, 0);
    while text < texts.len() {
        let from = texts[text].as_bytes();
        let mut byte = 0;
        while byte < from.len() {
            bytes[at] = from[byte];
            (at, byte) = (at + 1, byte + 1);
        }
        text += 1;
    }
    bytes
}

/// Joins constant texts. Unlike `concat!` it also accepts constants.
macro_rules! text {
    ($($text:expr),+ $(,)?) => {
        const {
            const TEXTS: &[&str] = &[$($text),+];
            const BYTES: [u8; $crate::sql::length(TEXTS)] = $crate::sql::joined(TEXTS);
            match std::str::from_utf8(&BYTES) {
                Ok(text) => text,
                Err(_) => unreachable!(),
            }
        }
    };
}

/// Some variants of an enum as an SQL list: `'creating', 'busy'`.
macro_rules! words {
    ($first:path $(, $next:path)* $(,)?) => {
        $crate::sql::text!("'", $first.as_str() $(, "', '", $next.as_str())*, "'")
    };
}

/// One text for both databases, or one for each.
macro_rules! sql {
    ($name:expr, $($text:expr),+ $(,)?) => {
        const { &$crate::sql::Sql::new($name, $crate::sql::text!($($text),+), $crate::sql::text!($($text),+)) }
    };
    ($name:expr, sqlite: $sqlite:expr, postgres: $postgres:expr $(,)?) => {
        const { &$crate::sql::Sql::new($name, $sqlite, $postgres) }
    };
}

/// A select whose rows cannot change until the transaction ends. SQLite has one writer, which locks the whole database.
/// PostgreSQL locks the rows in a mode that still allows foreign keys to refer to them.
macro_rules! sql_locking {
    ($name:literal, $($text:expr),+ $(,)?) => {
        const {
            &$crate::sql::Sql::new($name, concat!($($text),+), concat!($($text),+, " FOR NO KEY UPDATE"))
        }
    };
}

/// Many rows that are sent as one JSON array with the name `input`. Each column has a PostgreSQL type, which SQLite
/// ignores.
macro_rules! rows {
    (sqlite $array:literal ($($column:ident $type:literal),+ $(,)?)) => {
        concat!(
            " (SELECT ", $("value ->> '", stringify!($column), "' AS ", stringify!($column), ", ",)+
            "0 AS zero FROM json_each(", $array, ")) AS input "
        )
    };
    (postgres $array:literal ($($column:ident $type:literal),+ $(,)?)) => {
        concat!(
            " json_to_recordset(", $array, ") AS input (", $(stringify!($column), " ", $type, ", ",)+ "zero INT) "
        )
    };
}

/// A statement over many rows that are sent as one JSON array in `$1`: `before input after`.
macro_rules! sql_over {
    ($name:literal, $before:expr, $columns:tt, $after:expr $(,)?) => {
        const {
            &$crate::sql::Sql::new(
                $name,
        concat!($before, $crate::sql::rows!(sqlite "$1" $columns), $after),
        concat!($before, $crate::sql::rows!(postgres "$1" $columns), $after),
            )
        }
    };
}

/// The current time of the database's clock, or a number of milliseconds later.
macro_rules! database_time {
    (sqlite) => {
        "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
    };
    (sqlite + $milliseconds:literal) => {
        concat!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (", $milliseconds, " / 1000.0) || ' seconds')")
    };
    (postgres) => {
        "clock_timestamp()"
    };
    (postgres + $milliseconds:literal) => {
        concat!("clock_timestamp() + ", $milliseconds, " * interval '1 millisecond'")
    };
}

pub(super) use {database_time, rows, sql, sql_locking, sql_over, text, words};

/// A duration as [`database_time`] expects it.
pub(super) fn milliseconds(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// A value to bind. Each value has a type even if it is absent, because PostgreSQL needs it.
#[derive(Clone, Debug)]
pub enum Arg {
    Int(Option<i64>),
    Real(Option<f64>),
    Text(Option<String>),
    Id(Option<Uuid>),
    Time(Option<Timestamp>),
    /// A document as JSON text.
    Json(Option<String>),
    Bytes(Option<Vec<u8>>),
}

macro_rules! arg_from {
    ($($from:ty => $variant:ident($convert:expr)),+ $(,)?) => {
        $(
            impl From<$from> for Arg {
                fn from(value: $from) -> Self {
                    #[allow(clippy::redundant_closure_call)]
                    Arg::$variant(Some(($convert)(value)))
                }
            }
            impl From<Option<$from>> for Arg {
                fn from(value: Option<$from>) -> Self {
                    Arg::$variant(value.map($convert))
                }
            }
        )+
    };
}

arg_from! {
    i64 => Int(|v| v),
    f64 => Real(|v| v),
    String => Text(|v| v),
    &str => Text(|v: &str| v.to_owned()),
    BotId => Id(|v: BotId| v.0),
    UserId => Id(|v: UserId| v.0),
    ConnectionId => Id(|v: ConnectionId| v.0),
    CommandId => Id(|v: CommandId| v.0),
    KeyId => Id(|v: KeyId| v.0),
    Timestamp => Time(|v| v),
    &serde_json::Map<String, serde_json::Value> => Json(document),
    &serde_json::Value => Json(|v: &serde_json::Value| v.to_string()),
    Vec<serde_json::Value> => Json(|v| serde_json::Value::Array(v).to_string()),
    uuid::Uuid => Id(|v| v),
    &domain::SlotName => Text(|v: &domain::SlotName| v.as_str().to_owned()),
    Vec<u8> => Bytes(|v| v),
}

fn document(map: &serde_json::Map<String, serde_json::Value>) -> String {
    serde_json::to_string(map).unwrap_or_else(|_| "{}".to_owned())
}

/// The values of a statement, in the order of `$1`, `$2`, …
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::sql::Arg::from($value)),*] };
}

pub(super) use args;

/// A time as SQLite and JSON arrays store it: text of a fixed width, so that it sorts.
pub(super) fn sortable(time: Timestamp) -> String {
    format!("{time:.6}")
}

pub(super) fn for_sqlite(args: Vec<Arg>) -> Result<SqliteArguments, sqlx::Error> {
    let mut bound = SqliteArguments::default();
    for arg in args {
        match arg {
            Arg::Int(value) => bound.add(value),
            Arg::Real(value) => bound.add(value),
            Arg::Text(value) | Arg::Json(value) => bound.add(value),
            Arg::Id(value) => bound.add(value.map(|id| id.to_string())),
            Arg::Time(value) => bound.add(value.map(sortable)),
            Arg::Bytes(value) => bound.add(value),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(bound)
}

pub(super) fn for_postgres(args: Vec<Arg>) -> Result<PgArguments, sqlx::Error> {
    let mut bound = PgArguments::default();
    for arg in args {
        match arg {
            Arg::Int(value) => bound.add(value),
            Arg::Real(value) => bound.add(value),
            Arg::Text(value) => bound.add(value),
            Arg::Id(value) => bound.add(value),
            Arg::Time(value) => bound.add(value.map(jiff_sqlx::Timestamp::from)),
            Arg::Json(value) => bound.add(value.map(JsonText)),
            Arg::Bytes(value) => bound.add(value),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(bound)
}

/// JSON as text: `jsonb` would parse it and refuse some values.
#[derive(Debug)]
struct JsonText(String);

impl Type<Postgres> for JsonText {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(sqlx::postgres::types::Oid(114))
    }

    fn compatible(ty: &PgTypeInfo) -> bool {
        *ty == Self::type_info()
    }
}

impl Encode<'_, Postgres> for JsonText {
    fn encode_by_ref(
        &self,
        buffer: &mut sqlx::postgres::PgArgumentBuffer,
    ) -> Result<sqlx::encode::IsNull, sqlx::error::BoxDynError> {
        <&str as Encode<'_, Postgres>>::encode(self.0.as_str(), buffer)
    }
}

impl<'r> Decode<'r, Postgres> for JsonText {
    fn decode(value: PgValueRef<'r>) -> Result<Self, sqlx::error::BoxDynError> {
        Ok(JsonText(value.as_str()?.to_owned()))
    }
}

/// Columns that identify a row of a table, the most specific first. None of them contains a secret.
const KEYS: [&str; 8] = ["id", "name", "slot", "bot_id", "user_id", "pool", "image", "version"];
/// A longer part of an unreadable value does not help to find it.
const LONGEST_SHOWN: usize = 100;

/// A row of either database. A column is read by its type. If the value does not fit, the error names the table, the
/// column and the row.
#[derive(Debug)]
pub struct Row {
    pub(super) sql: &'static Sql,
    pub(super) inner: Inner,
}

#[derive(Debug)]
pub(super) enum Inner {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

macro_rules! column {
    ($self:ident, $column:ident, $sqlite:ty, $postgres:ty) => {
        match &$self.inner {
            Inner::Sqlite(row) => row.try_get::<$sqlite, _>($column).map(Into::into),
            Inner::Postgres(row) => row.try_get::<$postgres, _>($column).map(Into::into),
        }
        .map_err(|source| $self.unread($column, source))
    };
}

impl Row {
    pub fn int(&self, column: &'static str) -> Result<i64, StoreError> {
        column!(self, column, i64, i64)
    }

    pub fn maybe_int(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        column!(self, column, Option<i64>, Option<i64>)
    }

    pub fn real(&self, column: &'static str) -> Result<f64, StoreError> {
        column!(self, column, f64, f64)
    }

    pub fn text(&self, column: &'static str) -> Result<String, StoreError> {
        column!(self, column, String, String)
    }

    pub fn maybe_text(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        column!(self, column, Option<String>, Option<String>)
    }

    pub fn bytes(&self, column: &'static str) -> Result<Vec<u8>, StoreError> {
        column!(self, column, Vec<u8>, Vec<u8>)
    }

    pub fn id(&self, column: &'static str) -> Result<Uuid, StoreError> {
        self.maybe_id(column)?.ok_or_else(|| self.inconsistent(column, "nothing"))
    }

    pub fn maybe_id(&self, column: &'static str) -> Result<Option<Uuid>, StoreError> {
        match &self.inner {
            Inner::Postgres(_) => column!(self, column, Option<Uuid>, Option<Uuid>),
            Inner::Sqlite(_) => self.parsed(column),
        }
    }

    pub fn time(&self, column: &'static str) -> Result<Timestamp, StoreError> {
        self.maybe_time(column)?.ok_or_else(|| self.inconsistent(column, "nothing"))
    }

    pub fn maybe_time(&self, column: &'static str) -> Result<Option<Timestamp>, StoreError> {
        match &self.inner {
            Inner::Postgres(row) => row
                .try_get::<Option<jiff_sqlx::Timestamp>, _>(column)
                .map(|time| time.map(jiff_sqlx::Timestamp::to_jiff))
                .map_err(|source| self.unread(column, source)),
            Inner::Sqlite(_) => self.parsed(column),
        }
    }

    pub fn json<T: serde::de::DeserializeOwned>(&self, column: &'static str) -> Result<T, StoreError> {
        let text = match &self.inner {
            Inner::Sqlite(_) => self.text(column)?,
            Inner::Postgres(row) => row.try_get::<JsonText, _>(column).map_err(|source| self.unread(column, source))?.0,
        };
        serde_json::from_str(&text).map_err(|_| self.inconsistent(column, "JSON of the wrong shape"))
    }

    pub fn maybe_json<T: serde::de::DeserializeOwned>(&self, column: &'static str) -> Result<Option<T>, StoreError> {
        let text = match &self.inner {
            Inner::Sqlite(_) => self.maybe_text(column)?,
            Inner::Postgres(row) => row
                .try_get::<Option<JsonText>, _>(column)
                .map_err(|source| self.unread(column, source))?
                .map(|text| text.0),
        };
        text.map(|text| serde_json::from_str(&text).map_err(|_| self.inconsistent(column, "JSON of the wrong shape")))
            .transpose()
    }

    /// A value of an enum.
    pub fn word<T: std::str::FromStr>(&self, column: &'static str) -> Result<T, StoreError> {
        let text = self.text(column)?;
        text.parse().map_err(|_| self.inconsistent(column, &text))
    }

    pub fn maybe_word<T: std::str::FromStr>(&self, column: &'static str) -> Result<Option<T>, StoreError> {
        self.parsed(column)
    }

    fn parsed<T: std::str::FromStr>(&self, column: &'static str) -> Result<Option<T>, StoreError> {
        self.maybe_text(column)?.map(|text| text.parse().map_err(|_| self.inconsistent(column, &text))).transpose()
    }

    pub(super) fn inconsistent(&self, column: &'static str, found: &str) -> StoreError {
        let (table, row) = (self.table_of(column), self.key(column));
        let found: String = found.chars().take(LONGEST_SHOWN).collect();
        StoreError::Inconsistent { call: self.sql.name, table, column, row, found: format!("`{found}`") }
    }

    /// Why a column could not be read: the row is wrong, or the statement does not have the column.
    fn unread(&self, column: &'static str, source: sqlx::Error) -> StoreError {
        match source {
            sqlx::Error::ColumnDecode { source, .. } if source.is::<sqlx::error::UnexpectedNullError>() => {
                self.inconsistent(column, "nothing")
            }
            sqlx::Error::ColumnDecode { .. } => self.inconsistent(column, "a value of the wrong type"),
            sqlx::Error::ColumnNotFound(_) => {
                StoreError::internal(self.sql.name, format!("the statement has no column {column}"))
            }
            other => StoreError::call(self.sql.name, other),
        }
    }

    /// The table of a column of this row.
    fn table_of(&self, column: &str) -> String {
        let text = match &self.inner {
            Inner::Sqlite(_) => self.sql.sqlite,
            Inner::Postgres(_) => self.sql.postgres,
        };
        // If the text does not show the table, the beginning of the statement's name does.
        let about = || self.sql.name.split('.').next().unwrap_or(self.sql.name);
        source_table(text, column).unwrap_or_else(about).to_owned()
    }

    /// Identifies this row, without the column that cannot be read.
    fn key(&self, unread: &str) -> String {
        let mut keys = KEYS.iter().filter(|key| **key != unread);
        let found = keys.find_map(|key| Some((key, self.shown(key)?)));
        found.map_or_else(|| "without a key".to_owned(), |(key, value)| format!("{key} {value}"))
    }

    fn shown(&self, column: &str) -> Option<String> {
        match &self.inner {
            Inner::Sqlite(row) => {
                let text = row.try_get_unchecked::<Option<String>, _>(column).ok().flatten();
                text.or_else(|| Some(row.try_get::<Option<i64>, _>(column).ok()??.to_string()))
            }
            Inner::Postgres(row) => {
                let id = row.try_get::<Option<Uuid>, _>(column).ok().flatten().map(|id| id.to_string());
                let text = || row.try_get::<Option<String>, _>(column).ok().flatten();
                let number = || Some(row.try_get::<Option<i64>, _>(column).ok()??.to_string());
                id.or_else(text).or_else(number)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use domain::{SlotStatus, Status};

    use super::*;
    use crate::{Run, Store};

    #[tokio::test]
    async fn a_column_that_cannot_be_read_is_named_with_its_table_and_row() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}", folder.path().join("x.db").display())).await.unwrap();
        let select = sql!(
            "migrate.first",
            "SELECT version AS id, name AS number, NULL AS gone FROM schema_versions ORDER BY version LIMIT 1"
        );
        let row = store.reader().first(select, vec![]).await.unwrap().unwrap();
        let named = |column, found| {
            format!(
                "the database is inconsistent: in the table schema_versions, column {column} of the row id 1 holds \
                 `{found}` (migrate.first)"
            )
        };
        assert_eq!(row.int("number").unwrap_err().to_string(), named("number", "a value of the wrong type"));
        assert_eq!(row.time("gone").unwrap_err().to_string(), named("gone", "nothing"));
        assert_eq!(row.word::<domain::Status>("number").unwrap_err().to_string(), {
            named("number", &row.text("number").unwrap())
        });
        // A column that the statement does not have is an error in Greenroom, not in the database.
        let error = row.int("nobody").unwrap_err();
        assert!(matches!(error, StoreError::Internal { .. }), "{error}");
        // If the unreadable column is the key, another column names the row, or none does.
        assert!(row.json::<Vec<i64>>("number").unwrap_err().to_string().contains("the row id 1 "));
    }

    /// Checks the status values in the texts of statements.
    #[test]
    fn every_status_in_a_statement_is_one_of_the_vocabulary() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let texts = [folder.clone(), folder.join("changed")].into_iter().flat_map(|folder| {
            let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
            files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect::<Vec<_>>()
        });
        let mut found = 0;
        for text in texts {
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            let parts = ["status = '", "status <> '"].map(|before| text.split(before).skip(1).collect::<Vec<_>>());
            for word in
                parts.iter().flatten().filter_map(|part| part.split('\'').next()).filter(|word| !word.is_empty())
            {
                found += 1;
                assert!(word.parse::<Status>().is_ok() || word.parse::<SlotStatus>().is_ok(), "{word}");
            }
        }
        assert!(found > 10, "{found}");
    }
}
