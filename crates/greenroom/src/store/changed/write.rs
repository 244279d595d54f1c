//! The text of a statement that writes many rows.

use crate::store::columns::{LOCATION, Rows};

/// What is done with the rows `r`.
pub enum Write {
    /// The statement itself, with `{rows}` for the rows and `{fenced}` for the test that the token fitted.
    Statement(&'static str),
    Insert(NewRows),
    /// Sets these columns.
    Update(Existing, &'static str),
    /// Sets every column of `r` that is no key.
    UpdateAll(Existing),
    Delete(Existing),
}

/// Rows that a table does not have yet, with every column of `r` but `now`.
#[derive(Clone, Copy)]
pub struct NewRows {
    table: &'static str,
    /// More columns, each with its value.
    more: &'static [(&'static str, &'static str)],
    /// What is there already is left as it is.
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

/// Rows of a table that are there.
#[derive(Clone, Copy)]
pub struct Existing {
    pub table: &'static str,
    /// Columns by which a row is found, each with the column of `r` that has its value.
    pub keys: &'static [(&'static str, &'static str)],
    /// What else must hold of the row.
    pub only_if: &'static str,
    /// Whether the row's newest version is the one with the highest `epoch`, on PostgreSQL.
    pub has_epoch: bool,
    /// Whether `r` has a column `location`: where the row was written last, on PostgreSQL.
    pub has_location: bool,
}

/// Goes up with some of the updates: seldom enough that most need not write an index, and often enough that few versions
/// have the same one.
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

    /// Sets every column of the rows that is no key.
    fn set_all(&self, rows: &Rows<'_>) -> String {
        let is_key = |name: &str| self.keys.iter().any(|(_, column)| *column == name);
        let set =
            rows.names().filter(|name| !is_key(name) && *name != LOCATION).map(|name| format!("{name} = r.{name}"));
        set.collect::<Vec<_>>().join(", ")
    }

    fn is_found(&self, table: &str) -> String {
        let equal = self.keys.iter().map(|(key, column)| format!("{table}.{key} = r.{column}"));
        equal.collect::<Vec<_>>().join(" AND ")
    }

    /// Each row by a look at the index, whatever PostgreSQL believes about the size of the table: it was analysed when the
    /// table was empty, or has many versions of each row because a transaction is held open.
    fn found_by_index(&self, rows: &str) -> String {
        let (table, is_found) = (self.table, self.is_found("found"));
        let newest = if self.has_epoch { "ORDER BY found.epoch DESC " } else { "" };
        let newest = format!("SELECT found.ctid AS location FROM {table} AS found WHERE {is_found} {newest}LIMIT 1");
        let (newest, is_it) = if self.has_location {
            // Another row may be there by now. An equality would let PostgreSQL go by the index all the same.
            let same = self.keys.iter().map(|(key, column)| format!("{table}.{key} IS NOT DISTINCT FROM r.{column}"));
            let same = same.collect::<Vec<_>>().join(" AND ");
            (format!("SELECT coalesce(r.location, ({newest})) AS location OFFSET 0"), same)
        } else {
            (newest, "true".to_owned())
        };
        format!(
            "{rows} CROSS JOIN LATERAL ({newest}) AS at WHERE {table}.ctid = at.location AND {is_it} AND {}",
            self.only_if
        )
    }
}

impl Write {
    /// Whether PostgreSQL tells where it has put each row.
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
