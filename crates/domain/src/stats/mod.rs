//! Figures about bots and slots over a time. The figures of two times, or of two pools, can be added up, so that the
//! figures of an hour follow from its minutes.
//!
//! - this file: the figures
//! - [`histogram`]: how long bots waited

pub mod histogram;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::StartKind;
use crate::{Fault, SlotStatus};
pub use histogram::Histogram;

/// How many different reasons that bots give are counted one by one. The others are counted together, because a bot
/// may give any text.
pub const OWN_REASONS_MAX: usize = 20;
/// A longer reason is cut.
const REASON_CHARS_MAX: usize = 60;
/// The name under which all other reasons are counted.
pub const OTHER_REASON: &str = "other";
/// The reasons that Greenroom itself gives. They are always counted one by one.
const KNOWN_REASONS: [&str; 13] = [
    "crashed",
    "deploy_failed",
    "deploy_timeout",
    "finished",
    "heartbeat_lost",
    "interrupted",
    "killed",
    "never_joined",
    "no_join",
    "no_start",
    OTHER_REASON,
    "queue_timeout",
    "stopped",
];

/// Counts by name.
pub type Counts = BTreeMap<String, u64>;

/// What happened in a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Bots that were requested.
    #[serde(skip_serializing_if = "is_zero")]
    pub requests: u64,
    /// Bots that got a slot, by the kind of their start.
    #[serde(skip_serializing_if = "Counts::is_empty")]
    pub starts: Counts,
    /// How long bots that got a slot had waited for it, in milliseconds.
    #[serde(skip_serializing_if = "Histogram::is_empty")]
    pub waits: Histogram,
    /// Bots that ended, by their reason.
    #[serde(skip_serializing_if = "Counts::is_empty")]
    pub ends_by_reason: Counts,
    /// Bots that ended, by the side that caused it.
    #[serde(skip_serializing_if = "Counts::is_empty")]
    pub ends_by_fault: Counts,
    /// How often the slots were counted.
    #[serde(skip_serializing_if = "is_zero")]
    pub samples: u64,
    /// The slots by their status, added up over all samples.
    #[serde(skip_serializing_if = "Counts::is_empty")]
    pub slots: Counts,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn count(counts: &mut Counts, name: &str, more: u64) {
    match counts.get_mut(name) {
        Some(count) => *count = count.saturating_add(more),
        None if more > 0 => drop(counts.insert(name.to_owned(), more)),
        None => {}
    }
}

impl Figures {
    /// Counts a bot that got a slot.
    pub fn add_start(&mut self, kind: Option<StartKind>, wait_ms: u64) {
        if let Some(kind) = kind {
            count(&mut self.starts, kind.as_str(), 1);
        }
        self.waits.add(wait_ms);
    }

    /// Counts a bot that ended.
    pub fn add_end(&mut self, reason: Option<&str>, fault: Option<Fault>) {
        let reason: String = reason.unwrap_or(OTHER_REASON).chars().take(REASON_CHARS_MAX).collect();
        self.count_reason(&reason, 1);
        if let Some(fault) = fault {
            count(&mut self.ends_by_fault, fault.as_str(), 1);
        }
    }

    /// Adds some slots of one status to the current sample.
    pub fn add_slots(&mut self, status: SlotStatus, slots: u64) {
        count(&mut self.slots, status.as_str(), slots);
    }

    /// Adds the figures of another time, or of another pool.
    pub fn add(&mut self, other: &Figures) {
        self.requests = self.requests.saturating_add(other.requests);
        self.samples = self.samples.saturating_add(other.samples);
        self.waits.merge(&other.waits);
        for (reason, more) in &other.ends_by_reason {
            self.count_reason(reason, *more);
        }
        for (mine, others) in [
            (&mut self.starts, &other.starts),
            (&mut self.ends_by_fault, &other.ends_by_fault),
            (&mut self.slots, &other.slots),
        ] {
            for (name, more) in others {
                count(mine, name, *more);
            }
        }
    }

    /// The mean number of slots with a status. `None` if the slots were never counted.
    pub fn mean_slots(&self, status: SlotStatus) -> Option<f64> {
        let sum = self.slots.get(status.as_str()).copied().unwrap_or(0);
        (self.samples > 0).then(|| sum as f64 / self.samples as f64)
    }

    fn count_reason(&mut self, reason: &str, more: u64) {
        let is_known = |reason: &str| KNOWN_REASONS.contains(&reason);
        let counts = &mut self.ends_by_reason;
        let has_room = || counts.keys().filter(|reason| !is_known(reason)).count() < OWN_REASONS_MAX;
        let name = if is_known(reason) || counts.contains_key(reason) || has_room() { reason } else { OTHER_REASON };
        count(&mut self.ends_by_reason, name, more);
    }
}
