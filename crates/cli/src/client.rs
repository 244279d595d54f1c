//! One call to the server, with the token.

use std::convert::Infallible;
use std::str::FromStr;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Method, Response, Url};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::CliError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A keeper may take long; the server answers 504 after less.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A stream has no end, but it begins at once.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// An admin token or an API key. It shows neither in errors nor in debug output.
#[derive(Clone, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// API keys begin with this; every other token is an admin token, which an operator may have chosen.
    pub fn is_api_key(&self) -> bool {
        self.0.starts_with("grk_")
    }
}

impl From<String> for Token {
    fn from(text: String) -> Self {
        Self(text.trim().to_owned())
    }
}

impl FromStr for Token {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::from(text.to_owned()))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The parts of a path, each of which is encoded.
pub type Path<'a> = &'a [&'a str];
pub type Query<'a> = &'a [(&'a str, String)];

#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    pub server: String,
    token: Option<Token>,
}

impl Client {
    pub fn new(server: &str, token: Option<Token>) -> Result<Self, CliError> {
        let invalid = |why: &str| {
            // What has an `@` may have a password.
            let shown = if server.contains('@') { "what was given" } else { &format!("`{server}`") };
            CliError::usage(format!("{shown} is not the URL of a server: {why}"))
                .next("An example: --server http://127.0.0.1:7700")
        };
        let base = Url::parse(server).map_err(|error| invalid(&error.to_string()))?;
        if !base.username().is_empty() || base.password().is_some() {
            // Without the URL: a password must not get into a log.
            return Err(CliError::usage("the URL of the server has a user name or a password")
                .next("Leave out what is before the `@`, and sign in with `greenroom login`."));
        }
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(invalid("it must begin with http:// or https://"));
        }
        let mut headers = HeaderMap::new();
        if let Some(token) = &token {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.reveal()))
                .map_err(|_| CliError::usage("the token has characters that no token has"))?;
            value.set_sensitive(true);
            headers.insert(reqwest::header::AUTHORIZATION, value);
        }
        let http = http_client(&base).default_headers(headers).build();
        let http = http.map_err(|error| CliError::failed(format!("cannot make an HTTP client: {error}")))?;
        Ok(Self { http, base, server: server.to_owned(), token })
    }

    pub fn is_operator(&self) -> bool {
        self.token.as_ref().is_some_and(|token| !token.is_api_key())
    }

    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The first parts of the paths of bots: an operator sees those of every user.
    pub fn bots<'a>(&self, rest: &[&'a str]) -> Vec<&'a str> {
        let first: &[&str] = if self.is_operator() { &["admin", "bots"] } else { &["bots"] };
        first.iter().copied().chain(rest.iter().copied()).collect()
    }

    fn url(&self, path: Path<'_>, query: Query<'_>) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query.iter().map(|(name, value)| (name, value.as_str())));
        }
        url
    }

    /// Sends a request, and returns an answer that is no error.
    pub async fn open(
        &self,
        path: Path<'_>,
        query: Query<'_>,
        last_event_id: Option<&str>,
    ) -> Result<Response, CliError> {
        let mut request = self.http.get(self.url(path, query));
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let opened = async { self.answered(request.send().await.map_err(|error| self.unreachable(&error))?).await };
        match tokio::time::timeout(OPEN_TIMEOUT, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(CliError::silent(&self.server)),
        }
    }

    async fn answered(&self, answer: Response) -> Result<Response, CliError> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (retry_after, request_id) = (header(RETRY_AFTER.as_str()), header("x-request-id"));
        if status.is_redirection() {
            let to = header(LOCATION.as_str()).unwrap_or_default();
            return Err(CliError::failed(format!("the server {} redirects to {to}", self.server))
                .next("Name the final address of the server with --server."));
        }
        let body = answer.text().await.unwrap_or_default();
        Err(CliError::refused(status, &body, retry_after.as_deref(), request_id.as_deref()))
    }

    pub fn unreachable(&self, error: &reqwest::Error) -> CliError {
        CliError::unreachable(&self.server, error)
    }

    pub async fn get(&self, path: Path<'_>, query: Query<'_>) -> Result<Value, CliError> {
        self.call(self.http.get(self.url(path, query)).timeout(TIMEOUT)).await
    }

    /// The same with a limit of its own, for what a person waits for at the prompt.
    pub async fn get_within(&self, path: Path<'_>, query: Query<'_>, limit: Duration) -> Result<Value, CliError> {
        self.call(self.http.get(self.url(path, query)).timeout(limit)).await
    }

    pub async fn send(&self, method: Method, path: Path<'_>, body: Option<&Value>) -> Result<Value, CliError> {
        let mut request = self.http.request(method, self.url(path, &[])).timeout(TIMEOUT);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.call(request).await
    }

    /// A request that may be sent again under the same key without being done twice.
    pub async fn post_once(&self, path: Path<'_>, body: &Value, key: &str) -> Result<Value, CliError> {
        let request = self.http.post(self.url(path, &[])).timeout(TIMEOUT).json(body).header("idempotency-key", key);
        self.call(request).await
    }

    async fn call(&self, request: reqwest::RequestBuilder) -> Result<Value, CliError> {
        let answer = self.answered(request.send().await.map_err(|error| self.unreachable(&error))?).await?;
        let text = answer.text().await.map_err(|error| self.unreachable(&error))?;
        if text.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).map_err(|_| CliError::foreign(&self.server, "it is not JSON"))
    }
}

/// What every HTTP client of the command line has, whatever it calls.
pub fn http_client(server: &Url) -> reqwest::ClientBuilder {
    let mut http = reqwest::Client::builder()
        .user_agent(concat!("greenroom-cli/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        // A token must not follow a redirect to another host.
        .redirect(reqwest::redirect::Policy::none());
    if is_this_machine(server) {
        http = http.no_proxy();
    }
    if server.scheme() == "http" {
        // Certificates are not needed, and an image without any can still check its health.
        http = http.tls_certs_only([]);
    }
    http
}

/// A proxy cannot reach this machine's own addresses.
fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a token on its way to this server can be read by others.
pub fn is_exposed(server: &str) -> bool {
    Url::parse(server).is_ok_and(|url| url.scheme() == "http" && !is_this_machine(&url))
}

#[cfg(test)]
mod tests {
    use super::Client;

    #[test]
    fn a_password_in_the_url_is_refused_and_not_shown() {
        for server in [
            "https://me:hunter2@example.com",
            "https://:hunter2@example.com",
            "https://hunter2@example.com",
            "https://me:hunter2@",
            "ftp://me:hunter2@example.com",
        ] {
            let refused = Client::new(server, None).map(drop).map_err(|error| error.report());
            assert!(refused.as_ref().is_err_and(|error| !error.contains("hunter2")), "{refused:?}");
        }
        assert!(Client::new("https://example.com/a@b", None).is_ok());
    }
}
