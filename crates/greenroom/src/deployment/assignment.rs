//! Handing a bot to the agent that waits in its slot. A slot's token is good for one assignment, and the assignment for one
//! agent process, which names itself: nothing that a bot could learn in its slot is good for the next bot there.
//!
//! Where a slot's environment cannot change, the token in it is only good to start with: for the first agent after a start.
//! If it is used at any other time, somebody else has it, and the slot is replaced.

use serde_json::Value;

use super::Deployment;
use crate::placement::SlotEvent;
use crate::store::{Beat, SlotRow, StoreError};
use domain::SlotClaim;

/// What an agent is told that waits in a slot.
#[derive(Debug)]
pub enum Offer {
    /// Its bot's data, and the token under which it waits when that bot has ended.
    Bot {
        data: Value,
        next_token: String,
    },
    NoneYet,
    /// The token is not, or no longer, the slot's.
    Refused(&'static str),
}

const GONE: &str = "this slot is gone, or was started again";
const ENDED: &str = "this token ended with its assignment";
const ANOTHER: &str = "another agent waits in this slot";

impl Deployment {
    /// What an agent process gets under a token. Only with its first look it may take the place of an agent that waited
    /// before it, so that two of them do not replace each other for ever.
    pub async fn offer(&self, claim: &SlotClaim, agent: &str, is_first_poll: bool) -> Result<Offer, StoreError> {
        let Self(inner) = self;
        let Some(mut slot) = inner.store.slot(&claim.slot).await? else { return Ok(Offer::Refused(GONE)) };
        if claim.is_next(&slot) {
            let is_own = slot.agent.as_deref() == Some(agent);
            return Ok(if is_own { Offer::NoneYet } else { Offer::Refused(ANOTHER) });
        }
        if !claim.is_current(&slot) || (claim.generation.is_none() && !self.keeps_environment(&slot.pool)) {
            self.replace_if_leaked(claim, &slot).await?;
            return Ok(Offer::Refused(GONE));
        }
        if slot.agent.as_deref() != Some(agent) {
            if !self.may_wait(claim, &slot, is_first_poll).await? {
                self.replace_if_leaked(claim, &slot).await?;
                return Ok(Offer::Refused(ANOTHER));
            }
            // While the slot is being started, an agent that waits may be the one before.
            if slot.bot_id.is_none() && inner.store.is_at_gate(&slot.name).await? {
                return Ok(Offer::NoneYet);
            }
            let waits = SlotEvent::AgentWaits { claim: claim.clone(), agent: agent.to_owned() };
            inner.placement.report(slot.name.clone(), waits).await?;
            match inner.store.slot(&claim.slot).await? {
                Some(row) if claim.is_current(&row) && row.agent.as_deref() == Some(agent) => slot = row,
                _ => return Ok(Offer::NoneYet),
            }
        }
        self.bot_for(&slot).await
    }

    /// Whether an agent may wait in a slot in which it is not known yet.
    async fn may_wait(&self, claim: &SlotClaim, slot: &SlotRow, is_first_poll: bool) -> Result<bool, StoreError> {
        if claim.generation.is_some() {
            return Ok(slot.agent.is_none() || (is_first_poll && slot.bot_id.is_none()));
        }
        let store = &self.0.store;
        let was_begun = !store.is_at_gate(&slot.name).await? || store.is_deploying(&slot.name).await?;
        let is_started = slot.status == domain::SlotStatus::Creating || slot.bot_id.is_some();
        Ok(slot.agent.is_none() && is_started && was_begun)
    }

    /// The data of the slot's bot, for the agent that waits there.
    async fn bot_for(&self, slot: &SlotRow) -> Result<Offer, StoreError> {
        let Self(inner) = self;
        let Some(bot) = slot.bot_id else { return Ok(Offer::NoneYet) };
        let Some(bot) = inner.store.bot(bot).await? else { return Ok(Offer::NoneYet) };
        // One that has begun and is asked for again is lost, and its heartbeats are missed.
        if bot.has_session {
            return Ok(Offer::Refused(ENDED));
        }
        if bot.slot.as_ref() != Some(&slot.name) || bot.status.is_ended() {
            return Ok(Offer::NoneYet);
        }
        let (Some(data), Some(connection_id)) = (self.bot_data(&bot), bot.connection_id) else {
            return Ok(Offer::NoneYet);
        };
        // From here on the bot has its time to be heard, and nobody starts the slot once more.
        inner.lifecycle.heartbeats.note(Beat { connection_id, at: inner.lifecycle.clock.now() });
        Ok(Offer::Bot { data, next_token: inner.lifecycle.tokens.make_slot(&SlotClaim::next(slot)) })
    }

    /// A token that was only good to start with was used again: only what ran in the slot can have told it.
    async fn replace_if_leaked(&self, claim: &SlotClaim, slot: &SlotRow) -> Result<(), StoreError> {
        let is_leaked = claim.generation.is_none() && claim.incarnation == slot.incarnation;
        if is_leaked && self.0.placement.report(slot.name.clone(), SlotEvent::Drain).await? {
            tracing::warn!(slot = %slot.name, "slot token leaked; the slot is replaced after its bot");
        }
        Ok(())
    }

    /// The token in the environment of a slot.
    pub(super) fn slot_token(&self, slot: &SlotRow) -> String {
        let claim = match self.keeps_environment(&slot.pool) {
            true => SlotClaim::to_start_with(slot),
            false => SlotClaim::current(slot),
        };
        self.0.lifecycle.tokens.make_slot(&claim)
    }
}
