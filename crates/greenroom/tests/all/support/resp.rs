//! A bot that hears its commands over Redis, in the few words of its protocol that this takes.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Listens to one channel.
#[derive(Debug)]
pub struct Subscriber {
    stream: BufReader<TcpStream>,
}

impl Subscriber {
    /// From its return on nothing is missed that is published.
    pub async fn to(address: &str, channel: &str) -> Self {
        let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
        let words = format!("*2\r\n$9\r\nSUBSCRIBE\r\n${}\r\n{channel}\r\n", channel.len());
        stream.write_all(words.as_bytes()).await.unwrap();
        let mut subscriber = Self { stream };
        assert_eq!(subscriber.push().await, ["subscribe", channel, "1"]);
        subscriber
    }

    /// Waits for the next message, and reads it.
    pub async fn next(&mut self) -> serde_json::Value {
        let push = tokio::time::timeout(super::PATIENCE, self.push()).await.expect("a message is published");
        assert_eq!(push[0], "message");
        serde_json::from_str(&push[2]).unwrap()
    }

    /// One array of texts and numbers.
    async fn push(&mut self) -> Vec<String> {
        let head = self.line().await;
        let count: usize = head.strip_prefix('*').expect("an array").parse().unwrap();
        let mut words = Vec::with_capacity(count);
        for _ in 0..count {
            let head = self.line().await;
            let (kind, rest) = head.split_at(1);
            words.push(match kind {
                ":" => rest.to_owned(),
                "$" => self.text(rest.parse().unwrap()).await,
                _ => panic!("neither a text nor a number: {head}"),
            });
        }
        words
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        line.strip_suffix("\r\n").expect("Redis is there").to_owned()
    }

    async fn text(&mut self, bytes: usize) -> String {
        let mut text = vec![0; bytes + 2];
        self.stream.read_exact(&mut text).await.unwrap();
        text.truncate(bytes);
        String::from_utf8(text).unwrap()
    }
}
