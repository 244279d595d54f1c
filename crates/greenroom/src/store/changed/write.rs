//! The text of a statement that writes many rows.

/// What is done with the rows `r`.
pub enum Write {
    /// The statement itself, with `{rows}` for the rows and `{fenced}` for the test that the token fitted.
    Statement(&'static str),
    Update(Existing, &'static str),
    Delete(Existing),
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
        matches!(self, Write::Update(Existing { has_location: true, .. }, _))
    }

    pub fn sqlite(&self, rows: &str) -> String {
        match self {
            Write::Statement(text) => text.replace("{rows}", rows).replace("{fenced}", "true").replace("::json", ""),
            Write::Update(existing, set) => format!(
                "UPDATE {0} SET {1} FROM {rows} WHERE {2} AND {3}",
                existing.table,
                set.replace("::json", ""),
                existing.is_found(existing.table),
                existing.only_if
            ),
            Write::Delete(existing) => {
                let columns = |at: fn(&(&'static str, &'static str)) -> &'static str| {
                    existing.keys.iter().map(at).collect::<Vec<_>>().join(", ")
                };
                format!(
                    "DELETE FROM {0} WHERE ({1}) IN (SELECT {2} FROM {rows} WHERE {3})",
                    existing.table,
                    columns(|(key, _)| key),
                    columns(|(_, column)| column),
                    existing.only_if
                )
            }
        }
    }

    pub fn postgres(&self, rows: &str, fenced: &str) -> String {
        match self {
            Write::Statement(text) => text.replace("{rows}", rows).replace("{fenced}", fenced),
            Write::Update(existing, set) => {
                let epoch = if existing.has_epoch {
                    format!(", epoch = {}.{NEXT_EPOCH}", existing.table)
                } else {
                    String::new()
                };
                format!(
                    "UPDATE {} SET {set}{epoch} FROM {} AND {fenced}",
                    existing.table,
                    existing.found_by_index(rows)
                )
            }
            Write::Delete(existing) => {
                format!("DELETE FROM {} USING {} AND {fenced}", existing.table, existing.found_by_index(rows))
            }
        }
    }
}
