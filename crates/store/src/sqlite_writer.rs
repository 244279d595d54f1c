//! SQLite's connection for placement's batches. It runs on placement's own thread, row by row with prepared statements.
//! The driver of all other calls has a separate thread, and each call to it costs two thread switches.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::types::Value;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, params_from_iter};
use uuid::Uuid;

use super::batch_write::Applied;
use super::connect::{WAIT_FOR_CONNECTION, WAL_BYTES, WAL_PAGES};

/// The pause between two attempts to begin while another process writes.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// More than the number of statements that plans use.
const STATEMENTS: usize = 64;
/// The codes for a row whose key already exists, in a unique index or as the primary key.
const UNIQUE_VIOLATIONS: [i32; 2] = [2067, 1555];

/// The changes of a plan for SQLite.
#[derive(Debug)]
pub struct SqliteWrite {
    pub before: Uuid,
    pub after: Uuid,
    pub parts: Vec<SqlitePart>,
}

/// One statement, which runs once for each row.
#[derive(Debug)]
pub struct SqlitePart {
    pub sql: Arc<str>,
    pub rows: Vec<Vec<Value>>,
    /// Whether each row must be found, or inserted.
    pub counted: bool,
}

/// The connection, while no write uses it.
#[derive(Debug, Default)]
pub struct SqliteWriter(Mutex<Option<Connection>>);

impl SqliteWriter {
    /// Writes everything or nothing. The caller must have this process's turn to write.
    pub async fn write(&self, file: &Path, write: &SqliteWrite) -> Result<Applied, Error> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let connection = kept.map_or_else(|| open(file), Ok)?;
        let since = Instant::now();
        while !has_begun(&connection, since)? {
            // Without blocking the thread: the other write may need it to end.
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        let applied = run(&connection, write);
        let ended = match applied {
            Ok(Applied::Committed) => connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])),
            _ => connection.prepare_cached("ROLLBACK").and_then(|mut rollback| rollback.execute([])),
        };
        // After a failed commit, as on a full disk, the connection may treat its transaction as open.
        if connection.is_autocommit() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        }
        let applied = applied?;
        ended.map(|_| applied)
    }

    pub fn close(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn open(file: &Path) -> Result<Connection, Error> {
    // The file exists, because other connections were opened before.
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.busy_timeout(Duration::ZERO)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "wal_autocheckpoint", WAL_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES)?;
    Ok(connection)
}

/// Begins a transaction. False while another process writes. An error if that has lasted too long.
fn has_begun(connection: &Connection, since: Instant) -> Result<bool, Error> {
    match connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]) {
        Ok(_) => Ok(true),
        Err(error) if is_busy(&error) && since.elapsed() < WAIT_FOR_CONNECTION => Ok(false),
        Err(error) => Err(error),
    }
}

fn run(connection: &Connection, SqliteWrite { before, after, parts }: &SqliteWrite) -> Result<Applied, Error> {
    let mut fence = connection.prepare_cached("UPDATE placement SET token = ?1 WHERE token = ?2")?;
    if fence.execute([after.to_string(), before.to_string()])? != 1 {
        return Ok(Applied::Stale);
    }
    for SqlitePart { sql, rows, counted } in parts {
        let mut statement = connection.prepare_cached(sql)?;
        for row in rows {
            match statement.execute(params_from_iter(row)) {
                Ok(found) if found == 1 || !counted => {}
                Ok(_) => return Ok(Applied::Conflict),
                Err(error) if is_unique_violation(&error) => return Ok(Applied::Conflict),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Applied::Committed)
}

fn is_busy(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn is_unique_violation(error: &Error) -> bool {
    error.sqlite_error().is_some_and(|error| UNIQUE_VIOLATIONS.contains(&error.extended_code))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A database with a token and one bot.
    fn database(token: Uuid) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.db");
        let made = Connection::open(&file).unwrap();
        made.execute_batch(
            "PRAGMA journal_mode = WAL; CREATE TABLE placement (token TEXT NOT NULL);
             CREATE TABLE bots (id TEXT PRIMARY KEY, status TEXT NOT NULL); INSERT INTO bots VALUES ('a', 'reserved')",
        )
        .unwrap();
        made.execute("INSERT INTO placement VALUES (?1)", [token.to_string()]).unwrap();
        (folder, file)
    }

    fn part(sql: &str, rows: &[&[&str]], counted: bool) -> SqlitePart {
        let values = |row: &&[&str]| row.iter().map(|value| Value::Text((*value).to_owned())).collect();
        SqlitePart { sql: sql.into(), rows: rows.iter().map(values).collect(), counted }
    }

    fn read(file: &Path) -> Vec<(String, String)> {
        let reader = Connection::open(file).unwrap();
        let mut statement = reader.prepare("SELECT id, status FROM bots ORDER BY id").unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    }

    const INSERT: &str = "INSERT INTO bots (id, status) SELECT id, 'reserved' FROM (SELECT ?1 AS id) AS input";
    const END: &str = "UPDATE bots SET status = 'completed' FROM (SELECT ?1 AS id) AS input WHERE bots.id = input.id";

    #[tokio::test]
    async fn a_write_is_all_or_nothing_and_holds_only_under_its_token() {
        let [first, second, third] = [(); 3].map(|()| Uuid::new_v4());
        let (_folder, file) = database(first);
        let writer = SqliteWriter::default();
        let write = |before, after, parts| SqliteWrite { before, after, parts };
        let both = vec![part(INSERT, &[&["b"], &["c"]], false), part(END, &[&["a"]], true)];
        assert_eq!(writer.write(&file, &write(first, second, both)).await.unwrap(), Applied::Committed);
        let written =
            [("a", "completed"), ("b", "reserved"), ("c", "reserved")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(read(&file), written);

        let stale = write(first, third, vec![part(INSERT, &[&["d"]], false)]);
        assert_eq!(writer.write(&file, &stale).await.unwrap(), Applied::Stale);
        let missing = vec![part(INSERT, &[&["d"]], false), part(END, &[&["nobody"]], true)];
        assert_eq!(writer.write(&file, &write(second, third, missing)).await.unwrap(), Applied::Conflict);
        let twice = vec![part(INSERT, &[&["d"], &["b"]], false)];
        assert_eq!(writer.write(&file, &write(second, third, twice)).await.unwrap(), Applied::Conflict);
        writer.write(&file, &write(second, third, vec![part("INSERT INTO nothing", &[&[]], false)])).await.unwrap_err();
        assert_eq!(read(&file), written, "what failed left nothing");

        let third_write = write(second, third, vec![part(INSERT, &[&["d"]], false)]);
        assert_eq!(writer.write(&file, &third_write).await.unwrap(), Applied::Committed);
        writer.close();
    }

    /// Both run on one thread: a writer that blocked it would never get its turn.
    #[tokio::test]
    async fn a_write_waits_for_another_process_without_blocking_its_thread() {
        let [before, after] = [(); 2].map(|()| Uuid::new_v4());
        let (_folder, file) = database(before);
        let other = Connection::open(&file).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let writer = SqliteWriter::default();
        let write = SqliteWrite { before, after, parts: vec![part(INSERT, &[&["b"]], false)] };
        let (applied, ()) = tokio::join!(writer.write(&file, &write), async {
            tokio::task::yield_now().await;
            other.execute_batch("COMMIT").unwrap();
        });
        assert_eq!(applied.unwrap(), Applied::Committed);
    }
}
