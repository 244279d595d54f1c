//! The simple rules for events of slots.

use super::reference::Batch;
use crate::event::{Actor, Kind, StartKind};
use crate::planner::bot::{OpenBot, Queued};
use crate::planner::changes::{NewDeployment, NewEvent, ReleasedDeployment, Returned};
use crate::planner::job::SlotEvent;
use crate::{BotId, SlotName, SlotStatus, Status, slot};

impl Batch<'_> {
    /// Applies an event. Returns whether it fits the slot's state.
    pub fn happens(&mut self, name: &SlotName, event: &SlotEvent) -> bool {
        use SlotStatus::{Busy, Creating, Draining, Error, Idle};
        let Some(slot) = self.all.slot(name).cloned() else { return false };
        let hot = self.all.pool(&slot.pool).is_some_and(|pool| pool.hot);
        let (status, since, bot_id) = (slot.status, slot.status_since, slot.bot_id);
        match event {
            SlotEvent::Cleared { bot } => {
                if bot_id != Some(*bot) || status == Error {
                    return false;
                }
                self.leaves_gate(name);
                self.note_hold(name);
                self.empties(name, status);
            }
            SlotEvent::AgentWaits { claim, agent } => {
                let other = slot.agent.is_some() && bot_id.is_some();
                if !claim.is_current(&slot) || other {
                    return false;
                }
                let given_up = status == Error && slot.error_message.as_deref() == Some(slot::NO_AGENT);
                if given_up || (status == Creating && bot_id.is_none()) {
                    self.comes_free(name, true);
                }
                if let Some(slot) = self.slot_mut(name) {
                    slot.agent = Some(agent.clone());
                }
                self.wake(name);
            }
            SlotEvent::NotReady { claim, agent, left } => {
                let is_waiting = status == Idle && !slot.stopped;
                let came_back = status == Creating && slot.error_message.as_deref() == Some(slot::AGENT_LEFT) && !left;
                if slot.agent.as_ref() != Some(agent) || !claim.is_current(&slot) || !(is_waiting || came_back) {
                    return false;
                }
                if is_waiting {
                    self.put(name, Creating);
                }
                if let Some(slot) = self.slot_mut(name) {
                    slot.error_message = if *left { Some(slot::AGENT_LEFT.to_owned()) } else { None };
                }
            }
            SlotEvent::Started { bot, provider_ref, recipe, holder } => {
                self.release(name, *bot, *holder);
                if bot_id == *bot && status != Error {
                    self.expected_plan.awaited.extend(bot);
                    if let Some(slot) = self.slot_mut(name) {
                        slot.provider_ref = Some(provider_ref.clone());
                        slot.recipe = recipe.clone();
                    }
                    if status == Creating && bot.is_some() {
                        self.put(name, Busy);
                        let is_in_it = |known: &OpenBot| bot_id == Some(known.id) && known.slot.as_ref() == Some(name);
                        let awaits_clearing = !self.all.bots.iter().any(is_in_it);
                        if let Some(slot) = self.slot_mut(name) {
                            slot.awaits_clearing = awaits_clearing;
                        }
                    } else if status == Creating && !hot {
                        self.comes_free(name, false);
                    } else if status == Creating {
                        let now = self.now;
                        if let Some(slot) = self.slot_mut(name) {
                            slot.status_since = now;
                        }
                    }
                    self.wake(name);
                }
            }
            SlotEvent::NotBegun { bot, holder } => self.release(name, *bot, *holder),
            SlotEvent::NoCapacity { bot, holder, message } => {
                let is_holders = self
                    .all
                    .deployment(name)
                    .is_some_and(|found| found.bot == Some(*bot) && found.holder == Some(*holder));
                if bot_id != Some(*bot) || status == Error || !is_holders || !self.goes_back(name, *bot, message) {
                    return false;
                }
                self.all.deployments.retain(|(of, _)| of != name);
                self.expected_plan.reconnected.retain(|other| other != bot);
                self.expected_plan.awaited.retain(|other| other != bot);
                self.expected_plan.returned.push(Returned { bot: *bot, slot: name.clone(), holder: *holder });
                self.expected_plan.gate_moves = true;
                self.empties(name, status);
            }
            SlotEvent::Silent { bot, generation } => {
                let fits = bot_id == Some(*bot) && slot.generation == *generation && status != Error;
                let unheard = self.all.bot(*bot).is_some_and(|bot| bot.status == Status::Reserved);
                if !fits || !unheard {
                    return false;
                }
                if let Some(bot) = self.bot_mut(*bot) {
                    bot.connection = Self::new_connection();
                }
                self.expected_plan.reconnected.push(*bot);
                self.ends_tokens(name);
                self.ask(name, Some(*bot));
            }
            SlotEvent::Broken { bot, message } => {
                if bot_id != *bot || (bot.is_none() && status != Creating && status != Draining) {
                    return false;
                }
                self.breaks(name, message);
            }
            SlotEvent::Failed { since: then, message } => {
                if bot_id.is_some() || since != *then {
                    return false;
                }
                self.breaks(name, message);
            }
            SlotEvent::UnknownProcess { since: then } => {
                if status != Idle || since != *then {
                    return false;
                }
                self.breaks(name, "a process runs in the idle slot that Greenroom did not start");
            }
            SlotEvent::Recovering { since: then, message } => {
                let stuck = bot_id.is_none() && (status == Creating || status == Busy);
                if since != *then || !(stuck || status == Error) {
                    return false;
                }
                if stuck {
                    self.breaks(name, message);
                }
                let now = self.now;
                if let Some(slot) = self.slot_mut(name) {
                    slot.recovery_attempts += 1;
                    slot.status_since = now;
                }
                self.ends_tokens(name);
            }
            SlotEvent::Recovered { since: then } => {
                if status != Error || since != *then {
                    return false;
                }
                self.comes_free(name, false);
            }
            SlotEvent::Lost { since: then, counts } => {
                let for_nobody = status == Creating && bot_id.is_none();
                if !(status == Idle || for_nobody) || since != *then {
                    return false;
                }
                self.leaves_gate(name);
                if let Some(slot) = self.slot_mut(name) {
                    slot.provider_ref = None;
                    slot.recovery_attempts += i64::from(*counts);
                }
                self.comes_free(name, false);
            }
            SlotEvent::Stopped => {
                if status != Draining || !slot.stopped || bot_id.is_some() {
                    return false;
                }
                self.put(name, Idle);
                if let Some(slot) = self.slot_mut(name) {
                    slot.stopped = true;
                    slot.bots_since_fresh = 0;
                    slot.error_message = None;
                    slot.description = slot::idle(slot.last_used_at);
                }
                let platform = self.all.pool(&slot.pool).map(|pool| pool.platform);
                self.served.extend(platform);
            }
            SlotEvent::Drain => {
                if status == Draining && !slot.stopped {
                    return false;
                }
                self.put(name, Draining);
            }
            SlotEvent::Gone => {
                if status != Draining || slot.stopped || bot_id.is_some() {
                    return false;
                }
                self.leaves_gate(name);
                self.all.slots.retain(|slot| slot.name != *name);
                if let Some(pool) = self.pool_mut(&slot.pool) {
                    pool.slots -= 1;
                    let platform = pool.platform;
                    self.served.push(platform);
                }
            }
        }
        true
    }

    /// Takes the slot from a bot that has sent no callback. Returns false if it has sent one, or if its user has
    /// stopped it.
    fn goes_back(&mut self, name: &SlotName, id: BotId, message: &str) -> bool {
        let now = self.now;
        let Some(bot) = self.all.bot(id).cloned() else { return false };
        if bot.status != Status::Reserved || bot.stop_asked || bot.slot.as_ref() != Some(name) || bot.pool.is_none() {
            return false;
        }
        let returns = bot.returns + 1;
        let pause_ms = match returns {
            1 => 3_000,
            2 => 6_000,
            3 => 12_000,
            _ => 24_000,
        };
        let timeout_at = bot.wait_until.unwrap_or(self.after_ms(bot.queue_timeout_ms));
        let not_before = Some(self.after_ms(pause_ms));
        let pool = bot.pool.clone().unwrap_or_default();
        if let Some(bot) = self.bot_mut(id) {
            bot.returns = returns;
            bot.queued = Some(Queued { pool, queued_at: now, timeout_at, not_before });
            bot.slot = None;
            bot.connection = None;
        }
        if returns == 1 {
            self.tells(id, Kind::Requeued, message.to_owned(), None);
        }
        self.served.push(bot.platform);
        true
    }

    pub fn tells(&mut self, id: BotId, kind: Kind, reason: String, start_kind: Option<StartKind>) {
        let Some(bot) = self.all.bot(id) else { return };
        let (user_id, reason, actor) = (bot.user, Some(reason), Actor::Greenroom);
        let (from, to) = kind.statuses();
        self.expected_plan.events.push(NewEvent { bot_id: id, user_id, kind, from, to, reason, actor, start_kind });
    }

    /// Nothing of its bot remains in the slot. A draining slot loses its bot; any other slot comes free.
    fn empties(&mut self, name: &SlotName, status: SlotStatus) {
        if status != SlotStatus::Draining {
            return self.comes_free(name, false);
        }
        let now = self.now;
        if let Some(slot) = self.slot_mut(name) {
            slot.bot_id = None;
            slot.awaits_clearing = false;
            slot.description = slot::draining(now);
        }
    }

    /// Sets the status from now on. The slot is not given out.
    pub fn put(&mut self, name: &SlotName, status: SlotStatus) {
        let now = self.now;
        self.loose.retain(|loose| loose != name);
        let pool = self.all.slot(name).and_then(|slot| self.all.pool(&slot.pool));
        let expires_at = pool.and_then(|pool| pool.expire_after_ms).map(|after| self.after_ms(after));
        if let Some(slot) = self.slot_mut(name) {
            slot.status = status;
            slot.status_since = now;
            slot.stopped = false;
            if status != SlotStatus::Busy {
                slot.awaits_clearing = false;
            }
            if status == SlotStatus::Idle {
                slot.expires_at = expires_at;
            }
            if status == SlotStatus::Creating {
                slot.description = slot::creating(now);
            }
            if status == SlotStatus::Draining && slot.bot_id.is_none() {
                slot.description = slot::draining(now);
            }
        }
    }

    /// The slot has no bot, and may get the next one.
    pub fn comes_free(&mut self, name: &SlotName, agent_waits: bool) {
        let Some(pool) = self.all.slot(name).and_then(|slot| self.all.pool(&slot.pool)).cloned() else { return };
        self.expected_plan.asked.retain(|asked| asked.slot != *name);
        let must_start = pool.hot && !agent_waits;
        self.put(name, if must_start { SlotStatus::Creating } else { SlotStatus::Idle });
        let new = super::reference_queue::attributes_of_new(&pool);
        if !agent_waits {
            self.ends_tokens(name);
        }
        if let Some(slot) = self.slot_mut(name) {
            slot.bot_id = None;
            slot.awaits_clearing = false;
            slot.error_message = None;
            if !agent_waits {
                slot.bots_since_fresh = 0;
                slot.attributes = new;
            }
            if pool.provisioned_per_bot() {
                slot.provider_ref = None;
            }
        }
        self.loose.push(name.clone());
        self.served.push(pool.platform);
    }

    pub fn ends_tokens(&mut self, name: &SlotName) {
        if let Some(slot) = self.slot_mut(name) {
            slot.generation += 1;
            slot.token_number = 0;
            slot.agent = None;
        }
    }

    /// Puts the slot into error, unless it is draining.
    pub fn breaks(&mut self, name: &SlotName, message: &str) {
        self.leaves_gate(name);
        let goes = self.all.slot(name).is_some_and(|slot| slot.status == SlotStatus::Draining);
        let to_stop = self.all.slot(name).is_some_and(|slot| slot.status == SlotStatus::Draining && slot.stopped);
        self.put(name, if goes { SlotStatus::Draining } else { SlotStatus::Error });
        let now = self.now;
        if let Some(slot) = self.slot_mut(name) {
            slot.bot_id = None;
            slot.awaits_clearing = false;
            slot.error_message = Some(message.to_owned());
            slot.stopped = to_stop;
            slot.description = slot::error(message, now);
        }
    }

    pub fn ask(&mut self, name: &SlotName, bot: Option<BotId>) {
        let Some(pool) = self.all.slot(name).and_then(|slot| self.all.pool(&slot.pool)) else { return };
        let (pool, host) = (pool.name.clone(), pool.host.clone());
        let timeout_at = self.now + self.settings.deploy_timeout;
        self.expected_plan.asked.push(NewDeployment { slot: name.clone(), pool, host, bot, timeout_at });
        self.expected_plan.gate_moves = true;
    }

    pub fn leaves_gate(&mut self, name: &SlotName) {
        self.all.deployments.retain(|(of, _)| of != name);
        self.expected_plan.asked.retain(|asked| asked.slot != *name);
        if !self.expected_plan.cancelled.contains(name) {
            self.expected_plan.cancelled.push(name.clone());
        }
        self.expected_plan.gate_moves = true;
    }

    fn release(&mut self, name: &SlotName, bot: Option<BotId>, holder: uuid::Uuid) {
        self.all.deployments.retain(|(of, found)| of != name || found.bot != bot || found.holder != Some(holder));
        self.expected_plan.released.push(ReleasedDeployment { slot: name.clone(), bot, holder });
        self.expected_plan.gate_moves = true;
    }

    pub fn wake(&mut self, name: &SlotName) {
        if !self.expected_plan.woken.contains(name) {
            self.expected_plan.woken.push(name.clone());
        }
    }

    /// The mean time that bots hold a slot of the pool: nine parts the old mean, one part this hold.
    pub fn note_hold(&mut self, name: &SlotName) {
        let Some(slot) = self.all.slot(name).cloned() else { return };
        let (Some(since), Some(bot)) = (slot.last_used_at, slot.bot_id) else { return };
        let held = (self.now.as_millisecond() - since.as_millisecond()).max(0);
        // Holds of ten seconds or more always count. Of holds of one second, one in ten counts, by the last digits of
        // the bot's id.
        let counts = (bot.0.as_u128() % (1 << 32)) % 10_000 < u128::try_from(held).unwrap_or(0);
        if let Some(pool) = self.pool_mut(&slot.pool) {
            pool.mean_hold_ms = match pool.mean_hold_ms {
                None => Some(held),
                Some(mean) if counts => Some(mean + (held - mean) / 10),
                mean => mean,
            };
        }
    }
}
