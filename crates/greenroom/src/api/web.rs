//! For everyone: the files of the dashboard and of the API reference, which are embedded in the binary. A debug build
//! reads them from the source folder, so that a change to a page needs no build.

use axum::Extension;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::header::{REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::hex;
use rust_embed::RustEmbed;

use super::compression::Unchanging;
use super::problem::Problem;

#[derive(RustEmbed)]
#[folder = "../../web"]
#[include = "*.html"]
#[include = "*.js"]
#[include = "*.css"]
#[include = "*.svg"]
#[include = "*.LICENSE"]
#[exclude = "tests/*"]
struct Files;

/// Nothing from another host, no inline code or style, no text that becomes code, and no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// The dashboard.
pub async fn dashboard(headers: HeaderMap) -> Result<Response, Problem> {
    answer("index.html", &headers)
}

/// The API reference.
pub async fn docs(headers: HeaderMap) -> Result<Response, Problem> {
    answer("docs/index.html", &headers)
}

/// A file that one of the pages loads.
pub async fn asset(name: Result<Path<String>, PathRejection>, headers: HeaderMap) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|_| Problem::not_found("file"))?;
    answer(&name, &headers)
}

fn answer(name: &str, headers: &HeaderMap) -> Result<Response, Problem> {
    let (Some(kind), Some(file)) = (content_type(name), Files::get(name)) else {
        return Err(Problem::not_found("file"));
    };
    let tag = entity_tag(&file.metadata.sha256_hash());
    let always = [
        // A browser asks each time, and gets a short answer while the file is the same.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (OPENER_POLICY, "same-origin"),
    ];
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    if known.flat_map(|value| value.split(',')).any(|known| known.trim().trim_start_matches("W/") == tag) {
        return Ok((StatusCode::NOT_MODIFIED, always, [(ETAG, tag)]).into_response());
    }
    let unchanging = Extension(Unchanging(tag.as_str().into()));
    Ok((always, [(ETAG, tag), (CONTENT_TYPE, kind.to_owned())], unchanging, file.data).into_response())
}

fn content_type(name: &str) -> Option<&'static str> {
    match name.rsplit_once('.')?.1 {
        "html" => Some("text/html; charset=utf-8"),
        "js" => Some("text/javascript; charset=utf-8"),
        "css" => Some("text/css; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        "LICENSE" => Some("text/plain; charset=utf-8"),
        _ => None,
    }
}

fn entity_tag(hash: &[u8; 32]) -> String {
    format!("\"{}\"", hex(&hash[..16]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_both_pages_are_embedded_and_those_of_tests_and_tools_are_not() {
        for name in ["index.html", "app.js", "vendor/preact.js", "vendor/preact.LICENSE", "docs/docs.js"] {
            assert!(Files::get(name).is_some(), "{name}");
        }
        for name in Files::iter() {
            assert!(content_type(&name).is_some() && !name.starts_with("tests/"), "{name}");
        }
        assert!(answer("tsconfig.json", &HeaderMap::new()).is_err());
        assert!(answer("../Cargo.toml", &HeaderMap::new()).is_err());
        assert!(answer("vendor/../../Cargo.lock", &HeaderMap::new()).is_err());
    }

    #[test]
    fn a_browser_that_has_a_file_gets_a_short_answer() {
        let first = answer("index.html", &HeaderMap::new()).unwrap();
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[ETAG].clone();
        for sent in [tag.to_str().unwrap().to_owned(), format!("\"other\", W/{}", tag.to_str().unwrap())] {
            let headers = HeaderMap::from_iter([(IF_NONE_MATCH, sent.parse().unwrap())]);
            let second = answer("index.html", &headers).unwrap();
            assert_eq!(second.status(), StatusCode::NOT_MODIFIED);
            assert_eq!(second.headers()[CONTENT_SECURITY_POLICY], POLICY);
        }
    }
}
