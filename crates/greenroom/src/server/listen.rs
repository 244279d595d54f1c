//! This module accepts connections up to a limit and refuses the others at once. When the server stops, it finishes the
//! requests that have arrived, and accepts no more.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{self, Times};

/// The pause after an error such as too many open files, so that some can close.
const AFTER_ERROR: Duration = Duration::from_millis(50);
/// After this many refusals in a row, the server pauses so that open connections are served.
const REFUSED_IN_A_ROW: u32 = 64;
const AFTER_REFUSALS: Duration = Duration::from_millis(10);
/// How long a stopping server still accepts connections that the kernel has already accepted.
const LAST_ACCEPT: Duration = Duration::from_millis(50);
/// The kernel's send buffer for one connection; the kernel doubles it. Without this limit, a client that does not read
/// costs megabytes.
const SEND_BUFFER: usize = 128 * 1024;
/// How many connections the kernel accepts before the server does. The kernel drops connections above this, and the
/// client tries again after a second. The kernel lowers the value to `net.core.somaxconn`.
const BACKLOG: i32 = 16 * 1024;
/// Files that the server needs besides connections: for the database, logs and providers.
const OTHER_FILES: u64 = 256;

const REFUSAL: &str = r#"{"type":"about:blank","title":"Service Unavailable","status":503,"code":"overloaded","detail":"too many connections are open; try again","request_id":""}"#;

/// How connections are served.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The limit of open connections.
    pub connections: usize,
    pub times: Times,
    /// Cancelled when the server stops.
    pub stopping: CancellationToken,
}

/// Returns how many of the wanted connections are possible: each needs a file. It raises the file limit as far as
/// allowed.
pub fn possible_connections(wanted: u32) -> usize {
    let files = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() => hard,
        Ok((soft, _)) => soft,
        Err(error) => {
            tracing::warn!(%error, "file limit not read");
            return wanted as usize;
        }
    };
    let possible = fitting(wanted, files);
    if possible < wanted as usize {
        tracing::warn!(limits.connections = wanted, file_limit = files, possible, "connection limit lowered");
    }
    possible
}

fn fitting(wanted: u32, files: u64) -> usize {
    // With very few files, half of them are kept for other purposes.
    let possible = files.saturating_sub(OTHER_FILES.min(files / 2)).max(1);
    usize::try_from(possible).unwrap_or(usize::MAX).min(wanted as usize)
}

/// Serves until `stop` returns or `broken` is cancelled, and then until open requests are finished. False when some
/// requests were cut.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    listening: Listening,
    stop: &mut impl AsyncFnMut(),
    broken: &CancellationToken,
) -> bool {
    if let Err(error) = SockRef::from(&listener).set_send_buffer_size(SEND_BUFFER) {
        tracing::warn!(%error, "send buffer not set");
    }
    if let Err(error) = SockRef::from(&listener).listen(BACKLOG) {
        tracing::warn!(%error, "listen backlog not set");
    }
    let connections = Connections {
        permits: Arc::new(Semaphore::new(listening.connections)),
        turns: Arc::new(Semaphore::new(connection::TURNS)),
        tracker: TaskTracker::new(),
        was_cut: Arc::default(),
        router,
        listening,
    };
    {
        let stop = stop();
        tokio::pin!(stop);
        let mut refused = 0;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stop => break,
                () = broken.cancelled() => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    refused = if connections.begin(stream, peer.ip()) { 0 } else { refused + 1 };
                    if refused == REFUSED_IN_A_ROW {
                        refused = 0;
                        tokio::time::sleep(AFTER_REFUSALS).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    }
    // A client that has connected may already have sent its request.
    let until = tokio::time::Instant::now() + LAST_ACCEPT;
    while let Ok(Ok((stream, peer))) = tokio::time::timeout_at(until, listener.accept()).await {
        connections.begin(stream, peer.ip());
    }
    drop(listener);
    tracing::info!("server stopping");
    connections.listening.stopping.cancel();
    connections.tracker.close();
    let finished = tokio::select! {
        () = connections.tracker.wait() => !connections.was_cut.load(Ordering::SeqCst),
        () = stop() => false,
    };
    if !finished {
        tracing::warn!("open requests aborted");
    }
    finished
}

/// The open connections.
struct Connections {
    permits: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    tracker: TaskTracker,
    /// Whether a request was not finished in time.
    was_cut: Arc<AtomicBool>,
    router: Router,
    listening: Listening,
}

impl Connections {
    /// Serves a connection in its own task. False when there are too many connections and this one was refused.
    fn begin(&self, stream: TcpStream, peer: IpAddr) -> bool {
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            metrics::counter!("greenroom_http_overloaded_total", "what" => "connections").increment(1);
            // The buffer of a new socket has room for this short answer. The client may not get to read it.
            let refusal = format!(
                "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
                 connection: close\r\ncontent-length: {}\r\n\r\n{REFUSAL}",
                REFUSAL.len()
            );
            let _ = stream.try_write(refusal.as_bytes());
            return false;
        };
        // Without this, a small answer may wait for the acknowledgement of the previous one.
        let _ = stream.set_nodelay(true);
        let Listening { connections, times, stopping } = self.listening.clone();
        let is_crowded = self.permits.available_permits() < connections / 10;
        let head = if is_crowded { times.head_when_crowded } else { times.head };
        let (router, was_cut, turns) = (self.router.clone(), self.was_cut.clone(), self.turns.clone());
        self.tracker.spawn(async move {
            if !connection::serve(stream, peer, router, times, head, stopping, turns).await {
                was_cut.store(true, Ordering::SeqCst);
            }
            drop(permit);
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_connections_than_files_for_them() {
        assert_eq!(fitting(15_000, 1_048_576), 15_000);
        assert_eq!(fitting(15_000, 4_096), 4_096 - 256);
        assert_eq!(fitting(15_000, 100), 50);
        assert_eq!(fitting(5, 1_024), 5);
    }
}
