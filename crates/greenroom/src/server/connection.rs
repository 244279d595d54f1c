//! One connection: requests come in by hyper, answers go out for as long as their reader takes them, and the end is
//! orderly. What an answer takes up is held until it is written, not only until it is made.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use crate::api::around::Held;
use crate::api::caller::Peer;

/// What hyper buffers of a head, and of answers before it waits for them to be written.
const BUFFER: usize = 16 * 1024;
/// An answer is handed to hyper in pieces, so that it does not buffer the whole of it.
const PIECE: usize = 32 * 1024;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// To send the head of a request, and to stay open without one.
    pub head: Duration,
    /// The same while nearly as many connections are open as may be.
    pub head_when_crowded: Duration,
    /// For the reader of an answer to take anything of it.
    pub write: Duration,
    /// The same once the server stops.
    pub last_write: Duration,
    /// For a request that has arrived to be seen, once the server stops.
    pub last_arrival: Duration,
    /// For requests that have arrived to be answered, once the server stops.
    pub stop: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(60),
            head_when_crowded: Duration::from_secs(5),
            write: Duration::from_secs(30),
            last_write: Duration::from_secs(1),
            last_arrival: Duration::from_millis(100),
            stop: Duration::from_secs(5),
        }
    }
}

/// What a connection's parts know of each other.
#[derive(Debug, Default)]
struct Shared {
    /// Requests whose head has arrived and whose answer is not written.
    requests: Arc<AtomicUsize>,
    arrived: Notify,
    /// What was handed to hyper and is not written. It is free when all of it is.
    unwritten: Mutex<Vec<Answering>>,
    is_stopping: AtomicBool,
}

/// A request that is being answered, and what its answer takes up.
#[derive(Debug)]
struct Answering {
    requests: Arc<AtomicUsize>,
    _held: Option<Held>,
}

impl Answering {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.requests.fetch_add(1, Ordering::SeqCst);
        shared.arrived.notify_one();
        Self { requests: shared.requests.clone(), _held: None }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Everything that hyper had is written.
    fn written(&self) {
        let written = std::mem::take(&mut *self.unwritten.lock().unwrap_or_else(PoisonError::into_inner));
        drop(written);
    }

    fn has_requests(&self) -> bool {
        self.requests.load(Ordering::SeqCst) > 0
    }
}

/// Serves a connection until it ends. False when the server stopped and a request had to be cut.
pub async fn serve(
    stream: TcpStream,
    peer: IpAddr,
    router: Router,
    times: Times,
    head: Duration,
    stopping: CancellationToken,
) -> bool {
    // Nothing is set up for a connection that sends nothing.
    tokio::select! {
        first = tokio::time::timeout(head, stream.readable()) => if !matches!(first, Ok(Ok(()))) { return true },
        () = stopping.cancelled() => {
            if tokio::time::timeout(times.last_arrival, stream.readable()).await.is_err() {
                return true;
            }
        }
    }
    let shared = Arc::new(Shared::default());
    let io = TimedStream { stream, shared: shared.clone(), times, waiting: None };
    let of_service = shared.clone();
    let service = service_fn(move |request| answer(router.clone(), peer, of_service.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return log(ended),
        () = stopping.cancelled() => {}
    }
    let end = Instant::now() + times.stop;
    // What lies in the socket has arrived, and is seen within a moment.
    let arrival = tokio::time::sleep(times.last_arrival);
    tokio::pin!(arrival);
    while !shared.has_requests() {
        tokio::select! {
            ended = connection.as_mut() => return log(ended),
            () = shared.arrived.notified() => {}
            () = arrival.as_mut() => if !shared.has_requests() { return true },
        }
    }
    shared.is_stopping.store(true, Ordering::SeqCst);
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        ended = connection.as_mut() => log(ended),
        () = tokio::time::sleep_until(end) => false,
    }
}

fn log(ended: Result<(), hyper::Error>) -> bool {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection broken off");
    }
    true
}

async fn answer(
    router: Router,
    peer: IpAddr,
    shared: Arc<Shared>,
    request: hyper::Request<Incoming>,
) -> Result<Response, Infallible> {
    let mut answering = Answering::begin(&shared);
    let mut request: Request = request.map(Body::new);
    request.extensions_mut().insert(Peer(peer));
    let mut response = TowerToHyperService::new(router).call(request).await?;
    answering._held = response.extensions_mut().remove::<Held>();
    Ok(response.map(|body| Body::new(Pieces { body, rest: Bytes::new(), answering: Some(answering), shared })))
}

/// The body of an answer, in pieces. When hyper has taken the last one, what it takes up is held until it is written.
#[derive(Debug)]
struct Pieces {
    body: Body,
    rest: Bytes,
    answering: Option<Answering>,
    shared: Arc<Shared>,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return Poll::Ready(other),
            }
        }
        let piece = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(of_body.lower() + rest);
        hint
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        if let Some(answering) = self.answering.take() {
            self.shared.unwritten.lock().unwrap_or_else(PoisonError::into_inner).push(answering);
        }
    }
}

/// A stream that ends when its peer takes nothing of what is written for too long. A slow reader is served: the kernel tells of
/// progress by the third of its buffer, so that 30 s are 3 KiB a second.
struct TimedStream {
    stream: TcpStream,
    shared: Arc<Shared>,
    times: Times,
    /// Set while the peer takes nothing.
    waiting: Option<Waiting>,
}

struct Waiting {
    until: Pin<Box<Sleep>>,
    is_last: bool,
}

impl TimedStream {
    /// What came of an attempt to write, unless it is too late.
    fn progress<T>(&mut self, cx: &mut Context<'_>, attempt: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if attempt.is_ready() {
            self.waiting = None;
            return attempt;
        }
        let is_last = self.shared.is_stopping.load(Ordering::SeqCst);
        if self.waiting.as_ref().is_none_or(|waiting| is_last && !waiting.is_last) {
            let time = if is_last { self.times.last_write } else { self.times.write };
            self.waiting = Some(Waiting { until: Box::pin(tokio::time::sleep(time)), is_last });
        }
        let Some(waiting) = &mut self.waiting else { return Poll::Pending };
        ready!(waiting.until.as_mut().poll(cx));
        metrics::counter!("greenroom_http_unread_answers_total").increment(1);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write(cx, buffer);
        self.progress(cx, attempt)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write_vectored(cx, buffers);
        self.progress(cx, attempt)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Hyper flushes when it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.shared.written();
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::task::JoinHandle;

    use super::*;

    const LARGE: usize = 4 * 1024 * 1024;
    const WRITE: Duration = Duration::from_millis(1_500);

    /// A connection to a server with a large answer, whose reader keeps little of what it does not read.
    async fn connected() -> (TcpStream, JoinHandle<bool>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        socket2::SockRef::from(&listener).set_send_buffer_size(64 * 1024).unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        let client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let router = Router::new().route("/", get(|| async { vec![b'x'; LARGE] }));
        let times = Times { write: WRITE, ..Times::default() };
        let serving = serve(stream, peer.ip(), router, times, times.head, CancellationToken::new());
        (client, tokio::spawn(serving))
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_is_given_up() {
        let (mut client, serving) = connected().await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        tokio::time::timeout(Duration::from_secs(20), serving).await.unwrap().unwrap();
        let mut read = Vec::new();
        let _ = client.read_to_end(&mut read).await;
        assert!(read.len() < LARGE, "{}", read.len());
    }

    #[tokio::test]
    async fn a_reader_that_is_slow_and_steady_gets_the_whole_answer() {
        let (mut client, serving) = connected().await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let (mut read, mut buffer) = (0, vec![0; 32 * 1024]);
        let (begun, mut pauses) = (Instant::now(), tokio::time::interval(Duration::from_millis(20)));
        loop {
            pauses.tick().await;
            match client.read(&mut buffer).await.unwrap() {
                0 => break,
                more => read += more,
            }
        }
        assert!(read > LARGE, "{read}");
        assert!(begun.elapsed() > WRITE, "it took longer than a reader has that takes nothing");
        assert!(serving.await.unwrap());
    }
}
