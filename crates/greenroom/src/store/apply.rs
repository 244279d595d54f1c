//! What a plan changes, written at once: on PostgreSQL one statement, which is one round trip and its own transaction; on
//! SQLite one statement for each table in one transaction. Either tests the token first and writes nothing if it is another.

use std::collections::HashMap;
use std::fmt::Write as _;

use domain::planner::changes::{BotEnd, Changes, GateState};
use domain::planner::queue::line_key;
use domain::{BotId, Reason, SlotName, Status};
use jiff::Timestamp;
use serde_json::{Map, Value};
use sqlx::Arguments;
use sqlx::postgres::PgArguments;
use uuid::Uuid;

use super::columns::Rows;
use super::connect::Pools;
use super::fence::Changed;
use super::lanes::Lane;
use super::{Store, StoreError, Tx, TxInner, measured};

/// What a request says that placement does not look at.
#[derive(Clone, Debug)]
pub struct BotDetails {
    pub meeting_url: String,
    pub bot_display_name: Option<String>,
    pub requirements: Option<Map<String, Value>>,
    pub config: Map<String, Value>,
    pub metadata: Map<String, Value>,
}

/// What came of writing a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Committed,
    /// The token was another: somebody else has changed something.
    Stale,
    /// The token was the same, and a bot, a deployment or a key was not as planned.
    Conflict,
}

/// The error by which PostgreSQL gives up a batch.
const CONFLICT: &str = "GR001";
const UNIQUE_VIOLATION: &str = "23505";

/// Parts that others must wait for: a slot or a bot has at most one deployment, so the old one goes first.
const DELETED_DEPLOYMENTS: [&str; 4] =
    ["given_up_deployments", "returned_deployments", "cancelled_deployments", "released_deployments"];

/// A part of the write: one statement, with `{rows}` for its rows and `{fenced}` for the test that the token fitted.
struct Part {
    name: &'static str,
    sql: &'static str,
    rows: Rows,
    /// Whether each row must have been found, or could be inserted.
    counted: bool,
}

impl Store {
    /// Writes a plan that was made under the token `before`. The token is `after` then. `journal` says what was changed, if
    /// there is anybody to tell.
    pub async fn apply(
        &self,
        changes: &Changes,
        details: &HashMap<usize, BotDetails>,
        (before, after): (Uuid, Uuid),
        journal: Option<&Changed>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let parts = parts(changes, details, (before, after), journal, now);
        let applied = match &self.pools {
            Pools::Postgres(pools) => {
                let mut connection = pools.of(Lane::Placement).acquire().await.map_err(failed)?;
                apply_to_postgres(&mut connection, parts, before, after).await?
            }
            Pools::Sqlite { .. } => {
                let mut tx = self.begin_in(Lane::Placement).await?;
                let applied = tx.apply(parts, before, after).await?;
                if applied == Applied::Committed {
                    tx.commit().await?;
                }
                applied
            }
        };
        self.tell_applied(changes, applied);
        Ok(applied)
    }

    /// The same in a transaction that holds the token ([`Store::hold_token`]).
    pub async fn apply_in(
        &self,
        mut tx: Tx,
        changes: &Changes,
        details: &HashMap<usize, BotDetails>,
        (before, after): (Uuid, Uuid),
        journal: Option<&Changed>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let parts = parts(changes, details, (before, after), journal, now);
        let applied = tx.apply(parts, before, after).await?;
        if applied == Applied::Committed {
            tx.commit().await?;
        }
        self.tell_applied(changes, applied);
        Ok(applied)
    }

    fn tell_applied(&self, changes: &Changes, applied: Applied) {
        if applied == Applied::Committed && !changes.events.is_empty() {
            self.told.notify_one();
        }
    }
}

fn failed(source: sqlx::Error) -> StoreError {
    StoreError::call("placement.apply", source)
}

impl Tx {
    async fn apply(&mut self, parts: Vec<Part>, before: Uuid, after: Uuid) -> Result<Applied, StoreError> {
        let inner = match &mut self.inner {
            TxInner::Sqlite(inner, _) => inner,
            TxInner::Postgres(inner) => return apply_to_postgres(inner, parts, before, after).await,
        };
        let fence = sqlx::query("UPDATE placement SET token = $1 WHERE id = 1 AND token = $2");
        let fence = fence.bind(after.to_string()).bind(before.to_string());
        if measured("placement.fence", fence.execute(&mut **inner)).await.map_err(failed)?.rows_affected() == 0 {
            return Ok(Applied::Stale);
        }
        for part in parts {
            let sql = part.sql.replace("{rows}", &part.rows.sqlite()).replace("{fenced}", "true");
            let sql = sql.replace("::json", "");
            let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(part.rows.json());
            match measured(part.name, query.execute(&mut **inner)).await {
                Ok(done) if part.counted && done.rows_affected() != part.rows.len() as u64 => {
                    return Ok(Applied::Conflict);
                }
                Ok(_) => {}
                Err(sqlx::Error::Database(error)) if error.is_unique_violation() => return Ok(Applied::Conflict),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(Applied::Committed)
    }
}

/// All parts in one statement. No two of them write the same row.
async fn apply_to_postgres(
    connection: &mut sqlx::PgConnection,
    parts: Vec<Part>,
    before: Uuid,
    after: Uuid,
) -> Result<Applied, StoreError> {
    let mut sql = String::with_capacity(4_096);
    sql.push_str("WITH fence AS (UPDATE placement SET token = $1 WHERE id = 1 AND token = $2 RETURNING 1 AS fitted)");
    let mut arguments = PgArguments::default();
    arguments.add(after).and_then(|()| arguments.add(before)).map_err(|error| failed(sqlx::Error::Encode(error)))?;
    let (mut next, mut checks) = (3, String::new());
    // PostgreSQL runs parts in no particular order, unless one reads what another returned.
    let deleted = parts.iter().map(|part| part.name).filter(|name| DELETED_DEPLOYMENTS.contains(name));
    let deleted: String = deleted.map(|name| format!(" AND (SELECT count(*) FROM {name}) >= 0")).collect();
    for part in parts {
        let rows = part.rows.postgres(next);
        next += part.rows.width();
        let (count, counted) = (part.rows.len(), part.counted);
        let after = if part.name == "asked_deployments" { deleted.as_str() } else { "" };
        let fenced = format!("EXISTS (SELECT 1 FROM fence){after}");
        let text = part.sql.replace("{rows}", &rows).replace("{fenced}", &fenced);
        let returning = counted || DELETED_DEPLOYMENTS.contains(&part.name);
        let _ = write!(sql, ", {} AS ({text}{})", part.name, if returning { " RETURNING 1" } else { "" });
        part.rows.bind(&mut arguments).map_err(failed)?;
        if counted {
            let _ = write!(
                checks,
                ", CASE WHEN (SELECT count(*) FROM {0}) <> ${next} AND EXISTS (SELECT 1 FROM fence)
                        THEN placement_conflict('{0}') END",
                part.name
            );
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            arguments.add(count).map_err(|error| failed(sqlx::Error::Encode(error)))?;
            next += 1;
        }
    }
    let _ = write!(sql, " SELECT (SELECT count(*) FROM fence) AS fitted{checks}");
    // The same parts make the same text, so that it is planned once.
    let query = sqlx::query_with(sqlx::AssertSqlSafe(sql), arguments);
    match measured("placement.apply", query.fetch_one(connection)).await {
        Ok(row) => {
            let fitted: i64 = sqlx::Row::try_get(&row, "fitted").map_err(failed)?;
            Ok(if fitted == 1 { Applied::Committed } else { Applied::Stale })
        }
        Err(sqlx::Error::Database(error))
            if error.code().is_some_and(|code| code == CONFLICT || code == UNIQUE_VIOLATION) =>
        {
            Ok(Applied::Conflict)
        }
        Err(error) => Err(failed(error)),
    }
}

fn document(map: &Map<String, Value>) -> String {
    serde_json::to_string(map).unwrap_or_else(|_| "{}".to_owned())
}

fn parts(
    changes: &Changes,
    details: &HashMap<usize, BotDetails>,
    (before, after): (Uuid, Uuid),
    journal: Option<&Changed>,
    now: Timestamp,
) -> Vec<Part> {
    let mut parts = Vec::with_capacity(12);
    let mut add = |name, counted, rows: Rows, sql| {
        if !rows.is_empty() {
            parts.push(Part { name, sql, rows, counted });
        }
    };
    bots(changes, details, now, &mut add);
    slots(changes, now, &mut add);
    queue_and_gate(changes, now, &mut add);
    if let Some(changed) = journal {
        let rows = Rows::default()
            .id("before", &[before], |id| *id)
            .id("token", &[after], |id| *id)
            .time("at", &[now], |at| *at)
            .text("changed", &[changed], |changed| serde_json::to_string(changed).unwrap_or_default());
        add(
            "written_journal",
            false,
            rows,
            "INSERT INTO placement_journal (before, token, at, changed)
             SELECT before, token, at, changed FROM {rows} WHERE {fenced}",
        );
    }
    parts
}

type Add<'a> = &'a mut dyn FnMut(&'static str, bool, Rows, &'static str);

fn bots(changes: &Changes, details: &HashMap<usize, BotDetails>, now: Timestamp, add: Add<'_>) {
    let new: Vec<_> = (changes.new_bots.iter())
        .filter_map(|new| Some((new, changes.bots.get(&new.id)?.as_ref()?, details.get(&new.job)?)))
        .collect();
    let rows = Rows::default()
        .id("id", &new, |(new, ..)| new.id.0)
        .id("user_id", &new, |(_, bot, _)| bot.user.0)
        .text("platform", &new, |(_, bot, _)| bot.platform.as_str().to_owned())
        .text("native_meeting_id", &new, |(_, bot, _)| bot.native_meeting_id.clone())
        .text("meeting_url", &new, |(.., details)| details.meeting_url.clone())
        .maybe_text("bot_display_name", &new, |(.., details)| details.bot_display_name.clone())
        .int("priority", &new, |(_, bot, _)| bot.priority)
        .int("queue_timeout_ms", &new, |(_, bot, _)| bot.queue_timeout_ms)
        .maybe_text("requirements", &new, |(.., details)| details.requirements.as_ref().map(document))
        .text("config", &new, |(.., details)| document(&details.config))
        .text("metadata", &new, |(.., details)| document(&details.metadata))
        .maybe_text("pool", &new, |(_, bot, _)| bot.pool.clone())
        .maybe_text("slot", &new, |(_, bot, _)| bot.slot.as_ref().map(ToString::to_string))
        .maybe_id("connection_id", &new, |(_, bot, _)| bot.connection.map(|id| id.0))
        .maybe_time("awaited_since", &new, |(new, ..)| new.is_awaited.then_some(now))
        .int("line_arrival", &new, |(_, bot, _)| bot.arrival)
        .int("turn", &new, |(_, bot, _)| bot.turn)
        .maybe_time("line_until", &new, |(_, bot, _)| bot.wait_until)
        .time("now", &new, |_| now);
    let opened = Rows::default().id("user_id", &new, |(_, bot, _)| bot.user.0).id("id", &new, |(new, ..)| new.id.0);
    add(
        "inserted_bots",
        false,
        rows,
        "INSERT INTO bots (id, user_id, platform, native_meeting_id, meeting_url, bot_display_name, priority,
                           queue_timeout_ms, requirements, config, metadata, pool, slot, connection_id, awaited_since,
                           line_arrival, turn, line_until, status, status_since, created_at, updated_at)
         SELECT id, user_id, platform, native_meeting_id, meeting_url, bot_display_name, priority, queue_timeout_ms,
                requirements::json, config::json, metadata::json, pool, slot, connection_id, awaited_since, line_arrival,
                turn, line_until, 'reserved', now, now, now
           FROM {rows} WHERE {fenced}",
    );
    add(
        "opened_bots",
        false,
        opened,
        "INSERT INTO open_bots (user_id, bot_id) SELECT user_id, id FROM {rows} WHERE {fenced}",
    );
    let rows = Rows::default()
        .id("user_id", &changes.new_keys, |key| key.user.0)
        .text("key", &changes.new_keys, |key| key.key.clone())
        .text("body_hash", &changes.new_keys, |key| key.body_hash.clone())
        .id("bot_id", &changes.new_keys, |key| key.bot.0)
        .time("now", &changes.new_keys, |_| now);
    add(
        "inserted_keys",
        true,
        rows,
        "INSERT INTO idempotency_keys (user_id, key, body_hash, bot_id, created_at)
         SELECT user_id, key, body_hash, bot_id, now FROM {rows} WHERE {fenced} ON CONFLICT DO NOTHING",
    );
    let granted: Vec<_> =
        changes.grants.iter().filter_map(|grant| Some((grant, changes.bots.get(&grant.bot)?.as_ref()?))).collect();
    let rows = Rows::default()
        .id("id", &granted, |(grant, _)| grant.bot.0)
        .text("slot", &granted, |(grant, _)| grant.slot.to_string())
        .text("pool", &granted, |(grant, _)| grant.pool.clone())
        .id("connection_id", &granted, |(grant, _)| grant.connection.0)
        .maybe_time("awaited_since", &granted, |(grant, _)| grant.is_awaited.then_some(now))
        .maybe_time("line_until", &granted, |(_, bot)| bot.wait_until)
        .int("line_returns", &granted, |(_, bot)| bot.returns)
        .time("now", &granted, |_| now);
    add(
        "granted_bots",
        true,
        rows,
        "UPDATE bots SET slot = r.slot, pool = r.pool, connection_id = r.connection_id, awaited_since = r.awaited_since,
                line_until = coalesce(r.line_until, bots.line_until), line_returns = r.line_returns, updated_at = r.now
           FROM {rows} WHERE bots.id = r.id AND bots.status = 'reserved' AND {fenced}",
    );
    // Each row is written by one part only: by the last that was planned for it.
    let has_ended = |id: &BotId| changes.ends.iter().any(|end| end.bot == *id);
    let reconnected: Vec<_> = changes.reconnected.iter().filter(|bot| !has_ended(&bot.bot)).collect();
    let rows = Rows::default()
        .id("id", &reconnected, |bot| bot.bot.0)
        .maybe_id("before", &reconnected, |bot| bot.from.map(|id| id.0))
        .id("connection_id", &reconnected, |bot| bot.to.0)
        .time("now", &reconnected, |_| now);
    add(
        "reconnected_bots",
        true,
        rows,
        "UPDATE bots SET connection_id = r.connection_id, awaited_since = NULL, updated_at = r.now
           FROM {rows} WHERE bots.id = r.id AND bots.status = 'reserved'
                         AND bots.connection_id IS NOT DISTINCT FROM r.before AND {fenced}",
    );
    let returned: Vec<_> = (changes.returned.iter())
        .filter(|bot| !has_ended(&bot.bot) && changes.grants.iter().all(|grant| grant.bot != bot.bot))
        .collect();
    let rows = Rows::default()
        .id("id", &returned, |bot| bot.bot.0)
        .text("slot", &returned, |bot| bot.slot.to_string())
        .time("now", &returned, |_| now);
    add(
        "returned_bots",
        true,
        rows,
        "UPDATE bots SET slot = NULL, connection_id = NULL, awaited_since = NULL, line_returns = line_returns + 1,
                updated_at = r.now
           FROM {rows} WHERE bots.id = r.id AND bots.slot = r.slot AND bots.status = 'reserved'
                         AND bots.stop_asked_at IS NULL AND {fenced}",
    );
    let is_reconnected = |id: &BotId| changes.reconnected.iter().any(|bot| bot.bot == *id);
    let awaited: Vec<_> = changes.awaited.iter().filter(|id| !has_ended(id) && !is_reconnected(id)).collect();
    let rows = Rows::default().id("id", &awaited, |id| id.0).time("now", &awaited, |_| now);
    add(
        "awaited_bots",
        false,
        rows,
        "UPDATE bots SET awaited_since = r.now, updated_at = r.now FROM {rows} WHERE bots.id = r.id AND {fenced}",
    );
    ends(changes, now, add);
}

fn ends(changes: &Changes, now: Timestamp, add: Add<'_>) {
    // The same plan may have taken its connection before, and its slot.
    let reconnected = |end: &BotEnd| changes.reconnected.iter().rfind(|bot| bot.bot == end.bot).map(|bot| bot.to.0);
    let is_returned = |end: &BotEnd| changes.returned.iter().any(|bot| bot.bot == end.bot);
    let rows = Rows::default()
        .id("id", &changes.ends, |end| end.bot.0)
        .text("before", &changes.ends, |end| end.from.as_str().to_owned())
        .text("status", &changes.ends, |end| end.to.as_str().to_owned())
        .maybe_text("reason", &changes.ends, |end| end.reason.as_ref().map(Reason::as_str).map(str::to_owned))
        .maybe_text("error", &changes.ends, |end| end.error.clone())
        .maybe_int("exit_code", &changes.ends, |end| end.exit_code)
        .maybe_id("connection_id", &changes.ends, reconnected)
        .int("is_returned", &changes.ends, |end| i64::from(is_returned(end)))
        .time("now", &changes.ends, |_| now);
    add(
        "ended_bots",
        true,
        rows,
        "UPDATE bots SET status = r.status, status_since = r.now, reason = r.reason, error = coalesce(r.error, bots.error),
                exit_code = coalesce(r.exit_code, bots.exit_code), end_time = r.now, updated_at = r.now,
                connection_id = CASE WHEN r.is_returned = 0 THEN coalesce(r.connection_id, bots.connection_id) END,
                slot = CASE WHEN r.is_returned = 0 THEN bots.slot END
           FROM {rows} WHERE bots.id = r.id AND bots.status = r.before AND {fenced}",
    );
    let rows = Rows::default().id("user_id", &changes.ends, |end| end.user.0).id("id", &changes.ends, |end| end.bot.0);
    add(
        "closed_bots",
        true,
        rows,
        "DELETE FROM open_bots
          WHERE (user_id, bot_id) IN (SELECT user_id, id FROM {rows}) AND {fenced}",
    );
    // A bot that is still reserved has never spoken, and has no session.
    let spoke: Vec<_> = changes.ends.iter().filter(|end| end.from != Status::Reserved).collect();
    let rows = Rows::default().id("id", &spoke, |end| end.bot.0).time("now", &spoke, |_| now);
    add(
        "ended_sessions",
        false,
        rows,
        "UPDATE sessions SET ended_at = r.now FROM {rows}
          WHERE sessions.bot_id = r.id AND sessions.ended_at IS NULL AND {fenced}",
    );
}

fn slots(changes: &Changes, now: Timestamp, add: Add<'_>) {
    let (mut new, mut changed, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for (name, change) in &changes.slots {
        match &change.slot {
            Some(slot) if change.is_new => new.push(slot),
            Some(slot) => changed.push(slot),
            None => gone.push(name),
        }
    }
    let rows = |slots: &[&domain::Slot]| {
        Rows::default()
            .text("name", slots, |slot| slot.name.to_string())
            .text("pool", slots, |slot| slot.pool.clone())
            .int("number", slots, |slot| slot.number)
            .text("status", slots, |slot| slot.status.as_str().to_owned())
            .time("status_since", slots, |slot| slot.status_since)
            .maybe_id("bot_id", slots, |slot| slot.bot_id.map(|id| id.0))
            .id("incarnation", slots, |slot| slot.incarnation)
            .int("generation", slots, |slot| slot.generation)
            .int("token_number", slots, |slot| slot.token_number)
            .maybe_text("agent", slots, |slot| slot.agent.clone())
            .int("bots_since_fresh", slots, |slot| slot.bots_since_fresh)
            .maybe_text("provider_ref", slots, |slot| slot.provider_ref.clone())
            .text("description", slots, |slot| slot.description.clone())
            .maybe_time("last_used_at", slots, |slot| slot.last_used_at)
            .maybe_text("error_message", slots, |slot| slot.error_message.clone())
            .int("recovery_attempts", slots, |slot| slot.recovery_attempts)
            .time("created_at", slots, |slot| slot.created_at)
            .text("attributes", slots, |slot| slot.attributes.to_string())
            .maybe_time("expires_at", slots, |slot| slot.expires_at)
            .int("unsettled", slots, |slot| i64::from(slot.is_unsettled()))
    };
    add(
        "inserted_slots",
        false,
        rows(&new),
        "INSERT INTO slots (name, pool, number, status, status_since, bot_id, incarnation, generation, token_number, agent,
                            bots_since_fresh, provider_ref, description, last_used_at, error_message, recovery_attempts,
                            created_at, attributes, expires_at, unsettled)
         SELECT name, pool, number, status, status_since, bot_id, incarnation, generation, token_number, agent,
                bots_since_fresh, provider_ref, description, last_used_at, error_message, recovery_attempts, created_at,
                attributes, expires_at, unsettled
           FROM {rows} WHERE {fenced}",
    );
    add(
        "changed_slots",
        true,
        rows(&changed),
        "UPDATE slots SET status = r.status, status_since = r.status_since, bot_id = r.bot_id, incarnation = r.incarnation,
                generation = r.generation, token_number = r.token_number, agent = r.agent,
                bots_since_fresh = r.bots_since_fresh, provider_ref = r.provider_ref, description = r.description,
                last_used_at = r.last_used_at, error_message = r.error_message, recovery_attempts = r.recovery_attempts,
                created_at = r.created_at, attributes = r.attributes, expires_at = r.expires_at, unsettled = r.unsettled
           FROM {rows} WHERE slots.name = r.name AND {fenced}",
    );
    let rows = Rows::default().text("name", &gone, |name| name.to_string());
    add("deleted_slots", true, rows, "DELETE FROM slots WHERE name IN (SELECT name FROM {rows}) AND {fenced}");
    let pools: Vec<_> = changes.pools.values().collect();
    let sets = |pool: &&domain::Pool| {
        let texts: Vec<String> = pool.attribute_sets.iter().map(ToString::to_string).collect();
        serde_json::to_string(&texts).unwrap_or_else(|_| "[]".to_owned())
    };
    let rows = Rows::default()
        .text("name", &pools, |pool| pool.name.clone())
        .int("slots", &pools, |pool| pool.slots)
        .maybe_int("mean_hold_ms", &pools, |pool| pool.mean_hold_ms)
        .text("attribute_sets", &pools, sets);
    add(
        "changed_pools",
        false,
        rows,
        "UPDATE pools SET slots = r.slots, mean_hold_ms = r.mean_hold_ms, attribute_sets = r.attribute_sets::json
           FROM {rows} WHERE pools.name = r.name AND {fenced}",
    );
    let rows = Rows::default()
        .id("bot_id", &changes.events, |event| event.bot_id.0)
        .id("user_id", &changes.events, |event| event.user_id.0)
        .text("kind", &changes.events, |event| event.kind.as_str().to_owned())
        .maybe_text("from_status", &changes.events, |event| event.from.map(|status| status.as_str().to_owned()))
        .maybe_text("to_status", &changes.events, |event| event.to.map(|status| status.as_str().to_owned()))
        .maybe_text("reason", &changes.events, |event| event.reason.clone())
        .text("actor", &changes.events, |event| event.actor.as_str().to_owned())
        .time("at", &changes.events, |_| now);
    add(
        "inserted_events",
        false,
        rows,
        "INSERT INTO events (bot_id, user_id, at, kind, from_status, to_status, reason, actor)
         SELECT bot_id, user_id, at, kind, from_status, to_status, reason, actor FROM {rows} WHERE {fenced}",
    );
}

fn queue_and_gate(changes: &Changes, now: Timestamp, add: Add<'_>) {
    let rows = Rows::default().id("id", &changes.left_queue, |id| id.0);
    add("left_queue", true, rows, "DELETE FROM queue WHERE bot_id IN (SELECT id FROM {rows}) AND {fenced}");
    let waiting: Vec<_> = (changes.queued.iter())
        .filter_map(|id| changes.bots.get(id)?.as_ref())
        .filter_map(|bot| Some((bot, bot.queued.as_ref()?)))
        .collect();
    let rows = Rows::default()
        .id("bot_id", &waiting, |(bot, _)| bot.id.0)
        .text("platform", &waiting, |(bot, _)| bot.platform.as_str().to_owned())
        .text("pool", &waiting, |(_, queued)| queued.pool.clone())
        .int("priority", &waiting, |(bot, _)| bot.priority)
        .int("turn", &waiting, |(bot, _)| bot.turn)
        .int("arrival", &waiting, |(bot, _)| bot.arrival)
        .text("wants", &waiting, |(bot, _)| line_key(bot.requirements.as_ref()))
        .time("queued_at", &waiting, |(_, queued)| queued.queued_at)
        .time("timeout_at", &waiting, |(_, queued)| queued.timeout_at)
        .maybe_time("not_before", &waiting, |(_, queued)| queued.not_before);
    add(
        "joined_queue",
        false,
        rows,
        "INSERT INTO queue (bot_id, platform, pool, priority, turn, arrival, wants, queued_at, timeout_at, not_before)
         SELECT bot_id, platform, pool, priority, turn, arrival, wants, queued_at, timeout_at, not_before
           FROM {rows} WHERE {fenced}",
    );
    gate(changes, now, add);
}

fn gate(changes: &Changes, now: Timestamp, add: Add<'_>) {
    // One that a bot is taken from, in whatever way, is deleted once.
    let at_gate: Vec<(&SlotName, GateState)> =
        changes.ends.iter().filter_map(|end| end.at_gate.as_ref()).map(|(slot, state)| (slot, *state)).collect();
    let rows =
        Rows::default().text("slot", &at_gate, |(slot, _)| slot.to_string()).text("state", &at_gate, |(_, state)| {
            if *state == GateState::Waiting { "waiting" } else { "again" }.to_owned()
        });
    add(
        "given_up_deployments",
        true,
        rows,
        "DELETE FROM deployments WHERE (slot, state) IN (SELECT slot, state FROM {rows}) AND {fenced}",
    );
    let rows = Rows::default()
        .text("slot", &changes.returned, |bot| bot.slot.to_string())
        .id("bot_id", &changes.returned, |bot| bot.bot.0)
        .id("holder", &changes.returned, |bot| bot.holder);
    add(
        "returned_deployments",
        true,
        rows,
        "DELETE FROM deployments WHERE (slot, bot_id, holder) IN (SELECT slot, bot_id, holder FROM {rows}) AND {fenced}",
    );
    let rows = Rows::default().text("slot", &changes.cancelled_deployments, ToString::to_string);
    add(
        "cancelled_deployments",
        false,
        rows,
        "DELETE FROM deployments WHERE slot IN (SELECT slot FROM {rows}) AND {fenced}",
    );
    let rows = Rows::default()
        .text("slot", &changes.released_deployments, |released| released.slot.to_string())
        .maybe_id("bot_id", &changes.released_deployments, |released| released.bot.map(|id| id.0))
        .id("holder", &changes.released_deployments, |released| released.holder);
    add(
        "released_deployments",
        false,
        rows,
        "DELETE FROM deployments
          WHERE slot IN (SELECT slot FROM {rows} WHERE deployments.bot_id IS NOT DISTINCT FROM r.bot_id
                                                   AND deployments.holder = r.holder) AND {fenced}",
    );
    let rows = Rows::default()
        .text("slot", &changes.deployments, |new| new.slot.to_string())
        .text("pool", &changes.deployments, |new| new.pool.clone())
        .text("host", &changes.deployments, |new| new.host.clone())
        .maybe_id("bot_id", &changes.deployments, |new| new.bot.map(|id| id.0))
        .time("asked_at", &changes.deployments, |_| now)
        .time("timeout_at", &changes.deployments, |new| new.timeout_at);
    add(
        "asked_deployments",
        false,
        rows,
        "INSERT INTO deployments (slot, pool, host, bot_id, state, asked_at, timeout_at)
         SELECT slot, pool, host, bot_id, 'waiting', asked_at, timeout_at FROM {rows} WHERE {fenced}
         ON CONFLICT DO NOTHING",
    );
}
