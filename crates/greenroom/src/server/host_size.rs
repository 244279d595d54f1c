//! This module finds the size of the hosts that run `docker` slots. A slot without `cpus` or `memory` may use its whole
//! host, so the host's size decides which requirements the slot meets. If an engine is unavailable at the start, the
//! server asks it again later. Until then, the size from an earlier start holds.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::requirements::MOST;
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::pools;
use crate::clock::Clock;
use crate::config::pool::{PoolConfig, Standby};
use crate::config::provider::{DockerConfig, ProviderConfig};
use crate::providers::docker::engine::{Engine, HostSize, host_of};
use crate::store::{Changed, Store, StoreError};

/// The longest time that the server's start waits for an engine.
const AT_START: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(30);
const MIB: u64 = 1024 * 1024;

/// Returns the engine of a pool whose slots have no limit of their own.
fn unlimited(pool: &PoolConfig) -> Option<&DockerConfig> {
    let ProviderConfig::Docker(config) = &pool.provider else { return None };
    let lacks_cpu = config.cpus.is_none() && pool.attributes.cpu == 0;
    let lacks_memory = config.memory.is_none() && pool.attributes.mem == 0;
    (lacks_cpu || lacks_memory).then_some(config)
}

fn fill(pool: &PoolConfig, size: HostSize) -> PoolConfig {
    let mut pool = pool.clone();
    let Some(config) = unlimited(&pool).cloned() else { return pool };
    if config.cpus.is_none() && pool.attributes.cpu == 0 {
        pool.attributes.cpu = size.cpus.min(MOST);
    }
    if config.memory.is_none() && pool.attributes.mem == 0 {
        pool.attributes.mem = u32::try_from(size.memory / MIB).unwrap_or(MOST).min(MOST);
    }
    pool
}

/// Returns the sizes of the engines that answer within `time`, by address.
async fn sizes(pools: &[PoolConfig], time: Duration) -> BTreeMap<String, HostSize> {
    let mut hosts: Vec<String> =
        pools.iter().filter_map(unlimited).map(|config| host_of(config.host.as_deref())).collect();
    hosts.sort();
    hosts.dedup();
    let asked = hosts.into_iter().map(|host| async move {
        let engine = Engine::new(Some(&host));
        match tokio::time::timeout(time, engine.size()).await {
            Ok(Ok(size)) => Some((host, size)),
            Ok(Err(error)) => {
                tracing::debug!(host, error = error.message, "host size not read");
                None
            }
            Err(_) => None,
        }
    });
    join_all(asked).await.into_iter().flatten().collect()
}

fn size_of(pool: &PoolConfig, sizes: &BTreeMap<String, HostSize>) -> Option<HostSize> {
    sizes.get(&host_of(unlimited(pool)?.host.as_deref())).copied()
}

/// Returns the pools with the sizes of their hosts, and the pools whose hosts did not answer.
pub async fn fill_in(store: &Store, pools: &[PoolConfig]) -> Result<(Vec<PoolConfig>, Vec<PoolConfig>), StoreError> {
    if !pools.iter().any(|pool| unlimited(pool).is_some()) {
        return Ok((pools.to_vec(), Vec::new()));
    }
    let (sizes, before) = (sizes(pools, AT_START).await, store.pools().await?);
    let (mut filled, mut unknown) = (Vec::new(), Vec::new());
    for pool in pools {
        if unlimited(pool).is_none() {
            filled.push(pool.clone());
            continue;
        }
        if let Some(size) = size_of(pool, &sizes) {
            filled.push(fill(pool, size));
            continue;
        }
        let known = before.iter().find(|row| row.name == pool.name).map(|row| row.attributes_of_new());
        let known = known.map(|known| HostSize { cpus: known.cpu, memory: u64::from(known.mem) * MIB });
        filled.push(known.map_or_else(|| pool.clone(), |known| fill(pool, known)));
        tracing::warn!(pool = pool.name, "host size not read; retried in the background");
        unknown.push(pool.clone());
    }
    Ok((filled, unknown))
}

/// Asks the engines that were unavailable at the start until each has answered.
pub async fn ask_unavailable_hosts(
    store: Store,
    clock: Clock,
    mut unknown: Vec<PoolConfig>,
    ending: CancellationToken,
) {
    while !unknown.is_empty() {
        let sizes = tokio::select! {
            sizes = sizes(&unknown, LONGEST) => sizes,
            () = ending.cancelled() => return,
        };
        let mut left = Vec::new();
        for pool in unknown {
            let Some(size) = size_of(&pool, &sizes) else {
                left.push(pool);
                continue;
            };
            if let Err(error) = change(&store, &clock, &pool, size).await {
                tracing::warn!(pool = pool.name, %error, "host size not written");
                left.push(pool);
            }
        }
        unknown = left;
        if unknown.is_empty() {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = ending.cancelled() => return,
        }
    }
    // A background task that ended now would stop the server.
    ending.cancelled().await;
}

async fn change(store: &Store, clock: &Clock, pool: &PoolConfig, size: HostSize) -> Result<(), StoreError> {
    let filled = fill(pool, size);
    let mut tx = store.begin_changing(&Changed::everything(), clock.now()).await?;
    if pool.standby == Standby::Running {
        tx.replace_attributes(&pool.name, &pool.attributes, &filled.attributes).await?;
    }
    let sets = pools::attribute_sets(&mut tx, &filled).await?;
    tx.change_attribute_sets(&pool.name, &sets).await?;
    tx.commit().await?;
    tracing::info!(pool = pool.name, cpu = filled.attributes.cpu, mem = filled.attributes.mem, "host size read");
    Ok(())
}
