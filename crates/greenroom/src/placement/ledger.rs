//! What a batch leaves behind: gathered while it is decided, and written at its end, each kind in one statement.

use std::time::Duration;

use domain::{BotId, SlotName, Status, UserId};
use jiff::Timestamp;
use uuid::Uuid;

use super::desk::Desk;
use super::{Described, Looked};
use crate::store::{
    Actor, Batch, Change, Grant, Held, Kind, KnownKey, NewBot, NewDeployment, NewEvent, NewWaiter, PoolRow, StoreError,
    Tx,
};

#[derive(Debug)]
pub struct Ledger {
    pub now: Timestamp,
    deploy_timeout: Duration,
    /// New bots, with what they were given.
    pub bots: Vec<NewBot>,
    /// How many of them are written already.
    written: usize,
    pub keys: Vec<(UserId, String, KnownKey)>,
    pub ends: Vec<(BotId, Change)>,
    /// New bots that wait in line.
    pub queued: Vec<BotId>,
    /// Whether somebody came back to the line.
    pub returned: bool,
    /// Bots that waited and have got a slot.
    pub grants: Vec<Grant>,
    /// Bots that should be speaking from now on.
    pub awaited: Vec<BotId>,
    left_gate: Vec<SlotName>,
    left_held: Vec<Held>,
    asked: Vec<NewDeployment>,
    /// Slots that are no more.
    pub gone: Vec<SlotName>,
    pub events: Vec<NewEvent>,
    /// Slots in which an agent waits for what they were given.
    pub woken: Vec<SlotName>,
    /// Bots whose slots are to be cleared.
    pub to_clear: Vec<BotId>,
    /// Slots whose description may have changed.
    pub described: Vec<Described>,
    /// Whether a slot was given out of a pool that keeps some ready.
    pub cooled: bool,
    pub looked: Looked,
}

impl Ledger {
    pub fn new(now: Timestamp, deploy_timeout: Duration) -> Self {
        Self {
            now,
            deploy_timeout,
            bots: Vec::new(),
            written: 0,
            keys: Vec::new(),
            ends: Vec::new(),
            queued: Vec::new(),
            returned: false,
            grants: Vec::new(),
            awaited: Vec::new(),
            left_gate: Vec::new(),
            left_held: Vec::new(),
            asked: Vec::new(),
            gone: Vec::new(),
            events: Vec::new(),
            woken: Vec::new(),
            to_clear: Vec::new(),
            described: Vec::new(),
            cooled: false,
            looked: Looked::default(),
        }
    }

    pub fn created(&mut self, bot: &NewBot) {
        self.events.push(NewEvent {
            bot_id: bot.id,
            user_id: bot.user_id,
            kind: Kind::Created,
            from: None,
            to: Some(Status::Reserved),
            reason: None,
            actor: Actor::User,
        });
    }

    pub fn assigned(&mut self, bot: BotId, user: UserId, slot: &SlotName) {
        self.events.push(NewEvent {
            bot_id: bot,
            user_id: user,
            kind: Kind::Assigned,
            from: None,
            to: None,
            reason: Some(slot.to_string()),
            actor: Actor::Greenroom,
        });
    }

    /// A bot had a slot, and is back in line for the first time.
    pub fn requeued(&mut self, bot: BotId, user: UserId, words: &str) {
        self.events.push(NewEvent {
            bot_id: bot,
            user_id: user,
            kind: Kind::Requeued,
            from: None,
            to: None,
            reason: Some(words.to_owned()),
            actor: Actor::Greenroom,
        });
    }

    /// Puts a slot of a pool before the gate of the pool's host.
    pub fn ask_for_gate(&mut self, pool: &PoolRow, slot: &SlotName, bot_id: Option<BotId>) {
        let timeout_at = self.now.saturating_add(self.deploy_timeout).unwrap_or(Timestamp::MAX);
        let (pool, host) = (pool.name.clone(), pool.host.clone());
        self.asked.push(NewDeployment { slot: slot.clone(), pool, host, bot_id, timeout_at });
    }

    pub fn leave_gate(&mut self, slot: &SlotName) {
        self.left_gate.push(slot.clone());
        self.asked.retain(|asked| asked.slot != *slot);
    }

    /// Leaves the gate with what this holder was starting; what another has begun in the slot since stays.
    pub fn leave_held(&mut self, slot: &SlotName, bot_id: Option<BotId>, holder: Uuid) {
        self.left_held.push(Held { slot: slot.clone(), bot_id, holder });
    }

    /// Whether someone has come to the gate, or has left room behind it.
    pub fn stirs_gate(&self) -> bool {
        !(self.asked.is_empty() && self.left_gate.is_empty() && self.left_held.is_empty())
    }

    /// Puts new bots, each under the name of a pool, at the end of the line. They are written at once, because the line is read together with them.
    pub async fn enqueue(&mut self, tx: &mut Tx, joining: Vec<(String, NewBot)>) -> Result<(), StoreError> {
        if joining.is_empty() {
            return Ok(());
        }
        let mut waiters = Vec::with_capacity(joining.len());
        for (pool, mut bot) in joining {
            bot.pool = Some(pool.clone());
            let patience = Duration::from_millis(bot.queue_timeout_ms.unsigned_abs());
            let timeout_at = self.now.saturating_add(patience).unwrap_or(Timestamp::MAX);
            waiters.push(NewWaiter {
                bot_id: bot.id,
                platform: bot.platform,
                pool,
                priority: bot.priority,
                wants: bot.wants.clone(),
                timeout_at,
            });
            self.created(&bot);
            self.queued.push(bot.id);
            self.bots.push(bot);
        }
        let batch = Batch { bots: self.unwritten_bots(), ..Batch::default() };
        tx.write(&batch, self.now).await?;
        tx.enqueue(&waiters, self.now).await
    }

    /// A bot that waited has got a slot.
    pub fn grant(&mut self, user: UserId, grant: Grant) {
        self.assigned(grant.bot_id, user, &grant.slot);
        self.queued.retain(|queued| *queued != grant.bot_id);
        if let Some(bot) = self.bots.iter_mut().find(|bot| bot.id == grant.bot_id) {
            hand_over(bot, &grant);
        }
        self.grants.push(grant);
    }

    /// A new bot gets a slot at once.
    pub fn place(&mut self, mut bot: NewBot, grant: &Grant) {
        hand_over(&mut bot, grant);
        self.created(&bot);
        self.assigned(bot.id, bot.user_id, &grant.slot);
        self.bots.push(bot);
    }

    /// New bots that are not written yet.
    fn unwritten_bots(&mut self) -> Vec<NewBot> {
        let bots = self.bots[self.written..].to_vec();
        self.written = self.bots.len();
        bots
    }

    /// The slots as they are on the desks now.
    fn with_slots(&mut self, mut batch: Batch, desks: &mut [Desk]) -> Batch {
        for desk in desks {
            desk.take_changed(&mut batch);
        }
        self.described.extend(batch.new_slots.iter().chain(&batch.slots).map(Described::from));
        batch
    }

    /// Writes the slots as they are now, so that they can be counted.
    pub async fn write_slots(&mut self, tx: &mut Tx, desks: &mut [Desk]) -> Result<(), StoreError> {
        let batch = self.with_slots(Batch::default(), desks);
        tx.write(&batch, self.now).await
    }

    /// Writes everything.
    pub async fn write(&mut self, tx: &mut Tx, desks: &mut [Desk]) -> Result<(), StoreError> {
        let bots = self.unwritten_bots();
        let batch = Batch {
            bots,
            keys: std::mem::take(&mut self.keys),
            ends: std::mem::take(&mut self.ends),
            pools: desks.iter().filter_map(Desk::pool_change).cloned().collect(),
            events: std::mem::take(&mut self.events),
            ..Batch::default()
        };
        let batch = self.with_slots(batch, desks);
        tx.grant(&self.grants, self.now).await?;
        tx.await_bots(&self.awaited, self.now).await?;
        tx.leave_gate(&self.left_gate).await?;
        tx.leave_gate_held(&self.left_held).await?;
        tx.ask_for_gate(&self.asked, self.now).await?;
        tx.write(&batch, self.now).await
    }
}

fn hand_over(bot: &mut NewBot, grant: &Grant) {
    bot.pool = Some(grant.pool.clone());
    bot.slot = Some(grant.slot.clone());
    bot.connection_id = Some(grant.connection_id);
    bot.is_awaited = grant.is_awaited;
}
