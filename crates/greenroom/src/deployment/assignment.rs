//! This module gives a bot to the agent that waits in the bot's slot. It decides which agent process may wait in a
//! slot, and which bot that agent gets. A slot's token is valid for one assignment, and an assignment belongs to one
//! agent process, which sends its own id. So a bot cannot learn anything in its slot that is valid for the next bot
//! there.
//!
//! Some providers cannot change a slot's environment. There, the token in the environment is valid only for the first
//! agent after a start. If that token is used at any other time, it has leaked, and the slot is replaced.

use std::time::Duration;

use serde_json::Value;

use super::Deployment;
use crate::placement::SlotEvent;
use crate::store::{Beat, BotRow, PoolRow, SlotMemoryRow, SlotRow, StoreError};
use domain::{ConnectionId, SlotClaim, SlotName};

/// The server's answer to an agent that waits in a slot.
#[derive(Debug)]
pub enum Offer {
    /// The bot's data, and the token under which the agent waits again after that bot has ended.
    Bot {
        data: Value,
        next_token: String,
        /// Whether the slot gets a fresh start after this bot, so that the agent has no next one.
        is_last: bool,
    },
    NoneYet,
    /// The token is not valid for the slot, or no longer valid.
    Refused(&'static str),
}

const GONE: &str = "this slot was deleted or restarted, or this token is no longer valid";
const ENDED: &str = "the bot of this slot has already started";
const ANOTHER: &str = "another agent waits in this slot";

/// How often the slots in which agents wait are compared with the database. An agent that misses its bot is woken
/// before the slot is started again for the bot.
const COMPARE: Duration = Duration::from_secs(2);
/// The same while no other replica can change a slot.
const COMPARE_ALONE: Duration = Duration::from_secs(30);

/// An agent that asks for the bot of a slot.
#[derive(Clone, Copy, Debug)]
enum WaitingAgent<'a> {
    /// The agent waits in the slot.
    InSlot,
    /// The agent waits on a runner that was claimed for the slot, for this connection.
    OnRunner { connection: Option<&'a str> },
}

/// Why the agent does not get the slot's bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotFor {
    /// The slot has no bot that this agent can get.
    NoneYet,
    /// The bot has begun, and an agent in a slot gets a bot only once.
    Begun,
}

/// Whether a bot has this slot and has not ended.
pub fn occupies(bot: &BotRow, slot: &SlotName) -> bool {
    bot.slot.as_ref() == Some(slot) && !bot.status.is_ended()
}

/// Decides whether the agent gets the bot of the slot, and under which connection.
///
/// An agent in a slot gets only a bot that has not begun. If an agent asks again for a bot that has begun, that bot is
/// lost, and the sweeper notices its missing heartbeats. An agent on a runner also gets a bot that has begun, because a
/// slot gets another runner only after the last one was released or has ended. But the runner's agent gets only the
/// connection that its runner was claimed for.
fn is_for(bot: &BotRow, slot: &SlotName, agent: WaitingAgent<'_>) -> Result<ConnectionId, NotFor> {
    if bot.has_session && matches!(agent, WaitingAgent::InSlot) {
        return Err(NotFor::Begun);
    }
    let connection_id = bot.connection_id.filter(|_| occupies(bot, slot)).ok_or(NotFor::NoneYet)?;
    match agent {
        WaitingAgent::OnRunner { connection } if connection != Some(connection_id.to_string().as_str()) => {
            Err(NotFor::NoneYet)
        }
        WaitingAgent::InSlot | WaitingAgent::OnRunner { .. } => Ok(connection_id),
    }
}

impl Deployment {
    /// Returns what an agent process gets under a token. An agent may replace an earlier waiting agent only in its
    /// first poll. Otherwise two agents could replace each other for ever.
    ///
    /// An agent that waits in an idle slot costs no query: its slot is known in memory until it changes.
    pub async fn offer(&self, claim: &SlotClaim, agent: &str, is_first_poll: bool) -> Result<Offer, StoreError> {
        let Self(inner) = self;
        if inner.signals.waiting_slot(&claim.slot).is_some_and(|slot| self.waits_in(&slot, claim, agent)) {
            return Ok(Offer::NoneYet);
        }
        let mut read = inner.signals.read_waiting_slot(&claim.slot);
        let Some(mut slot) = inner.store.slot(&claim.slot).await? else { return Ok(Offer::Refused(GONE)) };
        if self.waits_in(&slot, claim, agent) {
            read.keep(slot);
            return Ok(Offer::NoneYet);
        }
        if claim.is_next(&slot) {
            let is_own = slot.agent.as_deref() == Some(agent);
            return Ok(if is_own { Offer::NoneYet } else { Offer::Refused(ANOTHER) });
        }
        if !claim.is_current(&slot) || (claim.generation.is_none() && !self.keeps_environment(&slot.pool)) {
            self.replace_if_leaked(claim, &slot).await?;
            return Ok(Offer::Refused(GONE));
        }
        let is_own = slot.agent.as_deref() == Some(agent);
        // An agent that lost its command waits again, with a new one.
        // A request that the agent gave up, and a proxy did not, must not speak for it: only a new request does, or one
        // that goes on although the agent seemed to leave.
        let seemed_to_leave = slot.error_message.as_deref() == Some(domain::slot::AGENT_LEFT);
        let is_back = is_own
            && slot.status == domain::SlotStatus::Creating
            && slot.bot_id.is_none()
            && (is_first_poll || seemed_to_leave);
        if !is_own || is_back {
            if !is_own && !self.may_wait(claim, &slot, is_first_poll).await? {
                self.replace_if_leaked(claim, &slot).await?;
                return Ok(Offer::Refused(ANOTHER));
            }
            // While the slot is being started, the agent that asks may be the previous one.
            if slot.bot_id.is_none() && inner.store.is_at_gate(&slot.name).await? {
                return Ok(Offer::NoneYet);
            }
            let waits = SlotEvent::AgentWaits { claim: claim.clone(), agent: agent.to_owned() };
            inner.placement.report(slot.name.clone(), waits).await?;
            read = inner.signals.read_waiting_slot(&claim.slot);
            match inner.store.slot(&claim.slot).await? {
                Some(row) if self.waits_in(&row, claim, agent) => {
                    read.keep(row);
                    return Ok(Offer::NoneYet);
                }
                Some(row) if claim.is_current(&row) && row.agent.as_deref() == Some(agent) => slot = row,
                _ => return Ok(Offer::NoneYet),
            }
        }
        let (bot, pool) = tokio::try_join!(self.bot_for(&slot, WaitingAgent::InSlot), self.pool_of_busy(&slot))?;
        Ok(match bot {
            Ok(data) => {
                let next_token = inner.lifecycle.tokens.make_slot(&SlotClaim::next(&slot));
                Offer::Bot { data, next_token, is_last: pool.is_some_and(|pool| pool.is_used_up(&slot)) }
            }
            Err(NotFor::NoneYet) => Offer::NoneYet,
            Err(NotFor::Begun) => Offer::Refused(ENDED),
        })
    }

    /// Whether the agent waits under a valid token in a slot without a bot.
    fn waits_in(&self, slot: &SlotRow, claim: &SlotClaim, agent: &str) -> bool {
        slot.status == domain::SlotStatus::Idle
            && slot.bot_id.is_none()
            && slot.agent.as_deref() == Some(agent)
            && claim.is_current(slot)
            && (claim.generation.is_some() || self.keeps_environment(&slot.pool))
    }

    /// Wakes the agents that wait here in a slot that has changed, should a signal be lost. One statement serves all of
    /// them.
    pub async fn keep_comparing_waiting_slots(self) {
        let Self(inner) = &self;
        let mut failing = false;
        loop {
            let pause = if inner.store.is_only_replica() { COMPARE_ALONE } else { COMPARE };
            tokio::select! {
                () = inner.ending.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let waiting = inner.signals.waiting_slots();
            if waiting.is_empty() {
                continue;
            }
            match inner.store.changed_waiting_slots(&waiting).await {
                Ok(changed) => {
                    failing = false;
                    changed.iter().for_each(|slot| inner.signals.slot_changed(slot));
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "slots of waiting agents not compared");
                    }
                }
            }
        }
    }

    /// Notes the memory that the agent of a slot has measured. It is written later, with that of other slots.
    pub fn note_memory(&self, claim: &SlotClaim, bytes: i64) {
        let (slot, incarnation, measured_at) = (claim.slot.clone(), claim.incarnation, self.0.clock.now());
        self.0.slot_memory.note(SlotMemoryRow { slot, incarnation, bytes, measured_at });
    }

    /// Writes the noted memory of slots, until the server ends.
    pub async fn keep_writing_memory(self) {
        let Self(inner) = &self;
        inner.slot_memory.keep_writing(&inner.store, &inner.ending).await;
    }

    /// The pool of a slot that has a bot. An agent that only waits needs none.
    async fn pool_of_busy(&self, slot: &SlotRow) -> Result<Option<PoolRow>, StoreError> {
        match slot.bot_id {
            Some(_) => self.pool(&slot.pool).await,
            None => Ok(None),
        }
    }

    /// Returns the data of the bot that a runner was claimed for, as long as that bot still has to run. `connection` is
    /// the one that the claim names.
    pub async fn offer_to_runner(
        &self,
        slot: &SlotName,
        connection: Option<&str>,
    ) -> Result<Option<Value>, StoreError> {
        let Some(slot) = self.0.store.slot(slot).await? else { return Ok(None) };
        Ok(self.bot_for(&slot, WaitingAgent::OnRunner { connection }).await?.ok())
    }

    /// Whether a new agent may wait in the slot.
    async fn may_wait(&self, claim: &SlotClaim, slot: &SlotRow, is_first_poll: bool) -> Result<bool, StoreError> {
        if claim.generation.is_some() {
            return Ok(slot.agent.is_none() || (is_first_poll && slot.bot_id.is_none()));
        }
        let store = &self.0.store;
        let was_begun = !store.is_at_gate(&slot.name).await? || store.is_deploying(&slot.name).await?;
        let is_started = slot.status == domain::SlotStatus::Creating || slot.bot_id.is_some();
        Ok(slot.agent.is_none() && is_started && was_begun)
    }

    /// Returns the data of the slot's bot, if the agent may have it.
    async fn bot_for(&self, slot: &SlotRow, agent: WaitingAgent<'_>) -> Result<Result<Value, NotFor>, StoreError> {
        let Self(inner) = self;
        let Some(bot) = slot.bot_id else { return Ok(Err(NotFor::NoneYet)) };
        let Some(bot) = inner.store.bot(bot).await? else { return Ok(Err(NotFor::NoneYet)) };
        let connection_id = match is_for(&bot, &slot.name, agent) {
            Ok(connection_id) => connection_id,
            Err(not_for) => return Ok(Err(not_for)),
        };
        let Some(data) = self.bot_data(&bot) else { return Ok(Err(NotFor::NoneYet)) };
        // The bot's silence is counted from now on, and no keeper starts the slot again in the meantime.
        inner.lifecycle.heartbeats.note(Beat { connection_id, at: inner.clock.now() });
        Ok(Ok(data))
    }

    /// Replaces the slot if its start-only token was used again. Only a process that ran in the slot can have passed it
    /// on.
    async fn replace_if_leaked(&self, claim: &SlotClaim, slot: &SlotRow) -> Result<(), StoreError> {
        let is_leaked = claim.generation.is_none() && claim.incarnation == slot.incarnation;
        if is_leaked && self.0.placement.report(slot.name.clone(), SlotEvent::Drain).await? {
            tracing::warn!(slot = %slot.name, "slot token leaked; the slot is replaced after its bot");
        }
        Ok(())
    }

    /// The token that the server puts into a slot's environment.
    pub(super) fn slot_token(&self, slot: &SlotRow) -> String {
        let claim = match self.keeps_environment(&slot.pool) {
            true => SlotClaim::to_start_with(slot),
            false => SlotClaim::current(slot),
        };
        self.0.lifecycle.tokens.make_slot(&claim)
    }
}

#[cfg(test)]
mod tests {
    use domain::{BotId, Platform, Status, UserId};
    use jiff::Timestamp;
    use serde_json::Map;
    use uuid::Uuid;

    use super::*;

    const CONNECTION: ConnectionId = ConnectionId(Uuid::from_u128(7));

    fn slot() -> SlotName {
        SlotName::new("meet", 1)
    }

    /// A bot that has the slot and has not begun.
    fn bot() -> BotRow {
        BotRow {
            id: BotId(Uuid::from_u128(1)),
            user_id: UserId(Uuid::from_u128(2)),
            platform: Platform::GoogleMeet,
            native_meeting_id: "abc-defg-hij".to_owned(),
            meeting_url: "https://meet.google.com/abc-defg-hij".to_owned(),
            bot_display_name: None,
            status: Status::Reserved,
            status_since: Timestamp::UNIX_EPOCH,
            reason: None,
            fault: None,
            error: None,
            exit_code: None,
            container_id: None,
            connection_id: Some(CONNECTION),
            has_session: false,
            priority: 0,
            queue_timeout_ms: 0,
            pool: Some("meet".to_owned()),
            slot: Some(slot()),
            requirements: None,
            config: Map::new(),
            metadata: Map::new(),
            stop_asked_at: None,
            start_time: None,
            joined_at: None,
            end_time: None,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        }
    }

    /// The answers for an agent in the slot and for an agent on a runner that was claimed for the bot's connection.
    fn answers(bot: &BotRow) -> [Result<ConnectionId, NotFor>; 2] {
        let claimed = CONNECTION.to_string();
        let on_runner = WaitingAgent::OnRunner { connection: Some(&claimed) };
        [WaitingAgent::InSlot, on_runner].map(|agent| is_for(bot, &slot(), agent))
    }

    #[test]
    fn a_bot_that_has_not_begun_is_for_the_agent_of_its_slot() {
        assert_eq!(answers(&bot()), [Ok(CONNECTION), Ok(CONNECTION)]);
    }

    #[test]
    fn a_bot_that_has_begun_is_for_a_runner_and_for_no_agent_in_a_slot() {
        let begun = BotRow { has_session: true, ..bot() };
        assert_eq!(answers(&begun), [Err(NotFor::Begun), Ok(CONNECTION)]);
        let elsewhere = BotRow { slot: None, ..begun };
        assert_eq!(answers(&elsewhere), [Err(NotFor::Begun), Err(NotFor::NoneYet)]);
    }

    #[test]
    fn a_bot_that_has_ended_or_has_another_slot_or_no_connection_is_for_no_agent() {
        for bot in [
            BotRow { status: Status::Completed, ..bot() },
            BotRow { status: Status::Failed, ..bot() },
            BotRow { slot: None, ..bot() },
            BotRow { slot: Some(SlotName::new("meet", 2)), ..bot() },
            BotRow { connection_id: None, ..bot() },
        ] {
            assert_eq!(answers(&bot), [Err(NotFor::NoneYet); 2], "{bot:?}");
        }
    }

    #[test]
    fn a_runner_that_was_claimed_for_another_connection_gets_nothing() {
        let another = ConnectionId(Uuid::from_u128(8)).to_string();
        for connection in [None, Some(another.as_str()), Some("")] {
            let answer = is_for(&bot(), &slot(), WaitingAgent::OnRunner { connection });
            assert_eq!(answer, Err(NotFor::NoneYet), "{connection:?}");
        }
    }
}
