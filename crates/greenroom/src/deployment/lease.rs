//! Work that only one replica at a time may do. It goes on while the replica is known to live, and is given up as soon as another
//! may have it: because the replica was taken for dead, or because what the work holds was taken from it.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::replica::ReplicaLease;
use crate::store::StoreError;

/// How often work is asked whether it is still wanted.
const CHECK: Duration = Duration::from_secs(4);
/// How long work waits for the database to say whether the replica still lives. It may hold a connection that the answer needs.
const LONGEST_DOUBT: Duration = Duration::from_secs(15);

/// Does work under something that was taken as `replica`. `check` says every few seconds whether it is still ours and wanted;
/// `None` when the work was given up. The work rests for as long as it is not certain that the replica lives: whoever stood
/// still finds out first.
pub async fn kept<T, F>(
    lease: &ReplicaLease,
    replica: Uuid,
    what: &str,
    check: impl Fn() -> F,
    work: impl Future<Output = T>,
) -> Option<T>
where
    F: Future<Output = Result<bool, StoreError>>,
{
    let doubt = doubt(lease, replica);
    tokio::pin!(work, doubt);
    let mut next = Instant::now() + CHECK;
    loop {
        tokio::select! {
            biased;
            () = lease.lost(replica) => return None,
            () = &mut doubt => return None,
            () = tokio::time::sleep_until(next) => {}
            done = certain(lease, replica, work.as_mut()) => return Some(done),
        }
        let answer = tokio::select! {
            biased;
            () = lease.lost(replica) => return None,
            answer = tokio::time::timeout(CHECK, check()) => answer,
            done = certain(lease, replica, work.as_mut()) => return Some(done),
        };
        match answer {
            Ok(Ok(true)) | Err(_) => {}
            Ok(Ok(false)) => return None,
            Ok(Err(error)) => tracing::warn!(what, %error, "check of a holding failed"),
        }
        next = Instant::now() + CHECK;
    }
}

/// Goes on with the work while the replica is known to live, by the clock, not by a timer, which may not have run yet after a
/// standstill.
async fn certain<T>(lease: &ReplicaLease, replica: Uuid, mut work: Pin<&mut impl Future<Output = T>>) -> T {
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
            // What woke the work meanwhile was not heard.
            () = renewed => {}
        }
    }
}

/// Waits until nobody has said for too long whether the replica lives.
async fn doubt(lease: &ReplicaLease, replica: Uuid) {
    let mut since = None;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        since = if lease.holds(replica) { None } else { since.or_else(|| Some(Instant::now())) };
        if since.is_some_and(|since| since.elapsed() >= LONGEST_DOUBT) {
            return;
        }
    }
}
