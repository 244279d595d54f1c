//! This module helps the person on call. It shows whether everything that the server depends on works. For a slot or a
//! bot it shows the state and since when, what it waits for and until when, and the provider's messages. It only reads.
//!
//! - this file: everything that the server depends on
//! - [`server`]: the running servers
//! - [`pool`]: a pool, its provider and its slots
//! - [`memory`]: the memory of hot slots, compared with their host's
//! - [`report`]: the report on one thing
//! - [`slot`]: one slot
//! - [`bot`]: one bot

pub mod bot;
mod memory;
mod pool;
pub mod report;
mod server;
pub mod slot;

use std::time::Duration;

use domain::SlotStatus;
use jiff::Timestamp;
use secrecy::ExposeSecret;

use crate::bus;
use crate::config::Config;
use crate::config::pool::{PoolConfig, Standby};
use crate::explain::moment::moment;
use crate::explain::{Audience, Explainer};
use crate::providers::check::Check;
use crate::providers::ec2::Runners;
use crate::server::first_start::INSTALLATION;
use crate::server::pools;
use crate::store::{Lease, SlotRow, Store, StoreError, StoreInspection};
use pool::Programs;
use server::Servers;

/// Longer than any working part takes to answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Several checks of one thing.
#[derive(Debug)]
pub struct Examined {
    pub of: String,
    pub checks: Vec<Check>,
}

/// Everything that is needed to describe a slot or a bot.
#[derive(Debug)]
pub struct Doctor {
    explainer: Explainer,
    pools: Vec<PoolConfig>,
    programs: Programs,
}

/// Why a slot or a bot cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error("the database does not exist yet; the first start of the server creates it")]
    NotYet,
    #[error("the database has schema version {found}, but this program needs {known}")]
    OtherVersion { found: i64, known: i64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Doctor {
    /// Opens what is configured, without changing anything.
    pub async fn open(config: &Config) -> Result<Self, DoctorError> {
        let StoreInspection { store, found, known } = inspect_store(config).await?.ok_or(DoctorError::NotYet)?;
        if found != known {
            return Err(DoctorError::OtherVersion { found, known });
        }
        let installation = store.setting(INSTALLATION).await?.unwrap_or_default();
        let runners = Runners::connect(&config.pools, &installation).await;
        let servers = server::check(config, Some(&store)).await;
        Ok(Self {
            pools: config.pools.clone(),
            programs: Programs::of(&servers),
            explainer: Explainer {
                // This passes no store, because only the server may write the providers' request limits there.
                providers: pools::providers(&located(config, Some(&store)).await, &installation, None, &runners),
                store,
                deadlines: config.deadlines.clone(),
                max_recovery_attempts: config.max_recovery_attempts.into(),
                provider_timeout: TIMEOUT,
                audience: Audience::Operator,
                now: Timestamp::now(),
            },
        })
    }
}

impl Doctor {
    /// Returns the problems of a pool's provider.
    async fn problems(&self, pool: &str) -> Vec<String> {
        match self.pools.iter().find(|configured| configured.name == pool) {
            Some(configured) => pool::problems(configured, &self.explainer.providers, &self.programs).await,
            None => {
                vec![format!("the pool {pool} is no longer configured; `greenroom pools remove {pool}` removes it")]
            }
        }
    }
}

async fn inspect_store(config: &Config) -> Result<Option<StoreInspection>, StoreError> {
    match tokio::time::timeout(TIMEOUT, Store::inspect(config.database.expose_secret())).await {
        Ok(inspected) => inspected,
        Err(_) => Err(StoreError::timed_out("open")),
    }
}

/// Examines everything that the configuration names.
pub async fn examine(config: &Config) -> Vec<Examined> {
    let inspected = inspect_store(config).await;
    let of_store = store(config, &inspected).await;
    // A database of another version cannot be read.
    let store = inspected
        .ok()
        .flatten()
        .filter(|inspected| inspected.found == inspected.known)
        .map(|inspected| inspected.store);
    let servers = server::check(config, store.as_ref()).await;
    let mut examined = vec![
        Examined { of: "configuration".to_owned(), checks: configuration(config, &servers) },
        Examined { of: "store".to_owned(), checks: of_store },
        Examined { of: "server".to_owned(), checks: servers.checks.clone() },
    ];
    examined.push(Examined { of: "bus".to_owned(), checks: vec![bus(config).await] });
    let installation = match &store {
        Some(store) => store.setting(INSTALLATION).await.ok().flatten().unwrap_or_default(),
        None => String::new(),
    };
    let runners = Runners::connect(&config.pools, &installation).await;
    let located = located(config, store.as_ref()).await;
    let providers = pools::providers(&located, &installation, None, &runners);
    let programs = Programs::of(&servers);
    let measured = match &store {
        // A database that does not answer is in another check.
        Some(store) => memory::measured(store, &config.pools).await.unwrap_or_default(),
        None => Vec::new(),
    };
    for pool in &config.pools {
        let mut checks = pool::provider(pool, &providers, &programs).await;
        if let Some(store) = &store {
            let provider = providers.get(&pool.name).map(|provider| &**provider);
            let stored = pool::stored(store, pool, provider, &servers).await;
            checks.extend(stored.unwrap_or_else(|error| vec![Check::bad("slots", error.to_string())]));
            let recipe = provider.and_then(|provider| provider.recipe());
            checks.extend(outdated(store, pool, recipe).await);
            if let Some(provider) = provider {
                checks.extend(memory::check(pool, provider, &measured).await);
            }
        }
        examined.push(Examined { of: format!("pool {} ({})", pool.name, pool.provider.as_str()), checks });
    }
    if let Some(store) = &store {
        match pool::check_unconfigured(store, &config.pools, &servers).await {
            Ok(left) => examined.extend(left.into_iter().map(|(left, check)| Examined {
                of: format!("pool {} ({}), not in the configuration", left.name, left.provider),
                checks: vec![check],
            })),
            Err(error) => {
                let checks = vec![Check::bad("left", error.to_string())];
                examined.push(Examined { of: "pools that are not in the configuration".to_owned(), checks });
            }
        }
        examined.push(Examined { of: "queue".to_owned(), checks: vec![queue(store).await] });
    }
    if let Some(store) = store {
        store.close().await;
    }
    examined
}

/// Returns the configured pools with the folders in which the server has their slots.
async fn located(config: &Config, store: Option<&Store>) -> Vec<PoolConfig> {
    match store {
        Some(store) => pools::located(store, &config.pools).await.unwrap_or_else(|_| config.pools.clone()),
        None => config.pools.clone(),
    }
}

fn configuration(config: &Config, servers: &Servers) -> Vec<Check> {
    let file = match &config.file {
        Some(file) => Check::good("file", format!("{} is valid", file.display())),
        None => Check::good("file", "there is no configuration file; the defaults apply"),
    };
    // If a server runs, the address that it gives to its bots counts.
    let url = servers.on_this_machine().map_or_else(|| config_url(config), |facts| facts.public_url.clone());
    let elsewhere: Vec<&str> =
        config.pools.iter().filter(|pool| !pool.provider.shares_loopback()).map(|pool| pool.name.as_str()).collect();
    let reached = match elsewhere.as_slice() {
        pools if !pools.is_empty() && is_loopback(&url) => Check::bad(
            "public_url",
            format!(
                "bots of {} get the address {url}, which leads to their own machine and not to this server. Set \
                 `public_url` to an address that they can reach, and `listen` to an address that other machines can \
                 reach",
                pools.join(", ")
            ),
        ),
        _ => Check::good("public_url", format!("bots reach this server at {url}")),
    };
    vec![file, reached]
}

/// The address at which bots reach a server of this configuration.
fn config_url(config: &Config) -> String {
    config.public_url.clone().unwrap_or_else(|| format!("http://{}", config.listen))
}

/// Whether an address means the machine of the caller.
pub fn is_loopback(url: &str) -> bool {
    let host = url.split("://").nth(1).unwrap_or(url);
    let host = host.split('/').next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    host == "localhost" || host == "0.0.0.0" || host == "[::1]" || host == "[::]" || host.starts_with("127.")
}

async fn store(config: &Config, inspected: &Result<Option<StoreInspection>, StoreError>) -> Vec<Check> {
    let shown = config.database_shown();
    let StoreInspection { store, found, known } = match inspected {
        Ok(Some(inspected)) => inspected,
        Ok(None) => return vec![Check::doubtful("reachable", format!("{shown}: {}", DoctorError::NotYet))],
        Err(error) => return vec![Check::bad("reachable", format!("{shown}: {error}"))],
    };
    let reachable = Check::good("reachable", shown);
    let schema = match found.cmp(known) {
        std::cmp::Ordering::Equal => Check::good("schema", format!("version {known}, as this program needs")),
        std::cmp::Ordering::Less => Check::doubtful(
            "schema",
            format!("version {found}, but this program needs {known}; the next start of the server migrates it"),
        ),
        std::cmp::Ordering::Greater => Check::bad(
            "schema",
            format!("version {found}, but this program needs {known}; use a newer version of Greenroom"),
        ),
    };
    // On SQLite there is at most one server, and so no leader.
    if found != known || !store.is_shared() {
        return vec![reachable, schema];
    }
    let leader = match store.lease_holder(&Lease::Keepers).await {
        Ok(Some(holder)) => Check::good("leader", format!("{} leads the keepers", holder.name)),
        Ok(None) => Check::doubtful("leader", "no replica leads the keepers; probably no server is running"),
        Err(error) => Check::bad("leader", error.to_string()),
    };
    vec![reachable, schema, leader]
}

async fn bus(config: &Config) -> Check {
    let Some(url) = &config.redis else {
        return Check::good("reachable", "inside each server process; `redis` is not set");
    };
    match tokio::time::timeout(TIMEOUT, bus::ping(url)).await {
        Ok(Ok(())) => Check::good("reachable", "Redis answers"),
        Ok(Err(message)) => Check::bad("reachable", format!("Redis is unavailable: {message}")),
        Err(_) => Check::bad("reachable", format!("Redis did not answer within {} s", TIMEOUT.as_secs())),
    }
}

/// Checks whether bots wait for a slot.
async fn queue(store: &Store) -> Check {
    let entries = match store.queue().await {
        Ok(entries) => entries,
        Err(error) => return Check::bad("waiting", error.to_string()),
    };
    let Some(first) = entries.iter().min_by_key(|entry| entry.queued_at) else {
        return Check::good("waiting", "no bot waits for a slot");
    };
    let (bots, now) = (if entries.len() == 1 { "bot waits" } else { "bots wait" }, Timestamp::now());
    Check::doubtful(
        "waiting",
        format!(
            "{} {bots} for a slot. Bot {} has waited longest: for the pool {}, since {}, until {}",
            entries.len(),
            first.bot_id,
            first.pool,
            moment(first.queued_at, now),
            moment(first.timeout_at, now)
        ),
    )
}

/// Returns how many hot slots still run an earlier configuration.
async fn outdated(store: &Store, pool: &PoolConfig, recipe: Option<String>) -> Option<Check> {
    let recipe = recipe.filter(|_| pool.standby == Standby::Running)?;
    let slots = match store.slots_of_pool(&pool.name).await {
        Ok(slots) => slots,
        Err(error) => return Some(Check::bad("hot slots", error.to_string())),
    };
    // A slot that is to be started again runs the old configuration until then.
    let runs = |slot: &&SlotRow| match slot.status {
        SlotStatus::Idle | SlotStatus::Busy => !slot.stopped,
        SlotStatus::Creating => slot.recipe.is_some(),
        SlotStatus::Error | SlotStatus::Draining => false,
    };
    let running: Vec<&SlotRow> = slots.iter().filter(runs).collect();
    let old = running.iter().filter(|slot| slot.recipe.as_ref() != Some(&recipe)).count();
    Some(match (old, running.len()) {
        (0, 0) => return None,
        (0, all) => Check::good("hot slots", format!("all {all} run the current image and command")),
        (old, all) => Check::doubtful(
            "hot slots",
            format!("{old} of {all} run an older image or command; the server replaces idle ones one by one"),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn a_loopback_address_is_recognised() {
        for url in ["http://127.0.0.1:7700", "http://localhost", "http://[::1]:7700/x", "http://0.0.0.0:80"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["https://green.example.com", "http://10.0.0.7:7700", "http://host.docker.internal:7700"] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
