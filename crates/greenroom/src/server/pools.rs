//! Pools as configured: their rows in the store, and the provider of each.

use std::path::PathBuf;
use std::sync::Arc;

use crate::config::pool::{PoolConfig, Standby};
use crate::config::provider::Provider as Kind;
use crate::providers::docker::DockerProvider;
use crate::providers::nomad::NomadProvider;
use crate::providers::process::ProcessProvider;
use crate::providers::swarm::SwarmProvider;
use crate::providers::{Provider, Providers};
use crate::store::{PoolRow, Store, StoreError};

/// Where slots of the process provider have their folders, below the current one.
const FOLDER: &str = "greenroom-slots";

/// Brings the rows of the pools to what is configured.
pub async fn configure(store: &Store, pools: &[PoolConfig]) -> Result<(), StoreError> {
    let mut tx = store.begin_alone().await?;
    tx.unplace_pools().await?;
    for (place, pool) in pools.iter().enumerate() {
        let row = PoolRow {
            name: pool.name.clone(),
            platform: pool.platform,
            provider: pool.provider.as_str().to_owned(),
            hot: pool.standby == Standby::Running,
            recycle_after: pool.recycle_after.into(),
            max_slots: pool.max_slots.into(),
            min_idle: pool.min_idle.into(),
            // Where there is no provider, there is nothing to give out.
            place: i64::try_from(place).ok().filter(|_| !matches!(pool.provider, Kind::Ec2(_))),
            slots: 0,
            mean_hold_ms: None,
        };
        tx.configure_pool(&row).await?;
    }
    tx.commit().await
}

/// The provider of each pool.
pub fn providers(pools: &[PoolConfig], installation: &str) -> Providers {
    let made = pools.iter().filter_map(|pool| Some((pool.name.clone(), provider(pool, installation)?)));
    Arc::new(made.collect())
}

fn provider(pool: &PoolConfig, installation: &str) -> Option<Arc<dyn Provider>> {
    let installation = installation.to_owned();
    Some(match &pool.provider {
        Kind::Process(command) => {
            let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")).join(FOLDER);
            let command = command.clone().unwrap_or_else(demo);
            Arc::new(ProcessProvider::new(folder, command, installation))
        }
        Kind::Docker(config) => Arc::new(DockerProvider::new(config.clone(), installation)),
        Kind::Swarm(config) => Arc::new(SwarmProvider::new(config.clone(), installation)),
        Kind::Nomad(config) => Arc::new(NomadProvider::new(config.clone(), installation)),
        Kind::Coolify(_) | Kind::Ec2(_) => {
            let provider = pool.provider.as_str();
            tracing::warn!(pool = pool.name, provider, "this version has no such provider: the pool is not used");
            return None;
        }
    })
}

/// The demo bot under our own agent.
fn demo() -> Vec<String> {
    let own = std::env::current_exe().map_or("greenroom".to_owned(), |path| path.display().to_string());
    [&own, "agent", "--", &own, "demo-bot"].map(str::to_owned).to_vec()
}
