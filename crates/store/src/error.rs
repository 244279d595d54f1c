//! The errors of the store, in terms that its callers use.

/// A failed call to the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached or has no free connection. A retry may help.
    #[error("the database is unavailable ({call}): {source}")]
    Unavailable { call: &'static str, source: sqlx::Error },

    /// The database answered with a refusal.
    #[error("the database refused {call}: {source}")]
    Refused { call: &'static str, source: sqlx::Error },

    /// A stored value is not one that this program writes.
    #[error(
        "the database is inconsistent: in the table {table}, column {column} of the row {row} holds {found} ({call})"
    )]
    Inconsistent { call: &'static str, table: String, column: &'static str, row: String, found: String },

    /// A write did not fit, even after several new decisions.
    #[error("{call} failed after several attempts: {why}")]
    Conflict { call: &'static str, why: String },

    /// An error in Greenroom's own code, not in the database.
    #[error("a fault in Greenroom itself ({call}): {why}")]
    Internal { call: &'static str, why: String },

    /// The called part has ended, because the server stops.
    #[error("the server is stopping ({call})")]
    Stopping { call: &'static str },

    /// The database URL cannot be opened.
    #[error("{0}")]
    Url(String),

    /// Another server uses the SQLite file.
    #[error(
        "another greenroom server{} uses the database {database}; stop that server, or use another database (several \
         servers can share a PostgreSQL database)",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse { pid: Option<u32>, database: String },

    /// A newer version made the database. This version has not changed it.
    #[error(
        "the database is at schema version {found}, which is newer than the {known} that this version of greenroom \
         knows. This version has not changed the database. Start the newer greenroom instead."
    )]
    Newer { found: i64, known: i64 },
}

impl StoreError {
    /// A call that the database did not answer in time.
    pub fn timed_out(call: &'static str) -> Self {
        StoreError::Unavailable { call, source: sqlx::Error::Protocol("no answer in time".to_owned()) }
    }

    /// An error in Greenroom's own code.
    pub fn internal(call: &'static str, why: impl std::fmt::Display) -> Self {
        StoreError::Internal { call, why: why.to_string() }
    }

    /// A task that did not finish: it panicked, or the server stops.
    pub fn ended(call: &'static str, error: &tokio::task::JoinError) -> Self {
        if error.is_cancelled() { StoreError::Stopping { call } } else { StoreError::internal(call, error) }
    }

    /// A copy of the error, for another caller that waited for the same call.
    pub fn copy(&self) -> Self {
        let copied = |source: &sqlx::Error| sqlx::Error::Protocol(source.to_string());
        match self {
            StoreError::Unavailable { call, source } => StoreError::Unavailable { call, source: copied(source) },
            StoreError::Refused { call, source } => StoreError::Refused { call, source: copied(source) },
            StoreError::Inconsistent { call, table, column, row, found } => {
                let (table, row, found) = (table.clone(), row.clone(), found.clone());
                StoreError::Inconsistent { call, table, column, row, found }
            }
            StoreError::Conflict { call, why } => StoreError::Conflict { call, why: why.clone() },
            StoreError::Internal { call, why } => StoreError::Internal { call, why: why.clone() },
            StoreError::Stopping { call } => StoreError::Stopping { call },
            StoreError::Url(url) => StoreError::Url(url.clone()),
            StoreError::InUse { pid, database } => StoreError::InUse { pid: *pid, database: database.clone() },
            StoreError::Newer { found, known } => StoreError::Newer { found: *found, known: *known },
        }
    }

    /// A failed call on placement's SQLite connection.
    pub(super) fn sqlite(call: &'static str, source: &rusqlite::Error) -> Self {
        let passes = source.sqlite_error().is_some_and(|error| is_transient(&error.extended_code.to_string()));
        let source = sqlx::Error::Protocol(source.to_string());
        if passes { StoreError::Unavailable { call, source } } else { StoreError::Refused { call, source } }
    }

    pub(super) fn call(call: &'static str, source: sqlx::Error) -> Self {
        match &source {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => StoreError::Unavailable { call, source },
            sqlx::Error::Database(error) if error.code().is_some_and(|code| is_transient(&code)) => {
                StoreError::Unavailable { call, source }
            }
            _ => StoreError::Refused { call, source },
        }
    }
}

/// Database codes for transient trouble. PostgreSQL starts, stops, is read-only, lacks connections, memory or disk,
/// lost a connection, or timed out. SQLite is busy, or its disk fails.
fn is_transient(code: &str) -> bool {
    const POSTGRES: [&str; 5] = ["25006", "25P03", "57014", "55P03", "40P01"];
    const SQLITE: [&str; 6] = ["5", "6", "10", "13", "14", "15"];
    let primary = code.parse::<u32>().ok().filter(|_| code.len() < 5).map(|code| (code & 0xff).to_string());
    code.starts_with("57P")
        || (code.len() == 5 && (code.starts_with("08") || code.starts_with("53")))
        || POSTGRES.contains(&code)
        || primary.is_some_and(|code| SQLITE.contains(&code.as_str()))
}

#[cfg(test)]
mod tests {
    use super::is_transient;

    #[test]
    fn transient_errors_are_distinguished_from_errors_of_the_statement() {
        // The last byte of SQLite's extended code is the primary one: 778 is a failed write, 517 a busy snapshot.
        for code in ["57P01", "57P03", "53300", "53100", "08006", "25006", "25P03", "40P01", "5", "517", "778", "13"] {
            assert!(is_transient(code), "{code}");
        }
        for code in ["23505", "42601", "22P05", "1", "19", "2067", "1555"] {
            assert!(!is_transient(code), "{code}");
        }
    }
}
