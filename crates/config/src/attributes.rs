//! The attributes of a pool's slots, which bots can require. They are configured, or follow from the provider's
//! settings.

use domain::requirements::{MOST, is_class_name};
use domain::{Attributes, UsageClass};

use super::layers::Tree;
use super::provider::ProviderConfig;
use super::section::Section;

const MIB: u64 = 1024 * 1024;

/// Reads `attributes` of a pool.
pub fn read(section: &mut Section<'_>, provider: Option<&ProviderConfig>) -> Attributes {
    let given = provider.map(given).unwrap_or_default();
    let path = section.key_path("attributes");
    let tree = match section.take("attributes") {
        None => return given,
        Some(tree @ Tree::Table(_)) => tree,
        Some(_) => {
            section.complain(format!("`{path}` must be a table, such as {{ resource_class = \"large\", cpu = 2 }}"));
            return given;
        }
    };
    if let Some(provider) = provider.filter(|provider| provider.provisioned_per_bot()) {
        let kind = provider.as_str();
        section.complain(format!("`{path}` cannot be set for {kind}; set the attributes of its runners in `classes`"));
    }
    let mut own = section.own("attributes", tree);
    let [resource_class, instance_type] = ["resource_class", "instance_type"].map(|key| name(&mut own, key));
    let usage_class = own.word("usage_class", &UsageClass::ALL.map(|usage| (usage.as_str(), usage)));
    let attributes = Attributes {
        resource_class,
        usage_class: usage_class.unwrap_or_default(),
        instance_type,
        cpu: own.number("cpu", given.cpu, 0..=MOST),
        mem: own.number("mem", given.mem, 0..=MOST),
    };
    own.finish();
    attributes
}

fn name(section: &mut Section<'_>, key: &'static str) -> Option<String> {
    let name = section.text(key)?;
    if is_class_name(&name) {
        return Some(name);
    }
    let path = section.key_path(key);
    section.complain(format!("`{path}` is `{name}`, but must have at most 64 letters, digits, `.`, `_` and `-`"));
    None
}

/// The attributes of a slot that is a process of this machine: those of the whole machine.
pub fn machine() -> Attributes {
    let cpu = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let kib: u64 = total.and_then(|kib| kib.trim().parse().ok()).unwrap_or(0);
    let most = |number: u64| u32::try_from(number).unwrap_or(MOST).min(MOST);
    Attributes { cpu: most(cpu as u64), mem: most(kib / 1024), ..Attributes::default() }
}

/// The attributes that follow from the provider's settings: whole CPUs, and memory.
fn given(provider: &ProviderConfig) -> Attributes {
    let (cpus, bytes) = match provider {
        ProviderConfig::Docker(config) | ProviderConfig::Swarm(config) => (config.cpus, config.memory),
        ProviderConfig::Coolify(config) => (config.cpus, config.memory),
        ProviderConfig::Nomad(config) => (None, Some(u64::from(config.memory) * MIB)),
        ProviderConfig::Process(_) => return machine(),
        ProviderConfig::Ec2(_) => (None, None),
    };
    let mem = bytes.map_or(0, |bytes| u32::try_from(bytes / MIB).unwrap_or(MOST).min(MOST));
    Attributes { cpu: cpus.unwrap_or(0.0) as u32, mem, ..Attributes::default() }
}
