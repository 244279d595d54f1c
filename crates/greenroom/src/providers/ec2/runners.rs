//! The runners of all pools. Pools at the same place have the same ones, and pick them up together.

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
    places: Vec<(String, RunnerPool)>,
    /// Which of them a pool has.
    of: BTreeMap<String, usize>,
}

impl Runners {
    /// Opens what the pools name. Nothing is asked of AWS yet.
    pub async fn connect(pools: &[PoolConfig], installation: &str) -> Self {
        let (shared, of) = shared(pools);
        let mut places = Vec::new();
        for (name, config) in shared {
            let pool = RunnerPool::connect(config.settings(installation)).await;
            pool.stand_still_at(std::env::var(STAND_STILL_AT).ok().and_then(|word| Step::named(&word)));
            places.push((name, pool));
        }
        Self(Arc::new(Inner { places, of }))
    }

    pub fn of(&self, pool: &str) -> Option<&RunnerPool> {
        self.0.of.get(pool).and_then(|place| self.0.places.get(*place)).map(|(_, pool)| pool)
    }

    /// The pools that have the same runners as this one, itself included.
    pub fn sharing<'a>(&'a self, pool: &str) -> impl Iterator<Item = &'a str> {
        let place = self.0.of.get(pool).copied();
        self.0.of.iter().filter(move |(_, of)| Some(**of) == place).map(|(name, _)| name.as_str())
    }

    /// Each once, with the name of the first pool that has it.
    pub fn each(&self) -> &[(String, RunnerPool)] {
        &self.0.places
    }

    pub fn is_empty(&self) -> bool {
        self.0.places.is_empty()
    }
}

/// What pools have in common, made one, with the name of the first; and which of these each pool has.
pub fn shared(pools: &[PoolConfig]) -> (Vec<(String, Ec2Config)>, BTreeMap<String, usize>) {
    let mut places: Vec<(String, Ec2Config)> = Vec::new();
    let mut of = BTreeMap::new();
    for pool in pools {
        let ProviderConfig::Ec2(config) = &pool.provider else { continue };
        let place = match places.iter_mut().position(|(_, place)| place.key() == config.key()) {
            Some(place) => {
                places[place].1.merge(config);
                place
            }
            None => {
                places.push((pool.name.clone(), config.clone()));
                places.len() - 1
            }
        };
        of.insert(pool.name.clone(), place);
    }
    (places, of)
}
