//! Makes slots until as many are ready as a pool wants to keep, and lets go of those that are too many, too old, or of other
//! attributes than new ones.

use crate::planner::MOST_AT_ONCE;
use crate::planner::bugs::{Bug, has};
use crate::planner::draft::{Draft, count};
use crate::planner::job::WarmReport;
use crate::{Attributes, Pool, Slot, SlotName, SlotStatus};

/// No plan lets go of more slots of a pool than this.
const MOST_LET_GO: usize = 50;

pub fn apply(draft: &mut Draft<'_>, name: &str, report: &mut WarmReport) {
    let Some(pool) = draft.pool(name).filter(|pool| pool.is_configured()).cloned() else { return };
    for _ in 0..missing(draft, &pool) {
        if let Some(slot) = draft.make_slot(name) {
            draft.return_to_pool(&slot);
            report.made += 1;
        }
    }
    note_attributes(draft, &pool);
    let leaving = leaving(draft, name);
    for slot in leaving {
        draft.put_slot(&slot, SlotStatus::Draining);
        report.let_go += 1;
    }
}

/// How many slots are to be made.
fn missing(draft: &Draft<'_>, pool: &Pool) -> i64 {
    if pool.min_idle == 0 || pool.room() == 0 || pool.provisioned_per_bot() {
        return 0;
    }
    let unsettled = draft.unsettled(&pool.name);
    let ready = draft.count_idle(&pool.name, pool.min_idle) + unsettled.making;
    // Where slots cannot be started, more of them are no help: what is broken is replaced once, and then waited for.
    let hopeless = (unsettled.error - pool.min_idle).max(0);
    let wanted = if has(Bug::WarmBufferShort) { pool.min_idle - 1 } else { pool.min_idle };
    (wanted - ready - hopeless).clamp(0, pool.room()).min(count(MOST_AT_ONCE))
}

/// The attributes that its slots have: a replica with another configuration may have made some.
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

/// Idle slots that the pool lets go.
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
        // They are of no use to anybody any more.
        let mut expired: Vec<&Slot> = draft.idle_of(name).filter(|slot| !is_good(slot)).collect();
        expired.sort_by_key(|slot| (slot.expires_at, slot.number));
        leaving.extend(expired.into_iter().take(MOST_LET_GO).map(|slot| slot.name.clone()));
    }
    if leaving.is_empty() && !pool.provisioned_per_bot() && draft.unsettled(name).all == 0 {
        leaving.extend(of_other_attributes(draft, pool, &new));
    }
    leaving
}

/// An idle slot that was made by an earlier configuration, so that one with the attributes of now can take its room: one at a
/// time, and only while no other is on its way out or being made.
fn of_other_attributes(draft: &Draft<'_>, pool: &Pool, new: &Attributes) -> Option<SlotName> {
    let old = draft.idle_unlike(&pool.name, new).filter(|slot| !pool.has_expired(slot, draft.now));
    old.min_by_key(|slot| (slot.last_used_at, slot.number)).map(|slot| slot.name.clone())
}
