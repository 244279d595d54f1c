//! Connections. One that sends no request in time is closed; when the server stops, each finishes the request that it
//! is in.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long a connection may take to send the head of a request, and may stay open without one.
const HEAD_TIME: Duration = Duration::from_secs(60);
/// Longer than a request takes, so that only what hangs is cut.
const LAST_PATIENCE: Duration = Duration::from_secs(90);
/// After an error such as too many open files, give those a moment to close.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// Serves until `stop` returns or something is `broken`, and then as long as requests are under way. False when some had to be cut.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: &mut impl AsyncFnMut(),
    broken: &CancellationToken,
    stopping: &CancellationToken,
) -> bool {
    let graceful = GracefulShutdown::new();
    {
        let stop = stop();
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stop => break,
                () = broken.cancelled() => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(AFTER_ERROR).await;
                    continue;
                }
            };
            // Without it a small answer may wait for the acknowledgement of the one before.
            let _ = stream.set_nodelay(true);
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection broke off");
                }
            });
        }
    }
    drop(listener);
    tracing::info!("stopping: no new connections, finishing what is under way");
    stopping.cancel();
    let finished = tokio::select! {
        () = graceful.shutdown() => true,
        () = tokio::time::sleep(LAST_PATIENCE) => false,
        () = stop() => false,
    };
    if !finished {
        tracing::warn!("some requests did not finish and are cut");
    }
    finished
}
