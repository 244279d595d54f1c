//! The image lock: one puller per image and host. Whoever finds the image taken waits; the lock goes from one to the
//! next, and whoever waited looks first whether the image is there by now, and does not pull again.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::lease;
use crate::clock::Clock;
use crate::providers::{Image, Provider, ProviderError};
use crate::store::{Store, StoreError};

const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Makes sure that the provider's image is on its host. True when this call has pulled it.
pub async fn ensure(store: &Store, clock: &Clock, provider: &dyn Provider) -> Result<bool, ProviderError> {
    let Some(image) = provider.image() else { return Ok(false) };
    let holder = Uuid::new_v4();
    let taken = loop {
        if provider.has_image().await? {
            return Ok(false);
        }
        let asked = Instant::now();
        if take(store, clock, &image, holder).await.map_err(lost)? {
            break asked;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    // The one before may have brought it between the look and the lock.
    let done = match provider.has_image().await {
        Ok(true) => Ok(false),
        Ok(false) => pull(store, clock, &image, (holder, taken), provider).await.map(|()| true),
        Err(error) => Err(error),
    };
    if let Err(error) = give_back(store, &image, holder).await {
        tracing::warn!(image = image.name, %error, "an image lock is left to end by itself");
    }
    done
}

fn lost(error: StoreError) -> ProviderError {
    ProviderError::again(format!("the image lock cannot be had: {error}"))
}

async fn take(store: &Store, clock: &Clock, image: &Image, holder: Uuid) -> Result<bool, StoreError> {
    let mut tx = store.begin().await?;
    let now = clock.now();
    let taken = tx.take_image(&image.name, &image.host, holder, now, lease::end(now)).await?;
    tx.commit().await?;
    Ok(taken)
}

async fn give_back(store: &Store, image: &Image, holder: Uuid) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    tx.give_image_back(&image.name, &image.host, holder).await?;
    tx.commit().await
}

/// Pulls, and keeps the lock meanwhile.
async fn pull(
    store: &Store,
    clock: &Clock,
    image: &Image,
    (holder, taken): (Uuid, Instant),
    provider: &dyn Provider,
) -> Result<(), ProviderError> {
    tracing::info!(image = image.name, host = image.host, "pulling an image");
    let renew = || async {
        let mut tx = store.begin().await?;
        let now = clock.now();
        let renewed = tx.renew_image(&image.name, &image.host, holder, now, lease::end(now)).await?;
        tx.commit().await?;
        Ok(renewed)
    };
    let pulled = lease::kept(&image.name, taken, renew, provider.pull_image()).await;
    pulled.unwrap_or_else(|| Err(ProviderError::again("the image lock was lost to another puller")))
}
