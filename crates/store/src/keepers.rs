//! The last runs of keepers, and the requests of operators to run a keeper now.

use jiff::Timestamp;

use super::record::record;
use super::sql::{args, sql};
use super::{Run, Store, StoreError};

record! {
    /// The last run of a keeper.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct KeeperRow, columns keeper_columns, read keeper {
        pub name: String,
        pub last_run: Option<Timestamp>,
        pub took_ms: Option<i64>,
        /// The result, as the text of a JSON object.
        pub did: String,
        /// The error, if there was one.
        pub error: Option<String>,
        pub next_run: Option<Timestamp>,
        /// How many runs operators have requested, and up to which of them the keeper has run.
        pub asked: i64,
        pub answered: i64,
        /// The result of the last requested run, as JSON text.
        pub answer: Option<String>,
    }
}

impl Store {
    pub async fn keepers(&self) -> Result<Vec<KeeperRow>, StoreError> {
        self.reader()
            .all(sql!("keepers.list", "SELECT ", keeper_columns!(), " FROM keepers"), vec![])
            .await?
            .iter()
            .map(keeper)
            .collect()
    }

    /// Requests that a keeper runs now, and returns the number of the request.
    pub async fn ask_keeper(&self, name: &str) -> Result<i64, StoreError> {
        let mut tx = self.begin().await?;
        let asked = tx
            .first(
                sql!(
                    "keepers.ask",
                    "INSERT INTO keepers (name, asked) VALUES ($1, 1)
                     ON CONFLICT (name) DO UPDATE SET asked = keepers.asked + 1 RETURNING asked"
                ),
                args![name],
            )
            .await?
            .map_or(Ok(0), |row| row.int("asked"))?;
        tx.commit().await?;
        Ok(asked)
    }

    /// Stores a keeper's run, unless a later run is stored. All requests up to `answered` are done, with this answer.
    pub async fn keep_run(&self, run: &KeeperRow) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(
            sql!(
                "keepers.ran",
                "INSERT INTO keepers (name, last_run, took_ms, did, error, next_run, answered, answer)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                 ON CONFLICT (name) DO UPDATE SET
                     took_ms = CASE WHEN keepers.last_run > excluded.last_run
                                    THEN keepers.took_ms ELSE excluded.took_ms END,
                     did = CASE WHEN keepers.last_run > excluded.last_run THEN keepers.did ELSE excluded.did END,
                     error = CASE WHEN keepers.last_run > excluded.last_run THEN keepers.error ELSE excluded.error END,
                     next_run = CASE WHEN keepers.last_run > excluded.last_run
                                     THEN keepers.next_run ELSE excluded.next_run END,
                     last_run = CASE WHEN keepers.last_run > excluded.last_run
                                     THEN keepers.last_run ELSE excluded.last_run END,
                     answer = CASE WHEN excluded.answered > keepers.answered
                                   THEN excluded.answer ELSE keepers.answer END,
                     answered = CASE WHEN excluded.answered > keepers.answered
                                     THEN excluded.answered ELSE keepers.answered END"
            ),
            args![
                run.name.as_str(),
                run.last_run,
                run.took_ms,
                run.did.as_str(),
                run.error.as_deref(),
                run.next_run,
                run.answered,
                run.answer.as_deref()
            ],
        )
        .await?;
        tx.commit().await
    }
}
