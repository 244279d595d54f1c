//! A small HTTP client: one connection, one request at a time, and only the features that the server's answers need. It
//! shares the machine with the server, so its own processor time must be low.

use std::io;
use std::net::SocketAddr;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use super::Done;

/// An answer that contains a bot.
#[derive(Debug, Deserialize)]
pub struct HttpResponse {
    pub bot: Bot,
}

/// The fields of a bot that the benchmarks read.
#[derive(Debug, Deserialize)]
pub struct Bot {
    pub id: Uuid,
    pub status: String,
    pub slot: Option<String>,
    pub connection_id: Option<Uuid>,
    pub queue_position: Option<i64>,
}

/// The answer to a callback.
#[derive(Debug, Deserialize)]
pub struct Status {
    pub status: String,
}

/// The status of an answer, and its body.
pub type Raw<'a> = (u16, &'a [u8]);

#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(2048) })
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
        let (status, body) = self.call(call, token, key, body).await?;
        if status != expected {
            return Err(format!("{call} returned {status}: {}", String::from_utf8_lossy(body)).into());
        }
        Ok(serde_json::from_slice(body)?)
    }

    /// Sends a request and reads its answer, whatever its status is. Fails only if the connection fails.
    pub async fn call(&mut self, call: &str, token: &str, key: Option<&str>, body: &str) -> io::Result<Raw<'_>> {
        self.stream.write_all(request(call, token, key, body).as_bytes()).await?;
        self.buffer.clear();
        let (head, length) = loop {
            self.read().await?;
            if let Some(head) = find(&self.buffer, b"\r\n\r\n") {
                break (head + 4, content_length(&self.buffer[..head]));
            }
        };
        while self.buffer.len() < head + length {
            self.read().await?;
        }
        let status = std::str::from_utf8(&self.buffer[9..12]).ok().and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("the response has no status"))?;
        Ok((status, &self.buffer[head..head + length]))
    }

    async fn read(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        Ok(())
    }

    /// Opens `GET /events` on this connection.
    pub async fn into_events(mut self, token: &str) -> Done<EventStream> {
        self.stream.write_all(request("GET /events", token, None, "").as_bytes()).await?;
        let mut stream = EventStream { stream: self.stream, buffer: Vec::with_capacity(4096) };
        let head = stream.line().await?;
        if !head.contains(" 200 ") {
            return Err(format!("GET /events returned {head}").into());
        }
        // The server first sends the position of the stream: from here on no event is missed.
        while !stream.line().await?.starts_with("id:") {}
        Ok(stream)
    }
}

/// An open `GET /admin/live`, which is read and not looked at.
#[derive(Debug)]
pub struct LiveStream {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl LiveStream {
    /// Opens the stream, and returns when its first message begins to arrive.
    pub async fn open(address: SocketAddr, token: &str) -> Done<Self> {
        let mut client = Client::connect(address).await?;
        client.stream.write_all(request("GET /admin/live", token, None, "").as_bytes()).await?;
        client.buffer.clear();
        while find(&client.buffer, b"\r\n\r\n").is_none() {
            client.read().await?;
        }
        if !client.buffer.starts_with(b"HTTP/1.1 200 ") {
            return Err(format!("GET /admin/live returned {}", String::from_utf8_lossy(&client.buffer)).into());
        }
        while find(&client.buffer, b"snapshot").is_none() {
            client.read().await?;
        }
        Ok(Self { stream: client.stream, buffer: Vec::with_capacity(64 * 1024) })
    }

    /// Reads some bytes. Returns how many.
    pub async fn read(&mut self) -> Done<usize> {
        self.buffer.clear();
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err("the server closed the live stream".into()),
            read => Ok(read),
        }
    }
}

/// One event of a bot.
#[derive(Debug, Deserialize)]
pub struct Event {
    pub bot_id: Uuid,
    pub kind: String,
}

/// The `GET /events` stream. The server writes each event as one chunk, so that the encoding never splits a line.
#[derive(Debug)]
pub struct EventStream {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl EventStream {
    pub async fn next(&mut self) -> Done<Event> {
        loop {
            let line = self.line().await?;
            if let Some(data) = line.strip_prefix("data:") {
                return Ok(serde_json::from_str(data.trim())?);
            }
        }
    }

    async fn line(&mut self) -> Done<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the server closed the event stream".into());
            }
        }
    }
}

fn request(call: &str, token: &str, key: Option<&str>, body: &str) -> String {
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
    request
}

fn content_length(head: &[u8]) -> usize {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_an_answer_is_read_however_its_header_is_written() {
        assert_eq!(content_length(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y"), 12);
        assert_eq!(content_length(b"HTTP/1.1 204 No Content\r\nx: y"), 0);
    }
}
