//! This module checks that a provider has done what it reported. A report alone is not enough to give a slot to the
//! next bot, or to delete its row. So the server reads the provider's state afterwards, and returns an error if that
//! does not confirm the report.

use std::time::Duration;

use domain::SlotName;

use super::Deployment;
use crate::providers::{Provider, ProviderError, Stopped};

impl Deployment {
    /// Stops the process in a slot, and checks that it is gone, unless the provider itself has seen that.
    pub(super) async fn stopped(
        &self,
        slot: &SlotName,
        provider: &dyn Provider,
        fresh: bool,
    ) -> Result<(), ProviderError> {
        let Self(inner) = self;
        let stopped = within(inner.timeouts.stop, "the stop request", provider.stop(slot, fresh)).await?;
        if stopped == Stopped::Seen {
            return Ok(());
        }
        match within(inner.timeouts.inspect, "the inspection", provider.inspect(slot)).await {
            Ok(Some(found)) if found.running => {
                Err(ProviderError::permanent("the provider reported that it stopped the slot, but the slot still runs"))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(ProviderError {
                message: format!("it is unknown whether the slot has stopped: {}", error.message),
                ..error
            }),
        }
    }

    /// Deletes a slot at the provider, and checks that it is gone.
    pub(super) async fn deleted(&self, slot: &SlotName, provider: &dyn Provider) -> Result<(), ProviderError> {
        let Self(inner) = self;
        within(inner.timeouts.stop, "the delete request", provider.delete(slot)).await?;
        match within(inner.timeouts.inspect, "the inspection", provider.inspect(slot)).await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(ProviderError::permanent(
                "the provider reported that it deleted the slot, but the slot still exists",
            )),
            Err(error) => Err(ProviderError {
                message: format!("it is unknown whether the slot was deleted: {}", error.message),
                ..error
            }),
        }
    }
}

/// Returns the provider's answer or error, or an error when it takes too long.
pub(super) async fn within<T>(
    timeout: Duration,
    what: &str,
    call: impl Future<Output = Result<T, ProviderError>>,
) -> Result<T, ProviderError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(answer) => answer,
        Err(_) => {
            let message = format!("the provider did not answer {what} within {} s", timeout.as_secs());
            Err(ProviderError::transient(message))
        }
    }
}
