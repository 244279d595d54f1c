//! What a bot asks of its slot, and whether a slot has it. Slots in the store and runners in a cloud are matched by the
//! same rule.
//!
//! - this file: the rule
//! - [`attributes`]: what a slot has
//! - [`patterns`]: names of instance types, with a wildcard

mod attributes;
mod patterns;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use attributes::{Attributes, MalformedAttributes, is_class_name};
pub use patterns::{Patterns, PatternsError, matches_wildcard};

use crate::text_enum::text_enum;

/// The largest cpu and memory that can be asked for or had.
pub const MOST: u32 = 1_000_000_000;

/// How a machine is paid for: one that may be taken away at any moment, or one that stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UsageClass {
    /// A machine that stays.
    #[default]
    OnDemand,
    /// A machine that the cloud may take away at any moment.
    Spot,
}

/// A word that is not a usage class.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a usage class; known are on-demand, spot")]
pub struct UnknownUsageClass(pub String);

text_enum!(UsageClass, UnknownUsageClass { OnDemand = "on-demand", Spot = "spot" });

/// What a bot asks of its slot. A bot that asks for nothing has none of these, and any slot will do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirements {
    /// The class of resources, by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_class: Option<String>,
    /// On demand unless something else is said: who asks for anything gets no machine that may be taken away without having
    /// asked for that too.
    #[serde(default)]
    pub usage_class: UsageClass,
    /// [`Patterns::usual`] unless something else is said, for slots whose instance type is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_instance_types: Option<Patterns>,
    /// At least so many processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// At least so much memory, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem: Option<u32>,
}

impl Requirements {
    /// Whether a slot has all that is asked.
    pub fn fits(&self, slot: &Attributes) -> bool {
        let class = self.resource_class.as_ref().is_none_or(|class| slot.resource_class.as_ref() == Some(class));
        let instance_type = match (&self.allowed_instance_types, &slot.instance_type) {
            (Some(allowed), Some(name)) => allowed.allow(name),
            (None, Some(name)) => Patterns::usual().allow(name),
            (Some(_), None) => false,
            (None, None) => true,
        };
        class
            && instance_type
            && self.usage_class == slot.usage_class
            && self.cpu.unwrap_or(0) <= slot.cpu
            && self.mem.unwrap_or(0) <= slot.mem
    }

    /// The same text for the same requirements.
    pub fn key(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether a slot will do for a bot that may have requirements.
pub fn fits(wanted: Option<&Requirements>, slot: &Attributes) -> bool {
    wanted.is_none_or(|wanted| wanted.fits(slot))
}
