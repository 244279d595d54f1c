//! The rows of slots and pools that a plan changes, and the events about them.

use domain::event::StartKind;
use domain::planner::changes::Changes;
use domain::{ShownStatus, SlotName};
use jiff::Timestamp;

use super::Parts;
use super::write::{Write, existing, new_rows};
use crate::columns::Rows;
use crate::row_locations::RowLocation;

/// The slots of which a plan changes only the use, in the order of their rows.
pub fn used_slots(changes: &Changes) -> impl Iterator<Item = &domain::Slot> {
    let changed = changes.slots.values().filter(|change| change.only_use_changed && !change.is_new);
    changed.filter_map(|change| change.slot.as_ref())
}

pub fn slots<'a>(
    parts: &mut Parts<'a>,
    changes: &'a Changes,
    locations: Option<Vec<Option<RowLocation>>>,
    now: Timestamp,
) {
    let used: Vec<_> = used_slots(changes).collect();
    let (mut new, mut changed, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for (name, change) in &changes.slots {
        match &change.slot {
            Some(slot) if change.is_new => new.push(slot),
            Some(_) if change.only_use_changed => {}
            Some(slot) => changed.push(slot),
            None => gone.push(name),
        }
    }
    // The columns that each use of a slot changes.
    let of_use = |slots: &[&'a domain::Slot]| {
        Rows::default()
            .text("name", slots, |slot| slot.name.as_str())
            .text("status", slots, |slot| slot.status.as_str())
            .time("status_since", slots, |slot| slot.status_since)
            .maybe_id("bot_id", slots, |slot| slot.bot_id.map(|id| id.0))
            .int("generation", slots, |slot| slot.generation)
            .int("token_number", slots, |slot| slot.token_number)
            .int("bots_since_fresh", slots, |slot| slot.bots_since_fresh)
            .text("description", slots, |slot| slot.description.as_str())
            .maybe_time("last_used_at", slots, |slot| slot.last_used_at)
            .maybe_time("expires_at", slots, |slot| slot.expires_at)
            .int("unsettled", slots, |slot| i64::from(slot.is_unsettled()))
    };
    let rows = |slots: &[&'a domain::Slot]| {
        of_use(slots)
            .id("incarnation", slots, |slot| slot.incarnation)
            .maybe_text("agent", slots, |slot| slot.agent.as_deref())
            .maybe_text("provider_ref", slots, |slot| slot.provider_ref.as_deref())
            .maybe_text("error_message", slots, |slot| slot.error_message.as_deref())
            .int("recovery_attempts", slots, |slot| slot.recovery_attempts)
            .time("created_at", slots, |slot| slot.created_at)
            .text("attributes", slots, |slot| slot.attributes.to_string())
            .int("stopped", slots, |slot| i64::from(slot.stopped))
            .maybe_text("recipe", slots, |slot| slot.recipe.as_deref())
    };
    let of_new = rows(&new).text("pool", &new, |slot| slot.pool.as_str()).int("number", &new, |slot| slot.number);
    parts.add("inserted_slots", false, of_new, Write::Insert(new_rows("slots")));
    let by_name = existing("slots", &[("name", "name")]).with_epoch();
    let (rows_of_use, used_by_name) = match locations {
        Some(locations) => (of_use(&used).locations(locations), by_name.with_location()),
        None => (of_use(&used), by_name),
    };
    parts.add("used_slots", true, rows_of_use, Write::UpdateAll(used_by_name));
    parts.add("changed_slots", true, rows(&changed), Write::UpdateAll(by_name));
    let rows = Rows::default().text("name", &gone, SlotName::as_str);
    parts.add("deleted_slots", true, rows, Write::Delete(by_name));
    let pools: Vec<_> = changes.pools.values().collect();
    let sets = |pool: &domain::Pool| {
        let texts: Vec<String> = pool.attribute_sets.iter().map(ToString::to_string).collect();
        serde_json::to_string(&texts).unwrap_or_else(|_| "[]".to_owned())
    };
    let rows = Rows::default()
        .text("name", &pools, |pool| pool.name.as_str())
        .int("slots", &pools, |pool| pool.slots)
        .maybe_int("mean_hold_ms", &pools, |pool| pool.mean_hold_ms)
        .text("attribute_sets", &pools, sets);
    parts.add(
        "changed_pools",
        false,
        rows,
        Write::Update(
            existing("pools", &[("name", "name")]),
            "slots = input.slots, mean_hold_ms = input.mean_hold_ms, attribute_sets = input.attribute_sets::json",
        ),
    );
    let events: Vec<_> = changes.events.iter().collect();
    let rows = Rows::default()
        .id("bot_id", &events, |event| event.bot_id.0)
        .id("user_id", &events, |event| event.user_id.0)
        .text("kind", &events, |event| event.kind.as_str())
        .maybe_text("from_status", &events, |event| event.from.map(ShownStatus::as_str))
        .maybe_text("to_status", &events, |event| event.to.map(ShownStatus::as_str))
        .maybe_text("reason", &events, |event| event.reason.as_deref())
        .text("actor", &events, |event| event.actor.as_str())
        .maybe_text("start_kind", &events, |event| event.start_kind.map(StartKind::as_str))
        .now(now);
    parts.add("inserted_events", false, rows, Write::Insert(new_rows("events").with(&[("at", "now")])));
}
