//! Pools as they are configured: the slots of one platform on one provider.

use std::collections::BTreeMap;

use domain::Platform;

use super::layers::Tree;
use super::section::Section;

pub const MOST_SLOTS: u32 = 100_000;

#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Slots are `pool-<name>-001` and on.
    pub name: String,
    pub platform: Platform,
    pub provider: Provider,
    pub max_slots: u32,
    pub min_idle: u32,
    pub standby: Standby,
    pub recycle_after: u32,
    /// What a slot of the provider `process` runs; the demo bot without.
    pub command: Option<Vec<String>>,
    /// What any other provider is told, by key. Kept as it was written.
    pub settings: BTreeMap<String, Tree>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    Process,
    Docker,
    Swarm,
    Nomad,
    Coolify,
    Ec2,
}

/// What an idle slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standby {
    /// Started for each bot.
    Stopped,
    /// Hot: an agent waits inside.
    Running,
}

const PROVIDERS: [(&str, Provider); 6] = [
    ("process", Provider::Process),
    ("docker", Provider::Docker),
    ("swarm", Provider::Swarm),
    ("nomad", Provider::Nomad),
    ("coolify", Provider::Coolify),
    ("ec2", Provider::Ec2),
];

impl Provider {
    pub fn as_str(self) -> &'static str {
        PROVIDERS.iter().find(|(_, provider)| *provider == self).map_or("", |(word, _)| word)
    }

    /// The keys that a provider understands, and those that it cannot do without.
    fn keys(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Provider::Process => (&["command"], &["command"]),
            Provider::Docker | Provider::Swarm => (&["host", "image", "network", "cpus", "memory", "env"], &["image"]),
            Provider::Nomad => {
                (&["address", "token", "namespace", "datacenters", "image", "cpu", "memory"], &["address", "image"])
            }
            Provider::Coolify => (
                &[
                    "api_url",
                    "api_token",
                    "project_uuid",
                    "server_uuid",
                    "environment_name",
                    "image",
                    "tag",
                    "cpus",
                    "memory",
                ],
                &["api_url", "api_token", "project_uuid", "server_uuid", "environment_name", "image"],
            ),
            Provider::Ec2 => (
                &["region", "endpoint", "queue_prefix", "table", "classes", "launch_template"],
                &["region", "queue_prefix", "table"],
            ),
        }
    }
}

/// What serves when nothing is configured: a pool for each platform, whose slots run the demo bot.
pub fn defaults() -> Vec<PoolConfig> {
    Platform::ALL
        .map(|platform| PoolConfig {
            name: platform.as_str().replace('_', "-"),
            platform,
            provider: Provider::Process,
            max_slots: 100,
            min_idle: 0,
            standby: Standby::Stopped,
            recycle_after: 1,
            command: None,
            settings: BTreeMap::new(),
        })
        .to_vec()
}

/// Reads one `[[pool]]`. `None` when what is missing makes it no pool; the complaints say what.
pub fn read(index: usize, tree: Tree, complaints: &mut Vec<String>) -> Option<PoolConfig> {
    let mut section = Section::new(&format!("pool.{index}"), tree, complaints);
    let name = section.text("name");
    match &name {
        None => section.complain(format!("`pool.{index}` has no `name`")),
        Some(name) if !is_name(name) => section.complain(format!(
            "`pool.{index}.name` is `{name}`, but it becomes part of the names of slots: lower case letters, digits \
             and single dashes, at most 40"
        )),
        Some(_) => {}
    }
    let said = ["platform", "provider"].map(|key| (key, section.has(key)));
    let platform = section.word("platform", &Platform::ALL.map(|platform| (platform.as_str(), platform)));
    let provider = section.word("provider", &PROVIDERS);
    for (key, _) in said.into_iter().filter(|(_, said)| !said) {
        section.complain(format!("`pool.{index}` has no `{key}`"));
    }
    let max_slots = section.number("max_slots", 100, 1..=MOST_SLOTS);
    let min_idle = section.number("min_idle", 0, 0..=MOST_SLOTS);
    let standby = section
        .word("standby", &[("stopped", Standby::Stopped), ("running", Standby::Running)])
        .unwrap_or(Standby::Stopped);
    let recycle_after = section.number("recycle_after", 1, 0..=u32::MAX);
    if min_idle > max_slots {
        section.complain(format!(
            "`pool.{index}.min_idle` ({min_idle}) is more than `max_slots` ({max_slots}), so the buffer could never \
             be full"
        ));
    }
    let (command, settings) = provider.map(|provider| settings(&mut section, index, provider)).unwrap_or_default();
    section.finish();
    Some(PoolConfig {
        name: name?,
        platform: platform?,
        provider: provider?,
        max_slots,
        min_idle,
        standby,
        recycle_after,
        command,
        settings,
    })
}

/// The command of a process, and what any other provider is told.
type Settings = (Option<Vec<String>>, BTreeMap<String, Tree>);

/// The section of the pool's own provider; that of another is an unknown key.
fn settings(section: &mut Section<'_>, index: usize, provider: Provider) -> Settings {
    let word = provider.as_str();
    let Some(tree) = section.take(word) else {
        if provider != Provider::Process {
            section.complain(format!("`pool.{index}` has the provider {word}, but no `{word} = {{ … }}`"));
        }
        return Settings::default();
    };
    let (known, required) = provider.keys();
    let mut own = section.own(word, tree);
    if provider == Provider::Process {
        let is_there = own.has("command");
        let command = own.words("command");
        if !is_there {
            let path = own.key_path("command");
            own.complain(format!("`{path}` is missing"));
        }
        own.finish();
        return (command, BTreeMap::new());
    }
    let settings: BTreeMap<String, Tree> =
        known.iter().filter_map(|key| own.take(key).map(|tree| ((*key).to_owned(), tree))).collect();
    for key in required.iter().filter(|key| !settings.contains_key(**key)) {
        let path = own.key_path(key);
        own.complain(format!("`{path}` is missing"));
    }
    own.finish();
    (None, settings)
}

fn is_name(name: &str) -> bool {
    name.len() <= 40
        && name
            .split('-')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()))
}
