//! Pools as stored: the configuration's, with what operators changed, how many slots there are, and how long bots
//! have held them.

use domain::requirements::{self, UsageClass};
use domain::{Attributes, Platform, Requirements};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::slots::{pick_array, picked, slot, slot_columns};
use super::sql::{Row, Sql, args, rows, sql, sql_locking};
use super::{Pick, Run, SlotRow, Store, StoreError, Tx, TxInner};

#[derive(Clone, Debug, PartialEq)]
pub struct PoolRow {
    pub name: String,
    pub platform: Platform,
    pub provider: String,
    /// The host whose gate its slots pass.
    pub host: String,
    /// Whether its idle slots are hot.
    pub hot: bool,
    pub recycle_after: i64,
    pub max_slots: i64,
    pub min_idle: i64,
    /// The order in the configuration; `None` when it is no longer there.
    pub place: Option<i64>,
    pub slots: i64,
    pub mean_hold_ms: Option<i64>,
    /// What its slots have, new ones first. Where slots are places, what can be had there.
    pub kinds: Vec<Attributes>,
    /// For how long a slot that is idle may be given out.
    pub expire_after_ms: Option<i64>,
}

impl PoolRow {
    /// Whether its slots are only places, at which something is brought in for each bot: there is nothing to be made
    /// ahead, and what a slot has is not known before it has a bot.
    pub fn is_places(&self) -> bool {
        self.provider == "ec2"
    }

    /// What a new slot has.
    pub fn kind_of_new(&self) -> Attributes {
        if self.is_places() { Attributes::default() } else { self.kinds.first().cloned().unwrap_or_default() }
    }

    /// What the slots of its idle ones may have.
    pub fn kinds_of_idle(&self) -> Vec<Attributes> {
        if self.is_places() { vec![self.kind_of_new()] } else { self.kinds.clone() }
    }

    /// How large a slot of it is for a bot: `None` when it does not fit.
    pub fn size_for(&self, wanted: Option<&Requirements>, slot: &Attributes) -> Option<Size> {
        let fitting = |kind: &&Attributes| requirements::fits(wanted, kind);
        if self.is_places() {
            return self.kinds.iter().filter(fitting).map(Attributes::size).min();
        }
        Some(slot).filter(fitting).map(Attributes::size)
    }

    /// Whether any slot that it has or could have would do for a bot.
    pub fn could_fit(&self, wanted: Option<&Requirements>) -> bool {
        self.kinds.iter().any(|kind| requirements::fits(wanted, kind))
    }
}

/// In which order slots are given out.
pub type Size = (UsageClass, u32, u32);

/// A pool, its line and what it has.
#[derive(Clone, Debug)]
pub struct PoolAndLine {
    pub pool: PoolRow,
    /// How many wait in the line that it serves, counted up to a thousand.
    pub waiting: i64,
    /// The least recently used first, those that were never used before all.
    pub idle: Vec<SlotRow>,
}

macro_rules! pool_columns {
    () => {
        "name, platform, provider, standby, recycle_after, max_slots, min_idle, place, slots, mean_hold_ms, kinds, \
         expire_after_ms, pools.host AS host"
    };
}

fn pool(row: &Row) -> Result<PoolRow, StoreError> {
    Ok(PoolRow {
        name: row.text("name")?,
        platform: row.word("platform")?,
        provider: row.text("provider")?,
        host: row.text("host")?,
        hot: row.text("standby")? == "running",
        recycle_after: row.int("recycle_after")?,
        max_slots: row.int("max_slots")?,
        min_idle: row.int("min_idle")?,
        place: row.maybe_int("place")?,
        slots: row.int("slots")?,
        mean_hold_ms: row.maybe_int("mean_hold_ms")?,
        kinds: kinds(row)?,
        expire_after_ms: row.maybe_int("expire_after_ms")?,
    })
}

fn kinds(row: &Row) -> Result<Vec<Attributes>, StoreError> {
    let texts: Vec<String> = row.json("kinds")?;
    texts.iter().map(|text| text.parse().map_err(|_| row.inconsistent("kinds", text))).collect()
}

fn pool_and_line(row: &Row) -> Result<PoolAndLine, StoreError> {
    Ok(PoolAndLine { pool: pool(row)?, waiting: row.int("waiting")?, idle: Vec::new() })
}

/// SQLite cannot join each pool with the first of its slots, and asks for these one by one.
const WITH_LINES: &Sql = sql!(
    "pools.with_lines",
    sqlite: concat!(
        "SELECT ", pool_columns!(), ", (SELECT count(*) FROM (SELECT 1 FROM queue WHERE queue.platform = pools.platform LIMIT 1000) AS q) AS waiting
           FROM pools ORDER BY place NULLS LAST, name"
    ),
    postgres: concat!(
        "SELECT ", pool_columns!(), ", (SELECT count(*) FROM (SELECT 1 FROM queue WHERE queue.platform = pools.platform LIMIT 1000) AS q) AS waiting, s.*
           FROM pools LEFT JOIN LATERAL (SELECT ", slot_columns!(), " FROM", picked!(), " WHERE r.p = pools.name) AS s ON true
          ORDER BY place NULLS LAST, name, last_used_at NULLS FIRST, number"
    ),
);

impl Store {
    /// All pools, in the order of the configuration.
    pub async fn pools(&self) -> Result<Vec<PoolRow>, StoreError> {
        self.reader()
            .all(sql!("pools.list", "SELECT ", pool_columns!(), " FROM pools ORDER BY place NULLS LAST, name"), vec![])
            .await?
            .iter()
            .map(pool)
            .collect()
    }
}

impl Tx {
    /// All pools in the order of the configuration, each with how many bots wait in the line that it serves, and with the
    /// idle slots that are picked.
    pub async fn pools_with_lines(&mut self, picks: &[Pick], now: Timestamp) -> Result<Vec<PoolAndLine>, StoreError> {
        if matches!(self.inner, TxInner::Sqlite(..)) {
            let rows = self.all(WITH_LINES, vec![]).await?;
            let mut pools: Vec<PoolAndLine> = rows.iter().map(pool_and_line).collect::<Result<_, _>>()?;
            for slot in self.pick_idle_slots(picks, now).await? {
                if let Some(of) = pools.iter_mut().find(|of| of.pool.name == slot.pool) {
                    of.idle.push(slot);
                }
            }
            return Ok(pools);
        }
        let mut pools: Vec<PoolAndLine> = Vec::new();
        for row in &self.all(WITH_LINES, args![pick_array(picks), now]).await? {
            let name = row.text("name")?;
            if pools.last().is_none_or(|last| last.pool.name != name) {
                pools.push(pool_and_line(row)?);
            }
            if let (Some(_), Some(of)) = (row.maybe_text("slot_name")?, pools.last_mut()) {
                of.idle.push(slot(row)?);
            }
        }
        Ok(pools)
    }

    /// The pool, held until the transaction ends.
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

    /// Takes a pool from the configuration. What an operator changed stays, unless the configuration changed too.
    pub async fn configure_pool(&mut self, pool: &PoolRow) -> Result<(), StoreError> {
        let kinds: Vec<Value> = pool.kinds.iter().map(|kind| json!(kind.to_string())).collect();
        self.run(
            sql!(
                "pools.configure",
                "INSERT INTO pools (name, platform, provider, standby, recycle_after, max_slots, min_idle,
                                    configured_max_slots, configured_min_idle, place, kinds, expire_after_ms, host)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $6, $7, $8, $9, $10, $11)
                 ON CONFLICT (name) DO UPDATE SET
                     platform = excluded.platform, provider = excluded.provider, standby = excluded.standby,
                     recycle_after = excluded.recycle_after, place = excluded.place, kinds = excluded.kinds,
                     expire_after_ms = excluded.expire_after_ms, host = excluded.host,
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
                pool.place,
                kinds,
                pool.expire_after_ms,
                pool.host.as_str()
            ],
        )
        .await
    }

    /// Before the pools of the configuration are taken: those that are not among them lose their place.
    pub async fn unplace_pools(&mut self) -> Result<(), StoreError> {
        self.run(sql!("pools.unplace", "UPDATE pools SET place = NULL"), vec![]).await
    }

    pub async fn resize_pool(&mut self, name: &str, max_slots: i64, min_idle: i64) -> Result<(), StoreError> {
        self.run(
            sql!("pools.resize", "UPDATE pools SET max_slots = $2, min_idle = $3 WHERE name = $1"),
            args![name, max_slots, min_idle],
        )
        .await
    }
}
