//! The runners of all pools. Pools with the same AWS settings share their runners, and pick them up together.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws::{RunnerPool, Step};

use crate::config::ec2::Ec2Config;
use crate::config::pool::PoolConfig;
use crate::config::provider::ProviderConfig;

/// Set by tests, which then kill the server in the middle of picking up a runner.
const STAND_STILL_AT: &str = "TEST_STAND_STILL_AT";

/// The runners of each pool that has some, by the pool's name.
#[derive(Clone, Debug, Default)]
pub struct Runners(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Each once, with the name of the first pool that has it.
    runner_pools: Vec<(String, RunnerPool)>,
    /// Which of them a pool has.
    of: BTreeMap<String, usize>,
}

impl Runners {
    /// Opens what the pools name. Nothing is asked of AWS yet.
    pub async fn connect(pools: &[PoolConfig], installation: &str) -> Self {
        let (shared, of) = shared(pools);
        let mut runner_pools = Vec::new();
        for (name, config) in shared {
            let pool = RunnerPool::connect(config.settings(installation)).await;
            pool.stand_still_at(std::env::var(STAND_STILL_AT).ok().and_then(|word| Step::named(&word)));
            runner_pools.push((name, pool));
        }
        Self(Arc::new(Inner { runner_pools, of }))
    }

    pub fn of(&self, pool: &str) -> Option<&RunnerPool> {
        self.0.of.get(pool).and_then(|index| self.0.runner_pools.get(*index)).map(|(_, pool)| pool)
    }

    /// The pools that have the same runners as this one, itself included.
    pub fn sharing<'a>(&'a self, pool: &str) -> impl Iterator<Item = &'a str> {
        let index = self.0.of.get(pool).copied();
        self.0.of.iter().filter(move |(_, of)| Some(**of) == index).map(|(name, _)| name.as_str())
    }

    /// Each once, with the name of the first pool that has it.
    pub fn each(&self) -> &[(String, RunnerPool)] {
        &self.0.runner_pools
    }

    pub fn is_empty(&self) -> bool {
        self.0.runner_pools.is_empty()
    }
}

/// What pools have in common, made one, with the name of the first; and which of these each pool has.
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
