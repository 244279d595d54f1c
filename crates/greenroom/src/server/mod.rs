//! From a configuration to a running server and back: opens the store, makes what the first start makes, serves, and
//! stops in order, so that no request is cut and no heartbeat is lost.
//!
//! - this file: the whole
//! - [`first`]: what is made once
//! - [`pools`]: pools and their providers, as configured
//! - [`listen`]: taking and closing connections

pub mod first;
mod listen;
mod pools;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admission::{Admission, AdmissionError};
use crate::api::around::Limits;
use crate::api::{self, App, Inner};
use crate::clock::Clock;
use crate::config::Config;
use crate::deployment::{Deployment, Parts};
use crate::keepers::sweeper::Sweeper;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::tokens::Tokens;
use crate::placement::Placement;
use crate::providers::Providers;
use crate::random::{NoRandomness, Random};
use crate::store::{Store, StoreError};
use crate::telemetry;
use first::First;

/// How long the last writes may take.
const LAST_WRITES: Duration = Duration::from_secs(20);
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the first start could not be finished: {0}")]
    First(#[from] AdmissionError),
    #[error("the first start could not be finished: {0}")]
    Random(#[from] NoRandomness),
    #[error("what was to be shown could not be written, and was not kept: {0}")]
    Show(std::io::Error),
    #[error("cannot listen on {listen}: {source}")]
    Listen { listen: String, source: std::io::Error },
}

/// A server that serves.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    pub(crate) app: App,
    listener: TcpListener,
    background: JoinSet<()>,
    ending: CancellationToken,
}

impl Server {
    /// Opens everything. `show` is told the address and what the first start made. Connections are taken from here on
    /// and answered by [`Server::run`].
    pub async fn start(
        config: &Config,
        show: impl FnOnce(&str, &First) -> std::io::Result<()>,
    ) -> Result<Self, ServerError> {
        Self::start_on(config, |installation| pools::providers(&config.pools, installation), show).await
    }

    /// Opens everything on other providers than the configured ones.
    pub(crate) async fn start_on(
        config: &Config,
        providers: impl FnOnce(&str) -> Providers,
        show: impl FnOnce(&str, &First) -> std::io::Result<()>,
    ) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { listen: config.listen.clone(), source };
        let listener = TcpListener::bind(&config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let url = format!("http://{}", reachable(address));

        let store = Store::open(config.database.expose_secret()).await?;
        let (clock, random) = (Clock::System, Random::System);
        let admission = Admission::new(store.clone(), clock.clone(), random.clone());
        let kept = first::keep(&admission, config.admin_token.as_ref(), |first| show(&url, first)).await?;
        let tokens = Tokens::new(kept.signing_secret.expose_secret());
        let lifecycle = Lifecycle::new(store.clone(), clock.clone(), random.clone(), tokens);

        pools::configure(&store, &config.pools).await?;
        let metrics = telemetry::metrics();
        let (stopping, ending) = (CancellationToken::new(), CancellationToken::new());
        let mut background = JoinSet::new();
        background.spawn(lifecycle.heartbeats.clone().keep_writing(store.clone(), ending.clone()));
        background.spawn(lifecycle.feed.clone().follow(store.clone(), ending.clone()));
        let (placement, placing) =
            Placement::begin(admission.clone(), lifecycle.clone(), config.deadlines.clone(), ending.clone());
        background.spawn(placing);
        let public_url = config.public_url.clone().unwrap_or_else(|| url.clone());
        let deployment = Deployment::new(Parts {
            store: store.clone(),
            lifecycle: lifecycle.clone(),
            placement: placement.clone(),
            providers: providers(&kept.installation),
            deadlines: config.deadlines.clone(),
            max_concurrent: config.max_concurrent_deployments,
            public_url: public_url.clone(),
            ending: ending.clone(),
        });
        background.spawn(deployment.clone().work());
        background.spawn(deployment.clone().expire_in_time());
        background.spawn(deployment.clone().describe());
        let sweeper = Sweeper::new(lifecycle.clone(), config.deadlines.clone());
        background.spawn(sweeper.keep_sweeping(ending.clone()));
        let (upkept, ended) = (metrics.clone(), ending.clone());
        background.spawn(async move {
            while !ended.is_cancelled() {
                upkept.run_upkeep();
                tokio::select! {
                    () = ended.cancelled() => {}
                    () = tokio::time::sleep(METRICS_UPKEEP) => {}
                }
            }
        });

        let app = App::new(Inner {
            store,
            clock,
            random,
            admission,
            lifecycle,
            deadlines: config.deadlines.clone(),
            public_url,
            placement,
            deployment,
            admin_token_hash: kept.admin_token_hash,
            limits: Limits::default(),
            metrics,
            stopping,
        });
        Ok(Self { address, app, listener, background, ending })
    }

    /// Serves until `stop` returns, then ends in order: no new connections, what waits is answered, what works is
    /// finished, what was gathered is written. When `stop` returns a second time, requests are no longer waited for.
    pub async fn run(mut self, mut stop: impl AsyncFnMut()) {
        let router = api::router(self.app.clone());
        let finished = listen::serve(self.listener, router, &mut stop, &self.app.stopping).await;
        self.ending.cancel();
        let closed = async {
            while self.background.join_next().await.is_some() {}
            self.app.store.close().await;
        };
        // What was cut may still hold its connection, and a database that is away answers nobody.
        let patience = if finished { LAST_WRITES } else { LAST_WRITES / 10 };
        tokio::select! {
            () = closed => tracing::info!("stopped"),
            () = tokio::time::sleep(patience) => tracing::warn!("stopped, without an answer from the database"),
            () = stop() => {}
        }
    }
}

/// An address that can be opened: one that stands for all addresses is reached at this machine's own.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    reachable
}
