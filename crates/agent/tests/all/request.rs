//! Reads the HTTP/1.1 requests that the agent sends.

use std::collections::HashMap;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpStream;

#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub query: HashMap<String, String>,
    pub token: String,
    pub content_type: String,
    /// The memory that an agent says it uses.
    pub memory_bytes: Option<u64>,
    /// The headers of the instance metadata service.
    pub metadata_headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

/// `None` when the client has closed the connection.
pub async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let mut parts = line.split_whitespace();
    let mut request = Request { method: parts.next()?.to_owned(), ..Request::default() };
    let target = parts.next()?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    request.path = path.to_owned();
    request.query =
        query.split('&').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "content-type" => request.content_type = value.to_owned(),
            "greenroom-memory-bytes" => request.memory_bytes = Some(value.parse().unwrap()),
            "authorization" => request.token = value.strip_prefix("Bearer ").unwrap_or_default().to_owned(),
            other if other.starts_with("x-aws-ec2-metadata-") => {
                request.metadata_headers.insert(other.to_owned(), value.to_owned());
            }
            _ => {}
        }
    }
    request.body = vec![0; length];
    stream.read_exact(&mut request.body).await.ok()?;
    Some(request)
}
