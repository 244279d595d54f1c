//! The image lock: one puller per image and host. Whoever finds the image taken waits; the lock goes from one to the
//! next, and whoever waited looks first whether the image is there by now, and does not pull again.

use std::time::Duration;

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
    loop {
        if provider.has_image().await? {
            return Ok(false);
        }
        if take(store, clock, &image, holder).await.map_err(lost)? {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    // The one before may have brought it between the look and the lock.
    let done = match provider.has_image().await {
        Ok(true) => Ok(false),
        Ok(false) => pull(store, clock, &image, holder, provider).await.map(|()| true),
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
    let now = clock.now();
    let mut tx = store.begin().await?;
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
    holder: Uuid,
    provider: &dyn Provider,
) -> Result<(), ProviderError> {
    tracing::info!(image = image.name, host = image.host, "pulling an image");
    let renew = || async {
        let now = clock.now();
        let mut tx = store.begin().await?;
        let renewed = tx.renew_image(&image.name, &image.host, holder, now, lease::end(now)).await?;
        tx.commit().await?;
        Ok(renewed)
    };
    let pulled = lease::kept(&image.name, renew, provider.pull_image()).await;
    pulled.unwrap_or_else(|| Err(ProviderError::again("the image lock was lost to another puller")))
}
