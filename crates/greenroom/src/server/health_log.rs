//! This module logs the error of a provider that does not answer, once for each change. `GET /readyz`, which needs no
//! key, shows only that the provider does not answer.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::deployment::Deployment;

const INTERVAL: Duration = Duration::from_secs(2);

/// Logs each change until `ending`.
pub async fn log_providers(deployment: Deployment, ending: CancellationToken) {
    let mut before = BTreeMap::new();
    loop {
        let now = deployment.health();
        for (pool, answer) in &now {
            match (answer, before.get(pool)) {
                (Err(error), Some(Ok(())) | None) => tracing::warn!(%pool, %error, "provider ping failed"),
                (Ok(()), Some(Err::<(), String>(_))) => tracing::info!(%pool, "provider ping succeeded again"),
                _ => {}
            }
        }
        before = now;
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = ending.cancelled() => return,
        }
    }
}
