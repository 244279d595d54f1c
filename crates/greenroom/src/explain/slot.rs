//! The explanation of one slot, for operators.

use domain::{SlotName, SlotStatus};
use jiff::Timestamp;

use super::moment::{distance, length};
use super::provider::ProviderReport;
use super::steps::Step;
use super::{Explainer, Explanation, first_line};
use crate::store::{FailureRow, SlotRow, StoreError};

/// The status of a slot that no longer exists.
const GONE: &str = "gone";

impl Explainer {
    /// Explains a slot; `None` when no slot has or had this name.
    pub async fn slot(&self, name: &SlotName) -> Result<Option<Explanation>, StoreError> {
        let failures = self.store.failures_in(name).await?;
        let Some(slot) = self.store.slot(name).await? else {
            return Ok(self.slot_that_is_gone(name, &failures));
        };
        let pool = self.store.pools().await?.into_iter().find(|pool| pool.name == slot.pool);
        let waiting = self.slot_waiting(&slot, pool.as_ref()).await?;
        let provider = self.ask_provider(&slot.pool, &slot.name, slot.provider_ref.as_deref()).await;
        let error = waiting.last_error.clone().or_else(|| slot.error_message.clone());
        let last_lines = last_lines(&failures).filter(|_| slot.status == SlotStatus::Error).unwrap_or_default();
        let provider = ProviderReport { last_lines, ..provider.after_error(error.clone()) };
        let time = length(distance(self.now, slot.status_since));
        let error = error.as_deref().map(first_line);
        let error = error.map(|error| format!(". The last error: {error}")).unwrap_or_default();
        let is = if slot.status == SlotStatus::Error { "in error" } else { slot.status.as_str() };
        Ok(Some(Explanation {
            summary: format!("The slot {name} is {is} for {time}. It waits for {}{error}", waiting.what),
            status: slot.status.as_str(),
            since: slot.status_since,
            advice: self.advice_for_slot(&slot),
            steps: steps(Some(&slot), &failures),
            waiting: Some(waiting),
            provider,
        }))
    }

    /// A slot of which only the failures are left.
    fn slot_that_is_gone(&self, name: &SlotName, failures: &[FailureRow]) -> Option<Explanation> {
        let last = failures.first()?;
        let time = length(distance(self.now, last.at));
        Some(Explanation {
            summary: format!("The slot {name} no longer exists. Its last failure, {time} ago: {}", last.message),
            status: GONE,
            since: last.at,
            waiting: None,
            steps: steps(None, failures),
            provider: ProviderReport {
                status: None,
                message: Some(last.message.clone()),
                last_lines: last_lines(failures).unwrap_or_default(),
            },
            advice: None,
        })
    }
}

/// The output before the last failure.
fn last_lines(failures: &[FailureRow]) -> Option<Vec<String>> {
    let log = failures.first()?.log.as_ref()?;
    Some(log.lines().map(str::to_owned).collect())
}

/// What is stored of a slot's past, oldest first.
fn steps(slot: Option<&SlotRow>, failures: &[FailureRow]) -> Vec<Step> {
    let step =
        |at: Timestamp, what: String| Step { at, took_ms: None, median_ms: None, what, actor: None, status: None };
    let mut steps: Vec<Step> =
        failures.iter().map(|failure| step(failure.at, format!("failed: {}", failure.message))).collect();
    if let Some(slot) = slot {
        steps.push(step(slot.created_at, "created".to_owned()));
        steps.extend(slot.last_used_at.map(|at| step(at, "used by a bot".to_owned())));
        steps.push(step(slot.status_since, format!("became {}", slot.status)));
    }
    steps.sort_by_key(|step| step.at);
    steps
}
