//! The image lock: one puller per image and host. Whoever finds the image being pulled gives its place behind the gate
//! back and comes again when the pull is over; it looks first whether the image is there by now, and does not pull
//! again.

use std::sync::Arc;
use std::time::Duration;

use domain::SlotName;
use jiff::Timestamp;
use uuid::Uuid;

use super::replica::{Kept, ReplicaLease};
use super::{Deployment, lease};
use crate::clock::Clock;
use crate::providers::{Image, Progress, Provider, ProviderError, Pulled};
use crate::store::{Holding, Lease, LeaseClaim, Store, StoreError};

/// Whether an image is where it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// It is there.
    There,
    /// Somebody else pulls it, and the deployment has stepped back.
    SteppedBack,
    /// Somebody else pulls it, and the deployment is another's by now.
    Lost,
}

/// Who wants an image: a deployment, as its holder.
#[derive(Clone, Copy, Debug)]
pub struct Wanting<'a> {
    pub slot: &'a SlotName,
    pub holder: Uuid,
}

/// What a pull needs to go on by itself.
struct Puller {
    deployment: Deployment,
    image: Image,
    claim: LeaseClaim,
}

impl Deployment {
    /// Makes sure that the provider's image is on its host, unless somebody else is at it.
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
        let kept = self.0.lease.keep(Holding::Lease(claim.clone()));
        if let Some(instead) = self.take_image(&claim, wanting).await.map_err(unavailable)? {
            kept.given_back();
            return Ok(instead);
        }
        // In a task of its own: whoever asked may go away meanwhile, and others wait for the same image.
        let puller = Puller { deployment: self.clone(), image, claim };
        let provider = provider.clone();
        let pulling = tokio::spawn(async move { puller.bring(kept, &*provider).await });
        let pulled = pulling
            .await
            .unwrap_or_else(|error| Err(ProviderError::transient(format!("a pull was given up: {error}"))));
        pulled.map(|()| Ensured::There)
    }

    /// Takes the image, or steps back in the same transaction: whoever pulls it wakes those that stepped back before it
    /// was done.
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
    ProviderError::transient(format!("the image lock cannot be had: {error}"))
}

impl Puller {
    async fn bring(self, kept: Kept, provider: &dyn Provider) -> Result<(), ProviderError> {
        // The one before may have brought it between the look and the lock.
        let done = match provider.has_image().await {
            Ok(true) => Ok(()),
            Ok(false) => self.pull(provider).await,
            Err(error) => Err(error),
        };
        match self.store().release_lease(&self.claim).await {
            Ok(()) => kept.given_back(),
            Err(error) => {
                tracing::warn!(image = self.image.name, %error, "image lock not given back; it is released later")
            }
        }
        // Who waited for it may pass.
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

    /// Pulls, shows how far it is, and gives up when nothing changes any more.
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
        // From the first moment on it can be seen that it is being pulled.
        show().await.map_err(unavailable)?;
        let stall = self.deployment.0.patience.pull_stall;
        let work = async {
            tokio::select! {
                biased;
                pulled = provider.pull_image(&progress) => pulled,
                // The pull is dropped, and with it its connection: an engine ends what nobody waits for.
                message = progress.stalled(stall) => Err(stalled(image, stall, message)),
            }
        };
        let pulled = lease::kept(self.lease().liveness(), self.claim.replica.id, image, show, work).await;
        let pulled =
            pulled.unwrap_or_else(|| Err(ProviderError::transient("the image lock was lost to another puller")));
        match &pulled {
            Ok(()) => tracing::info!(image, host, took_s = seconds(since, self.clock().now()), "image pulled"),
            Err(error) => tracing::warn!(image, host, error = error.message, "image pull failed"),
        }
        pulled
    }
}

/// What is told of a pull that stood still: what was said last, and for how long nothing was.
fn stalled(image: &str, stall: Duration, last: Option<String>) -> ProviderError {
    let last = last.map_or_else(|| "nothing was said at all".to_owned(), |last| format!("the last word was: {last}"));
    let stood = stall.as_secs_f64();
    ProviderError::transient(format!("the image {image} cannot be pulled: no progress for {stood} s; {last}"))
}

fn seconds(since: Timestamp, now: Timestamp) -> i64 {
    now.duration_since(since).as_secs()
}

/// Says how far a pull has come.
fn log_progress(image: &Image, since: Timestamp, now: Timestamp, pulled: Pulled) {
    let Pulled { layers, layers_done, bytes, bytes_done } = pulled;
    if layers > 0 {
        let (image, seconds) = (image.name.as_str(), seconds(since, now));
        tracing::info!(image, layers, layers_done, bytes, bytes_done, seconds, "image pull continued");
    }
}
