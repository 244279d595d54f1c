//! This module runs work that only one replica at a time may do. The work continues while the replica is known to be
//! alive. It is cancelled as soon as another replica may take it over: because the replica was declared dead, or
//! because it no longer holds what the work needs.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::replica::Liveness;
use crate::store::StoreError;

/// How often to check whether the work is still needed.
const CHECK: Duration = Duration::from_secs(4);
/// How long work waits for the database to confirm that the replica is alive. The work may itself hold the connection
/// that this answer needs.
const LONGEST_UNCERTAINTY: Duration = Duration::from_secs(15);

/// Does work under something that was taken as `replica`. Every few seconds, `check` says whether this process still
/// holds it and the work is still needed. Returns `None` when the work was cancelled. While it is not certain that the
/// replica is alive, the work pauses: a process that stood still first finds out whether it lost its lease.
pub async fn run_while_held<T, F>(
    lease: &Liveness,
    replica: Uuid,
    what: &str,
    check: impl Fn() -> F,
    work: impl Future<Output = T>,
) -> Option<T>
where
    F: Future<Output = Result<bool, StoreError>>,
{
    let uncertain = uncertain_too_long(lease, replica);
    tokio::pin!(work, uncertain);
    let mut next = Instant::now() + CHECK;
    loop {
        tokio::select! {
            biased;
            () = lease.lost(replica) => return None,
            () = &mut uncertain => return None,
            () = tokio::time::sleep_until(next) => {}
            done = run_while_alive(lease, replica, work.as_mut()) => return Some(done),
        }
        let answer = tokio::select! {
            biased;
            () = lease.lost(replica) => return None,
            answer = tokio::time::timeout(CHECK, check()) => answer,
            done = run_while_alive(lease, replica, work.as_mut()) => return Some(done),
        };
        match answer {
            Ok(Ok(true)) | Err(_) => {}
            Ok(Ok(false)) => return None,
            Ok(Err(error)) => tracing::warn!(what, %error, "lease check failed"),
        }
        next = Instant::now() + CHECK;
    }
}

/// Continues the work while the replica is known to be alive. It compares clock times, because after a standstill a
/// timer may not have fired yet.
async fn run_while_alive<T>(lease: &Liveness, replica: Uuid, mut work: Pin<&mut impl Future<Output = T>>) -> T {
    loop {
        let renewed = lease.renewed();
        let step = std::future::poll_fn(
            |context| {
                if lease.holds(replica) { work.as_mut().poll(context) } else { Poll::Pending }
            },
        );
        tokio::select! {
            biased;
            done = step => return done,
            // The loop polls the work again, because a wake-up in the meantime was missed.
            () = renewed => {}
        }
    }
}

/// Waits until the replica's state has been uncertain for too long.
async fn uncertain_too_long(lease: &Liveness, replica: Uuid) {
    let mut since = None;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        since = if lease.holds(replica) { None } else { since.or_else(|| Some(Instant::now())) };
        if since.is_some_and(|since| since.elapsed() >= LONGEST_UNCERTAINTY) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::replica::{LEASE, RENEW};
    use super::*;

    async fn still_needed() -> Result<bool, StoreError> {
        Ok(true)
    }

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_while_the_replica_lives() {
        let (liveness, id) = Liveness::begin();
        let renewals = async {
            loop {
                tokio::time::sleep(RENEW).await;
                liveness.confirm_alive();
            }
        };
        let work = async {
            tokio::time::sleep(LEASE * 5).await;
            "done"
        };
        tokio::select! {
            done = run_while_held(&liveness, id, "it", still_needed, work) => assert_eq!(done, Some("done")),
            () = renewals => unreachable!(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_not_held_up_by_a_check_that_waits_for_it() {
        // This is like a single database connection that the work holds and the check needs.
        let (liveness, id) = Liveness::begin();
        let turn = tokio::sync::Mutex::new(());
        let work = async {
            let _turn = turn.lock().await;
            for _ in 0..10 {
                tokio::time::sleep(LEASE / 2).await;
                liveness.confirm_alive();
            }
        };
        let check = || async {
            let _turn = turn.lock().await;
            Ok(true)
        };
        // Here the work itself keeps the replica alive.
        assert_eq!(run_while_held(&liveness, id, "it", check, work).await, Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_cancelled_when_it_is_not_wanted_or_the_replica_is_dead_or_the_check_fails() {
        let pending = std::future::pending::<()>;
        let (liveness, id) = Liveness::begin();
        assert_eq!(run_while_held(&liveness, id, "it", || async { Ok(false) }, pending()).await, None);

        let (liveness, id) = Liveness::begin();
        let dies = async {
            tokio::time::sleep(RENEW).await;
            liveness.declare_dead();
            std::future::pending().await
        };
        let given_up = tokio::select! {
            given_up = run_while_held(&liveness, id, "it", still_needed, pending()) => given_up,
            () = dies => unreachable!(),
        };
        assert_eq!(given_up, None);

        let (liveness, id) = Liveness::begin();
        let begun = Instant::now();
        assert_eq!(run_while_held(&liveness, id, "it", std::future::pending, pending()).await, None);
        assert!((LEASE..LEASE + LONGEST_UNCERTAINTY + CHECK * 2).contains(&begun.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_suspension_no_work_continues_before_the_replica_is_known_to_live() {
        // The process stands still in the middle of its work, for longer than the lease lasts.
        for lives in [true, false] {
            let (liveness, id) = Liveness::begin();
            let steps = AtomicUsize::new(0);
            let work = async {
                steps.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                steps.fetch_add(1, Ordering::SeqCst);
            };
            let stands_still = async {
                tokio::time::advance(LEASE).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert_eq!(steps.load(Ordering::SeqCst), 1, "it went on without knowing");
                if lives { liveness.confirm_alive() } else { liveness.declare_dead() }
            };
            let (done, ()) = tokio::join!(run_while_held(&liveness, id, "it", still_needed, work), stands_still);
            assert_eq!(done, lives.then_some(()));
            assert_eq!(steps.into_inner(), if lives { 2 } else { 1 });
        }
    }
}
