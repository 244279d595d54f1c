//! This module keeps a row in the database for each running server: its address, version and pools. `greenroom doctor`
//! reads the row to find the server, and other commands see from it that a server runs.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::Config;
pub use crate::store::SERVER_ALIVE_WITHIN as ALIVE_WITHIN;
use crate::store::{ServerFacts, Store};

const INTERVAL: Duration = Duration::from_secs(8);
/// The time limit for deleting the row when the server ends.
const DELETE_TIMEOUT: Duration = Duration::from_secs(2);

pub fn facts(config: &Config, url: &str, public_url: &str) -> ServerFacts {
    ServerFacts {
        url: url.to_owned(),
        public_url: public_url.to_owned(),
        has_public_url: config.public_url.is_some(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: super::host(),
        pid: std::process::id(),
        folder: std::env::current_dir().map(|folder| folder.display().to_string()).unwrap_or_default(),
        path: std::env::var("PATH").unwrap_or_default(),
        pools: config.pools.iter().map(|pool| pool.name.clone()).collect(),
    }
}

pub async fn record(store: &Store, id: Uuid, facts: &ServerFacts) {
    if let Err(error) = store.record_server(id, facts).await {
        tracing::warn!(%error, "server record not written");
    }
}

/// Updates the row regularly, and deletes it at the end.
pub async fn keep(store: Store, id: Uuid, facts: ServerFacts, ending: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => record(&store, id, &facts).await,
            () = ending.cancelled() => break,
        }
    }
    match tokio::time::timeout(DELETE_TIMEOUT, store.forget_servers(Some(id))).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "server record not deleted"),
        Err(_) => tracing::warn!(error = "the database does not answer", "server record not deleted"),
    }
}
