//! What keepers have done, and which of them somebody wants to run now.

use jiff::Timestamp;

use super::record::record;
use super::sql::{args, sql};
use super::{Run, Store, StoreError};

record! {
    /// What a keeper has done last.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct KeeperRow, columns keeper_columns, read keeper {
        pub name: String,
        pub last_run: Option<Timestamp>,
        pub took_ms: Option<i64>,
        /// What it did, as the text of a JSON object.
        pub did: String,
        /// What went wrong, if something did.
        pub error: Option<String>,
        pub next_run: Option<Timestamp>,
        /// How often a run was asked for by hand, and up to which of these it was done.
        pub asked: i64,
        pub answered: i64,
        /// What came of the last one that was asked for, as the text of JSON.
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

    /// Asks that a keeper runs now, and says under which number.
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

    /// Keeps what a keeper did, to be shown unless a later run is known. What was asked for up to `answered` is done, with this answer.
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
