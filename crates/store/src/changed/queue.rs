//! The rows of bots that join or leave the queue, and of deployments that arrive at the gate or leave it.

use domain::SlotName;
use domain::planner::changes::{Changes, GateState};
use domain::planner::queue::queue_key;
use jiff::Timestamp;

use super::Parts;
use super::write::{Write, existing, new_rows};
use crate::columns::Rows;
use crate::deployments::state_word;

pub fn queue_and_gate<'a>(parts: &mut Parts<'a>, changes: &'a Changes, now: Timestamp) {
    let rows = Rows::default().id("id", &changes.left_queue, |id| id.0);
    parts.add("left_queue", true, rows, Write::Delete(existing("queue", &[("bot_id", "id")])));
    let waiting: Vec<_> = (changes.queued.iter())
        .filter_map(|id| changes.bots.get(id)?.as_ref())
        .filter_map(|bot| Some((bot, bot.queued.as_ref()?)))
        .collect();
    let rows = Rows::default()
        .id("bot_id", &waiting, |(bot, _)| bot.id.0)
        .text("platform", &waiting, |(bot, _)| bot.platform.as_str())
        .text("pool", &waiting, |(_, queued)| queued.pool.as_str())
        .int("priority", &waiting, |(bot, _)| bot.priority)
        .int("turn", &waiting, |(bot, _)| bot.turn)
        .int("arrival", &waiting, |(bot, _)| bot.arrival)
        .text("requirements", &waiting, |(bot, _)| queue_key(bot))
        .time("queued_at", &waiting, |(_, queued)| queued.queued_at)
        .time("timeout_at", &waiting, |(_, queued)| queued.timeout_at)
        .maybe_time("not_before", &waiting, |(_, queued)| queued.not_before);
    parts.add("joined_queue", false, rows, Write::Insert(new_rows("queue")));
    gate(parts, changes, now);
}

fn gate<'a>(parts: &mut Parts<'a>, changes: &'a Changes, now: Timestamp) {
    // A deployment whose bot is removed in several ways is deleted once.
    let at_gate: Vec<(&SlotName, GateState)> =
        changes.ends.iter().filter_map(|end| end.at_gate.as_ref()).map(|(slot, state)| (slot, *state)).collect();
    let rows =
        Rows::default()
            .text("slot", &at_gate, |(slot, _)| slot.as_str())
            .text("state", &at_gate, |(_, state)| state_word(state));
    parts.add(
        "given_up_deployments",
        true,
        rows,
        Write::Delete(existing("deployments", &[("slot", "slot"), ("state", "state")])),
    );
    let returned: Vec<_> = changes.returned.iter().collect();
    let rows = Rows::default()
        .text("slot", &returned, |bot| bot.slot.as_str())
        .id("bot_id", &returned, |bot| bot.bot.0)
        .id("holder", &returned, |bot| bot.holder);
    parts.add(
        "returned_deployments",
        true,
        rows,
        Write::Delete(existing("deployments", &[("slot", "slot"), ("bot_id", "bot_id"), ("holder", "holder")])),
    );
    let cancelled: Vec<_> = changes.cancelled_deployments.iter().collect();
    let rows = Rows::default().text("slot", &cancelled, SlotName::as_str);
    parts.add("cancelled_deployments", false, rows, Write::Delete(existing("deployments", &[("slot", "slot")])));
    let released: Vec<_> = changes.released_deployments.iter().collect();
    let rows = Rows::default()
        .text("slot", &released, |released| released.slot.as_str())
        .maybe_id("bot_id", &released, |released| released.bot.map(|id| id.0))
        .id("holder", &released, |released| released.holder);
    parts.add(
        "released_deployments",
        false,
        rows,
        Write::Delete(
            existing("deployments", &[("slot", "slot")])
                .only_if("deployments.bot_id IS NOT DISTINCT FROM input.bot_id AND deployments.holder = input.holder"),
        ),
    );
    let asked: Vec<_> = changes.deployments.iter().collect();
    let rows = Rows::default()
        .text("slot", &asked, |new| new.slot.as_str())
        .text("pool", &asked, |new| new.pool.as_str())
        .text("host", &asked, |new| new.host.as_str())
        .maybe_id("bot_id", &asked, |new| new.bot.map(|id| id.0))
        .time("timeout_at", &asked, |new| new.timeout_at)
        .now(now);
    let deployments = new_rows("deployments").with(&[("state", "'waiting'"), ("asked_at", "now")]).keeping_existing();
    parts.add("asked_deployments", false, rows, Write::Insert(deployments));
}
