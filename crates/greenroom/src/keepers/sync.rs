//! Sync compares what each provider has with what the store has, in both directions. It acts when:
//! - a provider has a resource of this installation, running or not, whose name has belonged to no slot for longer than
//!   `sync.grace`: the resource is removed;
//! - a slot has been idle for 10 seconds, and its provider no longer has its resource or, in a hot pool, the resource
//!   does not run: the slot is created again under the same name. Where the provider creates no resource before a bot
//!   needs it, nothing is missing;
//! - in a hot pool, the provider reports an idle slot as unhealthy: the slot is created again, and this counts as an
//!   attempt to recover it. At the last attempt the slot goes to error instead;
//! - a slot of a stopped pool has been idle for 10 seconds, and a process runs in it: the process is stopped;
//! - a provider shows another description than the slot has had for 10 seconds: the slot is described again. The
//!   earlier update may have been lost, or may have arrived after a later one of another replica;
//! - a slot has had a bot for 10 seconds, and nothing runs in it: the bot ends `interrupted` ([`super::interrupted`]).
//!
//! In all other cases, only the bot itself reports whether it is alive. A listing that fails changes nothing. If more
//! than a tenth of a pool is wrong, sync acts only on what the next run finds too.
//!
//! When a provider answers again after an outage, sync runs at once. It then inspects each slot that no longer runs
//! according to the listing. If the inspection agrees, the slot is created again without waiting for the next run. This
//! includes slots whose agent had not begun to wait, and slots whose bot had not called yet.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Deadlines, SlotName, SlotStatus, Status};
use futures_util::StreamExt;
use jiff::Timestamp;

use super::interrupted::end_interrupted;
use super::{Keeper, KeeperError, RunReport, ago, count};
use crate::clock::Clock;
use crate::context::Context;
use crate::deployment::{Deployment, Recovery};
use crate::placement::{Placement, SlotEvent};
use crate::providers::{Found, Provider};
use crate::store::{SlotRow, Store, StoreError};

/// A listing may be this much older than the last change.
const SETTLED: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 4;

#[derive(Debug)]
pub struct SyncKeeper {
    store: Store,
    clock: Clock,
    placement: Placement,
    deployment: Deployment,
    every: Duration,
    grace: Duration,
    seen: Mutex<Seen>,
}

/// What earlier runs found, by pool. It is only in memory, so a new leader checks once more before it acts.
#[derive(Debug, Default)]
struct Seen {
    /// Since when an unknown resource has been there.
    unknown: HashMap<String, HashMap<SlotName, Timestamp>>,
    /// Slots that were wrong in too large a number to act on at once, and since when.
    announced: HashMap<String, HashMap<SlotName, Timestamp>>,
}

/// The differences of a pool.
#[derive(Debug, Default)]
struct Wrong {
    unknown: Vec<SlotName>,
    lost: Vec<SlotRow>,
    unknown_processes: Vec<SlotRow>,
    /// Unhealthy slots, and the state that the provider reports.
    unhealthy: Vec<(SlotRow, String)>,
    /// Slots that an outage stopped, confirmed by an inspection.
    taken: Vec<SlotRow>,
}

impl Wrong {
    fn names(&self) -> BTreeSet<SlotName> {
        let unhealthy = self.unhealthy.iter().map(|(slot, _)| slot);
        let known = self.lost.iter().chain(&self.unknown_processes).chain(unhealthy).map(|slot| slot.name.clone());
        known.chain(self.unknown.iter().cloned()).collect()
    }

    fn only(&mut self, names: &BTreeSet<SlotName>) {
        self.unknown.retain(|name| names.contains(name));
        self.lost.retain(|slot| names.contains(&slot.name));
        self.unknown_processes.retain(|slot| names.contains(&slot.name));
        self.unhealthy.retain(|(slot, _)| names.contains(&slot.name));
    }
}

/// The provider's resources of a pool, and when the listing began.
#[derive(Debug)]
struct Listing {
    begun: Timestamp,
    found: Vec<Found>,
}

impl SyncKeeper {
    pub fn new(context: &Context, placement: Placement, deployment: Deployment, deadlines: &Deadlines) -> Self {
        let (store, clock) = (context.store.clone(), context.clock.clone());
        let (every, grace) = (deadlines.sync_interval, deadlines.sync_grace);
        Self { store, clock, placement, deployment, every, grace, seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn list(&self, pool: &str, provider: &dyn Provider) -> Result<Listing, String> {
        let begun = self.clock.now();
        match tokio::time::timeout(self.deployment.timeouts().inspect, provider.list()).await {
            Ok(Ok(found)) => Ok(Listing { begun, found }),
            Ok(Err(error)) => {
                if error.is_unavailable {
                    self.deployment.note_unavailable(pool, &error);
                }
                Err(error.message)
            }
            Err(_) => Err("the provider does not answer".to_owned()),
        }
    }

    /// Returns resources whose name has belonged to no slot for longer than the grace.
    async fn unknown(
        &self,
        pool: &str,
        listing: &Listing,
        known: &HashSet<&SlotName>,
    ) -> Result<Vec<SlotName>, StoreError> {
        let names = listing.found.iter().map(|found| &found.slot).filter(|name| !known.contains(name));
        let mut unknown: HashSet<SlotName> = names.cloned().collect();
        if !unknown.is_empty() {
            // They may be slots of a pool that is no longer configured.
            let names: Vec<SlotName> = unknown.iter().cloned().collect();
            for slot in self.store.slots_by_name(&names).await? {
                unknown.remove(&slot.name);
            }
        }
        let mut seen = self.seen();
        let before = seen.unknown.remove(pool).unwrap_or_default();
        let since = |name: &SlotName| before.get(name).copied().unwrap_or(listing.begun);
        let now: HashMap<SlotName, Timestamp> = unknown.into_iter().map(|name| (name.clone(), since(&name))).collect();
        let grace = ago(listing.begun, self.grace);
        let long = now.iter().filter(|(_, since)| **since <= grace).map(|(name, _)| name.clone()).collect();
        seen.unknown.insert(pool.to_owned(), now);
        Ok(long)
    }

    /// Keeps in `wrong` only what may be acted on now, and returns how many have to wait.
    fn allow(&self, pool: &str, wrong: &mut Wrong, size: usize, now: Timestamp) -> u64 {
        let found = wrong.names();
        let mut seen = self.seen();
        let announced = seen.announced.remove(pool).unwrap_or_default();
        if found.len() <= size / 10 {
            return 0;
        }
        // Two runs close together count as one: a short fault of the provider would mislead both.
        let agreed_since = ago(now, self.grace.min(self.every / 2));
        let agrees = |name: &&SlotName| announced.get(*name).is_some_and(|since| *since <= agreed_since);
        let agreed: BTreeSet<SlotName> = found.iter().filter(agrees).cloned().collect();
        let waiting: HashMap<SlotName, Timestamp> =
            found.difference(&agreed).map(|name| (name.clone(), announced.get(name).copied().unwrap_or(now))).collect();
        wrong.only(&agreed);
        if waiting.keys().any(|name| !announced.contains_key(name)) {
            let slots: Vec<&str> = waiting.keys().take(10).map(SlotName::as_str).collect();
            tracing::warn!(
                pool,
                ?slots,
                count = waiting.len(),
                size,
                "slot differences postponed; more than a tenth of the pool differs from its provider"
            );
        }
        let held_back = count(waiting.len());
        seen.announced.insert(pool.to_owned(), waiting);
        held_back
    }

    async fn sync(
        &self,
        pool: &str,
        hot: bool,
        provider: &dyn Provider,
        listing: Listing,
        available_since: Option<Timestamp>,
        report: &mut RunReport,
    ) -> Result<(), StoreError> {
        // Rows are read after the listing: a slot that was idle before the listing, and still is, has not changed in
        // between.
        let rows = self.store.slots_of_pool(pool).await?;
        let known: HashSet<&SlotName> = rows.iter().map(|row| &row.name).collect();
        let unknown = self.unknown(pool, &listing, &known).await?;
        let has: HashMap<&SlotName, &Found> = listing.found.iter().map(|found| (&found.slot, found)).collect();
        let mut wrong = Wrong { unknown, ..Wrong::default() };
        let settled = ago(listing.begun, SETTLED);
        let is_free =
            |row: &&SlotRow| row.status == SlotStatus::Idle && row.bot_id.is_none() && row.status_since <= settled;
        for row in rows.iter().filter(is_free) {
            // A slot that is stopped because it is not needed is created again when it is started.
            let hot = hot && !row.stopped;
            match has.get(&row.name) {
                None if row.stopped => {}
                Some(found) if !hot && found.running => wrong.unknown_processes.push(row.clone()),
                Some(found) if hot && found.running && found.unhealthy => {
                    wrong.unhealthy.push((row.clone(), found.state.clone()));
                }
                found if hot && !found.is_some_and(|found| found.running) => wrong.lost.push(row.clone()),
                None if row.provider_ref.is_some() && provider.keeps_idle_resources() => wrong.lost.push(row.clone()),
                _ => {}
            }
        }
        for row in rows.iter().filter(|row| row.status_since <= settled) {
            let shown = has.get(&row.name).and_then(|found| found.description.as_ref());
            if shown.is_some_and(|shown| *shown != row.description) {
                provider.describe(&row.name, &row.description).await;
            }
        }
        report.add("interrupted", end_interrupted(&self.deployment, provider, &rows, &has, settled).await?);
        if let Some(available_since) = available_since {
            let runs = |row: &SlotRow| has.get(&row.name).is_some_and(|found| found.running);
            let gone = rows.iter().filter(|row| row.status_since <= available_since && !runs(row));
            wrong.taken = self.stopped_by_outage(hot, provider, gone).await?;
            let taken: HashSet<&SlotName> = wrong.taken.iter().map(|row| &row.name).collect();
            wrong.lost.retain(|row| !taken.contains(&row.name));
        }
        let size = rows.len().max(listing.found.len());
        report.add("waiting", self.allow(pool, &mut wrong, size, listing.begun));
        self.act(wrong, provider, report).await
    }

    /// Returns the slots that should run, that do not run according to the listing after an outage, and for which an
    /// inspection agrees.
    async fn stopped_by_outage(
        &self,
        hot: bool,
        provider: &dyn Provider,
        slots: impl Iterator<Item = &SlotRow>,
    ) -> Result<Vec<SlotRow>, StoreError> {
        let mut candidates = Vec::new();
        for slot in slots {
            let is_candidate = match (slot.status, slot.bot_id) {
                (SlotStatus::Idle, None) => hot && !slot.stopped,
                (SlotStatus::Creating, None) => hot && !self.store.is_at_gate(&slot.name).await?,
                (SlotStatus::Creating | SlotStatus::Busy, Some(bot)) => {
                    let unheard = self.store.bot(bot).await?.is_some_and(|bot| {
                        bot.status == Status::Reserved && !bot.has_session && bot.slot.as_ref() == Some(&slot.name)
                    });
                    unheard && !self.store.is_at_gate(&slot.name).await?
                }
                _ => false,
            };
            if is_candidate {
                candidates.push(slot.clone());
            }
        }
        let timeout = self.deployment.timeouts().inspect;
        let inspections = candidates.into_iter().map(|slot| async move {
            let found = tokio::time::timeout(timeout, provider.inspect(&slot.name)).await;
            let is_gone = matches!(&found, Ok(Ok(found)) if !found.as_ref().is_some_and(|found| found.running));
            is_gone.then_some(slot)
        });
        Ok(futures_util::stream::iter(inspections)
            .buffer_unordered(AT_ONCE)
            .filter_map(std::future::ready)
            .collect()
            .await)
    }

    async fn act(&self, wrong: Wrong, provider: &dyn Provider, report: &mut RunReport) -> Result<(), StoreError> {
        let removals = wrong.unknown.into_iter().map(|slot| async move {
            let removed = self.deployment.remove_unknown(&slot, provider).await;
            (slot, removed)
        });
        let mut removals = futures_util::stream::iter(removals).buffer_unordered(AT_ONCE);
        while let Some((slot, removed)) = removals.next().await {
            match removed {
                Ok(true) => {
                    tracing::warn!(%slot, "unknown slot removed at the provider");
                    report.add("removed", 1);
                }
                Ok(false) => {}
                Err(message) => {
                    report.complaints.push(format!("the unknown slot {slot} could not be removed: {message}"))
                }
            }
        }
        for slot in wrong.lost {
            let event = SlotEvent::Lost { since: slot.status_since, counts: false };
            if self.placement.report(slot.name.clone(), event).await? {
                tracing::warn!(slot = %slot.name, "slot lost at the provider; started again");
                report.add("made_anew", 1);
            }
        }
        for slot in wrong.taken {
            let event = match slot.bot_id {
                Some(bot) => SlotEvent::Silent { bot, generation: slot.generation },
                None => SlotEvent::Lost { since: slot.status_since, counts: false },
            };
            if self.placement.report(slot.name.clone(), event).await? {
                tracing::warn!(slot = %slot.name, "slot lost in an outage; started again");
                report.add("made_anew", 1);
            }
        }
        for (slot, state) in wrong.unhealthy {
            let message = format!("the provider reports the slot as unhealthy: {state}");
            report.add("made_anew", u64::from(self.deployment.restart_unhealthy(&slot, message).await?));
        }
        let stops = wrong.unknown_processes.into_iter().map(|slot| self.stop_unknown_process(slot));
        let mut stops = futures_util::stream::iter(stops).buffer_unordered(AT_ONCE);
        while let Some(stopped) = stops.next().await {
            report.add("stopped", u64::from(stopped?));
        }
        Ok(())
    }

    /// Stops a process in an idle slot. It first takes the slot out of use, so that no bot gets it in the meantime.
    async fn stop_unknown_process(&self, slot: SlotRow) -> Result<bool, StoreError> {
        let event = SlotEvent::UnknownProcess { since: slot.status_since };
        if !self.placement.report(slot.name.clone(), event).await? {
            return Ok(false);
        }
        tracing::warn!(slot = %slot.name, "idle slot found running; stopping");
        Ok(self.deployment.recover(&slot.name).await? == Some(Recovery::Recovered))
    }
}

#[async_trait]
impl Keeper for SyncKeeper {
    fn name(&self) -> &'static str {
        "sync"
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn woken(&self) {
        self.deployment.until_provider_returns().await;
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        let returned = self.deployment.take_returned();
        let mut report =
            RunReport::of([("removed", 0), ("made_anew", 0), ("stopped", 0), ("interrupted", 0), ("waiting", 0)]);
        let providers = self.deployment.providers();
        let hot: BTreeMap<String, bool> =
            self.store.pools().await?.into_iter().map(|pool| (pool.name, pool.hot)).collect();
        let mut examined = HashSet::new();
        for (pool, provider) in providers.iter() {
            let Some(hot) = hot.get(pool) else { continue };
            match self.list(pool, &**provider).await {
                // Several pools may share a provider: each handles its own slots, and the first handles those of no
                // configured pool.
                Ok(mut listing) => {
                    listing.found.retain(|found| {
                        let of = found.slot.pool().unwrap_or_default();
                        of == pool || (!providers.contains_key(of) && examined.insert(found.slot.clone()))
                    });
                    let available_since = returned.get(pool).copied();
                    self.sync(pool, *hot, &**provider, listing, available_since, &mut report).await?;
                }
                Err(message) => report.complaints.push(format!("the slots of {pool} cannot be listed: {message}")),
            }
        }
        Ok(report)
    }
}
