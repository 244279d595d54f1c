//! What handlers take from a request: who asks, the body by its type, the query by its type. Each refusal says what
//! was wrong and names the field.

use std::net::IpAddr;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use domain::{AuditAction, SlotClaim, UserId};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

use super::App;
use super::caller;
use super::problem::Problem;
use crate::admission::api_keys::ApiKey;
use crate::admission::browser_sessions::{BrowserSession, SessionOwner, UserCredential};
use crate::lifecycle::tokens::{Claim, RunnerClaim};
use crate::runners::Newcomer;
use crate::store::NewAuditEntry;

/// An API key that looks like one, or the session of a user. Whose key it is, if anyone's, is still to be seen.
#[derive(Debug)]
pub struct Key(pub UserCredential);

/// The user who asks.
#[derive(Debug)]
pub struct User(pub Asker);

/// What a handler needs to know of a user.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub id: UserId,
}

/// An operator asks.
#[derive(Debug)]
pub struct Operator {
    /// The address at the other end of the connection, whatever the headers say.
    address: IpAddr,
}

impl Operator {
    /// A record of what this operator does.
    pub fn audit(&self, action: AuditAction) -> NewAuditEntry {
        NewAuditEntry::new(action, self.address)
    }
}

/// A bot speaks, under the token of one of its assignments.
#[derive(Debug)]
pub struct Bot(pub Claim);

/// An agent waits.
#[derive(Debug)]
pub enum Agent {
    InSlot(SlotClaim),
    OnRunner(RunnerClaim),
}

/// A runner speaks.
#[derive(Debug)]
pub struct Runner(pub RunnerClaim);

/// A JSON body of a known type.
#[derive(Debug)]
pub struct Json<T>(pub T);

/// The query of a known type.
#[derive(Debug)]
pub struct Asked<T>(pub T);

/// An id in the path. What is no id belongs to nothing.
#[derive(Debug)]
pub struct Id<T>(pub T);

fn bearer(parts: &Parts) -> Option<&str> {
    caller::bearer(&parts.headers)
}

/// The session of a browser, which the middleware has found.
fn session(parts: &Parts) -> Option<&BrowserSession> {
    parts.extensions.get::<BrowserSession>()
}

impl FromRequestParts<App> for Key {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        if let Some(text) = caller::credential(&parts.headers) {
            let key = ApiKey::parse(text).ok_or_else(|| Problem::unauthorized("the value is not an API key"))?;
            return Ok(Key(UserCredential::Key(key)));
        }
        match session(parts) {
            Some(BrowserSession { token, owner: SessionOwner::User { .. }, .. }) => {
                Ok(Key(UserCredential::Session(token.clone())))
            }
            Some(_) => Err(Problem::unauthorized("this call is for users, and the browser is signed in as operator")),
            None => {
                Err(Problem::unauthorized("send your API key as `Authorization: Bearer <key>` or `X-API-Key: <key>`"))
            }
        }
    }
}

impl FromRequestParts<App> for User {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Key(key) = Key::from_request_parts(parts, app).await?;
        Ok(User(Asker { id: app.sessions.user_of(&key).await?.0 }))
    }
}

impl FromRequestParts<App> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let operator = Operator { address: caller::address(&parts.extensions) };
        match (bearer(parts), session(parts)) {
            (Some(token), _) if app.sessions.is_admin_token(token) => Ok(operator),
            (Some(_), _) => Err(Problem::unauthorized("the token is not the admin token")),
            (None, Some(BrowserSession { owner: SessionOwner::Operator, .. })) => Ok(operator),
            (None, Some(_)) => {
                Err(Problem::unauthorized("this call is for operators, and the browser is signed in as a user"))
            }
            (None, None) => Err(Problem::unauthorized("send the admin token as `Authorization: Bearer <token>`")),
        }
    }
}

impl FromRequestParts<App> for Bot {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let token = bearer(parts)
            .ok_or_else(|| Problem::unauthorized("send the bot token as `Authorization: Bearer <token>`"))?;
        Ok(Bot(app.lifecycle.claim(token)?))
    }
}

impl FromRequestParts<App> for Agent {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let token = bearer(parts).ok_or_else(|| {
            Problem::unauthorized("send the slot token or the runner token as `Authorization: Bearer <token>`")
        })?;
        let in_slot = app.lifecycle.slot_claim(token).map(Agent::InSlot);
        let agent = in_slot.or_else(|| app.runners.claim(token).map(Agent::OnRunner));
        agent.ok_or_else(|| Problem::unauthorized("the token is neither a slot token nor a runner token"))
    }
}

impl FromRequestParts<App> for Runner {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let token = bearer(parts)
            .ok_or_else(|| Problem::unauthorized("send the runner token as `Authorization: Bearer <token>`"))?;
        let claim = app.runners.claim(token);
        claim.map(Runner).ok_or_else(|| Problem::unauthorized("the token is not a runner token"))
    }
}

impl FromRequestParts<App> for Newcomer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let token = bearer(parts).ok_or_else(|| {
            Problem::unauthorized("send the pool token or the runner token as `Authorization: Bearer <token>`")
        })?;
        app.runners
            .newcomer(token)
            .ok_or_else(|| Problem::unauthorized("the token is neither a pool token nor a runner token"))
    }
}

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, app).await.map_err(Problem::malformed)?;
        read_json(&bytes).map(Json)
    }
}

impl<T: DeserializeOwned> FromRequestParts<App> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let Query(asked) = Query::try_from_uri(&parts.uri).map_err(|rejection| {
            let text = rejection.body_text();
            let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            let (field, why) = text.split_once(": ").unwrap_or(("query", text));
            Problem::invalid(field, why)
        })?;
        Ok(Asked(asked))
    }
}

impl<T: std::str::FromStr + Send> FromRequestParts<App> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, app).await;
        let id = path.ok().and_then(|axum::extract::Path(text)| text.parse().ok());
        let what = if parts.uri.path().starts_with("/admin/users") { "user" } else { "bot" };
        id.map(Id).ok_or_else(|| Problem::not_found(what))
    }
}

/// How large a document may be that is kept for someone else.
const LARGEST_DOCUMENT: usize = 64 * 1024;

/// A document that is kept for someone else: it is read back with every list, so it may not be as large as a body.
pub fn document(field: &str, document: Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    let size = serde_json::to_string(&document).map_or(usize::MAX, |text| text.len());
    if size > LARGEST_DOCUMENT {
        return Err(Problem::invalid(field, format!("is larger than {LARGEST_DOCUMENT} bytes of JSON")));
    }
    Ok(document)
}

/// Reads a body: 400 when it is not JSON, 422 with the field when it is JSON of another shape.
pub fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    refuse_nul(bytes)?;
    read_json_with_nul(bytes)
}

/// The same for a body whose text is cleaned of NUL by its handler.
pub fn read_json_with_nul<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // A list would be taken as the fields in their order.
    if bytes.trim_ascii_start().first() != Some(&b'{') && serde_json::from_slice::<IgnoredAny>(bytes).is_ok() {
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", "the body must be a JSON object"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let read: T = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if error.is_data() {
            // Serde says where in the text as well; the field is what helps.
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            if path == "." {
                return Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message);
            }
            Problem::invalid(&path, message)
        } else {
            not_json(&error)
        }
    })?;
    deserializer.end().map_err(|error| not_json(&error))?;
    Ok(read)
}

fn not_json(error: &serde_json::Error) -> Problem {
    Problem::malformed(format!("the body is not JSON: {error}"))
}

/// Text with a NUL in it cannot be stored by PostgreSQL, so it is refused at the door, for both databases alike.
fn refuse_nul(bytes: &[u8]) -> Result<(), Problem> {
    if !bytes.windows(6).any(|window| window == b"\\u0000") {
        return Ok(());
    }
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return Ok(()) };
    match find_nul(&value, String::new()) {
        Some(path) => Err(Problem::invalid(&path, "contains a NUL character, which cannot be stored")),
        None => Ok(()),
    }
}

fn find_nul(value: &Value, path: String) -> Option<String> {
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::String(text) => text.contains('\0').then_some(path),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| find_nul(item, format!("{path}[{index}]")))
        }
        Value::Object(entries) => entries
            .iter()
            .find_map(|(key, item)| if key.contains('\0') { Some(join("a key")) } else { find_nul(item, join(key)) }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}
