//! Pools: the slots of one platform on one provider, up to a number of them.

use jiff::Timestamp;

use crate::meeting::Platform;
use crate::provider::ProviderKind;
use crate::requirements::{self, Attributes, Requirements, UsageClass};
use crate::slot::{Slot, SlotStatus};

/// How many slots a pool may have at most.
pub const MOST_SLOTS: u32 = 100_000;

/// In which order slots are given out: what stays before what may be taken away, then the smallest first.
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
    /// How many bots a hot slot has before it is made fresh; 0 means any number.
    pub recycle_after: i64,
    /// How many slots it may have.
    pub max_slots: i64,
    /// How many idle slots are kept ready.
    pub min_idle: i64,
    /// The order in the configuration; `None` when it is no longer there.
    pub config_position: Option<i64>,
    /// How many slots it has.
    pub slots: i64,
    /// How long bots have held a slot: a mean in which the last counts for a tenth.
    pub mean_hold_ms: Option<i64>,
    /// The attributes that its slots have, those of new ones first. Where a slot is provisioned per bot: all that can be had.
    pub attribute_sets: Vec<Attributes>,
    /// For how long an idle slot may be given out.
    pub expire_after_ms: Option<i64>,
    /// How long a hot slot that is not needed for `min_idle` may be idle before it is stopped; `None` means any time.
    pub idle_timeout_ms: Option<i64>,
    /// What stands for the image and all else that its slots are started with.
    pub recipe: Option<String>,
}

impl Pool {
    /// Whether a slot gets what it runs on only when it has a bot. Its provider says so.
    pub fn provisioned_per_bot(&self) -> bool {
        self.provider.parse().is_ok_and(ProviderKind::provisioned_per_bot)
    }

    /// Whether it still is in the configuration.
    pub fn is_configured(&self) -> bool {
        self.config_position.is_some()
    }

    /// The attributes of a new slot.
    pub fn attributes_of_new(&self) -> Attributes {
        if self.provisioned_per_bot() {
            Attributes::default()
        } else {
            self.attribute_sets.first().cloned().unwrap_or_default()
        }
    }

    /// How large a slot with these attributes is for a bot; `None` when it does not meet the requirements.
    pub fn size_for(&self, required: Option<&Requirements>, slot: &Attributes) -> Option<Size> {
        let fitting = |attributes: &&Attributes| requirements::fits(required, attributes);
        if self.provisioned_per_bot() {
            return self.attribute_sets.iter().filter(fitting).map(Attributes::size).min();
        }
        Some(slot).filter(fitting).map(Attributes::size)
    }

    /// How large a new slot is for a bot; `None` when it does not meet the requirements.
    pub fn size_of_new(&self, required: Option<&Requirements>) -> Option<Size> {
        self.size_for(required, &self.attributes_of_new())
    }

    /// Whether any slot that it has or could have meets the requirements.
    pub fn could_fit(&self, required: Option<&Requirements>) -> bool {
        self.attribute_sets.iter().any(|attributes| requirements::fits(required, attributes))
    }

    /// Whether the time is over in which an idle slot may be given out. Where the pool has no such time any more, it never is.
    pub fn has_expired(&self, slot: &Slot, now: Timestamp) -> bool {
        self.expire_after_ms.is_some() && slot.expires_at.is_some_and(|end| end <= now)
    }

    /// Whether an agent waits in an idle slot. In a pool that is not hot nobody does.
    pub fn is_ready(&self, slot: &Slot) -> bool {
        slot.status == SlotStatus::Idle && !(self.hot && slot.stopped)
    }

    /// Whether an agent runs in a slot of a hot pool: it waits for a bot, or has one.
    pub fn has_agent(&self, slot: &Slot) -> bool {
        let has_bot = slot.bot_id.is_some() && slot.agent.is_some();
        self.hot && (self.is_ready(slot) || has_bot)
    }

    /// Whether a hot slot runs something else than the pool's configuration says.
    pub fn is_outdated(&self, slot: &Slot) -> bool {
        self.hot && !slot.stopped && self.recipe.is_some() && slot.recipe != self.recipe
    }

    /// How many slots may still be made.
    pub fn room(&self) -> i64 {
        if self.is_configured() { (self.max_slots - self.slots).max(0) } else { 0 }
    }
}
