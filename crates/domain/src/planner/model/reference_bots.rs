//! The simple rules for reservations and ends.

use super::reference::{Batch, could_fit};
use crate::event::{Actor, Kind, StartKind};
use crate::lifecycle::{Overdue, Trigger, Verdict, decide};
use crate::planner::QueueOrder;
use crate::planner::bot::{EndedBot, OpenBot, Queued};
use crate::planner::changes::{BotEnd, GateState, NewEvent, NewKey};
use crate::planner::commands::end::end_error;
use crate::planner::job::{EndBot, EndCause, EndRefusal, Refusal, ReserveRequest};
use crate::{BotId, Fault, PROBE_USER, Pool, ShownStatus, Slot, SlotStatus, Status};

impl Batch<'_> {
    /// The bot, and whether this request created it.
    pub fn reserve(&mut self, job: usize, request: &ReserveRequest) -> Result<(BotId, bool), Refusal> {
        let known = self.all.is_open(request.id) || self.all.ended.iter().any(|(id, _)| *id == request.id);
        if known {
            return Ok((request.id, true));
        }
        let user = self.all.users.iter().find(|(id, _)| *id == request.user).map(|(_, user)| user.clone());
        let user = user.ok_or(Refusal::KeyExpired)?;
        let is_good = |(id, end): &(crate::KeyId, Option<jiff::Timestamp>)| {
            Some(*id) == request.key && end.is_none_or(|end| end > self.now)
        };
        if request.key.is_some() && !user.api_keys.iter().any(is_good) {
            return Err(Refusal::KeyExpired);
        }
        if let Some((key, hash)) = &request.idempotency {
            let before = self.all.keys.iter().find(|known| known.user == request.user && known.key == *key);
            match before {
                Some(before) if before.body_hash == *hash => return Ok((before.bot, false)),
                Some(_) => return Err(Refusal::IdempotencyMismatch),
                None => {}
            }
        }
        let mut bot = OpenBot {
            id: request.id,
            user: request.user,
            platform: request.platform,
            native_meeting_id: request.native_meeting_id.clone(),
            status: Status::Reserved,
            stop_asked: false,
            has_joined: false,
            connection: None,
            pool: None,
            slot: None,
            requirements: request.requirements.clone(),
            priority: request.priority,
            queue_timeout_ms: request.queue_timeout_ms,
            arrival: self.all.came + 1,
            turn: 0,
            wait_until: None,
            returns: 0,
            queued: None,
        };
        let served = |pool: &&Pool| pool.platform == request.platform && pool.fill_order.is_some();
        let mut pools: Vec<Pool> = self.all.pools.iter().filter(served).cloned().collect();
        pools.sort_by_key(|pool| pool.fill_order);
        if request.user == PROBE_USER {
            pools.retain(|pool| Some(&pool.name) == request.pool.as_ref());
        }
        if pools.is_empty() {
            return Err(Refusal::NoPool(request.platform));
        }
        let first = pools.iter().find(|pool| could_fit(pool, &bot)).ok_or(Refusal::NothingFits(request.platform))?;
        if request.priority < user.min_priority {
            return Err(Refusal::PriorityTooLow { min: user.min_priority });
        }
        let of_user: Vec<&OpenBot> = self.all.bots.iter().filter(|other| other.user == request.user).collect();
        let same = |other: &&&OpenBot| {
            other.status != Status::Stopping
                && other.platform == bot.platform
                && other.native_meeting_id == bot.native_meeting_id
        };
        if let Some(other) = of_user.iter().find(same) {
            return Err(Refusal::DuplicateBot(other.id));
        }
        let running = of_user.iter().filter(|other| other.status != Status::Stopping).count() as i64;
        let limit = user.max_concurrent_bots;
        if running >= limit || of_user.len() as i64 >= 2 * limit {
            return Err(Refusal::LimitReached { running, limit });
        }
        if self.settings.queue_order == QueueOrder::Fair {
            bot.turn = self.turn_of(&bot);
        }
        let timeout_at = self.after_ms(request.queue_timeout_ms);
        bot.pool = Some(first.name.clone());
        bot.queued = Some(Queued { pool: first.name.clone(), queued_at: self.now, timeout_at, not_before: None });
        self.all.came += 1;
        self.all.bots.push(bot);
        self.expected_plan.new_bots.push((job, request.id, false));
        if request.key.is_none() {
            self.expected_plan.requested_by_operators.push(request.id);
        }
        if let Some((key, body_hash)) = request.idempotency.clone() {
            let key = NewKey { user: request.user, key, body_hash, bot: request.id };
            self.all.keys.push(key.clone());
            self.expected_plan.new_keys.push(key);
        }
        self.served.push(request.platform);
        Ok((request.id, true))
    }

    /// Records that a bot was created, with its slot if it got one at once.
    pub fn tells_created(&mut self, id: BotId, slot: Option<(String, StartKind)>) {
        let Some(user_id) = self.all.bot(id).map(|bot| bot.user) else { return };
        let by_operator = self.expected_plan.requested_by_operators.contains(&id);
        self.expected_plan.events.push(NewEvent {
            bot_id: id,
            user_id,
            kind: Kind::Created,
            from: None,
            to: Some(if slot.is_some() { ShownStatus::Deploying } else { ShownStatus::Queued }),
            start_kind: slot.as_ref().map(|(_, start_kind)| *start_kind),
            reason: slot.map(|(name, _)| name),
            actor: if by_operator { Actor::Operator } else { Actor::User },
        });
    }

    /// Users take turns: after the last waiting bot of the same user, and not before the first of all waiting bots.
    fn turn_of(&self, bot: &OpenBot) -> i64 {
        let mut turn = 0;
        let waits = |other: &&OpenBot| {
            other.queued.is_some() && other.platform == bot.platform && other.priority == bot.priority
        };
        let first = self.all.bots.iter().filter(waits).map(|other| other.turn).min();
        turn = first.unwrap_or(turn);
        for other in self.all.bots.iter().filter(waits).filter(|other| other.user == bot.user) {
            turn = turn.max(other.turn + 1);
        }
        turn
    }

    pub fn end(&mut self, end: &EndBot) -> Result<Status, EndRefusal> {
        let open = self.all.bot(end.bot).cloned();
        let ended = self.all.ended.iter().find(|(id, _)| *id == end.bot).map(|(_, ended)| ended.clone());
        let (state, connection) = match (&open, &ended) {
            (Some(bot), _) => (bot.lifecycle_state(), bot.connection),
            (None, Some(ended)) => (ended.lifecycle_state(), ended.connection),
            (None, None) => return Err(EndRefusal::NoSuchBot),
        };
        let mut gate = None;
        let (trigger, error, exit_code) = match &end.cause {
            EndCause::Exited { token, named, exit_code, reason, error } => {
                if connection != Some(*token) || connection != Some(*named) {
                    return Err(EndRefusal::StaleConnection);
                }
                let trigger = Trigger::Exited { exit_code: *exit_code, reason: reason.clone() };
                (trigger, error.clone(), Some(*exit_code))
            }
            EndCause::GivenUp { overdue, error } => {
                match overdue {
                    Overdue::QueueTimeout if open.as_ref().is_none_or(|bot| bot.queued.is_none()) => {
                        return Ok(state.status);
                    }
                    Overdue::DeployTimeout => {
                        let slot = open.as_ref().and_then(|bot| bot.slot.clone());
                        let found = slot.and_then(|slot| Some((self.all.deployment(&slot)?.clone(), slot)));
                        let waits = found.filter(|(of, _)| of.bot == Some(end.bot) && of.state != GateState::Active);
                        let Some((of, slot)) = waits else { return Ok(state.status) };
                        gate = Some((slot, of.state));
                    }
                    _ => {}
                }
                (Trigger::Passed(*overdue), error.clone(), None)
            }
        };
        let (to, reason) = match decide(&state, &trigger) {
            Verdict::Move { to, reason } => (to, reason),
            Verdict::Hold => return Ok(state.status),
            Verdict::Refuse => return Err(EndRefusal::InvalidTransition(state.status)),
            Verdict::Ended => {
                let reason = ended.and_then(|ended| ended.reason);
                return Err(EndRefusal::Ended { status: state.status, reason });
            }
        };
        let Some(bot) = open else { return Err(EndRefusal::NoSuchBot) };
        let said_so = matches!(end.cause, EndCause::Exited { .. });
        let text = reason.as_ref().map(ToString::to_string);
        self.expected_plan.events.push(NewEvent {
            bot_id: bot.id,
            user_id: bot.user,
            kind: Kind::StatusChanged,
            from: Some(bot.shown()),
            to: Some(to.into()),
            reason: text.clone(),
            actor: if said_so { Actor::Bot } else { Actor::Greenroom },
            start_kind: None,
        });
        self.all.bots.retain(|other| other.id != bot.id);
        let (stop_asked, connection) = (bot.stop_asked, bot.connection);
        self.all.ended.push((bot.id, EndedBot { status: to, reason: text, exit_code, stop_asked, connection }));
        let not_begun = matches!(gate, Some((_, GateState::Waiting)));
        if let Some((slot, _)) = &gate {
            self.all.deployments.retain(|(name, _)| name != slot);
            self.expected_plan.gate_moves = true;
        }
        let (from, at_gate) = (bot.status, gate);
        let fault = Fault::of_end(from, to, reason.as_ref());
        let error = error.or_else(|| end_error(&bot, to, reason.as_ref(), exit_code));
        let user = bot.user;
        self.expected_plan.ends.push(BotEnd { bot: bot.id, user, from, to, reason, fault, error, exit_code, at_gate });
        self.leave_slot(&bot, end, not_begun, to);
        Ok(to)
    }

    /// The effect of a bot's end on its slot.
    fn leave_slot(&mut self, bot: &OpenBot, end: &EndBot, not_begun: bool, to: Status) {
        let Some(name) = bot.slot.clone() else { return };
        let Some(slot) = self.all.slot(&name).cloned() else {
            self.expected_plan.to_clear.push(bot.id);
            return;
        };
        if slot.bot_id != Some(bot.id) {
            return;
        }
        let Some(pool) = self.all.pool(&slot.pool).cloned() else { return };
        let said_so = matches!(end.cause, EndCause::Exited { .. });
        let set = |batch: &mut Self, change: fn(&mut Slot)| batch.slot_mut(&name).map(change);
        if said_so && to == Status::Completed {
            set(self, |slot| slot.recovery_attempts = 0);
        }
        if bot.user == PROBE_USER {
            set(self, |slot| slot.last_used_at = None);
        }
        if let EndCause::GivenUp { overdue: Overdue::DeployFailed, error } = &end.cause {
            self.breaks(&name, error.as_deref().unwrap_or("the slot could not be started"));
        } else if not_begun && slot.status != SlotStatus::Draining {
            self.comes_free(&name, false);
        } else if said_so
            && pool.hot
            && slot.status == SlotStatus::Busy
            && (pool.recycle_after == 0 || slot.bots_since_fresh < pool.recycle_after)
        {
            self.note_hold(&name);
            if pool.ready_timeout_ms.is_some() {
                // The command of the next bot is not ready yet.
                self.expected_plan.asked.retain(|asked| asked.slot != name);
                self.put(&name, SlotStatus::Creating);
                set(self, |slot| slot.bot_id = None);
                set(self, |slot| slot.error_message = None);
            } else {
                self.comes_free(&name, true);
            }
            set(self, |slot| slot.token_number += 1);
        } else {
            set(self, |slot| slot.awaits_clearing = slot.status == SlotStatus::Busy);
            self.expected_plan.to_clear.push(bot.id);
        }
    }
}
