//! The rows of bots that a plan makes, changes or ends.

use std::collections::HashMap;

use domain::planner::changes::{BotEnd, Changes};
use domain::{BotId, Reason, SlotName, Status};
use jiff::Timestamp;

use super::write::{Write, existing};
use super::{BotDetails, Parts, document};
use crate::columns::Rows;

pub fn bots<'a>(parts: &mut Parts<'a>, changes: &'a Changes, details: &'a HashMap<usize, BotDetails>, now: Timestamp) {
    let new: Vec<_> = (changes.new_bots.iter())
        .filter_map(|new| Some((new, changes.bots.get(&new.id)?.as_ref()?, details.get(&new.job)?)))
        .collect();
    let rows = Rows::default()
        .id("id", &new, |(new, ..)| new.id.0)
        .id("user_id", &new, |(_, bot, _)| bot.user.0)
        .text("platform", &new, |(_, bot, _)| bot.platform.as_str())
        .text("native_meeting_id", &new, |(_, bot, _)| bot.native_meeting_id.as_str())
        .text("meeting_url", &new, |(.., details)| details.meeting_url.as_str())
        .maybe_text("bot_display_name", &new, |(.., details)| details.bot_display_name.as_deref())
        .int("priority", &new, |(_, bot, _)| bot.priority)
        .int("queue_timeout_ms", &new, |(_, bot, _)| bot.queue_timeout_ms)
        .maybe_text("requirements", &new, |(.., details)| details.requirements.as_ref().map(document))
        .text("config", &new, |(.., details)| document(&details.config))
        .text("metadata", &new, |(.., details)| document(&details.metadata))
        .maybe_text("pool", &new, |(_, bot, _)| bot.pool.as_deref())
        .maybe_text("slot", &new, |(_, bot, _)| bot.slot.as_ref().map(SlotName::as_str))
        .maybe_id("connection_id", &new, |(_, bot, _)| bot.connection.map(|id| id.0))
        .maybe_time("awaited_since", &new, |(new, ..)| new.is_awaited.then_some(now))
        .int("queue_arrival", &new, |(_, bot, _)| bot.arrival)
        .int("turn", &new, |(_, bot, _)| bot.turn)
        .maybe_time("queue_until", &new, |(_, bot, _)| bot.wait_until)
        .now(now);
    let opened = Rows::default().id("user_id", &new, |(_, bot, _)| bot.user.0).id("id", &new, |(new, ..)| new.id.0);
    parts.add(
        "inserted_bots",
        false,
        rows,
        Write::Statement(
                "INSERT INTO bots (id, user_id, platform, native_meeting_id, meeting_url, bot_display_name, priority,
                               queue_timeout_ms, requirements, config, metadata, pool, slot, connection_id, awaited_since,
                               queue_arrival, turn, queue_until, status, status_since, created_at, updated_at)
             SELECT id, user_id, platform, native_meeting_id, meeting_url, bot_display_name, priority, queue_timeout_ms,
                    requirements::json, config::json, metadata::json, pool, slot, connection_id, awaited_since,
                    queue_arrival, turn, queue_until, 'reserved', now, now, now
               FROM {rows} WHERE {fenced}",
        ),
    );
    parts.add(
        "opened_bots",
        false,
        opened,
        Write::Statement("INSERT INTO open_bots (user_id, bot_id) SELECT user_id, id FROM {rows} WHERE {fenced}"),
    );
    let keys: Vec<_> = changes.new_keys.iter().collect();
    let rows = Rows::default()
        .id("user_id", &keys, |key| key.user.0)
        .text("key", &keys, |key| key.key.as_str())
        .text("body_hash", &keys, |key| key.body_hash.as_str())
        .id("bot_id", &keys, |key| key.bot.0)
        .now(now);
    parts.add(
        "inserted_keys",
        false,
        rows,
        Write::Statement(
            "INSERT INTO idempotency_keys (user_id, key, body_hash, bot_id, created_at)
             SELECT user_id, key, body_hash, bot_id, now FROM {rows} WHERE {fenced}",
        ),
    );
    let granted: Vec<_> =
        changes.grants.iter().filter_map(|grant| Some((grant, changes.bots.get(&grant.bot)?.as_ref()?))).collect();
    let rows = Rows::default()
        .id("id", &granted, |(grant, _)| grant.bot.0)
        .text("slot", &granted, |(grant, _)| grant.slot.as_str())
        .text("pool", &granted, |(grant, _)| grant.pool.as_str())
        .id("connection_id", &granted, |(grant, _)| grant.connection.0)
        .maybe_time("awaited_since", &granted, |(grant, _)| grant.is_awaited.then_some(now))
        .maybe_time("queue_until", &granted, |(_, bot)| bot.wait_until)
        .int("queue_returns", &granted, |(_, bot)| bot.returns)
        .now(now);
    parts.add(
        "granted_bots",
        true,
        rows,
        Write::Update(
            existing("bots", &[("id", "id")])
                .only_if("bots.status = 'reserved'"),
            "slot = input.slot, pool = input.pool, connection_id = input.connection_id, awaited_since = input.awaited_since,
                queue_until = coalesce(input.queue_until, bots.queue_until), queue_returns = input.queue_returns,
                status_since = input.now, updated_at = input.now",
        ),
    );
    // Only one part writes each row: the last one that was planned for it.
    let has_ended = |id: &BotId| changes.ends.iter().any(|end| end.bot == *id);
    let reconnected: Vec<_> = changes.reconnected.iter().filter(|bot| !has_ended(&bot.bot)).collect();
    let rows = Rows::default()
        .id("id", &reconnected, |bot| bot.bot.0)
        .maybe_id("before", &reconnected, |bot| bot.from.map(|id| id.0))
        .id("connection_id", &reconnected, |bot| bot.to.0)
        .now(now);
    parts.add(
        "reconnected_bots",
        true,
        rows,
        Write::Update(
            existing("bots", &[("id", "id")])
                .only_if("bots.status = 'reserved' AND bots.connection_id IS NOT DISTINCT FROM input.before"),
            "connection_id = input.connection_id, awaited_since = NULL, updated_at = input.now",
        ),
    );
    let returned: Vec<_> = (changes.returned.iter())
        .filter(|bot| !has_ended(&bot.bot) && changes.grants.iter().all(|grant| grant.bot != bot.bot))
        .collect();
    let rows =
        Rows::default().id("id", &returned, |bot| bot.bot.0).text("slot", &returned, |bot| bot.slot.as_str()).now(now);
    parts.add(
        "returned_bots",
        true,
        rows,
        Write::Update(
            existing("bots", &[("id", "id")])
                .only_if("bots.slot = input.slot AND bots.status = 'reserved' AND bots.stop_asked_at IS NULL"),
            "slot = NULL, connection_id = NULL, awaited_since = NULL, queue_returns = queue_returns + 1,
                status_since = input.now, updated_at = input.now",
        ),
    );
    let is_reconnected = |id: &BotId| changes.reconnected.iter().any(|bot| bot.bot == *id);
    let awaited: Vec<_> = changes.awaited.iter().filter(|id| !has_ended(id) && !is_reconnected(id)).collect();
    let rows = Rows::default().id("id", &awaited, |id| id.0).now(now);
    parts.add(
        "awaited_bots",
        false,
        rows,
        Write::Update(existing("bots", &[("id", "id")]), "awaited_since = input.now, updated_at = input.now"),
    );
    ends(parts, changes, now);
}

fn ends<'a>(parts: &mut Parts<'a>, changes: &'a Changes, now: Timestamp) {
    // The same plan may have removed its connection and its slot before.
    let reconnected = |end: &BotEnd| changes.reconnected.iter().rfind(|bot| bot.bot == end.bot).map(|bot| bot.to.0);
    let is_returned = |end: &BotEnd| changes.returned.iter().any(|bot| bot.bot == end.bot);
    let ends: Vec<_> = changes.ends.iter().collect();
    let rows = Rows::default()
        .id("id", &ends, |end| end.bot.0)
        .text("before", &ends, |end| end.from.as_str())
        .text("status", &ends, |end| end.to.as_str())
        .maybe_text("reason", &ends, |end| end.reason.as_ref().map(Reason::as_str))
        .text("fault", &ends, |end| end.fault.as_str())
        .maybe_text("error", &ends, |end| end.error.as_deref())
        .maybe_int("exit_code", &ends, |end| end.exit_code)
        .maybe_id("connection_id", &ends, reconnected)
        .int("is_returned", &ends, |end| i64::from(is_returned(end)))
        .now(now);
    parts.add(
        "ended_bots",
        true,
        rows,
        Write::Update(
            existing("bots", &[("id", "id")]).only_if(
                // Since the decision, the bot may have joined and returned to this status.
                "bots.status = input.before AND (input.reason IS DISTINCT FROM 'never_joined' OR bots.joined_at IS NULL)",
            ),
            "status = input.status, status_since = input.now, reason = input.reason, fault = input.fault,
                error = coalesce(input.error, bots.error), exit_code = coalesce(input.exit_code, bots.exit_code),
                end_time = input.now, updated_at = input.now,
                connection_id = CASE WHEN input.is_returned = 0 THEN coalesce(input.connection_id, bots.connection_id) END,
                slot = CASE WHEN input.is_returned = 0 THEN bots.slot END",
        ),
    );
    let rows = Rows::default().id("user_id", &ends, |end| end.user.0).id("id", &ends, |end| end.bot.0);
    parts.add(
        "closed_bots",
        true,
        rows,
        Write::Delete(existing("open_bots", &[("user_id", "user_id"), ("bot_id", "id")])),
    );
    // A bot that is still reserved has made no callback, and has no session.
    let spoke: Vec<_> = changes.ends.iter().filter(|end| end.from != Status::Reserved).collect();
    let rows = Rows::default().id("id", &spoke, |end| end.bot.0).now(now);
    parts.add(
        "ended_sessions",
        false,
        rows,
        Write::Statement(
            "UPDATE sessions SET ended_at = input.now FROM {rows}
              WHERE sessions.bot_id = input.id AND sessions.ended_at IS NULL AND {fenced}",
        ),
    );
}
