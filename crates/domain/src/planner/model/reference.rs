//! The rules of placement in their simplest form: lists that are searched from the start, one job after another, and no
//! caches. It is slow, and the planner must agree with it.
//!
//! - this file: the state, and the order of a batch
//! - `reference_bots.rs`: reservations and ends
//! - `reference_slots.rs`: events of slots
//! - `reference_queue.rs`: which bot gets which slot, and slots that are kept warm

use jiff::Timestamp;
use uuid::Uuid;

use super::reference_queue::probed;
use crate::planner::bot::{EndedBot, OpenBot};
use crate::planner::changes::{BotEnd, GateState, NewDeployment, NewEvent, NewKey, ReleasedDeployment, Returned};
use crate::planner::job::{JobAnswer, Reserved, WarmReport};
use crate::planner::snapshot::{Deployment, User};
use crate::planner::{Job, Settings};
use crate::{Attributes, BotId, ConnectionId, Platform, Pool, Slot, SlotName, UserId, wait_estimate};

/// Stands for an id that the plan creates.
pub const NEW: Uuid = Uuid::max();

#[derive(Clone, Debug, Default)]
pub struct Reference {
    pub pools: Vec<Pool>,
    pub slots: Vec<Slot>,
    pub bots: Vec<OpenBot>,
    pub ended: Vec<(BotId, EndedBot)>,
    pub keys: Vec<NewKey>,
    pub users: Vec<(UserId, User)>,
    pub deployments: Vec<(SlotName, Deployment)>,
    /// How many bots have arrived.
    pub came: i64,
}

/// The result of a batch, besides its final state.
#[derive(Clone, Debug, Default)]
pub struct ExpectedPlan {
    pub answers: Vec<JobAnswer>,
    /// The job, the bot, and whether an agent waits for it.
    pub new_bots: Vec<(usize, BotId, bool)>,
    /// The new bots that operators requested.
    pub requested_by_operators: Vec<BotId>,
    pub new_keys: Vec<NewKey>,
    pub grants: Vec<(BotId, SlotName, bool)>,
    pub ends: Vec<BotEnd>,
    pub events: Vec<NewEvent>,
    pub asked: Vec<NewDeployment>,
    pub cancelled: Vec<SlotName>,
    pub released: Vec<ReleasedDeployment>,
    pub returned: Vec<Returned>,
    pub reconnected: Vec<BotId>,
    pub awaited: Vec<BotId>,
    pub woken: Vec<SlotName>,
    pub to_clear: Vec<BotId>,
    pub gate_moves: bool,
    pub refill: bool,
    pub unfinished: bool,
}

/// An answer that is known at once, or only at the end.
enum Later {
    Now(JobAnswer),
    Bot(BotId, bool),
    Warm,
}

pub struct Batch<'a> {
    pub all: &'a mut Reference,
    pub now: Timestamp,
    pub settings: &'a Settings,
    pub expected_plan: ExpectedPlan,
    /// Slots that came free in this batch and have no bot yet.
    pub loose: Vec<SlotName>,
    /// Platforms whose queue is served.
    pub served: Vec<Platform>,
    pub runners: Vec<Attributes>,
    pub warm: WarmReport,
}

impl Reference {
    pub fn run(&mut self, jobs: &[Job], now: Timestamp, settings: &Settings) -> ExpectedPlan {
        let mut batch = Batch {
            all: self,
            now,
            settings,
            expected_plan: ExpectedPlan::default(),
            loose: Vec::new(),
            served: Vec::new(),
            runners: Vec::new(),
            warm: WarmReport::default(),
        };
        let mut later = Vec::new();
        let mut keeps_warm = false;
        for (number, job) in jobs.iter().enumerate() {
            later.push(match job {
                Job::Reserve(request) => match batch.reserve(number, request) {
                    Ok((bot, is_new)) => Later::Bot(bot, is_new),
                    Err(refusal) => Later::Now(JobAnswer::Reserve(Err(refusal))),
                },
                Job::End(end) => Later::Now(JobAnswer::End(batch.end(end))),
                Job::Slot(name, event) => Later::Now(JobAnswer::Slot(batch.happens(name, event))),
                Job::KeepWarm => {
                    keeps_warm = true;
                    batch.served.extend(Platform::ALL);
                    Later::Warm
                }
                Job::RetryWaiting(attributes) => {
                    batch.runners.push(attributes.clone());
                    batch.served.extend(Platform::ALL);
                    Later::Now(JobAnswer::Nothing)
                }
                Job::ServeQueues => {
                    batch.served.extend(Platform::ALL);
                    Later::Now(JobAnswer::Nothing)
                }
            });
        }
        for platform in Platform::ALL {
            if batch.served.contains(&platform) {
                batch.serve(platform);
            }
        }
        batch.return_loose();
        if keeps_warm {
            for name in batch.all.pools.iter().map(|pool| pool.name.clone()).collect::<Vec<_>>() {
                batch.keep_warm(&name);
            }
        }
        for (_, id, _) in batch.expected_plan.new_bots.clone() {
            if batch.all.bot(id).is_some_and(|bot| bot.slot.is_none()) {
                batch.tells_created(id, None);
            }
        }
        let (warm, mut expected_plan) = (batch.warm, std::mem::take(&mut batch.expected_plan));
        expected_plan.answers = later
            .into_iter()
            .map(|later| match later {
                Later::Now(answer) => answer,
                Later::Bot(bot, is_new) => JobAnswer::Reserve(Ok(self.reserved(bot, is_new, settings))),
                Later::Warm => JobAnswer::KeepWarm(warm),
            })
            .collect();
        for asked in &expected_plan.asked {
            if self.deployment(&asked.slot).is_none() {
                let waits = Deployment { bot: asked.bot, state: GateState::Waiting, holder: None };
                self.deployments.push((asked.slot.clone(), waits));
            }
        }
        expected_plan
    }

    fn reserved(&self, id: BotId, is_new: bool, settings: &Settings) -> Reserved {
        let Some(bot) = self.bots.iter().find(|bot| bot.id == id && bot.queued.is_some()) else {
            return Reserved { bot: id, is_new, queue_position: None, estimated_wait_ms: None };
        };
        let queue = self.queue(bot.platform);
        let position = queue.iter().position(|other| *other == id).map_or(0, |at| at as i64 + 1);
        let mut pools: Vec<&Pool> = self.pools.iter().filter(|pool| pool.platform == bot.platform).collect();
        pools.sort_by_key(|pool| (pool.fill_order.is_none(), pool.fill_order, pool.name.clone()));
        pools.retain(|pool| could_fit(pool, bot) && probed(bot).is_none_or(|name| name == pool.name));
        let pools = pools.iter().map(|pool| (pool.mean_hold_ms, pool.slots));
        let estimated_wait_ms = Some(wait_estimate::at_rate(position, pools, settings.expected_duration));
        Reserved { bot: id, is_new, queue_position: Some(position), estimated_wait_ms }
    }

    /// The bots that wait for a slot of a platform, in order.
    pub fn queue(&self, platform: Platform) -> Vec<BotId> {
        let waits = |bot: &&OpenBot| bot.platform == platform && bot.queued.is_some();
        let mut waiting: Vec<&OpenBot> = self.bots.iter().filter(waits).collect();
        waiting.sort_by_key(|bot| (bot.priority, bot.turn, bot.arrival));
        waiting.iter().map(|bot| bot.id).collect()
    }

    pub fn bot(&self, id: BotId) -> Option<&OpenBot> {
        self.bots.iter().find(|bot| bot.id == id)
    }

    pub fn slot(&self, name: &SlotName) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.name == *name)
    }

    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    pub fn deployment(&self, slot: &SlotName) -> Option<&Deployment> {
        self.deployments.iter().find(|(name, _)| name == slot).map(|(_, deployment)| deployment)
    }

    pub fn is_open(&self, id: BotId) -> bool {
        self.bots.iter().any(|bot| bot.id == id)
    }
}

/// Whether a pool has, or could have, a slot for a bot.
pub fn could_fit(pool: &Pool, bot: &OpenBot) -> bool {
    pool.attribute_sets.iter().any(|set| crate::requirements::fits(bot.requirements.as_ref(), set))
}

impl Batch<'_> {
    pub fn slot_mut(&mut self, name: &SlotName) -> Option<&mut Slot> {
        self.all.slots.iter_mut().find(|slot| slot.name == *name)
    }

    pub fn bot_mut(&mut self, id: BotId) -> Option<&mut OpenBot> {
        self.all.bots.iter_mut().find(|bot| bot.id == id)
    }

    pub fn pool_mut(&mut self, name: &str) -> Option<&mut Pool> {
        self.all.pools.iter_mut().find(|pool| pool.name == name)
    }

    pub fn after_ms(&self, ms: i64) -> Timestamp {
        self.now + jiff::SignedDuration::from_millis(ms)
    }

    pub fn new_connection() -> Option<ConnectionId> {
        Some(ConnectionId(NEW))
    }
}
