//! Many rows as parameters of a statement: one binary array for each column on PostgreSQL, the values of each row on
//! SQLite.

use std::borrow::Cow;

use jiff::Timestamp;
use rusqlite::types::Value;
use sqlx::Arguments;
use sqlx::postgres::PgArguments;
use uuid::Uuid;

use super::row_locations::RowLocation;
use super::sql::sortable;

/// The column with the last location of each row.
pub(super) const LOCATION: &str = "location";

/// The values of one column, in the order of the rows.
#[derive(Clone, Debug)]
pub(super) enum Column<'a> {
    Ids(Vec<Option<Uuid>>),
    Texts(Vec<Option<Cow<'a, str>>>),
    Ints(Vec<Option<i64>>),
    Times(Vec<Option<Timestamp>>),
    /// The last locations of rows. Only PostgreSQL has them.
    Locations(Vec<Option<RowLocation>>),
    /// The same time in every row.
    Now(Timestamp),
}

impl Column<'_> {
    fn postgres_type(&self) -> &'static str {
        match self {
            Column::Ids(_) => "uuid[]",
            Column::Texts(_) => "text[]",
            Column::Ints(_) => "bigint[]",
            Column::Times(_) => "timestamptz[]",
            Column::Locations(_) => "tid[]",
            Column::Now(_) => "timestamptz",
        }
    }

    /// The column's value in row `ordinal`, from PostgreSQL's parameter `number`.
    fn postgres_value(&self, number: usize) -> String {
        let index = if matches!(self, Column::Now(_)) { "" } else { "[ordinal]" };
        format!("(${number}::{}){index}", self.postgres_type())
    }

    fn bind(self, arguments: &mut PgArguments) -> Result<(), sqlx::Error> {
        match self {
            Column::Ids(values) => arguments.add(values),
            Column::Texts(values) => arguments.add(values),
            Column::Ints(values) => arguments.add(values),
            Column::Times(values) => {
                arguments.add(values.into_iter().map(|time| time.map(jiff_sqlx::Timestamp::from)).collect::<Vec<_>>())
            }
            Column::Locations(values) => arguments.add(values),
            Column::Now(time) => arguments.add(jiff_sqlx::Timestamp::from(time)),
        }
        .map_err(sqlx::Error::Encode)
    }

    /// The column's value in a row, as SQLite stores it.
    fn sqlite_value(&self, row: usize) -> Value {
        let text = match self {
            Column::Ints(values) => return values.get(row).copied().flatten().map_or(Value::Null, Value::Integer),
            Column::Ids(values) => values.get(row).copied().flatten().map(|id| id.to_string()),
            Column::Texts(values) => values.get(row).and_then(Option::as_deref).map(ToOwned::to_owned),
            Column::Times(values) => values.get(row).copied().flatten().map(sortable),
            Column::Locations(_) => None,
            Column::Now(time) => Some(sortable(*time)),
        };
        text.map_or(Value::Null, Value::Text)
    }
}

/// Rows, by the names of their columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows<'a> {
    columns: Vec<(&'static str, Column<'a>)>,
    count: usize,
}

macro_rules! columns {
    ($($name:ident($value:ty) => $variant:ident),+ $(,)?) => {
        $(
            pub fn $name<T: Copy>(mut self, name: &'static str, items: &[T], value: impl Fn(T) -> $value) -> Self {
                self.count = items.len();
                self.columns.push((name, Column::$variant(items.iter().map(|item| value(*item).into()).collect())));
                self
            }
        )+
    };
}

impl<'a> Rows<'a> {
    columns! {
        id(Uuid) => Ids,
        maybe_id(Option<Uuid>) => Ids,
        int(i64) => Ints,
        maybe_int(Option<i64>) => Ints,
        time(Timestamp) => Times,
        maybe_time(Option<Timestamp>) => Times,
    }

    pub fn text<T: Copy, V: Into<Cow<'a, str>>>(self, name: &'static str, items: &[T], value: impl Fn(T) -> V) -> Self {
        self.maybe_text(name, items, |item| Some(value(item)))
    }

    pub fn maybe_text<T: Copy, V: Into<Cow<'a, str>>>(
        mut self,
        name: &'static str,
        items: &[T],
        value: impl Fn(T) -> Option<V>,
    ) -> Self {
        self.count = items.len();
        self.columns.push((name, Column::Texts(items.iter().map(|item| value(*item).map(Into::into)).collect())));
        self
    }

    /// The last location of each row, if known.
    pub fn locations(mut self, locations: Vec<Option<RowLocation>>) -> Self {
        self.columns.push((LOCATION, Column::Locations(locations)));
        self
    }

    /// The same time in every row, after the other columns.
    pub fn now(mut self, now: Timestamp) -> Self {
        self.columns.push(("now", Column::Now(now)));
        self
    }

    /// The names of its columns, without the time.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.columns.iter().map(|(name, _)| *name).filter(|name| *name != "now")
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The rows as a table of PostgreSQL whose parameters begin at `first`. `unnest` of many arrays would keep a
    /// separate table for each of them.
    pub fn postgres(&self, first: usize) -> String {
        let columns: Vec<String> = (self.columns.iter().enumerate())
            .map(|(at, (name, column))| format!("{} AS {name}", column.postgres_value(first + at)))
            .collect();
        let rows = self.columns.first().map_or("text[]", |(_, column)| column.postgres_type());
        format!(
            "(SELECT ordinal, {} FROM generate_series(1, cardinality(${first}::{rows})) AS ordinal) AS input",
            columns.join(", ")
        )
    }

    pub fn bind(self, arguments: &mut PgArguments) -> Result<(), sqlx::Error> {
        self.columns.into_iter().try_for_each(|(_, column)| column.bind(arguments))
    }

    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// One row as a table of SQLite, whose parameters are its values.
    pub fn sqlite(&self) -> String {
        let names = self.columns.iter().enumerate().map(|(at, (name, _))| format!("?{} AS {name}", at + 1));
        format!("(SELECT {}) AS input", names.collect::<Vec<_>>().join(", "))
    }

    /// The values of each row.
    pub fn sqlite_values(&self) -> Vec<Vec<Value>> {
        let values = |row| self.columns.iter().map(|(_, column)| column.sqlite_value(row)).collect();
        (0..self.count).map(values).collect()
    }
}
