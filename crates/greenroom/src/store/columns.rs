//! Many rows as one value for each column: binary arrays on PostgreSQL, one JSON document on SQLite.

use jiff::Timestamp;
use sqlx::Arguments;
use sqlx::postgres::PgArguments;
use uuid::Uuid;

use super::sql::sortable;

/// The values of one column, a row after the other.
#[derive(Clone, Debug)]
pub(super) enum Column {
    Ids(Vec<Option<Uuid>>),
    Texts(Vec<Option<String>>),
    Ints(Vec<Option<i64>>),
    Times(Vec<Option<Timestamp>>),
}

impl Column {
    fn postgres_type(&self) -> &'static str {
        match self {
            Column::Ids(_) => "uuid[]",
            Column::Texts(_) => "text[]",
            Column::Ints(_) => "bigint[]",
            Column::Times(_) => "timestamptz[]",
        }
    }

    fn bind(self, arguments: &mut PgArguments) -> Result<(), sqlx::Error> {
        match self {
            Column::Ids(values) => arguments.add(values),
            Column::Texts(values) => arguments.add(values),
            Column::Ints(values) => arguments.add(values),
            Column::Times(values) => {
                arguments.add(values.into_iter().map(|time| time.map(jiff_sqlx::Timestamp::from)).collect::<Vec<_>>())
            }
        }
        .map_err(sqlx::Error::Encode)
    }

    fn write_json(&self, row: usize, json: &mut String) {
        let text = |json: &mut String, text: &str| {
            json.push_str(&serde_json::Value::String(text.to_owned()).to_string());
        };
        match self {
            Column::Ids(values) => match values.get(row).copied().flatten() {
                Some(id) => text(json, &id.to_string()),
                None => json.push_str("null"),
            },
            Column::Texts(values) => match values.get(row).and_then(Option::as_deref) {
                Some(value) => text(json, value),
                None => json.push_str("null"),
            },
            Column::Ints(values) => match values.get(row).copied().flatten() {
                Some(value) => json.push_str(&value.to_string()),
                None => json.push_str("null"),
            },
            Column::Times(values) => match values.get(row).copied().flatten() {
                Some(time) => text(json, &sortable(time)),
                None => json.push_str("null"),
            },
        }
    }
}

/// Rows, by the names of their columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    columns: Vec<(&'static str, Column)>,
    count: usize,
}

macro_rules! columns {
    ($($name:ident($value:ty) => $variant:ident),+ $(,)?) => {
        $(
            pub fn $name<T>(mut self, name: &'static str, items: &[T], value: impl Fn(&T) -> $value) -> Self {
                self.count = items.len();
                self.columns.push((name, Column::$variant(items.iter().map(|item| value(item).into()).collect())));
                self
            }
        )+
    };
}

impl Rows {
    columns! {
        id(Uuid) => Ids,
        maybe_id(Option<Uuid>) => Ids,
        text(String) => Texts,
        maybe_text(Option<String>) => Texts,
        int(i64) => Ints,
        maybe_int(Option<i64>) => Ints,
        time(Timestamp) => Times,
        maybe_time(Option<Timestamp>) => Times,
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// As a table of PostgreSQL whose parameters begin at `first`.
    pub fn postgres(&self, first: usize) -> String {
        let arrays: Vec<String> = (self.columns.iter().enumerate())
            .map(|(at, (_, column))| format!("${}::{}", first + at, column.postgres_type()))
            .collect();
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        format!("unnest({}) AS r({})", arrays.join(", "), names.join(", "))
    }

    pub fn bind(self, arguments: &mut PgArguments) -> Result<(), sqlx::Error> {
        self.columns.into_iter().try_for_each(|(_, column)| column.bind(arguments))
    }

    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// As a table of SQLite whose one parameter is `$1`.
    pub fn sqlite(&self) -> String {
        let names = self.columns.iter().enumerate().map(|(at, (name, _))| format!("value ->> {at} AS {name}"));
        format!("(SELECT {} FROM json_each($1)) AS r", names.collect::<Vec<_>>().join(", "))
    }

    pub fn json(&self) -> String {
        let mut json = String::with_capacity(self.count * self.columns.len() * 24);
        json.push('[');
        for row in 0..self.count {
            json.push_str(if row == 0 { "[" } else { ",[" });
            for (at, (_, column)) in self.columns.iter().enumerate() {
                if at > 0 {
                    json.push(',');
                }
                column.write_json(row, &mut json);
            }
            json.push(']');
        }
        json.push(']');
        json
    }
}
