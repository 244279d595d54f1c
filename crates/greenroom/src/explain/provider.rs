//! What the provider says about a slot. Its silence is an answer too: an explanation never fails because of it.

use domain::SlotName;

use super::moment::length;
use super::{Audience, Explainer};

/// The state of a slot at its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderStatus {
    Running,
    /// Something runs in the slot, but the provider reports that it is not well.
    Unhealthy,
    /// The slot exists, and nothing runs in it.
    Stopped,
    /// The provider does not have the slot.
    Missing,
    /// The provider answered with an error.
    Failed,
    /// The provider did not answer in time.
    NoAnswer,
    /// The server that was asked does not have the pool.
    NotConfigured,
}

impl ProviderStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            ProviderStatus::Running => "running",
            ProviderStatus::Unhealthy => "unhealthy",
            ProviderStatus::Stopped => "stopped",
            ProviderStatus::Missing => "missing",
            ProviderStatus::Failed => "failed",
            ProviderStatus::NoAnswer => "no_answer",
            ProviderStatus::NotConfigured => "not_configured",
        }
    }
}

/// What the provider said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderReport {
    /// `None` if the provider was not asked, because there is no slot.
    pub status: Option<ProviderStatus>,
    pub message: Option<String>,
    /// The last lines of the bot's output, oldest first.
    pub last_lines: Vec<String>,
}

impl ProviderReport {
    /// Puts an earlier error before what the provider says now.
    pub(super) fn after_error(mut self, error: Option<String>) -> Self {
        self.message = match (error, self.message) {
            (Some(error), Some(message)) if error != message => Some(format!("{error}; now: {message}")),
            (error, message) => error.or(message),
        };
        self
    }
}

impl Explainer {
    /// Asks the provider about a slot, for a short time.
    pub(super) async fn ask_provider(&self, pool: &str, slot: &SlotName, known_as: Option<&str>) -> ProviderReport {
        let Some(provider) = self.providers.get(pool) else {
            let message = Some("no longer configured".to_owned());
            return ProviderReport { status: Some(ProviderStatus::NotConfigured), message, last_lines: Vec::new() };
        };
        let known = known_as.map(|known| format!(" ({known})")).unwrap_or_default();
        let (status, message) = match tokio::time::timeout(self.provider_timeout, provider.inspect(slot)).await {
            Ok(Ok(Some(found))) if found.unhealthy => {
                (ProviderStatus::Unhealthy, self.internal(format!("{}, unhealthy{known}", found.state)))
            }
            Ok(Ok(Some(found))) => {
                let status = if found.running { ProviderStatus::Running } else { ProviderStatus::Stopped };
                (status, self.internal(format!("{}{known}", found.state)))
            }
            Ok(Ok(None)) => (ProviderStatus::Missing, self.internal(format!("does not have the slot{known}"))),
            Ok(Err(error)) => {
                (ProviderStatus::Failed, Some(format!("returned an error: {}", self.quote(&error.message))))
            }
            Err(_) => {
                let message = format!("does not answer within {}", length(self.provider_timeout));
                (ProviderStatus::NoAnswer, Some(message))
            }
        };
        ProviderReport { status: Some(status), message, last_lines: Vec::new() }
    }

    /// The provider's own words for a state, which only operators need.
    fn internal(&self, state: String) -> Option<String> {
        (self.audience == Audience::Operator).then_some(state)
    }
}
