//! Runs the same history through a database. The plan's changes and the changes outside placement are written there.
//! After every step, the rows that are read back must match the planner's state.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;

use jiff::Timestamp;

use super::compare;
use super::world::World;
use crate::planner::bot::{EndedBot, OpenBot};
use crate::planner::snapshot::{Deployment, PoolState, Snapshot, User};
use crate::planner::{Changes, Job, invariants};
use crate::{BotId, Platform, Pool, Slot, SlotName, UserId};

/// A store for histories, one after another. An error is the text of a failure.
pub trait Database {
    /// Deletes everything, because another history begins.
    fn empty(&mut self) -> Result<(), String>;

    /// Writes the changes outside placement.
    fn take_over(&mut self, changed: &OutsideChanges, now: Timestamp) -> Result<(), String>;

    /// Writes the plan for these jobs.
    fn write(&mut self, jobs: &[Job], changes: &Changes, now: Timestamp) -> Result<(), String>;

    /// Starts to write the plan for these jobs and does not commit: nothing of it may remain.
    fn lose(&mut self, jobs: &[Job], changes: &Changes, now: Timestamp) -> Result<(), String>;

    /// Reads everything, including every user, idempotency key, ended bot and deployment.
    fn read(&mut self) -> Result<Snapshot, String>;
}

/// Rows that changed outside placement, in their new state.
#[derive(Clone, Debug, Default)]
pub struct OutsideChanges {
    pub users: Vec<(UserId, User)>,
    pub pools: Vec<Pool>,
    pub slots: Vec<Slot>,
    pub bots: Vec<OpenBot>,
    /// Bots that were open before and have ended.
    pub ended: Vec<(BotId, EndedBot)>,
    pub deployments: Vec<(SlotName, Deployment)>,
}

impl OutsideChanges {
    pub(super) fn between(before: &Snapshot, world: &World) -> Self {
        let after = &world.snapshot;
        let users = world.reference.users.iter().filter(|(id, user)| before.user(*id) != Some(user));
        let pools = after.pools().map(|state| &state.pool);
        let pools = pools.filter(|pool| before.pool(&pool.name).is_none_or(|known| known.pool != **pool));
        let slots = after.slots().filter(|slot| before.slot(&slot.name) != Some(slot));
        let bots = after.bots().filter(|bot| before.bot(bot.id) != Some(bot));
        let ended = after.facts.ended.iter().filter(|(id, _)| before.bot(**id).is_some());
        let deployments = after.facts.deployments.iter();
        let deployments = deployments.filter(|(slot, found)| before.facts.deployments.get(slot) != Some(found));
        Self {
            users: users.cloned().collect(),
            pools: pools.cloned().collect(),
            slots: slots.cloned().collect(),
            bots: bots.cloned().collect(),
            ended: ended.map(|(id, ended)| (*id, ended.clone())).collect(),
            deployments: deployments.map(|(slot, found)| (slot.clone(), found.clone())).collect(),
        }
    }
}

/// Writes the first users and pools of a history.
pub(super) fn begin(world: &World, database: &mut dyn Database) -> Result<(), String> {
    database.empty()?;
    database.take_over(&OutsideChanges::between(&Snapshot::default(), world), world.now)?;
    agrees(world, database)
}

/// Checks that the database matches the planner, and that the invariants hold in it.
pub(super) fn agrees(world: &World, database: &mut dyn Database) -> Result<(), String> {
    let (planner, stored) = (&world.snapshot, &database.read()?);
    let slots = |of: &Snapshot| of.slots().map(|slot| (slot.name.clone(), slot.clone())).collect();
    rows("slots", slots(planner), slots(stored))?;
    let bots = |of: &Snapshot| of.bots().map(|bot| (bot.id, bot.clone())).collect();
    rows("bots", bots(planner), bots(stored))?;
    let deployments = |of: &Snapshot| of.facts.deployments.clone().into_iter().collect();
    rows("deployments", deployments(planner), deployments(stored))?;
    let ended = |of: &Snapshot| of.facts.ended.clone().into_iter().collect();
    rows("ended bots", ended(planner), ended(stored))?;
    let pools = |of: &Snapshot| of.pools().map(|state| (state.pool.name.clone(), state.pool.clone())).collect();
    rows("pools", pools(planner), pools(stored))?;
    for (known, found) in planner.pools().zip(stored.pools()) {
        same("numbers of slots", &known.numbers, &found.numbers)?;
        same("unsettled slots", &known.unsettled, &found.unsettled)?;
        let idle =
            |of: &PoolState| of.idle().map(|(set, slots)| (set.clone(), slots.clone())).collect::<HashMap<_, _>>();
        same("idle slots", &idle(known), &idle(found))?;
    }
    for platform in Platform::ALL {
        same("pools of a platform", &planner.pools_of(platform), &stored.pools_of(platform))?;
        same("queues", &compare::queue(planner, platform), &compare::queue(stored, platform))?;
    }
    for (id, _) in &world.reference.users {
        same("users", &planner.user(*id), &stored.user(*id))?;
        same("counts", &planner.counts(*id), &stored.counts(*id))?;
    }
    same("the number of keys", &planner.keys_known(), &stored.keys_known())?;
    for key in &world.reference.keys {
        same("keys", &planner.key(key.user, &key.key), &stored.key(key.user, &key.key))?;
    }
    match invariants::violations(stored).first() {
        Some(violation) => Err(format!("invariant in the database: {violation}")),
        None => Ok(()),
    }
}

fn same<T: PartialEq + Debug>(what: &str, planner: &T, stored: &T) -> Result<(), String> {
    compare::differ(&format!("{what} in the database"), planner, "stored", stored)
}

fn rows<K: Ord, T: PartialEq + Debug>(
    what: &str,
    planner: BTreeMap<K, T>,
    mut stored: BTreeMap<K, T>,
) -> Result<(), String> {
    for (key, known) in planner {
        same(what, &Some(known), &stored.remove(&key))?;
    }
    same(what, &None, &stored.into_values().next())
}
