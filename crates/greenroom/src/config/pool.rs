//! The pools, as configured. A pool has the slots of one platform on one provider.

use std::time::Duration;

pub use domain::pool::MOST_SLOTS;
use domain::{Attributes, Platform, ProviderKind};

use super::attributes;
use super::kept::KeptProvider;
use super::layers::Tree;
use super::provider::{self, ProcessConfig, ProviderConfig, Size};
use super::section::Section;

const IDLE_TIMEOUT: Duration = Duration::from_mins(30);

#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The slots have the names `pool-<name>-001` and so on.
    pub name: String,
    pub platform: Platform,
    pub provider: ProviderConfig,
    /// The provider settings that the database stores.
    pub kept: KeptProvider,
    pub max_slots: u32,
    pub min_idle: u32,
    pub standby: Standby,
    pub recycle_after: u32,
    /// The attributes of its slots.
    pub attributes: Attributes,
    /// How long an idle slot may be assigned. Without it, there is no limit.
    pub expire_after: Option<Duration>,
    /// How long a hot slot above `min_idle` may be idle before it is stopped. Without it, there is no limit.
    pub idle_timeout: Option<Duration>,
}

/// The state of an idle slot. If slots are provisioned per bot, nothing is started ahead, whatever is configured:
/// agents wait on runners, which belong to no slot until a bot needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standby {
    /// Started for each bot.
    Stopped,
    /// Hot: an agent waits in the slot.
    Running,
}

/// The pools if none is configured: one for each platform, whose slots run the demo bot.
pub fn defaults() -> Vec<PoolConfig> {
    Platform::ALL
        .map(|platform| PoolConfig {
            name: platform.as_str().replace('_', "-"),
            platform,
            provider: ProviderConfig::Process(ProcessConfig::default()),
            kept: KeptProvider::default(),
            max_slots: 100,
            min_idle: 0,
            standby: Standby::Stopped,
            recycle_after: 1,
            attributes: attributes::machine(),
            expire_after: None,
            idle_timeout: Some(IDLE_TIMEOUT),
        })
        .to_vec()
}

/// Reads one `[[pool]]`. `None` if required settings are missing, which the complaints name.
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
    let provider = section.word("provider", &ProviderKind::ALL.map(|kind| (kind.as_str(), kind)));
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
    let kept = provider.map(|kind| KeptProvider::of(kind.as_str(), section.peek(kind.as_str()))).unwrap_or_default();
    let provider = provider.and_then(|kind| provider::read(&mut section, index, kind, Size { max_slots, min_idle }));
    let attributes = attributes::read(&mut section, provider.as_ref());
    if let Some(provider) = provider.as_ref().filter(|provider| provider.provisioned_per_bot())
        && section.has("expire_after")
    {
        section.complain(format!(
            "`pool.{index}.expire_after` is not for {}: how long its runners are kept is said by `idle_timeout`",
            provider.as_str()
        ));
    }
    let expire_after = section.has("expire_after").then(|| section.duration("expire_after", Duration::MAX));
    let idle_timeout = section.duration_or_never("idle_timeout", IDLE_TIMEOUT);
    section.finish();
    Some(PoolConfig {
        name: name?,
        platform: platform?,
        provider: provider?,
        kept,
        max_slots,
        min_idle,
        standby,
        recycle_after,
        attributes,
        expire_after,
        idle_timeout,
    })
}

fn is_name(name: &str) -> bool {
    name.len() <= 40
        && name
            .split('-')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()))
}
