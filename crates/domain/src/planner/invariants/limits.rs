//! The usage of users and pools, compared with their limits.

use std::collections::HashMap;
use std::fmt;

use crate::UserId;
use crate::planner::snapshot::{PoolState, Snapshot};

/// The usage of a user or a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The current number.
    pub count: i64,
    /// The maximum number.
    pub limit: i64,
}

/// The subject of a usage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Limited {
    /// Running bots.
    Running(UserId),
    /// Running and stopping bots; the limit is twice as high.
    RunningOrStopping(UserId),
    /// Slots of a pool.
    Slots(String),
}

impl Limited {
    /// The name of this kind of violation in metrics and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Limited::Running(_) | Limited::RunningOrStopping(_) => "limit_passed",
            Limited::Slots(_) => "pool_overgrown",
        }
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limited::Running(user) => write!(f, "running bots of user {user}"),
            Limited::RunningOrStopping(user) => write!(f, "running and stopping bots of user {user}"),
            Limited::Slots(pool) => write!(f, "slots of pool {pool}"),
        }
    }
}

/// The usage of each user and each pool.
pub type Usages = HashMap<Limited, Usage>;

/// The usage of every pool, and of every known user.
pub fn usages(snapshot: &Snapshot) -> Usages {
    let users = snapshot.users().map(|(id, _)| id);
    usages_of(snapshot, users, snapshot.pools().map(|state| state.pool.name.as_str()))
}

/// The usage of these users and pools. An unknown user has no entry.
pub fn usages_of<'a>(
    snapshot: &Snapshot,
    users: impl IntoIterator<Item = UserId>,
    pools: impl IntoIterator<Item = &'a str>,
) -> Usages {
    let mut usages = Usages::new();
    for (id, user) in users.into_iter().filter_map(|id| Some((id, snapshot.user(id)?))) {
        let (limit, counts) = (user.max_concurrent_bots, snapshot.counts(id));
        usages.insert(Limited::Running(id), Usage { count: counts.running, limit });
        let open = Usage { count: counts.running + counts.stopping, limit: limit.saturating_mul(2) };
        usages.insert(Limited::RunningOrStopping(id), open);
    }
    for PoolState { pool, .. } in pools.into_iter().filter_map(|name| snapshot.pool(name)) {
        usages.insert(Limited::Slots(pool.name.clone()), Usage { count: pool.slots, limit: pool.max_slots });
    }
    usages
}

/// The usages that grew beyond their limit. If an operator lowers a limit below the usage, that is not growth.
pub fn overgrown<'a>(before: &'a Usages, now: &'a Usages) -> impl Iterator<Item = (&'a Limited, &'a Usage)> {
    now.iter().filter(|(of, usage)| {
        usage.count > usage.limit
            && before.get(of).is_some_and(|before| before.limit == usage.limit && before.count < usage.count)
    })
}
