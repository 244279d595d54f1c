//! Builds the text of a statement that writes many rows. Both databases use the same description of the write.

use crate::columns::{LOCATION, Rows};

/// The action on the rows `input`.
pub enum Write {
    /// The statement itself, with `{rows}` for the rows and `{fenced}` for the check of the token.
    Statement(&'static str),
    Insert(NewRows),
    /// Sets these columns.
    Update(Existing, &'static str),
    /// Sets every column of `input` that is not a key.
    UpdateAll(Existing),
    Delete(Existing),
}

/// New rows for a table, with every column of `input` except `now`.
#[derive(Clone, Copy)]
pub struct NewRows {
    table: &'static str,
    /// Additional columns, each with its value.
    more: &'static [(&'static str, &'static str)],
    /// Whether an existing row stays unchanged.
    keeps_existing: bool,
}

/// Rows that are inserted into a table.
pub const fn new_rows(table: &'static str) -> NewRows {
    NewRows { table, more: &[], keeps_existing: false }
}

impl NewRows {
    pub const fn with(self, more: &'static [(&'static str, &'static str)]) -> Self {
        Self { more, ..self }
    }

    pub const fn keeping_existing(self) -> Self {
        Self { keeps_existing: true, ..self }
    }

    fn text(&self, rows: &Rows<'_>, from: &str, fenced: &str) -> String {
        let names: Vec<&str> = rows.names().chain(self.more.iter().map(|(name, _)| *name)).collect();
        let values: Vec<&str> = rows.names().chain(self.more.iter().map(|(_, value)| *value)).collect();
        let conflict = if self.keeps_existing { " ON CONFLICT DO NOTHING" } else { "" };
        let (table, names, values) = (self.table, names.join(", "), values.join(", "));
        format!("INSERT INTO {table} ({names}) SELECT {values} FROM {from} WHERE {fenced}{conflict}")
    }
}

/// Existing rows of a table.
#[derive(Clone, Copy)]
pub struct Existing {
    pub table: &'static str,
    /// The columns that find a row, each with the column of `input` that has its value.
    pub keys: &'static [(&'static str, &'static str)],
    /// An additional condition on the row.
    pub only_if: &'static str,
    /// On PostgreSQL, whether the row's newest version has the highest `epoch`.
    pub has_epoch: bool,
    /// On PostgreSQL, whether `input` has a column `location`, the last location of the row.
    pub has_location: bool,
}

/// Increases the epoch in some of the updates. This is rare enough that most updates need not write an index, and
/// frequent enough that few versions share an epoch.
pub const NEXT_EPOCH: &str = "epoch + CASE WHEN random() < 0.03 THEN 1 ELSE 0 END";

/// Rows that are found by these columns.
pub const fn existing(table: &'static str, keys: &'static [(&'static str, &'static str)]) -> Existing {
    Existing { table, keys, only_if: "true", has_epoch: false, has_location: false }
}

impl Existing {
    pub const fn only_if(self, condition: &'static str) -> Self {
        Self { only_if: condition, ..self }
    }

    pub const fn with_epoch(self) -> Self {
        Self { has_epoch: true, ..self }
    }

    pub const fn with_location(self) -> Self {
        Self { has_location: true, ..self }
    }

    /// Sets every column of the rows that is not a key.
    fn set_all(&self, rows: &Rows<'_>) -> String {
        let is_key = |name: &str| self.keys.iter().any(|(_, column)| *column == name);
        let set =
            rows.names().filter(|name| !is_key(name) && *name != LOCATION).map(|name| format!("{name} = input.{name}"));
        set.collect::<Vec<_>>().join(", ")
    }

    fn is_found(&self, table: &str) -> String {
        let equal = self.keys.iter().map(|(key, column)| format!("{table}.{key} = input.{column}"));
        equal.collect::<Vec<_>>().join(" AND ")
    }

    /// Finds each row by the index, whatever PostgreSQL assumes about the size of the table. Its statistics may be from
    /// when the table was empty, or the table may have many versions of each row because a transaction is open.
    fn found_by_index(&self, rows: &str) -> String {
        let (table, is_found) = (self.table, self.is_found("found"));
        let newest = if self.has_epoch { "ORDER BY found.epoch DESC " } else { "" };
        let newest = format!("SELECT found.ctid AS location FROM {table} AS found WHERE {is_found} {newest}LIMIT 1");
        let (newest, is_it) = if self.has_location {
            // Another row may be at this location now. With an equality PostgreSQL would use the index instead.
            let same =
                self.keys.iter().map(|(key, column)| format!("{table}.{key} IS NOT DISTINCT FROM input.{column}"));
            let same = same.collect::<Vec<_>>().join(" AND ");
            (format!("SELECT coalesce(input.location, ({newest})) AS location OFFSET 0"), same)
        } else {
            (newest, "true".to_owned())
        };
        format!(
            "{rows} CROSS JOIN LATERAL ({newest}) AS newest WHERE {table}.ctid = newest.location AND {is_it} AND {}",
            self.only_if
        )
    }
}

impl Write {
    /// Whether PostgreSQL returns the location of each row.
    pub fn has_location(&self) -> bool {
        matches!(
            self,
            Write::Update(Existing { has_location: true, .. }, _)
                | Write::UpdateAll(Existing { has_location: true, .. })
        )
    }

    pub fn sqlite(&self, rows: &Rows<'_>) -> String {
        let from = rows.sqlite();
        let update = |existing: &Existing, set: &str| {
            let (table, is_found, only_if) = (existing.table, existing.is_found(existing.table), existing.only_if);
            format!("UPDATE {table} SET {set} FROM {from} WHERE {is_found} AND {only_if}")
        };
        match self {
            Write::Statement(text) => text.replace("{rows}", &from).replace("{fenced}", "true").replace("::json", ""),
            Write::Insert(new) => new.text(rows, &from, "true"),
            Write::Update(existing, set) => update(existing, &set.replace("::json", "")),
            Write::UpdateAll(existing) => update(existing, &existing.set_all(rows)),
            Write::Delete(existing) => {
                let columns = |at: fn(&(&'static str, &'static str)) -> &'static str| {
                    existing.keys.iter().map(at).collect::<Vec<_>>().join(", ")
                };
                format!(
                    "DELETE FROM {0} WHERE ({1}) IN (SELECT {2} FROM {from} WHERE {3})",
                    existing.table,
                    columns(|(key, _)| key),
                    columns(|(_, column)| column),
                    existing.only_if
                )
            }
        }
    }

    /// The parameters of the rows begin at `first`.
    pub fn postgres(&self, rows: &Rows<'_>, first: usize, fenced: &str) -> String {
        let from = rows.postgres(first);
        let update = |existing: &Existing, set: &str| {
            let (table, found) = (existing.table, existing.found_by_index(&from));
            let epoch = if existing.has_epoch { format!(", epoch = {table}.{NEXT_EPOCH}") } else { String::new() };
            format!("UPDATE {table} SET {set}{epoch} FROM {found} AND {fenced}")
        };
        match self {
            Write::Statement(text) => text.replace("{rows}", &from).replace("{fenced}", fenced),
            Write::Insert(new) => new.text(rows, &from, fenced),
            Write::Update(existing, set) => update(existing, set),
            Write::UpdateAll(existing) => update(existing, &existing.set_all(rows)),
            Write::Delete(existing) => {
                format!("DELETE FROM {} USING {} AND {fenced}", existing.table, existing.found_by_index(&from))
            }
        }
    }
}
