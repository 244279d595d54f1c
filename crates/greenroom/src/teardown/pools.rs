//! This module finds the pools to remove and reaches their providers: by the configuration, or by the settings that the
//! database keeps of a pool that left it.

use std::path::PathBuf;

use secrecy::ExposeSecret;

use super::TeardownError;
use crate::config::pool::{PoolConfig, Standby};
use crate::config::provider::{ProviderConfig, Size};
use crate::config::stored_provider::StoredProvider;
use crate::server::pools as configured;
use crate::store::{PoolRow, StoredPool};

/// Returns a pool as the database keeps it.
pub fn restore(row: &PoolRow, stored: &StoredPool, configured: &[PoolConfig]) -> Result<PoolConfig, TeardownError> {
    let provider: StoredProvider = serde_json::from_str(&stored.settings).unwrap_or_default();
    let size = |slots: i64| u32::try_from(slots).unwrap_or(u32::MAX);
    let size = Size { max_slots: size(row.max_slots).max(1), min_idle: 0 };
    let secret = |variable: &str| {
        let secret = std::env::var(variable).ok().filter(|value| !value.is_empty());
        secret.or_else(|| secret_of_another(&provider, &row.provider, configured))
    };
    let restored = provider.restore(&row.name, &row.provider, size, secret)?;
    on_this_machine(row, &restored)?;
    Ok(PoolConfig {
        idle_timeout: None,
        prewarm: None,
        name: row.name.clone(),
        platform: row.platform,
        provider: restored,
        stored_provider: provider,
        max_slots: size.max_slots,
        min_idle: 0,
        standby: if row.hot { Standby::Running } else { Standby::Stopped },
        recycle_after: u32::try_from(row.recycle_after).unwrap_or(1),
        attributes: row.attributes_of_new(),
        expire_after: None,
    })
}

/// Checks that the pool's processes are on this machine: they can only be ended there.
pub fn on_this_machine(row: &PoolRow, provider: &ProviderConfig) -> Result<(), TeardownError> {
    if !matches!(provider, ProviderConfig::Process(_)) || row.host == configured::host(provider) || row.slots == 0 {
        return Ok(());
    }
    let host = row.host.strip_prefix("process ").unwrap_or(&row.host).to_owned();
    Err(TeardownError::Elsewhere { pool: row.name.clone(), host })
}

/// Returns the secret of a configured pool at the same address, which is the same secret.
fn secret_of_another(stored: &StoredProvider, kind: &str, configured: &[PoolConfig]) -> Option<String> {
    let is = |key: &str, value: &str| stored.section.get(key).and_then(|stored| stored.as_str()) == Some(value);
    configured.iter().find_map(|pool| match &pool.provider {
        ProviderConfig::Coolify(config) if kind == "coolify" && is("api_url", &config.api_url) => {
            Some(config.api_token.expose_secret().to_owned())
        }
        ProviderConfig::Nomad(config) if kind == "nomad" && is("address", &config.address) => {
            Some(config.token.as_ref()?.expose_secret().to_owned())
        }
        _ => None,
    })
}

/// The folder for slots that are processes.
pub fn folder(stored: &StoredPool) -> Option<PathBuf> {
    serde_json::from_str::<StoredProvider>(&stored.settings).ok()?.folder
}
