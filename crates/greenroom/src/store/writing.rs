//! What a batch leaves behind, written at once: one statement on PostgreSQL, where every one costs a way there and back,
//! and one of each kind on SQLite, which is in this process and has no other way.

use domain::{BotId, ConnectionId, Platform, Reason, SlotName, Status, UserId};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::sql::{Arg, Sql, args, row_of, rows, sortable as text, sql};
use super::{Change, KnownKey, NewBot, NewEvent, PoolRow, SlotRow, StoreError, Tx, TxInner};

/// What a batch leaves behind.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub bots: Vec<NewBot>,
    pub keys: Vec<(UserId, String, KnownKey)>,
    pub new_slots: Vec<SlotRow>,
    pub slots: Vec<SlotRow>,
    /// Those among them whose attributes or threshold have changed, which is seldom.
    pub marked: Vec<SlotRow>,
    pub ends: Vec<(BotId, Change)>,
    /// How many slots there are, for how long they are held, and of which kinds they are.
    pub pools: Vec<PoolRow>,
    /// In their order.
    pub events: Vec<NewEvent>,
}

/// A bot that was waiting and gets a slot.
#[derive(Clone, Debug)]
pub struct Grant {
    pub bot_id: BotId,
    pub slot: SlotName,
    pub pool: String,
    pub connection_id: ConnectionId,
    /// Whether an agent waits in the slot, so that the bot should be speaking from now on.
    pub is_awaited: bool,
    /// Its place in line until now, and until when it would have waited, if it was in line.
    pub from_line: Option<(i64, Timestamp)>,
}

#[derive(Serialize)]
struct BotLine<'a> {
    id: BotId,
    user_id: UserId,
    platform: Platform,
    native_meeting_id: &'a str,
    meeting_url: &'a str,
    bot_display_name: Option<&'a str>,
    priority: i64,
    queue_timeout_ms: i64,
    requirements: Option<&'a Map<String, Value>>,
    config: &'a Map<String, Value>,
    metadata: &'a Map<String, Value>,
    pool: Option<&'a str>,
    slot: Option<&'a str>,
    connection_id: Option<ConnectionId>,
    awaited: Option<&'a str>,
    now: &'a str,
}

macro_rules! insert_bots {
    ($dialect:ident $array:literal) => {
        concat!(
            "INSERT INTO bots (id, user_id, platform, native_meeting_id, meeting_url, bot_display_name, priority,
                               queue_timeout_ms, requirements, config, metadata, pool, slot, connection_id,
                               awaited_since, status, status_since, created_at, updated_at)
             SELECT id, user_id, platform, native_meeting_id, meeting_url, bot_display_name, priority, queue_timeout_ms,
                    requirements, config, metadata, pool, slot, connection_id, awaited, 'reserved', now, now, now FROM",
            rows!($dialect $array (
                id "UUID", user_id "UUID", platform "TEXT", native_meeting_id "TEXT", meeting_url "TEXT",
                bot_display_name "TEXT", priority "BIGINT", queue_timeout_ms "BIGINT", requirements "JSON", config "JSON", metadata "JSON",
                pool "TEXT", slot "TEXT", connection_id "UUID", awaited "TIMESTAMPTZ", now "TIMESTAMPTZ",
            ))
        )
    };
}

#[derive(Serialize)]
struct KeyLine<'a> {
    u: UserId,
    k: &'a str,
    h: &'a str,
    b: BotId,
    now: &'a str,
}

macro_rules! insert_keys {
    ($dialect:ident $array:literal) => {
        concat!(
            "INSERT INTO idempotency_keys (user_id, key, body_hash, bot_id, created_at) SELECT u, k, h, b, now FROM",
            rows!($dialect $array (u "UUID", k "TEXT", h "TEXT", b "UUID", now "TIMESTAMPTZ"))
        )
    };
}

#[derive(Serialize)]
struct SlotLine<'a> {
    name: &'a str,
    pool: &'a str,
    number: i64,
    status: &'static str,
    since: String,
    bot_id: Option<BotId>,
    generation: i64,
    token_number: i64,
    agent: Option<&'a str>,
    bots_since_fresh: i64,
    provider_ref: Option<&'a str>,
    description: &'a str,
    used: Option<String>,
    error_message: Option<&'a str>,
    recovery_attempts: i64,
    created: String,
    /// Only where it is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    incarnation: Option<Uuid>,
}

macro_rules! slot_rows {
    ($dialect:ident $array:literal $($more:ident $type:literal)*) => {
        rows!($dialect $array (
            name "TEXT", pool "TEXT", number "BIGINT", status "TEXT", since "TIMESTAMPTZ", bot_id "UUID",
            generation "BIGINT", token_number "BIGINT", agent "TEXT", bots_since_fresh "BIGINT", provider_ref "TEXT", description "TEXT",
            used "TIMESTAMPTZ", error_message "TEXT", recovery_attempts "BIGINT", created "TIMESTAMPTZ",
            $($more $type,)*
        ))
    };
}

macro_rules! insert_slots {
    ($dialect:ident $array:literal) => {
        concat!(
            "INSERT INTO slots (name, pool, number, status, status_since, bot_id, generation, token_number, agent,
                                bots_since_fresh, provider_ref, description, last_used_at, error_message, recovery_attempts, created_at,
                                attributes, threshold, incarnation)
             SELECT name, pool, number, status, since, bot_id, generation, token_number, agent, bots_since_fresh,
                    provider_ref, description, used, error_message, recovery_attempts, created, attributes, threshold,
                    incarnation FROM",
            slot_rows!($dialect $array attributes "TEXT" threshold "TIMESTAMPTZ" incarnation "UUID")
        )
    };
}

macro_rules! update_slots {
    ($dialect:ident $array:literal) => {
        concat!(
            "UPDATE slots SET status = r.status, status_since = r.since, bot_id = r.bot_id, generation = r.generation,
                    token_number = r.token_number, agent = r.agent,
                    bots_since_fresh = r.bots_since_fresh, provider_ref = r.provider_ref,
                    description = r.description, last_used_at = r.used, error_message = r.error_message,
                    recovery_attempts = r.recovery_attempts FROM",
            slot_rows!($dialect $array),
            row_of!($dialect "slots" "name" "slots.name = r.name")
        )
    };
}

#[derive(Serialize)]
struct EndLine<'a> {
    id: BotId,
    t: Status,
    r: Option<&'a str>,
    e: Option<&'a str>,
    x: Option<i64>,
    now: &'a str,
}

macro_rules! end_bots {
    ($dialect:ident $array:literal) => {
        concat!(
            "UPDATE bots SET status = r.t, status_since = r.now, reason = r.r, error = coalesce(r.e, error),
                    exit_code = coalesce(r.x, exit_code), end_time = r.now, updated_at = r.now FROM",
            rows!($dialect $array (id "UUID", t "TEXT", r "TEXT", e "TEXT", x "BIGINT", now "TIMESTAMPTZ")),
            row_of!($dialect "bots" "id" "bots.id = r.id")
        )
    };
}

macro_rules! end_sessions {
    ($dialect:ident $array:literal) => {
        concat!(
            "UPDATE sessions SET ended_at = r.now FROM",
            rows!($dialect $array (id "UUID", now "TIMESTAMPTZ")),
            row_of!($dialect "sessions" "connection_id" "sessions.bot_id = r.id AND sessions.ended_at IS NULL")
        )
    };
}

#[derive(Serialize)]
struct PoolLine<'a> {
    n: &'a str,
    s: i64,
    m: Option<i64>,
    k: Vec<String>,
}

macro_rules! note_pools {
    ($dialect:ident $array:literal) => {
        concat!(
            "UPDATE pools SET slots = r.s, mean_hold_ms = r.m, kinds = r.k FROM",
            rows!($dialect $array (n "TEXT", s "BIGINT", m "BIGINT", k "JSON")),
            row_of!($dialect "pools" "name" "pools.name = r.n")
        )
    };
}

#[derive(Serialize)]
struct EventLine<'a> {
    i: usize,
    b: BotId,
    u: UserId,
    now: &'a str,
    k: &'static str,
    f: Option<Status>,
    t: Option<Status>,
    r: Option<&'a str>,
    a: &'static str,
}

macro_rules! insert_events {
    ($dialect:ident $array:literal) => {
        concat!(
            "INSERT INTO events (bot_id, user_id, at, kind, from_status, to_status, reason, actor)
             SELECT b, u, now, k, f, t, r.r, a FROM",
            rows!($dialect $array (
                i "BIGINT", b "UUID", u "UUID", now "TIMESTAMPTZ", k "TEXT", f "TEXT", t "TEXT", r "TEXT", a "TEXT",
            )),
            "ORDER BY i"
        )
    };
}

macro_rules! grant {
    ($dialect:ident) => {
        concat!(
            "UPDATE bots SET slot = r.s, pool = r.p, connection_id = r.c, awaited_since = r.a,
                    line_arrival = coalesce(r.q, line_arrival), line_until = coalesce(r.u, line_until),
                    updated_at = r.now FROM",
            rows!($dialect "$1" (
                id "UUID", s "TEXT", p "TEXT", c "UUID", a "TIMESTAMPTZ", q "BIGINT", u "TIMESTAMPTZ", now "TIMESTAMPTZ",
            )),
            row_of!($dialect "bots" "id" "bots.id = r.id")
        )
    };
}

macro_rules! mark_slots {
    ($dialect:ident) => {
        concat!(
            "UPDATE slots SET attributes = r.a, threshold = r.t FROM",
            rows!($dialect "$1" (n "TEXT", a "TEXT", t "TIMESTAMPTZ")),
            row_of!($dialect "slots" "name" "slots.name = r.n")
        )
    };
}

macro_rules! await_bots {
    ($dialect:ident) => {
        concat!(
            "UPDATE bots SET awaited_since = r.now, updated_at = r.now FROM",
            rows!($dialect "$1" (id "UUID", now "TIMESTAMPTZ")),
            row_of!($dialect "bots" "id" "bots.id = r.id")
        )
    };
}

/// Each part by itself; the arrays are in the order of [`Batch`].
const PARTS: [&Sql; 8] = [
    sql!("bots.insert", sqlite: insert_bots!(sqlite "$1"), postgres: insert_bots!(postgres "$1")),
    sql!("idempotency.insert", sqlite: insert_keys!(sqlite "$1"), postgres: insert_keys!(postgres "$1")),
    sql!("slots.insert", sqlite: insert_slots!(sqlite "$1"), postgres: insert_slots!(postgres "$1")),
    sql!("slots.update", sqlite: update_slots!(sqlite "$1"), postgres: update_slots!(postgres "$1")),
    sql!("bots.end", sqlite: end_bots!(sqlite "$1"), postgres: end_bots!(postgres "$1")),
    sql!("sessions.end_all", sqlite: end_sessions!(sqlite "$1"), postgres: end_sessions!(postgres "$1")),
    sql!("pools.note", sqlite: note_pools!(sqlite "$1"), postgres: note_pools!(postgres "$1")),
    sql!("events.insert_all", sqlite: insert_events!(sqlite "$1"), postgres: insert_events!(postgres "$1")),
];

/// All parts in one. No two of them write the same row.
const TOGETHER: &Sql = sql!(
    "batch.write",
    sqlite: "",
    postgres: concat!(
        "WITH a AS (", insert_bots!(postgres "$1"), "), b AS (", insert_keys!(postgres "$2"),
        "), c AS (", insert_slots!(postgres "$3"), "), d AS (", update_slots!(postgres "$4"),
        "), e AS (", end_bots!(postgres "$5"), "), f AS (", end_sessions!(postgres "$6"),
        "), g AS (", note_pools!(postgres "$7"), ") ", insert_events!(postgres "$8"),
    ),
);

fn array<T: Serialize>(lines: impl Iterator<Item = T>) -> Option<Arg> {
    let lines: Vec<T> = lines.collect();
    (!lines.is_empty()).then(|| Arg::Json(Some(serde_json::to_string(&lines).unwrap_or_default())))
}

fn slot_lines(slots: &[SlotRow], is_new: bool) -> Option<Arg> {
    array(slots.iter().map(|slot| SlotLine {
        name: slot.name.as_str(),
        pool: &slot.pool,
        number: slot.number,
        status: slot.status.as_str(),
        since: text(slot.status_since),
        bot_id: slot.bot_id,
        generation: slot.generation,
        token_number: slot.token_number,
        agent: slot.agent.as_deref(),
        bots_since_fresh: slot.bots_since_fresh,
        provider_ref: slot.provider_ref.as_deref(),
        description: &slot.description,
        used: slot.last_used_at.map(text),
        error_message: slot.error_message.as_deref(),
        recovery_attempts: slot.recovery_attempts,
        created: text(slot.created_at),
        attributes: is_new.then(|| slot.attributes.to_string()),
        threshold: slot.threshold.filter(|_| is_new).map(text),
        incarnation: is_new.then_some(slot.incarnation),
    }))
}

impl Batch {
    /// The arrays of the parts; `None` where a part has nothing to write.
    fn arrays(&self, now: &str) -> [Option<Arg>; 8] {
        let bots = self.bots.iter().map(|bot| BotLine {
            id: bot.id,
            user_id: bot.user_id,
            platform: bot.platform,
            native_meeting_id: &bot.native_meeting_id,
            meeting_url: &bot.meeting_url,
            bot_display_name: bot.bot_display_name.as_deref(),
            priority: bot.priority,
            queue_timeout_ms: bot.queue_timeout_ms,
            requirements: bot.requirements.as_ref(),
            config: &bot.config,
            metadata: &bot.metadata,
            pool: bot.pool.as_deref(),
            slot: bot.slot.as_ref().map(SlotName::as_str),
            connection_id: bot.connection_id,
            awaited: bot.is_awaited.then_some(now),
            now,
        });
        let keys = self.keys.iter().map(|(user, key, known)| KeyLine {
            u: *user,
            k: key,
            h: &known.body_hash,
            b: known.bot_id,
            now,
        });
        let ends = self.ends.iter().map(|(bot, change)| EndLine {
            id: *bot,
            t: change.to,
            r: change.reason.as_ref().map(Reason::as_str),
            e: change.error.as_deref(),
            x: change.exit_code,
            now,
        });
        let pools = self.pools.iter().map(|pool| PoolLine {
            n: &pool.name,
            s: pool.slots,
            m: pool.mean_hold_ms,
            k: pool.kinds.iter().map(ToString::to_string).collect(),
        });
        let events = self.events.iter().enumerate().map(|(i, event)| EventLine {
            i,
            b: event.bot_id,
            u: event.user_id,
            now,
            k: event.kind.as_str(),
            f: event.from,
            t: event.to,
            r: event.reason.as_deref(),
            a: event.actor.as_str(),
        });
        let ends = array(ends);
        [
            array(bots),
            array(keys),
            slot_lines(&self.new_slots, true),
            slot_lines(&self.slots, false),
            ends.clone(),
            ends,
            array(pools),
            array(events),
        ]
    }
}

impl Tx {
    /// Writes a batch. As with [`Tx::record`], something else than events must have been written before or with them.
    pub async fn write(&mut self, batch: &Batch, now: Timestamp) -> Result<(), StoreError> {
        self.has_events |= !batch.events.is_empty();
        self.mark_slots(&batch.marked).await?;
        let arrays = batch.arrays(&text(now));
        let parts = arrays.iter().flatten().count();
        if parts > 1 && matches!(self.inner, TxInner::Postgres(_)) {
            let empty = || Arg::Json(Some("[]".to_owned()));
            return self.run(TOGETHER, arrays.into_iter().map(|array| array.unwrap_or_else(empty)).collect()).await;
        }
        for (part, array) in PARTS.into_iter().zip(arrays) {
            if let Some(array) = array {
                self.run(part, vec![array]).await?;
            }
        }
        Ok(())
    }

    /// What slots have, and until when they may be given out.
    async fn mark_slots(&mut self, slots: &[SlotRow]) -> Result<(), StoreError> {
        if slots.is_empty() {
            return Ok(());
        }
        let rows: Vec<Value> = slots
            .iter()
            .map(|slot| {
                json!({"n": slot.name.as_str(), "a": slot.attributes.to_string(), "t": slot.threshold.map(text)})
            })
            .collect();
        const MARK: &Sql = sql!("slots.mark", sqlite: mark_slots!(sqlite), postgres: mark_slots!(postgres));
        self.run(MARK, args![rows]).await
    }

    /// Gives slots to bots that were waiting.
    pub async fn grant(&mut self, grants: &[Grant], now: Timestamp) -> Result<(), StoreError> {
        if grants.is_empty() {
            return Ok(());
        }
        let rows: Vec<Value> = grants
            .iter()
            .map(|grant| {
                json!({"id": grant.bot_id, "s": grant.slot.as_str(), "p": grant.pool, "c": grant.connection_id,
                       "a": grant.is_awaited.then(|| text(now)), "q": grant.from_line.map(|(arrival, _)| arrival),
                       "u": grant.from_line.map(|(_, until)| text(until)), "now": text(now)})
            })
            .collect();
        const GRANT: &Sql = sql!("bots.grant", sqlite: grant!(sqlite), postgres: grant!(postgres));
        self.run(GRANT, args![rows]).await
    }

    /// Since when these bots should be speaking, if at all.
    pub async fn await_bots(&mut self, ids: &[BotId], now: Timestamp) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let rows: Vec<Value> = ids.iter().map(|id| json!({"id": id, "now": text(now)})).collect();
        const AWAIT: &Sql = sql!("bots.await", sqlite: await_bots!(sqlite), postgres: await_bots!(postgres));
        self.run(AWAIT, args![rows]).await
    }
}
