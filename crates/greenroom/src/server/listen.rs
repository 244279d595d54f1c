//! Taking connections: as many as there may be, others are refused at once. When the server stops, the requests that
//! have arrived are finished, and no more.

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

/// After an error such as too many open files, give those a moment to close.
const AFTER_ERROR: Duration = Duration::from_millis(50);
/// So many connections are refused in a row before those that are open get a turn.
const REFUSED_IN_A_ROW: u32 = 64;
const AFTER_REFUSALS: Duration = Duration::from_millis(10);
/// How long connections are still taken that the kernel has taken already.
const LAST_ACCEPT: Duration = Duration::from_millis(50);
/// What the kernel keeps of answers for one connection; the kernel doubles it. Without it a reader that does not read costs
/// megabytes of it.
const SEND_BUFFER: usize = 128 * 1024;
/// Connections that the kernel takes before the server does. It drops what comes beyond that, and the peer tries again after a
/// second. The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 16 * 1024;
/// Files that the server needs besides connections: the database's, logs, providers.
const OTHER_FILES: u64 = 256;

const REFUSAL: &str = r#"{"type":"about:blank","title":"Service Unavailable","status":503,"code":"overloaded","detail":"too many connections are open; try again","request_id":""}"#;

/// How connections are served.
#[derive(Clone, Debug)]
pub struct Listening {
    /// How many there may be at once.
    pub connections: usize,
    pub times: Times,
    /// Cancelled when the server stops.
    pub stopping: CancellationToken,
}

/// How many connections there can be, of those that there may be: each is a file. The limit of files is raised as far as it
/// goes.
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
    // Of very few files half are kept.
    let possible = files.saturating_sub(OTHER_FILES.min(files / 2)).max(1);
    usize::try_from(possible).unwrap_or(usize::MAX).min(wanted as usize)
}

/// Serves until `stop` returns or something is `broken`, and then as long as requests are under way. False when some had to
/// be cut.
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
    // Who has connected may have sent its request as well.
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
        tracing::warn!("requests cut");
    }
    finished
}

/// Those that are open.
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
    /// Serves a connection in a task of its own. False when there are too many, and it was refused.
    fn begin(&self, stream: TcpStream, peer: IpAddr) -> bool {
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            metrics::counter!("greenroom_http_overloaded_total", "what" => "connections").increment(1);
            // There is room for so little in a socket that is new. Whether its peer gets to read it is another matter.
            let refusal = format!(
                "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
                 connection: close\r\ncontent-length: {}\r\n\r\n{REFUSAL}",
                REFUSAL.len()
            );
            let _ = stream.try_write(refusal.as_bytes());
            return false;
        };
        // Without it a small answer may wait for the acknowledgement of the one before.
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
