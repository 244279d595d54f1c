//! For people with a browser: sign in, see who is signed in, sign out. Only these calls look at the cookie alone; for all
//! others the middleware finds the session.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, SET_COOKIE};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::browser::{self, SessionCookie};
use super::caller;
use super::extract::read_json;
use super::problem::{Problem, ProblemDto};
use super::traffic_quota::Quota;
use crate::admission::api_keys::ApiKey;
use crate::admission::browser_sessions::{BrowserSession, SessionOwner};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignInBody {
    /// The admin token, or the API key of a user.
    #[schema(format = Password)]
    pub token: String,
}

impl std::fmt::Debug for SignInBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignInBody(…)")
    }
}

/// Who is signed in.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BrowserSession)]
pub struct SessionDto {
    pub kind: SessionKind,
    /// When the session ends by itself.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: jiff::Timestamp,
    /// The user. Absent for an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub user_id: Option<Uuid>,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionKind {
    Operator,
    User,
}

impl From<&BrowserSession> for SessionDto {
    fn from(session: &BrowserSession) -> Self {
        let (kind, user_id) = match session.owner {
            SessionOwner::Operator => (SessionKind::Operator, None),
            SessionOwner::User { user, .. } => (SessionKind::User, Some(user.0)),
        };
        Self { kind, expires_at: session.expires_at, user_id }
    }
}

/// Sign in with a browser
///
/// Sets the cookie `greenroom_session`, with which this browser may then do what the token may, for 12 hours. The cookie
/// is HttpOnly and SameSite=Strict, and Secure if the server is used over https. A request with the cookie that changes
/// something needs the header `Origin` with the origin of the server. A request that also has `Authorization` or
/// `X-API-Key` uses these.
#[utoipa::path(
    post, path = "/session", operation_id = "session_create", tag = "For everyone", request_body = SignInBody,
    responses(
        (status = 201, description = "Signed in", body = SessionDto,
         headers(("Set-Cookie" = String, description = "The cookie of the session"))),
        (status = 401, description = "`unauthorized`: the token is neither the admin token nor an API key",
         body = ProblemDto, content_type = "application/problem+json"),
        (status = 403, description = "`forbidden_origin`: the request comes from a page of another site",
         body = ProblemDto, content_type = "application/problem+json"),
    ),
    security(()),
)]
pub async fn sign_in(
    State(app): State<App>,
    Extension(quota): Extension<Arc<Quota>>,
    parts: Parts,
    body: Bytes,
) -> Result<Response, Problem> {
    // A page of another site must not sign a browser in as somebody else.
    browser::refuse_foreign_origin(&parts, &app.public_url)?;
    let SignInBody { token } = read_json(&body)?;
    let owner = if app.sessions.is_admin_token(&token) {
        SessionOwner::Operator
    } else {
        let Some(key) = ApiKey::parse(&token) else {
            return Err(Problem::unauthorized("the token is neither the admin token nor an API key"));
        };
        SessionOwner::User { user: caller::user_of_key(&app, &key, &quota).await?, key: key.id }
    };
    let session = app.sessions.sign_in(owner).await?;
    let cookie = browser::set_cookie(Some(&session.token), browser::is_secure(&parts, &app.public_url));
    let headers = [(SET_COOKIE, cookie), (CACHE_CONTROL, "no-store".to_owned())];
    Ok((StatusCode::CREATED, headers, axum::Json(SessionDto::from(&session))).into_response())
}

/// Show who is signed in
///
/// Looks at the cookie `greenroom_session` only.
#[utoipa::path(
    get, path = "/session", operation_id = "session_show", tag = "For everyone",
    responses(
        (status = 200, description = "The session of this browser", body = SessionDto),
        (status = 401, description = "`unauthorized`: nobody is signed in, or the session has ended",
         body = ProblemDto, content_type = "application/problem+json"),
    ),
    security(("browser_session" = [])),
)]
pub async fn show(
    State(app): State<App>,
    Extension(quota): Extension<Arc<Quota>>,
    parts: Parts,
) -> Result<Response, Problem> {
    let Some(session) = caller::session_of(&app, &parts.headers, &quota).await? else {
        return Err(Problem::unauthorized("nobody is signed in; sign in with POST /session"));
    };
    Ok(([(CACHE_CONTROL, "no-store")], axum::Json(SessionDto::from(&session))).into_response())
}

/// Sign out
///
/// Ends the session of the cookie `greenroom_session`, on every replica within a second, and removes the cookie. Needs
/// the header `Origin` with the origin of the server.
#[utoipa::path(
    delete, path = "/session", operation_id = "session_delete", tag = "For everyone",
    responses(
        (status = 204, description = "Nobody is signed in any more"),
        (status = 403, description = "`forbidden_origin`: the request does not come from a page of this server",
         body = ProblemDto, content_type = "application/problem+json"),
    ),
    security((), ("browser_session" = [])),
)]
pub async fn sign_out(State(app): State<App>, parts: Parts) -> Result<Response, Problem> {
    let cookie = browser::session_cookie(&parts.headers);
    if cookie != SessionCookie::None {
        browser::require_own_origin(&parts, &app.public_url)?;
    }
    if let SessionCookie::One(token) = cookie {
        app.sessions.sign_out(&token).await?;
    }
    let cookie = browser::set_cookie(None, browser::is_secure(&parts, &app.public_url));
    let headers = [(SET_COOKIE, cookie), (CACHE_CONTROL, "no-store".to_owned())];
    Ok((StatusCode::NO_CONTENT, headers).into_response())
}
