//! The calls that the view makes, and what their failures mean.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::{Client, Response, StatusCode, Url, header};
use serde_json::Value;

use super::TopError;
use super::text::clean;
use crate::client::http_client;

/// An explanation asks the provider, twice for at most 3 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// An answer of an error is read up to here.
const LARGEST_PROBLEM: usize = 64 * 1024;

/// A server, with the token of an operator.
#[derive(Clone)]
pub struct Api {
    http: Client,
    server: String,
    token: String,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Api {
    pub fn new(server: &str, token: &str) -> Result<Self, TopError> {
        let url = Url::parse(server)
            .map_err(|error| TopError::Other(format!("{} is not the address of a server: {error}", clean(server))))?;
        let http = http_client(&url).build().map_err(|error| TopError::Other(reason(&error)))?;
        Ok(Self { http, server: server.trim_end_matches('/').to_owned(), token: token.to_owned() })
    }

    /// The address of the server, as a person may see it.
    pub fn shown(&self) -> String {
        match Url::parse(&self.server) {
            // A password in the address is not shown.
            Ok(mut url) if !url.username().is_empty() || url.password().is_some() => {
                let _ = url.set_username("").and_then(|()| url.set_password(None));
                clean(url.as_str().trim_end_matches('/'))
            }
            _ => clean(&self.server),
        }
    }

    /// Opens the live stream.
    pub async fn live(&self) -> Result<Response, TopError> {
        self.get("/admin/live", None).await
    }

    /// Calls the server, and reads its answer.
    pub async fn read(&self, path: &str) -> Result<Value, TopError> {
        let response = self.get(path, Some(CALL_TIMEOUT)).await?;
        response.json().await.map_err(|error| self.failure(&error))
    }

    async fn get(&self, path: &str, timeout: Option<Duration>) -> Result<Response, TopError> {
        let request = self.http.get(format!("{}{path}", self.server)).bearer_auth(&self.token);
        let request = match timeout {
            Some(timeout) => request.timeout(timeout),
            None => request,
        };
        // The stream itself has no limit, but its beginning has.
        let sent = tokio::time::timeout(CALL_TIMEOUT, request.send()).await;
        match sent {
            Ok(Ok(response)) if response.status().is_success() => Ok(response),
            Ok(Ok(response)) => Err(self.refusal(response).await),
            Ok(Err(error)) => Err(self.failure(&error)),
            Err(_) => Err(self.unreachable("it does not answer".to_owned())),
        }
    }

    /// Nothing, or no complete answer, came back.
    pub fn failure(&self, error: &reqwest::Error) -> TopError {
        if error.is_builder() {
            return TopError::Other(format!("{} is not the address of a server: {}", self.shown(), reason(error)));
        }
        self.unreachable(reason(error))
    }

    pub fn unreachable(&self, reason: String) -> TopError {
        TopError::Unreachable { server: self.shown(), reason }
    }

    /// The server answered with an error.
    async fn refusal(&self, mut response: Response) -> TopError {
        let status = response.status();
        if status.is_redirection() {
            let to = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok()).map(clean);
            let (server, to) = (self.shown(), to.unwrap_or_default());
            let next = "name the final address of the server with --server";
            return TopError::Other(format!("{server} redirects to {to}; {next}"));
        }
        let mut body = Vec::new();
        while let Ok(Ok(Some(part))) = tokio::time::timeout(CALL_TIMEOUT, response.chunk()).await {
            body.extend_from_slice(&part);
            if body.len() > LARGEST_PROBLEM {
                break;
            }
        }
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let field = |name: &str| problem.get(name).and_then(Value::as_str).map(clean);
        let mut detail = field("detail").unwrap_or_else(|| format!("the server answers {status}"));
        if let Some(id) = field("request_id") {
            detail.push_str(&format!(" (request {id})"));
        }
        let server = self.shown();
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => TopError::NotAllowed { server, detail },
            StatusCode::NOT_FOUND if field("code").is_none() => {
                TopError::Other(format!("{server} is not a Greenroom server that has a live view: it answers {status}"))
            }
            _ => TopError::Other(format!("{server}: {detail}")),
        }
    }
}

/// By how many seconds the clock of the server is ahead, from the time of its answer.
pub fn clock_difference(response: &Response) -> Option<i64> {
    let date = response.headers().get(header::DATE)?.to_str().ok()?;
    let date = rfc2822::DateTimeParser::new().parse_timestamp(date.replace("GMT", "+0000")).ok()?;
    Some(date.as_second() - Timestamp::now().as_second())
}

/// The innermost cause, which says most: `Connection refused`, not `error sending request`.
pub fn reason(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    clean(&cause.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn neither_the_token_nor_a_password_in_the_address_is_shown() {
        let api = Api::new("https://me:secret@example.com/", "gra_token").unwrap();
        assert_eq!(api.shown(), "https://example.com");
        assert!(!format!("{api:?}").contains("gra_token"));
        assert_eq!(Api::new("http://127.0.0.1:7700/", "").unwrap().shown(), "http://127.0.0.1:7700");
    }

    #[tokio::test]
    async fn an_address_where_nobody_listens_is_unreachable_and_a_wrong_one_is_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let refused = Api::new(&address, "").unwrap().live().await;
        assert!(
            matches!(&refused, Err(TopError::Unreachable { reason, .. }) if reason.contains("refused")),
            "{refused:?}"
        );
        let wrong = Api::new("not a server", "");
        assert!(matches!(&wrong, Err(TopError::Other(_))), "{wrong:?}");
    }

    #[tokio::test]
    async fn the_token_does_not_follow_a_redirect() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let api = Api::new(&address, "gra_token").unwrap();
        let server = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 4_096];
            let _ = tokio::io::AsyncReadExt::read(&mut connection, &mut request).await.unwrap();
            let answer = "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut connection, answer.as_bytes()).await.unwrap();
            // The connection stays open, so that a second request would wait.
            connection
        };
        let (redirected, _connection) = tokio::join!(api.live(), server);
        let message = redirected.unwrap_err().to_string();
        assert!(message.contains("redirects to /elsewhere") && message.contains("--server"), "{message}");
    }
}
