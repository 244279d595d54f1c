//! Answers as gzip, for clients that accept it. An answer is compressed as a whole before it is sent. So a client that
//! reads slowly keeps the compressed text in memory, and no encoder, which would need 300 KB.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{LazyLock, Mutex, PoisonError};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::MatchedPath;
use axum::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, VARY,
};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A smaller answer is sent as it is.
const SMALLEST: usize = 1024;
/// A larger answer is compressed on a thread of its own, because it takes milliseconds.
const LARGEST_AT_ONCE: usize = 32 * 1024;
/// The answers to bots and agents: small, frequent, and some contain tokens.
const FOR_BOTS: [&str; 2] = ["/agent/", "/callback/"];

/// Marks an answer that is the same for everyone for as long as the server runs, by a name of its own. It is compressed
/// once. The name is not the path of the request: a client can write one path in many ways.
#[derive(Clone, Copy, Debug)]
pub struct Unchanging(pub &'static str);

/// The compressed answers that never change, by name.
static UNCHANGING: LazyLock<Mutex<HashMap<&'static str, Bytes>>> = LazyLock::new(Mutex::default);

/// Whether a client accepts gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = parameters.trim().strip_prefix("q=").map_or(Ok(1.0), |weight| weight.trim().parse::<f32>());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_ok_and(|weight| weight > 0.0)
    })
}

/// How the answer to a request may be compressed.
#[derive(Debug)]
pub struct Compressor {
    is_allowed: bool,
    is_accepted: bool,
}

impl Compressor {
    /// Only answers to `GET` are compressed. An answer with a key or a token is one to `POST`, or one to an agent: next
    /// to text that a stranger chooses, the size of the compressed answer would tell about the secret.
    pub fn new(request: &Parts) -> Self {
        let is_for_bots = || {
            let route = request.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
            route.is_some_and(|route| FOR_BOTS.iter().any(|prefix| route.starts_with(prefix)))
        };
        let is_allowed = request.method == Method::GET && !is_for_bots();
        Self { is_allowed, is_accepted: is_allowed && accepts_gzip(&request.headers) }
    }

    /// The answer, compressed if the client accepts it and if it helps.
    pub async fn compress(self, mut response: Response) -> Response {
        let size = response.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
        let Some(size) = size.filter(|size| *size >= SMALLEST && self.is_allowed && is_text(&response)) else {
            return response;
        };
        response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
        if !self.is_accepted {
            return response;
        }
        let (mut parts, body) = response.into_parts();
        let name = parts.extensions.get::<Unchanging>().map(|Unchanging(name)| *name);
        let known = name.and_then(|name| unchanging().get(name).cloned());
        let compressed = match known {
            Some(compressed) => compressed,
            None => {
                // The body is in memory already, with this size.
                let Ok(plain) = axum::body::to_bytes(body, size).await else {
                    parts.status = StatusCode::INTERNAL_SERVER_ERROR;
                    return Response::from_parts(parts, Body::empty());
                };
                let Some(compressed) = gzip(plain.clone()).await.filter(|short| short.len() < plain.len()) else {
                    return Response::from_parts(parts, Body::from(plain));
                };
                if let Some(name) = name {
                    unchanging().insert(name, compressed.clone());
                }
                compressed
            }
        };
        parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        parts.headers.remove(CONTENT_LENGTH);
        weaken_tag(&mut parts.headers);
        Response::from_parts(parts, Body::from(compressed))
    }
}

fn unchanging() -> std::sync::MutexGuard<'static, HashMap<&'static str, Bytes>> {
    UNCHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an answer is text that is complete and not compressed yet.
fn is_text(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_text = match kind {
        // Its messages are compressed one by one.
        "text/event-stream" => false,
        "application/json" | "application/javascript" | "application/manifest+json" | "image/svg+xml" => true,
        kind => kind.starts_with("text/"),
    };
    is_text && !response.headers().contains_key(CONTENT_ENCODING) && response.status() != StatusCode::PARTIAL_CONTENT
}

/// The same tag must not name two different texts.
fn weaken_tag(headers: &mut HeaderMap) {
    let Some(strong) = headers.get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/")) else { return };
    if let Ok(weak) = HeaderValue::from_bytes(&[b"W/", strong.as_bytes()].concat()) {
        headers.insert(ETAG, weak);
    }
}

async fn gzip(plain: Bytes) -> Option<Bytes> {
    if plain.len() <= LARGEST_AT_ONCE {
        return gzipped(&plain);
    }
    tokio::task::spawn_blocking(move || gzipped(&plain)).await.ok().flatten()
}

fn gzipped(plain: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::default());
    encoder.write_all(plain).and_then(|()| encoder.finish()).ok().map(|mut compressed| {
        compressed.shrink_to_fit();
        compressed.into()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read;

    use axum::extract::Request;
    use axum::response::IntoResponse;

    use super::*;

    fn accepts(value: &'static str) -> bool {
        accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]))
    }

    #[test]
    fn gzip_is_accepted_where_the_client_says_so() {
        for accepted in ["gzip", "br, GZIP", "deflate, gzip;q=0.5", "gzip; q=1.0, identity"] {
            assert!(accepts(accepted), "{accepted}");
        }
        for refused in ["", "br", "gzip;q=0", "gzip; q=0.0", "gzip;q=x", "xgzip", "*"] {
            assert!(!accepts(refused), "{refused}");
        }
    }

    async fn answer(method: Method, path: &str, response: impl IntoResponse) -> Response {
        let request = Request::builder().method(method).uri(path).header(ACCEPT_ENCODING, "gzip");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Compressor::new(&parts).compress(response.into_response()).await
    }

    fn is_compressed(response: &Response) -> bool {
        response.headers().get(CONTENT_ENCODING).is_some_and(|coding| coding == "gzip")
    }

    #[tokio::test]
    async fn a_large_text_is_compressed_and_small_secret_and_binary_answers_are_not() {
        let text = "some text ".repeat(10_000);
        let compressed = answer(Method::GET, "/a", text.clone()).await;
        assert!(is_compressed(&compressed));
        assert_eq!(compressed.headers()[VARY], "accept-encoding");
        let bytes = axum::body::to_bytes(compressed.into_body(), usize::MAX).await.unwrap();
        let mut read = String::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut read).unwrap();
        assert_eq!(read, text);

        assert!(!is_compressed(&answer(Method::POST, "/a", text.clone()).await), "it may show a key");
        assert!(!is_compressed(&answer(Method::GET, "/a", "x".repeat(SMALLEST - 1)).await));
        assert!(is_compressed(&answer(Method::GET, "/a", "x".repeat(SMALLEST)).await));
        assert!(!is_compressed(&answer(Method::GET, "/a", vec![b'x'; 5_000]).await), "it is no text");
        let stream = ([(CONTENT_TYPE, "text/event-stream")], text.clone());
        assert!(!is_compressed(&answer(Method::GET, "/a", stream).await));
    }

    #[tokio::test]
    async fn an_answer_that_never_changes_is_compressed_once_and_its_tag_is_weak() {
        let page = || {
            let mut page = ([(ETAG, "\"1\"")], "page ".repeat(1_000)).into_response();
            page.extensions_mut().insert(Unchanging("a page of this test"));
            page
        };
        let bytes = async |response: Response| axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let first = answer(Method::GET, "/test-page", page()).await;
        assert_eq!(first.headers()[ETAG], "W/\"1\"");
        let second = answer(Method::GET, "/test-page", page()).await;
        assert_eq!(bytes(first).await.as_ptr(), bytes(second).await.as_ptr());
    }
}
