//! Makes a job from a number. Most jobs fit the current state; some are late, repeated or about unknown rows.

use uuid::Uuid;

use super::random::Random;
use super::world::{World, attribute_sets, key_id, requirements, user_id};
use crate::lifecycle::Overdue;
use crate::planner::bot::OpenBot;
use crate::planner::job::{EndBot, EndCause, Job, ReserveRequest, SlotEvent};
use crate::{BotId, ConnectionId, PROBE_USER, Platform, Reason, Slot, SlotClaim, SlotName, SlotStatus, Status, slot};

pub fn job(world: &World, seed: u64) -> Job {
    let mut random = Random::new(seed);
    match random.below(100) {
        0..30 if world.is_quiet && random.percent(30) => Job::KeepWarm,
        0..30 if world.is_quiet => slot_event(world, &mut random),
        0..36 => reserve(world, &mut random),
        36..49 => exit(world, &mut random),
        49..57 => give_up(world, &mut random),
        57..82 => slot_event(world, &mut random),
        82..89 => Job::KeepWarm,
        89..92 => Job::RetryWaiting(random.pick(&attribute_sets()).cloned().unwrap_or_default()),
        92..94 => Job::ServeQueues,
        _ => random.pick(&world.past).cloned().unwrap_or(Job::KeepWarm),
    }
}

fn reserve(world: &World, random: &mut Random) -> Job {
    let user = random.below(3);
    let key = if random.percent(2) { 9 } else { user };
    let served = random.pick(&world.reference.pools).map(|pool| pool.platform);
    let platform = match random.below(40) {
        0 => Platform::Teams,
        1 => Platform::Zoom,
        _ => served.unwrap_or(Platform::GoogleMeet),
    };
    let idempotency = random.percent(25).then(|| {
        let body = if random.percent(80) { "same" } else { "other" };
        (format!("key-{}", random.below(4)), body.to_owned())
    });
    let mut request = ReserveRequest {
        id: BotId(random.uuid()),
        user: user_id(user),
        key: Some(key_id(key)),
        platform,
        native_meeting_id: format!("meeting-{}", random.below(12)),
        priority: [100, 100, 100, 10, 200][usize::try_from(random.below(5)).unwrap_or(0)],
        queue_timeout_ms: 60_000,
        requirements: requirements(random),
        idempotency,
        pool: None,
    };
    if random.percent(10) {
        request.key = None;
    }
    if random.percent(15) {
        probe(world, &mut request, random);
    }
    Job::Reserve(Box::new(request))
}

/// Makes the request a probe of a pool; sometimes of a pool that does not exist.
fn probe(world: &World, request: &mut ReserveRequest, random: &mut Random) {
    (request.user, request.key) = (PROBE_USER, None);
    let pool = random.pick(&world.reference.pools).filter(|_| !random.clone().percent(5));
    request.platform = pool.map_or(request.platform, |pool| pool.platform);
    request.pool = Some(pool.map_or_else(|| "nowhere".to_owned(), |pool| pool.name.clone()));
    if random.percent(80) {
        (request.requirements, request.idempotency) = (None, None);
    }
}

/// An open bot; sometimes a bot that has ended or never existed.
fn some_bot(world: &World, random: &mut Random, likes: impl Fn(&OpenBot) -> bool) -> BotId {
    let liked: Vec<BotId> = world.reference.bots.iter().filter(|bot| likes(bot)).map(|bot| bot.id).collect();
    let open: Vec<BotId> = world.reference.bots.iter().map(|bot| bot.id).collect();
    let ended: Vec<BotId> = world.reference.ended.iter().map(|(id, _)| *id).collect();
    let from = match random.below(20) {
        0..16 if !liked.is_empty() => &liked,
        0..19 if !open.is_empty() => &open,
        _ => &ended,
    };
    random.pick(from).copied().unwrap_or(BotId(random.uuid()))
}

fn exit(world: &World, random: &mut Random) -> Job {
    let bot = some_bot(world, random, |bot| bot.slot.is_some());
    let open = world.reference.bot(bot).and_then(|bot| bot.connection);
    let ended = world.reference.ended.iter().find(|(id, _)| *id == bot).and_then(|(_, ended)| ended.connection);
    let current = open.or(ended).unwrap_or(ConnectionId(Uuid::nil()));
    let mut other = || random.pick(&world.connections).copied().unwrap_or(ConnectionId(Uuid::nil()));
    let stale = other();
    let (token, named) = match random.below(12) {
        0 => (stale, stale),
        1 => (current, stale),
        _ => (current, current),
    };
    let exit_code = i64::from(random.percent(25));
    let reason = random.percent(20).then(|| Reason::Own("left_alone".to_owned()));
    let error = (exit_code != 0).then(|| "it crashed".to_owned());
    Job::End(Box::new(EndBot { bot, cause: EndCause::Exited { token, named, exit_code, reason, error } }))
}

fn give_up(world: &World, random: &mut Random) -> Job {
    let (overdue, bot) = match random.below(10) {
        0..3 => (Overdue::QueueTimeout, some_bot(world, random, |bot| bot.queued.is_some())),
        3..6 => (Overdue::DeployTimeout, some_bot(world, random, |bot| at_gate(world, bot))),
        6..8 => (Overdue::DeployFailed, some_bot(world, random, |bot| at_gate(world, bot))),
        8 => (Overdue::NoStart, some_bot(world, random, |bot| bot.slot.is_some())),
        _ => (Overdue::StopGrace, some_bot(world, random, |bot| bot.status == Status::Stopping)),
    };
    let error = random.percent(50).then(|| "the provider said no".to_owned());
    Job::End(Box::new(EndBot { bot, cause: EndCause::GivenUp { overdue, error } }))
}

fn at_gate(world: &World, bot: &OpenBot) -> bool {
    bot.slot.as_ref().and_then(|slot| world.reference.deployment(slot)).is_some_and(|found| found.bot == Some(bot.id))
}

fn slot_event(world: &World, random: &mut Random) -> Job {
    let slot = random.pick(&world.reference.slots);
    let Some(slot) = slot.filter(|_| !random.clone().percent(3)) else {
        return if world.reference.slots.is_empty() {
            reserve(world, random)
        } else {
            Job::Slot(SlotName::new("nowhere", 1), SlotEvent::Drain)
        };
    };
    let event = if random.percent(80) { fitting(world, slot, random) } else { any(world, slot, random) };
    Job::Slot(slot.name.clone(), event)
}

fn holder(world: &World, slot: &Slot) -> Uuid {
    world.reference.deployment(&slot.name).and_then(|found| found.holder).unwrap_or(Uuid::nil())
}

fn started(world: &World, slot: &Slot) -> SlotEvent {
    let provider_ref = format!("ref-{}", slot.name);
    // A replica with another configuration may have started it.
    let is_current = (slot.generation + slot.number) % 2 == 0;
    let recipe = world.reference.pool(&slot.pool).and_then(|pool| pool.recipe.clone()).filter(|_| is_current);
    SlotEvent::Started { bot: slot.bot_id, provider_ref, recipe, holder: holder(world, slot) }
}

fn agent_waits(slot: &Slot, random: &mut Random) -> SlotEvent {
    SlotEvent::AgentWaits { claim: SlotClaim::current(slot), agent: format!("agent-{}", random.below(3)) }
}

fn not_ready(slot: &Slot, random: &mut Random) -> SlotEvent {
    let (claim, agent) = (SlotClaim::current(slot), slot.agent.clone().unwrap_or_default());
    SlotEvent::NotReady { claim, agent, left: random.percent(50) }
}

/// A possible next event of this slot.
fn fitting(world: &World, slot: &Slot, random: &mut Random) -> SlotEvent {
    let since = slot.status_since;
    let message = "it broke".to_owned();
    // Only a slot that is not being started, as in the server.
    let may_wait = world.reference.deployment(&slot.name).is_none() || slot.bot_id.is_some();
    let hot = world.reference.pool(&slot.pool).is_some_and(|pool| pool.hot);
    let open = slot.bot_id.filter(|bot| world.reference.is_open(*bot));
    match (slot.status, slot.bot_id) {
        (SlotStatus::Creating, None) => match random.below(11) {
            10 => not_ready(slot, random),
            0..6 if hot && may_wait => agent_waits(slot, random),
            0..7 => started(world, slot),
            7 => SlotEvent::Broken { bot: None, message },
            8 => match random.below(3) {
                0 => SlotEvent::Recovering { since, message },
                1 => SlotEvent::Lost { since, counts: false },
                _ => SlotEvent::Failed { since, message: slot::NO_AGENT.to_owned() },
            },
            _ => SlotEvent::NotBegun { bot: None, holder: holder(world, slot) },
        },
        (SlotStatus::Idle, _) => match random.below(10) {
            8 | 9 => not_ready(slot, random),
            0 => SlotEvent::Lost { since, counts: random.percent(50) },
            1 => SlotEvent::UnknownProcess { since },
            2 => SlotEvent::Failed { since, message },
            3 => SlotEvent::Drain,
            4 => started(world, slot),
            _ if may_wait => agent_waits(slot, random),
            _ => SlotEvent::Lost { since, counts: false },
        },
        (SlotStatus::Error, _) => match random.below(6) {
            0 => SlotEvent::Drain,
            1 => SlotEvent::Recovering { since, message },
            2 => SlotEvent::Failed { since, message },
            3 if slot.error_message.as_deref() == Some(slot::NO_AGENT) => agent_waits(slot, random),
            _ => SlotEvent::Recovered { since },
        },
        (SlotStatus::Draining, None) => match random.below(4) {
            0 => SlotEvent::Broken { bot: None, message },
            _ if slot.stopped && random.percent(90) => SlotEvent::Stopped,
            1 => SlotEvent::Drain,
            _ => SlotEvent::Gone,
        },
        (SlotStatus::Busy, None) => SlotEvent::Recovering { since, message },
        (_, Some(bot)) if open.is_none() => match random.below(5) {
            0 => SlotEvent::Broken { bot: Some(bot), message },
            _ => SlotEvent::Cleared { bot },
        },
        (_, Some(bot)) => match random.below(10) {
            0..4 => started(world, slot),
            4..7 => SlotEvent::NoCapacity { bot, holder: holder(world, slot), message: "full".to_owned() },
            7 => SlotEvent::Silent { bot, generation: slot.generation },
            8 => agent_waits(slot, random),
            _ => SlotEvent::Drain,
        },
    }
}

/// An event that is late, or about another bot.
fn any(world: &World, slot: &Slot, random: &mut Random) -> SlotEvent {
    let since = slot.status_since - std::time::Duration::from_millis(random.below(2));
    let message = "late".to_owned();
    let stranger = {
        // Never the open bot that has the slot, because a slot is cleared only after its bot's end.
        let bots: Vec<BotId> = world.reference.ended.iter().map(|(id, _)| *id).collect();
        random.pick(&bots).copied().unwrap_or(BotId(random.uuid()))
    };
    let bot = slot.bot_id.unwrap_or(stranger);
    let holder = if random.percent(50) { holder(world, slot) } else { random.uuid() };
    let claim = SlotClaim::current(slot);
    match random.below(17) {
        15 => not_ready(slot, random),
        16 => {
            let claim = SlotClaim { generation: Some(slot.generation - 1), ..claim };
            SlotEvent::NotReady { claim, agent: slot.agent.clone().unwrap_or_default(), left: false }
        }
        13 => SlotEvent::Stopped,
        0 => SlotEvent::Cleared { bot: stranger },
        1 if slot.bot_id.is_some() => {
            let claim = SlotClaim { generation: None, number: claim.number + random.int(2), ..claim };
            SlotEvent::AgentWaits { claim, agent: "late".to_owned() }
        }
        1 => {
            let claim = SlotClaim { generation: Some(slot.generation - 1), ..claim };
            SlotEvent::AgentWaits { claim, agent: "late".to_owned() }
        }
        2 => SlotEvent::Started { bot: Some(stranger), provider_ref: "late".to_owned(), recipe: None, holder },
        3 => SlotEvent::Started { bot: None, provider_ref: "late".to_owned(), recipe: None, holder },
        4 => SlotEvent::NotBegun { bot: slot.bot_id, holder },
        5 => SlotEvent::NoCapacity { bot, holder, message },
        6 => SlotEvent::Silent { bot, generation: slot.generation - random.int(2) },
        7 => SlotEvent::Broken { bot: random.percent(50).then_some(stranger), message },
        8 => SlotEvent::Failed { since, message },
        9 => SlotEvent::UnknownProcess { since },
        10 => SlotEvent::Recovering { since, message },
        11 => SlotEvent::Recovered { since },
        12 => SlotEvent::Lost { since, counts: true },
        _ => SlotEvent::Gone,
    }
}
