//! Who asks, by the head of the request alone, before a byte of its body is read. Keys that nobody knows cost no buffered
//! body and do not come near placement; those of an address that has shown many of them are looked up one at a time.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use super::App;
use super::problem::Problem;
use super::traffic_quota::{self, Quota, QuotaOwner};
use crate::admission::AdmissionError;
use crate::admission::api_keys::{self, ApiKey};
use crate::admission::known::Recalled;
use crate::runners::Newcomer;

/// After a bad key of an address with many of them, the next one waits.
const AFTER_BAD_KEY: Duration = Duration::from_millis(20);

/// The address at the other end of the connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// What is below these paths is for someone: a user, an operator, a bot or an agent.
pub fn is_for_someone(route: &str) -> bool {
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

/// Who asks; `None` for a stranger. An API key that nobody has is refused here.
pub async fn identify(
    app: &App,
    headers: &HeaderMap,
    route: &str,
    stranger: &Quota,
) -> Result<Option<QuotaOwner>, Problem> {
    let Some(token) = credential(headers) else { return Ok(None) };
    let is_operator = || api_keys::same(&api_keys::hash(token), &app.admin_token_hash);
    if route.starts_with("/admin") && is_operator() {
        return Ok(Some(QuotaOwner::Operator));
    }
    Ok(match token.get(..4) {
        Some("grk_") => match ApiKey::parse(token) {
            Some(key) => Some(of_key(app, &key, stranger).await?),
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
    })
}

async fn of_key(app: &App, key: &ApiKey, stranger: &Quota) -> Result<QuotaOwner, Problem> {
    let recalled = app.admission.recall(key);
    let user = match recalled {
        Recalled::Good(user) => Ok(user),
        Recalled::Bad => Err(AdmissionError::Unauthorized),
        Recalled::Unseen if stranger.has_too_many_refusals() => doubtful(app, key).await?,
        Recalled::Stale | Recalled::Unseen => {
            let quotas = &app.quotas;
            let permits = if recalled == Recalled::Stale { &quotas.lookups } else { &quotas.new_lookups };
            let _permit = permits.acquire().await;
            // Another request may have looked up the same key meanwhile.
            app.admission.authenticate(key).await
        }
    };
    let refusal = match user {
        Ok(user) => return Ok(QuotaOwner::User(user)),
        Err(AdmissionError::Unauthorized) => Problem::from(AdmissionError::Unauthorized),
        Err(error) => return Err(error.into()),
    };
    stranger.refused();
    if stranger.has_too_many_refusals() {
        traffic_quota::hold(&app.stopping).await;
    }
    Err(refusal)
}

/// A key that nobody has seen, from an address that has shown many bad ones.
async fn doubtful(app: &App, key: &ApiKey) -> Result<Result<domain::UserId, AdmissionError>, Problem> {
    let permit = tokio::time::timeout(traffic_quota::HOLD, app.quotas.doubtful_lookups.acquire()).await;
    let Ok(Ok(_permit)) = permit else {
        return Err(Problem::overloaded("too many keys that nobody has came from your address"));
    };
    let user = app.admission.authenticate(key).await;
    if user.is_err() {
        tokio::time::sleep(AFTER_BAD_KEY).await;
    }
    Ok(user)
}
