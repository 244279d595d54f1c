//! This module reports on one slot: its explanation, and what only an operator at the database sees.

use domain::{SlotName, SlotStatus};

use super::Doctor;
use super::report::Report;
use crate::explain::moment::moment;
use crate::store::{PoolRow, StoreError};

impl Doctor {
    /// Reports on a slot; `None` when no slot has or had this name.
    pub async fn slot(&self, name: &SlotName) -> Result<Option<Report>, StoreError> {
        let (store, now) = (&self.explainer.store, self.explainer.now);
        let Some(explanation) = self.explainer.slot(name).await? else { return Ok(None) };
        let failures = store.failures_in(name).await?;
        let (Some(slot), Some(waiting)) = (store.slot(name).await?, &explanation.waiting) else {
            let mut report = Report::new(format!("{name} no longer exists"));
            report.add_failures(&failures, now);
            return Ok(Some(report));
        };
        let pool = store.pools().await?.into_iter().find(|pool| pool.name == slot.pool);
        let status = if slot.status == SlotStatus::Creating { "being created" } else { explanation.status };
        let mut report = Report::new(format!("{name} is {status} since {}", moment(explanation.since, now)));
        report.add("pool", pool.as_ref().map_or(format!("{}, no longer configured", slot.pool), shown));
        report.add("description", slot.description.as_str());
        if let Some(id) = slot.bot_id {
            let status = store.bot(id).await?.map_or("unknown".to_owned(), |bot| bot.shown().to_string());
            report.add("bot", format!("{id}, {status}"));
        }
        report.add("waits for", waiting.sentence(now));
        if let Some(message) = &explanation.provider.message {
            report.add("provider", message.as_str());
        }
        if matches!(slot.status, SlotStatus::Creating | SlotStatus::Error) {
            for problem in self.problems(&slot.pool).await {
                report.add("problem", problem);
            }
        }
        if let Some(advice) = &explanation.advice {
            report.add("advice", advice.as_str());
        }
        if let Some(used) = slot.last_used_at {
            report.add("last used", moment(used, now));
        }
        if slot.recovery_attempts > 0 {
            let most = self.explainer.max_recovery_attempts;
            report.add("recovery", format!("{} of {most} attempts", slot.recovery_attempts));
        }
        if let Some(error) = &slot.error_message {
            report.add("error", error.as_str());
        }
        report.add_failures(&failures, now);
        Ok(Some(report))
    }
}

fn shown(pool: &PoolRow) -> String {
    let standby = if pool.hot { "hot" } else { "stopped" };
    format!("{} on {}, {standby} while it waits for a bot", pool.name, pool.provider)
}
