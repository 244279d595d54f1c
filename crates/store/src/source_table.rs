//! Finds the table of a result's column, from the text of the statement. Only errors need it, so it need not be fast.
//! If the text does not show the table, the error names the statement instead.

/// The table of a column. It is the one with the column's alias in the select list, otherwise the one that is written
/// and returned, otherwise the first one in the `FROM`.
pub fn source_table<'a>(sql: &'a str, column: &str) -> Option<&'a str> {
    let words = outer_words(sql);
    let alias = words.iter().find_map(|word| word.strip_suffix(column)?.strip_suffix('.'));
    alias.and_then(|alias| named(&words, alias)).or_else(|| returned(&words)).or_else(|| after(&words, &["FROM"]))
}

/// The words of a statement outside of brackets: subqueries and function arguments have other sources.
fn outer_words(sql: &str) -> Vec<&str> {
    let (mut depth, mut begun) = (0_usize, None);
    let mut words = Vec::new();
    for (at, letter) in sql.char_indices() {
        let is_part = depth == 0 && (letter.is_alphanumeric() || matches!(letter, '_' | '.'));
        match (is_part, begun) {
            (true, None) => begun = Some(at),
            (false, Some(from)) => {
                words.push(&sql[from..at]);
                begun = None;
            }
            _ => {}
        }
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    words.extend(begun.map(|from| &sql[from..]));
    words
}

/// The table that has this alias, or this name.
fn named<'a>(words: &[&'a str], alias: &str) -> Option<&'a str> {
    let sources = words.windows(4).filter(|words| matches!(words[0], "FROM" | "JOIN" | "UPDATE" | "INTO"));
    let mut sources = sources.map(|words| (words[1], if words[2] == "AS" { words[3] } else { words[2] }));
    let found = sources.find(|(table, known)| *known == alias || *table == alias).map(|(table, _)| table);
    found.or_else(|| words.windows(2).find(|words| words[0] == "FROM" && words[1] == alias).map(|words| words[1]))
}

/// The table that a statement writes and returns.
fn returned<'a>(words: &[&'a str]) -> Option<&'a str> {
    let end = words.iter().rposition(|word| *word == "RETURNING")?;
    let written = words[..end].iter().rposition(|word| matches!(*word, "INTO" | "UPDATE" | "DELETE"))?;
    // `ON CONFLICT … DO UPDATE SET` and `FOR UPDATE` name no table: the one before them counts.
    let verb = match words[written] {
        "UPDATE" if words.get(written + 1) == Some(&"SET") => return after(&words[..written], &["INTO"]),
        "DELETE" => written + 1,
        _ => written,
    };
    words.get(verb + 1).copied()
}

fn after<'a>(words: &[&'a str], keywords: &[&str]) -> Option<&'a str> {
    let at = words.iter().position(|word| keywords.contains(word))?;
    words.get(at + 1).copied().filter(|word| !matches!(*word, "json_each" | "json_to_recordset" | "WHERE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_a_column_is_read_off_the_statement() {
        let join = "SELECT b.id, s.connection_id, (SELECT max(x.at) FROM events x) AS at
                      FROM bots AS b LEFT JOIN sessions s ON s.bot_id = b.id WHERE b.status = 'active'";
        for (sql, column, table) in [
            ("SELECT id, status FROM bots WHERE id = $1", "status", "bots"),
            ("SELECT bot_id FROM queue", "bot_id", "queue"),
            (join, "connection_id", "sessions"),
            (join, "id", "bots"),
            (join, "at", "bots"),
            ("WITH held AS (SELECT 1 FROM slots) SELECT token FROM placement", "token", "placement"),
            (
                "UPDATE deployments SET state = 'active' WHERE slot IN (SELECT slot FROM x) RETURNING tries",
                "tries",
                "deployments",
            ),
            (
                "INSERT INTO budgets (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING now",
                "now",
                "budgets",
            ),
            ("DELETE FROM image_locks WHERE image = $1 RETURNING holder", "holder", "image_locks"),
            ("SELECT slots.name FROM slots JOIN pools ON pools.name = slots.pool", "name", "slots"),
        ] {
            assert_eq!(source_table(sql, column), Some(table), "{column} of {sql}");
        }
        assert_eq!(source_table("SELECT value FROM json_each($1)", "value"), None);
        assert_eq!(source_table("SELECT 1 AS one", "one"), None);
    }
}
