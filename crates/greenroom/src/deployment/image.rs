//! The image lock: one puller per image and host. Whoever finds the image taken waits; the lock goes from one to the
//! next, and whoever waited looks first whether the image is there by now, and does not pull again.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::lease;
use crate::clock::Clock;
use crate::providers::{Image, Progress, Provider, ProviderError, Pulled};
use crate::store::{Store, StoreError};

const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Makes sure that the provider's image is on its host. True when this call has pulled it.
pub async fn ensure(store: &Store, clock: &Clock, provider: &Arc<dyn Provider>) -> Result<bool, ProviderError> {
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
    // In a task of its own: whoever asked may go away meanwhile, and others wait for the same image.
    let (store, clock, provider) = (store.clone(), clock.clone(), provider.clone());
    let bringing = tokio::spawn(async move { bring(&store, &clock, &image, (holder, taken), &*provider).await });
    bringing.await.unwrap_or_else(|error| Err(ProviderError::again(format!("a pull was given up: {error}"))))
}

async fn bring(
    store: &Store,
    clock: &Clock,
    image: &Image,
    (holder, taken): (Uuid, Instant),
    provider: &dyn Provider,
) -> Result<bool, ProviderError> {
    // The one before may have brought it between the look and the lock.
    let done = match provider.has_image().await {
        Ok(true) => Ok(false),
        Ok(false) => pull(store, clock, image, (holder, taken), provider).await.map(|()| true),
        Err(error) => Err(error),
    };
    if let Err(error) = give_back(store, image, holder).await {
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
    let taken = tx.take_image(image, holder, now, lease::end(now)).await?;
    tx.commit().await?;
    Ok(taken)
}

async fn give_back(store: &Store, image: &Image, holder: Uuid) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    tx.give_image_back(image, holder).await?;
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
    let (since, progress) = (clock.now(), Progress::default());
    let renew = || async {
        let now = clock.now();
        tell(image, since, now, progress.get());
        let mut tx = store.begin().await?;
        let renewed = tx.renew_image(image, holder, (since, progress.get()), now, lease::end(now)).await?;
        tx.commit().await?;
        Ok(renewed)
    };
    // From the first moment on it can be seen that it is being pulled.
    renew().await.map_err(lost)?;
    let pulled = lease::kept(&image.name, taken, renew, provider.pull_image(&progress)).await;
    let pulled = pulled.unwrap_or_else(|| Err(ProviderError::again("the image lock was lost to another puller")));
    match &pulled {
        Ok(()) => tracing::info!(image = image.name, host = image.host, took_s = seconds(since, clock.now()), "pulled"),
        Err(error) => tracing::warn!(image = image.name, host = image.host, error = error.words, "a pull failed"),
    }
    pulled
}

fn seconds(since: Timestamp, now: Timestamp) -> i64 {
    now.duration_since(since).as_secs()
}

/// Says how far a pull has come.
fn tell(image: &Image, since: Timestamp, now: Timestamp, pulled: Pulled) {
    let Pulled { layers, layers_done, bytes, bytes_done } = pulled;
    if layers > 0 {
        let (image, seconds) = (image.name.as_str(), seconds(since, now));
        tracing::info!(image, layers, layers_done, bytes, bytes_done, seconds, "still pulling an image");
    }
}
