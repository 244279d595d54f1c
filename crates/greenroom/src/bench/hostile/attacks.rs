//! The attacks of the hostile user, which has a key and a limit of one bot.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::server::meeting;

const MEMORY_CONNECTIONS: usize = 40;
const REPLAYS_PER_SECOND: u32 = 150;
const UNREAD_CONNECTIONS: usize = 200;
const UNREAD_REQUESTS: usize = 100;
const FLOODING_CONNECTIONS: usize = 8;
/// How long one replay is read.
const REPLAY_TIME: Duration = Duration::from_secs(1);
const BEFORE_NEXT: Duration = Duration::from_millis(20);
/// The pause before a connection that the server closed is opened again.
const AFTER_END: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
pub enum Attack {
    /// Large answers that the client does not read.
    Memory,
    /// All events from the first one on, again and again.
    Replay,
    /// Many requests on many connections, without reading the answers.
    Unread,
    /// Connections that send nothing, or only the beginning of a request.
    Idle(usize),
    /// Requests above the limit, as fast as the server refuses them.
    Refusals,
}

/// A running attack.
#[derive(Debug)]
pub struct Attacker {
    end: CancellationToken,
    work: AbortOnDropHandle<()>,
    count: Arc<Count>,
}

/// The attacker's counts.
#[derive(Debug, Default)]
struct Count {
    connections: AtomicU64,
    failed_connections: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Attack {
    pub fn all(idle: usize) -> [Self; 5] {
        [Attack::Memory, Attack::Replay, Attack::Unread, Attack::Idle(idle), Attack::Refusals]
    }

    pub fn name(self) -> &'static str {
        match self {
            Attack::Memory => "memory",
            Attack::Replay => "replay flood",
            Attack::Unread => "unread",
            Attack::Idle(_) => "idle",
            Attack::Refusals => "refusals",
        }
    }

    pub fn begin(self, address: SocketAddr, key: &str) -> Attacker {
        let (end, count) = (CancellationToken::new(), Arc::<Count>::default());
        let party = Party { address, key: key.to_owned(), count: count.clone() };
        let ended = end.clone();
        let work = tokio::spawn(async move {
            tokio::select! {
                () = party.attack(self) => {}
                () = ended.cancelled() => {}
            }
        });
        Attacker { end, work: AbortOnDropHandle::new(work), count }
    }
}

impl Attacker {
    /// Ends the attack, and returns a description of its effects.
    pub async fn end(self) -> String {
        self.end.cancel();
        let _ = self.work.await;
        let [connections, failed, requests, refused, bytes] = [
            &self.count.connections,
            &self.count.failed_connections,
            &self.count.requests,
            &self.count.refused,
            &self.count.bytes,
        ]
        .map(|counter| counter.load(Ordering::Relaxed));
        format!(
            "{connections} connections ({failed} failed), {requests} requests, {refused} refused, {} MiB read",
            bytes / 1024 / 1024
        )
    }
}

#[derive(Clone, Debug)]
struct Party {
    address: SocketAddr,
    key: String,
    count: Arc<Count>,
}

impl Party {
    async fn attack(self, attack: Attack) {
        match attack {
            Attack::Memory => self.many(MEMORY_CONNECTIONS, Self::ask_and_never_read).await,
            Attack::Replay => self.replay().await,
            Attack::Unread => self.many(UNREAD_CONNECTIONS, Self::pipeline_and_never_read).await,
            Attack::Idle(connections) => self.many(connections, Self::stay_idle).await,
            Attack::Refusals => self.many(FLOODING_CONNECTIONS, Self::be_refused).await,
        }
    }

    /// Keeps this number of connections open, and opens each again when it ends.
    async fn many<F>(&self, connections: usize, work: impl Fn(Self) -> F + Copy + Send + 'static)
    where
        F: Future<Output = std::io::Result<()>> + Send + 'static,
    {
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..connections {
            let party = self.clone();
            workers.spawn(async move {
                loop {
                    let _ = work(party.clone()).await;
                    tokio::time::sleep(AFTER_END).await;
                }
            });
        }
        workers.join_all().await;
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        let connected = TcpStream::connect(self.address).await;
        let counter = if connected.is_ok() { &self.count.connections } else { &self.count.failed_connections };
        Count::one(counter);
        connected
    }

    fn get(&self, path: &str, headers: &str) -> String {
        Count::one(&self.count.requests);
        format!("GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\n{headers}\r\n", self.key)
    }

    async fn ask_and_never_read(self) -> std::io::Result<()> {
        let mut stream = self.connect().await?;
        stream.write_all(self.get("/bots?limit=1000", "").as_bytes()).await?;
        until_closed(&stream).await
    }

    async fn pipeline_and_never_read(self) -> std::io::Result<()> {
        let mut stream = self.connect().await?;
        for _ in 0..UNREAD_REQUESTS {
            stream.write_all(self.get("/bots?limit=20", "").as_bytes()).await?;
        }
        until_closed(&stream).await
    }

    async fn stay_idle(self) -> std::io::Result<()> {
        let mut stream = self.connect().await?;
        // Every second connection sends the beginning of a request.
        if self.count.connections.load(Ordering::Relaxed).is_multiple_of(2) {
            stream.write_all(b"G").await?;
        }
        until_closed(&stream).await
    }

    async fn replay(self) {
        let mut tick = tokio::time::interval(Duration::from_secs(1) / REPLAYS_PER_SECOND);
        let mut replays = tokio::task::JoinSet::new();
        loop {
            tick.tick().await;
            let party = self.clone();
            replays.spawn(async move {
                let _ = tokio::time::timeout(REPLAY_TIME, party.replay_once()).await;
            });
            while replays.try_join_next().is_some() {}
        }
    }

    async fn replay_once(self) -> std::io::Result<()> {
        let mut stream = self.connect().await?;
        stream.write_all(self.get("/events", "last-event-id: 0\r\n").as_bytes()).await?;
        let mut buffer = vec![0; 64 * 1024];
        let mut first = true;
        loop {
            let read = stream.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            if std::mem::take(&mut first) && !buffer.starts_with(b"HTTP/1.1 200") {
                Count::one(&self.count.refused);
                return Ok(());
            }
            self.count.bytes.fetch_add(read as u64, Ordering::Relaxed);
        }
    }

    async fn be_refused(self) -> std::io::Result<()> {
        let mut stream = self.connect().await?;
        let body = json!({"meeting_url": meeting(3)}).to_string();
        let request = format!(
            "POST /bots HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        );
        let mut buffer = vec![0; 64 * 1024];
        loop {
            Count::one(&self.count.requests);
            stream.write_all(request.as_bytes()).await?;
            // A refusal is small, so the first read returns all of it.
            let read = stream.read(&mut buffer).await?;
            if read == 0 {
                tokio::time::sleep(BEFORE_NEXT).await;
                return Ok(());
            }
            if buffer.starts_with(b"HTTP/1.1 4") || buffer.starts_with(b"HTTP/1.1 5") {
                Count::one(&self.count.refused);
            }
        }
    }
}

/// Waits until the other side closes, without reading anything.
async fn until_closed(stream: &TcpStream) -> std::io::Result<()> {
    loop {
        let ready = stream.ready(tokio::io::Interest::READABLE | tokio::io::Interest::ERROR).await?;
        if ready.is_read_closed() || ready.is_error() {
            return Ok(());
        }
        // There is unread data, which stays unread.
        tokio::time::sleep(AFTER_END).await;
    }
}
