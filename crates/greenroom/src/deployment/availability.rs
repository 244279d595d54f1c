//! This module knows whether the provider of each pool answers. It exists because an unavailable provider does not mean
//! that its slots failed. Their state stays unchanged until the provider answers again; then the server checks them at
//! once.
//!
//! The server pings each provider every few seconds, and every second while the provider is unavailable. A call that
//! could not reach the provider also counts, so the server notices an outage at the first failed call.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;

use super::{Deployment, verify};
use crate::providers::{Provider, ProviderError};
use crate::store::StoreError;

const PING_EVERY: Duration = Duration::from_secs(15);
const PING_EVERY_WHILE_UNAVAILABLE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Availability {
    pools: Mutex<BTreeMap<String, Health>>,
    /// Pools whose provider answers again, and since when. An entry stays until a keeper takes it to check the pool's
    /// slots.
    returned: Mutex<BTreeMap<String, Timestamp>>,
    has_returned: Notify,
    /// A call could not reach a provider.
    found_unavailable: Notify,
}

/// The known state of a pool's provider.
#[derive(Debug)]
struct Health {
    /// The result of the last ping, or of a later call.
    answer: Result<(), String>,
    is_unavailable: bool,
    /// Since when it does not answer as it should; `None` while it does.
    failing_since: Option<Timestamp>,
    /// When the provider last became available again; `None` if no outage was seen.
    available_since: Option<Timestamp>,
}

impl Availability {
    fn pools(&self) -> MutexGuard<'_, BTreeMap<String, Health>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn returned(&self) -> MutexGuard<'_, BTreeMap<String, Timestamp>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of a ping. True when the provider was unavailable before and answers again.
    fn note(&self, pool: &str, answer: &Result<(), ProviderError>, now: Timestamp) -> bool {
        let mut pools = self.pools();
        let before = pools.get(pool);
        let is_unavailable = answer.as_ref().is_err_and(|error| error.retryable);
        let has_returned = answer.is_ok() && before.is_some_and(|health| health.is_unavailable);
        let available_since = if has_returned { Some(now) } else { before.and_then(|health| health.available_since) };
        let failing_since = before.and_then(|health| health.failing_since).unwrap_or(now);
        let failing_since = answer.is_err().then_some(failing_since);
        let answer = answer.clone().map_err(|error| error.message);
        pools.insert(pool.to_owned(), Health { answer, is_unavailable, failing_since, available_since });
        drop(pools);
        if has_returned {
            self.returned().insert(pool.to_owned(), now);
        }
        has_returned
    }
}

impl Deployment {
    /// Pings the providers continuously, so that no request has to wait for a ping.
    pub async fn keep_pinging(self) {
        let pings = self.0.providers.iter().map(|(pool, provider)| self.keep_pinging_one(pool, &**provider));
        tokio::select! {
            _ = futures_util::future::join_all(pings) => {}
            () = self.0.ending.cancelled() => {}
        }
    }

    async fn keep_pinging_one(&self, pool: &str, provider: &dyn Provider) {
        let availability = &self.0.availability;
        loop {
            let answer = verify::within(self.0.timeouts.inspect, "the ping", provider.ping()).await;
            if availability.note(pool, &answer, self.0.clock.now()) {
                self.provider_returned(pool).await;
            }
            let next_ping = tokio::time::sleep(PING_EVERY);
            tokio::pin!(next_ping);
            loop {
                let found_unavailable = availability.found_unavailable.notified();
                if self.is_unavailable(pool) {
                    break;
                }
                tokio::select! {
                    () = &mut next_ping => break,
                    () = found_unavailable => {}
                }
            }
            if self.is_unavailable(pool) {
                tokio::time::sleep(PING_EVERY_WHILE_UNAVAILABLE).await;
            }
        }
    }

    /// Does the work that was postponed while the provider of the pool was unavailable.
    async fn provider_returned(&self, pool: &str) {
        tracing::info!(pool, "provider available again");
        if let Err(error) = self.retry_starts(pool).await {
            tracing::warn!(pool, %error, "slot starts not retried at once; each retries after its pause");
        }
        self.settle().await;
        self.0.availability.has_returned.notify_one();
    }

    /// Makes every pending start of the pool that waits for its next attempt due now.
    async fn retry_starts(&self, pool: &str) -> Result<(), StoreError> {
        let mut tx = self.0.store.begin().await?;
        tx.make_retries_due(pool, self.0.clock.now(), i64::MAX).await?;
        tx.commit().await
    }

    /// Waits until the provider of any pool answers again.
    pub async fn until_provider_returns(&self) {
        while self.0.availability.returned().is_empty() {
            self.0.availability.has_returned.notified().await;
        }
    }

    /// Returns the pools whose provider became available since the last call, and since when each answers.
    pub fn take_returned(&self) -> BTreeMap<String, Timestamp> {
        std::mem::take(&mut *self.0.availability.returned())
    }

    /// Whether the provider of a pool is known to be unavailable.
    pub fn is_unavailable(&self, pool: &str) -> bool {
        self.0.availability.pools().get(pool).is_some_and(|health| health.is_unavailable)
    }

    /// Since when the provider of a pool answers again, if it was unavailable before.
    pub fn available_since(&self, pool: &str) -> Option<Timestamp> {
        self.0.availability.pools().get(pool).and_then(|health| health.available_since)
    }

    /// Whether the provider of each pool answers, as of a few seconds ago.
    pub fn health(&self) -> BTreeMap<String, Result<(), String>> {
        self.0.availability.pools().iter().map(|(pool, health)| (pool.clone(), health.answer.clone())).collect()
    }

    /// The pools whose provider does not answer as it should, since when, and its last error.
    pub fn failing_providers(&self) -> Vec<(String, Timestamp, String)> {
        let pools = self.0.availability.pools();
        let failing = pools
            .iter()
            .filter_map(|(pool, health)| Some((pool.clone(), health.failing_since?, health.answer.clone().err()?)));
        failing.collect()
    }

    /// Whether a call failed because the provider is unavailable, and not because of the slot. After a timeout or a
    /// server error of the provider the cause is unclear, so this function pings the provider.
    pub(super) async fn failed_by_outage(&self, pool: &str, provider: &dyn Provider, error: &ProviderError) -> bool {
        if error.is_unavailable {
            self.note_unavailable(pool, error);
            return true;
        }
        error.retryable && !self.answers(pool, provider).await
    }

    /// Pings the provider of a pool now. An error that a retry cannot change also counts as an answer.
    pub(super) async fn answers(&self, pool: &str, provider: &dyn Provider) -> bool {
        match verify::within(self.0.timeouts.inspect, "the ping", provider.ping()).await {
            Err(error) if error.retryable => {
                self.note_unavailable(pool, &error);
                false
            }
            _ => true,
        }
    }

    /// Pings the provider of a pool and records the result.
    pub(crate) async fn ping(&self, pool: &str) {
        let Some(provider) = self.provider(pool) else { return };
        let answer = verify::within(self.0.timeouts.inspect, "the ping", provider.ping()).await;
        self.0.availability.note(pool, &answer, self.0.clock.now());
    }

    /// Records that a call could not reach the provider of a pool.
    pub(crate) fn note_unavailable(&self, pool: &str, error: &ProviderError) {
        if !self.is_unavailable(pool) {
            tracing::warn!(pool, error = error.message, "provider unavailable");
        }
        self.0.availability.note(pool, &Err(error.clone()), self.0.clock.now());
        self.0.availability.found_unavailable.notify_waiters();
    }
}
