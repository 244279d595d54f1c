//! A client that speaks HTTP by hand, and may stop in the middle of a word, or never read.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::Process;

/// Longer than anything takes that is answered at all.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Raw {
    pub stream: TcpStream,
}

impl Raw {
    /// Connects, with a small buffer for what it does not read.
    pub async fn connect(server: &Process) -> Self {
        let address = server.url.strip_prefix("http://").unwrap().parse().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self { stream: socket.connect(address).await.unwrap() }
    }

    /// Connects and sends this.
    pub async fn sending(server: &Process, text: &str) -> Self {
        let mut raw = Self::connect(server).await;
        raw.send(text).await;
        raw
    }

    pub async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Waits until something comes, and gives it. Empty at the end, however that comes.
    pub async fn read(&mut self) -> String {
        let mut buffer = vec![0; 64 * 1024];
        let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut buffer)).await.expect("an answer, or the end");
        String::from_utf8_lossy(&buffer[..read.unwrap_or(0)]).into_owned()
    }

    /// All that comes until the end.
    pub async fn read_all(&mut self) -> String {
        let mut all = String::new();
        loop {
            match self.read().await {
                text if text.is_empty() => return all,
                text => all.push_str(&text),
            }
        }
    }
}
