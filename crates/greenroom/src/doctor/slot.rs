//! This module describes one slot: its state and since when, what it waits for and until when, and the provider's
//! messages.

use domain::{SlotName, SlotStatus};

use super::story::{Story, after, moment};
use super::{Doctor, PATIENCE};
use crate::keepers::deployment::{DELETED_AGAIN_AFTER, WAITS_WITHIN};
use crate::store::{DeploymentRow, PoolRow, SlotRow, StoreError};

impl Doctor {
    /// Describes a slot; `None` when no slot has or had this name.
    pub async fn slot(&self, name: &SlotName) -> Result<Option<Story>, StoreError> {
        let failures = self.store.failures_in(name).await?;
        let Some(slot) = self.store.slot(name).await? else {
            if failures.is_empty() {
                return Ok(None);
            }
            let mut story = Story::new(format!("{name} is gone"));
            story.tell_failures(&failures, self.now);
            return Ok(Some(story));
        };
        let pool = self.store.pools().await?.into_iter().find(|pool| pool.name == slot.pool);
        let status = if slot.status == SlotStatus::Creating { "being made (creating)" } else { slot.status.as_str() };
        let mut story = Story::new(format!("{name} is {status} since {}", moment(slot.status_since, self.now)));
        story.add("pool", pool.as_ref().map_or(format!("{}, no longer configured", slot.pool), shown));
        story.add("description", slot.description.as_str());
        if let Some(id) = slot.bot_id {
            let status = self.store.bot(id).await?.map_or("unknown".to_owned(), |bot| bot.shown().to_string());
            story.add("bot", format!("{id}, {status}"));
        }
        story.add("waits for", self.slot_waits_for(&slot, pool.as_ref()).await?);
        story.add("provider", self.provider_says(&slot).await);
        if matches!(slot.status, SlotStatus::Creating | SlotStatus::Error) {
            for trouble in self.troubles(&slot.pool).await {
                story.add("trouble", trouble);
            }
        }
        if let Some(used) = slot.last_used_at {
            story.add("last used", moment(used, self.now));
        }
        if slot.recovery_attempts > 0 {
            story.add("recovery", format!("{} of {} attempts", slot.recovery_attempts, self.max_recovery_attempts));
        }
        if let Some(error) = &slot.error_message {
            story.add("error", error.as_str());
        }
        story.tell_failures(&failures, self.now);
        Ok(Some(story))
    }

    async fn slot_waits_for(&self, slot: &SlotRow, pool: Option<&PoolRow>) -> Result<String, StoreError> {
        let deployments = self.store.deployments().await?;
        if let Some(at) = deployments.iter().position(|deployment| deployment.slot == slot.name) {
            return Ok(self.at_gate(&deployments, at));
        }
        Ok(match (slot.status, slot.bot_id) {
            (SlotStatus::Idle, _) => "a bot".to_owned(),
            (SlotStatus::Creating, None) if pool.is_some_and(|pool| pool.hot) => {
                format!("its agent to begin to wait, until {}", after(slot.status_since, WAITS_WITHIN, self.now))
            }
            (SlotStatus::Error, _) => {
                let keepers = self.store.keepers().await?;
                let next = keepers.iter().find(|keeper| keeper.name == "recovery").and_then(|keeper| keeper.next_run);
                let when = next.map_or("when a server leads the keepers".to_owned(), |next| moment(next, self.now));
                format!("recovery, {when}; or `POST /admin/slots/{}/recover` now", slot.name)
            }
            (SlotStatus::Draining, None) => {
                format!("its deletion at the provider, tried again every {} s", DELETED_AGAIN_AFTER.as_secs())
            }
            (_, Some(id)) => match self.store.bot(id).await? {
                Some(row) if row.status.is_ended() => "being cleared after its bot's end".to_owned(),
                Some(row) => format!("its bot, which waits for {}", self.bot_waits_for(&row).await?),
                None => "nothing: its bot is unknown".to_owned(),
            },
            (_, None) => "recovery: nobody has it although it is not free".to_owned(),
        })
    }

    /// Describes the progress of a deployment at the gate.
    pub(super) fn at_gate(&self, deployments: &[DeploymentRow], at: usize) -> String {
        let Some(own) = deployments.get(at) else { return String::new() };
        let until = moment(own.timeout_at, self.now);
        let said = own.last_error.as_ref().map(|said| format!("; it said last: {said}")).unwrap_or_default();
        if own.active {
            return format!(
                "the provider, which has been asked since {}, until {until}{said}",
                moment(own.asked_at, self.now)
            );
        }
        let active = deployments.iter().filter(|deployment| deployment.active).count();
        let before = deployments[..at].iter().filter(|deployment| !deployment.active).count();
        format!(
            "its turn at the deploy gate, where {active} are under way and {before} are before it, until {until}{said}"
        )
    }

    async fn provider_says(&self, slot: &SlotRow) -> String {
        let Some(provider) = self.providers.get(&slot.pool) else { return "no longer configured".to_owned() };
        let known = slot.provider_ref.as_deref().map(|known| format!(" ({known})")).unwrap_or_default();
        match tokio::time::timeout(PATIENCE, provider.inspect(&slot.name)).await {
            Ok(Ok(Some(found))) if found.unwell => format!("{}, not well{known}", found.state),
            Ok(Ok(Some(found))) => format!("{}{known}", found.state),
            Ok(Ok(None)) => format!("has nothing of it{known}"),
            Ok(Err(error)) => format!("cannot be asked: {}", error.message),
            Err(_) => "does not answer".to_owned(),
        }
    }
}

fn shown(pool: &PoolRow) -> String {
    let standby = if pool.hot { "hot" } else { "stopped" };
    format!("{} on {}, {standby} while it waits", pool.name, pool.provider)
}
