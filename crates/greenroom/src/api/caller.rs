//! Who asks, by the head of the request alone, before a byte of its body is read. Keys that nobody knows cost no buffered
//! body and do not come near placement; those of an address that has shown many of them are looked up one at a time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::{Extensions, HeaderMap};
use domain::UserId;

use super::App;
use super::browser::{self, SessionCookie};
use super::problem::Problem;
use super::traffic_quota::{self, Quota, QuotaOwner};
use crate::admission::AdmissionError;
use crate::admission::api_keys::ApiKey;
use crate::admission::browser_sessions::{BrowserSession, SessionOwner};
use crate::admission::key_cache::CachedKey;
use crate::admission::session_cache::CachedSession;
use crate::runners::Newcomer;

/// After a bad key of an address with many of them, the next one waits.
const AFTER_BAD_KEY: Duration = Duration::from_millis(20);

/// The address at the other end of the connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// The address of the caller's connection. A header such as `X-Forwarded-For` has no say: anyone can send it.
pub fn address(extensions: &Extensions) -> IpAddr {
    extensions.get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0)
}

/// What is below these paths is for someone: a user, an operator, a bot or an agent.
pub fn needs_caller(route: &str) -> bool {
    let prefixes = ["/bots", "/meetings", "/events", "/callback", "/agent", "/admin", "/webhooks"];
    prefixes.iter().any(|prefix| route.starts_with(prefix))
}

/// The token of `Authorization: Bearer …`.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The key or token that a request shows.
pub fn credential(headers: &HeaderMap) -> Option<&str> {
    bearer(headers).or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()))
}

/// Whether a request shows a key or a token, good or not. Then its cookie does not count.
pub fn has_credential(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION) || headers.contains_key("x-api-key")
}

/// Who asks.
#[derive(Debug, Default)]
pub struct Identified {
    /// `None` for a stranger.
    pub owner: Option<QuotaOwner>,
    /// The session of a browser, if the request has no key or token of its own.
    pub session: Option<BrowserSession>,
}

/// Who asks. An API key that nobody has, and a session that has ended, are refused here.
pub async fn identify(app: &App, headers: &HeaderMap, route: &str, stranger: &Quota) -> Result<Identified, Problem> {
    let Some(token) = credential(headers) else {
        let by_cookie = needs_caller(route) && !has_credential(headers);
        let session = if by_cookie { session_of(app, headers, stranger).await? } else { None };
        let owner = session.as_ref().map(|session| match session.owner {
            SessionOwner::Operator => QuotaOwner::Operator,
            SessionOwner::User { user, .. } => QuotaOwner::User(user),
        });
        return Ok(Identified { owner, session });
    };
    let is_operator = || app.sessions.is_admin_token(token);
    if route.starts_with("/admin") && is_operator() {
        return Ok(Identified { owner: Some(QuotaOwner::Operator), session: None });
    }
    let owner = match token.get(..4) {
        Some("grk_") => match ApiKey::parse(token) {
            Some(key) => Some(QuotaOwner::User(user_of_key(app, &key, stranger).await?)),
            None => None,
        },
        Some("grb_") => app.lifecycle.claim(token).ok().map(|claim| QuotaOwner::Bot(claim.bot)),
        Some("grs_") => app.lifecycle.slot_claim(token).map(|claim| QuotaOwner::Slot(claim.slot)),
        Some("grr_" | "grp_") => app.runners.newcomer(token).map(|newcomer| {
            QuotaOwner::Machine(match newcomer {
                Newcomer::Known(claim) => claim.instance,
                Newcomer::OfPool(pool) => pool,
            })
        }),
        _ => is_operator().then_some(QuotaOwner::Operator),
    };
    Ok(Identified { owner, session: None })
}

/// The user whose key this is.
pub async fn user_of_key(app: &App, key: &ApiKey, stranger: &Quota) -> Result<UserId, Problem> {
    let cached = match app.admission.cached_key(key) {
        CachedKey::Valid(user) => return Ok(user),
        CachedKey::Invalid => Cached::Invalid(AdmissionError::Unauthorized),
        CachedKey::Stale => Cached::Stale,
        CachedKey::Missing => Cached::Missing,
    };
    look_up(app, stranger, cached, app.admission.authenticate(key)).await
}

/// The session of the cookie. `None` when there is no cookie.
pub async fn session_of(app: &App, headers: &HeaderMap, stranger: &Quota) -> Result<Option<BrowserSession>, Problem> {
    let token = match browser::session_cookie(headers) {
        SessionCookie::None => return Ok(None),
        SessionCookie::One(token) => token,
        SessionCookie::Bad => {
            stranger.refused();
            return Err(Problem::unauthorized("the session cookie is not valid, or was sent twice; sign in again"));
        }
    };
    let cached = match app.sessions.cached(&token) {
        CachedSession::Valid(session) => return Ok(Some(session)),
        CachedSession::Invalid => Cached::Invalid(AdmissionError::SessionEnded),
        CachedSession::Stale => Cached::Stale,
        CachedSession::Missing => Cached::Missing,
    };
    look_up(app, stranger, cached, app.sessions.find(&token)).await.map(Some)
}

/// What the cache says of a key or a session that it cannot vouch for.
enum Cached {
    Invalid(AdmissionError),
    /// It was good before.
    Stale,
    Missing,
}

/// Looks up a key or a session, slower for an address that has shown many bad ones, and counts one that is bad.
async fn look_up<T>(
    app: &App,
    stranger: &Quota,
    cached: Cached,
    find: impl Future<Output = Result<T, AdmissionError>>,
) -> Result<T, Problem> {
    let found = match cached {
        Cached::Invalid(error) => Err(error),
        Cached::Missing if stranger.has_too_many_refusals() => look_up_slowly(app, find).await?,
        Cached::Stale | Cached::Missing => {
            let quotas = &app.quotas;
            let permits = if matches!(cached, Cached::Stale) { &quotas.lookups } else { &quotas.new_lookups };
            let _permit = permits.acquire().await;
            // Another request may have looked up the same meanwhile.
            find.await
        }
    };
    let refusal = match found {
        Ok(found) => return Ok(found),
        Err(error @ (AdmissionError::Unauthorized | AdmissionError::SessionEnded)) => Problem::from(error),
        Err(error) => return Err(error.into()),
    };
    stranger.refused();
    if stranger.has_too_many_refusals() {
        traffic_quota::hold(&app.stopping).await;
    }
    Err(refusal)
}

/// A key or a session that nobody has seen, from an address that has shown many bad ones.
async fn look_up_slowly<T>(
    app: &App,
    find: impl Future<Output = Result<T, AdmissionError>>,
) -> Result<Result<T, AdmissionError>, Problem> {
    let permit = tokio::time::timeout(traffic_quota::HOLD, app.quotas.doubtful_lookups.acquire()).await;
    let Ok(Ok(_permit)) = permit else {
        return Err(Problem::overloaded("your address has sent too many unknown API keys or cookies; try again"));
    };
    let found = find.await;
    if found.is_err() {
        tokio::time::sleep(AFTER_BAD_KEY).await;
    }
    Ok(found)
}
