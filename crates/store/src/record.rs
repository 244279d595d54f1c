//! Declares a table's row as a struct. [`record!`] lists each column once. From the list it makes the columns for
//! statements and the function that reads a row.

use domain::event::StartKind;
use domain::{
    Action, Attributes, AuditAction, BotId, CommandId, ConnectionId, EventId, Fault, KeyId, Platform, ShownStatus,
    SlotName, SlotStatus, Status, UserId,
};
use jiff::Timestamp;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::sql::Row;
use super::{Actor, Kind, StoreError};

/// Declares a struct with one field for each column. It also makes the macro that lists the columns in a statement, and
/// the function that reads the struct from a row. A field has the name of its column, unless it names another:
///
/// ```ignore
/// record! {
///     pub struct EventRow, columns event_columns, read event {
///         pub id: EventId,
///         pub to: Option<ShownStatus> = to_status,
///         pub host: String = host "coalesce(host, '')",
///         pub active: bool = state via is_active,
///     }
/// }
/// ```
///
/// `to` is read from the column `to_status`, and `host` from an expression under that name. A function that gets the
/// row and the name of the column reads `active`. For a struct of another module the fields have no types.
macro_rules! record {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident, columns $columns:ident, read $reader:ident {
            $(
                $(#[$field_meta:meta])*
                $field_visibility:vis $field:ident: $type:ty
                $(= $column:ident $($expression:literal)? $(via $via:path)?)?
            ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        $visibility struct $name {
            $($(#[$field_meta])* $field_visibility $field: $type,)+
        }

        $crate::record::record! {
            $name, columns $columns, read $reader {
                $($field $(= $column $($expression)? $(via $via)?)?),+
            }
        }
    };
    (
        $name:ident, columns $columns:ident, read $reader:ident {
            $($field:ident $(= $column:ident $($expression:literal)? $(via $via:path)?)?),+ $(,)?
        }
    ) => {
        macro_rules! $columns {
            () => {
                $crate::record::column_list!($(($field $($column $($expression)?)?)),+)
            };
        }

        pub(super) fn $reader(row: &$crate::sql::Row) -> Result<$name, $crate::StoreError> {
            Ok($name {
                $($field: $crate::record::read_column!(row, ($field $($column)?) $($(, $via)?)?),)+
            })
        }
    };
}

macro_rules! column_list {
    (($($first:tt)+) $(, ($($next:tt)+))*) => {
        concat!(
            $crate::record::column_text!($($first)+)
            $(, ", ", $crate::record::column_text!($($next)+))*
        )
    };
}

macro_rules! column_text {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $column:ident) => {
        stringify!($column)
    };
    ($field:ident $column:ident $expression:literal) => {
        concat!($expression, " AS ", stringify!($column))
    };
}

macro_rules! read_column {
    ($row:ident, ($field:ident)) => {
        $crate::record::FromColumn::read($row, stringify!($field))?
    };
    ($row:ident, ($field:ident $column:ident)) => {
        $crate::record::FromColumn::read($row, stringify!($column))?
    };
    ($row:ident, ($field:ident $column:ident), $via:path) => {
        $via($row, stringify!($column))?
    };
}

pub(super) use {column_list, column_text, read_column, record};

/// A type that a column can hold.
pub(super) trait FromColumn: Sized {
    fn read(row: &Row, column: &'static str) -> Result<Self, StoreError>;
}

/// Implements the trait for types that a function of the row reads, and for their optional forms.
macro_rules! read_by {
    ($($type:ty => $read:ident, $maybe:ident;)+) => {
        $(
            impl FromColumn for $type {
                fn read(row: &Row, column: &'static str) -> Result<Self, StoreError> {
                    row.$read(column)
                }
            }
            impl FromColumn for Option<$type> {
                fn read(row: &Row, column: &'static str) -> Result<Self, StoreError> {
                    row.$maybe(column)
                }
            }
        )+
    };
}

read_by! {
    i64 => int, maybe_int;
    String => text, maybe_text;
    Uuid => id, maybe_id;
    Timestamp => time, maybe_time;
    Map<String, Value> => json, maybe_json;
    Action => word, maybe_word;
    Actor => word, maybe_word;
    Attributes => word, maybe_word;
    AuditAction => word, maybe_word;
    Fault => word, maybe_word;
    Kind => word, maybe_word;
    Platform => word, maybe_word;
    ShownStatus => word, maybe_word;
    SlotStatus => word, maybe_word;
    StartKind => word, maybe_word;
    Status => word, maybe_word;
}

/// Implements the trait for types that wrap another column type.
macro_rules! read_as {
    ($($type:ty => $inner:ty, $wrap:path;)+) => {
        $(
            impl FromColumn for $type {
                fn read(row: &Row, column: &'static str) -> Result<Self, StoreError> {
                    <$inner>::read(row, column).map($wrap)
                }
            }
            impl FromColumn for Option<$type> {
                fn read(row: &Row, column: &'static str) -> Result<Self, StoreError> {
                    Ok(Option::<$inner>::read(row, column)?.map($wrap))
                }
            }
        )+
    };
}

read_as! {
    BotId => Uuid, BotId;
    CommandId => Uuid, CommandId;
    ConnectionId => Uuid, ConnectionId;
    EventId => i64, EventId;
    KeyId => Uuid, KeyId;
    SlotName => String, SlotName::stored;
    UserId => Uuid, UserId;
}

impl FromColumn for f64 {
    fn read(row: &Row, column: &'static str) -> Result<Self, StoreError> {
        row.real(column)
    }
}

/// A count, or 1 for true.
impl FromColumn for bool {
    fn read(row: &Row, column: &'static str) -> Result<Self, StoreError> {
        Ok(row.int(column)? > 0)
    }
}

impl FromColumn for Value {
    fn read(row: &Row, column: &'static str) -> Result<Self, StoreError> {
        row.json(column)
    }
}

impl FromColumn for Vec<Attributes> {
    fn read(row: &Row, column: &'static str) -> Result<Self, StoreError> {
        let texts: Vec<String> = row.json(column)?;
        texts.iter().map(|text| text.parse().map_err(|_| row.inconsistent(column, text))).collect()
    }
}

#[cfg(test)]
mod tests {
    record! {
        #[allow(dead_code)]
        pub struct Example, columns example_columns, read example {
            name: String,
            to: Option<String> = to_status,
            host: String = host "coalesce(host, '')",
            active: bool = state via super::FromColumn::read,
        }
    }

    #[test]
    fn a_record_lists_its_columns_in_the_order_of_its_fields() {
        assert_eq!(example_columns!(), "name, to_status, coalesce(host, '') AS host, state");
        let _: fn(&super::Row) -> Result<Example, super::StoreError> = example;
    }
}
