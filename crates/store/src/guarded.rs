//! Protects the tables that placement keeps in memory. A statement that writes one of them runs only in a transaction
//! that replaces placement's token. Any other transaction refuses it. A constant function finds these statements by
//! their text at compile time.

/// The tables on which placement decides.
pub const TABLES: [&str; 7] = ["slots", "pools", "queue", "users", "api_keys", "idempotency_keys", "open_bots"];
const VERBS: [&str; 3] = ["INSERT INTO ", "UPDATE ", "DELETE FROM "];

/// Whether the text of a statement writes one of the tables.
pub const fn writes_guarded_table(sql: &str) -> bool {
    let text = sql.as_bytes();
    let mut at = 0;
    while at < text.len() {
        let mut verb = 0;
        while verb < VERBS.len() {
            if has_at(text, at, VERBS[verb]) && is_guarded_at(text, at + VERBS[verb].len()) {
                return true;
            }
            verb += 1;
        }
        at += 1;
    }
    false
}

const fn is_guarded_at(text: &[u8], at: usize) -> bool {
    let mut table = 0;
    while table < TABLES.len() {
        let end = at + TABLES[table].len();
        let ends = end >= text.len() || !(text[end].is_ascii_alphanumeric() || text[end] == b'_');
        if ends && has_at(text, at, TABLES[table]) {
            return true;
        }
        table += 1;
    }
    false
}

const fn has_at(text: &[u8], at: usize, word: &str) -> bool {
    let word = word.as_bytes();
    if at + word.len() > text.len() {
        return false;
    }
    let mut letter = 0;
    while letter < word.len() {
        if text[at + letter] != word[letter] {
            return false;
        }
        letter += 1;
    }
    true
}

pub const TOKEN_NOT_REPLACED: &str =
    "the statement writes rows that placement keeps in memory, but its transaction does not replace placement's token";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Arg, Run, Store, Tx};

    #[test]
    fn a_statement_that_writes_a_guarded_table_is_recognised_by_its_text() {
        for text in
            ["UPDATE slots SET a = 1", "WITH x AS (DELETE FROM queue) SELECT 1", "INSERT INTO pools (a) VALUES (1)"]
        {
            assert!(writes_guarded_table(text), "{text}");
        }
        for text in
            ["SELECT * FROM slots", "UPDATE slot_locks SET a = 1", "UPDATE bots SET slots = 1", "INSERT INTO events"]
        {
            assert!(!writes_guarded_table(text), "{text}");
        }
    }

    /// The store's own source, file by file, without its tests.
    fn sources() -> Vec<(String, String)> {
        let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut sources = Vec::new();
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
                sources.push((path.file_name().unwrap().to_string_lossy().into_owned(), code));
            }
        }
        sources
    }

    /// The text from the first to the last quotation mark of the macro call at `at`, and the name.
    fn statement(code: &str, at: usize) -> (String, String) {
        let rest = &code[at..];
        let mut depth = 0;
        let end = rest.char_indices().find_map(|(index, letter)| {
            match letter {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            (depth == 0 && letter == ')').then_some(index)
        });
        let text = &rest[..end.unwrap()];
        let name = text.split('"').nth(1).unwrap_or_default();
        (name.to_owned(), text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Every statement of the store whose text writes a guarded table, found by this test's own reading of the source.
    fn guarded_statements() -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (file, code) in sources().into_iter().filter(|(file, _)| file != "sql.rs") {
            for macro_name in ["sql!(", "sql_over!(", "sql_locking!("] {
                for (at, _) in code.match_indices(macro_name) {
                    let (name, text) = statement(&code, at + macro_name.len() - 1);
                    let writes = |table: &str| {
                        VERBS.iter().any(|verb| {
                            text.match_indices(&format!("{verb}{table}")).any(|(at, word)| {
                                !text[at + word.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
                            })
                        })
                    };
                    if TABLES.iter().any(|table| writes(table)) {
                        found.push((file.clone(), name));
                    }
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn every_statement_that_writes_a_guarded_table_is_known() {
        let names: Vec<String> =
            guarded_statements().into_iter().map(|(file, name)| format!("{file} {name}")).collect();
        let known = [
            "bots.rs open_bots.delete",
            "deleted_users.rs deleted_users.api_keys",
            "deleted_users.rs deleted_users.user",
            "leftovers.rs retention.api_keys",
            "leftovers.rs retention.idempotency_keys",
            "pools.rs pools.change_attributes",
            "pools.rs pools.configure",
            "pools.rs pools.delete",
            "pools.rs pools.keep_settings",
            "pools.rs pools.recount",
            "pools.rs pools.resize",
            "pools.rs pools.unconfigure",
            "pools.rs pools.unconfigure_one",
            "queue.rs queue.leave",
            "slots.rs slots.await_clearing",
            "slots.rs slots.change",
            "slots.rs slots.change_expiry",
            "slots.rs slots.replace_attributes",
            "users.rs keys.expire",
            "users.rs keys.insert",
            "users.rs users.insert",
            "users.rs users.update",
        ];
        assert_eq!(names, known, "does placement know what a new statement changes? its transaction must say so");
    }

    #[test]
    fn only_a_transaction_and_the_write_of_a_plan_reach_the_database() {
        let reaching: Vec<String> = (sources().into_iter())
            .filter(|(_, code)| ["sqlx::query", ".execute(", "sqlx::raw_sql"].iter().any(|call| code.contains(call)))
            .map(|(file, _)| file)
            .collect();
        let mut reaching = reaching;
        reaching.sort();
        // batch_write.rs and sqlite_writer.rs check the token themselves. The others write no table, or write it while
        // the database is not in use.
        assert_eq!(
            reaching,
            ["batch_write.rs", "connect.rs", "lib.rs", "migrate.rs", "placement_turn.rs", "sqlite_writer.rs"]
        );
    }

    async fn refused(tx: &mut Tx, sql: &'static crate::sql::Sql) -> String {
        tx.all(sql, Vec::<Arg>::new()).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_transaction_that_does_not_replace_the_token_refuses_to_write_a_guarded_table() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}", folder.path().join("a.db").display())).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        let error = refused(&mut tx, crate::sql::sql!("slots.some", "UPDATE slots SET number = 1")).await;
        assert!(error.contains("slots.some") && error.contains("token"), "{error}");
        tx.run(crate::sql::sql!("bots.some", "UPDATE bots SET priority = 1"), vec![]).await.unwrap();
        drop(tx);
        let changed = crate::Changed::everything();
        let mut tx = store.begin_changing(&changed, jiff::Timestamp::now()).await.unwrap();
        tx.run(crate::sql::sql!("slots.some", "UPDATE slots SET number = 1"), vec![]).await.unwrap();
    }
}
