//! A bot that receives its commands over Redis, with the small part of the Redis protocol that this needs.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Listens to one channel. A separate task reads the messages, so a cancelled wait never leaves a message half read.
#[derive(Debug)]
pub struct Subscriber {
    messages: mpsc::UnboundedReceiver<String>,
}

/// A connection to Redis.
struct Reading {
    stream: BufReader<TcpStream>,
}

impl Subscriber {
    /// After this returns, the subscriber receives every message that is published.
    pub async fn to(address: &str, channel: &str) -> Self {
        let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
        let parts = format!("*2\r\n$9\r\nSUBSCRIBE\r\n${}\r\n{channel}\r\n", channel.len());
        stream.write_all(parts.as_bytes()).await.unwrap();
        let mut reading = Reading { stream };
        assert_eq!(reading.push().await.unwrap(), ["subscribe", channel, "1"]);
        let (sender, messages) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(push) = reading.push().await {
                assert_eq!(push[0], "message");
                if sender.send(push[2].clone()).is_err() {
                    return;
                }
            }
        });
        Self { messages }
    }

    /// Waits for the next message, and parses it.
    pub async fn next(&mut self) -> serde_json::Value {
        let message = tokio::time::timeout(super::PATIENCE, self.messages.recv()).await;
        serde_json::from_str(&message.expect("a message is published").expect("Redis runs")).unwrap()
    }
}

impl Reading {
    /// Reads one array of texts and numbers. Returns `None` when Redis has closed the connection.
    async fn push(&mut self) -> Option<Vec<String>> {
        let head = self.line().await?;
        let count: usize = head.strip_prefix('*').expect("an array").parse().unwrap();
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            let head = self.line().await?;
            let (kind, rest) = head.split_at(1);
            parts.push(match kind {
                ":" => rest.to_owned(),
                "$" => self.text(rest.parse().unwrap()).await?,
                _ => panic!("neither a text nor a number: {head}"),
            });
        }
        Some(parts)
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.ok()?;
        line.strip_suffix("\r\n").map(str::to_owned)
    }

    async fn text(&mut self, bytes: usize) -> Option<String> {
        let mut text = vec![0; bytes + 2];
        self.stream.read_exact(&mut text).await.ok()?;
        text.truncate(bytes);
        Some(String::from_utf8(text).unwrap())
    }
}
