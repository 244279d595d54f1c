//! Changes outside placement: by users that stop their bots, by bots, by operators, and by the gate.

use std::time::Duration;

use super::random::Random;
use super::world::{World, attribute_sets};
use crate::planner::bot::{EndedBot, OpenBot};
use crate::planner::changes::GateState;
use crate::{ConnectionId, SlotStatus, Status};

impl World {
    pub fn set_bot(&mut self, bot: OpenBot) {
        // The snapshot counts arrivals on its own.
        let arrival = self.snapshot.bot(bot.id).map_or(bot.arrival, |known| known.arrival);
        self.snapshot.set_bot(bot.id, Some(OpenBot { arrival, ..bot.clone() }));
        if let Some(known) = self.reference.bots.iter_mut().find(|known| known.id == bot.id) {
            *known = bot;
        }
    }
}

/// Makes a change, and returns its description.
pub fn change(world: &mut World, seed: u64) -> String {
    let mut random = Random::new(seed);
    match random.below(20) {
        0..4 => stop(world, &mut random),
        4..7 => speak(world, &mut random),
        7..14 => pass_gate(world, &mut random),
        14 => limit(world, &mut random),
        15..18 => resize(world, &mut random),
        18 => by_hand(world, &mut random),
        _ => configure(world, &mut random),
    }
}

fn stop(world: &mut World, random: &mut Random) -> String {
    // Prefers a bot in a slot, because it stays open for a while.
    let in_slot: Vec<OpenBot> = world.reference.bots.iter().filter(|bot| bot.slot.is_some()).cloned().collect();
    let from = if random.percent(70) { &in_slot } else { &world.reference.bots };
    let Some(mut bot) = random.pick(from).cloned() else { return "nobody to stop".to_owned() };
    let id = bot.id;
    if bot.slot.is_none() {
        world.snapshot.set_bot(id, None);
        world.reference.bots.retain(|other| other.id != id);
        let ended = EndedBot {
            status: Status::Completed,
            reason: Some("stopped".to_owned()),
            exit_code: None,
            stop_asked: true,
            connection: bot.connection,
        };
        world.snapshot.facts.ended.insert(id, ended.clone());
        world.reference.ended.push((id, ended));
        return format!("stopped in the queue: {id}");
    }
    (bot.status, bot.stop_asked) = (Status::Stopping, true);
    world.set_bot(bot);
    format!("stopped: {id}")
}

fn speak(world: &mut World, random: &mut Random) -> String {
    let in_slot: Vec<OpenBot> = world.reference.bots.iter().filter(|bot| bot.slot.is_some()).cloned().collect();
    let Some(bot) = random.pick(&in_slot).filter(|bot| bot.status.is_running()) else { return "silence".to_owned() };
    let status = if bot.status == Status::Reserved { Status::Starting } else { Status::Active };
    world.snapshot.note_status(bot.id, status);
    let id = bot.id;
    if let Some(bot) = world.reference.bots.iter_mut().find(|bot| bot.id == id) {
        bot.status = status;
        bot.has_joined |= status == Status::Active;
    }
    format!("{id} is {status:?}")
}

fn pass_gate(world: &mut World, random: &mut Random) -> String {
    let count = world.reference.deployments.len() as u64;
    let at = usize::try_from(random.below(count)).unwrap_or(0);
    let Some((slot, found)) = world.reference.deployments.get_mut(at) else { return "nobody at the gate".to_owned() };
    if found.state == GateState::Active && random.percent(60) {
        (found.state, found.holder) = (GateState::Retry, None);
    } else {
        (found.state, found.holder) = (GateState::Active, Some(random.uuid()));
    }
    let description = format!("at the gate: {slot} {found:?}");
    let known = world.snapshot.facts.deployments.get_mut(slot);
    if let Some(known) = known {
        known.clone_from(found);
    }
    description
}

fn limit(world: &mut World, random: &mut Random) -> String {
    let Some((id, mut user)) = random.pick(&world.reference.users).cloned() else { return String::new() };
    user.max_concurrent_bots = random.int(7);
    user.min_priority = if random.percent(30) { 50 } else { 0 };
    let description = format!("user {id} may have {}", user.max_concurrent_bots);
    world.set_user(id, user);
    description
}

fn resize(world: &mut World, random: &mut Random) -> String {
    let Some(mut pool) = random.pick(&world.reference.pools).cloned() else { return String::new() };
    pool.max_slots = random.int(5);
    pool.min_idle = random.int(3).min(pool.max_slots);
    let description = format!("pool {} has up to {} slots, {} idle", pool.name, pool.max_slots, pool.min_idle);
    world.set_pool(pool);
    description
}

/// Changes the configuration: attributes, expiry, or whether it has the pool.
fn configure(world: &mut World, random: &mut Random) -> String {
    let Some(mut pool) = random.pick(&world.reference.pools).cloned() else { return String::new() };
    match random.below(6) {
        5 => {
            pool.ready_timeout_ms = random.percent(70).then_some(1_000);
            pool.max_warm_age_ms = random.percent(70).then_some(4_000 + 4 * random.int(2_000));
        }
        3 => pool.idle_timeout_ms = random.percent(70).then_some(random.int(2_000)),
        4 => pool.recipe = random.pick(&["a", "b"]).map(|recipe| (*recipe).to_owned()),
        0 => pool.expire_after_ms = random.percent(70).then_some(10_000 + random.int(20_000)),
        1 if !pool.provisioned_per_bot() => {
            let new = random.pick(&attribute_sets()).cloned().unwrap_or_default();
            pool.attribute_sets.retain(|set| *set != new);
            pool.attribute_sets.insert(0, new);
        }
        _ => {
            let number = pool.name.rsplit('-').next().and_then(|number| number.parse::<i64>().ok());
            pool.fill_order = if pool.fill_order.is_some() { None } else { number };
        }
    }
    let description = format!("configured: {pool:?}");
    world.set_pool(pool);
    description
}

/// An operator gives an idle slot to a waiting bot.
fn by_hand(world: &mut World, random: &mut Random) -> String {
    let reference = &world.reference;
    let waiting: Vec<&OpenBot> = reference.bots.iter().filter(|bot| bot.queued.is_some()).collect();
    let Some(mut bot) = random.pick(&waiting).map(|bot| (*bot).clone()) else { return "nobody waits".to_owned() };
    let fits = |pool: &str| reference.pool(pool).is_some_and(|pool| pool.platform == bot.platform);
    let idle = reference.slots.iter().find(|slot| slot.status == SlotStatus::Idle && fits(&slot.pool));
    let Some(mut slot) = idle.cloned() else { return "nothing is idle".to_owned() };
    let connection = ConnectionId(random.uuid());
    world.connections.push(connection);
    (slot.status, slot.bot_id, slot.status_since) = (SlotStatus::Busy, Some(bot.id), world.now);
    slot.stopped = false;
    bot.wait_until = bot.queued.take().map(|queued| queued.timeout_at);
    (bot.slot, bot.pool, bot.connection) = (Some(slot.name.clone()), Some(slot.pool.clone()), Some(connection));
    let description = format!("by hand: {} to {}", slot.name, bot.id);
    world.snapshot.set_slot(&slot.name, Some(slot.clone()));
    if let Some(known) = world.reference.slots.iter_mut().find(|known| known.name == slot.name) {
        *known = slot;
    }
    world.set_bot(bot);
    description
}

/// Moves the clock, mostly forward.
pub fn pass_time(world: &mut World, seed: u64) -> String {
    let mut random = Random::new(seed);
    let step = Duration::from_millis(1 + random.below(if random.clone().percent(20) { 30_000 } else { 2_000 }));
    let before = world.now;
    world.now = if random.percent(8) { before - step } else { before + step };
    format!("it is {}", world.now)
}
