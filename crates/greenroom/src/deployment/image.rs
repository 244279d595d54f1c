//! This module implements the image lock: only one deployment pulls an image on a host at a time. A deployment that
//! finds the image being pulled leaves the gate to others and tries again when the pull is over. It then first checks
//! whether the image is present, so the image is not pulled twice.

use std::sync::Arc;
use std::time::Duration;

use domain::SlotName;
use jiff::Timestamp;
use uuid::Uuid;

use super::replica::{HoldingGuard, ReplicaLease};
use super::{Deployment, lease};
use crate::clock::Clock;
use crate::providers::{Image, Progress, Provider, ProviderError, Pulled};
use crate::store::{Holding, Lease, LeaseClaim, Store, StoreError};

/// Whether an image is on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// The image is present.
    There,
    /// Another deployment pulls the image, and this deployment has stepped back.
    SteppedBack,
    /// Another deployment pulls the image, and another process holds this deployment now.
    Lost,
}

/// A deployment that needs an image, and its holder.
#[derive(Clone, Copy, Debug)]
pub struct Wanting<'a> {
    pub slot: &'a SlotName,
    pub holder: Uuid,
}

/// Everything that a pull needs to run in its own task.
struct Puller {
    deployment: Deployment,
    image: Image,
    claim: LeaseClaim,
}

impl Deployment {
    /// Makes sure that the provider's image is on its host, unless another deployment already pulls it.
    pub(super) async fn ensure_image(
        &self,
        provider: &Arc<dyn Provider>,
        wanting: Wanting<'_>,
    ) -> Result<Ensured, ProviderError> {
        let Some(image) = provider.image() else { return Ok(Ensured::There) };
        if provider.has_image().await? {
            return Ok(Ensured::There);
        }
        let replica = self.0.lease.current().await.map_err(unavailable)?;
        let claim = LeaseClaim::new(Lease::Image(image.clone()), &replica);
        let guard = self.0.lease.guard(Holding::Lease(claim.clone()));
        if let Some(instead) = self.take_image(&claim, wanting).await.map_err(unavailable)? {
            guard.disarm();
            return Ok(instead);
        }
        // The pull runs in its own task: the deployment that asked may be cancelled while others wait for the same
        // image.
        let puller = Puller { deployment: self.clone(), image, claim };
        let provider = provider.clone();
        let pulling = tokio::spawn(async move { puller.bring(guard, &*provider).await });
        let pulled = pulling.await.unwrap_or_else(|error| {
            Err(ProviderError::transient(format!("the image pull ended unexpectedly: {error}")))
        });
        pulled.map(|()| Ensured::There)
    }

    /// Takes the image lock, or steps back in the same transaction. So the puller, when it is done, wakes every
    /// deployment that stepped back.
    async fn take_image(&self, claim: &LeaseClaim, wanting: Wanting<'_>) -> Result<Option<Ensured>, StoreError> {
        let now = self.0.clock.now();
        let mut tx = self.0.store.begin().await?;
        let instead = if tx.take_lease(claim).await? {
            None
        } else if tx.step_back_for_image(wanting.slot, wanting.holder, now).await? {
            Some(Ensured::SteppedBack)
        } else {
            Some(Ensured::Lost)
        };
        tx.commit().await?;
        Ok(instead)
    }
}

fn unavailable(error: StoreError) -> ProviderError {
    ProviderError::transient(format!("the image lock is unavailable: {error}"))
}

impl Puller {
    async fn bring(self, guard: HoldingGuard, provider: &dyn Provider) -> Result<(), ProviderError> {
        // The previous puller may have finished between the check and the lock.
        let done = match provider.has_image().await {
            Ok(true) => Ok(()),
            Ok(false) => self.pull(provider).await,
            Err(error) => Err(error),
        };
        match self.store().release_lease(&self.claim).await {
            Ok(()) => guard.disarm(),
            Err(error) => {
                tracing::warn!(image = self.image.name, %error, "image lock not released; retried later")
            }
        }
        // Deployments that waited for the image may pass the gate.
        self.deployment.0.stepped_back.notify_one();
        done
    }

    fn store(&self) -> &Store {
        &self.deployment.0.store
    }

    fn clock(&self) -> &Clock {
        &self.deployment.0.clock
    }

    fn lease(&self) -> &ReplicaLease {
        &self.deployment.0.lease
    }

    /// Pulls the image, shows the progress, and fails when there is no progress for too long.
    async fn pull(&self, provider: &dyn Provider) -> Result<(), ProviderError> {
        let Image { name: image, host } = &self.image;
        tracing::info!(image, host, "image pull started");
        let (since, progress) = (self.clock().now(), Progress::default());
        let show = || async {
            log_progress(&self.image, since, self.clock().now(), progress.get());
            let mut tx = self.store().begin().await?;
            let shown = tx.show_pull(&self.image, self.claim.holder, since, progress.get()).await?;
            tx.commit().await?;
            Ok(shown)
        };
        // From the start, users can see that the image is being pulled.
        show().await.map_err(unavailable)?;
        let stall = self.deployment.0.timeouts.pull_stall;
        let work = async {
            tokio::select! {
                biased;
                pulled = provider.pull_image(&progress) => pulled,
                // This drops the pull and its connection. The engine then cancels the pull, because no client waits for
                // it.
                message = progress.stalled(stall) => Err(stalled(image, stall, message)),
            }
        };
        let pulled = lease::run_while_held(self.lease().liveness(), self.claim.replica.id, image, show, work).await;
        let pulled = pulled.unwrap_or_else(|| Err(ProviderError::transient("the image lock was lost during the pull")));
        match &pulled {
            Ok(()) => tracing::info!(image, host, took_s = seconds(since, self.clock().now()), "image pulled"),
            Err(error) => tracing::warn!(image, host, error = error.message, "image pull failed"),
        }
        pulled
    }
}

/// The error for a pull without progress: the provider's last message, and how long nothing followed it.
fn stalled(image: &str, stall: Duration, last: Option<String>) -> ProviderError {
    let last =
        last.map_or_else(|| "the provider reported no step".to_owned(), |last| format!("the last step was: {last}"));
    let stood = stall.as_secs_f64();
    ProviderError::transient(format!("the image {image} cannot be pulled: no progress for {stood} s; {last}"))
}

fn seconds(since: Timestamp, now: Timestamp) -> i64 {
    now.duration_since(since).as_secs()
}

/// Logs the progress of a pull.
fn log_progress(image: &Image, since: Timestamp, now: Timestamp, pulled: Pulled) {
    let Pulled { layers, layers_done, bytes, bytes_done } = pulled;
    if layers > 0 {
        let (image, seconds) = (image.name.as_str(), seconds(since, now));
        tracing::info!(image, layers, layers_done, bytes, bytes_done, seconds, "image pull continued");
    }
}
