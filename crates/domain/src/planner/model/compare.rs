//! Compares a plan, and the snapshot after it, with the reference.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;

use super::reference::{ExpectedPlan, NEW, Reference};
use super::world::World;
use crate::planner::bot::{EndedBot, OpenBot};
use crate::planner::changes::{Action, Changes, GateState};
use crate::planner::invariants;
use crate::planner::snapshot::{Deployment, Snapshot, Unsettled};
use crate::{BotId, ConnectionId, Platform, Slot, SlotStatus};

pub fn same<T: PartialEq + Debug>(what: &str, planner: &T, reference: &T) -> Result<(), String> {
    differ(what, planner, "reference", reference)
}

/// An error if the planner's value differs from the other one.
pub fn differ<T: PartialEq + Debug>(what: &str, planner: &T, whose: &str, other: &T) -> Result<(), String> {
    if planner == other {
        return Ok(());
    }
    Err(format!("{what} differ\n  planner:   {planner:?}\n  {whose}: {other:?}"))
}

fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort();
    all
}

/// Compares the plan with the reference's result. `after` is the reference after the batch.
pub fn same_plan(
    world: &World,
    changes: &Changes,
    expected_plan: &ExpectedPlan,
    after: &Reference,
) -> Result<(), String> {
    same("answers", &changes.answers, &expected_plan.answers)?;
    let new = changes.new_bots.iter().map(|new| (new.job, new.id, new.is_awaited)).collect();
    same("new bots", &new, &expected_plan.new_bots)?;
    same("new keys", &changes.new_keys, &expected_plan.new_keys)?;
    let grants = changes.grants.iter().map(|grant| (grant.bot, grant.slot.clone(), grant.is_awaited));
    same("grants", &sorted(grants.collect()), &sorted(expected_plan.grants.clone()))?;
    same("ends", &changes.ends, &expected_plan.ends)?;
    let (mut events, mut expected) = (changes.events.clone(), expected_plan.events.clone());
    events.sort_by_key(|event| event.bot_id);
    expected.sort_by_key(|event| event.bot_id);
    same("events", &events, &expected)?;
    let (mut asked, mut expected) = (changes.deployments.clone(), expected_plan.asked.clone());
    asked.sort_by(|one, other| one.slot.cmp(&other.slot));
    expected.sort_by(|one, other| one.slot.cmp(&other.slot));
    same("deployments", &asked, &expected)?;
    same("cancelled deployments", &changes.cancelled_deployments, &expected_plan.cancelled)?;
    same("released deployments", &changes.released_deployments, &expected_plan.released)?;
    same("returned", &changes.returned, &expected_plan.returned)?;
    let reconnected: Vec<_> = changes.reconnected.iter().map(|one| one.bot).collect();
    same("reconnected", &reconnected, &expected_plan.reconnected)?;
    same("awaited", &changes.awaited, &expected_plan.awaited)?;
    same("unfinished", &changes.unfinished, &expected_plan.unfinished)?;
    queue_moves(world, changes, after)?;
    actions(world, changes, expected_plan, after)?;
    consistent(world, changes)
}

fn queue_moves(world: &World, changes: &Changes, after: &Reference) -> Result<(), String> {
    let waits = |of: &Reference| -> HashSet<_> {
        of.bots.iter().filter(|bot| bot.queued.is_some()).map(|bot| bot.id).collect()
    };
    let (before, after) = (waits(&world.reference), waits(after));
    let queued = sorted(after.difference(&before).copied().collect());
    let left = sorted(before.difference(&after).copied().collect());
    same("queued", &sorted(changes.queued.clone()), &queued)?;
    same("left the queue", &sorted(changes.left_queue.clone()), &left)
}

fn actions(world: &World, changes: &Changes, expected_plan: &ExpectedPlan, after: &Reference) -> Result<(), String> {
    let mut expected: Vec<Action> = expected_plan.woken.iter().cloned().map(Action::WakeAgent).collect();
    expected.extend(expected_plan.to_clear.iter().copied().map(Action::Clear));
    expected.extend(expected_plan.gate_moves.then_some(Action::PassGate));
    expected.extend(expected_plan.refill.then_some(Action::RefillPools));
    expected.extend((!changes.queued.is_empty()).then_some(Action::WatchQueue));
    for slot in &after.slots {
        let before = world.reference.slot(&slot.name);
        let is_made = |before: &Slot| before.provider_ref.is_none() && slot.provider_ref.is_some();
        if before.is_none_or(|before| before.description != slot.description || is_made(before)) {
            let (pool, description) = (slot.pool.clone(), slot.description.clone());
            expected.push(Action::Describe { pool, slot: slot.name.clone(), description });
        }
    }
    let missing: Vec<_> = expected.iter().filter(|action| !changes.actions.contains(action)).collect();
    if missing.is_empty() && expected.len() == changes.actions.len() {
        return Ok(());
    }
    Err(format!("actions differ\n  planner:   {:?}\n  reference: {expected:?}", changes.actions))
}

/// Checks that the parts of a plan agree with each other.
fn consistent(world: &World, changes: &Changes) -> Result<(), String> {
    let fail = |what: String| Err(format!("the plan contradicts itself: {what}"));
    for grant in &changes.grants {
        let bot = changes.bots.get(&grant.bot).and_then(Option::as_ref);
        if bot.is_none_or(|bot| bot.slot.as_ref() != Some(&grant.slot) || bot.connection != Some(grant.connection)) {
            return fail(format!("{grant:?} and {bot:?}"));
        }
        if changes.queued.contains(&grant.bot) {
            return fail(format!("{} is granted and queued", grant.bot));
        }
    }
    for reconnected in &changes.reconnected {
        let bot = changes.bots.get(&reconnected.bot).and_then(Option::as_ref);
        if bot.is_some_and(|bot| bot.connection != Some(reconnected.to)) {
            return fail(format!("{reconnected:?} and {bot:?}"));
        }
    }
    // The row of a bot is written once: by its end, its grant, its return, or one of the other changes.
    let others = changes.reconnected.iter().map(|one| one.bot).chain(changes.awaited.iter().copied());
    for bot in others.filter(|bot| changes.ends.iter().all(|end| end.bot != *bot)) {
        let granted = changes.grants.iter().any(|grant| grant.bot == bot);
        if granted || changes.returned.iter().any(|returned| returned.bot == bot) {
            return fail(format!("{bot} is written twice"));
        }
    }
    let mut slots = HashSet::new();
    if let Some(twice) = changes.deployments.iter().find(|asked| !slots.insert(&asked.slot)) {
        return fail(format!("{} is deployed twice", twice.slot));
    }
    for (name, change) in &changes.slots {
        let before = world.snapshot.slot(name);
        if before == change.slot.as_ref() {
            return fail(format!("{name} is written and has not changed"));
        }
        if change.is_new != (before.is_none() && change.slot.is_some()) {
            return fail(format!("{name} is new: {}", change.is_new));
        }
    }
    Ok(())
}

/// Does what the database does with a plan, apart from the part that the snapshot applies.
pub fn write(snapshot: &mut Snapshot, changes: &Changes) -> Result<(), String> {
    for end in &changes.ends {
        let Some(bot) = snapshot.bot(end.bot) else { return Err(format!("{end:?}: the bot is not open")) };
        let ended = EndedBot {
            status: end.to,
            reason: end.reason.as_ref().map(ToString::to_string),
            exit_code: end.exit_code,
            stop_asked: bot.stop_asked,
            connection: connection_at_end(changes, bot),
        };
        if snapshot.facts.ended.insert(end.bot, ended).is_some() {
            return Err(format!("bot {} has ended twice", end.bot));
        }
        if let Some((slot, state)) = &end.at_gate {
            let found = snapshot.facts.deployments.remove(slot);
            if found.is_none_or(|found| found.state != *state) {
                return Err(format!("{end:?}: it is not at the gate"));
            }
        }
    }
    let deployments = &mut snapshot.facts.deployments;
    for returned in &changes.returned {
        let found = deployments.remove(&returned.slot);
        if found.is_none_or(|found| found.bot != Some(returned.bot) || found.holder != Some(returned.holder)) {
            return Err(format!("{returned:?}: the deployment is not the holder's"));
        }
    }
    for slot in &changes.cancelled_deployments {
        deployments.remove(slot);
    }
    for released in &changes.released_deployments {
        let is_holders = |found: &Deployment| found.bot == released.bot && found.holder == Some(released.holder);
        if deployments.get(&released.slot).is_some_and(is_holders) {
            deployments.remove(&released.slot);
        }
    }
    for asked in &changes.deployments {
        let waits = Deployment { bot: asked.bot, state: GateState::Waiting, holder: None };
        deployments.entry(asked.slot.clone()).or_insert(waits);
    }
    Ok(())
}

/// The connection with which a bot ended. If the bot was silent earlier in the same plan, it has a new one. If it
/// returned to the queue, it has none.
fn connection_at_end(changes: &Changes, bot: &OpenBot) -> Option<ConnectionId> {
    if changes.returned.iter().any(|returned| returned.bot == bot.id) {
        return None;
    }
    let reconnected = changes.reconnected.iter().rfind(|one| one.bot == bot.id);
    reconnected.map(|one| one.to).or(bot.connection)
}

/// Takes over the ids that the plan created. None may have been used before.
fn adopt(world: &mut World) -> Result<(), String> {
    let World { snapshot, reference, made, connections, .. } = world;
    for slot in reference.slots.iter_mut().filter(|slot| slot.incarnation == NEW) {
        let Some(known) = snapshot.slot(&slot.name) else { return Err(format!("slot {} is missing", slot.name)) };
        slot.incarnation = known.incarnation;
        if !made.insert(known.incarnation) {
            return Err(format!("slot {} has the incarnation of another", slot.name));
        }
    }
    for bot in reference.bots.iter_mut().filter(|bot| bot.connection == Some(ConnectionId(NEW))) {
        let known = snapshot.bot(bot.id).and_then(|bot| bot.connection);
        let Some(known) = known else { return Err(format!("bot {} has no connection", bot.id)) };
        bot.connection = Some(known);
        connections.push(known);
        if !made.insert(known.0) {
            return Err(format!("bot {} has the connection of another", bot.id));
        }
    }
    for (id, ended) in reference.ended.iter_mut().filter(|(_, ended)| ended.connection == Some(ConnectionId(NEW))) {
        ended.connection = snapshot.facts.ended.get(id).and_then(|known| known.connection);
    }
    Ok(())
}

/// Compares the whole state with the reference, and checks the invariants.
pub fn state(world: &mut World) -> Result<(), String> {
    adopt(world)?;
    let World { snapshot, reference, .. } = &*world;
    for slot in &reference.slots {
        same("slots", &snapshot.slot(&slot.name), &Some(slot))?;
    }
    same("the number of slots", &snapshot.slots().count(), &reference.slots.len())?;
    for pool in &reference.pools {
        let Some(state) = snapshot.pool(&pool.name) else { return Err(format!("pool {} is missing", pool.name)) };
        same("pools", &state.pool, pool)?;
        let of_pool = || reference.slots.iter().filter(|slot| slot.pool == pool.name);
        let mut idle = 0;
        for (attributes, alike) in state.idle() {
            idle += alike.len();
            let is_like = |name| reference.slot(name).is_some_and(|slot| slot.attributes == *attributes);
            if !alike.iter().all(|slot| is_like(&slot.name)) {
                return Err(format!("idle slots of {} are not alike", pool.name));
            }
        }
        same("idle slots", &idle, &of_pool().filter(|slot| slot.status == SlotStatus::Idle).count())?;
        let unsettled = of_pool().fold(Unsettled::default(), |all, slot| all.with(None, Some(slot)));
        same("unsettled slots", &state.unsettled, &unsettled)?;
    }
    bots(snapshot, reference)?;
    same("the number of deployments", &snapshot.facts.deployments.len(), &reference.deployments.len())?;
    for (slot, deployment) in &reference.deployments {
        same("deployments at the gate", &snapshot.facts.deployments.get(slot), &Some(deployment))?;
    }
    same("the number of ended bots", &snapshot.facts.ended.len(), &reference.ended.len())?;
    for (id, ended) in reference.ended.iter().rev().take(4) {
        same("ended bots", &snapshot.facts.ended.get(id), &Some(ended))?;
    }
    let found = invariants::violations(snapshot);
    match found.first() {
        Some(violation) => Err(format!("invariant: {violation}")),
        None => Ok(()),
    }
}

fn bots(snapshot: &Snapshot, reference: &Reference) -> Result<(), String> {
    let mut counts: HashMap<_, (i64, i64)> = HashMap::new();
    for bot in &reference.bots {
        let known = snapshot.bot(bot.id);
        let plain = known.map(|known| OpenBot { arrival: bot.arrival, ..known.clone() });
        same("bots", &plain.as_ref(), &Some(bot))?;
        let count = counts.entry(bot.user).or_default();
        if bot.status.is_running() {
            count.0 += 1;
            same("bots at a meeting", &snapshot.bot_at(&bot.meeting()), &Some(bot.id))?;
        } else {
            count.1 += 1;
        }
    }
    same("the number of bots", &snapshot.bots().count(), &reference.bots.len())?;
    for (user, _) in &reference.users {
        let known = snapshot.counts(*user);
        let count = counts.get(user).copied().unwrap_or_default();
        same("counts", &(known.running, known.stopping), &count)?;
    }
    for platform in Platform::ALL {
        same("queues", &queue(snapshot, platform), &reference.queue(platform))?;
    }
    Ok(())
}

/// The bots that wait for a slot of a platform, in order.
pub fn queue(snapshot: &Snapshot, platform: Platform) -> Vec<BotId> {
    let groups = snapshot.queue().groups(platform);
    let waiting = groups.flat_map(|(_, group)| group.waiting.iter().map(|(order, bot)| (*order, *bot)));
    sorted(waiting.collect()).into_iter().map(|(_, bot)| bot).collect()
}
