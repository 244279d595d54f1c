//! Operators who watch `GET /admin/live` while another benchmark runs. They are tasks of the benchmark's own process,
//! so that they do not slow down the load generator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;

use super::Done;
use super::client::LiveStream;

#[derive(Debug)]
pub struct LiveReaders {
    tasks: JoinSet<Done>,
    bytes: Arc<AtomicU64>,
}

impl LiveReaders {
    /// Opens the streams, and returns when each reader has got the beginning of its snapshot.
    pub async fn open(address: SocketAddr, token: &str, count: usize) -> Done<Self> {
        let (mut tasks, bytes) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
        for _ in 0..count {
            let mut stream = LiveStream::open(address, token).await?;
            let bytes = bytes.clone();
            tasks.spawn(async move {
                loop {
                    let read = stream.read().await?;
                    bytes.fetch_add(u64::try_from(read).unwrap_or(0), Ordering::Relaxed);
                }
            });
        }
        Ok(Self { tasks, bytes })
    }

    /// Closes the streams, and returns how many bytes were read. Fails if a reader was dropped, or read nothing.
    pub async fn close(mut self) -> Done<u64> {
        if let Some(ended) = self.tasks.try_join_next() {
            ended??;
        }
        self.tasks.shutdown().await;
        match self.bytes.load(Ordering::Relaxed) {
            0 => Err("the live readers got no message".into()),
            bytes => Ok(bytes),
        }
    }
}
