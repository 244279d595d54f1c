//! This module applies the configuration of pools: it writes their rows in the store and creates the provider of each
//! pool.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::Attributes;
use jiff::Timestamp;
use secrecy::ExposeSecret;

use crate::config::pool::{PoolConfig, Prewarm, Standby};
use crate::config::provider::{CoolifyConfig, ProviderConfig};
use crate::config::stored_provider::StoredProvider;
use crate::providers::budget::Budget;
use crate::providers::coolify::{Coolify, CoolifyProvider, Pace, address};
use crate::providers::docker::DockerProvider;
use crate::providers::docker::engine::host_of;
use crate::providers::ec2::{Ec2Provider, Runners};
use crate::providers::measured::MeasuredProvider;
use crate::providers::nomad::NomadProvider;
use crate::providers::process::{self, ProcessProvider};
use crate::providers::swarm::SwarmProvider;
use crate::providers::{Provider, Providers};
use crate::store::{Changed, PoolRow, Store, StoreError, Tx};

/// The folder for slots of the process provider, below the current folder.
const FOLDER: &str = "greenroom-slots";
/// The period for which Coolify limits requests.
const MINUTE: Duration = Duration::from_secs(60);

/// Updates the rows of the pools to the configuration.
pub async fn configure(
    store: &Store,
    pools: &[PoolConfig],
    providers: &Providers,
    now: Timestamp,
) -> Result<(), StoreError> {
    let before = store.pools().await?;
    let mut tx = store.begin_changing(&Changed::everything(), now).await?;
    tx.unconfigure_pools().await?;
    for (position, pool) in pools.iter().enumerate() {
        let row = PoolRow {
            name: pool.name.clone(),
            platform: pool.platform,
            provider: pool.provider.as_str().to_owned(),
            host: host(&pool.provider),
            // A runner belongs to a pool only while it has a bot.
            hot: pool.standby == Standby::Running && !pool.provider.provisioned_per_bot(),
            recycle_after: pool.recycle_after.into(),
            max_slots: pool.max_slots.into(),
            min_idle: pool.min_idle.into(),
            fill_order: i64::try_from(position).ok(),
            slots: 0,
            mean_hold_ms: None,
            attribute_sets: attribute_sets(&mut tx, pool).await?,
            expire_after_ms: pool.expire_after.and_then(|time| i64::try_from(time.as_millis()).ok()),
            idle_timeout_ms: pool.idle_timeout.and_then(|time| i64::try_from(time.as_millis()).ok()),
            ready_timeout_ms: pool.prewarm.and_then(|prewarm| i64::try_from(prewarm.ready_timeout.as_millis()).ok()),
            max_warm_age_ms: pool
                .prewarm
                .and_then(|prewarm| prewarm.max_warm_age)
                .and_then(|age| i64::try_from(age.as_millis()).ok()),
            recipe: providers.get(&pool.name).and_then(|provider| provider.recipe()),
        };
        let before = before.iter().find(|before| before.name == row.name);
        if before.is_some_and(|before| before.expire_after_ms != row.expire_after_ms) {
            let expires_at = pool.expire_after.and_then(|time| now.checked_add(time).ok());
            tx.change_expiry(&row.name, expires_at).await?;
        }
        tx.configure_pool(&row).await?;
        tx.keep_pool_settings(&row.name, &stored(pool)).await?;
        tx.move_deployments(&row.name, &row.host).await?;
    }
    tx.commit().await
}

/// Returns the stored settings of a pool's provider. With them, the slots can be deleted after the pool has left the
/// configuration.
fn stored(pool: &PoolConfig) -> String {
    let host = match &pool.provider {
        ProviderConfig::Docker(config) | ProviderConfig::Swarm(config) => Some(host_of(config.host.as_deref())),
        _ => None,
    };
    let stored = pool.stored_provider.clone().located(&pool.provider, host.as_deref(), &slot_folder());
    serde_json::to_string(&stored).unwrap_or_else(|_| "{}".to_owned())
}

/// The default folder for slots that are processes. A folder that the database has takes precedence.
fn slot_folder() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")).join(FOLDER)
}

/// Returns the pools with the folders in which a server has, or had, their slots.
pub async fn located(store: &Store, pools: &[PoolConfig]) -> Result<Vec<PoolConfig>, StoreError> {
    let stored = store.stored_pools().await?;
    let folder = |pool: &PoolConfig| {
        let stored = stored.iter().find(|stored| stored.name == pool.name)?;
        serde_json::from_str::<StoredProvider>(&stored.settings).ok()?.folder
    };
    Ok(pools
        .iter()
        .map(|pool| {
            let mut pool = pool.clone();
            pool.stored_provider.folder = folder(&pool);
            pool
        })
        .collect())
}

/// A pool that is no longer configured, and how many slots and bots it still has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnconfiguredPool {
    pub name: String,
    pub provider: String,
    pub slots: i64,
    /// How many of these slots have a bot.
    pub bots: i64,
}

/// Returns the pools of the store that are not in the configuration.
pub async fn unconfigured(store: &Store, configured: &[PoolConfig]) -> Result<Vec<UnconfiguredPool>, StoreError> {
    let mut left = Vec::new();
    for row in store.pools().await? {
        if configured.iter().any(|pool| pool.name == row.name) {
            continue;
        }
        let slots = store.slots_of_pool(&row.name).await?;
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let bots = count(slots.iter().filter(|slot| slot.bot_id.is_some()).count());
        left.push(UnconfiguredPool { name: row.name, provider: row.provider, slots: count(slots.len()), bots });
    }
    Ok(left)
}

/// The host whose gate the slots of a pool pass: the provider's kind and its address.
pub fn host(provider: &ProviderConfig) -> String {
    let address = match provider {
        ProviderConfig::Process(_) => super::host(),
        ProviderConfig::Docker(config) | ProviderConfig::Swarm(config) => host_of(config.host.as_deref()),
        ProviderConfig::Nomad(config) => config.address.trim_end_matches('/').to_owned(),
        ProviderConfig::Coolify(config) => address(&config.api_url).to_owned(),
        ProviderConfig::Ec2(config) => config.region.clone(),
    };
    format!("{} {address}", provider.as_str())
}

/// Returns the attributes of a pool's slots, those of new slots first. Where slots are provisioned per bot, these are
/// all that can be provisioned. A hot slot keeps the attributes that it was created with until it is recreated; other
/// slots are created for their bot.
pub(super) async fn attribute_sets(tx: &mut Tx, pool: &PoolConfig) -> Result<Vec<Attributes>, StoreError> {
    if let Some(provisionable) = pool.provider.provisionable() {
        return Ok(provisionable);
    }
    let mut sets = vec![pool.attributes.clone()];
    if pool.standby == Standby::Stopped {
        tx.change_attributes(&pool.name, &pool.attributes).await?;
    }
    for attributes in tx.attributes_of_idle(&pool.name).await? {
        if !sets.contains(&attributes) {
            sets.push(attributes);
        }
    }
    Ok(sets)
}

/// Creates the provider of each pool. With a store, all replicas share the request limits of providers; without one,
/// the limits hold for this process only.
pub fn providers(pools: &[PoolConfig], installation: &str, store: Option<&Store>, runners: &Runners) -> Providers {
    let mut maker = Maker { installation, store, runners, coolifies: BTreeMap::new(), most: lowest_limits(pools) };
    let made = pools.iter().filter_map(|pool| {
        let measured = MeasuredProvider::new(pool.provider.as_str(), maker.provider(pool)?);
        Some((pool.name.clone(), Arc::new(measured) as Arc<dyn Provider>))
    });
    Arc::new(made.collect())
}

/// Creates the providers of pools that may share something.
struct Maker<'a> {
    installation: &'a str,
    store: Option<&'a Store>,
    runners: &'a Runners,
    coolifies: BTreeMap<Key, Arc<Coolify>>,
    /// How many requests each Coolify allows per minute.
    most: BTreeMap<Key, u32>,
}

/// Identifies a Coolify: its address and the token.
type Key = (String, String);

fn key(config: &CoolifyConfig) -> Key {
    (address(&config.api_url).to_owned(), config.api_token.expose_secret().to_owned())
}

impl Maker<'_> {
    fn provider(&mut self, pool: &PoolConfig) -> Option<Arc<dyn Provider>> {
        let installation = self.installation.to_owned();
        let mut provider = pool.provider.clone();
        let environment = prewarm_environment(pool);
        // As a part of the configured environment it is also a part of the slots' recipe, so that slots with other
        // settings are replaced.
        if let Some(configured) = provider.environment_mut() {
            configured.extend(environment.clone());
        }
        Some(match &provider {
            ProviderConfig::Process(config) => Arc::new(ProcessProvider::new(process::Settings {
                folder: pool.stored_provider.folder.clone().unwrap_or_else(slot_folder),
                command: config.command.clone().unwrap_or_else(demo),
                user: config.user.clone(),
                environment,
                // In the child process, this is still the same binary, even if another version was installed in its
                // place.
                launcher: PathBuf::from("/proc/self/exe"),
                installation,
            })),
            ProviderConfig::Docker(config) => Arc::new(DockerProvider::new(config.clone(), installation)),
            ProviderConfig::Swarm(config) => Arc::new(SwarmProvider::new(config.clone(), installation)),
            ProviderConfig::Coolify(config) => Arc::new(CoolifyProvider::on(self.coolify(config), config.clone())),
            ProviderConfig::Nomad(config) => Arc::new(NomadProvider::new(config.clone(), installation)),
            ProviderConfig::Ec2(_) => Arc::new(Ec2Provider::new(self.runners.of(&pool.name)?.clone())),
        })
    }

    /// Pools on one Coolify share its cached state, and all replicas share its request limit.
    fn coolify(&mut self, config: &CoolifyConfig) -> Arc<Coolify> {
        let key = key(config);
        let most = self.most.get(&key).copied().unwrap_or(config.requests_per_minute);
        let made = || {
            let name = format!("coolify {}", address(&config.api_url));
            let budget = match self.store {
                Some(store) => Budget::new(store.clone(), name, most, MINUTE),
                None => Budget::in_process(name, most, MINUTE),
            };
            Coolify::new(config, self.installation.to_owned(), budget, Pace::of(most, MINUTE))
        };
        self.coolifies.entry(key).or_insert_with(made).clone()
    }
}

/// Returns the request limit of each Coolify. If its pools have different limits, the lowest holds for all of them.
fn lowest_limits(pools: &[PoolConfig]) -> BTreeMap<Key, u32> {
    let mut least = BTreeMap::new();
    for pool in pools {
        if let ProviderConfig::Coolify(config) = &pool.provider {
            let most = least.entry(key(config)).or_insert(config.requests_per_minute);
            *most = config.requests_per_minute.min(*most);
        }
    }
    least
}

/// The variables that tell the agents of a pool to start the bot's command ahead.
fn prewarm_environment(pool: &PoolConfig) -> BTreeMap<String, String> {
    let Some(Prewarm { ready_timeout, max_warm_age }) = pool.prewarm else { return BTreeMap::new() };
    let max_warm_age = max_warm_age.unwrap_or_default();
    BTreeMap::from([
        ("GREENROOM_PREWARM".to_owned(), "1".to_owned()),
        ("GREENROOM_READY_TIMEOUT_MS".to_owned(), ready_timeout.as_millis().to_string()),
        ("GREENROOM_MAX_WARM_AGE_MS".to_owned(), max_warm_age.as_millis().to_string()),
    ])
}

/// The command of the demo bot, under Greenroom's own agent.
fn demo() -> Vec<String> {
    let own = std::env::current_exe().map_or("greenroom".to_owned(), |path| path.display().to_string());
    [&own, "agent", "--", &own, "demo-bot"].map(str::to_owned).to_vec()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::pool;

    #[test]
    fn pools_on_one_host_share_its_gate_and_others_have_their_own() {
        let docker = |text: &str| {
            let toml = format!(
                "[[pool]]\nname = \"p\"\nplatform = \"zoom\"\nprovider = \"docker\"\ndocker = {{ image = \"b\"{text} }}"
            );
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("greenroom.toml");
            std::fs::write(&file, toml).unwrap();
            let sources = crate::config::Sources { file: Some(file), ..Default::default() };
            host(&crate::config::Config::load(&sources).unwrap().pools[0].provider)
        };
        assert_eq!(docker(", host = \"tcp://a:2375\""), "docker tcp://a:2375");
        assert_ne!(docker(", host = \"tcp://a:2375\""), docker(", host = \"tcp://b:2375\""));
        assert!(host(&pool::defaults()[0].provider).starts_with("process "));
    }

    #[test]
    fn pools_with_different_request_limits_for_one_coolify_use_the_lowest() {
        let config = |api_url: &str, requests_per_minute| CoolifyConfig {
            api_url: api_url.to_owned(),
            api_token: "token".into(),
            project_uuid: String::new(),
            server_uuid: String::new(),
            environment_name: String::new(),
            destination_uuid: None,
            image: String::new(),
            tag: String::new(),
            cpus: None,
            memory: None,
            env: BTreeMap::new(),
            requests_per_minute,
        };
        let all = [("https://a", 200), ("https://a/api/v1", 60), ("https://a/", 90), ("https://b", 120)];
        let pools: Vec<PoolConfig> = all
            .iter()
            .zip(pool::defaults().into_iter().cycle())
            .map(|((url, most), pool)| PoolConfig { provider: ProviderConfig::Coolify(config(url, *most)), ..pool })
            .collect();
        let found: Vec<(String, u32)> = lowest_limits(&pools).into_iter().map(|((url, _), most)| (url, most)).collect();
        assert_eq!(found, [("https://a".to_owned(), 60), ("https://b".to_owned(), 120)]);
    }
}
