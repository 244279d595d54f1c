//! Keeps the slots of a pool ready. It makes slots until `min_idle` are ready. It removes slots that are excess,
//! expired, or differ in attributes from new ones. It stops hot slots that are not needed. It replaces slots that run
//! an old image, or a command that has been ready for too long.

use std::time::Duration;

use jiff::Timestamp;

use super::stopped;
use crate::planner::MOST_AT_ONCE;
use crate::planner::bugs::{Bug, has};
use crate::planner::draft::{Draft, count};
use crate::planner::job::WarmReport;
use crate::{Attributes, Pool, Slot, SlotName, SlotStatus};

/// The most expired or unneeded slots of a pool that one plan removes or stops.
const MOST_REMOVED_AT_ONCE: usize = 50;

pub fn apply(draft: &mut Draft<'_>, name: &str, report: &mut WarmReport) {
    let Some(pool) = draft.pool(name).filter(|pool| pool.is_configured()).cloned() else { return };
    report.made += grow(draft, &pool, missing(draft, &pool));
    note_attributes(draft, &pool);
    let leaving = leaving(draft, name);
    for slot in leaving {
        draft.put_slot(&slot, SlotStatus::Draining);
        report.let_go += 1;
    }
    for slot in unneeded(draft, &pool) {
        stopped::begins(draft, &slot);
        report.stopped += 1;
    }
    replace_outdated(draft, &pool, report);
}

/// How many ready slots are missing.
fn missing(draft: &Draft<'_>, pool: &Pool) -> i64 {
    if pool.min_idle == 0 || pool.provisioned_per_bot() {
        return 0;
    }
    let unsettled = draft.unsettled(&pool.name);
    let ready = draft.count_idle(&pool.name, pool.min_idle) + unsettled.making;
    // If slots cannot be started, more slots do not help. Each broken slot is replaced once; after that the pool waits.
    let hopeless = (unsettled.error - pool.min_idle).max(0);
    let wanted = if has(Bug::WarmBufferShort) { pool.min_idle - 1 } else { pool.min_idle };
    (wanted - ready - hopeless).clamp(0, count(MOST_AT_ONCE))
}

/// Makes `wanted` more slots ready: stopped slots first, then new ones while there is room.
fn grow(draft: &mut Draft<'_>, pool: &Pool, wanted: i64) -> u64 {
    if wanted <= 0 {
        return 0;
    }
    let mut made = 0;
    let stopped = draft.idle_stopped(&pool.name);
    for slot in stopped.into_iter().take(usize::try_from(wanted).unwrap_or(0)) {
        draft.return_to_pool(&slot);
        made += 1;
    }
    let room = draft.pool(&pool.name).map_or(0, Pool::room);
    for _ in 0..(wanted - made).min(room) {
        if let Some(slot) = draft.make_slot(&pool.name) {
            draft.return_to_pool(&slot);
            made += 1;
        }
    }
    made.unsigned_abs()
}

/// Hot slots above `min_idle` that have been idle longer than the pool allows.
fn unneeded(draft: &Draft<'_>, pool: &Pool) -> Vec<SlotName> {
    let Some(timeout) = pool.idle_timeout_ms.filter(|_| pool.hot) else { return Vec::new() };
    let most = pool.min_idle.saturating_add(count(MOST_REMOVED_AT_ONCE));
    let spare =
        usize::try_from(draft.count_idle(&pool.name, most) - pool.min_idle).unwrap_or(0).min(MOST_REMOVED_AT_ONCE);
    if spare == 0 {
        return Vec::new();
    }
    let since = draft.now.saturating_sub(Duration::from_millis(timeout.unsigned_abs())).unwrap_or(Timestamp::MIN);
    draft.idle_since(&pool.name, since, spare)
}

/// Restarts a hot slot whose image or command differs from the configuration, or whose command has been ready for too
/// long. It restarts one slot at a time, and only while no slot is being made ready or is in error, so a broken image
/// reaches only one slot. At least `min_idle` slots stay ready, or one fewer if the pool cannot grow.
fn replace_outdated(draft: &mut Draft<'_>, pool: &Pool, report: &mut WarmReport) {
    let unsettled = draft.unsettled(&pool.name);
    if unsettled.making > 0 || unsettled.error > 0 {
        return;
    }
    let outdated = draft.idle_outdated(&pool.name);
    let is_outdated = outdated.is_some();
    let Some(outdated) = outdated.or_else(|| ready_too_long(draft, pool)) else { return };
    let ready = draft.count_idle(&pool.name, pool.min_idle.saturating_add(1));
    // Each replacement begins a new time of idling, so a slot that is replaced again and again would never be stopped.
    if !is_outdated && ready > pool.min_idle && is_unused(draft, pool, &outdated) {
        stopped::begins(draft, &outdated);
        report.stopped += 1;
        return;
    }
    if ready <= pool.min_idle && grow(draft, pool, 1) > 0 {
        report.made += 1;
    } else if ready >= pool.min_idle {
        draft.cancel_deployment(&outdated);
        draft.free_slot(&outdated, false);
        draft.return_to_pool(&outdated);
        report.replaced += 1;
    }
}

/// The slot whose command has been ready for the longest time, if that is too long.
fn ready_too_long(draft: &Draft<'_>, pool: &Pool) -> Option<SlotName> {
    let since = draft.now.saturating_sub(pool.replace_ready_after()?).unwrap_or(Timestamp::MIN);
    draft.idle_since(&pool.name, since, 1).into_iter().next()
}

/// Whether the slot has had no bot for longer than the pool allows a spare slot to idle.
fn is_unused(draft: &Draft<'_>, pool: &Pool, name: &SlotName) -> bool {
    let (Some(slot), Some(timeout)) = (draft.slot(name), pool.idle_timeout_ms) else { return false };
    let since = draft.now.saturating_sub(Duration::from_millis(timeout.unsigned_abs())).unwrap_or(Timestamp::MIN);
    slot.last_used_at.unwrap_or(slot.created_at) <= since
}

/// Records the attributes of the pool's slots, because a replica with another configuration may have made some of them.
fn note_attributes(draft: &mut Draft<'_>, pool: &Pool) {
    if pool.provisioned_per_bot() {
        return;
    }
    let new = pool.attributes_of_new();
    let mut sets = vec![new.clone()];
    sets.extend(draft.idle_attributes(&pool.name).into_iter().filter(|attributes| *attributes != new));
    if sets != pool.attribute_sets {
        draft.change_pool(&pool.name, |pool| pool.attribute_sets = sets);
    }
}

/// Idle slots that the pool removes.
fn leaving(draft: &Draft<'_>, name: &str) -> Vec<SlotName> {
    let Some(pool) = draft.pool(name) else { return Vec::new() };
    let new = pool.attributes_of_new();
    let is_good = |slot: &&Slot| !pool.has_expired(slot, draft.now);
    let mut leaving: Vec<SlotName> = Vec::new();
    let excess = (pool.slots - draft.unsettled(name).draining - pool.max_slots).max(0);
    if excess > 0 {
        let mut idle: Vec<&Slot> = draft.idle_of(name).filter(is_good).collect();
        idle.sort_by_key(|slot| (slot.attributes == new, slot.last_used_at, slot.number));
        idle.truncate(usize::try_from(excess).unwrap_or(0).min(MOST_AT_ONCE));
        leaving.extend(idle.into_iter().map(|slot| slot.name.clone()));
    }
    if pool.expire_after_ms.is_some() {
        // Expired slots can no longer be given out.
        let mut expired: Vec<&Slot> = draft.idle_of(name).filter(|slot| !is_good(slot)).collect();
        expired.sort_by_key(|slot| (slot.expires_at, slot.number));
        leaving.extend(expired.into_iter().take(MOST_REMOVED_AT_ONCE).map(|slot| slot.name.clone()));
    }
    if leaving.is_empty() && !pool.provisioned_per_bot() && draft.unsettled(name).all == 0 {
        leaving.extend(of_other_attributes(draft, pool, &new));
    }
    leaving
}

/// An idle slot of an earlier configuration, whose room a slot with the current attributes can take. Returns at most
/// one. The caller asks only while no slot of the pool is unsettled.
fn of_other_attributes(draft: &Draft<'_>, pool: &Pool, new: &Attributes) -> Option<SlotName> {
    let old = draft.idle_unlike(&pool.name, new).filter(|slot| !pool.has_expired(slot, draft.now));
    old.min_by_key(|slot| (slot.last_used_at, slot.number)).map(|slot| slot.name.clone())
}
