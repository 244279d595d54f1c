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
            // PostgreSQL says 57P0x while it starts or stops, 53300 when it has no connection to spare.
            sqlx::Error::Database(error)
                if error.code().is_some_and(|code| code.starts_with("57P0") || code == "53300") =>
            {
                StoreError::Unavailable { call, source }
            }
            _ => StoreError::Refused { call, source },
        }
    }
}
