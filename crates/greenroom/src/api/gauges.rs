//! The gauges that a scrape of `GET /metrics` reads: slots, bots, queue, gates, providers, connections and disk. A
//! scrape must stay cheap in a large installation. So the counts of slots and of the queue are kept in memory
//! (`placement::view`), and everything is read at most every few seconds, however many ask.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::{ShownStatus, SlotStatus};
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::App;
use crate::placement::view::PoolView;
use crate::store::StoreError;

/// For all reads of one scrape together. Prometheus gives up after 10 s.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long the gauges are not read again.
const REST: Duration = Duration::from_secs(5);
/// After a slow read, the pause is this many times as long as the read.
const REST_FACTOR: u32 = 20;
const LONGEST_REST: Duration = Duration::from_secs(30);

/// The last read of the gauges. The lock is held during a read, so that one read serves all that ask meanwhile.
#[derive(Debug, Default)]
pub struct Gauges(Arc<Mutex<LastRead>>);

#[derive(Debug, Default)]
struct LastRead {
    /// When the gauges may be read again.
    next: Option<Instant>,
    /// The pools and hosts that have gauges. When one is gone, its gauges must not keep their last value.
    pools: BTreeSet<String>,
    hosts: BTreeSet<String>,
}

/// A pool, as placement knows it.
struct PoolGauges {
    name: String,
    host: String,
    provider: String,
    is_configured: bool,
    max_slots: i64,
    slots: Vec<(SlotStatus, i64)>,
    queued: i64,
    /// Since when the first of them waits.
    queued_since: Option<Timestamp>,
}

impl Gauges {
    /// Reads everything, unless that was done a moment ago.
    pub async fn refresh(&self, app: &App) {
        set_local(app);
        let Ok(mut last) = self.0.clone().try_lock_owned() else {
            drop(self.0.lock().await);
            return;
        };
        if last.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let app = app.clone();
        // A task of its own goes on when the client disconnects. Otherwise such clients would skip the pause.
        let read = tokio::spawn(async move {
            let begun = Instant::now();
            let deadline = begun + TIMEOUT;
            tokio::join!(set_bots(&app, deadline), set_fleet(&app, deadline, &mut last), set_budgets(&app, deadline));
            last.next = Some(Instant::now() + (begun.elapsed() * REST_FACTOR).clamp(REST, LONGEST_REST));
        });
        drop(read.await);
    }
}

/// With the database away, the rest is wanted all the more. `None` means that the value is not known.
async fn known<T>(deadline: Instant, read: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
    tokio::time::timeout_at(deadline, read).await.ok().and_then(Result::ok)
}

#[allow(clippy::cast_precision_loss)]
fn number(count: Option<i64>) -> f64 {
    count.map_or(f64::NAN, |count| count as f64)
}

/// What this process knows without the database.
#[allow(clippy::cast_precision_loss)]
fn set_local(app: &App) {
    // A stream that nobody has opened yet has no readers.
    for stream in ["events", "live"] {
        metrics::gauge!("greenroom_stream_readers", "stream" => stream).increment(0.0);
    }
    for connections in app.store.connections() {
        let lane = connections.lane;
        metrics::gauge!("greenroom_database_connections_used", "lane" => lane).set(connections.used);
        metrics::gauge!("greenroom_database_connections_max", "lane" => lane).set(connections.max);
    }
    if let Some(disk) = app.store.disk_space() {
        metrics::gauge!("greenroom_database_disk_free_bytes").set(disk.free as f64);
        metrics::gauge!("greenroom_database_disk_size_bytes").set(disk.size as f64);
    }
}

async fn set_bots(app: &App, deadline: Instant) {
    let counted = known(deadline, app.store.open_bots_by_status()).await;
    for status in ShownStatus::ALL.into_iter().filter(|status| !status.is_ended()) {
        let find = |counted: &Vec<(ShownStatus, i64)>| {
            counted.iter().find(|(found, _)| *found == status).map_or(0, |(_, count)| *count)
        };
        metrics::gauge!("greenroom_bots", "status" => status.as_str()).set(number(counted.as_ref().map(find)));
    }
}

/// Pools, their slots, the queue, the gates and the providers.
async fn set_fleet(app: &App, deadline: Instant, last: &mut LastRead) {
    let read = app.placement.read_view(&app.store, |view| {
        let of = |view: &PoolView| PoolGauges {
            name: view.pool.name.clone(),
            host: view.pool.host.clone(),
            provider: view.pool.provider.clone(),
            is_configured: view.pool.is_configured(),
            max_slots: view.pool.max_slots,
            slots: view.slots.into(),
            queued: i64::try_from(view.waiting.len()).unwrap_or(i64::MAX),
            queued_since: view.waiting.first().map(|(since, _)| *since),
        };
        view.pools().map(of).collect::<Vec<_>>()
    });
    let Some(pools) = known(deadline, read).await else { return set_unknown(app) };
    let health = app.deployment.health();
    let stopped = known(deadline, app.store.stopped_budgets()).await;
    let now = app.clock.now();
    for pool in &pools {
        let name = || pool.name.clone();
        for (status, count) in &pool.slots {
            metrics::gauge!("greenroom_slots", "pool" => name(), "status" => status.as_str()).set(number(Some(*count)));
        }
        metrics::gauge!("greenroom_pool_max_slots", "pool" => name()).set(number(Some(pool.max_slots)));
        metrics::gauge!("greenroom_queue_bots", "pool" => name()).set(number(Some(pool.queued)));
        let age = pool.queued_since.map_or(0.0, |since| seconds_since(since, now));
        metrics::gauge!("greenroom_queue_oldest_age_seconds", "pool" => name()).set(age);
        if let Some(answer) = health.get(&pool.name) {
            let up = if answer.is_ok() { 1.0 } else { 0.0 };
            metrics::gauge!("greenroom_provider_up", "pool" => name(), "provider" => pool.provider.clone()).set(up);
        }
        // A provider's request budget has the name of its host.
        let closed = stopped.as_ref().map(|stopped| stopped.iter().any(|(budget, _)| *budget == pool.host));
        metrics::gauge!("greenroom_provider_closed", "pool" => name(), "provider" => pool.provider.clone())
            .set(number(closed.map(i64::from)));
    }
    let names: BTreeSet<String> = pools.iter().map(|pool| pool.name.clone()).collect();
    for gone in last.pools.difference(&names) {
        set_removed(gone);
    }
    last.pools = names;
    set_gates(app, deadline, &pools, last).await;
}

fn seconds_since(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

/// The database does not answer: the numbers of the last read must not look current.
fn set_unknown(app: &App) {
    for pool in app.deployment.providers().keys() {
        for status in SlotStatus::ALL {
            metrics::gauge!("greenroom_slots", "pool" => pool.clone(), "status" => status.as_str()).set(f64::NAN);
        }
        metrics::gauge!("greenroom_queue_bots", "pool" => pool.clone()).set(f64::NAN);
        metrics::gauge!("greenroom_queue_oldest_age_seconds", "pool" => pool.clone()).set(f64::NAN);
    }
}

/// A pool that was removed has nothing. An alert on its last values would never end.
fn set_removed(pool: &str) {
    for status in SlotStatus::ALL {
        metrics::gauge!("greenroom_slots", "pool" => pool.to_owned(), "status" => status.as_str()).set(0.0);
    }
    for gauge in ["greenroom_pool_max_slots", "greenroom_queue_bots", "greenroom_queue_oldest_age_seconds"] {
        metrics::gauge!(gauge, "pool" => pool.to_owned()).set(0.0);
    }
}

async fn set_gates(app: &App, deadline: Instant, pools: &[PoolGauges], last: &mut LastRead) {
    let counted = known(deadline, app.store.deployments_by_host()).await;
    let hosts = pools.iter().filter(|pool| pool.is_configured).map(|pool| (pool.host.clone(), (0, 0)));
    let mut gates: BTreeMap<String, (i64, i64)> = hosts.collect();
    let is_known = counted.is_some();
    gates.extend(counted.into_iter().flatten().map(|(host, active, waiting)| (host, (active, waiting))));
    let hosts: BTreeSet<String> = gates.keys().cloned().collect();
    // A host that is gone has no bots at its gate.
    gates.extend(last.hosts.difference(&hosts).map(|host| (host.clone(), (0, 0))));
    last.hosts.extend(hosts);
    for (host, (active, waiting)) in gates {
        let count = |count: i64| number(is_known.then_some(count));
        metrics::gauge!("greenroom_gate_places_used", "host" => host.clone()).set(count(active));
        metrics::gauge!("greenroom_gate_waiting", "host" => host.clone()).set(count(waiting));
        metrics::gauge!("greenroom_gate_places_max", "host" => host).set(number(Some(app.deployment.max_concurrent())));
    }
}

/// Pools of one provider share its budgets, which are read once.
async fn set_budgets(app: &App, deadline: Instant) {
    let mut seen = BTreeMap::new();
    for budget in app.deployment.providers().values().flat_map(|provider| provider.budgets()) {
        if let std::collections::btree_map::Entry::Vacant(new) = seen.entry(budget.name().to_owned()) {
            new.insert(budget);
        }
    }
    for (name, budget) in seen {
        let left = known(deadline, budget.remaining()).await;
        metrics::gauge!("greenroom_provider_budget_remaining_requests", "budget" => name.clone()).set(number(left));
        metrics::gauge!("greenroom_provider_budget_max_requests", "budget" => name).set(budget.most());
    }
}
