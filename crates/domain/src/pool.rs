//! Pools: the slots of one platform on one provider, with a maximum number.

use std::time::Duration;

use jiff::Timestamp;

use crate::meeting::Platform;
use crate::provider::ProviderKind;
use crate::requirements::{self, Attributes, Requirements, UsageClass};
use crate::slot::{Slot, SlotStatus};

/// How many slots a pool may have at most.
pub const MOST_SLOTS: u32 = 100_000;

/// How often in a row an agent starts a command ahead before it gives up.
pub const READY_ATTEMPTS: u32 = 3;
/// The longest pause between two such starts, with the time to end the command that failed.
const LONGEST_READY_PAUSE: Duration = Duration::from_secs(10);

/// The order in which slots are given out: on-demand before spot, then smallest first.
pub type Size = (UsageClass, u32, u32);

/// Slots of one platform, made by one provider in one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// The name, which is part of the names of its slots.
    pub name: String,
    /// The platform whose bots it serves.
    pub platform: Platform,
    /// The kind of provider that makes its slots.
    pub provider: String,
    /// The host whose gate its slots pass.
    pub host: String,
    /// Whether an agent waits in each of its idle slots.
    pub hot: bool,
    /// How many bots a hot slot runs before it gets a fresh start; 0 means no limit.
    pub recycle_after: i64,
    /// How many slots it may have.
    pub max_slots: i64,
    /// How many idle slots are kept ready.
    pub min_idle: i64,
    /// Its position in the order in which pools are filled; `None` if the configuration no longer has the pool.
    pub fill_order: Option<i64>,
    /// How many slots it has.
    pub slots: i64,
    /// How long bots hold a slot: a running mean in which the last hold has a weight of one tenth.
    pub mean_hold_ms: Option<i64>,
    /// The attributes of its slots, those of new slots first. For slots that are provisioned per bot: all possible
    /// attributes.
    pub attribute_sets: Vec<Attributes>,
    /// How long an idle slot may be given out.
    pub expire_after_ms: Option<i64>,
    /// How long a hot slot above `min_idle` may be idle before it is stopped; `None` means no limit.
    pub idle_timeout_ms: Option<i64>,
    /// Only for pools that start the bot's command ahead: how long the command may take to become ready.
    pub ready_timeout_ms: Option<i64>,
    /// How long a ready command may wait for a bot; `None` means no limit.
    pub max_warm_age_ms: Option<i64>,
    /// A fingerprint of the image and the other start parameters of its slots.
    pub recipe: Option<String>,
}

impl Pool {
    /// Whether a slot gets its machine only when it has a bot. The provider determines this.
    pub fn provisioned_per_bot(&self) -> bool {
        self.provider.parse().is_ok_and(ProviderKind::provisioned_per_bot)
    }

    /// Whether the bot's command is started ahead in each idle slot. Such a slot is idle only while its command is
    /// ready.
    pub fn is_prewarmed(&self) -> bool {
        self.hot && self.ready_timeout_ms.is_some()
    }

    /// The age at which a ready command is replaced. It is below the limit, because the slots of a pool are replaced
    /// one after another, and often reach the limit together.
    pub fn replace_ready_after(&self) -> Option<Duration> {
        let limit = self.max_warm_age_ms.filter(|_| self.is_prewarmed())?;
        Some(Duration::from_millis(limit.unsigned_abs()) / 4 * 3)
    }

    /// How long the agent of a started slot may take to begin to wait, if it takes `alone` without prewarm.
    pub fn agent_waits_within(&self, alone: Duration) -> Duration {
        match self.ready_timeout_ms.filter(|_| self.hot) {
            Some(ready) => alone + READY_ATTEMPTS * (Duration::from_millis(ready.unsigned_abs()) + LONGEST_READY_PAUSE),
            None => alone,
        }
    }

    /// Whether the slot has had its last bot, so that it gets a fresh start after that bot.
    pub fn is_used_up(&self, slot: &Slot) -> bool {
        self.recycle_after > 0 && slot.bots_since_fresh >= self.recycle_after
    }

    /// Whether the configuration still has the pool.
    pub fn is_configured(&self) -> bool {
        self.fill_order.is_some()
    }

    /// The attributes of a new slot.
    pub fn attributes_of_new(&self) -> Attributes {
        if self.provisioned_per_bot() {
            Attributes::default()
        } else {
            self.attribute_sets.first().cloned().unwrap_or_default()
        }
    }

    /// The size of a slot with these attributes for a bot; `None` if it does not meet the requirements.
    pub fn size_for(&self, required: Option<&Requirements>, slot: &Attributes) -> Option<Size> {
        let fitting = |attributes: &&Attributes| requirements::fits(required, attributes);
        if self.provisioned_per_bot() {
            return self.attribute_sets.iter().filter(fitting).map(Attributes::size).min();
        }
        Some(slot).filter(fitting).map(Attributes::size)
    }

    /// The size of a new slot for a bot; `None` if it does not meet the requirements.
    pub fn size_of_new(&self, required: Option<&Requirements>) -> Option<Size> {
        self.size_for(required, &self.attributes_of_new())
    }

    /// Whether any slot that it has or could have meets the requirements.
    pub fn could_fit(&self, required: Option<&Requirements>) -> bool {
        self.attribute_sets.iter().any(|attributes| requirements::fits(required, attributes))
    }

    /// Whether an idle slot is too old to be given out. Never true if the pool has no such limit now.
    pub fn has_expired(&self, slot: &Slot, now: Timestamp) -> bool {
        self.expire_after_ms.is_some() && slot.expires_at.is_some_and(|end| end <= now)
    }

    /// Whether an agent waits in an idle slot. Always false in a pool that is not hot.
    pub fn is_ready(&self, slot: &Slot) -> bool {
        slot.status == SlotStatus::Idle && !(self.hot && slot.stopped)
    }

    /// Whether an agent runs in a slot of a hot pool: it waits for a bot, or has one.
    pub fn has_agent(&self, slot: &Slot) -> bool {
        let has_bot = slot.bot_id.is_some() && slot.agent.is_some();
        self.hot && (self.is_ready(slot) || has_bot)
    }

    /// Whether a hot slot runs an image or command that differs from the pool's configuration.
    pub fn is_outdated(&self, slot: &Slot) -> bool {
        self.hot && !slot.stopped && self.recipe.is_some() && slot.recipe != self.recipe
    }

    /// How many more slots the pool may have.
    pub fn room(&self) -> i64 {
        if self.is_configured() { (self.max_slots - self.slots).max(0) } else { 0 }
    }
}
