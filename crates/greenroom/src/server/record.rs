//! What the database tells of a server that runs: where it listens, its version, its pools. `greenroom doctor` asks it
//! there, and other commands see that it runs.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::Config;
use crate::store::{ServerFacts, Store};

const EVERY: Duration = Duration::from_secs(5);
/// A server whose row is older has been killed, or its database does not answer.
pub const ALIVE_WITHIN: Duration = Duration::from_secs(20);
/// How long the end of a server may take to be told.
const LAST_WORD: Duration = Duration::from_secs(2);

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

/// Writes the row again and again, and deletes it at the end.
pub async fn keep(store: Store, id: Uuid, facts: ServerFacts, ending: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(EVERY) => record(&store, id, &facts).await,
            () = ending.cancelled() => break,
        }
    }
    match tokio::time::timeout(LAST_WORD, store.forget_servers(Some(id))).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "server record not deleted"),
        Err(_) => tracing::warn!("server record not deleted: the database does not answer"),
    }
}
