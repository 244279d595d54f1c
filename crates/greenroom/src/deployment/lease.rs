//! Work that only one process at a time may do. It goes on while its lease is renewed, and is given up as soon as another
//! may have it: because the lease was lost, or because it could not be renewed for as long as it lasts.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::store::StoreError;

/// How long a holder is believed to live without a sign: longer than a process may stand still without harm, which is
/// ten seconds, and the time between two signs.
pub const LEASE: Duration = Duration::from_secs(20);
const RENEW: Duration = Duration::from_secs(4);

/// When a lease that is taken now ends.
pub fn end(now: Timestamp) -> Timestamp {
    now.saturating_add(LEASE).unwrap_or(Timestamp::MAX)
}

/// Does work whose lease was just taken. `renew` says whether it is still ours; `None` when the work was given up.
pub async fn kept<T, F>(what: &str, renew: impl Fn() -> F, work: impl Future<Output = T>) -> Option<T>
where
    F: Future<Output = Result<bool, StoreError>>,
{
    tokio::pin!(work);
    let (mut until, mut next) = (Instant::now() + LEASE, Instant::now() + RENEW);
    loop {
        tokio::select! {
            // Whoever stood still finds out first whether the lease is still its own.
            biased;
            () = tokio::time::sleep_until(next) => {
                let asked = Instant::now();
                match renew().await {
                    Ok(true) => until = asked + LEASE,
                    Ok(false) => return None,
                    Err(error) => {
                        tracing::warn!(what, %error, "a lease could not be renewed");
                        if Instant::now() >= until {
                            return None;
                        }
                    }
                }
                next = Instant::now() + RENEW;
            }
            done = &mut work => return Some(done),
        }
    }
}
