//! This module serves one connection. Hyper reads the requests, answers are written as long as the client reads them,
//! and the connection ends in order. The reservation that an answer holds is kept until the answer is written, not only
//! until it is made.

mod pieces;
mod timed_stream;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use pieces::Pieces;
use timed_stream::TimedStream;

use crate::api::caller::Peer;
use crate::api::middleware::HeldReservation;

/// The buffer size for the head of a request, and for answers before hyper waits until they are written.
const BUFFER: usize = 16 * 1024;
/// How many connections that were idle may have a request answered at once. Other requests wait in the socket, where
/// they cost the server nothing.
pub const TURNS: usize = 1_024;
/// A request that takes longer, such as a waiting agent's, gives its turn to the next connection.
const LONGEST_TURN: Duration = Duration::from_millis(250);
/// A connection without a request for this long is idle.
const IDLE_AFTER: Duration = Duration::from_millis(50);

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// For the head of a request, and for an open connection without a request.
    pub head: Duration,
    /// The same while nearly the largest number of connections is open.
    pub head_when_crowded: Duration,
    /// For a client that reads nothing of an answer.
    pub write: Duration,
    /// The same once the server stops.
    pub last_write: Duration,
    /// Once the server stops: for the server to see a request that has arrived.
    pub last_arrival: Duration,
    /// Once the server stops: for answering the requests that have arrived.
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

type Connection<S> = http1::Connection<TokioIo<TimedStream>, S>;

/// The state that the parts of a connection share.
#[derive(Debug, Default)]
struct Shared {
    /// Requests whose head has arrived and whose answer is not written.
    requests: Arc<AtomicUsize>,
    arrived: Notify,
    /// Answers that hyper has and that are not written yet. Their reservations are released when all are written.
    unwritten: Mutex<Vec<Answering>>,
    /// Whether an answer was ready to be written.
    has_answered: AtomicBool,
    is_stopping: AtomicBool,
}

/// A request that is being answered, and the reservation that its answer holds.
#[derive(Debug)]
struct Answering {
    requests: Arc<AtomicUsize>,
    _held: Option<HeldReservation>,
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

    fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::SeqCst)
    }

    fn has_requests(&self) -> bool {
        self.requests.load(Ordering::SeqCst) > 0
    }
}

/// Serves a connection until it ends. False when the server stopped and a request was cut.
///
/// Hyper and its buffers are created when a request arrives, and dropped when the connection has been idle for a
/// moment. So an idle connection costs a tenth of an active one.
pub async fn serve(
    stream: TcpStream,
    peer: IpAddr,
    router: Router,
    times: Times,
    head: Duration,
    stopping: CancellationToken,
    turns: Arc<Semaphore>,
) -> bool {
    let mut idle = Idle { stream, already_read: Bytes::new() };
    while !idle.already_read.is_empty() || request_arrives(&idle.stream, &times, head, &stopping).await {
        let turn = tokio::select! {
            turn = turns.clone().acquire_owned() => turn.ok(),
            () = stopping.cancelled() => None,
        };
        let serving = serve_requests(idle, turn, peer, router.clone(), times, head, &stopping);
        match Box::pin(serving).await {
            Served::Idle(next) => idle = next,
            Served::Ended { was_cut } => return !was_cut,
        }
    }
    true
}

/// A connection between two requests.
struct Idle {
    stream: TcpStream,
    already_read: Bytes,
}

enum Served {
    Idle(Idle),
    Ended { was_cut: bool },
}

/// Waits until there is something to read. False when nothing arrives in time, or when nothing more can arrive.
async fn request_arrives(stream: &TcpStream, times: &Times, head: Duration, stopping: &CancellationToken) -> bool {
    // A new stream reports that it is readable before anything has arrived, so this peeks at a byte.
    let mut byte = [0];
    let arrived = tokio::select! {
        arrived = tokio::time::timeout(head, stream.peek(&mut byte)) => arrived,
        () = stopping.cancelled() => tokio::time::timeout(times.last_arrival, stream.peek(&mut byte)).await,
    };
    matches!(arrived, Ok(Ok(1)))
}

/// Serves requests for as long as they follow each other.
async fn serve_requests(
    Idle { stream, already_read }: Idle,
    turn: Option<OwnedSemaphorePermit>,
    peer: IpAddr,
    router: Router,
    times: Times,
    head: Duration,
    stopping: &CancellationToken,
) -> Served {
    let shared = Arc::new(Shared::default());
    let io = TimedStream { stream, already_read, shared: shared.clone(), times, waiting: None };
    let of_service = shared.clone();
    let service = service_fn(move |request| answer(router.clone(), peer, of_service.clone(), request));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(io), service);
    tokio::select! {
        ended = until_idle(&mut connection, &shared, turn) => match ended {
            Some(ended) => {
                log(ended);
                return Served::Ended { was_cut: false };
            }
            None => {
                let parts = connection.into_parts();
                let TimedStream { stream, already_read, .. } = parts.io.into_inner();
                // The bytes that hyper has read come before those that it has not.
                let already_read = [parts.read_buf, already_read].concat().into();
                return Served::Idle(Idle { stream, already_read });
            }
        },
        () = stopping.cancelled() => {}
    }
    let was_cut = !finish(Pin::new(&mut connection), &shared, &times).await;
    Served::Ended { was_cut }
}

/// Returns `None` when every request is answered and no other request arrives for a moment.
async fn until_idle<C>(connection: &mut C, shared: &Shared, turn: Option<OwnedSemaphorePermit>) -> Option<C::Output>
where
    C: Future + Unpin,
{
    let mut turn = turn.map(|permit| (permit, Box::pin(tokio::time::sleep(LONGEST_TURN))));
    let mut idle: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(ended) = Pin::new(&mut *connection).poll(cx) {
            return Poll::Ready(Some(ended));
        }
        if turn.as_mut().is_some_and(|(_, end)| shared.has_answered() || end.as_mut().poll(cx).is_ready()) {
            turn = None;
        }
        if shared.has_requests() || !shared.has_answered() {
            idle = None;
            return Poll::Pending;
        }
        let idle = idle.get_or_insert_with(|| Box::pin(tokio::time::sleep(IDLE_AFTER)));
        idle.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Once the server stops: answers the requests that have arrived, and no more. False when the time ran out.
async fn finish<S>(mut connection: Pin<&mut Connection<S>>, shared: &Shared, times: &Times) -> bool
where
    S: HttpService<Incoming, ResBody = Body>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let end = Instant::now() + times.stop;
    // Bytes in the socket have already arrived, and are seen within a moment.
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
        tracing::debug!(%error, "connection failed");
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
    shared.has_answered.store(true, Ordering::SeqCst);
    answering._held = response.extensions_mut().remove::<HeldReservation>();
    Ok(response.map(|body| Body::new(Pieces { body, rest: Bytes::new(), answering: Some(answering), shared })))
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

    /// A connection to a server with a large answer, and a client that buffers little of what it does not read.
    async fn connected() -> (TcpStream, JoinHandle<bool>) {
        let router = Router::new().route("/", get(|| async { vec![b'x'; LARGE] }));
        connected_to(router, Arc::new(Semaphore::new(TURNS))).await
    }

    async fn connected_to(router: Router, turns: Arc<Semaphore>) -> (TcpStream, JoinHandle<bool>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        socket2::SockRef::from(&listener).set_send_buffer_size(64 * 1024).unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        let client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let times = Times { write: WRITE, ..Times::default() };
        let serving = serve(stream, peer.ip(), router, times, times.head, CancellationToken::new(), turns);
        (client, tokio::spawn(serving))
    }

    /// Reads until the body of the last answer is `body`.
    async fn expect(client: &mut TcpStream, body: &str) {
        let mut answer = Vec::new();
        while !answer.ends_with(format!("\r\n\r\n{body}").as_bytes()) {
            assert!(client.read_buf(&mut answer).await.unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
        }
    }

    fn echo() -> Router {
        Router::new().route("/", axum::routing::post(|body: String| async { body }))
    }

    fn request(body: &str) -> String {
        format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn requests_come_one_after_the_other_at_once_or_in_parts_while_the_connection_is_idle_between_them() {
        let (mut client, serving) = connected_to(echo(), Arc::new(Semaphore::new(TURNS))).await;
        client.write_all((request("first") + &request("second")).as_bytes()).await.unwrap();
        expect(&mut client, "second").await;
        tokio::time::sleep(IDLE_AFTER * 3).await;
        // Half of a request's head has arrived at the moment when the connection would become idle.
        let third = request("third");
        let (begin, rest) = third.split_at(10);
        client.write_all((request("before") + begin).as_bytes()).await.unwrap();
        expect(&mut client, "before").await;
        tokio::time::sleep(IDLE_AFTER * 3).await;
        client.write_all(rest.as_bytes()).await.unwrap();
        expect(&mut client, "third").await;
        drop(client);
        assert!(serving.await.unwrap());
    }

    #[tokio::test]
    async fn a_request_waits_for_its_turn() {
        let turns = Arc::new(Semaphore::new(1));
        let taken = turns.clone().acquire_owned().await.unwrap();
        let (mut client, _serving) = connected_to(echo(), turns.clone()).await;
        client.write_all(request("late").as_bytes()).await.unwrap();
        let answered = tokio::time::timeout(Duration::from_millis(50), client.readable()).await;
        assert!(answered.is_err(), "answered while the only turn was taken");
        drop(taken);
        expect(&mut client, "late").await;
        assert_eq!(turns.available_permits(), 1);
    }

    #[tokio::test]
    async fn a_request_that_takes_long_gives_its_turn_to_the_next() {
        let turns = Arc::new(Semaphore::new(1));
        let end = Arc::new(Notify::new());
        let of_handler = end.clone();
        let slow = || async move {
            of_handler.notified().await;
            "slow"
        };
        let (mut first, _serving) = connected_to(Router::new().route("/", get(slow)), turns.clone()).await;
        first.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        while turns.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let (mut second, _also_serving) = connected_to(echo(), turns.clone()).await;
        second.write_all(request("second").as_bytes()).await.unwrap();
        expect(&mut second, "second").await;
        end.notify_one();
        expect(&mut first, "slow").await;
    }

    #[tokio::test]
    async fn an_unread_answer_is_given_up() {
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
