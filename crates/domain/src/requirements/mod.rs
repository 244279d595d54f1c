//! The requirements of a bot, and whether a slot meets them. Slots in the store and runners in a cloud are matched with
//! the same rule.
//!
//! - this file: the rule
//! - [`attributes`]: the attributes of a slot
//! - [`patterns`]: names of instance types, with a wildcard

mod attributes;
mod patterns;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use attributes::{Attributes, MalformedAttributes, is_class_name};
pub use patterns::{Patterns, PatternsError, matches_wildcard};

use crate::text_enum::text_enum;

/// The largest cpu and memory in requirements and attributes.
pub const MOST: u32 = 1_000_000_000;

/// Whether the cloud may take the machine back at any moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UsageClass {
    /// A machine that the cloud does not take back.
    #[default]
    OnDemand,
    /// A machine that the cloud may take back at any moment.
    Spot,
}

/// A text that is not a usage class.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a usage class; the classes are on-demand, spot")]
pub struct UnknownUsageClass(pub String);

text_enum!(UsageClass, UnknownUsageClass { OnDemand = "on-demand", Spot = "spot" });

/// The requirements of a bot. A bot without requirements fits any slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirements {
    /// The name of the resource class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_class: Option<String>,
    /// On-demand by default: a bot with requirements gets a spot machine only if it asks for one.
    #[serde(default)]
    pub usage_class: UsageClass,
    /// [`Patterns::usual`] by default, for slots whose instance type is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_instance_types: Option<Patterns>,
    /// The least number of processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// The least memory, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem: Option<u32>,
}

impl Requirements {
    /// Whether a slot meets all requirements.
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

    /// The key of these requirements. Equal requirements have equal keys.
    pub fn key(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether a slot fits a bot, which may have no requirements.
pub fn fits(wanted: Option<&Requirements>, slot: &Attributes) -> bool {
    wanted.is_none_or(|wanted| wanted.fits(slot))
}
