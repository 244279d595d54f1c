//! The configuration, from the file, the environment and the flags in rising order. It is read by type and checked as a
//! whole. All errors are reported together, each in one sentence.
//!
//! - this file: the configuration itself
//! - [`layers`]: the sources of settings
//! - [`section`]: reads settings by type
//! - [`pool`]: the pools
//! - [`provider`]: the providers of pools
//! - [`ec2`]: the settings of the EC2 provider
//! - [`stored_provider`]: the provider settings that the database stores
//! - [`attributes`]: the attributes of slots
//! - [`retention`]: how long data is kept
//! - [`duration`]: durations such as `90s` and `5m`

pub mod attributes;
pub mod duration;
pub mod ec2;
pub mod layers;
pub mod pool;
pub mod provider;
pub mod retention;
pub mod section;
pub mod stored_provider;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::Deadlines;
use domain::planner::QueueOrder;
use secrecy::{ExposeSecret, SecretString};

use layers::{Origin, Tree};
use pool::PoolConfig;
use provider::ProviderConfig;
pub use retention::RetentionConfig;
use section::Section;

/// The file that is read if the operator names none.
pub const DEFAULT_FILE: &str = "greenroom.toml";

#[derive(Clone, Debug)]
pub struct Config {
    pub listen: String,
    /// The address at which bots reach the server. If absent, it is derived from the listen address.
    pub public_url: Option<String>,
    /// May contain a password.
    pub database: SecretString,
    pub redis: Option<SecretString>,
    /// The Redis URL that bots get. If absent, they get none.
    pub bots_redis: Option<SecretString>,
    pub admin_token: Option<SecretString>,
    pub deadlines: Deadlines,
    /// The order of service for bots with the same priority.
    pub queue_order: QueueOrder,
    pub limits: LimitsConfig,
    pub retention: RetentionConfig,
    /// The collector that gets traces. It may contain a password.
    pub otlp_endpoint: Option<SecretString>,
    /// On each host.
    pub max_concurrent_deployments: u32,
    /// How long a pull may make no progress.
    pub pull_stall: Duration,
    pub max_recovery_attempts: u32,
    pub pools: Vec<PoolConfig>,
    /// Whether the pools are configured. If false, they are the defaults.
    pub has_own_pools: bool,
    /// The file it came from, if any.
    pub file: Option<PathBuf>,
}

/// The limits of the server's load. Above them the server refuses requests with 503 `overloaded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Connections of all clients together.
    pub connections: u32,
    /// Open event streams of one user.
    pub streams_per_key: u32,
    /// Requests for bots that wait to be placed.
    pub waiting_requests: u32,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self { connections: 15_000, streams_per_key: 100, waiting_requests: 10_000 }
    }
}

/// The sources of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file that the operator named. Without it, [`DEFAULT_FILE`] is read if it exists.
    pub file: Option<PathBuf>,
    pub variables: BTreeMap<String, String>,
    /// `key=value`, as from `--set`.
    pub flags: Vec<String>,
}

/// All errors in a configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Complaints(pub Vec<String>);

impl fmt::Display for Complaints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "the configuration has 1 error:")?,
            count => write!(f, "the configuration has {count} errors:")?,
        }
        for complaint in &self.0 {
            write!(f, "\n  - {complaint}.")?;
        }
        Ok(())
    }
}

impl std::error::Error for Complaints {}

impl Config {
    pub fn load(sources: &Sources) -> Result<Self, Complaints> {
        let mut complaints = Vec::new();
        let (mut tree, file) = read_file(sources.file.as_deref(), &mut complaints);
        layers::lay_environment(&mut tree, &sources.variables, &mut complaints);
        for flag in &sources.flags {
            layers::lay_flag(&mut tree, flag, &mut complaints);
        }
        let config = read(tree, file, &sources.variables, &mut complaints);
        if complaints.is_empty() { Ok(config) } else { Err(Complaints(complaints)) }
    }
}

fn read_file(named: Option<&Path>, complaints: &mut Vec<String>) -> (Tree, Option<PathBuf>) {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => return (Tree::empty(), None),
        Err(error) => {
            complaints.push(format!("the file {} cannot be read: {error}", path.display()));
            return (Tree::empty(), None);
        }
    };
    match text.parse::<toml::Table>() {
        Ok(table) => (Tree::from_toml(table, &Origin::File(path.to_owned())), Some(path.to_owned())),
        Err(error) => {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            complaints.push(format!("{} is not valid TOML at line {line}: {}", path.display(), error.message()));
            (Tree::empty(), None)
        }
    }
}

fn read(
    tree: Tree,
    file: Option<PathBuf>,
    variables: &BTreeMap<String, String>,
    complaints: &mut Vec<String>,
) -> Config {
    let defaults = Deadlines::default();
    let mut root = Section::new("", tree, complaints);

    let listen = root.text("listen").unwrap_or_else(|| "127.0.0.1:7700".to_owned());
    if !listen.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
        root.complain(format!("`listen` is `{listen}`, but must be an address with a port, such as 127.0.0.1:7700"));
    }
    let public_url = root.text("public_url").map(|url| url.trim_end_matches('/').to_owned());
    if public_url.as_deref().is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
        root.complain("`public_url` must begin with http:// or https://".to_owned());
    }
    let database = root.text("database").unwrap_or_else(|| "sqlite:greenroom.db".to_owned());
    if !["sqlite:", "postgres://", "postgresql://"].iter().any(|scheme| database.starts_with(scheme)) {
        root.complain("`database` must begin with sqlite:, postgres:// or postgresql://".to_owned());
    }
    let redis = redis_url(&mut root, "redis");
    let bots_redis = redis_url(&mut root, "bots_redis");
    if bots_redis.is_some() && redis.is_none() {
        root.complain("`bots_redis` needs `redis`: without it the server publishes no commands for bots".to_owned());
    }
    let admin_token = root.text("admin_token");

    let mut queue = root.section("queue");
    let queue_default = queue.duration("default_timeout", defaults.queue_default);
    let queue_max = queue.duration("max_timeout", defaults.queue_max);
    let queue_poll = queue.duration("poll_interval", defaults.queue_poll);
    let orders = [("arrival", QueueOrder::Arrival), ("fair", QueueOrder::Fair)];
    let queue_order = queue.word("order", &orders).unwrap_or_default();
    queue.finish();

    let mut deploy = root.section("deploy");
    let max_concurrent_deployments = deploy.number("max_concurrent", 4, 1..=10_000);
    let deploy_timeout = deploy.duration("timeout", defaults.deploy);
    let pull_stall = deploy.duration("pull_stall", Duration::from_mins(2));
    deploy.finish();

    let mut recovery = root.section("recovery");
    let recovery_interval = recovery.duration("interval", defaults.recovery_interval);
    let max_recovery_attempts = recovery.number("max_attempts", 3, 1..=1_000);
    recovery.finish();

    let mut sync = root.section("sync");
    let sync_interval = sync.duration("interval", defaults.sync_interval);
    let sync_grace = sync.duration("grace", defaults.sync_grace);
    sync.finish();

    let mut sweeper = root.section("sweeper");
    let sweeper_interval = sweeper.duration("interval", defaults.sweeper_interval);
    let no_start = sweeper.duration("no_start", defaults.no_start);
    let no_join = sweeper.duration("no_join", defaults.no_join);
    let heartbeat_lost = sweeper.duration("heartbeat_lost", defaults.heartbeat_lost);
    let stop_grace = sweeper.duration("stop_grace", defaults.stop_grace);
    sweeper.finish();

    let mut heartbeat = root.section("heartbeat");
    let heartbeat_interval = heartbeat.duration("interval", defaults.heartbeat_interval);
    heartbeat.finish();

    let mut limits = root.section("limits");
    let most = LimitsConfig::default();
    let limits = {
        let read = LimitsConfig {
            connections: limits.number("connections", most.connections, 1..=1_000_000),
            streams_per_key: limits.number("streams_per_key", most.streams_per_key, 1..=1_000_000),
            waiting_requests: limits.number("waiting_requests", most.waiting_requests, 1..=1_000_000),
        };
        limits.finish();
        read
    };

    let mut retention = root.section("retention");
    let kept = RetentionConfig::read(&mut retention);
    retention.finish();

    let mut schedule = root.section("schedule");
    let expected_duration = schedule.duration("expected_duration", defaults.expected_duration);
    schedule.finish();

    let mut telemetry = root.section("telemetry");
    let otlp_endpoint = telemetry.read("otlp_endpoint", "an address", |value| {
        let url = value.as_str().and_then(|text| url::Url::parse(text).ok());
        let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        url.map(|url| url.to_string())
            .ok_or_else(|| "must be an http or https address, such as http://127.0.0.1:4318".to_owned())
    });
    telemetry.finish();

    let pools = root.list("pool");
    root.finish();

    let deadlines = Deadlines {
        queue_default,
        queue_max,
        queue_poll,
        deploy: deploy_timeout,
        recovery_interval,
        sync_interval,
        sync_grace,
        sweeper_interval,
        no_start,
        no_join,
        heartbeat_lost,
        stop_grace,
        heartbeat_interval,
        expected_duration,
    };
    complaints.extend(deadlines.contradictions());
    let has_own_pools = pools.is_some();
    let pools = read_pools(pools, variables, complaints);
    complaints.extend(pools.iter().filter_map(|pool| pool.ready_too_late(deadlines.no_start)));
    Config {
        listen,
        public_url,
        database: database.into(),
        redis: redis.map(Into::into),
        bots_redis: bots_redis.map(Into::into),
        admin_token: admin_token.map(Into::into),
        deadlines,
        queue_order,
        limits,
        retention: kept,
        otlp_endpoint: otlp_endpoint.map(Into::into),
        max_concurrent_deployments,
        pull_stall,
        max_recovery_attempts,
        pools,
        has_own_pools,
        file,
    }
}

fn redis_url(root: &mut Section<'_>, key: &'static str) -> Option<String> {
    let url = root.text(key)?;
    if !url.starts_with("redis://") && !url.starts_with("rediss://") {
        root.complain(format!("`{key}` must begin with redis:// or rediss://"));
    }
    Some(url)
}

fn read_pools(
    pools: Option<Vec<Tree>>,
    variables: &BTreeMap<String, String>,
    complaints: &mut Vec<String>,
) -> Vec<PoolConfig> {
    let Some(pools) = pools else {
        let mut pools = pool::defaults();
        if let Some(size) = variables.get("MAX_POOL_SIZE") {
            match size.parse() {
                Ok(size) if (1..=pool::MOST_SLOTS).contains(&size) => {
                    pools.iter_mut().for_each(|pool| pool.max_slots = size);
                }
                _ => complaints.push(format!(
                    "the environment variable MAX_POOL_SIZE is `{size}`, but must be from 1 to {}",
                    pool::MOST_SLOTS
                )),
            }
        }
        return pools;
    };
    let pools: Vec<PoolConfig> =
        pools.into_iter().enumerate().filter_map(|(index, tree)| pool::read(index, tree, complaints)).collect();
    for (index, pool) in pools.iter().enumerate() {
        if pools[..index].iter().any(|earlier| earlier.name == pool.name) {
            complaints.push(format!("`pool`: two pools have the `name` `{}`", pool.name));
        }
        for earlier in &pools[..index] {
            if let (ProviderConfig::Ec2(one), ProviderConfig::Ec2(other)) = (&earlier.provider, &pool.provider)
                && let Some(what) = one.contradiction(other)
            {
                let (one, other) = (&earlier.name, &pool.name);
                complaints
                    .push(format!("`pool`: the pools `{one}` and `{other}` share their runners, but differ in {what}"));
            }
        }
    }
    pools
}

impl Config {
    /// The address of the database, without the user, the password and the parameters.
    pub fn database_shown(&self) -> String {
        let url = self.database.expose_secret();
        let url = url.split(['?', '#']).next().unwrap_or_default();
        match url.split_once("://") {
            Some((scheme, rest)) => {
                let (authority, path) = rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
                let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                format!("{scheme}://{host}/{path}")
            }
            None => url.to_owned(),
        }
    }
}
