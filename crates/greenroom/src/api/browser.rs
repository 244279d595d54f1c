//! What a browser sends by itself with every request: the session cookie, and `Origin`, which names the page that asks.
//! Another site can make a browser send the cookie, but not with another `Origin` than its own. So a request that
//! changes something, and is made with the cookie, must come from a page of this server.

use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};

use super::caller;
use super::problem::Problem;
use crate::admission::browser_sessions::{LIFETIME, SessionToken};

/// The name of the cookie.
pub const COOKIE_NAME: &str = "greenroom_session";

/// The session cookie of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionCookie {
    None,
    One(SessionToken),
    /// A cookie that cannot be one of this server's, or more than one. A second one may be from another host of the same
    /// domain, and nobody can tell which of them was set here.
    Bad,
}

pub fn session_cookie(headers: &HeaderMap) -> SessionCookie {
    let mut found = SessionCookie::None;
    for value in headers.get_all(COOKIE) {
        let Ok(text) = value.to_str() else { return SessionCookie::Bad };
        for pair in text.split(';') {
            let Some((name, value)) = pair.split_once('=') else { continue };
            if name.trim() != COOKIE_NAME {
                continue;
            }
            found = match (found, SessionToken::parse(value.trim())) {
                (SessionCookie::None, Some(token)) => SessionCookie::One(token),
                _ => return SessionCookie::Bad,
            };
        }
    }
    found
}

/// The header that sets the cookie, or with `None` the one that removes it.
pub fn set_cookie(token: Option<&SessionToken>, is_secure: bool) -> String {
    let (value, age) = token.map_or(("", 0), |token| (token.reveal(), LIFETIME.as_secs()));
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{COOKIE_NAME}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}")
}

/// Whether the browser may send the cookie only over TLS: the request came by it, or everyone is expected to use it.
pub fn is_secure(request: &Parts, public_url: &str) -> bool {
    scheme(&request.headers) == "https" || public_url.to_ascii_lowercase().starts_with("https://")
}

/// The scheme of a request. The server itself has no TLS; a proxy in front of it says what it got.
fn scheme(headers: &HeaderMap) -> &'static str {
    let forwarded = headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let first = forwarded.split(',').next().unwrap_or_default().trim();
    if first.eq_ignore_ascii_case("https") { "https" } else { "http" }
}

/// Refuses a request that a page of another site may have caused: it changes something, is made with the session cookie,
/// and does not come from this server's own pages.
pub fn refuse_foreign_change(request: &Parts, public_url: &str) -> Result<(), Problem> {
    let headers = &request.headers;
    let is_read = [Method::GET, Method::HEAD, Method::OPTIONS].contains(&request.method);
    if is_read || caller::has_credential(headers) || session_cookie(headers) == SessionCookie::None {
        return Ok(());
    }
    require_own_origin(request, public_url)
}

/// Requires `Origin`, and that it is this server's own: that of `public_url`, or of the host that was asked.
pub fn require_own_origin(request: &Parts, public_url: &str) -> Result<(), Problem> {
    let headers = &request.headers;
    let mut sent = headers.get_all(ORIGIN).iter();
    let origin = match (sent.next(), sent.next()) {
        (Some(origin), None) => origin.to_str().ok().and_then(origin_of),
        _ => None,
    };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let asked = host.and_then(|host| origin_of(&format!("{}://{host}", scheme(headers))));
    if origin.is_some() && (origin == origin_of(public_url) || origin == asked) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "forbidden_origin",
        "a request with the session cookie that changes something needs the header `Origin` with this server's own \
         origin; programs send a key or a token instead of the cookie. If this is the server's own page, set \
         `public_url` to the address in the browser",
    ))
}

/// The request names an origin that is not this server's own.
pub fn refuse_foreign_origin(request: &Parts, public_url: &str) -> Result<(), Problem> {
    if request.headers.contains_key(ORIGIN) { require_own_origin(request, public_url) } else { Ok(()) }
}

/// Scheme, host and port of a URL, in one spelling. `None` for anything else, such as `null`.
fn origin_of(url: &str) -> Option<String> {
    let url = url.to_ascii_lowercase();
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next()?;
    let host = host.rsplit('@').next()?;
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return None,
    };
    let host = host.strip_suffix(port).unwrap_or(host);
    (!host.is_empty()).then(|| format!("{scheme}://{host}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TOKEN: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn request(method: Method, headers: &[(&str, &str)]) -> Parts {
        let mut request = axum::http::Request::builder().method(method).uri("/bots");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn cookie() -> String {
        format!("{COOKIE_NAME}={TOKEN}")
    }

    fn may(headers: &[(&str, &str)], public_url: &str) -> bool {
        refuse_foreign_change(&request(Method::POST, headers), public_url).is_ok()
    }

    #[test]
    fn the_cookie_is_found_among_others_and_two_of_them_are_not_taken() {
        let of = |text: &str| session_cookie(&request(Method::GET, &[("cookie", text)]).headers);
        assert_eq!(of(&format!("a=b; {}; c", cookie())), SessionCookie::One(SessionToken::parse(TOKEN).unwrap()));
        assert_eq!(of("a=b; xgreenroom_session=1"), SessionCookie::None);
        assert_eq!(of(&format!("{}; {}", cookie(), cookie())), SessionCookie::Bad);
        assert_eq!(of("greenroom_session="), SessionCookie::Bad);
        let twice = request(Method::GET, &[("cookie", &cookie()), ("cookie", &cookie())]);
        assert_eq!(session_cookie(&twice.headers), SessionCookie::Bad);
    }

    #[test]
    fn a_change_with_the_cookie_needs_the_origin_of_this_server() {
        let cookie = cookie();
        let with = |origin: &str, public_url: &str| {
            may(&[("cookie", &cookie), ("host", "greenroom.example:7700"), ("origin", origin)], public_url)
        };
        let public = "https://Public.example/greenroom";
        for origin in ["http://greenroom.example:7700", "https://public.example", "https://public.example:443"] {
            assert!(with(origin, public), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "https://greenroom.example:7700",
            "http://greenroom.example",
            "http://greenroom.example:7700.evil.example",
            "http://public.example",
            "https://public.example.evil.example",
            "https://evil.example/https://public.example",
            "file://public.example",
        ] {
            assert!(!with(origin, public), "{origin}");
        }
        assert!(!may(&[("cookie", &cookie), ("host", "a")], public), "without Origin");
        let twice = [("cookie", cookie.as_str()), ("host", "a"), ("origin", "http://a"), ("origin", "http://b")];
        assert!(!may(&twice, public), "two of them");
        let proxied = [("cookie", &*cookie), ("host", "a"), ("x-forwarded-proto", "https"), ("origin", "https://a")];
        assert!(may(&proxied, public));
    }

    #[test]
    fn reads_and_calls_with_a_key_need_no_origin() {
        let cookie = cookie();
        assert!(refuse_foreign_change(&request(Method::GET, &[("cookie", &cookie)]), "").is_ok());
        assert!(may(&[("cookie", &cookie), ("authorization", "Bearer x")], ""));
        assert!(may(&[("cookie", &cookie), ("x-api-key", "x")], ""));
        assert!(may(&[], ""));
        // A cookie that is not valid is still one that a browser sends by itself.
        assert!(!may(&[("cookie", "greenroom_session=x")], ""));
    }

    #[test]
    fn the_cookie_is_secure_behind_tls() {
        let token = SessionToken::parse(TOKEN).unwrap();
        let plain = request(Method::POST, &[]);
        assert!(!is_secure(&plain, "http://a") && is_secure(&plain, "HTTPS://a"));
        assert!(is_secure(&request(Method::POST, &[("x-forwarded-proto", "https, http")]), "http://a"));
        assert_eq!(
            set_cookie(Some(&token), true),
            format!("greenroom_session={TOKEN}; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure")
        );
        assert_eq!(set_cookie(None, false), "greenroom_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
    }
}
