//! Reads placement's copy in memory from the database: all of it, or only the changes. It needs no lock, because the
//! next write proves whether the copy was current.

use domain::planner::bot::{EndedBot, OpenBot, Queued};
use domain::planner::changes::GateState;
use domain::planner::invariants::Scope;
use domain::planner::snapshot::{Deployment, KnownKey, Snapshot};
use domain::{BotId, ConnectionId, KeyId, SlotName, Status, UserId};
use serde_json::{Value, json};
use uuid::Uuid;

use super::fence::Changed;
use super::slots::{slot, slot_columns};
use super::sql::{Row, Sql, args, rows, sql, sql_over};
use super::{PoolRow, Run, SlotRow, Store, StoreError};

const ROWS_AT_ONCE: usize = 5_000;

macro_rules! open_bot_columns {
    () => {
        "bots.id, bots.user_id, bots.platform, bots.native_meeting_id, bots.status, bots.reason, bots.exit_code,
         bots.stop_asked_at, bots.joined_at, bots.connection_id, bots.pool, bots.slot, bots.requirements, bots.priority,
         bots.queue_timeout_ms, bots.queue_arrival, bots.turn, bots.queue_until, bots.queue_returns,
         queue.pool AS queue_pool, queue.queued_at, queue.timeout_at, queue.not_before, queue.arrival"
    };
}

const OPEN_BOTS: &Sql = sql!(
    "placement.open_bots",
    "SELECT ",
    open_bot_columns!(),
    " FROM open_bots JOIN bots ON bots.id = open_bots.bot_id LEFT JOIN queue ON queue.bot_id = bots.id"
);

/// The same rows as [`OPEN_BOTS`], for some bots.
const OPEN_BOTS_OF: &Sql = sql_over!(
    "placement.open_bots_of",
    concat!("SELECT ", open_bot_columns!(), " FROM"),
    (id "UUID"),
    "JOIN bots ON bots.id = input.id
     JOIN open_bots ON open_bots.user_id = bots.user_id AND open_bots.bot_id = bots.id
     LEFT JOIN queue ON queue.bot_id = bots.id"
);

const BOTS: &Sql = sql_over!(
    "placement.bots",
    concat!("SELECT ", open_bot_columns!(), " FROM"),
    (id "UUID"),
    "JOIN bots ON bots.id = input.id LEFT JOIN queue ON queue.bot_id = bots.id"
);

const SLOTS: &Sql = sql!(
    "placement.slots",
    sqlite: concat!("SELECT ", slot_columns!(), " FROM slots WHERE name IN (SELECT value FROM json_each($1))"),
    postgres: concat!(
        "SELECT ", slot_columns!(), " FROM slots WHERE name = ANY (ARRAY(SELECT json_array_elements_text($1)))"
    ),
);

const USERS: &Sql = sql!(
    "placement.users",
    sqlite: concat!(
        "SELECT users.id, users.max_concurrent_bots, users.min_priority, api_keys.id AS key_id, api_keys.expires_at
           FROM", rows!(sqlite "$1" (id "UUID")), "JOIN users ON users.id = input.id
           LEFT JOIN api_keys ON api_keys.user_id = users.id"
    ),
    postgres: concat!(
        "SELECT users.id, users.max_concurrent_bots, users.min_priority, api_keys.id AS key_id, api_keys.expires_at
           FROM", rows!(postgres "$1" (id "UUID")), "JOIN users ON users.id = input.id
           LEFT JOIN api_keys ON api_keys.user_id = users.id"
    ),
);

fn open_bot(row: &Row) -> Result<OpenBot, StoreError> {
    let queued = match row.maybe_text("queue_pool")? {
        Some(pool) => Some(Queued {
            pool,
            queued_at: row.time("queued_at")?,
            timeout_at: row.time("timeout_at")?,
            not_before: row.maybe_time("not_before")?,
        }),
        None => None,
    };
    Ok(OpenBot {
        id: BotId(row.id("id")?),
        user: UserId(row.id("user_id")?),
        platform: row.word("platform")?,
        native_meeting_id: row.text("native_meeting_id")?,
        status: row.word("status")?,
        stop_asked: row.maybe_time("stop_asked_at")?.is_some(),
        has_joined: row.maybe_time("joined_at")?.is_some(),
        connection: row.maybe_id("connection_id")?.map(ConnectionId),
        pool: row.maybe_text("pool")?,
        slot: row.maybe_text("slot")?.map(SlotName::stored),
        requirements: row.maybe_json("requirements")?,
        priority: row.int("priority")?,
        queue_timeout_ms: row.int("queue_timeout_ms")?,
        arrival: match row.maybe_int("arrival")? {
            Some(arrival) => arrival,
            None => row.maybe_int("queue_arrival")?.unwrap_or(0),
        },
        turn: row.int("turn")?,
        wait_until: row.maybe_time("queue_until")?,
        returns: row.int("queue_returns")?,
        queued,
    })
}

fn ended_bot(row: &Row) -> Result<EndedBot, StoreError> {
    Ok(EndedBot {
        status: row.word("status")?,
        reason: row.maybe_text("reason")?,
        exit_code: row.maybe_int("exit_code")?,
        stop_asked: row.maybe_time("stop_asked_at")?.is_some(),
        connection: row.maybe_id("connection_id")?.map(ConnectionId),
    })
}

fn ids(bots: &[BotId]) -> Vec<Value> {
    bots.iter().map(|id| json!({ "id": id })).collect()
}

impl Store {
    /// Reads everything except users and keys, which are read when a request needs them.
    pub async fn load_snapshot(&self) -> Result<Snapshot, StoreError> {
        self.placement.locations.forget_all();
        self.note_users_changed();
        let mut snapshot = Snapshot::default();
        let rows =
            self.placing().all(sql!("placement.slots_all", "SELECT ", slot_columns!(), " FROM slots"), vec![]).await?;
        let slots: Vec<SlotRow> = rows.iter().map(slot).collect::<Result<_, _>>()?;
        drop(rows);
        for pool in self.placement_pools().await? {
            let counted = slots.iter().filter(|slot| slot.pool == pool.name).count();
            let counted = i64::try_from(counted).unwrap_or(i64::MAX);
            snapshot.set_pool(&pool.name.clone(), Some(PoolRow { slots: counted, ..pool }));
        }
        for slot in slots {
            snapshot.set_slot(&slot.name.clone(), Some(slot));
        }
        for row in &self.placing().all(OPEN_BOTS, vec![]).await? {
            let bot = open_bot(row)?;
            snapshot.set_bot(bot.id, Some(bot));
        }
        Ok(snapshot)
    }

    /// The stored rows of these slots and bots, and of all pools, to compare with the copy.
    pub async fn load_part(&self, scope: &Scope) -> Result<Snapshot, StoreError> {
        let mut part = Snapshot::default();
        for pool in self.placement_pools().await? {
            part.set_pool(&pool.name.clone(), Some(pool));
        }
        for names in scope.slots.chunks(ROWS_AT_ONCE) {
            let names: Vec<Value> = names.iter().map(|name| json!(name.as_str())).collect();
            for row in &self.placing().all(SLOTS, args![names]).await? {
                let slot = slot(row)?;
                part.set_slot(&slot.name.clone(), Some(slot));
            }
        }
        for bots in scope.bots.chunks(ROWS_AT_ONCE) {
            for row in &self.placing().all(OPEN_BOTS_OF, args![ids(bots)]).await? {
                let bot = open_bot(row)?;
                part.set_bot(bot.id, Some(bot));
            }
        }
        Ok(part)
    }

    /// A page of open bots after the given one, by user and id.
    pub async fn open_bots_after(
        &self,
        after: Option<(UserId, BotId)>,
        limit: i64,
    ) -> Result<Vec<(UserId, BotId)>, StoreError> {
        let (user, bot) = after.map_or((Uuid::nil(), Uuid::nil()), |(user, bot)| (user.0, bot.0));
        let page = sql!(
            "open_bots.page",
            "SELECT user_id, bot_id FROM open_bots WHERE (user_id, bot_id) > ($1, $2) ORDER BY user_id, bot_id LIMIT $3"
        );
        let rows = self.reader().all(page, args![user, bot, limit]).await?;
        rows.iter().map(|row| Ok((UserId(row.id("user_id")?), BotId(row.id("bot_id")?)))).collect()
    }

    /// Reads the changed rows again.
    pub async fn refresh_snapshot(&self, snapshot: &mut Snapshot, changed: &Changed) -> Result<(), StoreError> {
        self.placement.locations.forget_changed(&changed.slots);
        if !changed.users.is_empty() {
            self.note_users_changed();
        }
        for user in &changed.users {
            snapshot.set_user(*user, None);
        }
        if changed.idempotency_keys {
            snapshot.forget_keys();
        }
        if changed.pools {
            for pool in self.placement_pools().await? {
                let slots = snapshot.pool(&pool.name).map_or(0, |state| state.pool.slots);
                snapshot.set_pool(&pool.name.clone(), Some(PoolRow { slots, ..pool }));
            }
        }
        if !changed.slots.is_empty() {
            let names: Vec<Value> = changed.slots.iter().map(|name| json!(name)).collect();
            let rows = self.placing().all(SLOTS, args![names]).await?;
            let found: Vec<SlotRow> = rows.iter().map(slot).collect::<Result<_, _>>()?;
            let mut missing: std::collections::HashSet<&str> = changed.slots.iter().map(String::as_str).collect();
            for slot in found {
                missing.remove(slot.name.as_str());
                count_slot(snapshot, &slot.pool, snapshot.slot(&slot.name).is_none(), 1);
                snapshot.set_slot(&slot.name.clone(), Some(slot));
            }
            for name in missing.into_iter().map(|name| SlotName::stored(name.to_owned())) {
                if let Some(pool) = snapshot.slot(&name).map(|slot| slot.pool.clone()) {
                    count_slot(snapshot, &pool, true, -1);
                }
                snapshot.set_slot(&name, None);
            }
        }
        self.refresh_bots(snapshot, &changed.bots).await
    }

    /// Reads bots again. Those that have ended become facts.
    pub async fn refresh_bots(&self, snapshot: &mut Snapshot, bots: &[BotId]) -> Result<(), StoreError> {
        for chunk in bots.chunks(ROWS_AT_ONCE) {
            for row in &self.placing().all(BOTS, args![ids(chunk)]).await? {
                let id = BotId(row.id("id")?);
                if row.word::<Status>("status")?.is_ended() {
                    snapshot.set_bot(id, None);
                    snapshot.facts.ended.insert(id, ended_bot(row)?);
                } else {
                    snapshot.set_bot(id, Some(open_bot(row)?));
                }
            }
        }
        Ok(())
    }

    /// Reads users that are not in the copy yet, with their keys.
    pub async fn load_users(&self, snapshot: &mut Snapshot, users: &[UserId]) -> Result<(), StoreError> {
        if users.is_empty() {
            return Ok(());
        }
        let ids: Vec<Value> = users.iter().map(|id| json!({ "id": id })).collect();
        for id in users {
            snapshot.set_user(*id, None);
        }
        for row in &self.placing().all(USERS, args![ids]).await? {
            let id = UserId(row.id("id")?);
            let mut user = snapshot.user(id).cloned().unwrap_or_default();
            user.max_concurrent_bots = row.int("max_concurrent_bots")?;
            user.min_priority = row.int("min_priority")?;
            if let Some(key) = row.maybe_id("key_id")? {
                user.api_keys.push((KeyId(key), row.maybe_time("expires_at")?));
            }
            snapshot.set_user(id, Some(user));
        }
        Ok(())
    }

    /// Reads the requests under these idempotency keys.
    pub async fn load_keys(&self, snapshot: &mut Snapshot, keys: &[(UserId, String)]) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let rows: Vec<Value> = keys.iter().map(|(user, key)| json!({"user_id": user, "key": key})).collect();
        let found = sql_over!(
            "placement.keys",
            "SELECT idempotency_keys.user_id, idempotency_keys.key, idempotency_keys.body_hash, idempotency_keys.bot_id
               FROM",
            (user_id "UUID", key "TEXT"),
            "JOIN idempotency_keys ON idempotency_keys.user_id = input.user_id AND idempotency_keys.key = input.key"
        );
        for row in &self.placing().all(found, args![rows]).await? {
            let known = KnownKey { body_hash: row.text("body_hash")?, bot_id: BotId(row.id("bot_id")?) };
            snapshot.set_key(UserId(row.id("user_id")?), row.text("key")?, known);
        }
        Ok(())
    }

    /// Reads the deployments of slots.
    pub async fn load_deployments(&self, snapshot: &mut Snapshot, slots: &[SlotName]) -> Result<(), StoreError> {
        if slots.is_empty() {
            return Ok(());
        }
        let names: Vec<Value> = slots.iter().map(|slot| json!({"slot": slot.as_str()})).collect();
        let found = sql_over!(
            "placement.deployments",
            "SELECT deployments.slot, deployments.bot_id, deployments.state, deployments.holder FROM",
            (slot "TEXT"),
            "JOIN deployments ON deployments.slot = input.slot"
        );
        for row in &self.placing().all(found, args![names]).await? {
            let state = match row.text("state")?.as_str() {
                "waiting" => GateState::Waiting,
                "retry" => GateState::Retry,
                _ => GateState::Active,
            };
            let deployment =
                Deployment { bot: row.maybe_id("bot_id")?.map(BotId), state, holder: row.maybe_id("holder")? };
            snapshot.facts.deployments.insert(SlotName::stored(row.text("slot")?), deployment);
        }
        Ok(())
    }
}

/// The number of a pool's slots is counted from its slots, not read.
fn count_slot(snapshot: &mut Snapshot, pool: &str, counts: bool, by: i64) {
    if let Some(state) = snapshot.pool(pool).filter(|_| counts) {
        let pool = PoolRow { slots: state.pool.slots + by, ..state.pool.clone() };
        snapshot.set_pool(&pool.name.clone(), Some(pool));
    }
}
