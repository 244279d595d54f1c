//! The pools, as configured. A pool has the slots of one platform on one provider.

use std::time::Duration;

pub use domain::pool::MOST_SLOTS;
use domain::{Attributes, Platform, ProviderKind};

use super::attributes;
use super::layers::Tree;
use super::provider::{self, ProcessConfig, ProviderConfig, Size};
use super::section::Section;
use super::stored_provider::StoredProvider;

const IDLE_TIMEOUT: Duration = Duration::from_mins(30);
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_WARM_AGE: Duration = Duration::from_mins(30);

#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The slots have the names `pool-<name>-001` and so on.
    pub name: String,
    pub platform: Platform,
    pub provider: ProviderConfig,
    /// The provider settings that the database stores.
    pub stored_provider: StoredProvider,
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
    /// Whether the bot's command is started ahead.
    pub prewarm: Option<Prewarm>,
}

impl PoolConfig {
    /// A bot that gets a new slot waits until the slot's command is ready, so this must fit into the time for its start.
    pub fn ready_too_late(&self, no_start: Duration) -> Option<String> {
        let Prewarm { ready_timeout, .. } = self.prewarm?;
        (ready_timeout >= no_start).then(|| {
            format!(
                "`ready_timeout` of the pool `{}` ({}s) must be shorter than `sweeper.no_start` ({}s), or a bot \
                 fails before its command is ready",
                self.name,
                ready_timeout.as_secs(),
                no_start.as_secs()
            )
        })
    }
}

/// How the bot's command is started ahead of its meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prewarm {
    /// How long the command may take to become ready.
    pub ready_timeout: Duration,
    /// How long a ready command may wait for a bot. Without it, there is no limit.
    pub max_warm_age: Option<Duration>,
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
            stored_provider: StoredProvider::default(),
            max_slots: 100,
            min_idle: 0,
            standby: Standby::Stopped,
            recycle_after: 1,
            attributes: attributes::machine(),
            expire_after: None,
            idle_timeout: Some(IDLE_TIMEOUT),
            prewarm: None,
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
            "`pool.{index}.name` is `{name}`, but must have at most 40 lower case letters, digits and single dashes, \
             because it is part of the names of slots"
        )),
        Some(_) => {}
    }
    let present = ["platform", "provider"].map(|key| (key, section.has(key)));
    let platform = section.word("platform", &Platform::ALL.map(|platform| (platform.as_str(), platform)));
    let provider = section.word("provider", &ProviderKind::ALL.map(|kind| (kind.as_str(), kind)));
    for (key, _) in present.into_iter().filter(|(_, is_present)| !is_present) {
        section.complain(format!("`pool.{index}` has no `{key}`"));
    }
    let max_slots = section.number("max_slots", 100, 1..=MOST_SLOTS);
    let min_idle = section.number("min_idle", 0, 0..=MOST_SLOTS);
    let standby = section
        .word("standby", &[("stopped", Standby::Stopped), ("running", Standby::Running)])
        .unwrap_or(Standby::Stopped);
    let recycle_after = section.number("recycle_after", 1, 0..=u32::MAX);
    if min_idle > max_slots {
        section
            .complain(format!("`pool.{index}.min_idle` ({min_idle}) must not be more than `max_slots` ({max_slots})"));
    }
    let stored_provider =
        provider.map(|kind| StoredProvider::of(kind.as_str(), section.peek(kind.as_str()))).unwrap_or_default();
    let provider = provider.and_then(|kind| provider::read(&mut section, index, kind, Size { max_slots, min_idle }));
    let attributes = attributes::read(&mut section, provider.as_ref());
    if let Some(provider) = provider.as_ref().filter(|provider| provider.provisioned_per_bot())
        && section.has("expire_after")
    {
        section.complain(format!(
            "`pool.{index}.expire_after` cannot be set for {kind}; set `pool.{index}.{kind}.idle_timeout` instead",
            kind = provider.as_str()
        ));
    }
    let expire_after = section.has("expire_after").then(|| section.duration("expire_after", Duration::MAX));
    let idle_timeout = section.duration_or_never("idle_timeout", IDLE_TIMEOUT);
    let is_prewarmed = section.flag("prewarm", false);
    let ready_timeout = section.duration("ready_timeout", READY_TIMEOUT);
    let max_warm_age = section.duration_or_never("max_warm_age", MAX_WARM_AGE);
    let waits_on_runners = provider.as_ref().is_some_and(ProviderConfig::provisioned_per_bot);
    if is_prewarmed && standby == Standby::Stopped && !waits_on_runners {
        section.complain(format!(
            "`pool.{index}.prewarm` needs `standby = \"running\"`: a stopped slot has no command that could wait"
        ));
    }
    section.finish();
    Some(PoolConfig {
        name: name?,
        platform: platform?,
        provider: provider?,
        stored_provider,
        max_slots,
        min_idle,
        standby,
        recycle_after,
        attributes,
        expire_after,
        idle_timeout,
        prewarm: is_prewarmed.then_some(Prewarm { ready_timeout, max_warm_age }),
    })
}

fn is_name(name: &str) -> bool {
    name.len() <= 40
        && name
            .split('-')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()))
}
