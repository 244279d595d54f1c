//! A client that sends HTTP as plain text. It can stop in the middle of a request, and can leave an answer unread.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::Process;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Raw {
    pub stream: TcpStream,
}

impl Raw {
    /// Connects, with a small receive buffer for data that the test does not read.
    pub async fn connect(server: &Process) -> Self {
        let address = server.url.strip_prefix("http://").unwrap().parse().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self { stream: socket.connect(address).await.unwrap() }
    }

    /// Connects and sends this text.
    pub async fn sending(server: &Process, text: &str) -> Self {
        let mut raw = Self::connect(server).await;
        raw.send(text).await;
        raw
    }

    pub async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Waits for data and returns it. Returns an empty text when the connection has ended, in any way.
    pub async fn read(&mut self) -> String {
        let mut buffer = vec![0; 64 * 1024];
        let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut buffer))
            .await
            .expect("an answer, or the end of the connection");
        String::from_utf8_lossy(&buffer[..read.unwrap_or(0)]).into_owned()
    }

    /// Reads all data until the connection ends.
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
