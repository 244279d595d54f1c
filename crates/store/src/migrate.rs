//! Migrates the database to the schema of this version. All migrations run in one transaction under a lock, so several
//! processes may start at once and the first one does the work. A newer database is left unchanged.

use jiff::Timestamp;

use super::connect::Pools;
use super::lanes::Lane;
use super::sql::{args, sql};
use super::{Run, StoreError, Tx, TxInner};

/// One migration of the schema.
struct Migration {
    version: i64,
    name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

macro_rules! migration {
    ($version:literal, $file:literal) => {
        Migration {
            version: $version,
            name: $file,
            sqlite: include_str!(concat!("../../../migrations/sqlite/", $file, ".sql")),
            postgres: include_str!(concat!("../../../migrations/postgres/", $file, ".sql")),
        }
    };
}

const MIGRATIONS: &[Migration] = &[
    migration!(1, "0001_a_bots_life"),
    migration!(2, "0002_the_pool"),
    migration!(3, "0003_keepers"),
    migration!(4, "0004_providers"),
    migration!(5, "0005_requirements"),
    migration!(6, "0006_slot_tokens"),
    migration!(7, "0007_a_gate_for_each_host"),
    migration!(8, "0008_listening"),
    migration!(9, "0009_placement_in_memory"),
    migration!(10, "0010_true_ends"),
    migration!(11, "0011_idle_hot_slots"),
    migration!(12, "0012_servers"),
    migration!(13, "0013_bot_logs"),
    migration!(14, "0014_placement_writes"),
    migration!(15, "0015_slot_names"),
    migration!(16, "0016_plain_column_names"),
    migration!(17, "0017_screenshots"),
    migration!(18, "0018_slot_memory"),
    migration!(19, "0019_prewarm"),
    migration!(20, "0020_audit"),
    migration!(21, "0021_browser_sessions"),
    migration!(22, "0022_stats"),
    migration!(23, "0023_kept_counts"),
    migration!(24, "0024_retention"),
];

/// The schema version that this program uses.
pub(super) fn known() -> i64 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}

/// The number is arbitrary, but every version of greenroom must use the same. A migration, and the wait for another
/// process that runs one, may take long.
const LOCK: &str = "SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock(7700)";

pub(super) async fn migrate(pools: &Pools) -> Result<(), StoreError> {
    let failed = |source| StoreError::call("migrate", source);
    let inner = match pools {
        Pools::Sqlite { writer, .. } => {
            TxInner::Sqlite(writer.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?, None)
        }
        Pools::Postgres(pools) => {
            let mut tx = pools.of(Lane::Placement).begin().await.map_err(failed)?;
            sqlx::raw_sql(LOCK).execute(&mut *tx).await.map_err(failed)?;
            TxInner::Postgres(tx)
        }
    };
    let mut tx = Tx { inner, events_written: None, has_events: false, changes_placement: None };
    let found = version(&mut tx).await?;
    let known = known();
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    if found == known {
        return Ok(());
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        match &mut tx.inner {
            TxInner::Sqlite(tx, _) => {
                sqlx::raw_sql(migration.sqlite).execute(&mut **tx).await.map_err(failed)?;
            }
            TxInner::Postgres(tx) => {
                sqlx::raw_sql(migration.postgres).execute(&mut **tx).await.map_err(failed)?;
            }
        }
        tx.run(
            sql!("migrate.record", "INSERT INTO schema_versions (version, name, applied_at) VALUES ($1, $2, $3)"),
            args![migration.version, migration.name, Timestamp::now()],
        )
        .await?;
        tracing::info!(version = migration.version, name = migration.name, "schema migrated");
    }
    tx.commit().await
}

/// The schema version of the database, 0 if it is empty. Also creates the table for the version.
async fn version(tx: &mut Tx) -> Result<i64, StoreError> {
    if let Some(version) = find_version(tx).await? {
        return Ok(version);
    }
    tx.run(
        sql!(
            "migrate.begin",
            sqlite: "CREATE TABLE schema_versions (
                         version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL) STRICT",
            postgres: "CREATE TABLE schema_versions (
                           version BIGINT PRIMARY KEY, name TEXT NOT NULL, applied_at TIMESTAMPTZ NOT NULL)",
        ),
        vec![],
    )
    .await?;
    Ok(0)
}

/// The schema version of the database. `None` if it has no schema.
pub(super) async fn find_version(run: &mut impl Run) -> Result<Option<i64>, StoreError> {
    let there = run
        .first(
            sql!(
                "migrate.find_version",
                sqlite: "SELECT count(*) AS count FROM sqlite_master WHERE type = 'table' AND name = 'schema_versions'",
                postgres: "SELECT count(*) AS count FROM pg_tables
                            WHERE schemaname = current_schema() AND tablename = 'schema_versions'",
            ),
            vec![],
        )
        .await?
        .map_or(Ok(0), |row| row.int("count"))?;
    if there == 0 {
        return Ok(None);
    }
    run.first(sql!("migrate.version", "SELECT coalesce(max(version), 0) AS version FROM schema_versions"), vec![])
        .await?
        .map(|row| row.int("version"))
        .transpose()
}
