//! This module examines one pool: its provider, its slots compared with the provider's, its limits, and whether a bot
//! that is requested now would run.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::PathBuf;

use domain::{SlotName, SlotStatus};

use super::TIMEOUT;
use super::server::Servers;
use crate::config::pool::PoolConfig;
use crate::config::provider::ProviderConfig;
use crate::providers::check::{Check, Verdict};
use crate::providers::process::program_is_at;
use crate::providers::{Found, Provider, Providers};
use crate::server::pools::{self, UnconfiguredPool};
use crate::store::{PoolRow, SlotRow, Store, StoreError, StoredPool};

/// The largest number of names in a list.
const NAMED: usize = 5;

/// Where to find the programs of bots.
#[derive(Clone, Debug)]
pub struct Programs {
    path: OsString,
    folder: PathBuf,
    /// Whether this is the `PATH` of the server; otherwise it is the `PATH` of this command.
    is_of_server: bool,
}

impl Programs {
    pub fn of(servers: &Servers) -> Self {
        match servers.on_this_machine() {
            Some(facts) => {
                Self { path: facts.path.clone().into(), folder: PathBuf::from(&facts.folder), is_of_server: true }
            }
            None => Self {
                path: std::env::var_os("PATH").unwrap_or_default(),
                folder: std::env::current_dir().unwrap_or_default(),
                is_of_server: false,
            },
        }
    }

    fn check(&self, program: &str) -> Check {
        let whose = if self.is_of_server { "the server's" } else { "your" };
        if program_is_at(program, &self.path, &self.folder) {
            return Check::good("command", format!("{program} is there"));
        }
        if program.contains('/') {
            return Check::bad("command", format!("there is no program {program} on this machine"));
        }
        let mut text = format!("there is no program {program} on {whose} PATH ({})", self.path.to_string_lossy());
        let own = std::env::var_os("PATH").unwrap_or_default();
        if self.is_of_server && program_is_at(program, &own, &self.folder) {
            text.push_str(
                "; it is on your PATH: start the server with the same PATH, or configure the full path of the program",
            );
        }
        Check::bad("command", text)
    }
}

/// Examines the provider of a pool.
pub async fn provider(pool: &PoolConfig, providers: &Providers, programs: &Programs) -> Vec<Check> {
    let Some(provider) = providers.get(&pool.name) else {
        return vec![Check::bad(
            "provider",
            format!("this version does not support the provider {}", pool.provider.as_str()),
        )];
    };
    let mut checks = match tokio::time::timeout(TIMEOUT, provider.check(pool.max_slots)).await {
        Ok(checks) => checks,
        Err(_) => vec![Check::bad("reachable", format!("the provider did not answer within {} s", TIMEOUT.as_secs()))],
    };
    // The server may find other programs than this command does.
    if let ProviderConfig::Process(config) = &pool.provider
        && let Some(program) = config.command.as_ref().and_then(|command| command.first())
        && let Some(check) = checks.iter_mut().find(|check| check.what == "command")
    {
        *check = programs.check(program);
    }
    checks
}

/// Returns the problems of a pool's provider, as the provider reports them.
pub async fn problems(pool: &PoolConfig, providers: &Providers, programs: &Programs) -> Vec<String> {
    let checks = provider(pool, providers, programs).await;
    checks.into_iter().filter(|check| check.verdict == Verdict::Bad).map(|check| check.found).collect()
}

/// Examines what the store has about a pool.
pub async fn stored(
    store: &Store,
    pool: &PoolConfig,
    provider: Option<&dyn Provider>,
    servers: &Servers,
) -> Result<Vec<Check>, StoreError> {
    let row = store.pools().await?.into_iter().find(|row| row.name == pool.name && row.is_configured());
    let is_unknown = row.is_none() || servers.on_this_machine().is_some_and(|facts| !facts.pools.contains(&pool.name));
    let Some(row) = row.filter(|_| !is_unknown) else {
        // The next start of a server takes the pool from the configuration.
        return Ok(match servers.running.is_empty() {
            true => vec![Check::good("slots", format!("0 of {}", pool.max_slots))],
            false => vec![Check::bad("slots", "the running server does not have this pool; restart the server")],
        });
    };
    let slots = store.slots_of_pool(&pool.name).await?;
    let mut checks = vec![capacity(&row, &slots)];
    let stored = store.stored_pools().await?;
    checks
        .extend(stored.iter().find(|stored| stored.name == row.name).and_then(|stored| changed_by_hand(&row, stored)));
    if let Some(provider) = provider {
        checks.extend(check_missing_slots(store, &row, slots, provider).await?);
    }
    Ok(checks)
}

/// Checks how many slots there are, their states, and whether a bot would get one.
fn capacity(row: &PoolRow, slots: &[SlotRow]) -> Check {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for slot in slots {
        *counts.entry(slot.status.as_str()).or_default() += 1;
    }
    let (all, count) = (counts.values().sum::<i64>(), |status: SlotStatus| counts.get(status.as_str()).copied());
    let [idle, error] = [SlotStatus::Idle, SlotStatus::Error].map(|status| count(status).unwrap_or(0));
    let parts: Vec<String> = counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
    let found = match parts.as_slice() {
        [] => format!("0 of {}", row.max_slots),
        parts => format!("{all} of {}: {}", row.max_slots, parts.join(", ")),
    };
    let has_room = all < row.max_slots;
    if idle == 0 && !has_room && error > 0 && error == all {
        let text = format!("{found}; a bot that is requested now fails. `greenroom doctor slot NAME` shows the reason");
        Check::bad("slots", text)
    } else if idle == 0 && !has_room {
        Check::doubtful("slots", format!("{found}; none is free, so a bot that is requested now waits in the queue"))
    } else if error > 0 {
        Check::doubtful("slots", format!("{found}; `greenroom doctor slot NAME` explains a slot"))
    } else {
        Check::good("slots", found)
    }
}

/// Reports limits that an operator has changed. They hold until the configuration changes, so they differ from what a
/// reader of the configuration expects.
fn changed_by_hand(row: &PoolRow, stored: &StoredPool) -> Option<Check> {
    let limits = [
        ("max_slots", row.max_slots, stored.configured_max_slots),
        ("min_idle", row.min_idle, stored.configured_min_idle),
    ];
    let changed: Vec<String> = limits
        .iter()
        .filter(|(_, is, configured)| is != configured)
        .map(|(name, is, configured)| format!("{name} is {is}, but {configured} in the configuration"))
        .collect();
    let text = format!("changed by an operator: {}", changed.join("; "));
    (!changed.is_empty()).then(|| Check::doubtful("limits", text))
}

/// Finds slots of the store that the provider does not have.
async fn check_missing_slots(
    store: &Store,
    row: &PoolRow,
    slots: Vec<SlotRow>,
    provider: &dyn Provider,
) -> Result<Option<Check>, StoreError> {
    let made =
        |slot: &SlotRow| slot.provider_ref.is_some() && matches!(slot.status, SlotStatus::Idle | SlotStatus::Busy);
    if !provider.keeps_idle_resources() || !slots.iter().any(made) {
        return Ok(None);
    }
    // The listing comes after the rows were read, so the slots of these rows were created before.
    let listed = match tokio::time::timeout(TIMEOUT, provider.list()).await {
        Ok(Ok(listed)) => listed,
        // Another check already reports that the provider does not answer.
        Ok(Err(_)) | Err(_) => return Ok(None),
    };
    let has: HashMap<&SlotName, &Found> = listed.iter().map(|found| (&found.slot, found)).collect();
    let is_missing = |slot: &SlotRow| match has.get(&slot.name) {
        None => true,
        Some(found) => row.hot && slot.status == SlotStatus::Idle && !found.running,
    };
    let missing: Vec<SlotRow> = slots.into_iter().filter(|slot| made(slot) && is_missing(slot)).collect();
    if missing.is_empty() {
        return Ok(None);
    }
    // A slot that has changed in the meantime may have been deleted on purpose.
    let names: Vec<SlotName> = missing.iter().map(|slot| slot.name.clone()).collect();
    let now = store.slots_by_name(&names).await?;
    let unchanged = |slot: &&SlotRow| {
        now.iter()
            .any(|now| now.name == slot.name && now.status_since == slot.status_since && now.bot_id == slot.bot_id)
    };
    let missing: Vec<&str> = missing.iter().filter(unchanged).map(|slot| slot.name.as_str()).collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let text = format!(
        "the provider does not have {} {} that the database has: {}; the keeper `sync` creates idle slots again",
        missing.len(),
        if missing.len() == 1 { "slot" } else { "slots" },
        listing(&missing)
    );
    // In a hot pool this is worse: a bot would be given to an agent that is not there.
    Ok(Some(if row.hot { Check::bad("gone", text) } else { Check::doubtful("gone", text) }))
}

fn listing(names: &[&str]) -> String {
    let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if names.len() > NAMED { format!("{shown} and {} more", names.len() - NAMED) } else { shown }
}

/// Checks pools that left the configuration.
pub async fn check_unconfigured(
    store: &Store,
    pools: &[PoolConfig],
    servers: &Servers,
) -> Result<Vec<(UnconfiguredPool, Check)>, StoreError> {
    let check = |left: UnconfiguredPool| {
        let UnconfiguredPool { name, slots, bots, .. } = &left;
        let check = if servers.running.iter().any(|facts| facts.pools.contains(name)) {
            Check::doubtful("left", "the running server has this pool, but this configuration does not")
        } else if *slots == 0 {
            Check::note("left", format!("it has no slots; `greenroom pools remove {name}` removes it"))
        } else {
            let text = format!(
                "it still has slots ({slots}) and bots ({bots}), which no server deletes: run `greenroom pools remove \
                 {name}`, or add the pool to the configuration again"
            );
            Check::doubtful("left", text)
        };
        (left, check)
    };
    Ok(pools::unconfigured(store, pools).await?.into_iter().map(check).collect())
}
