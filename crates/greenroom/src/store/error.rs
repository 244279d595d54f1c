//! What can go wrong with the store, in its callers' terms.

/// A failed call to the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached or has no connection to spare: trying again later may help.
    #[error("the database does not answer ({call}): {source}")]
    Unavailable { call: &'static str, source: sqlx::Error },

    /// The database answered, and refused.
    #[error("the database refused {call}: {source}")]
    Refused { call: &'static str, source: sqlx::Error },

    /// A stored value is not what the code that wrote it would have written.
    #[error("{call} read an inconsistent row: column {column} holds {found}")]
    Inconsistent { call: &'static str, column: &'static str, found: String },

    /// The database URL is not one that can be opened.
    #[error("{0}")]
    Url(String),

    /// The database was made by a newer version; it has not been touched.
    #[error(
        "the database is at schema version {found}, which is newer than the {known} that this version of greenroom \
         knows; it was not touched. Start the newer greenroom instead."
    )]
    Newer { found: i64, known: i64 },
}

impl StoreError {
    pub(super) fn call(call: &'static str, source: sqlx::Error) -> Self {
        match &source {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => StoreError::Unavailable { call, source },
            sqlx::Error::Database(error) if error.code().is_some_and(|code| will_pass(&code)) => {
                StoreError::Unavailable { call, source }
            }
            _ => StoreError::Refused { call, source },
        }
    }
}

/// Codes of the databases' own that say nothing about the statement: PostgreSQL starts, stops, is read-only for now, has
/// no connection to spare, broke a connection, or gave up waiting for a lock; SQLite is busy, or its disk is full.
fn will_pass(code: &str) -> bool {
    const POSTGRES: [&str; 5] = ["25006", "53300", "57014", "55P03", "40P01"];
    const SQLITE: [&str; 4] = ["5", "6", "10", "13"];
    let primary = code.parse::<u32>().ok().filter(|_| code.len() < 5).map(|code| (code & 0xff).to_string());
    code.starts_with("57P")
        || (code.len() == 5 && code.starts_with("08"))
        || POSTGRES.contains(&code)
        || primary.is_some_and(|code| SQLITE.contains(&code.as_str()))
}
