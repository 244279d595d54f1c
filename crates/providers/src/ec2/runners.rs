//! The runners of all pools. Pools with the same AWS settings share one set of runners, so that each pool can pick up
//! any idle runner of the set.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws::{RunnerPool, Step};

use config::ec2::Ec2Config;
use config::pool::PoolConfig;
use config::provider::ProviderConfig;

/// Set by tests, which then kill the server in the middle of picking up a runner.
const STAND_STILL_AT: &str = "TEST_STAND_STILL_AT";

/// The runners of each EC2 pool, by the pool's name.
#[derive(Clone, Debug, Default)]
pub struct Runners(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Each set of runners once, with the name of the first pool that uses it.
    runner_pools: Vec<(String, RunnerPool)>,
    /// The index in `runner_pools` of each pool's runners.
    of: BTreeMap<String, usize>,
}

impl Runners {
    /// Prepares the AWS clients of the pools. It sends no request to AWS.
    pub async fn connect(pools: &[PoolConfig], installation: &str) -> Self {
        let (shared, of) = shared(pools);
        let mut runner_pools = Vec::new();
        for (name, config) in shared {
            let pool = RunnerPool::connect(config.settings(installation)).await;
            pool.pause_at(std::env::var(STAND_STILL_AT).ok().and_then(|word| Step::named(&word)));
            runner_pools.push((name, pool));
        }
        Self(Arc::new(Inner { runner_pools, of }))
    }

    pub fn of(&self, pool: &str) -> Option<&RunnerPool> {
        self.0.of.get(pool).and_then(|index| self.0.runner_pools.get(*index)).map(|(_, pool)| pool)
    }

    /// The pools that share their runners with this pool, including the pool itself.
    pub fn sharing<'a>(&'a self, pool: &str) -> impl Iterator<Item = &'a str> {
        let index = self.0.of.get(pool).copied();
        self.0.of.iter().filter(move |(_, of)| Some(**of) == index).map(|(name, _)| name.as_str())
    }

    /// Each set of runners once, with the name of the first pool that uses it.
    pub fn each(&self) -> &[(String, RunnerPool)] {
        &self.0.runner_pools
    }

    pub fn is_empty(&self) -> bool {
        self.0.runner_pools.is_empty()
    }
}

/// Merges pools with the same AWS settings. Returns each group of settings with the name of its first pool, and the
/// index of each pool's group.
pub fn shared(pools: &[PoolConfig]) -> (Vec<(String, Ec2Config)>, BTreeMap<String, usize>) {
    let mut configs: Vec<(String, Ec2Config)> = Vec::new();
    let mut of = BTreeMap::new();
    for pool in pools {
        let ProviderConfig::Ec2(config) = &pool.provider else { continue };
        let index = match configs.iter_mut().position(|(_, known)| known.key() == config.key()) {
            Some(index) => {
                configs[index].1.merge(config);
                index
            }
            None => {
                configs.push((pool.name.clone(), config.clone()));
                configs.len() - 1
            }
        };
        of.insert(pool.name.clone(), index);
    }
    (configs, of)
}
