//! A lean HTTP client: one connection, one request at a time, no more than the server's answers need. It shares the
//! machine with the server, so every microsecond it takes is one that the server has not.

use std::net::SocketAddr;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use super::Done;

/// An answer with a bot in it.
#[derive(Debug, Deserialize)]
pub struct Answer {
    pub bot: Bot,
}

/// As much of a bot as is looked at.
#[derive(Debug, Deserialize)]
pub struct Bot {
    pub id: Uuid,
    pub status: String,
    pub slot: Option<String>,
    pub connection_id: Option<Uuid>,
    pub queue_position: Option<i64>,
}

#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Done<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Sends a request and reads its answer, which must have the status `expected`.
    pub async fn send<T: DeserializeOwned>(
        &mut self,
        call: &str,
        token: &str,
        key: Option<&str>,
        body: &str,
        expected: u16,
    ) -> Done<T> {
        let mut request = format!("{call} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n");
        if let Some(key) = key {
            request.push_str("idempotency-key: ");
            request.push_str(key);
            request.push_str("\r\n");
        }
        request.push_str("content-length: ");
        request.push_str(&body.len().to_string());
        request.push_str("\r\n\r\n");
        request.push_str(body);
        self.stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        let (head, length) = loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the server closed the connection".into());
            }
            if let Some(head) = find(&self.buffer, b"\r\n\r\n") {
                let text = std::str::from_utf8(&self.buffer[..head])?.to_ascii_lowercase();
                let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
                break (head + 4, length.map_or(Ok(0), |length| length.trim().parse::<usize>())?);
            }
        };
        while self.buffer.len() < head + length {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
        let status: u16 = std::str::from_utf8(&self.buffer[9..12])?.parse()?;
        let body = &self.buffer[head..head + length];
        if status != expected {
            return Err(format!("{call} answered {status}: {}", String::from_utf8_lossy(body)).into());
        }
        Ok(serde_json::from_slice(body)?)
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
