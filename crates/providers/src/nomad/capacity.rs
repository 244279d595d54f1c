//! The nodes of a cluster: finds the nodes that can run slots, and how many slots fit on them.

use std::collections::BTreeMap;

use domain::requirements::matches_wildcard;
use serde::Deserialize;

use crate::check::Check;
use config::provider::NomadConfig;

/// Nomad places a job that names no node pool in this one.
const DEFAULT_POOL: &str = "default";
const MIB: u64 = 1024 * 1024;

/// A node in Nomad's list, with its resources.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Node {
    datacenter: String,
    status: String,
    scheduling_eligibility: String,
    version: Option<String>,
    node_pool: Option<String>,
    #[serde(default)]
    drain: bool,
    drivers: Option<BTreeMap<String, Driver>>,
    node_resources: Option<Resources>,
    reserved_resources: Option<Resources>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Driver {
    healthy: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Resources {
    cpu: Option<Cpu>,
    memory: Option<Memory>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Cpu {
    cpu_shares: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Memory {
    #[serde(rename = "MemoryMB")]
    megabytes: u64,
}

impl Resources {
    /// Processor in MHz and memory in MiB.
    fn both(&self) -> (u64, u64) {
        let cpu = self.cpu.as_ref().map_or(0, |cpu| cpu.cpu_shares);
        (cpu, self.memory.as_ref().map_or(0, |memory| memory.megabytes))
    }
}

impl Node {
    /// Whether allocations may be placed on the node.
    fn is_ready(&self, datacenters: &[String]) -> bool {
        self.status == "ready"
            && self.scheduling_eligibility == "eligible"
            && !self.drain
            && self.node_pool.as_deref().unwrap_or(DEFAULT_POOL) == DEFAULT_POOL
            && datacenters.iter().any(|pattern| matches_wildcard(&self.datacenter, pattern))
    }

    fn has_docker(&self) -> bool {
        self.drivers.as_ref().and_then(|drivers| drivers.get("docker")).is_some_and(|driver| driver.healthy)
    }

    /// The processor in MHz and the memory in MiB that the node has for allocations.
    fn available(&self) -> (u64, u64) {
        let (cpu, memory) = self.node_resources.as_ref().map_or((0, 0), Resources::both);
        let (reserved_cpu, reserved_memory) = self.reserved_resources.as_ref().map_or((0, 0), Resources::both);
        (cpu.saturating_sub(reserved_cpu), memory.saturating_sub(reserved_memory))
    }

    /// How many slots fit on the node if nothing else runs there.
    fn fits(&self, config: &NomadConfig) -> u64 {
        let (cpu, memory) = self.available();
        (cpu / u64::from(config.cpu.max(1))).min(memory / u64::from(config.memory.max(1)))
    }
}

/// The memory in bytes of the nodes that can run slots.
pub fn memory(nodes: &[Node], datacenters: &[String]) -> u64 {
    let able = nodes.iter().filter(|node| node.is_ready(datacenters) && node.has_docker());
    able.map(|node| node.available().1.saturating_mul(MIB)).fold(0, u64::saturating_add)
}

/// Checks whether there are nodes that can run slots, and whether they have enough room.
pub fn check(nodes: &[Node], config: &NomadConfig, slots: u32) -> Vec<Check> {
    let datacenters = config.datacenters.join(", ");
    let ready: Vec<&Node> = nodes.iter().filter(|node| node.is_ready(&config.datacenters)).collect();
    let able: Vec<&Node> = ready.iter().copied().filter(|node| node.has_docker()).collect();
    let [all, count, with_docker] = [nodes.len(), ready.len(), able.len()];
    let found = match (count, with_docker) {
        (0, _) => Check::bad("nodes", format!("none of {all} nodes is ready in the datacenters {datacenters}")),
        (_, 0) => Check::bad("nodes", format!("{count} nodes are ready, but none has a healthy docker driver")),
        _ => {
            let versions: BTreeMap<&str, usize> = able.iter().fold(BTreeMap::new(), |mut versions, node| {
                *versions.entry(node.version.as_deref().unwrap_or("of unknown version")).or_default() += 1;
                versions
            });
            let versions: Vec<String> =
                versions.into_iter().map(|(version, count)| format!("{count} × {version}")).collect();
            Check::good("nodes", format!("{with_docker} ready nodes with docker ({})", versions.join(", ")))
        }
    };
    if with_docker == 0 {
        return vec![found];
    }
    let fits: u64 = able.iter().map(|node| node.fits(config)).sum();
    let each = format!("{} MHz and {} MiB", config.cpu, config.memory);
    let room = if fits == 0 {
        Check::bad("room", format!("no node has {each}, which a slot needs"))
    } else if fits < u64::from(slots) {
        let text = format!("there is room for {fits} slots of {each}; the pool may have {slots}");
        Check::doubtful("room", text)
    } else {
        let text = format!("there is room for {fits} slots of {each} if nothing else runs; the pool may have {slots}");
        Check::good("room", text)
    };
    vec![found, room]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn is_ready_in(datacenter: &str, pattern: &str) -> bool {
        let node =
            serde_json::json!({"Datacenter": datacenter, "Status": "ready", "SchedulingEligibility": "eligible"});
        serde_json::from_value::<Node>(node).unwrap().is_ready(&[pattern.to_owned()])
    }

    #[test]
    fn only_the_memory_of_nodes_that_can_run_slots_counts() {
        let node = |status: &str, docker: bool| {
            serde_json::json!({
                "Datacenter": "dc1", "Status": status, "SchedulingEligibility": "eligible",
                "Drivers": {"docker": {"Healthy": docker}},
                "NodeResources": {"Memory": {"MemoryMB": 4096}}, "ReservedResources": {"Memory": {"MemoryMB": 96}},
            })
        };
        let nodes = [node("ready", true), node("ready", true), node("down", true), node("ready", false)];
        let nodes: Vec<Node> = nodes.map(|node| serde_json::from_value(node).unwrap()).into();
        assert_eq!(memory(&nodes, &["dc1".to_owned()]), 2 * 4000 * MIB);
    }

    #[test]
    fn a_star_stands_for_any_part_of_a_datacenters_name() {
        for (pattern, name) in [("*", "dc1"), ("dc1", "dc1"), ("eu-*", "eu-west"), ("*-west*", "eu-west-1"), ("*", "")]
        {
            assert!(is_ready_in(name, pattern), "{pattern} {name}");
        }
        for (pattern, name) in [("dc1", "dc10"), ("eu-*", "us-west"), ("*-1", "eu-2"), ("", "dc1"), ("DC*", "dc1")] {
            assert!(!is_ready_in(name, pattern), "{pattern} {name}");
        }
    }

    /// A search that tries every part for every star would not end: there are more than 10^80 combinations. The tests
    /// in `domain` count the steps of the search.
    #[test]
    fn a_hostile_pattern_of_datacenters_is_answered() {
        assert!(!is_ready_in(&"a".repeat(400), &("*a".repeat(60) + "b")));
    }
}
