//! This module starts and stops a server. It opens the store, creates what the first start needs, starts all parts, and
//! serves requests. It stops in order, so that no request is cut and no heartbeat is lost.
//!
//! - this file: start, run and stop
//! - [`first_start`]: what the first start creates
//! - [`pools`]: pools and their providers, as configured
//! - [`host_size`]: the size of hosts whose slots have no limits
//! - [`record`]: the row of a running server in the database
//! - [`background`]: background tasks
//! - [`health_log`]: the log of providers that do not answer
//! - [`listen`]: accepting and closing connections
//! - [`connection`]: serving one connection

mod background;
mod connection;
pub mod first_start;
mod health_log;
mod host_size;
mod listen;
pub(crate) mod pools;
pub(crate) mod record;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::admission::browser_sessions::BrowserSessions;
use crate::admission::{Admission, AdmissionError};
use crate::api::PoolMemoryCache;
use crate::api::gauges::Gauges;
use crate::api::middleware::Limits;
use crate::api::traffic_quota::Quotas;
use crate::api::{self, App, Inner};
use crate::bus::{BadUrl, Bus};
use crate::clock::Clock;
use crate::config::Config;
use crate::context::Context;
use crate::deployment::{Deployment, Parts, ProviderTimeouts};
use crate::keepers;
use crate::keepers::driver::Keepers;
use crate::keepers::leader::Leadership;
use crate::keepers::listening::ListeningWindow;
use crate::keepers::retention::Retention;
use crate::keepers::sweeper;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::tokens::Tokens;
use crate::live::Live;
use crate::placement::Placement;
use crate::providers::Providers;
use crate::providers::ec2::Runners;
use crate::random::{NoRandomness, Random};
use crate::readiness::Readiness;
use crate::runners::RunnerRegistry;
use crate::signals::Signals;
use crate::store::{Holder, ServerLock, Store, StoreError};
use crate::telemetry;
use crate::traces;
use crate::traces::export::Exporter;
use background::Background;
use connection::Times;
use first_start::FirstStart;
use listen::Listening;

/// How long the last writes may take.
const LAST_WRITES: Duration = Duration::from_secs(20);
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the first start failed: {0}")]
    First(#[from] AdmissionError),
    #[error("the first start failed: {0}")]
    Random(#[from] NoRandomness),
    #[error("the new credentials could not be printed, so the server did not store them: {0}")]
    Show(std::io::Error),
    #[error("cannot listen on {listen}: {source}")]
    Listen { listen: String, source: std::io::Error },
    #[error(
        "cannot listen on {listen}: another program uses this address; stop it, or choose another one with `--listen \
         127.0.0.1:7701` or with `listen` in the configuration"
    )]
    InUse { listen: String },
    #[error("the placement thread cannot be started: {0}")]
    Thread(std::io::Error),
    #[error("the HTTP client for traces cannot be made: {0}")]
    Traces(reqwest::Error),
    #[error(transparent)]
    Bus(#[from] BadUrl),
    #[error("a background task of the server ended unexpectedly; the log names it")]
    Broken,
}

/// A server that is started.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    pub(crate) app: App,
    listener: TcpListener,
    /// The limit of open connections.
    connections: usize,
    background: Background,
    /// The last field, so that the lock is released after everything else has ended.
    _lock: Option<ServerLock>,
}

// Boxed, so that the start of a server is compiled once for all callers.
type MakeProviders<'a> = Box<dyn FnOnce(&str, &Store, &Runners) -> Providers + Send + 'a>;
type ShowFirstStart<'a> = Box<dyn FnOnce(&str, &FirstStart) -> std::io::Result<()> + Send + 'a>;

impl Server {
    /// Opens everything. `show` gets the address and what the first start created. The kernel accepts connections from
    /// now on, and [`Server::run`] answers them.
    pub async fn start(
        config: &Config,
        show: impl FnOnce(&str, &FirstStart) -> std::io::Result<()> + Send,
    ) -> Result<Self, ServerError> {
        let providers = |installation: &str, store: &Store, runners: &Runners| {
            pools::providers(&config.pools, installation, Some(store), runners)
        };
        Self::start_on(config, Box::new(providers), Box::new(show)).await
    }

    /// Opens everything with other providers than the configured ones.
    pub(crate) async fn start_on(
        config: &Config,
        providers: MakeProviders<'_>,
        show: ShowFirstStart<'_>,
    ) -> Result<Self, ServerError> {
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::AddrInUse => ServerError::InUse { listen: config.listen.clone() },
            _ => ServerError::Listen { listen: config.listen.clone(), source },
        };
        let listener = TcpListener::bind(&config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let url = format!("http://{}", reachable(address));

        let lock = ServerLock::take(config.database.expose_secret()).await?;
        let store = Store::open(config.database.expose_secret()).await?;
        let context = Context::new(store.clone(), Clock::System, Random::System);
        let (clock, signals) = (context.clock.clone(), Signals::default());
        let admission = Admission::new(context.clone());
        let installation =
            first_start::create_missing(&context, &admission, config.admin_token.as_ref(), |first| show(&url, first))
                .await?;
        let tokens = Tokens::new(installation.signing_secret.expose_secret());
        let mut lifecycle = Lifecycle::new(context.clone(), signals.clone(), tokens.clone());

        // No other process uses the file, so everything that an earlier, killed process held is free.
        if !store.is_shared() {
            store.forget_servers(None).await?;
            let released = store.release_everything(clock.now()).await?;
            if released > 0 {
                tracing::info!(deployments = released, "deployments of an earlier process released");
            }
        }
        let runners = Runners::connect(&config.pools, &installation.id).await;
        let providers = providers(&installation.id, &store, &runners);
        let (pools, unknown) = host_size::fill_in(&store, &config.pools).await?;
        pools::configure(&store, &pools, &providers, clock.now()).await?;
        for left in pools::unconfigured(&store, &config.pools).await? {
            let pools::UnconfiguredPool { name, provider, slots, bots } = left;
            tracing::warn!(
                pool = name,
                provider,
                slots,
                bots,
                remedy = format!("greenroom pools remove {name}"),
                "pool no longer configured"
            );
        }
        let metrics = telemetry::metrics();
        traces::begin_counting();
        let mut background = Background::new();
        let (stopping, ending) = (CancellationToken::new(), background.ending.clone());
        if let Some(redis) = &config.redis {
            let (bus, work) = Bus::over_redis(redis, config.bots_redis.clone(), &installation.id, ending.clone())?;
            background.spawn("bus", work);
            lifecycle = lifecycle.with_bus(bus);
        }
        background.spawn("heartbeats", lifecycle.heartbeats.clone().keep_writing(store.clone(), ending.clone()));
        background.spawn("feed", lifecycle.feed.clone().follow(store.clone(), lifecycle.bus.clone(), ending.clone()));
        let (placement, placing) = Placement::begin(
            context.clone(),
            signals.clone(),
            admission.clone(),
            lifecycle.clone(),
            config.deadlines.clone(),
            config.queue_order,
            ending.clone(),
        );
        let placement = placement.with_waiting_requests(config.limits.waiting_requests as usize);
        background.spawn_thread("placement", placing).map_err(ServerError::Thread)?;
        let replica = Holder { id: uuid::Uuid::new_v4(), name: format!("{}:{}", host(), address.port()) };
        if let Some(endpoint) = &config.otlp_endpoint
            && let Some(spans) = traces::begin()
        {
            let exporter =
                Exporter::new(endpoint.expose_secret(), replica.name.clone()).map_err(ServerError::Traces)?;
            background.spawn("traces", exporter.run(spans, ending.clone()));
        }
        let public_url = config.public_url.clone().unwrap_or_else(|| url.clone());
        let deployment = Deployment::new(Parts {
            context: context.clone(),
            signals: signals.clone(),
            lifecycle: lifecycle.clone(),
            placement: placement.clone(),
            providers,
            deadlines: config.deadlines.clone(),
            max_concurrent: config.max_concurrent_deployments,
            max_recovery_attempts: config.max_recovery_attempts,
            public_url: public_url.clone(),
            timeouts: ProviderTimeouts { pull_stall: config.pull_stall, ..ProviderTimeouts::default() },
            replica: replica.clone(),
            ending: ending.clone(),
        });
        background.spawn("deployment", deployment.clone().work());
        background.spawn("slot memory", deployment.clone().keep_writing_memory());
        background.spawn("waiting slots", deployment.clone().keep_comparing_waiting_slots());
        background.spawn("descriptions", deployment.clone().describe());
        let (listening, readiness) = (ListeningWindow::new(clock.clone()), Readiness::new());
        // This comes before the keepers' first run, which is at once: listening time before this start counts.
        listening.record(&store).await?;
        let (keeper_list, expiry, copy_check) = keepers::build_keepers(keepers::Parts {
            context: context.clone(),
            signals: signals.clone(),
            lifecycle: lifecycle.clone(),
            placement: placement.clone(),
            deployment: deployment.clone(),
            deadlines: &config.deadlines,
            listening: listening.clone(),
            runners: runners.clone(),
            stats_kept: config.retention.stats,
            retention: Retention {
                bots: config.retention.bots,
                transcripts: config.retention.transcripts,
                idempotency_keys: config.retention.idempotency_keys,
                failures: config.retention.failures,
            },
        });
        let replica_id = replica.id;
        let leadership = Leadership::new(store.clone(), replica);
        let keepers = Keepers::new(&context, leadership.clone(), keeper_list);
        background.spawn("queue expiry", expiry.keep_time(leadership.clone(), ending.clone()));
        let leads = leadership.clone();
        background.spawn("copy check", copy_check.keep_comparing(move || leads.is_held(), ending.clone()));
        background.spawn("keepers", keepers.clone().keep(ending.clone()));
        background.spawn("leader", leadership.keep_leading(deployment.renewals(), listening.clone(), ending.clone()));
        let needed = sweeper::needed_listening(&config.deadlines);
        background.spawn(
            "listening",
            listening.keep_listening(store.clone(), needed, readiness.clone(), stopping.clone(), ending.clone()),
        );
        let facts = record::facts(config, &url, &public_url);
        record::record(&store, replica_id, &facts).await;
        background.spawn("server record", record::keep(store.clone(), replica_id, facts, ending.clone()));
        background.spawn(
            "host sizes",
            host_size::ask_unavailable_hosts(store.clone(), clock.clone(), unknown, ending.clone()),
        );
        background.spawn("health log", health_log::log_providers(deployment.clone(), ending.clone()));
        background.spawn("health", deployment.clone().keep_pinging());
        let (upkept, ended) = (metrics.clone(), ending.clone());
        background.spawn("metrics", async move {
            while !ended.is_cancelled() {
                upkept.run_upkeep();
                tokio::select! {
                    () = ended.cancelled() => {}
                    () = tokio::time::sleep(METRICS_UPKEEP) => {}
                }
            }
        });

        let runners = RunnerRegistry::new(runners, tokens, deployment.clone());
        let live = Live::new(store.for_users(), keepers.clone(), deployment.max_concurrent());
        background.spawn("live", live.clone().follow(ending.clone()));
        let sessions = BrowserSessions::new(admission.clone(), installation.admin_token_hash);
        let app = App::new(Inner {
            store: store.for_users(),
            clock,
            random: context.random,
            signals,
            admission,
            lifecycle,
            deadlines: config.deadlines.clone(),
            placement,
            deployment,
            keepers,
            live,
            runners,
            readiness,
            sessions,
            public_url,
            limits: Limits::default(),
            quotas: Quotas::new(config.limits.streams_per_key as usize),
            metrics,
            gauges: Gauges::default(),
            pool_memory: PoolMemoryCache::default(),
            stopping,
        });
        let connections = listen::possible_connections(config.limits.connections);
        Ok(Self { address, app, listener, connections, background, _lock: lock })
    }

    /// Serves until `stop` returns, then stops in order: it takes no new connections, answers waiting requests, ends
    /// background tasks, and writes collected heartbeats. When `stop` returns a second time, it no longer waits for
    /// requests.
    pub async fn run(mut self, mut stop: impl AsyncFnMut()) -> Result<(), ServerError> {
        let router = api::router(self.app.clone());
        let broken = self.background.broken.clone();
        let stopping = self.app.stopping.clone();
        let listening = Listening { connections: self.connections, times: Times::default(), stopping };
        let finished = listen::serve(self.listener, router, listening, &mut stop, &broken).await;
        let is_broken = broken.is_cancelled();
        let closed = async {
            self.background.end().await;
            self.app.store.close().await;
        };
        // A cut request may still hold its connection, and an unavailable database does not answer.
        let timeout = if finished { LAST_WRITES } else { LAST_WRITES / 10 };
        tokio::select! {
            () = closed => tracing::info!("server stopped"),
            () = tokio::time::sleep(timeout) => tracing::warn!("server shutdown timed out"),
            () = stop() => {}
        }
        if is_broken { Err(ServerError::Broken) } else { Ok(()) }
    }
}

/// The name of this machine.
pub(crate) fn host() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".to_owned())
}

/// Returns an address that a client can open: for an address that means all interfaces, this is the loopback address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    reachable
}
