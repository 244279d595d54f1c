//! The pools as stored: the configuration, the operators' changes, the number of slots, and how long bots have held
//! them.

use domain::Attributes;
use serde_json::{Value, json};

use super::record::record;
use super::sql::{Row, Sql, args, sql, sql_locking};
use super::{PoolRow, Run, Store, StoreError, Tx};

record! {
    PoolRow, columns pool_columns, read pool {
        name,
        platform,
        provider,
        host,
        hot = standby via is_running,
        recycle_after,
        max_slots,
        min_idle,
        fill_order,
        slots,
        mean_hold_ms,
        attribute_sets,
        expire_after_ms,
        idle_timeout_ms,
        ready_timeout_ms,
        max_warm_age_ms,
        recipe,
    }
}

fn is_running(row: &Row, column: &'static str) -> Result<bool, StoreError> {
    Ok(row.text(column)? == "running")
}

const LIST: &Sql = sql!("pools.list", "SELECT ", pool_columns!(), " FROM pools ORDER BY fill_order NULLS LAST, name");

record! {
    /// The stored part of a pool's configuration that placement does not need.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StoredPool, columns stored_columns, read stored_pool {
        pub name: String,
        /// The value in the last configuration. The pool itself has the operator's value.
        pub configured_max_slots: i64,
        pub configured_min_idle: i64,
        /// The provider's settings without secrets, which the deletion of its slots needs. A JSON object.
        pub settings: String,
    }
}

impl Store {
    /// The stored configuration of each pool.
    pub async fn stored_pools(&self) -> Result<Vec<StoredPool>, StoreError> {
        let select = sql!("pools.stored", "SELECT ", stored_columns!(), " FROM pools ORDER BY name");
        self.reader().all(select, vec![]).await?.iter().map(stored_pool).collect()
    }

    /// All pools, in the order of the configuration.
    pub async fn pools(&self) -> Result<Vec<PoolRow>, StoreError> {
        self.reader().all(LIST, vec![]).await?.iter().map(pool).collect()
    }

    /// The same, for placement.
    pub(super) async fn placement_pools(&self) -> Result<Vec<PoolRow>, StoreError> {
        self.placing().all(LIST, vec![]).await?.iter().map(pool).collect()
    }
}

impl Tx {
    /// Reads the pool and locks its row until the transaction ends.
    pub async fn hold_pool(&mut self, name: &str) -> Result<Option<PoolRow>, StoreError> {
        self.first(
            sql_locking!("pools.hold_one", "SELECT ", pool_columns!(), " FROM pools WHERE name = $1"),
            args![name],
        )
        .await?
        .as_ref()
        .map(pool)
        .transpose()
    }

    /// Stores a pool from the configuration. An operator's change stays, unless the configuration has changed too.
    pub async fn configure_pool(&mut self, pool: &PoolRow) -> Result<(), StoreError> {
        let sets: Vec<Value> = pool.attribute_sets.iter().map(|attributes| json!(attributes.to_string())).collect();
        self.run(
            sql!(
                "pools.configure",
                "INSERT INTO pools (name, platform, provider, standby, recycle_after, max_slots, min_idle,
                                    configured_max_slots, configured_min_idle, fill_order, attribute_sets,
                                    expire_after_ms, host, idle_timeout_ms, recipe, ready_timeout_ms, max_warm_age_ms)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
                 ON CONFLICT (name) DO UPDATE SET
                     platform = excluded.platform, provider = excluded.provider, standby = excluded.standby,
                     recycle_after = excluded.recycle_after, fill_order = excluded.fill_order,
                     attribute_sets = excluded.attribute_sets, expire_after_ms = excluded.expire_after_ms, host = excluded.host,
                     idle_timeout_ms = excluded.idle_timeout_ms, recipe = excluded.recipe,
                     ready_timeout_ms = excluded.ready_timeout_ms, max_warm_age_ms = excluded.max_warm_age_ms,
                     max_slots = CASE WHEN pools.configured_max_slots = excluded.max_slots
                                      THEN pools.max_slots ELSE excluded.max_slots END,
                     min_idle = CASE WHEN pools.configured_min_idle = excluded.min_idle
                                     THEN pools.min_idle ELSE excluded.min_idle END,
                     configured_max_slots = excluded.max_slots, configured_min_idle = excluded.min_idle"
            ),
            args![
                pool.name.as_str(),
                pool.platform.as_str(),
                pool.provider.as_str(),
                if pool.hot { "running" } else { "stopped" },
                pool.recycle_after,
                pool.max_slots,
                pool.min_idle,
                pool.fill_order,
                sets,
                pool.expire_after_ms,
                pool.host.as_str(),
                pool.idle_timeout_ms,
                pool.recipe.as_deref(),
                pool.ready_timeout_ms,
                pool.max_warm_age_ms
            ],
        )
        .await
    }

    /// Runs before the configured pools are stored: pools outside the configuration lose their `fill_order`.
    pub async fn unconfigure_pools(&mut self) -> Result<(), StoreError> {
        self.run(sql!("pools.unconfigure", "UPDATE pools SET fill_order = NULL"), vec![]).await
    }

    /// Stores a pool's provider settings without secrets.
    pub async fn keep_pool_settings(&mut self, name: &str, settings: &str) -> Result<(), StoreError> {
        self.run(
            sql!("pools.keep_settings", "UPDATE pools SET settings = $2 WHERE name = $1 AND settings <> $2"),
            args![name, settings],
        )
        .await
    }

    /// Sets the attributes of a pool's slots. Those of new slots come first.
    pub async fn change_attribute_sets(&mut self, name: &str, sets: &[Attributes]) -> Result<(), StoreError> {
        let sets: Vec<Value> = sets.iter().map(|attributes| json!(attributes.to_string())).collect();
        self.run(
            sql!("pools.change_attributes", "UPDATE pools SET attribute_sets = $2 WHERE name = $1"),
            args![name, sets],
        )
        .await
    }

    /// Marks a pool as not configured, as the next start of a server would.
    pub async fn unconfigure_pool(&mut self, name: &str) -> Result<(), StoreError> {
        self.run(sql!("pools.unconfigure_one", "UPDATE pools SET fill_order = NULL WHERE name = $1"), args![name]).await
    }

    /// Deletes the row of a pool that is not configured and has no slots. False if it is configured or has slots.
    pub async fn delete_pool(&mut self, name: &str) -> Result<bool, StoreError> {
        let deleted = self
            .first(
                sql!(
                    "pools.delete",
                    "DELETE FROM pools WHERE name = $1 AND fill_order IS NULL
                        AND NOT EXISTS (SELECT 1 FROM slots WHERE slots.pool = pools.name)
                     RETURNING name"
                ),
                args![name],
            )
            .await?;
        Ok(deleted.is_some())
    }

    /// Counts the slots of a pool again.
    pub async fn recount_slots(&mut self, name: &str) -> Result<(), StoreError> {
        let recount = sql!(
            "pools.recount",
            "UPDATE pools SET slots = (SELECT count(*) FROM slots WHERE slots.pool = $1) WHERE name = $1"
        );
        self.run(recount, args![name]).await
    }

    pub async fn resize_pool(&mut self, name: &str, max_slots: i64, min_idle: i64) -> Result<(), StoreError> {
        self.run(
            sql!("pools.resize", "UPDATE pools SET max_slots = $2, min_idle = $3 WHERE name = $1"),
            args![name, max_slots, min_idle],
        )
        .await
    }
}
