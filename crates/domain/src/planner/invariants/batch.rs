//! Checks the invariants after a batch, on the rows that it changed. Debug builds and tests do this after every batch.

use super::limits::{Usages, overgrown, usages_of};
use super::{Scope, Violation};
use crate::UserId;
use crate::planner::changes::Changes;
use crate::planner::snapshot::Snapshot;

/// The rows that a batch is about to change, and the usage of its users and pools before it.
#[derive(Clone, Debug)]
pub struct BatchCheck {
    scope: Scope,
    users: Vec<UserId>,
    usages: Usages,
}

impl BatchCheck {
    /// Must be called before the changes are applied.
    pub fn new(snapshot: &Snapshot, changes: &Changes) -> Self {
        let mut scope = Scope {
            slots: changes.slots.keys().cloned().collect(),
            bots: changes.bots.keys().copied().collect(),
            pools: changes.pools.keys().cloned().collect(),
        };
        for bot in changes.bots.values().flatten() {
            // The bot that was at the meeting before may still be there.
            scope.bots.extend(snapshot.bot_at(&bot.meeting()));
            scope.slots.extend(bot.slot.clone());
        }
        for change in changes.slots.values() {
            scope.bots.extend(change.slot.as_ref().and_then(|slot| slot.bot_id));
            scope.pools.extend(change.slot.as_ref().map(|slot| slot.pool.clone()));
        }
        scope.bots.sort_unstable();
        scope.bots.dedup();
        scope.slots.sort_unstable();
        scope.slots.dedup();
        let before = changes.bots.keys().filter_map(|id| snapshot.bot(*id));
        let users: Vec<UserId> = before.chain(changes.bots.values().flatten()).map(|bot| bot.user).collect();
        let usages = usages_of(snapshot, users.iter().copied(), scope.pools.iter().map(String::as_str));
        Self { scope, users, usages }
    }

    /// The violations after the changes are applied, as text.
    pub fn complaints(&self, snapshot: &Snapshot) -> Vec<String> {
        let pools = self.scope.pools.iter().map(String::as_str);
        let now = usages_of(snapshot, self.users.iter().copied(), pools);
        let grown = overgrown(&self.usages, &now);
        let grown = grown.map(|(of, usage)| format!("{} {of}; {} are allowed", usage.count, usage.limit));
        self.scope.violations(snapshot).iter().map(Violation::to_string).chain(grown).collect()
    }
}
