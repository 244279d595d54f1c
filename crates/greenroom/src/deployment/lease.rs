//! Work that only one process at a time may do. It goes on while its lease is renewed, and is given up as soon as another
//! may have it: because the lease was lost, or because it could not be renewed for as long as it lasts.

use std::pin::Pin;
use std::task::Poll;
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

/// Does work under a lease that was asked for at `taken`. `renew` says whether it is still ours; `None` when the work was
/// given up. The work goes on while the lease is renewed, but not for a moment after it may have ended: whoever stood
/// still finds out first whether it is still its own.
pub async fn kept<T, F>(what: &str, taken: Instant, renew: impl Fn() -> F, work: impl Future<Output = T>) -> Option<T>
where
    F: Future<Output = Result<bool, StoreError>>,
{
    tokio::pin!(work);
    let (mut until, mut next) = (taken + LEASE, taken + RENEW);
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(next) => {}
            // By the clock, not by the timer, which may not have run yet after a standstill.
            done = before(next, work.as_mut()) => return Some(done),
        }
        let asked = Instant::now();
        let answer = tokio::select! {
            biased;
            answer = tokio::time::timeout_at(until, renew()) => answer,
            done = before(until, work.as_mut()) => return Some(done),
        };
        match answer {
            Ok(Ok(true)) => until = asked + LEASE,
            Ok(Err(error)) if Instant::now() < until => tracing::warn!(what, %error, "a lease could not be renewed"),
            _ => return None,
        }
        next = Instant::now() + RENEW;
    }
}

/// Goes on with the work until then, and no further.
async fn before<T>(until: Instant, mut work: Pin<&mut impl Future<Output = T>>) -> T {
    std::future::poll_fn(|context| if Instant::now() >= until { Poll::Pending } else { work.as_mut().poll(context) })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_while_its_lease_is_renewed() {
        let work = async {
            tokio::time::sleep(LEASE * 5).await;
            "done"
        };
        assert_eq!(kept("it", Instant::now(), || async { Ok(true) }, work).await, Some("done"));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_the_renewal_waits_for_is_not_held_up_by_it() {
        // As with one connection to the database, which the work has and the renewal wants.
        let turn = tokio::sync::Mutex::new(());
        let work = async {
            let _turn = turn.lock().await;
            tokio::time::sleep(RENEW * 2).await;
        };
        let renew = || async {
            let _turn = turn.lock().await;
            Ok(true)
        };
        assert_eq!(kept("it", Instant::now(), renew, work).await, Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_given_up_when_the_lease_is_lost_or_cannot_be_renewed_or_the_answer_hangs() {
        let never = std::future::pending::<()>;
        assert_eq!(kept("it", Instant::now(), || async { Ok(false) }, never()).await, None);
        let away = || async { Err(StoreError::failed("renew", &std::io::Error::other("away"))) };
        let begun = Instant::now();
        assert_eq!(kept("it", begun, away, never()).await, None);
        assert!((LEASE..LEASE + RENEW * 2).contains(&begun.elapsed()));
        assert_eq!(kept("it", Instant::now(), std::future::pending, never()).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_late_does_nothing_before_the_lease_is_known_to_be_its_own() {
        let taken = Instant::now();
        tokio::time::advance(RENEW + Duration::from_secs(1)).await;
        let worked = std::sync::atomic::AtomicBool::new(false);
        let work = async { worked.store(true, std::sync::atomic::Ordering::SeqCst) };
        assert_eq!(kept("it", taken, || async { Ok(false) }, work).await, None);
        // Also when nobody says whose it is.
        tokio::time::advance(LEASE).await;
        let work = async { worked.store(true, std::sync::atomic::Ordering::SeqCst) };
        assert_eq!(kept("it", taken, std::future::pending, work).await, None);
        assert!(!worked.into_inner());
    }
}
