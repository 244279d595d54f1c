//! This module examines whether the hosts have enough memory for the hot slots of the pools. The agents in the slots
//! measure how much a slot uses.

use super::TIMEOUT;
use crate::config::pool::PoolConfig;
use crate::config::provider::ProviderConfig;
use crate::providers::check::Check;
use crate::providers::{HostMemory, Provider};
use crate::server::pools;
use crate::store::{PoolRow, Store, StoreError};

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// A hot pool of which the memory of a slot is known.
#[derive(Clone, Debug)]
pub struct MeasuredPool {
    name: String,
    host: String,
    /// How many slots are to be hot: `min_idle`, or as many as there are now.
    slots: u64,
    /// The memory of the largest slot, in bytes.
    largest: u64,
    /// The memory of all slots that are hot now.
    used: u64,
    /// What the provider sets aside for each slot, whatever the slot uses.
    reserved: u64,
}

impl MeasuredPool {
    fn new(config: &PoolConfig, row: &PoolRow, hot_now: usize, [used, largest]: [i64; 2]) -> Self {
        let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        let reserved = match &config.provider {
            ProviderConfig::Nomad(config) => u64::from(config.memory) * MIB,
            _ => 0,
        };
        let slots = bytes(row.min_idle).max(hot_now as u64);
        let (name, host) = (row.name.clone(), row.host.clone());
        Self { name, host, slots, largest: bytes(largest), used: bytes(used), reserved }
    }

    fn of_each(&self) -> u64 {
        self.largest.max(self.reserved)
    }

    fn needed(&self) -> u64 {
        self.of_each().saturating_mul(self.slots)
    }
}

/// Returns the hot pools of the configuration whose slots have been measured.
pub async fn measured(store: &Store, configured: &[PoolConfig]) -> Result<Vec<MeasuredPool>, StoreError> {
    let (memory, mut measured) = (store.memory_of_pools().await?, Vec::new());
    for row in store.pools().await? {
        let config = configured.iter().find(|pool| pool.name == row.name);
        let (Some(config), Some(memory)) = (config, memory.get(&row.name)) else { continue };
        let hot_now = store.slots_of_pool(&row.name).await?.iter().filter(|slot| row.has_agent(slot)).count();
        measured.push(MeasuredPool::new(config, &row, hot_now, [memory.bytes, memory.largest]));
    }
    Ok(measured)
}

/// Checks the memory of one pool's host and the memory limit of its slots.
pub async fn check(config: &PoolConfig, provider: &dyn Provider, measured: &[MeasuredPool]) -> Vec<Check> {
    let Some(pool) = measured.iter().find(|pool| pool.name == config.name) else { return Vec::new() };
    let mut checks: Vec<Check> =
        limit_of(&config.provider).and_then(|limit| check_limit(pool, limit)).into_iter().collect();
    let is_process = matches!(config.provider, ProviderConfig::Process(_));
    if is_process && pool.host != pools::host(&config.provider) {
        // The slots run on another machine.
        return checks;
    }
    // Another check already reports a provider that does not answer.
    if let Ok(Ok(Some(memory))) = tokio::time::timeout(TIMEOUT, provider.host_memory()).await {
        let sharing: Vec<&MeasuredPool> = measured.iter().filter(|other| other.host == pool.host).collect();
        checks.push(check_host(pool, &sharing, memory));
    }
    checks
}

/// The memory that one slot may use, in bytes.
fn limit_of(provider: &ProviderConfig) -> Option<u64> {
    match provider {
        ProviderConfig::Docker(config) | ProviderConfig::Swarm(config) => config.memory,
        ProviderConfig::Nomad(config) => Some(u64::from(config.memory) * MIB),
        ProviderConfig::Coolify(config) => config.memory,
        ProviderConfig::Process(_) | ProviderConfig::Ec2(_) => None,
    }
}

fn check_limit(pool: &MeasuredPool, limit: u64) -> Option<Check> {
    let text = format!(
        "a slot that waits uses {} of its `memory`, {}: raise `memory`, or its bot may be killed for lack of it",
        shown(pool.largest),
        shown(limit)
    );
    (pool.largest > limit / 10 * 9).then(|| Check::doubtful("limit", text))
}

/// Compares what the hot slots need with what the host has. `sharing` are the pools of the host, this one included.
fn check_host(pool: &MeasuredPool, sharing: &[&MeasuredPool], memory: HostMemory) -> Check {
    let sum = |of: fn(&MeasuredPool) -> u64| sharing.iter().map(|pool| of(pool)).fold(0, u64::saturating_add);
    let (needed, used) = (sum(MeasuredPool::needed), sum(|pool| pool.used));
    let room = match memory {
        HostMemory::Free(free) => free.saturating_add(used),
        HostMemory::Total(total) => total,
    };
    let slots = if pool.slots == 1 { "slot needs" } else { "slots need" };
    let mut text = format!("{} hot {slots} {}, {} each", pool.slots, shown(pool.needed()), shown(pool.of_each()));
    let others: Vec<&str> =
        sharing.iter().filter(|other| other.name != pool.name).map(|other| other.name.as_str()).collect();
    if !others.is_empty() {
        text = format!("{text}, and {} with those of {}", shown(needed), others.join(", "));
    }
    if needed <= room {
        return Check::good("memory", format!("{text}; the host has {} for them", shown(room)));
    }
    let of_others = needed.saturating_sub(pool.needed());
    let fits = room.saturating_sub(of_others).checked_div(pool.of_each()).unwrap_or(0);
    Check::doubtful(
        "memory",
        format!(
            "{text}, and the host has {} for them: lower `min_idle` to at most {fits}, or use a larger host",
            shown(room)
        ),
    )
}

fn shown(bytes: u64) -> String {
    match bytes {
        GIB.. => format!("{:.1} GiB", bytes as f64 / GIB as f64),
        _ => format!("{:.1} MiB", bytes as f64 / MIB as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::check::Verdict;

    fn pool(name: &str, slots: u64) -> MeasuredPool {
        let (name, host) = (name.to_owned(), "docker unix:///a".to_owned());
        MeasuredPool { name, host, slots, largest: 500 * MIB, used: 2 * GIB, reserved: 0 }
    }

    #[test]
    fn a_host_without_room_for_the_hot_slots_is_told_with_what_to_do() {
        let (meet, zoom) = (pool("meet", 8), pool("zoom", 2));
        let alone = check_host(&meet, &[&meet], HostMemory::Total(4 * GIB));
        let expected = "8 hot slots need 3.9 GiB, 500.0 MiB each; the host has 4.0 GiB for them";
        assert_eq!(alone, Check::good("memory", expected));
        let both = check_host(&meet, &[&meet, &zoom], HostMemory::Total(4 * GIB));
        let expected = "8 hot slots need 3.9 GiB, 500.0 MiB each, and 4.9 GiB with those of zoom, and the host has \
                        4.0 GiB for them: lower `min_idle` to at most 6, or use a larger host";
        assert_eq!(both, Check::doubtful("memory", expected));
    }

    #[test]
    fn what_hot_slots_use_already_counts_as_room_where_only_the_rest_is_known() {
        let meet = pool("meet", 8);
        assert_eq!(check_host(&meet, &[&meet], HostMemory::Free(2 * GIB)).verdict, Verdict::Good);
        assert_eq!(check_host(&meet, &[&meet], HostMemory::Free(GIB)).verdict, Verdict::Doubtful);
    }

    #[test]
    fn memory_that_the_provider_sets_aside_is_needed_whatever_a_slot_uses() {
        let meet = MeasuredPool { reserved: GIB, ..pool("meet", 8) };
        let check = check_host(&meet, &[&meet], HostMemory::Total(6 * GIB));
        assert!(check.found.contains("8 hot slots need 8.0 GiB") && check.found.contains("at most 6"), "{check:?}");
    }

    #[test]
    fn a_slot_near_its_limit_is_told() {
        assert_eq!(check_limit(&pool("meet", 1), 600 * MIB), None);
        let found = check_limit(&pool("meet", 1), 512 * MIB).map(|check| check.found).unwrap_or_default();
        assert!(found.contains("500.0 MiB of its `memory`, 512.0 MiB: raise `memory`"), "{found}");
    }
}
