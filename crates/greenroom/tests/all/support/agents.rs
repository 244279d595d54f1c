//! Plays the agents and bots in slots of a provider that starts no processes.

use domain::{SlotStatus, Status};
use greenroom::lifecycle::callbacks::Caller;
use greenroom::providers::Spec;
use greenroom::store::SlotRow;

use super::{DeploymentFixture, waits};

impl DeploymentFixture {
    /// Performs the next step of each agent and bot: agents wait, bots start and complete. The bots in `stays` stay.
    pub async fn advance_bots(&self, stays: &[domain::BotId]) {
        for slot in self.core.store.slots(None, None).await.unwrap() {
            if let Some(spec) = self.fake.running(&slot.name).filter(|spec| spec.generation == slot.generation) {
                self.advance_bot(&slot, &spec, stays).await;
            }
        }
    }

    async fn advance_bot(&self, slot: &SlotRow, spec: &Spec, stays: &[domain::BotId]) {
        let Some(bot) = slot.bot_id else {
            let is_hot = spec.connection.is_none() && slot.status == SlotStatus::Creating;
            if is_hot && !self.core.store.is_at_gate(&slot.name).await.unwrap() {
                self.core.placement.report(slot.name.clone(), waits(slot)).await.unwrap();
            }
            return;
        };
        let row = self.bot(bot).await;
        if stays.contains(&bot) || row.status.is_ended() || row.slot.as_ref() != Some(&slot.name) {
            return;
        }
        // The provider started this for another bot, so it cannot run this one.
        if spec.connection.is_some() && spec.connection != row.connection_id.map(|id| id.to_string()) {
            return;
        }
        let caller = self.caller_of(&row).unwrap();
        // The user or a deadline may have ended the bot meanwhile.
        if self.core.lifecycle.started(caller, None).await.is_ok() {
            let _ = self.core.lifecycle.joined(caller).await;
            let _ = self.core.exited(caller, 0).await;
        }
    }

    /// The caller of a bot that has a connection, made from the bot's own data.
    pub fn caller_of(&self, bot: &greenroom::store::BotRow) -> Option<Caller> {
        let data = self.deployment.bot_data(bot)?;
        let claim = self.core.lifecycle.claim(data["token"].as_str()?).unwrap();
        Some(Caller { claim, connection_id: claim.connection })
    }

    /// Compares the store with the provider, and describes the first difference, or returns `None`. The agent of an
    /// idle slot must run if the pool is hot, and must not run otherwise. The provider may have nothing else except
    /// slots that run a bot.
    pub async fn disagreement(&self) -> Option<String> {
        let (has, pools) = (self.fake.has(), self.core.store.pools().await.unwrap());
        let slots = self.core.store.slots(None, None).await.unwrap();
        if let Some(unknown) = has.keys().find(|name| !slots.iter().any(|slot| slot.name == **name)) {
            return Some(format!("{unknown} is at the provider, and no slot has this name"));
        }
        for slot in &slots {
            let hot = pools.iter().any(|pool| pool.name == slot.pool && pool.hot);
            let found = has.get(&slot.name);
            let fits = match (slot.status, slot.bot_id) {
                (SlotStatus::Idle, None) if hot => found == Some(&true),
                (SlotStatus::Idle, None) => found != Some(&true) && (found.is_some() || slot.provider_ref.is_none()),
                (SlotStatus::Busy, Some(bot)) => found == Some(&true) && !self.bot(bot).await.status.is_ended(),
                _ => false,
            };
            if !fits {
                let Some(bot) = slot.bot_id else { return Some(format!("{slot:?} against {found:?}")) };
                let bot = self.core.stands(bot).await;
                return Some(format!("{slot:?} with {bot:?} against {found:?}"));
            }
        }
        None
    }

    /// Starts a bot, lets it join, and leaves it in its meeting.
    pub async fn stays(&self, number: usize) -> (domain::BotId, Caller) {
        let bot = self.core.reserved(number).await;
        self.runs(bot).await;
        let caller = self.caller_of(&self.bot(bot).await).unwrap();
        self.core.lifecycle.started(caller, None).await.unwrap();
        assert_eq!(self.core.lifecycle.joined(caller).await.unwrap(), Status::Active);
        (bot, caller)
    }
}
